"""Tiny designs, and a crew of processes to train them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
Document = dict[str, Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("torch")


@pytest.fixture(scope="session")
def draw() -> Callable[..., Document]:
    """Draws a tiny design: ``draw({"schedule": "1f1b", "microbatches": 4}, pp=2, dp=1, lr=0.1)``."""

    def draw(
        pipeline: Document,
        *,
        pp: int = 2,
        dp: int = 1,
        tp: int = 1,
        kind: str = "gpt",
        layers: int = 4,
        **training: Any,
    ) -> Document:
        lanes = dp * tp
        link = {"latency_s": 1e-5, "bandwidth": 1e9}
        device = {"name": "core", "peak_flops": 5e10, "memory_bytes": 4e9, "memory_bandwidth": 1e10, "efficiency": 0.5}
        model = {"kind": kind, "layers": layers, "hidden": 16, "heads": 2, "sequence": 12, "vocab": 257, "ffn": 32}
        meshes = [
            {
                "name": "ABCDEFGH"[r],
                "devices": list(range(r * lanes, (r + 1) * lanes)),
                "axes": {"dp": dp, "tp": tp},
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


class Crew:
    """Talks to ``crew.py``."""

    def __init__(self) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "MESHWAVE_DIE_WITH_PARENT": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("crew.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def play(self, document: Document, orders: str | None = None) -> list[Any]:
        return self._ask("play", document, orders)

    def work(self, folder: Path, size: int) -> list[int]:
        return self._ask("work", str(folder), size)

    def call(self, name: str, size: int, argument: Any) -> list[Any]:
        return self._ask("call", name, size, argument)

    def _ask(self, *task: Any) -> Any:
        self.start(*task)
        assert self._process.stdout is not None
        return pickle.load(self._process.stdout)

    def start(self, name: str, *arguments: Any) -> None:
        """Give it a task, and do not wait for the answer."""
        assert self._process.stdin is not None
        pickle.dump((name, arguments), self._process.stdin)
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self.end()

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.end()


@pytest.fixture
def another_crew() -> Iterator[Crew]:
    """One that may come to harm."""
    crew = Crew()
    yield crew
    crew.kill()


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Writes a run folder for a design, with its own program or one written out by hand."""

    def write_run(document: Document, orders: str | None = None) -> Path:
        from meshwave.engine.costs import layers_per_stage
        from meshwave.engine.document import parse_design
        from meshwave.engine.lowering.lower import lower
        from meshwave.engine.program.program import parse_program, to_json

        design = parse_design(document)
        program = parse_program(orders) if orders else lower(design)
        (tmp_path / "design.json").write_text(design.to_json())
        layers = {"layers": list(layers_per_stage(design))}
        (tmp_path / "program.json").write_text(json.dumps({**to_json(program), **layers}))
        return tmp_path

    return write_run
