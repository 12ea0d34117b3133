"""One new file is enough: the examples of the extension guide are dropped into a copy of the tree."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from meshwave.designer.views import views
from tests.architecture.test_seams import registries
from tests.extended import EXTENSIONS, ROOT, copy_tree, example_files, meshwave, python

pytestmark = pytest.mark.slow

LINK = {"latency_s": 1e-5, "bandwidth": 1e9}
DESIGN: dict[str, Any] = {
    "format": "meshwave/1",
    "name": "extended",
    "cluster": {
        "nodes": 1, "devices_per_node": 2, "intra_node": LINK, "inter_node": LINK,
        "device": {"peak_flops": 5e10, "memory_bytes": 4e9, "memory_bandwidth": 1e10},
    },
    "model": {"kind": "mlp", "layers": 4, "hidden": 16},
    "meshes": [{"name": "A", "devices": [0]}, {"name": "B", "devices": [1]}],
    "pipeline": {"schedule": "grouped-gpipe", "microbatches": 4, "group": 3},
    "transfer": {"strategy": "relay", "ordering": "largest-first"},
    "training": {"micro_batch_size": 4, "steps": 4},
    "cost": {"kind": "per-layer", "layer_s": 0.01},
}  # fmt: skip
NEW = {
    "cost": "per-layer", "model": "mlp", "pipeline": "grouped-gpipe", "transfer.strategy": "relay",
    "transfer.ordering": "largest-first", "experts.schedule": "split-tokens",
}  # fmt: skip
"""The new members of the document, by their keys."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_tree(tmp_path_factory.mktemp("extended"))


@pytest.fixture(scope="module")
def plain_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_tree(tmp_path_factory.mktemp("plain"), extended=False)


def write(folder: Path, name: str, **changes: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps({**DESIGN, **changes}))
    return path


def test_every_seam_has_an_example() -> None:
    seams = {registry._package for registry in (*registries(), views)}

    assert {f"meshwave.{'.'.join(file.parent.parts)}" for file in example_files()} == seams


def test_the_guide_shows_every_example() -> None:
    guide = (ROOT / "docs/extending.md").read_text(encoding="utf-8")

    assert [file for file in example_files() if f"examples/extensions/{file.as_posix()}\n" not in guide] == []


TEXTS = """
from contextlib import suppress
from meshwave.designer.main import main

for words in (["schema"], ["run", "--help"], ["export", "--help"], ["import", "--help"]):
    with suppress(SystemExit):
        main(words)
    print(end="\\f")
"""


def test_the_schema_and_the_command_line_know_the_new_members(tree: Path) -> None:
    schema, run, export, read, _ = python(tree, "-c", TEXTS).stdout.split("\f")

    assert all(f'"{name}"' in schema for name in NEW.values())
    assert "standalone" in run and "markdown" in export and "orders" in read


def test_a_design_of_new_members_is_predicted(tree: Path) -> None:
    numbers = json.loads(meshwave(tree, "simulate", write(tree, "design.json"), "--json"))

    assert numbers["busy_s"] == pytest.approx(
        [2 * 0.01 * 3 * 4] * 2
    )  # two layers, forward and backward, 4 microbatches
    assert numbers["peak_inflight"] == [3, 3]
    assert numbers["mfu"] > 0


def test_a_design_is_written_and_read_in_the_new_formats(tree: Path) -> None:
    table = meshwave(tree, "export", write(tree, "design.json"), "--to", "markdown")
    (tree / "mine.orders").write_text("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n")
    read = json.loads(meshwave(tree, "import", tree / "mine.orders"))

    assert "| name | extended |" in table
    assert read["pipeline"]["actions"] == [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]


