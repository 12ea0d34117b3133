"""Process of a run, for any launcher: ``python -m meshwave.engine.runtime.processes.worker RUN_DIR``.

It reads the environment variables ``RANK``, ``WORLD_SIZE`` and ``LOCAL_RANK``, reads everything else from the run
folder, and writes its results there (``events``, ``metrics``, ``spans``, and ``error`` if it fails).
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import resolve_expert_layer
from meshwave.engine.errors import RunError
from meshwave.engine.experts import LAYER_OPS
from meshwave.engine.files import replace_file, write_all
from meshwave.engine.findings import Problem
from meshwave.engine.messages import render
from meshwave.engine.run_files import UNREPORTED_STATUS, write_document
from meshwave.engine.runs.recording import Recorder, StepsRecorder, write_clocks, write_routing
from meshwave.engine.runtime.communication.flight_recorder import write_flight_record
from meshwave.engine.runtime.communication.world import World, join_run, leave_run
from meshwave.engine.runtime.device.accelerator import device_name
from meshwave.engine.runtime.device.clock import ClockComparison
from meshwave.engine.runtime.device.memory import MemoryCount, keep_freed_memory, step_with_memory_count
from meshwave.engine.runtime.dry_run.executor import DryRunner
from meshwave.engine.runtime.execution.job import Job, RunNote, read_job
from meshwave.engine.runtime.execution.step_progress import ExecutionError, Progress, StepTimes
from meshwave.engine.runtime.execution.trainer import Trainer
from meshwave.engine.runtime.processes.checkpointing import INTERRUPTED_STATUS, Checkpointing, Interrupted
from meshwave.engine.runtime.processes.watchdog import Watchdog

PARENT_CHECKS_PER_S = 5
PR_SET_PDEATHSIG = 1  # from linux/prctl.h


class JsonLines:
    """Writer of a JSON-lines file; a line is complete in the file when :meth:`write` returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, **values: Any) -> None:
        """Append a line with ``values`` as its keys."""
        values = {name: _finite_or_none(value) for name, value in values.items()}
        write_all(self._file.fileno(), json.dumps(values, allow_nan=False).encode() + b"\n")

    def write_event(self, event: str, **values: Any) -> None:
        """Append an event with the current time."""
        self.write(time=time.time(), event=event, **values)


