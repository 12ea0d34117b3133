"""A warm process that forks the processes of runs and tasks for tests.

``python crew.py`` reads pickled tasks from standard input and writes the outcomes of their processes to standard
output. Importing torch takes seconds, forking milliseconds.
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import runpy
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from meshwave.engine.costs import layers_per_stage
from meshwave.engine.document import Design, parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.program import parse_program
from meshwave.engine.runtime.calibration import emulated_cluster
from meshwave.engine.runtime.communication.world import join_run
from meshwave.engine.runtime.execution import checkpoint
from meshwave.engine.runtime.execution.job import Job
from meshwave.engine.runtime.execution.trainer import Trainer
from meshwave.engine.runtime.processes import worker
from meshwave.engine.runtime.processes.warm_process import load_lazy_parts
from tests.engine.runtime.outcomes import dump_outcome


def make_job(document: dict[str, Any], orders: str | None) -> Job:
    """Return the job of a design, with its own program or a given one."""
    design = parse_design(document)
    return Job(design, parse_program(orders) if orders else lower(design), layers_per_stage(design))


def to_numpy_dtype(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor; of bfloat16, which numpy does not have, in float32."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor.clone()


def _train(job: Job, folder: Path) -> dict[str, Any]:
    world = join_run(folder)
    seen: dict[str, Any] = {}
    trainer = Trainer(
        job, world, observer=lambda named: seen.update({n: to_numpy_dtype(g).numpy() for n, g in named.items()})
    )
    steps, evaluations, moved = [], [], []
    for number in range(job.design.training.steps):
        seen.clear()
        steps.append(trainer.step(number))
        if job.design.rebalances_after(number):
            moved += trainer.rebalance()
        if job.design.training.is_evaluated_after(number):
            evaluations.append(trainer.evaluate())
    outcome = {
        "losses": [step.loss for step in steps],
        "evaluations": evaluations,
        "grad_norms": [step.grad_norm for step in steps],
        "gradients": seen,
        "moved": [change._asdict() for change in moved],
        "cuts": trainer.weight_shards(),
        "parameters": {name: to_numpy_dtype(p).numpy() for name, p in trainer.parameters().items()},
    }
    dist.destroy_process_group()
    return outcome


def _call(name: str, argument: Any, folder: Path) -> Any:
    module, _, function = name.partition(":")
    join_run(folder)
    outcome = getattr(import_module(module), function)(argument)
    dist.destroy_process_group()
    return outcome


def _attempt(task: Callable[[], Any]) -> Any:
    """Return the outcome of a task, or its error and traceback."""
    try:
        return task()
    except Exception as error:
        return f"{type(error).__name__}: {error}", traceback.format_exc()


def _answer(folder: Path, task: Callable[[], Any]) -> None:
    process = os.environ["RANK"]
    (folder / f"{process}.tmp").write_bytes(dump_outcome(_attempt(task)))
    (folder / f"{process}.tmp").rename(folder / f"{process}.out")


def _fork(size: int, task: Callable[[], Any]) -> list[int]:
    """Run ``task`` in ``size`` new processes, and return their exit statuses."""
    children = []
    for process in range(size):
        child = os.fork()
        if not child:
            os.environ.update(RANK=str(process), WORLD_SIZE=str(size), LOCAL_RANK=str(process))
            try:
                task()
            finally:
                os._exit(0)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _outcomes(size: int, task: Callable[[Path], Any]) -> list[bytes]:
    """Run ``task``, with a folder for all, in ``size`` new processes, and return the pickles of their outcomes."""
    with tempfile.TemporaryDirectory() as folder:
        _fork(size, lambda: _answer(Path(folder), lambda: task(Path(folder))))
        found = [Path(folder) / f"{process}.out" for process in range(size)]
        return [path.read_bytes() if path.exists() else dump_outcome("died") for path in found]


class TrainingProcess:
    """A process that trains one job after another, since each fork copies thousands of pages before its first step."""

    def __init__(self) -> None:
        self._jobs, jobs = Pipe()
        self.is_usable = True
        self._pid = os.fork()
        if not self._pid:
            try:
                for process in (self, *_training):
                    process._jobs.close()
                self._serve(jobs)
            finally:
                os._exit(0)
        jobs.close()

    def _serve(self, jobs: Connection) -> None:
        while True:
            job, folder, process = jobs.recv()
            os.environ.update(RANK=str(process), WORLD_SIZE=str(job.layout.processes), LOCAL_RANK=str(process))
            outcome = _attempt(partial(_train, job, folder))
            jobs.send_bytes(dump_outcome(outcome))
            gc.collect()  # process groups end with their last reference, and need their folder until then
            jobs.send(isinstance(outcome, dict))

    def start(self, job: Job, folder: Path, process: int) -> None:
        self._jobs.send((job, folder, process))

    def outcome(self) -> bytes:
        """Wait for the outcome of the job; a failed one leaves its process group open, so that no other can follow."""
        self.is_usable = False
        try:
            outcome, self.is_usable = self._jobs.recv_bytes(), self._jobs.recv()
        except EOFError:
            return dump_outcome("died")
        return outcome

    def end(self) -> None:
        self._jobs.close()
        os.waitpid(self._pid, 0)


_training: list[TrainingProcess] = []


def train(document: dict[str, Any], orders: str | None = None) -> list[bytes]:
    """Train in a process for each device of the design, and return the outcomes by process."""
    job = make_job(document, orders)
    size = job.layout.processes
    while len(_training) < size:
        _training.append(TrainingProcess())
    with tempfile.TemporaryDirectory() as folder:
        for process in range(size):
            _training[process].start(job, Path(folder), process)
        outcomes = [process.outcome() for process in _training[:size]]
    if not all(process.is_usable for process in _training):
        while _training:
            _training.pop().end()
    return outcomes


def call(name: str, size: int, argument: Any) -> list[bytes]:
    """Call ``module:function`` in ``size`` processes, and return what each returns."""
    return _outcomes(size, lambda folder: _call(name, argument, folder))


def run_workers(folder: str, size: int) -> list[int]:
    """Run the workers of a run folder, and return their exit statuses."""
    return _fork(size, lambda: worker.main(folder))


def run_script(path: str, size: int) -> list[bytes]:
    """Run a script in the processes that torchrun would start, and return what each prints."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}

    def run(folder: Path) -> str:
        os.environ.update(address)
        with redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(path, run_name="__main__")
        return printed.getvalue()

    return _outcomes(size, run)


