"""One process of a run: ``python -m meshwave.engine.runtime.processes.worker RUN_DIR``, whoever started it.

It reads ``RANK``, ``WORLD_SIZE`` and ``LOCAL_RANK``; the run folder says the rest and takes what
comes of it (``events``, ``metrics``, ``spans``, and ``error`` where it fails).
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import resolved
from meshwave.engine.experts import LAYER_OPS
from meshwave.engine.files import write_all
from meshwave.engine.run_files import UNREPORTED_STATUS, write_document
from meshwave.engine.runs.checkpoints import complete_checkpoints
from meshwave.engine.runs.recording import Recorder, StepsRecorder, write_clocks, write_routing
from meshwave.engine.runtime.communication.world import World, join_run, leave_run
from meshwave.engine.runtime.device.accelerator import device_name
from meshwave.engine.runtime.device.clock import ClockComparison
from meshwave.engine.runtime.device.memory import MemoryCount, counted_step, keep_freed_memory
from meshwave.engine.runtime.dry_run.executor import Rehearsed, Rehearser
from meshwave.engine.runtime.execution.executor import ExecutionError
from meshwave.engine.runtime.execution.job import Job, read_job
from meshwave.engine.runtime.execution.trainer import Step, Trainer
from meshwave.engine.runtime.processes.checkpointing import Checkpointing

PARENT_LOOKS_PER_S = 5
PR_SET_PDEATHSIG = 1  # from linux/prctl.h
Played = TypeVar("Played", Step, Rehearsed)
Told = tuple[str, dict[str, Any]]
"""What is said of a step, and its numbers."""


class Lines:
    """A file of JSON lines, each complete in the file when :meth:`write` returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, **values: Any) -> None:
        values = {name: _plain(value) for name, value in values.items()}
        write_all(self._file.fileno(), json.dumps(values, allow_nan=False).encode() + b"\n")

    def event(self, event: str, **values: Any) -> None:
        self.write(time=time.time(), event=event, **values)


