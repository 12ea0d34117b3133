"""Runs on this machine that end with the process that launched them, and whose processes torchrun starts."""

import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from typing import ClassVar

from meshwave.engine.document import Design
from meshwave.engine.errors import RunError
from meshwave.engine.findings import Problem
from meshwave.engine.runs import Options, Run
from meshwave.engine.runs.dry_run import Stopped
from meshwave.engine.runs.launchers import Capabilities, ThreadedLauncher, launchers, process_environment
from meshwave.engine.runs.outcome import Exit, Verdict, judge
from meshwave.engine.runs.run_folder import Bundle

WORKER = "meshwave.engine.runtime.processes.worker"
LOOK_S = 0.1


@launchers.register("standalone")
class StandaloneLauncher(ThreadedLauncher):
    """Start one process per device with torchrun, a fresh interpreter each."""

    name: ClassVar = "standalone"
    title: ClassVar = "torchrun --standalone"

    def probe(self) -> Capabilities:
        if find_spec("torch") is None:
            return Capabilities(Problem("", "runs_without_torch"))
        return Capabilities(most_processes=64, note="torchrun starts a fresh interpreter for each process")

    def check_requirements(self, design: Design, drawn: Design, options: Options) -> None:
        if options.hosts is not None:
            raise RunError("torchrun --standalone emulates no hosts; launch on this machine instead")

    def run_steps(self, bundle: Bundle, stop: threading.Event) -> Verdict:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        worker = ["--nproc-per-node", str(bundle.processes), "--module", WORKER, str(bundle.folder)]
        with (
            (bundle.folder / "rank-0.log").open("wb") as log,
            subprocess.Popen(
                [*torchrun, *worker], env=process_environment(), cwd=bundle.folder, stdout=log, stderr=log
            ) as process,
        ):
            while process.poll() is None:
                if stop.wait(LOOK_S):
                    process.terminate()
        if stop.is_set():
            raise Stopped
        ended = [Exit(process=0, code=process.returncode, ours=False, time_s=time.time())]
        progress = Run(self.record, bundle.run, self).progress
        return judge(bundle.folder, bundle.design, ended, was_cancelled=False, progress=progress)