def _finite_or_none(value: Any) -> Any:
    """Return the value, or None for infinity and NaN, which JSON cannot represent."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main(run_dir: Path | str, job: Job | None = None) -> NoReturn:
    """Run one process of the run in ``run_dir``, then end it with status 0 (success) or 1 (failure).

    It may be called in a process that was just forked. It ends the process without the interpreter's own shutdown,
    which takes a third of a second and is not needed.

    Args:
        run_dir: the run folder.
        job: the job; None to read it from the folder.
    """
    folder = Path(run_dir)
    process = int(os.environ.get("RANK", 0))
    try:
        _end_with_parent()
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # each process has a core
        keep_freed_memory()
        _run_process(folder, job or read_job(folder))
        status = 0
    except Interrupted:
        status = INTERRUPTED_STATUS
    except BaseException as error:
        status = _report_error(folder, process, error)
    with suppress(OSError):  # the disk may be full
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _run_process(folder: Path, job: Job) -> None:
    world = join_run(folder, computes=job.rehearsal is None, check_size=job.check_process_count)
    events = JsonLines(folder / f"events-{world.process}.jsonl")
    note = world.communication if job.rehearsal else f"{world.computation}; {world.communication}"
    events.write_event("started", pid=os.getpid(), device=device_name(world.device), backend=world.backend, note=note)
    print(note, flush=True)
    if job.rehearsal is None:
        _train(folder, job, world, events)
    else:
        _run_dry(folder, job, world, events)
    leave_run()
    events.write_event("finished", steps=job.design.training.steps)


@dataclass(frozen=True)
class StepReport:
    """Records of a step: the values for its metrics, spans and log."""

    seconds: float
    times: StepTimes
    text: str  # line for the log
    metrics: dict[str, Any]


def _train(folder: Path, job: Job, world: World, events: JsonLines) -> None:
    _write_notes(events, _expert_notes(job.design))
    trainer = Trainer(job, world)
    _write_notes(events, trainer.notes)
    first = _load_checkpoint(folder, trainer, events)
    if first == 0 and job.initial_weights:
        trainer.start_from(job.initial_weights)
        files = ", ".join(path.name for path in job.initial_weights)
        _write_notes(events, [RunNote(f"the weights start from {files}")])
    checkpoints = Checkpointing(folder, job, trainer, world.process, events.write_event)
    memory = MemoryCount(world.device, trainer.resident_tensors())
    counted = step_with_memory_count(job.design.training.steps)
    untimed = [counted] if counted is not None and memory.slows_step else []
    recorder = _make_recorder(folder, job, world, apart=untimed, arrivals=world.sends_between_devices)
    inside = StepsRecorder(folder, world.process, LAYER_OPS)

    def run_step(number: int) -> StepReport:
        checkpoints.before_step()
        trainer.trace.is_on = inside.is_due(number)
        if number == counted:
            with memory:
                step = trainer.step(number)
            memory.result(number).write(folder, world.process)
        else:
            step = trainer.step(number)
        if trainer.trace.is_on:
            inside.write(number, trainer.trace.take())
        if job.design.rebalances_after(number):
            for change in trainer.rebalance():
                events.write_event("rebalanced", step=number, note=change.note, **change._asdict())
        if recorder.is_due(number):
            write_routing(folder, world.process, trainer.expert_routes())
        trainer.progress.activity = "checkpoint"
        checkpoints.after_step(number + 1)
        trainer.progress.activity = None
        text = f"loss {step.loss:.4f} in {step.seconds:.3f} s"
        metrics = {"loss": step.loss, "grad_norm": step.grad_norm}
        if job.design.training.is_evaluated_after(number):
            metrics["eval_loss"] = trainer.evaluate()
            text = f"{text}, loss {metrics['eval_loss']:.4f} on held-out data"
        return StepReport(step.seconds, step.times, text, metrics)

    _run_steps(folder, job, world, events, recorder, run_step, trainer.progress, first)
    inside.close()
    checkpoints.finish(job.design.training.steps)


def _load_checkpoint(folder: Path, trainer: Trainer, events: JsonLines) -> int:
    """Load the newest intact checkpoint of the run folder, if there is one, and return the number of the first step."""
    loaded = trainer.resume(folder)
    for name in loaded.damaged:
        print(render("skipped_checkpoint", {"checkpoint": name}), flush=True)
    if loaded.steps:
        events.write_event("resumed", steps=loaded.steps)
        print(f"resumed after step {loaded.steps}", flush=True)
    return loaded.steps


def _run_dry(folder: Path, job: Job, world: World, events: JsonLines) -> None:
    runner = DryRunner(job, world, folder)
    _write_notes(events, runner.notes)
    assert job.rehearsal is not None and job.rehearsal.scale is not None
    recorder = _make_recorder(folder, job, world, source="rehearsed", scale=job.rehearsal.scale, arrivals=True)

    def run_step(number: int) -> StepReport:
        step = runner.step()
        text = f"dry run of {step.seconds:.4g} {runner.unit}"
        return StepReport(step.seconds, step.times, text, {"unit": runner.unit})

    _run_steps(folder, job, world, events, recorder, run_step, runner.progress)


def _write_notes(events: JsonLines, notes: Sequence[RunNote]) -> None:
    for note in notes:
        events.write_event("chosen", note=note.text, **note.numbers)
        print(note.text, flush=True)


def _make_recorder(folder: Path, job: Job, world: World, **options: Any) -> Recorder:
    names = [mesh.name for mesh in job.design.meshes]
    return Recorder(folder, job.program, names, world.process, job.layout.rank(world.process), **options)


def _run_steps(
    folder: Path,
    job: Job,
    world: World,
    events: JsonLines,
    recorder: Recorder,
    run_step: Callable[[int], StepReport],
    progress: Progress,
    first: int = 0,
) -> None:
    """Run all steps from number ``first`` on, monitored for hangs.

    Process 0 writes per-step metrics; every process records the times of its actions.
    """

    def end_hang(problem: Problem) -> None:
        os._exit(_report_error(folder, world.process, RunError(problem.message)))

    if world.process == 0:
        drop_steps_from(folder / "metrics.jsonl", first)
    metrics = JsonLines(folder / "metrics.jsonl") if world.process == 0 else None
    tokens = job.sequences * job.design.model.sequence
    comparison = ClockComparison(world.process, world.size, world.backend)
    _compare_clocks(folder, comparison, world.process)
    gc.collect()
    gc.freeze()  # so that collections do not visit the objects that torch has allocated
    events.write_event("ready")
    write_record = partial(write_flight_record, folder, world.process) if world.backend == "nccl" else None
    with Watchdog(folder, job, world.process, progress, end_hang, write_record).watch():
        for number in range(first, job.design.training.steps):
            progress.begin(number)
            step = run_step(number)
            if recorder.is_due(number):
                recorder.write(number, step.times.start, step.times.end, step.times.wait)
            if metrics is not None:
                metrics.write(step=number, **step.metrics, seconds=step.seconds, tokens_per_s=tokens / step.seconds)
                print(f"step {number + 1}: {step.text}", flush=True)
            events.write_event("step", step=number)
    recorder.close()
    _compare_clocks(folder, comparison, world.process)


def drop_steps_from(metrics: Path, first: int) -> None:
    """Remove the rows of steps from number ``first`` on, which a restarted job runs again."""
    if metrics.exists():
        rows = [line for line in metrics.read_bytes().splitlines(keepends=True) if _step_number(line) < first]
        replace_file(metrics, b"".join(rows), 0o600)


def _step_number(line: bytes) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # line truncated by the end of the job
        return math.inf


def _compare_clocks(folder: Path, comparison: ClockComparison, process: int) -> None:
    comparison.measure_offsets()
    if process == 0:
        write_clocks(folder, comparison.clocks)


def _expert_notes(design: Design) -> list[RunNote]:
    """Return a note for each expert schedule that the cost model chose, with the reason, without duplicates."""
    if design.model.moe is None:
        return []
    found = [resolve_expert_layer(design, mesh) for mesh in design.meshes]
    texts = [f"{design.experts.schedule}: {each.choice.reason}" for each in found if each.choice]
    if design.experts.degree is None:
        chunks = [f"{each.layer.degree} chunk{'s' * (each.layer.degree != 1)}" for each in found]
        texts += [f"experts in {words}, the fastest number according to the cost model" for words in chunks]
    return [RunNote(text) for text in dict.fromkeys(texts)]


def _report_error(folder: Path, process: int, error: BaseException) -> int:
    """Write an error report before all other cleanup, because the other processes fail a moment after this one.

    Returns:
        Exit status, which differs if the report could not be written.
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


def _end_with_parent() -> None:
    """Make this process end when its parent ends, if the launcher requests it or is torchrun.

    Workers would otherwise outlive a torchrun that is killed. A process that a user started may outlive its shell.
    """
    is_asked = os.environ.get("MESHWAVE_DIE_WITH_PARENT") == "1"
    if not (is_asked or "TORCHELASTIC_RUN_ID" in os.environ):
        return
    parent = os.getppid()
    if is_asked and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch_parent, args=(parent,), daemon=True, name="watch-parent").start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1 / PARENT_CHECKS_PER_S)
    os._exit(1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m meshwave.engine.runtime.processes.worker RUN_DIR")
    main(sys.argv[1])
