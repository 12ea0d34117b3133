"""Fixtures that limit tests to one thread and to short searches, except tests of threads and of the search."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshwave.engine.schedules import auto
from tests.engine.runtime.crew_client import Crew


@pytest.fixture(autouse=True, scope="module")
def short_search() -> Iterator[None]:
    """Let schedule ``auto`` search with fewer tries: its orders are valid, but not as good."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto, "GREEDY_TASKS", 1)
        patch.setattr(auto, "MAX_MOVES", 20)
        yield
    auto._results.clear()  # results of a short search do not apply to the full one


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    """Use one thread of torch per test, since tests run in parallel and threads would only compete for cores."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="module")
def forked_clusters(crew: Crew) -> Iterator[None]:
    """Fork the processes of clusters from the crew, which has imported torch; their output arrives at the end."""
    from meshwave.engine.runtime.calibration import emulated_cluster

    @contextmanager
    def run(folder: Path, uses_gpus: bool) -> Iterator[SimpleNamespace]:
        status, output = crew.run_cluster(folder)
        yield SimpleNamespace(stdout=io.StringIO(output), returncode=status, wait=lambda: status)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulated_cluster, "_parent_process", run)
        yield
