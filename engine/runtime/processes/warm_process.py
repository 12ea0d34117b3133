"""Warm process that forks the processes of runs: ``python -m meshwave.engine.runtime.processes.warm_process``.

It imports torch in advance, so that a run starts in hundredths of a second. It reads commands and writes events, both
as JSON lines. When its input closes, it ends all processes that it started; if it is killed, the kernel ends them.

In:   {"do": "launch", "run": ID, "folder": PATH, "processes": N}
Out:  {"event": "ready"}
      {"event": "started", "run": ID, "pids": [...]}
      {"event": "finished", "run": ID, "cancelled": BOOL, "error": TEXT, "exits": [[process, code, ours, time], ...]}

A run ends when its folder contains a file named ``cancel`` or is removed. When a process of the run fails, the others
are ended.

If the run folder contains a ``network.json``, a child process first builds that emulated network; the processes of the
run enter it, and it is removed with them.
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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.model import model_families
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.run_files import read_document
from meshwave.engine.runs.emulation.network import INTERFACE, LINUX, end_with_parent
from meshwave.engine.runs.options import PLAIN, Options
from meshwave.engine.runtime.processes.run_processes import RunProcesses

WORKER = "meshwave.engine.runtime.processes.worker"
POLL_S = 0.02
"""Interval in seconds between checks for runs that are cancelled or overdue."""
NICENESS = 5
"""Niceness of compute processes, so that the designer takes precedence."""

PR_SET_CHILD_SUBREAPER = 36  # from linux/prctl.h


class ForkServer:
    """Server that forks the processes of runs and observes them. It is single-threaded, as required for safe forks."""

    def __init__(
        self, run_worker: Callable[[str], object], prepare: Callable[[Path], object], commands: int, events: int
    ) -> None:
        """Prepare to serve commands.

        Args:
            run_worker: runs a worker in a fork, given the run folder.
            prepare: called with a run folder before its workers are forked.
            commands: file descriptor of the commands.
            events: file descriptor of the events.
        """
        self._run_worker, self._prepare = run_worker, prepare
        self._commands = commands
        self._events = events
        self._runs: dict[str, RunProcesses] = {}
        self._unread = b""

    def serve(self) -> None:
        """Execute commands until their input closes, then end all processes."""
        wake, waker = os.pipe()
        for descriptor in (wake, waker, self._commands):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker)
        with selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            selector.register(self._commands, selectors.EVENT_READ)
            self._write_event(event="ready")
            while self._execute_commands():
                selector.select(POLL_S if self._runs else None)
                _read_available(wake)
                self._watch_runs()
        self._end_all()

    def _execute_commands(self) -> bool:
        """Execute the commands that have arrived, and return True if the input is still open."""
        text, is_open = _read_available(self._commands)
        if not is_open:
            return False
        *lines, self._unread = (self._unread + text).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if command["do"] == "launch":
                self._launch(command["run"], Path(command["folder"]), command["processes"])
        return True

    def _launch(self, run: str, folder: Path, processes: int) -> None:
        group = self._runs[run] = RunProcesses(run, folder, processes)
        group.check()
        try:
            if not group.is_ending:
                group.start_network()
        except (OSError, MeshwaveError) as error:
            group.fail(f"the network could not be built: {error}")
        if group.builder is None:
            self._start_processes(group)

    def _start_processes(self, group: RunProcesses) -> None:
        """Fork the processes, unless the run is ending."""
        self._prepare(group.folder)
        try:
            for process in range(0 if group.is_ending else group.size):
                pid = self._fork(group, process)
                group.alive[pid] = process
                group.sessions.add(pid)
        except OSError as error:
            group.fail(f"process {len(group.alive)} of {group.size} could not be started: {error.strerror}")
        self._write_event(event="started", run=group.run, pids=list(group.alive))
        self._finish_if_done(group)

    def _watch_runs(self) -> None:
        ended = _reap()
        for group in list(self._runs.values()):
            group.record_exits(ended)
            group.check()
            if group.builder is not None and group.builder.pid in ended:
                group.take_network()
                self._start_processes(group)
            else:
                self._finish_if_done(group)

    def _finish_if_done(self, group: RunProcesses) -> None:
        if group.pids:
            return
        del self._runs[group.run]
        if group.network is not None:
            group.network.close()
        self._end_orphans(group.sessions)
        self._write_event(
            event="finished", run=group.run, cancelled=group.is_cancelled, error=group.error, exits=group.exits
        )

    def _end_orphans(self, sessions: set[int]) -> None:
        """End the processes that a run's processes have started; the kernel made them children of this process.

        While other runs are active, only processes in ``sessions`` are ended, because others may belong to other runs.
        """
        others = {pid for group in self._runs.values() for pid in group.sessions}
        for _ in range(100):  # children of those that are ended become ours in turn
            strays = [pid for pid in _child_pids() if pid not in others]
            if self._runs:
                strays = [pid for pid in strays if _session_id(pid) in sessions]
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
        for group in self._runs.values():
            group.kill()
        for group in self._runs.values():
            for pid in group.pids:
                os.waitpid(pid, 0)
        self._runs.clear()
        self._end_orphans(set())

    def _fork(self, group: RunProcesses, process: int) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            _set_up_fork(group, process, parent)
            self._run_worker(str(group.folder))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _write_event(self, **event: Any) -> None:
        text = json.dumps(event).encode() + b"\n"
        with suppress(BrokenPipeError):  # there is no reader; the command input will be closed too
            while text:
                text = text[os.write(self._events, text) :]


def _set_up_fork(group: RunProcesses, process: int, parent: int) -> None:
    """Turn a fork into a process of the run that shares only memory with the fork server."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if group.network is not None:
        group.network.enter(process)
        os.environ.update(GLOO_SOCKET_IFNAME=INTERFACE, NCCL_SOCKET_IFNAME=INTERFACE)
    if LINUX:
        end_with_parent(parent)
        with suppress(OSError):  # if memory runs out, the kernel kills a worker instead of the designer
            Path("/proc/self/oom_score_adj").write_text("500")
    os.setsid()
    os.umask(0o077)
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(group.folder)
    _redirect_streams(group.folder / f"rank-{process}.log")
    size = str(group.size)
    os.environ.update(RANK=str(process), LOCAL_RANK=str(process), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
    if not LINUX:
        os.environ["MESHWAVE_DIE_WITH_PARENT"] = "1"  # the worker then monitors its parent itself


def _redirect_streams(log: Path) -> None:
    """Redirect standard input from ``/dev/null`` and output to ``log``, and close all other descriptors."""
    null = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    for descriptor in map(int, os.listdir("/dev/fd")):  # the descriptor of the listing itself is already closed
        if descriptor > 2:
            with suppress(OSError):
                os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _read_available(descriptor: int) -> tuple[bytes, bool]:
    """Return all bytes that can be read now, and True if the other end is open."""
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
    """Return the exit statuses of child processes that have ended, by pid; -N for signal N."""
    ended = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return ended


def _child_pids() -> list[int]:
    """Return the pids of this process's children, including those whose own parent has ended."""
    pid = os.getpid()
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # another system, or a kernel without it
        return []


def _session_id(pid: int) -> int:
    """Return the session id of a process; -1 if it has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def _import_worker(worker: str) -> Callable[[str], object]:
    """Import all modules that a worker needs, and return its main function."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # counting GPUs through CUDA prevents forks from using it
    gc.disable()  # collections take a fifth of the time of the imports, and find nothing
    module = importlib.import_module(worker)
    if worker == WORKER:
        load_lazy_parts()
    gc.freeze()  # a collection in a fork would copy every page that it visits
    gc.enable()
    run_worker: Callable[[str], object] = module.main
    return run_worker


def load_lazy_parts() -> None:
    """Load what a worker loads on first use, so that its forks have it: modules, and the validator of designs."""
    for family in model_families.values():
        family.stage_builder()
    Design.model_rebuild()


def prepare_run(folder: Path) -> None:
    """Import the modules that only some runs need, once for all of their processes."""
    with suppress(MeshwaveError, OSError):  # the workers report it
        options = read_document(folder / "options.json", Options) or PLAIN
        design = parse_design((folder / "design.json").read_bytes())
        if options.rehearse is None and (design.pipeline.recomputed_part or design.training.compile):
            importlib.import_module("torch._dynamo")  # torch.utils.checkpoint uses it too
        if options.checkpoints or options.resume:
            importlib.import_module("meshwave.engine.runtime.execution.checkpoint").import_checkpoint_modules()


def _bind_spawn(worker: str) -> Callable[[str], NoReturn]:
    """Return a function that replaces the forked process by a new interpreter that imports the worker."""

    def run_worker(folder: str) -> NoReturn:
        os.execv(sys.executable, [sys.executable, "-m", worker, folder])

    return run_worker


def main() -> None:
    """Execute commands from standard input, and write events to standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", choices=("fork", "spawn"), default="fork")
    parser.add_argument("--worker", default=WORKER, help="module of the processes")
    options = parser.parse_args()

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the process that sends commands
    events = os.dup(1)
    os.dup2(2, 1)  # so that output of libraries does not mix with events
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    forks = options.start == "fork"
    run_worker = (_import_worker if forks else _bind_spawn)(options.worker)
    prepare = prepare_run if forks and options.worker == WORKER else lambda folder: None
    ForkServer(run_worker, prepare, 0, events).serve()


if __name__ == "__main__":
    main()
    os._exit(0)  # the shutdown of the interpreter takes a third of a second after an import of torch
