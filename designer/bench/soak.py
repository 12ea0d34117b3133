"""Benchmark of a server that runs for a long time (``meshwave bench soak``): the resources that it keeps.

Pages are opened, edited and closed meanwhile; runs are launched, and ended at random moments by a person, or by a signal
that kills one of the processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from meshwave.designer.bench.page_client import PATIENCE_S, PageClient
from meshwave.designer.bench.sessions import LIFETIME_S, scrape, serve_pages, server_load, serving_process
from meshwave.engine.bench.speed import Figures, Say
from meshwave.engine.findings import RunRefusal
from meshwave.engine.runs.process_identity import handle

MOST_SAMPLES, SAMPLE_S, TOGETHER = 10, 20.0, 5
EDITS_PER_VISIT = 4
RUN_EXAMPLE = "03-gpt-on-two-cores"
EDITS: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("WaveCanvas", {"type": "microbatches", "value": count}) for count in range(16, 48, 4)),
    *(("WaveCanvas", {"type": "schedule", "name": name}) for name in ("gpipe", "1f1b", "hanayo", "zb-h1", "chimera")),
    *(("TopBar", {"type": kind}) for kind in ("undo", "undo", "redo")),
    ("ClusterCanvas", {"type": "delete", "mesh": 7}),
)
LAUNCHES = (
    ("threads", "rehearse", False),
    ("local", "launch", True),
    ("local", "rehearse", True),
    ("local", "launch", False),
)
"""Launch target and gesture of the launches in turn, and True if a process is killed before the run is cancelled."""
ENDED_AFTER_S = (0.0, 4.0)
"""Interval of the time after which a run is ended, unless it is over."""
RUN_MODULE = b"meshwave.engine.runtime.processes.warm_process"
"""Module on the command lines of the processes of runs."""
LISTENING = "0A"
"""State of listening sockets in ``/proc/net/tcp``."""


def bench_soak(minutes: float, say: Say) -> Figures:
    """Open, edit and close pages, launch, cancel and kill runs for --minutes; measure resources that the server keeps."""
    with TemporaryDirectory() as temporary, serving_process(_serve, temporary) as link:
        return asyncio.run(_soak(link, Server(Path(os.environ["MESHWAVE_HOME"]), Path(temporary)), minutes, say))


def _serve(pipe: Connection, temporary: str) -> None:
    os.environ["TMPDIR"] = temporary
    serve_pages(pipe)


async def _soak(link: str, server: Server, minutes: float, say: Say) -> Figures:
    began, rounds, killed = time.monotonic(), 0, 0
    figures: Figures = {}
    samples = max(1, min(MOST_SAMPLES, int(minutes * 60 / SAMPLE_S)))
    for sample in range(samples + 1):
        end = began + sample * minutes * 60 / samples
        while sample and (rounds < len(LAUNCHES) or time.monotonic() < end):
            visits = (_edit_at_random(link, Random(f"{rounds} {place}")) for place in range(TOGETHER - 1))
            killed += bool((await asyncio.gather(_launch_and_end(link, server, rounds), *visits))[0])
            rounds += 1
        minutes_passed = (time.monotonic() - began) / 60
        title = f"after {minutes_passed:.1f} min, {rounds * TOGETHER} sessions and {killed} killed processes"
        measured = {**await _ended_runs(link), **await server_load(link), **server.holdings()}
        say(f"{title}: {', '.join(f'{name} {value:.4g}' for name, value in measured.items())}")
        figures |= {f"{title}: {name}": value for name, value in measured.items()}
    return figures


async def _edit_at_random(link: str, chance: Random) -> None:
    """Open a page, edit its design, and leave while the last edit is still being computed."""
    page = await PageClient.open(link)
    *edits, last = chance.choices(EDITS, k=EDITS_PER_VISIT)
    for edit in edits:
        try:
            await page.ask(*edit)
        except RunRefusal as refusal:  # a mesh that is gone, or a schedule for an even number of meshes
            if refusal.problem.code != "refused_gesture":
                raise
    await page.gesture(*last)
    await page.leave()


async def _launch_and_end(link: str, server: Server, number: int) -> bool:
    """Launch a run from a page, and end it at a random moment: while it is queued, starts, runs, or is over.

    Return True if one of its processes, or the warm process that starts them, was killed.
    """
    target, gesture, is_killed = LAUNCHES[number % len(LAUNCHES)]
    chance = Random(number)
    page = await PageClient.open(link)
    await page.ask("TopBar", {"type": "example", "name": RUN_EXAMPLE})
    await page.ask("LaunchBar", {"type": "choose", "place": target})
    await page.ask("LaunchBar", {"type": gesture, "key": str(number)})
    await asyncio.sleep(chance.uniform(*ENDED_AFTER_S))
    if is_killed:
        is_killed = await _kill_one(server, chance)
        await asyncio.sleep(chance.uniform(*ENDED_AFTER_S))
    await page.ask("LaunchBar", {"type": "cancel"})
    await page.leave()
    return is_killed


async def _kill_one(server: Server, chance: Random) -> bool:
    """Wait for a process that executes or starts runs, and kill it."""
    async with asyncio.timeout(PATIENCE_S):
        while not (started := server.run_processes()):
            await asyncio.sleep(LIFETIME_S / 10)
    found = handle(chance.choice(started))
    return found is not None and found.send(signal.SIGKILL)


async def _ended_runs(link: str) -> Figures:
    """Wait until no run is active, and return the number of runs in each state from the server's metrics."""
    async with asyncio.timeout(PATIENCE_S):
        while (load := await scrape(link))["meshwave_processes"]:
            await asyncio.sleep(LIFETIME_S / 10)
    return {name: count for name, count in load.items() if name.startswith("meshwave_runs") and count}


