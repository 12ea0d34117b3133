"""Process started by torchrun: ``python -m meshwave.engine.runtime.processes.torchrun_process RUN_DIR``.

It starts the worker of the run as a child, writes the child's output to the log of the run folder, and reports the exit
of the child (``exit-<rank>.json``), including death by a signal. It does not import torch.

``MESHWAVE_PROCESS_ORDER`` lists the process of the run for each process rank of torchrun.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

WORKER = "meshwave.engine.runtime.processes.worker"
LOOK_S = 0.05


def main(folder: Path, module: str = WORKER) -> int:
    """Run the worker until it ends and return its exit status."""
    parent, rank = os.getppid(), int(os.environ["RANK"])
    order = os.environ.get("MESHWAVE_PROCESS_ORDER", "").split()
    process = int(order[rank]) if order else rank
    environment = {**os.environ, "RANK": str(process), "MESHWAVE_DIE_WITH_PARENT": "1"}
    asked_to_end = False

    def forward(number: int, frame: FrameType | None) -> None:
        nonlocal asked_to_end
        asked_to_end = True
        worker.send_signal(number)

    with (folder / f"rank-{process}.log").open("ab") as log:
        command = [sys.executable, "-m", module, str(folder)]
        worker = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    while worker.poll() is None:
        time.sleep(LOOK_S)
        if os.getppid() != parent:  # torchrun was killed; its children are still running
            worker.kill()
    write_exit(folder, process, worker.returncode, asked_to_end)
    return worker.returncode if worker.returncode >= 0 else 1


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
    sys.exit(main(Path(sys.argv[1])))
