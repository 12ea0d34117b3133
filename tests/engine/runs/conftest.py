"""A separate run database for each test, and launchers whose workers do not need torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from meshwave.engine.runs import Record
from meshwave.engine.runs.launchers import local
from meshwave.engine.runs.launchers.local import LocalLauncher
from tests.engine.runs.play import HERE
from tests.warm_processes import WarmProcesses


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
def own_launcher(record: Record) -> Iterator[LocalLauncher]:
    """A launcher that forks workers that do not need torch, from a warm process of its own."""
    with closing(LocalLauncher(record, start="fork", worker="stand_in", path=HERE)) as launcher:
        yield launcher


@pytest.fixture(scope="session")
def stand_ins() -> Iterator[WarmProcesses]:
    """Warm processes that fork workers that do not need torch."""
    with closing(WarmProcesses("stand_in")) as processes:
        yield processes


@pytest.fixture
def launcher(own_launcher: LocalLauncher, stand_ins: WarmProcesses, monkeypatch: pytest.MonkeyPatch) -> LocalLauncher:
    """A launcher that forks workers that do not need torch, from a warm process that it shares with other tests."""
    monkeypatch.setattr(local, "WarmProcess", stand_ins.open)
    return own_launcher


@pytest.fixture(scope="session")
def trainer(tmp_path_factory: pytest.TempPathFactory, warm_processes: None) -> Iterator[LocalLauncher]:
    """A launcher whose workers train."""
    with closing(Record(tmp_path_factory.mktemp("trainer"))) as record, closing(LocalLauncher(record)) as launcher:
        yield launcher
