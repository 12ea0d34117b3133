"""Fixtures for tests of the runtime: tiny designs, and processes that run them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.runtime.crew_client import Crew, Document


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("torch")


@pytest.fixture(scope="session")
def draw() -> Callable[..., Document]:
    """Return a function that makes the document of a tiny design: ``draw({"schedule": "1f1b", "microbatches": 4}, pp=2, dp=1, lr=0.1)``."""

    def draw(
        pipeline: Document,
        *,
        pp: int = 2,
        dp: int = 1,
        cp: int = 1,
        tp: int = 1,
        kind: str = "gpt",
        layers: int = 4,
        **training: Any,
    ) -> Document:
        lanes = dp * cp * tp
        link = {"latency_s": 1e-5, "bandwidth": 1e9}
        device = {"name": "core", "peak_flops": 5e10, "memory_bytes": 4e9, "memory_bandwidth": 1e10, "efficiency": 0.5}
        model = {"kind": kind, "layers": layers, "hidden": 16, "heads": 2, "sequence": 12, "vocab": 257, "ffn": 32}
        meshes = [
            {
                "name": "ABCDEFGH"[r],
                "devices": list(range(r * lanes, (r + 1) * lanes)),
                "axes": {"dp": dp, **({"cp": cp} if cp > 1 else {}), "tp": tp},
            }
            for r in range(pp)
        ]
        return {
            "format": "meshwave/1",
            "cluster": {
                "nodes": 1,
                "devices_per_node": pp * lanes,
                "device": device,
                "intra_node": link,
                "inter_node": link,
            },
            "model": model,
            "meshes": meshes,
            "pipeline": pipeline,
            "cost": {"kind": "unit", "forward": 1, "backward": 2},
            "training": {"steps": 2, "micro_batch_size": 2, "lr": 0.01, "precision": "fp64", **training},
        }

    return draw


@pytest.fixture
def disposable_crew() -> Iterator[Crew]:
    """Crew that a test may kill."""
    crew = Crew()
    yield crew
    crew.kill()


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a run folder for a design, with its own program or a given one."""

    def write_run(document: Document, orders: str | None = None) -> Path:
        from meshwave.engine.costs import layers_per_stage
        from meshwave.engine.document import parse_design
        from meshwave.engine.lowering.lower import lower
        from meshwave.engine.program.program import parse_program
        from meshwave.engine.program.program_file import to_json

        design = parse_design(document)
        program = parse_program(orders) if orders else lower(design)
        (tmp_path / "design.json").write_text(design.to_json())
        layers = {"layers": list(layers_per_stage(design))}
        (tmp_path / "program.json").write_text(json.dumps({**to_json(program), **layers}))
        return tmp_path

    return write_run
