"""A separate run database for each test, and launchers whose workers do not need torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from meshwave.engine.runs import Record
from meshwave.engine.runs.launchers.local import LocalLauncher
from tests.engine.runs.play import HERE


@pytest.fixture(autouse=True, scope="session")
def shares_warm_processes(warm_processes: None) -> None:
    """Let the launchers of all tests share warm processes."""


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    record = Record(tmp_path / "home")
    yield record
    record.close()


@pytest.fixture(params=["fork", "spawn"])
def either_launcher(request: pytest.FixtureRequest, record: Record) -> Iterator[LocalLauncher]:
    """A launcher of each kind, with workers that do not need torch."""
    launcher = LocalLauncher(record, start=request.param, worker="stand_in", path=HERE)
    yield launcher
    launcher.close()


@pytest.fixture
def launcher(record: Record) -> Iterator[LocalLauncher]:
    """A launcher that forks workers that do not need torch."""
    launcher = LocalLauncher(record, start="fork", worker="stand_in", path=HERE)
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def trainer(tmp_path_factory: pytest.TempPathFactory, warm_processes: None) -> Iterator[LocalLauncher]:
    """A launcher whose workers train."""
    with closing(Record(tmp_path_factory.mktemp("trainer"))) as record, closing(LocalLauncher(record)) as launcher:
        yield launcher