def _plain(value: Any) -> Any:
    """JSON knows no infinity and no NaN: a loss that is lost is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main(run_dir: Path | str, job: Job | None = None) -> NoReturn:
    """Take part in the run in ``run_dir``, or in ``job`` with its folder there; then end the process: 0 done, 1 failed.

    It may be called in a process that was just forked. The process ends without the
    interpreter's own farewell, which takes a third of a second and has nothing left to do.
    """
    folder = Path(run_dir)
    process = int(os.environ.get("RANK", 0))
    try:
        _die_with_parent()
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # cores go to processes
        keep_freed_memory()
        _take_part(folder, job or read_job(folder))
        status = 0
    except BaseException as error:
        status = _report(folder, process, error)
    with suppress(OSError):  # what a full disk did not take
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _take_part(folder: Path, job: Job) -> None:
    world = join_run(folder, computes=job.rehearsal is None)
    events = Lines(folder / f"events-{world.process}.jsonl")
    device = device_name(world.device)
    note = world.communication if job.rehearsal else f"{world.computation}; {world.communication}"
    events.event("started", pid=os.getpid(), device=device, backend=world.backend, note=note)
    print(note, flush=True)
    if job.rehearsal is None:
        _train(folder, job, world, events)
    else:
        _rehearse(folder, job, world, events)
    leave_run()
    events.event("finished", steps=job.design.training.steps)


def _train(folder: Path, job: Job, world: World, events: Lines) -> None:
    _note(events, _chosen(job.design))
    trainer = Trainer(job, world)
    _note(events, trainer.notes)
    first = _resume(folder, trainer, events)
    checkpoints = Checkpointing(folder, job, trainer, world.process, events.event)
    counted, memory = counted_step(job.design.training.steps), MemoryCount(world.device, trainer.held())
    apart = [counted] if counted is not None and memory.slows_step else []
    recorder = _recorder(folder, job, world, apart=apart, arrivals=world.sends_between_devices)
    inside = StepsRecorder(folder, world.process, LAYER_OPS)

    def play(number: int) -> Step:
        trainer.trace.is_on = inside.is_due(number)
        if number == counted:
            with memory:
                step = trainer.step(number)
            memory.result(number).write(folder, world.process)
        else:
            step = trainer.step(number)
        if trainer.trace.is_on:
            inside.write(number, trainer.trace.take())
        if recorder.is_due(number):
            write_routing(folder, world.process, trainer.routed())
        checkpoints.after_step(number + 1)
        return step

    def told(step: Step) -> Told:
        words = f"loss {step.loss:.4f} in {step.seconds:.3f} s"
        return words, {"loss": step.loss, "grad_norm": step.grad_norm}

    _play(folder, job, world, events, recorder, play, told, first)
    inside.close()
    checkpoints.finish(job.design.training.steps)


def _resume(folder: Path, trainer: Trainer, events: Lines) -> int:
    """Load the newest checkpoint of the run folder, if there is one, and return the number of the first step."""
    found = complete_checkpoints(folder)
    if not found:
        return 0
    steps = trainer.resume(found[-1])
    events.event("resumed", steps=steps)
    print(f"resumed after step {steps}", flush=True)
    return steps


def _rehearse(folder: Path, job: Job, world: World, events: Lines) -> None:
    rehearser = Rehearser(job, world, folder)
    _note(events, rehearser.notes)
    assert job.rehearsal is not None and job.rehearsal.scale is not None
    recorder = _recorder(folder, job, world, source="rehearsed", scale=job.rehearsal.scale, arrivals=True)

    def told(step: Rehearsed) -> Told:
        return f"rehearsed, stands for {step.seconds:.4g} {rehearser.unit}", {"unit": rehearser.unit}

    _play(folder, job, world, events, recorder, lambda number: rehearser.step(), told)


def _note(events: Lines, notes: Sequence[str]) -> None:
    """Say what was chosen."""
    for note in notes:
        events.event("chosen", note=note)
        print(note, flush=True)


def _recorder(folder: Path, job: Job, world: World, **options: Any) -> Recorder:
    names = [mesh.name for mesh in job.design.meshes]
    return Recorder(folder, job.program, names, world.process, job.layout.rank(world.process), **options)


def _play(
    folder: Path,
    job: Job,
    world: World,
    events: Lines,
    recorder: Recorder,
    play: Callable[[int], Played],
    told: Callable[[Played], Told],
    first: int = 0,
) -> None:
    """Play all steps, and write down what comes of them: process 0 what is ``told`` of each, all when it was what."""
    metrics = Lines(folder / "metrics.jsonl") if world.process == 0 else None
    tokens = job.sequences * job.design.model.sequence
    comparison = ClockComparison(world.process, world.size, world.backend)
    _compare_clocks(folder, comparison, world.process)
    gc.collect()
    gc.freeze()  # what is there now stays: no collection need look through torch's modules
    events.event("ready")
    for number in range(first, job.design.training.steps):
        step = play(number)
        if recorder.is_due(number):
            recorder.write(number, step.measured.start, step.measured.end, step.measured.wait)
        if metrics is not None:
            words, more = told(step)
            metrics.write(step=number, **more, seconds=step.seconds, tokens_per_s=tokens / step.seconds)
            print(f"step {number + 1}: {words}", flush=True)
        events.event("step", step=number)
    recorder.close()
    _compare_clocks(folder, comparison, world.process)


def _compare_clocks(folder: Path, comparison: ClockComparison, process: int) -> None:
    comparison.compare()
    if process == 0:
        write_clocks(folder, comparison.clocks)


def _chosen(design: Design) -> list[str]:
    """What the model of cost chose for the expert layers, and why; once for meshes that it chose the same for."""
    if design.model.moe is None:
        return []
    found = [resolved(design, mesh) for mesh in design.meshes]
    notes = [f"{design.experts.schedule}: {each.choice.reason}" for each in found if each.choice]
    if design.experts.degree is None:
        chunks = [f"{each.layer.degree} chunk{'s' * (each.layer.degree != 1)}" for each in found]
        notes += [f"experts in {words}, the fastest by the model" for words in chunks]
    return list(dict.fromkeys(notes))


def _report(folder: Path, process: int, error: BaseException) -> int:
    """Say what went wrong, first in a file: when one process fails all others do, a moment later.

    Returns the exit status, which is another one where there was no room for the file.
    """
    failed = error if isinstance(error, ExecutionError) else None
    report = {
        "process": process,
        "rank": failed.rank if failed else None,
        "time": time.time(),
        "error": str(error) or repr(error),
        "action": str(failed.action) if failed else None,
        "traceback": traceback.format_exc(),
    }
    status = 1
    try:
        write_document(folder / f"error-{process}.json", report)
    except OSError:
        status = UNREPORTED_STATUS
    with suppress(OSError):
        traceback.print_exception(error)
    return status


def _die_with_parent() -> None:
    """Leave no orphan: torchrun's workers, for one, outlive a torchrun that is killed.

    A process that was started by hand may well outlive its shell, so this is for those whose
    starter asks for it, and torchrun's.
    """
    asked = os.environ.get("MESHWAVE_DIE_WITH_PARENT") == "1"
    if not (asked or "TORCHELASTIC_RUN_ID" in os.environ):
        return
    parent = os.getppid()
    if asked and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="watch-parent").start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1 / PARENT_LOOKS_PER_S)
    os._exit(1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m meshwave.engine.runtime.processes.worker RUN_DIR")
    main(sys.argv[1])
