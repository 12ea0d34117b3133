"""Comparison of Meshwave's runtime with torch.distributed.pipelining.

``python -m meshwave.engine.runtime.benchmarks.torch_pipelining FOLDER`` runs as one process per rank. It reads
``job.json`` in the folder and writes ``figures.json``. Both runtimes run the same stages (with the same weights), the
same microbatches and the same order of computations in the same processes over the same backend. Neither updates
weights, since torch.distributed.pipelining leaves that to its caller; gradients are dropped before each step. Before
the timing, both run one step, and their losses and gradients must agree.

*Step time.* The runtimes take turns, a few steps each, so that other load affects both alike. Each turn starts at a
barrier and ends when the slowest rank is done, measured by the host's clock on a CPU and by events on an accelerator.
The median turn counts.

*Overhead per action.* Processor time of the thread that runs the step, minus the time inside the model's forward and
loss, inside autograd's engine and, in Meshwave's runtime, inside deferred weight gradients, divided by the number of
computations in the order. Waiting for a message takes no processor time and does not count; posting messages does. The
overhead is measured in separate steps. Python code of a module counts as computation in both runtimes.
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
from meshwave.engine.findings import RunRefusal
from meshwave.engine.lowering.transfers import add_transfers
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program, format_program
from meshwave.engine.runs.training_windows import DEFAULT_TEXT
from meshwave.engine.runtime.communication.communicator import MessageFormat
from meshwave.engine.runtime.communication.process_layout import MeshShape, ProcessLayout
from meshwave.engine.runtime.communication.world import World, join_run, leave_run
from meshwave.engine.runtime.device.accelerator import is_accelerator, record_event
from meshwave.engine.runtime.device.clock import make_clock
from meshwave.engine.runtime.device.memory import keep_freed_memory
from meshwave.engine.runtime.device.streams import make_streams
from meshwave.engine.runtime.execution import stages as local_stages
from meshwave.engine.runtime.execution.data import Microbatch, TrainingBatches
from meshwave.engine.runtime.execution.executor import Executor
from meshwave.engine.runtime.execution.stages import DTYPES, MESSAGE_DTYPES, LocalStage
from meshwave.engine.runtime.execution.update import OptimizerUpdate
from meshwave.engine.runtime.models import Stage, build_stage
from meshwave.engine.runtime.modules.deferred_gradients import compute_deferred_gradients

WARM_UP_STEPS = 2
"""Steps of each runtime before the first turn, including the steps that compare both."""


@dataclass(frozen=True)
class Workload:
    """Design, program and batch that both runtimes run in this process."""

    design: Design
    program: Program
    """Computations and transfers."""
    world: World
    batch: list[Microbatch]
    """All microbatches of a step."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of each stage."""
        return layers_per_stage(self.design)

    @property
    def loss_scale(self) -> float:
        """Factor by which the loss of a microbatch is multiplied."""
        return 1 / self.program.microbatches

    def make_stages(self) -> dict[int, Stage]:
        """Build the stages of this process."""
        training = self.design.training
        return {
            stage: build_stage(
                self.design.model, self.layers, stage, training.seed, DTYPES[training.precision], self.world.device
            )
            for stage in self.program.stages_of(self.world.process)
        }


class Runtime(ABC):
    """Interface of the compared runtimes."""

    def __init__(self, workload: Workload) -> None:
        self.modules = workload.make_stages()
        self._parameters = [parameter for module in self.modules.values() for parameter in module.parameters()]

    def step(self) -> float:
        """Run forward and backward of all microbatches, and return the sum of the losses on this process."""
        for parameter in self._parameters:
            parameter.grad = None
        return self._run_step()

    @abstractmethod
    def _run_step(self) -> float: ...

    def gradients(self) -> dict[str, Tensor]:
        """Return the weight gradients of this process by weight name."""
        named = (pair for module in self.modules.values() for pair in module.named_parameters())
        return {name: parameter.grad for name, parameter in named if parameter.grad is not None}


