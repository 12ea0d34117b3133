"""Benchmark of many open pages on one server (``meshwave bench sessions``).

The server is a process of its own, and the pages are websocket clients in this process. Memory and processor time are
read from ``/metrics``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import numpy as np
from tornado.httpclient import AsyncHTTPClient

from meshwave.designer.bench.page import temporary_home
from meshwave.designer.bench.page_client import PATIENCE_S, PageClient
from meshwave.designer.server.serve import read_design, serve_in_thread
from meshwave.engine.bench.speed import Figures
from meshwave.engine.findings import RunRefusal

T = TypeVar("T")
TOKEN = "bench"
SESSIONS = (1, 50, 100)
EXAMPLE = "11-eight-by-32"
LIFETIME_S = 3.0
"""Time after which the session of a closed page ends in the benchmark; the designer itself waits for minutes."""
EDIT_INTERVAL_S, ROUNDS, LEAST_EDITS = 10.0, 3, 20
"""Interval between edits of each page, number of rounds, and minimum number of edits; a single page edits every second.
"""
IDLE_S = 5.0
MICROBATCHES = range(24, 32)
"""Values that edits set in turn; the opened design has another one, so that each edit changes it."""
EDITS_PER_VISIT = 2


def bench_sessions() -> Figures:
    """Measure opening, editing, memory and idle load with 1, 50 and 100 open pages, and after they close (three minutes)."""
    figures: Figures = {}
    for count in SESSIONS:
        with serving_process(serve_pages) as link:
            measured = asyncio.run(_measure(link, count))
        title = f"{count} session{'s' * (count > 1)}"
        figures |= {f"{title}: {name}": value for name, value in measured.items()}
    return figures


async def _measure(link: str, count: int) -> Figures:
    await _visit(link)  # loads modules and caches that stay in memory
    before = await server_load(link)
    opened = [await await_timed(PageClient.open(link)) for _ in range(count)]
    pages = [page for page, _ in opened]
    there = await server_load(link)
    rounds = max(ROUNDS, LEAST_EDITS // count)
    period_s = min(EDIT_INTERVAL_S, count)
    edits = await asyncio.gather(
        *(_edit(page, rounds, period_s, period_s * place / count) for place, page in enumerate(pages))
    )
    for page in pages:
        await page.leave()
    after = await server_load(link)
    return {
        **quantiles("open", [seconds for _, seconds in opened]),
        **quantiles("edit", [seconds for each in edits for seconds in each]),
        "memory of a session_bytes": (there["memory_bytes"] - before["memory_bytes"]) / count,
        **there,
        **{f"after the pages closed: {name}": value for name, value in after.items()},
    }


async def _visit(link: str) -> None:
    page = await PageClient.open(link)
    for microbatches in MICROBATCHES[:EDITS_PER_VISIT]:
        await page.edit(microbatches)
    await page.leave()


async def _edit(page: PageClient, rounds: int, period_s: float, delay_s: float) -> list[float]:
    """Edit once per period with a delay; return the duration of each edit."""
    began, taken = time.monotonic(), []
    for turn in range(rounds):
        await asyncio.sleep(began + turn * period_s + delay_s - time.monotonic())
        taken.append((await await_timed(page.edit(MICROBATCHES[turn % len(MICROBATCHES)])))[1])
    return taken


async def server_load(link: str) -> Figures:
    """Return sessions, memory, open files and idle load of the server, once it has discarded the sessions of closed pages."""
    async with asyncio.timeout(PATIENCE_S):
        while (before := await scrape(link))["meshwave_sessions"] != before["meshwave_connections"]:
            await asyncio.sleep(LIFETIME_S / 10)
    began = time.monotonic()
    await asyncio.sleep(IDLE_S)
    after = await scrape(link)
    busy_s = after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]
    if "process_resident_memory_bytes" not in after:
        raise RunRefusal("no_process_memory")
    return {
        "sessions": after["meshwave_sessions"],
        "memory_bytes": after["process_resident_memory_bytes"],
        "open files": after["process_open_fds"],
        "idle processor_share": busy_s / (time.monotonic() - began),
    }


async def scrape(link: str) -> Figures:
    """Return the metrics of the server."""
    answer = await AsyncHTTPClient().fetch(
        link.partition("?")[0] + "metrics", headers={"Authorization": f"Bearer {TOKEN}"}, request_timeout=PATIENCE_S
    )
    words = [line.split(" ") for line in answer.body.decode().splitlines()]
    return {name: float(value) for name, value in (line for line in words if len(line) == 2)}


async def await_timed(work: Awaitable[T]) -> tuple[T, float]:
    """Return the result of a coroutine, and the seconds that it took."""
    began = time.perf_counter()
    return await work, time.perf_counter() - began


def quantiles(name: str, seconds: Sequence[float]) -> Figures:
    """Return the median and the 95th percentile of durations."""
    return {
        f"{name}, median_s": float(np.median(seconds)),
        f"{name}, 95th percentile_s": float(np.quantile(seconds, 0.95)),
    }


@contextmanager
def serving_process(serve: Callable[..., None], *arguments: object) -> Iterator[Any]:
    """Run ``serve(pipe, *arguments)`` in another process, and yield its messages; it ends when the pipe is closed."""
    context = get_context("spawn")
    here, there = context.Pipe()
    with temporary_home():
        process = context.Process(target=serve, args=(there, *arguments))
        process.start()
        there.close()
        try:
            yield here.recv()
        finally:
            here.close()  # which stops the process
            process.join()


def serve_pages(pipe: Connection) -> None:
    """Serve pages of the example, and send their link, until the pipe is closed."""
    with serve_in_thread(read_design(EXAMPLE), TOKEN, LIFETIME_S) as link:
        pipe.send(link)
        pipe.poll(None)
