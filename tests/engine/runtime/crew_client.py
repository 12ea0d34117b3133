"""Client of the crew, the warm process that ``crew.py`` runs."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
Document = dict[str, Any]


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

    def run_cluster(self, folder: Path) -> tuple[int, str]:
        """Run the cluster whose job is in a folder, and return its exit status and output."""
        return self._ask("run_cluster", str(folder))

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
        """Close the input of the process, and wait until it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
