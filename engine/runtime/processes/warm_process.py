"""A warm process that forks those of a run: ``python -m meshwave.engine.runtime.processes.warm_process``.

It has imported torch before anybody asks, so that a run starts in hundredths of a second. It is
told what to do in JSON lines and answers in JSON lines; when what tells it is gone, it ends
everything it started, and where it is killed itself, the kernel does.

In:   {"do": "launch", "run": ID, "folder": PATH, "processes": N}
Out:  {"event": "ready"}
      {"event": "started", "run": ID, "pids": [...]}
      {"event": "finished", "run": ID, "cancelled": BOOL, "error": TEXT, "exits": [[process, code, ours, time], ...]}

A file called ``cancel`` in the run folder ends the run, whoever put it there; so does taking the
folder away. The first bad exit of a process ends the others.

Where the run folder holds a ``network.json``, a child makes that network first and hands it over;
the processes of the run enter it, and it goes with them.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import os
import resource
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from meshwave.engine.document.model import model_families
from meshwave.engine.errors import MeshwaveError, RunError
from meshwave.engine.runs.emulation.network import INTERFACE, LINUX, Builder, Network, die_with
from meshwave.engine.runs.emulation.topology import read_topology

WORKER = "meshwave.engine.runtime.processes.worker"
LOOK_S = 0.02
"""How often a run is looked at for a wish to cancel it, or for one that does not end when told."""
GRACE_S = 0.1
"""From the polite signal to the other one."""
NICENESS = 5
"""Processes that compute yield to the page that shows them."""

PR_SET_CHILD_SUBREAPER = 36  # from linux/prctl.h


@dataclass
class Gang:
    """The processes of one run: they start together, and none outlives a failed one."""

    run: str
    folder: Path
    processes: int  # as many as it is to have
    builder: Builder | None = None  # of its network, as long as it works
    network: Network | None = None
    alive: dict[int, int] = field(default_factory=dict)  # pid to process
    sessions: set[int] = field(default_factory=set)  # each process leads one, named after its pid
    exits: list[tuple[int, int, bool, float]] = field(default_factory=list)
    cancelled: bool = False
    error: str = ""
    kill_at: float | None = None  # told to end; by then it has to
    was_killed: bool = False  # by us

    @property
    def is_ending(self) -> bool:
        return self.kill_at is not None

    def end(self) -> None:
        """Tell all to end, once. Their pids are safe to signal until they are waited for."""
        if not self.is_ending:
            self.kill_at = time.monotonic() + GRACE_S
            for pid in self.pids:
                os.kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        self.was_killed = True
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)

    @property
    def pids(self) -> list[int]:
        """Of all that it has now."""
        return [*self.alive, *([self.builder.pid] if self.builder else [])]

    def build(self) -> None:
        """Have its network made, where it is to have one."""
        topology = read_topology(self.folder)
        if topology is not None:
            self.builder = Builder(topology)
            self.sessions.add(self.builder.pid)

    def take_network(self) -> None:
        """Take over what the builder, which has ended, has made."""
        assert self.builder is not None
        builder, self.builder = self.builder, None
        try:
            self.network = builder.network()
        except RunError as error:
            self.fail(str(error))

    def fail(self, error: str) -> None:
        """End it with this reason, if it is not ending yet."""
        if not self.is_ending:
            self.error = error
            self.end()

    def left(self, ended: Mapping[int, int]) -> None:
        """Take note of those that ended since the last look, in whatever order, then act on it."""
        mine = {pid: code for pid, code in ended.items() if pid in self.alive}
        now = time.time()
        self.exits += [(self.alive.pop(pid), code, self._is_ours(code), now) for pid, code in mine.items()]
        if any(mine.values()):
            self.end()

    def _is_ours(self, code: int) -> bool:
        """Whether a process ended as it was told. One that somebody kills may be noticed after the others, which
        fail without it and are told to end, while the kernel still takes it apart."""
        return self.is_ending and (code != -signal.SIGKILL or self.was_killed)

    def look(self) -> None:
        if not self.is_ending and (self.folder / "cancel").exists():
            self.cancelled = True
            self.end()
        if not self.folder.exists():
            self.fail("its folder was taken away while it ran")
        if self.kill_at is not None and time.monotonic() > self.kill_at:
            self.kill()


class Zygote:
    """Forks and watches. One thread, since only such a process can be forked safely."""

    def __init__(self, play: Callable[[str], object], commands: int, events: int) -> None:
        """``play`` is what a fork does with the run folder; it ends the process or returns."""
        self._play = play
        self._commands = commands
        self._events = events
        self._gangs: dict[str, Gang] = {}
        self._unread = b""

    def serve(self) -> None:
        """Do as told until nobody is there to tell; then leave nothing behind."""
        wake, waker = os.pipe()
        for descriptor in (wake, waker, self._commands):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker)
        with selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            selector.register(self._commands, selectors.EVENT_READ)
            self._say(event="ready")
            while self._obey():
                selector.select(LOOK_S if self._gangs else None)
                _drain(wake)
                self._watch()
        self._end_all()

    def _obey(self) -> bool:
        """Read what there is to read, do it, and say whether there may be more to come."""
        text, is_open = _drain(self._commands)
        if not is_open:
            return False
        *lines, self._unread = (self._unread + text).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if command["do"] == "launch":
                self._launch(command["run"], Path(command["folder"]), command["processes"])
        return True

    def _launch(self, run: str, folder: Path, processes: int) -> None:
        gang = self._gangs[run] = Gang(run, folder, processes)
        gang.look()
        try:
            if not gang.is_ending:
                gang.build()
        except (OSError, MeshwaveError) as error:
            gang.fail(f"its network could not be made: {error}")
        if gang.builder is None:
            self._start(gang)

    def _start(self, gang: Gang) -> None:
        """Fork its processes, unless it is ending."""
        try:
            for process in range(0 if gang.is_ending else gang.processes):
                pid = self._fork(gang, process)
                gang.alive[pid] = process
                gang.sessions.add(pid)
        except OSError as error:
            gang.fail(f"process {len(gang.alive)} of {gang.processes} could not be started: {error.strerror}")
        self._say(event="started", run=gang.run, pids=list(gang.alive))
        self._finish_if_done(gang)

    def _watch(self) -> None:
        ended = _reap()
        for gang in list(self._gangs.values()):
            gang.left(ended)
            gang.look()
            if gang.builder is not None and gang.builder.pid in ended:
                gang.take_network()
                self._start(gang)
            else:
                self._finish_if_done(gang)

    def _finish_if_done(self, gang: Gang) -> None:
        if gang.pids:
            return
        del self._gangs[gang.run]
        if gang.network is not None:
            gang.network.close()
        self._sweep(gang.sessions)
        self._say(event="finished", run=gang.run, cancelled=gang.cancelled, error=gang.error, exits=gang.exits)

    def _sweep(self, sessions: set[int]) -> None:
        """End what the processes of a run had started themselves: the kernel gave it to us.

        Where other runs go on, only what is still in a session of this one is surely its own.
        """
        others = {pid for gang in self._gangs.values() for pid in gang.sessions}
        for _ in range(100):  # the children of what is ended come to us in turn
            strays = [pid for pid in _children() if pid not in others]
            if self._gangs:
                strays = [pid for pid in strays if _session(pid) in sessions]
            if not strays:
                return
            for pid in strays:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)
            for pid in strays:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _end_all(self) -> None:
        for gang in self._gangs.values():
            gang.kill()
        for gang in self._gangs.values():
            for pid in gang.pids:
                os.waitpid(pid, 0)
        self._gangs.clear()
        self._sweep(set())

    def _fork(self, gang: Gang, process: int) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            _become(gang, process, parent)
            self._play(str(gang.folder))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _say(self, **event: Any) -> None:
        text = json.dumps(event).encode() + b"\n"
        with suppress(BrokenPipeError):  # nobody listens; the next read of a command will tell
            while text:
                text = text[os.write(self._events, text) :]


def _become(gang: Gang, process: int, parent: int) -> None:
    """Turn a fresh fork into a process of the run, with nothing of the zygote's but its memory."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if gang.network is not None:
        gang.network.enter(process)
        os.environ.update(GLOO_SOCKET_IFNAME=INTERFACE, NCCL_SOCKET_IFNAME=INTERFACE)
    if LINUX:
        die_with(parent)
        with suppress(OSError):  # memory runs out: a rank goes, not the app
            Path("/proc/self/oom_score_adj").write_text("500")
    os.setsid()
    os.umask(0o077)
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(gang.folder)
    _redirect(gang.folder / f"rank-{process}.log")
    size = str(gang.processes)
    os.environ.update(RANK=str(process), LOCAL_RANK=str(process), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
    if not LINUX:
        os.environ["MESHWAVE_DIE_WITH_PARENT"] = "1"  # the worker then looks after its parent itself


def _redirect(log: Path) -> None:
    """Nothing to read, a file to write to, and no other descriptor."""
    null = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    for descriptor in map(int, os.listdir("/dev/fd")):  # the one that lists is closed by then
        if descriptor > 2:
            with suppress(OSError):
                os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _drain(descriptor: int) -> tuple[bytes, bool]:
    """Everything that can be read now, and whether the other end is still open."""
    text = b""
    while True:
        try:
            part = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return text, True
        if not part:
            return text, False
        text += part


def _reap() -> dict[int, int]:
    """The children that have ended: pid to exit status, or minus the signal."""
    ended = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return ended


def _children() -> list[int]:
    """Our children, those included that the kernel gave us when their own parent ended."""
    pid = os.getpid()
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # another system, or a kernel without it
        return []


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def _forked(worker: str) -> Callable[[str], object]:
    """Import everything a worker needs, here and once."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # the other way to count GPUs forbids to fork
    module = importlib.import_module(worker)
    if worker == WORKER:
        _import_the_rest()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page it looks at
    play: Callable[[str], object] = module.main
    return play


def _import_the_rest() -> None:
    """What a worker imports only when it comes to it."""
    for family in model_families.values():
        family.stage_builder()
    importlib.import_module("meshwave.engine.runtime.execution.checkpoint").prepare()


def _spawned(worker: str) -> Callable[[str], NoReturn]:
    """Replace the fork by a fresh interpreter, which imports for itself."""

    def play(folder: str) -> NoReturn:
        os.execv(sys.executable, [sys.executable, "-m", worker, folder])

    return play


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", choices=("fork", "spawn"), default="fork")
    parser.add_argument("--worker", default=WORKER, help="the module of the processes")
    options = parser.parse_args()

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever tells us what to do
    events = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no event
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    play = (_forked if options.start == "fork" else _spawned)(options.worker)
    Zygote(play, 0, events).serve()


if __name__ == "__main__":
    main()
