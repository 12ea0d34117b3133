"""Fixtures for tests of the runtime: tiny designs, and a crew of processes that runs them."""

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


class Crew:
    """A process that runs ``crew.py``, which forks the processes of runs and tasks."""

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

    def train(self, document: Document, orders: str | None = None) -> list[Any]:
        """Train a design, and return the outcome of each process."""
        return self._outcomes("train", document, orders)

    def run_workers(self, folder: Path, size: int) -> list[int]:
        """Run the workers of a run folder, and return their exit statuses."""
        return self._ask("run_workers", str(folder), size)

    def call(self, name: str, size: int, argument: Any) -> list[Any]:
        """Call ``module:function`` in so many processes, and return what each returns."""
        return self._outcomes("call", name, size, argument)

    def run_script(self, path: Path, size: int) -> list[Any]:
        """Run a script in the processes that torchrun would start, and return what each prints."""
        return self._outcomes("run_script", str(path), size)

    def _outcomes(self, *task: Any) -> list[Any]:
        return [pickle.loads(outcome) for outcome in self._ask(*task)]

    def _ask(self, *task: Any) -> Any:
        self.start(*task)
        assert self._process.stdout is not None
        return pickle.load(self._process.stdout)

    def start(self, name: str, *arguments: Any) -> None:
        """Start a task without waiting for its answer."""
        assert self._process.stdin is not None
        pickle.dump((name, arguments), self._process.stdin)
        self._process.stdin.flush()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self.end()

    def end(self) -> None:
        """Let the process end, and wait for that."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Crew that all tests share."""
    crew = Crew()
    yield crew
    crew.end()


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
        from meshwave.engine.program.program import parse_program, to_json

        design = parse_design(document)
        program = parse_program(orders) if orders else lower(design)
        (tmp_path / "design.json").write_text(design.to_json())
        layers = {"layers": list(layers_per_stage(design))}
        (tmp_path / "program.json").write_text(json.dumps({**to_json(program), **layers}))
        return tmp_path

    return write_run
