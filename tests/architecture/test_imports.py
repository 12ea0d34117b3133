"""Imports point down, torch stays in the runtime and Panel in the designer."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]

LAYERS = (
    "errors",
    "units machine compiled _shared_links progress",
    "registry part resources",
    "program",
    "timeline shared_links link_shares",
    "shared_play",
    "simulate recording palette repair network",
    "schedules moe transfer flow_table",
    "live_links",
    "design",
    "cost",
    "lowering",
    "link_load",
    "link_flows",
    "link_lanes",
    "predict search schedule_csv inspect rearrange rehearse moe_comparison expert_grid reshard transfer_drawing",
    "export gallery papers comparison accuracy planner_bench simulation_bench links_bench thread_play",
    "launch runtime",
    "accuracy_bench convergence_bench",
    "bench doctor",
    "cli",
    "designer",
)
"""From the ground up. A part imports parts that stand lower; parts of one layer do not know each other."""

LEVEL = {part: level for level, layer in enumerate(LAYERS) for part in layer.split()}

PLANNING_NEEDS = {"numpy", "pydantic", "pydantic_core"}
"""All that planning and predicting may import beyond the standard library."""

DRAWING = {"panel", "bokeh", "param", "tornado"}


class Import(NamedTuple):
    """``module`` imports ``name``, at ``line`` of its file."""

    module: str
    name: str
    line: int

    def __str__(self) -> str:
        return f"{self.module}, line {self.line}, imports {self.name}"

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]


@cache
def imports() -> tuple[Import, ...]:
    """Every import of the two packages, those inside functions included."""
    files = [*ROOT.glob("engine/**/*.py"), *ROOT.glob("designer/**/*.py")]
    return tuple(found for file in files for found in _imports(file))


def _imports(file: Path) -> Iterator[Import]:
    path = file.relative_to(ROOT).with_suffix("").parts
    module = ".".join(path[:-1] if path[-1] == "__init__" else path)
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (Import(module, alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}, line {node.lineno}: imports are written in full here"
            yield from (Import(module, f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def part(name: str) -> str:
    """The part of the house that a dotted name lies in; ``engine`` itself, with its version, is in none."""
    first, _, rest = name.partition(".")
    return first if first == "designer" else rest.partition(".")[0]


def is_ours(name: str) -> bool:
    return name.partition(".")[0] in ("engine", "designer")


def test_every_part_of_the_house_has_its_place() -> None:
    parts = {
        path.stem for path in (ROOT / "engine").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }

    assert parts - {"__init__"} <= LEVEL.keys(), "give the new part its layer"


def test_imports_point_down() -> None:
    up = [
        str(found)
        for found in imports()
        if is_ours(found.name)
        and part(found.name) in LEVEL  # not meshwave.engine.__version__
        and part(found.module) != part(found.name)
        and LEVEL[part(found.module)] <= LEVEL[part(found.name)]
    ]

    assert up == []


def test_only_the_runtime_imports_torch() -> None:
    elsewhere = [
        str(found)
        for found in imports()
        if found.package == "torch" and not found.module.startswith("meshwave.engine.runtime")
    ]

    assert elsewhere == []


def test_only_the_designer_draws() -> None:
    elsewhere = [str(found) for found in imports() if found.package in DRAWING and part(found.module) != "designer"]

    assert elsewhere == []


@pytest.mark.parametrize("alone", ["export"])
def test_planning_needs_numpy_and_pydantic_alone(alone: str) -> None:
    """Two exceptions, inside functions: a picture in PNG is written by Pillow, and numba compiles where it is there."""
    allowed = PLANNING_NEEDS | set(sys.stdlib_module_names) | {"engine"}
    more = [
        str(found)
        for found in imports()
        if part(found.module) not in ("runtime", "designer")
        and found.package not in allowed
        and not (part(found.module) == alone and found.package == "PIL")
        and not (part(found.module) == "compiled" and found.package == "numba")
    ]

    assert more == []