class MeshwaveRuntime(Runtime):
    """Meshwave's own runtime: the executor that training runs use."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        design, world, layout = (
            workload.design,
            workload.world,
            ProcessLayout(workload.program, (MeshShape(),) * workload.program.ranks),
        )
        training, model = design.training, design.model
        message = MessageFormat(
            (training.micro_batch_size, model.sequence, model.hidden), MESSAGE_DTYPES[training.precision]
        )
        communicator = world.make_communicator(
            layout, message, layout.gradient_groups(layout.stages_with(Op.REDUCE_GRAD))
        )
        split = layout.split_stages()
        stages = {
            stage: LocalStage(
                module, training.precision, world.device, workload.loss_scale, splits_backward=stage in split
            )
            for stage, module in self.modules.items()
        }
        update = OptimizerUpdate(
            self.modules, lambda stage, _: (layout.stage_processes(stage), -1), world.process, communicator, training
        )
        clock, streams = make_clock(world.device), make_streams(world.device)
        self._executor = Executor(layout, world.process, stages, communicator, update, clock, streams)
        self._batch = dict(enumerate(workload.batch))
        self._scale = workload.loss_scale

    def _run_step(self) -> float:
        return sum(float(loss) for loss in self._executor.run(self._batch).losses) * self._scale


class LogitsStage(nn.Module):
    """Stage that returns logits, because torch's schedule computes the loss."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, x: Tensor) -> Tensor:
        """Compute the stage. The last stage returns logits."""
        x = self.stage.forward_body(x)
        return x if self.stage.head is None else self.stage.head.logits(x)  # type: ignore[operator]


class TorchRuntime(Runtime):
    """torch.distributed.pipelining with one of its own schedule classes, or with a schedule read from a CSV file."""

    def __init__(self, workload: Workload, kind: str, folder: Path) -> None:
        """Create the schedule ``kind``, a class name in ``torch.distributed.pipelining.schedules``.

        Raises:
            RunError: the order of actions in torch's schedule differs from that of the workload.
        """
        from torch.distributed.pipelining import PipelineStage, schedules

        super().__init__(workload)
        program, world, scale = workload.program, workload.world, workload.loss_scale
        modules = {stage: LogitsStage(module) for stage, module in self.modules.items()}
        stages = [PipelineStage(module, stage, program.stages, world.device) for stage, module in modules.items()]

        def loss(logits: Tensor, targets: Tensor) -> Tensor:
            microbatch_loss: Tensor = self.modules[program.stages - 1].head.loss(logits, targets)  # type: ignore[union-attr, operator]
            return microbatch_loss * scale

        schedule_class = getattr(schedules, kind)
        self._schedule: Any = schedule_class(
            stages[0] if issubclass(schedule_class, schedules.PipelineScheduleSingle) else stages,
            program.microbatches,
            loss,
            scale_grads=False,
        )
        orders = format_program(program, compute_only=True)
        if schedule_class is schedules._PipelineScheduleRuntime:
            path = folder / f"order-{world.process}.csv"
            path.write_text("".join(f"{','.join(order)}\n" for order in orders))
            self._schedule._load_csv(str(path))
        elif isinstance(self._schedule, schedules._PipelineScheduleRuntime):
            torch_orders = [
                [str(action) for action in order if action] for order in self._schedule.pipeline_order.values()
            ]
            if torch_orders != orders:
                raise RunRefusal("other_order_of_torch", {"schedule": str(kind)})
        tokens = torch.cat([each.inputs for each in workload.batch])
        targets = torch.cat([each.targets for each in workload.batch])
        self._inputs = [tokens] if 0 in modules else []
        self._targets = targets if program.stages - 1 in modules else None

    def _run_step(self) -> float:
        losses: list[Tensor] = []
        options = {} if self._targets is None else {"target": self._targets, "losses": losses}
        self._schedule.step(*self._inputs, **options, return_outputs=False)
        return sum(float(loss.detach()) for loss in losses)


# ---- measuring ----


def compare_runtimes(workload: Workload, kind: str, folder: Path, *, turns: int, steps: int) -> dict[str, float]:
    """Return the figures of both runtimes on the slowest rank; the result is the same in all processes.

    Raises:
        RunError: losses or gradients differ.
    """
    ours, torchs = MeshwaveRuntime(workload), TorchRuntime(workload, kind, folder)
    _check_equal(ours, torchs)
    for runtime in (ours, torchs) * (WARM_UP_STEPS - 1):
        runtime.step()
    gc.collect()
    gc.freeze()  # so that collections during a turn do not visit torch's modules
    mine, theirs = zip(*(_time_both(ours, torchs, workload.world, turn, steps) for turn in range(turns)), strict=True)
    computations = int(workload.program.is_compute[workload.program.rows(workload.world.process)].sum())
    return {
        "meshwave: a step_s": statistics.median(mine),
        "torch: a step_s": statistics.median(theirs),
        "torch / meshwave": statistics.median(np.divide(theirs, mine).tolist()),
        "meshwave: overhead of an action_s": _overhead_seconds(ours, steps) / computations,
        "torch: overhead of an action_s": _overhead_seconds(torchs, steps) / computations,
    }


