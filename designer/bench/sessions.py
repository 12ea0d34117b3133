"""How many open pages one server carries: what ``meshwave bench sessions`` and ``meshwave bench soak`` measure.

The server is a process of its own, the pages are websocket clients here; memory and processor time are those that
the server tells in ``/metrics``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TypeVar

import numpy as np
from tornado.httpclient import AsyncHTTPClient

from meshwave.designer.bench.page import own_home
from meshwave.designer.bench.page_client import PATIENCE_S, PageClient
from meshwave.designer.server.serve import read_design, served
from meshwave.engine.bench.speed import Figures, Say
from meshwave.engine.errors import RunError

T = TypeVar("T")
TOKEN = "bench"
SESSIONS = (1, 40, 100)
LIFETIME_S = 3.0
"""A session is discarded so long after its page was left; the designer itself waits for minutes."""
EDIT_EVERY_S, ROUNDS, LEAST_EDITS = 10.0, 3, 20
"""Each page edits so often, one alone every second."""
IDLE_S = 5.0
MOST_SAMPLES, SAMPLE_S, TOGETHER = 10, 20.0, 5
MICROBATCHES = range(8, 24)
"""Those of the edits, in turn: never those of the design that is opened, so that each changes something."""
EDITS_OF_A_VISIT = 2


def sessions() -> Figures:
    """open pages: opening, editing, memory and idle load of 1, 40 and 100, and after they left; some three minutes"""
    figures: Figures = {}
    for count in SESSIONS:
        with _server() as link:
            measured = asyncio.run(_measure(link, count))
        title = f"{count} session{'s' * (count > 1)}"
        figures |= {f"{title}: {name}": value for name, value in measured.items()}
    return figures


def soak(minutes: float, say: Say) -> Figures:
    """pages that are opened, edited and left for --minutes: memory and idle load of the server over time"""
    with _server() as link:
        return asyncio.run(_soak(link, minutes, say))


async def _measure(link: str, count: int) -> Figures:
    await _visit(link)  # loads what the process keeps
    before = await _standing(link)
    opened = [await _timed(PageClient.open(link)) for _ in range(count)]
    pages = [page for page, _ in opened]
    there = await _standing(link)
    rounds = max(ROUNDS, LEAST_EDITS // count)
    period_s = min(EDIT_EVERY_S, count)
    edits = await asyncio.gather(
        *(_edit(page, rounds, period_s, period_s * place / count) for place, page in enumerate(pages))
    )
    for page in pages:
        await page.leave()
    after = await _standing(link)
    return {
        **_quantiles("open", [seconds for _, seconds in opened]),
        **_quantiles("edit", [seconds for each in edits for seconds in each]),
        "memory of a session_bytes": (there["memory_bytes"] - before["memory_bytes"]) / count,
        **there,
        **{f"after they left: {name}": value for name, value in after.items()},
    }


async def _soak(link: str, minutes: float, say: Say) -> Figures:
    began, opened = time.monotonic(), 0
    figures: Figures = {}
    samples = max(1, min(MOST_SAMPLES, int(minutes * 60 / SAMPLE_S)))
    for sample in range(samples + 1):
        end = began + sample * minutes * 60 / samples
        while not opened or time.monotonic() < end:
            await asyncio.gather(*(_visit(link) for _ in range(TOGETHER)))
            opened += TOGETHER
        title = f"after {(time.monotonic() - began) / 60:.1f} min and {opened} sessions"
        say(title)
        figures |= {f"{title}: {name}": value for name, value in (await _standing(link)).items()}
    return figures


async def _visit(link: str) -> None:
    page = await PageClient.open(link)
    for microbatches in MICROBATCHES[:EDITS_OF_A_VISIT]:
        await page.edit(microbatches)
    await page.leave()


async def _edit(page: PageClient, rounds: int, period_s: float, delay_s: float) -> list[float]:
    """Edit once in each period, some time after its start; return what each edit took."""
    began, taken = time.monotonic(), []
    for turn in range(rounds):
        await asyncio.sleep(began + turn * period_s + delay_s - time.monotonic())
        taken.append((await _timed(page.edit(MICROBATCHES[turn % len(MICROBATCHES)])))[1])
    return taken


async def _standing(link: str) -> Figures:
    """Memory and idle load of the server, once it has discarded the sessions that nobody looks at."""
    async with asyncio.timeout(PATIENCE_S):
        while (before := await _scrape(link))["meshwave_sessions"] != before["meshwave_connections"]:
            await asyncio.sleep(LIFETIME_S / 10)
    began = time.monotonic()
    await asyncio.sleep(IDLE_S)
    after = await _scrape(link)
    busy_s = after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]
    if "process_resident_memory_bytes" not in after:
        raise RunError("the server does not tell its memory: it is read from /proc, which only Linux has")
    return {
        "memory_bytes": after["process_resident_memory_bytes"],
        "idle processor_share": busy_s / (time.monotonic() - began),
    }


async def _scrape(link: str) -> Figures:
    """The samples of the server that have no labels."""
    answer = await AsyncHTTPClient().fetch(
        link.partition("?")[0] + "metrics", headers={"Authorization": f"Bearer {TOKEN}"}, request_timeout=PATIENCE_S
    )
    words = [line.split(" ") for line in answer.body.decode().splitlines()]
    return {name: float(value) for name, value in (line for line in words if len(line) == 2 and "{" not in line[0])}


async def _timed(work: Awaitable[T]) -> tuple[T, float]:
    began = time.perf_counter()
    return await work, time.perf_counter() - began


def _quantiles(name: str, seconds: Sequence[float]) -> Figures:
    return {
        f"{name}, median_s": float(np.median(seconds)),
        f"{name}, 95th percentile_s": float(np.quantile(seconds, 0.95)),
    }


@contextmanager
def _server() -> Iterator[str]:
    """Serve the designer from another process while the context lasts; gives the link."""
    context = get_context("spawn")
    here, there = context.Pipe()
    with own_home():
        process = context.Process(target=_serve, args=(there,))
        process.start()
        there.close()
        try:
            yield here.recv()
        finally:
            here.close()  # which ends it
            process.join()


def _serve(pipe: Connection) -> None:
    with served(read_design(None), TOKEN, LIFETIME_S) as link:
        pipe.send(link)
        pipe.poll(None)