def run_cluster(folder: str) -> tuple[int, str]:
    """Run the cluster whose job is in a folder, and return its exit status and what its processes print."""
    output, (reader, writer) = Path(folder) / "output", os.pipe()

    def run() -> None:
        for path, descriptor in ((output, 1), (Path(folder) / emulated_cluster.LOG, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
        os.dup2(reader, 0)  # it ends when this input is closed
        emulated_cluster.main(Path(folder))

    [status] = _fork(1, run)
    os.close(reader)
    os.close(writer)
    return status, output.read_text()


def can_read_designs(_: None) -> bool:
    """Return True if this fork need not build the validator of designs."""
    return Design.__pydantic_complete__


def _warm_up() -> None:
    """Import all lazily imported modules once, so that forked processes have them."""
    torch.set_num_threads(1)
    load_lazy_parts()
    checkpoint.import_checkpoint_modules()
    import_module("torch._dynamo")  # torch.utils.checkpoint uses it
    np.unique([0])
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page it looks at


TASKS: dict[str, Callable[..., Any]] = {
    task.__name__: task for task in (train, run_workers, call, run_script, run_cluster)
}


def main() -> None:
    _warm_up()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that what torch prints does not mix with outcomes
    while True:
        try:
            task, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(TASKS[task](*arguments), answers)
        answers.flush()


if __name__ == "__main__":
    main()