PAGE = """
import json
from meshwave.designer.forms.fields import form_sections
from meshwave.designer.pages.design_widgets import Widgets
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.studio import Studio
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.runs.launchers import launchers

launchers["local"].warm = lambda launcher: None
design = load_design(example("17-experts-on-two-cores"))
widgets = Widgets(Session(design), Studio(design))
choices = {
    field["path"]: [option["value"] for option in field.get("options", ())]
    for section in form_sections(design) for field in section["fields"]
}
bar = widgets.topbar
print(json.dumps({
    "choices": choices,
    "exports": [each["name"] for each in bar.exports],
    "suffixes": bar.suffixes,
    "keys": [each["key"] for each in bar.views if each["key"]],
    "places": [each["name"] for each in widgets.runs.bar.places],
    "tabs": widgets.side.tabs.titles,
    "stages": widgets.view("stages").pane.object,
}))
"""


def test_the_page_offers_the_new_members(tree: Path) -> None:
    done = python(tree, "-c", PAGE)
    assert done.returncode == 0, done.stderr
    page = json.loads(done.stdout.splitlines()[-1])

    for path, name in NEW.items():
        tag = {"cost": "cost.kind", "model": "model.kind", "pipeline": "pipeline.schedule"}.get(path, path)
        assert name in page["choices"][tag]
    assert "markdown" in page["exports"]
    assert ".orders" in page["suffixes"]
    assert page["places"] == ["local", "standalone", "torchrun"]
    assert page["tabs"] == ["Design", "Run", "Problems", "Comments", "Stages"]
    assert page["keys"] == ["n"]
    assert page["stages"].startswith("| stage | mesh | layers |")


REFERENCE = """
import sys
sys.path.insert(0, "docs/_ext")
import generated

print(*generated.document("meshwave.engine.document:Design"))
print(*generated.commands())
for name in ("schedules:schedules", "experts:expert_schedules", "resharding:strategies", "resharding:orderings"):
    print(*generated.members(f"meshwave.engine.{name}"))
"""


def test_the_reference_describes_the_new_members(tree: Path) -> None:
    done = python(tree, "-c", REFERENCE)

    assert done.returncode == 0, done.stderr
    assert all(f"`{name}`" in done.stdout for name in NEW.values())
    assert "Forward of one microbatch through one layer." in done.stdout
    assert all(name in done.stdout for name in ("standalone", "markdown", "orders"))


@pytest.mark.torch
def test_the_new_members_pass_the_contract_tests_of_their_seams(tree: Path) -> None:
    tests = ["architecture/test_seams.py", "designer/test_views.py", "engine/imports/test_imports.py"]

    done = python(tree, "-m", "pytest", "-q", "-n", "0", *(f"tests/{name}" for name in tests))

    assert done.returncode == 0, done.stdout


@pytest.mark.nightly
@pytest.mark.torch
def test_a_new_family_trains_by_a_new_launcher_as_in_one_process(tree: Path) -> None:
    alone = write(
        tree, "alone.json", meshes=[{"name": "A", "devices": [0]}], pipeline={"schedule": "gpipe", "microbatches": 4}
    )
    found = [
        json.loads(meshwave(tree, "run", design, "--on", target, "--json"))
        for design, target in ((write(tree, "design.json"), "standalone"), (alone, "local"))
    ]

    losses = [[step["loss"] for step in each["metrics"]] for each in found]
    assert [each["state"] for each in found] == ["SUCCEEDED"] * 2
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_family_of_an_installed_package_is_known_without_a_file_in_the_tree(plain_tree: Path, tmp_path: Path) -> None:
    """The package contains its own modules for torch, which no document can name."""
    design = write(
        tmp_path, "design.json", pipeline={"schedule": "gpipe", "microbatches": 4}, transfer={}, cost={"kind": "unit"}
    )
    refused = python(plain_tree, "-m", "meshwave.designer.main", "check", design)
    assert "unknown model 'mlp'" in refused.stdout

    shutil.copy(EXTENSIONS / "engine/families/mlp.py", tmp_path / "my_models.py")
    info = tmp_path / "my_models-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-models\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[meshwave.engine.families]\nmlp = my_models\n")

    assert "no problems" in meshwave(plain_tree, "check", design, more=(tmp_path,))