def _check_equal(ours: Runtime, torchs: Runtime) -> None:
    losses = ours.step(), torchs.step()
    mine, theirs = ours.gradients(), torchs.gradients()
    difference = max(
        (float((mine[name] - theirs[name]).abs().max() / mine[name].abs().max()) for name in mine), default=0.0
    )
    if mine.keys() != theirs.keys() or difference > 1e-4 or abs(losses[0] - losses[1]) > 1e-5 * abs(losses[0]):
        raise RunRefusal("different_results", {"loss": losses[0], "other_loss": losses[1], "difference": difference})


def _time_both(ours: Runtime, torchs: Runtime, world: World, turn: int, steps: int) -> tuple[float, float]:
    """Return the step time of each runtime in one turn, in seconds. The runtime that goes first alternates."""
    if turn % 2:
        return _time_step(ours, world, steps), _time_step(torchs, world, steps)
    theirs = _time_step(torchs, world, steps)
    return _time_step(ours, world, steps), theirs


def _time_step(runtime: Runtime, world: World, steps: int) -> float:
    """Return the time of a step on the slowest process, in seconds."""
    dist.barrier()
    if is_accelerator(world.device):
        begin = record_event()
        for _ in range(steps):
            runtime.step()
        end = record_event()
        end.synchronize()
        seconds = begin.elapsed_time(end) / 1e3
    else:
        start = time.perf_counter()
        for _ in range(steps):
            runtime.step()
        seconds = time.perf_counter() - start
    return _max_over_processes(seconds / steps, world)


def _max_over_processes(value: float, world: World) -> float:
    """Return the maximum of a value over all processes."""
    largest = torch.tensor(value, dtype=torch.float64, device=world.device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return float(largest)


class ProcessorTimer:
    """Timer of the processor time that this thread spends in the wrapped functions; nested calls count once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_inside = False

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls ``function`` and adds the processor time of the call to ``seconds``."""

        def wrapped(*arguments: Any, **options: Any) -> Any:
            if self._is_inside:
                return function(*arguments, **options)
            self._is_inside = True
            start = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds += time.thread_time() - start
                self._is_inside = False

        return wrapped


class _TimedEngine:
    """Proxy of autograd's engine that times every backward."""

    def __init__(self, engine: Any, timer: ProcessorTimer) -> None:
        self._engine = engine
        self.run_backward = timer.wrap(engine.run_backward)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def _overhead_seconds(runtime: Runtime, steps: int) -> float:
    """Return the processor time of a step on this process that is spent outside computations, in seconds."""
    timer = ProcessorTimer()
    with _timed_computations(runtime, timer):
        dist.barrier()
        start = time.thread_time()
        for _ in range(steps):
            runtime.step()
        return (time.thread_time() - start - timer.seconds) / steps


@contextmanager
def _timed_computations(runtime: Runtime, timer: ProcessorTimer) -> Iterator[None]:
    """Time all functions that compute, within a ``with`` block."""
    heads = [module.head for module in runtime.modules.values() if module.head is not None]
    engine: Any = Variable._execution_engine
    wrapped: list[tuple[Any, str, Any]] = [
        *(
            (module, name, getattr(module, name))
            for module in runtime.modules.values()
            for name in ("forward", "forward_body")
        ),
        *((head, name, getattr(head, name)) for head in heads for name in ("logits", "loss")),
        (local_stages, "compute_deferred_gradients", compute_deferred_gradients),
        (Variable, "_execution_engine", engine),
    ]
    for owner, name, function in wrapped:
        setattr(owner, name, _TimedEngine(engine, timer) if function is engine else timer.wrap(function))
    try:
        yield
    finally:
        for owner, name, function in wrapped:
            setattr(owner, name, function)


# ---- one process ----


def _make_workload(document: Mapping[str, Any], world: World) -> Workload:
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
    return Workload(design, add_transfers(design.pipeline.program(design.pipe)), world, batches.step(0))


def main(folder: Path) -> None:
    """Compare the runtimes for all cases of ``job.json``, and write ``figures.json``."""
    torch.set_num_threads(1)  # one core for each process
    keep_freed_memory()
    job = json.loads((folder / "job.json").read_text())
    world = join_run(folder)
    if world.backend == "gloo":  # torch.distributed.pipelining passes tensors of the device to gloo
        world = replace(world, device=torch.device("cpu"))
    figures = {
        name: compare_runtimes(
            _make_workload(pair["design"], world), pair["torch"], folder, turns=job["turns"], steps=job["steps"]
        )
        for name, pair in job["pairs"].items()
    }
    gathered: list[Any] = [None] * world.size
    dist.all_gather_object(gathered, figures)
    if world.process == 0:
        result = {"gpus": world.size if is_accelerator(world.device) else 0, "ranks": gathered}
        (folder / "figures.json").write_text(json.dumps(result))
    leave_run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