# ---- what the processes of a server hold, on Linux ----


class Server(NamedTuple):
    """The folders of a server, and the resources that its processes hold.

    Its processes are found by their environment, which also finds those whose parent process has ended.
    """

    home: Path
    temporary: Path

    def holdings(self) -> Figures:
        """Count processes, threads, listening ports, open files, file locks and temporary files."""
        found = self.processes()
        descriptors = [link for pid in found for link in _descriptors(pid)]
        sockets = {link for link in descriptors if link.startswith("socket:")}
        locks = [line.replace("->", "").split() for line in _lines("/proc/locks")]
        return {
            "processes": len(found),
            "threads": sum(len(_names(f"/proc/{pid}/task")) for pid in found),
            "listening ports": sum(f"socket:[{inode}]" in sockets for inode in _listening()),
            "open files of all processes": len(descriptors),
            "file locks": sum(int(lock[4]) in found for lock in locks),
            "temporary files": len(_names(self.temporary)),
        }

    def processes(self) -> list[int]:
        """Return the processes that have the home folder in their environment, except this one."""
        variable = f"MESHWAVE_HOME={self.home}".encode()
        pids = [int(name) for name in _names("/proc") if name.isdigit() and int(name) != os.getpid()]
        return [pid for pid in pids if variable in _content(f"/proc/{pid}/environ").split(b"\0")]

    def run_processes(self) -> list[int]:
        """Return the warm process, and the processes of runs that it started."""
        return [pid for pid in self.processes() if RUN_MODULE in _content(f"/proc/{pid}/cmdline")]


def _descriptors(pid: int) -> Iterator[str]:
    for name in _names(f"/proc/{pid}/fd"):
        with suppress(OSError):
            yield os.readlink(f"/proc/{pid}/fd/{name}")


def _listening() -> Iterator[str]:
    """Yield the inode of each listening TCP socket."""
    for line in (*_lines("/proc/net/tcp"), *_lines("/proc/net/tcp6")):
        words = line.split()
        if words[3] == LISTENING:
            yield words[9]


def _lines(file: str) -> list[str]:
    return _content(file).decode().splitlines()


def _content(file: str) -> bytes:
    """Return the content of a file of a process; it is empty if the process has ended or belongs to another user."""
    with suppress(OSError):
        return Path(file).read_bytes()
    return b""


def _names(folder: str | Path) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []
