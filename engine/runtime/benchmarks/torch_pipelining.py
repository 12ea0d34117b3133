"""This runtime beside torch.distributed.pipelining: ``python -m meshwave.engine.runtime.benchmarks.torch_pipelining FOLDER``, one process a rank.

``job.json`` in the folder says what to measure, ``figures.json`` is what comes of it. Both run the
same stages (built alike, with the same weights), the same microbatches and the same order of
computations in the same processes over the same backend: nothing but the runtime differs. Neither
updates weights, since torch.distributed.pipelining leaves that to its caller; gradients are dropped
before each step. Before anything is timed, both take a step, and losses and gradients must agree.

*Seconds of a step.* The two take turns, a few steps each, so that both see the same machine; each
turn starts at a barrier and lasts until the slowest rank is done: by the host's clock where
computing is done when a call returns, by CUDA events on a GPU. The median turn counts.

*Overhead of an action.* Processor time of the thread that plays the step, less what it spends
inside the model's forward and loss, inside autograd's engine and, in this runtime, inside the
weight gradients that were put off, over the number of computations in the order. Time in which it
waits for a message takes no processor time and so does not count; posting messages does. Measured
in steps of their own. What a module itself does in Python counts as computing on both sides.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

from meshwave.engine.costs import layers_per_stage
from meshwave.engine.document import Design, parse_design
from meshwave.engine.errors import RunError
from meshwave.engine.lowering.transfers import add_transfers
from meshwave.engine.program.program import Program, format_program
from meshwave.engine.runtime.communication.communicator import MessageFormat
from meshwave.engine.runtime.communication.process_layout import MeshShape, ProcessLayout
from meshwave.engine.runtime.communication.world import World, join_run, leave_run
from meshwave.engine.runtime.device.accelerator import is_accelerator, record_event
from meshwave.engine.runtime.device.clock import make_clock
from meshwave.engine.runtime.device.memory import keep_freed_memory
from meshwave.engine.runtime.device.streams import make_streams
from meshwave.engine.runtime.execution import executor
from meshwave.engine.runtime.execution.data import DEFAULT_TEXT, TrainingBatches
from meshwave.engine.runtime.execution.executor import Executor
from meshwave.engine.runtime.execution.stages import DTYPES, MESSAGE_DTYPES, LocalStage
from meshwave.engine.runtime.execution.update import OptimizerUpdate
from meshwave.engine.runtime.models import Stage, build_stage
from meshwave.engine.runtime.modules.deferred_gradients import compute_deferred

WARM_UP = 2  # steps of each side before any turn


@dataclass(frozen=True)
class Task:
    """What both sides run on this process."""

    design: Design
    program: Program  # computations and transfers
    world: World
    batch: list[tuple[Tensor, Tensor]]  # of all microbatches

    @property
    def layers(self) -> tuple[int, ...]:
        return layers_per_stage(self.design)

    @property
    def scale(self) -> float:
        return 1 / self.program.microbatches

    def stages(self) -> dict[int, Stage]:
        """Those of this process, new."""
        training = self.design.training
        return {
            stage: build_stage(
                self.design.model, self.layers, stage, training.seed, DTYPES[training.precision], self.world.device
            )
            for stage in self.program.stages_of(self.world.process)
        }


class Side(ABC):
    """A runtime that takes steps."""

    def __init__(self, task: Task) -> None:
        self.modules = task.stages()
        self._parameters = [parameter for module in self.modules.values() for parameter in module.parameters()]

    def step(self) -> float:
        """Forward and backward of all microbatches; the sum of the losses that are here."""
        for parameter in self._parameters:
            parameter.grad = None
        return self._step()

    @abstractmethod
    def _step(self) -> float: ...

    def gradients(self) -> dict[str, Tensor]:
        named = (pair for module in self.modules.values() for pair in module.named_parameters())
        return {name: parameter.grad for name, parameter in named if parameter.grad is not None}


class Ours(Side):
    """The executor, which the trainer drives too."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        design, world, layout = (
            task.design,
            task.world,
            ProcessLayout(task.program, (MeshShape(),) * task.program.ranks),
        )
        training, model = design.training, design.model
        message = MessageFormat(
            (training.micro_batch_size, model.sequence, model.hidden), MESSAGE_DTYPES[training.precision]
        )
        communicator = world.communicator(layout, message, layout.gradient_groups())
        split = layout.split_stages()
        stages = {
            stage: LocalStage(module, training.precision, world.device, task.scale, splits_backward=stage in split)
            for stage, module in self.modules.items()
        }
        update = OptimizerUpdate(
            self.modules, lambda stage, _: (layout.stage_processes(stage), -1), world.process, communicator, training
        )
        clock, streams = make_clock(world.device), make_streams(world.device)
        self._executor = Executor(layout, world.process, stages, communicator, update, clock, streams)
        self._batch = dict(enumerate(task.batch))
        self._scale = task.scale

    def _step(self) -> float:
        return sum(float(loss) for loss in self._executor.run(self._batch).losses) * self._scale


class ForTorch(nn.Module):
    """A stage that leaves the loss to torch's schedule."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage.body(x)
        return x if self.stage.head is None else self.stage.head.logits(x)  # type: ignore[operator]


class Torchs(Side):
    """torch.distributed.pipelining, by its own class of a schedule or by its reader of CSV files."""

    def __init__(self, task: Task, kind: str, folder: Path) -> None:
        """``kind`` is a class of ``torch.distributed.pipelining.schedules``.

        Raises:
            RunError: torch's order of the schedule is another.
        """
        from torch.distributed.pipelining import PipelineStage, schedules

        super().__init__(task)
        program, world, scale = task.program, task.world, task.scale
        modules = {stage: ForTorch(module) for stage, module in self.modules.items()}
        stages = [PipelineStage(module, stage, program.stages, world.device) for stage, module in modules.items()]

        def loss(logits: Tensor, targets: Tensor) -> Tensor:
            of_one: Tensor = self.modules[program.stages - 1].head.loss(logits, targets)  # type: ignore[union-attr, operator]
            return of_one * scale

        make = getattr(schedules, kind)
        self._schedule: Any = make(
            stages[0] if issubclass(make, schedules.PipelineScheduleSingle) else stages,
            program.microbatches,
            loss,
            scale_grads=False,
        )
        orders = format_program(program, compute_only=True)
        if make is schedules._PipelineScheduleRuntime:
            path = folder / f"order-{world.process}.csv"
            path.write_text("".join(f"{','.join(order)}\n" for order in orders))
            self._schedule._load_csv(str(path))
        elif isinstance(self._schedule, schedules._PipelineScheduleRuntime):
            theirs = [[str(action) for action in order if action] for order in self._schedule.pipeline_order.values()]
            if theirs != orders:
                raise RunError(f"torch's {kind} orders its computations otherwise")
        tokens, targets = (torch.cat(column) for column in zip(*task.batch, strict=True))
        self._inputs = [tokens] if 0 in modules else []
        self._targets = targets if program.stages - 1 in modules else None

    def _step(self) -> float:
        losses: list[Tensor] = []
        asked = {} if self._targets is None else {"target": self._targets, "losses": losses}
        self._schedule.step(*self._inputs, **asked, return_outputs=False)
        return sum(float(loss.detach()) for loss in losses)


# ---- measuring ----


def compare(task: Task, kind: str, folder: Path, *, turns: int, steps: int) -> dict[str, float]:
    """Both sides on one task: figures of the slowest rank, the same on all processes.

    Raises:
        RunError: they disagree about losses or gradients.
    """
    ours, torchs = Ours(task), Torchs(task, kind, folder)
    _check_equal(ours, torchs)
    for side in (ours, torchs) * (WARM_UP - 1):
        side.step()
    gc.collect()
    gc.freeze()  # both make and drop the same tensors; nobody should wait while torch's modules are looked through
    mine, theirs = zip(*(_both(ours, torchs, task.world, turn, steps) for turn in range(turns)), strict=True)
    computations = int(task.program.is_compute[task.program.rows(task.world.process)].sum())
    return {
        "meshwave: a step_s": statistics.median(mine),
        "torch: a step_s": statistics.median(theirs),
        "torch / meshwave": statistics.median(np.divide(theirs, mine).tolist()),
        "meshwave: overhead of an action_s": _overhead(ours, steps) / computations,
        "torch: overhead of an action_s": _overhead(torchs, steps) / computations,
    }


def _check_equal(ours: Side, torchs: Side) -> None:
    losses = ours.step(), torchs.step()
    mine, theirs = ours.gradients(), torchs.gradients()
    far = max((float((mine[name] - theirs[name]).abs().max() / mine[name].abs().max()) for name in mine), default=0.0)
    if mine.keys() != theirs.keys() or far > 1e-4 or abs(losses[0] - losses[1]) > 1e-5 * abs(losses[0]):
        raise RunError(
            f"the two runtimes disagree: losses {losses[0]} and {losses[1]}, gradients up to {far:.1e} apart"
        )


def _both(ours: Side, torchs: Side, world: World, turn: int, steps: int) -> tuple[float, float]:
    """A turn of each; which is first changes from turn to turn."""
    if turn % 2:
        return _turn(ours, world, steps), _turn(torchs, world, steps)
    theirs = _turn(torchs, world, steps)
    return _turn(ours, world, steps), theirs


def _turn(side: Side, world: World, steps: int) -> float:
    """Seconds of a step."""
    dist.barrier()
    if is_accelerator(world.device):
        begin = record_event()
        for _ in range(steps):
            side.step()
        end = record_event()
        end.synchronize()
        taken = begin.elapsed_time(end) / 1e3
    else:
        began = time.perf_counter()
        for _ in range(steps):
            side.step()
        taken = time.perf_counter() - began
    return _most(taken / steps, world)


def _most(value: float, world: World) -> float:
    """The largest of all processes."""
    most = torch.tensor(value, dtype=torch.float64, device=world.device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most)


class Meter:
    """Processor time of this thread inside the calls that it was made to look at."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self._inside = False

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            if self._inside:
                return call(*arguments, **named)
            self._inside = True
            began = time.thread_time()
            try:
                return call(*arguments, **named)
            finally:
                self.spent_s += time.thread_time() - began
                self._inside = False

        return timed


