"""The installed wheel contains everything that the commands need, without the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built offline with the installed tools."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "-w", folder, ROOT)
    [built] = folder.glob("meshwave-*.whl")
    return built


@pytest.fixture(scope="session")
def install_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command ``meshwave`` of an environment with the wheel, which uses the libraries of this environment."""
    place = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(place, symlinks=os.name != "nt")
    packages = next(place.glob("lib/python*/site-packages"))
    lent = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "lent.pth").write_text("\n".join(lent) + "\n")
    run(sys.executable, "-m", "pip", "--python", place, "install", "--quiet", "--no-deps", "--ignore-installed", wheel)
    return place / "bin" / "meshwave"


def run(*command: object, folder: Path | None = None) -> str:
    """Return the output of a command, which must succeed."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=clean, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


def tree(folder: str, pattern: str = "*") -> set[str]:
    """Return the names of the files in a folder of the source tree, as paths inside it."""
    base = ROOT / folder
    return {
        str(path.relative_to(base)) for path in base.rglob(pattern) if path.is_file() and "__pycache__" not in str(path)
    }


def test_the_wheel_contains_all_files_of_the_source_tree(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    assert names >= {f"meshwave/static/{name}" for name in tree("static")}
    assert names >= {f"meshwave/examples/{name}" for name in tree("examples")}
    for package in ("engine", "designer"):
        assert names >= {f"meshwave/{package}/{name}" for name in tree(package)}, "a file is left out"
    assert any(name.startswith("meshwave/engine/costs/presets/") and name.endswith(".json") for name in names)
    assert names >= {"meshwave/engine/runs/texts/default.txt", "meshwave/glossary.md"}
    assert {name for name in names if name.startswith("meshwave/docs/")} == {
        f"meshwave/docs/{name}" for name in tree("build/docs")
    }, "`make docs` and the wheel differ"


def test_the_wheel_contains_no_other_files(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"meshwave"}
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name]


def test_the_command_works_from_any_folder(install_wheel: Path, tmp_path: Path) -> None:
    assert "simulate" in run(install_wheel, "--help", folder=tmp_path)
    examples = run(install_wheel, "examples", folder=tmp_path)
    assert all(Path(name).stem in examples for name in tree("examples", "*.json"))
    assert '"makespan_s"' in run(install_wheel, "simulate", Path(min(tree("examples"))).stem, "--json", folder=tmp_path)


def test_the_page_finds_its_files_where_it_is_installed(install_wheel: Path, tmp_path: Path) -> None:
    program = "import meshwave.designer.pages.design_page; print(meshwave.__file__)"

    assert str(install_wheel.parents[1]) in run(install_wheel.parent / "python", "-c", program, folder=tmp_path)
