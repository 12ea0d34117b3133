"""Two servers on one folder: both show its runs, either cancels them, and one goes on if the other is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import pytest

from meshwave.designer.bench.page_client import PageClient
from meshwave.designer.bench.sessions import serve_pages
from meshwave.engine.runs import Record, State
from tests.conftest import PATIENCE_S


class Server(NamedTuple):
    """A server of its own process."""

    process: BaseProcess
    link: str


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Server]]:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    context = get_context("spawn")
    pipes = [context.Pipe() for _ in range(2)]
    processes = [context.Process(target=serve_pages, args=(there,)) for _, there in pipes]
    for process, (_, there) in zip(processes, pipes, strict=True):
        process.start()
        there.close()
    yield [Server(process, here.recv()) for process, (here, _) in zip(processes, pipes, strict=True)]
    for here, _ in pipes:
        here.close()  # which ends the process
    for process in processes:
        process.join()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.torch
def test_a_run_of_one_server_is_cancelled_by_the_other_which_survives_it(servers: list[Server], tmp_path: Path) -> None:
    record = Record(tmp_path)

    async def reach(state: State) -> None:
        """Wait until the latest run has a state."""
        async with asyncio.timeout(PATIENCE_S):
            while [entry.state for entry in record.entries(1)] != [state]:
                await asyncio.sleep(0.05)

    async def launch(page: PageClient) -> None:
        count = len(record.entries())
        await page.ask("LaunchBar", {"type": "launch"})
        async with asyncio.timeout(PATIENCE_S):
            while len(record.entries()) == count:
                await asyncio.sleep(0.05)
        await reach(State.RUNNING)

    async def visit() -> None:
        first, second = [await PageClient.open(server.link) for server in servers]
        for page in (first, second):
            await page.ask("TopBar", {"type": "example", "name": "03-gpt-on-two-cores"})
            await page.ask("Form", {"type": "change", "path": "training.steps", "value": 100_000})
        await launch(first)
        await second.ask("LaunchBar", {"type": "cancel"})
        await reach(State.CANCELLED)
        await launch(first)
        servers[0].process.kill()
        await reach(State.LOST)
        await launch(second)
        await second.ask("LaunchBar", {"type": "cancel"})
        await reach(State.CANCELLED)
        await second.leave()

    run_apart(visit)
    assert [entry.state for entry in record.entries()] == [State.CANCELLED, State.LOST, State.CANCELLED]


def run_apart(work: Callable[[], object]) -> None:
    """Run a coroutine in a thread of its own, because the thread of the tests may have the event loop of a browser."""
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(asyncio.run, work()).result()  # type: ignore[arg-type]