class _Engine:
    """Stands before autograd's engine."""

    def __init__(self, engine: Any, meter: Meter) -> None:
        self._engine = engine
        self.run_backward = meter.timed(engine.run_backward)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def _overhead(side: Side, steps: int) -> float:
    """Processor seconds of a step on this process, outside computing."""
    meter = Meter()
    with _metered(side, meter):
        dist.barrier()
        began = time.thread_time()
        for _ in range(steps):
            side.step()
        return (time.thread_time() - began - meter.spent_s) / steps


@contextmanager
def _metered(side: Side, meter: Meter) -> Iterator[None]:
    """Let the meter look at everything that computes."""
    heads = [module.head for module in side.modules.values() if module.head is not None]
    engine: Any = Variable._execution_engine
    looked_at: list[tuple[Any, str, Any]] = [
        *((module, name, getattr(module, name)) for module in side.modules.values() for name in ("forward", "body")),
        *((head, name, getattr(head, name)) for head in heads for name in ("logits", "loss")),
        (executor, "compute_deferred", compute_deferred),
        (Variable, "_execution_engine", engine),
    ]
    for owner, name, call in looked_at:
        setattr(owner, name, _Engine(engine, meter) if call is engine else meter.timed(call))
    try:
        yield
    finally:
        for owner, name, call in looked_at:
            setattr(owner, name, call)


# ---- one process ----


def _task(document: Mapping[str, Any], world: World) -> Task:
    design: Any = parse_design(document)
    training, model = design.training, design.model
    batches = TrainingBatches(
        DEFAULT_TEXT,
        model,
        seed=training.seed,
        microbatches=design.pipeline.microbatches,
        micro_batch_size=training.micro_batch_size,
        device=world.device,
    )
    return Task(design, add_transfers(design.pipeline.program(design.pipe)), world, batches.step(0))


def main(folder: Path) -> None:
    torch.set_num_threads(1)  # cores go to processes
    keep_freed_memory()
    job = json.loads((folder / "job.json").read_text())
    world = join_run(folder)
    if world.backend == "gloo":  # torch.distributed.pipelining hands gloo what is on the device
        world = replace(world, device=torch.device("cpu"))
    figures = {
        name: compare(_task(pair["design"], world), pair["torch"], folder, turns=job["turns"], steps=job["steps"])
        for name, pair in job["pairs"].items()
    }
    gathered: list[Any] = [None] * world.size
    dist.all_gather_object(gathered, figures)
    if world.process == 0:
        found = {"gpus": world.size if is_accelerator(world.device) else 0, "ranks": gathered}
        (folder / "figures.json").write_text(json.dumps(found))
    leave_run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
