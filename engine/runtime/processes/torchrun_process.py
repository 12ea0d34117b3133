"""Process started by torchrun: ``python -m meshwave.engine.runtime.processes.torchrun_process RUN_DIR``.

It forks the worker of the run, which writes its output to the log of the run folder, and reports the exit of the worker
(``exit-<rank>.json``), including death by a signal. In a fork of torchrun, the worker need not import torch again.

``MESHWAVE_PROCESS_ORDER`` lists the process of the run for each process rank of torchrun.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NoReturn

from meshwave.engine.runs.emulation.namespaces import PR_SET_PDEATHSIG, libc
from meshwave.engine.runs.emulation.network import LINUX, end_with_parent
from meshwave.engine.runs.time_limit import Deadline

WORKER = "meshwave.engine.runtime.processes.worker"
POLL_S = 0.05


def main(folder: Path, module: str = WORKER) -> int:
    """Run the worker until it ends and return its exit status."""
    parent, rank = os.getppid(), int(os.environ["RANK"])
    if LINUX:
        libc().prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)  # torch requests SIGINT, which would look like a request to end
    order = os.environ.get("MESHWAVE_PROCESS_ORDER", "").split()
    process = int(order[rank]) if order else rank
    os.environ |= {"RANK": str(process), "MESHWAVE_DIE_WITH_PARENT": "1"}
    deadline = Deadline(folder)
    asked_to_end = False

    def forward(number: int, frame: FrameType | None) -> None:
        nonlocal asked_to_end
        asked_to_end = True
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(worker, number)

    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # until there is a worker to which they can be forwarded
    worker = os.fork()
    if worker == 0:
        _run_worker(folder, module, process)
    for number in signals:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    while (found := os.waitpid(worker, os.WNOHANG))[0] == 0:
        time.sleep(POLL_S)
        if deadline.cancel_overdue():
            asked_to_end = True
            os.kill(worker, signal.SIGKILL)
        if os.getppid() != parent:  # torchrun was killed; its children are still running
            os.kill(worker, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(found[1])
    write_exit(folder, process, code, asked_to_end)
    for number in signals:
        signal.signal(number, signal.SIG_DFL)
    end_with_parent(parent)  # torch keeps this process until the others of the node have ended
    return code if code >= 0 else 1


def _run_worker(folder: Path, module: str, process: int) -> NoReturn:
    """Run the worker in this process, which was just forked, with its output in the log of the run folder."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
        log = os.open(folder / f"rank-{process}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        gc.disable()  # collections take a fifth of the time of the imports, and find nothing
        worker = import_module(module)
        gc.enable()
        worker.main(folder)
    except BaseException:  # the worker ends this process itself, unless it cannot be imported
        traceback.print_exc()
    os._exit(1)


def write_exit(folder: Path, process: int, code: int, ours: bool) -> None:
    """Write the exit status of a worker atomically.

    Args:
        folder: the run folder.
        process: number of the worker's process.
        code: exit status; -N for signal N.
        ours: True if the worker was ended on request.
    """
    path = folder / f"exit-{process}.json"
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"process": process, "code": code, "ours": ours, "time_s": time.time()}) + "\n")
    unfinished.replace(path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m meshwave.engine.runtime.processes.torchrun_process RUN_DIR")
    if status := main(Path(sys.argv[1])):
        sys.exit(status)
