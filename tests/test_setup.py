"""The set-up behind ``make``: the versions of Python and torch that it selects, and its pins."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


@pytest.fixture
def set_up() -> ModuleType:
    """The module ``scripts/setup.py``, which is not in a package."""
    spec = importlib.util.spec_from_file_location("meshwave_setup", ROOT / "scripts" / "setup.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Pip:
    """Records calls of pip; those that name an index fail if the index is ``unreachable``."""

    def __init__(self, *, unreachable: bool = False) -> None:
        self.calls: list[list[str]] = []
        self.unreachable = unreachable

    def __call__(self, *arguments: object, check: bool = True) -> int:
        self.calls.append([str(argument) for argument in arguments])
        return int(self.unreachable and CPU_INDEX in self.calls[-1])


@pytest.mark.parametrize(
    ("installed", "gpu", "unreachable", "expected"),
    [
        ("2.11.0+cu130", True, False, []),
        ("2.13.0+cpu", False, False, []),
        (None, False, False, [CPU_INDEX]),
        (None, False, True, [CPU_INDEX, "configured"]),
        (None, True, False, ["configured"]),
        ("2.4.1", True, False, ["configured"]),
    ],
)
def test_an_installed_torch_is_kept_and_a_machine_without_gpu_gets_the_cpu_build(
    set_up: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    installed: str | None,
    gpu: bool,
    unreachable: bool,
    expected: list[str],
) -> None:
    pip = Pip(unreachable=unreachable)
    monkeypatch.setattr(set_up, "pip", pip)
    monkeypatch.setattr(set_up, "describe_interpreter", lambda python: {"torch": installed})
    monkeypatch.setattr(set_up, "has_nvidia_gpu", lambda: gpu)
    monkeypatch.setattr(set_up.sys, "platform", "linux")

    set_up.install_torch()

    assert [CPU_INDEX if CPU_INDEX in call else "configured" for call in pip.calls] == expected
    assert all(call[-1].startswith("torch==") for call in pip.calls)


@pytest.mark.slow
@pytest.mark.parametrize(("kept", "pinned"), [("2.13.0+cpu", True), ("2.15.0+cu130", False)])
def test_an_installed_torch_of_another_version_is_not_pinned(
    set_up: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kept: str, pinned: bool
) -> None:
    monkeypatch.setattr(set_up, "pip", Pip())
    monkeypatch.setattr(set_up, "describe_interpreter", lambda python: {"torch": kept})
    monkeypatch.setattr(set_up, "VENV", tmp_path)

    set_up.install_meshwave("run")

    names = {line.split("==")[0] for line in (tmp_path / "constraints.txt").read_text().split()}
    assert "numpy" in names
    assert names.isdisjoint(set_up.TORCH_BRINGS) != pinned


def test_pins_are_within_the_ranges_and_complete(set_up: ModuleType) -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(line.split("==") for line in set_up.constraints())

    extras = project["optional-dependencies"]
    for text in [*project["dependencies"], *extras["docs"], *extras["test"]]:
        requirement = Requirement(text)
        assert requirement.name in pins
        assert requirement.specifier.contains(pins[requirement.name])
    assert pins.keys() >= set_up.TORCH_BRINGS


def test_a_second_call_returns_at_once_unless_requirements_or_folder_changed(
    set_up: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(set_up, "VENV", tmp_path)
    monkeypatch.setattr(set_up, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(set_up, "find_chromium", lambda: "chromium")
    monkeypatch.setattr(set_up, "missing_test_programs", list)
    for step in ("find_python", "make_venv", "install_torch", "install_meshwave"):
        monkeypatch.setattr(set_up, step, lambda *given: (sys.executable, {}))

    assert not set_up.is_done("test")
    set_up.main("test")
    assert all(set_up.is_done(goal) for goal in ("run", "docs", "test"))

    monkeypatch.setattr(set_up, "requirements_hash", lambda: "another place or other pins")
    assert not set_up.is_done("run")


def test_a_python_that_is_too_old_is_reported(set_up: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        set_up, "describe_interpreter", lambda python: {"version": [3, 9, 1], "venv": True, "torch": None}
    )

    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer"):
        set_up.find_python()


def test_a_python_without_venv_names_the_package(set_up: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_up, "PYTHON", ROOT / "no" / "such" / "python")

    with pytest.raises(SystemExit, match=r"apt-get install python3\.12-venv"):
        set_up.make_venv("python3", {"version": [3, 12, 1], "venv": False, "torch": None, "inside_venv": False})


def test_ci_calls_the_test_command_of_the_readme() -> None:
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()

    assert "    make test " in readme
    assert ci.rstrip().endswith("exec make test")
    planned = subprocess.run(["make", "--dry-run", "test"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "scripts/setup.py test" in planned
    assert "scripts/run_tests.py" in planned
