"""One process of a training run: its stages, its share of the data, its executor."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from meshwave.engine.costs.boundary_transfers import crossing, is_direct, renamed, tensor_of
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError
from meshwave.engine.runtime.communication.communicator import BoundaryTransfers, MessageFormat
from meshwave.engine.runtime.communication.process_layout import ProcessLayout
from meshwave.engine.runtime.communication.world import World
from meshwave.engine.runtime.device.clock import make_clock
from meshwave.engine.runtime.device.streams import make_streams
from meshwave.engine.runtime.execution.checkpoint import WEIGHTS, Part, load
from meshwave.engine.runtime.execution.data import Batches
from meshwave.engine.runtime.execution.executor import Executor, Measured
from meshwave.engine.runtime.execution.job import Job
from meshwave.engine.runtime.execution.stages import DTYPES, MESSAGE_DTYPES, LocalStage
from meshwave.engine.runtime.execution.update import Sharers, Update, Watch
from meshwave.engine.runtime.experts.build import ExpertLayers, expert_layers
from meshwave.engine.runtime.experts.layer import ExpertLayer
from meshwave.engine.runtime.experts.step_times import StepTrace
from meshwave.engine.runtime.models import build_stage
from meshwave.engine.runtime.modules.tensor_parallel import WeightShard, weight_shard


@dataclass(frozen=True)
class Step:
    """What a step of training came to; loss and norm are those of the global batch."""

    loss: float
    grad_norm: float  # before clipping
    seconds: float
    measured: Measured


class Trainer:
    """Trains the stages of one process, in step with the other processes."""

    def __init__(self, job: Job, world: World, watch: Watch | None = None) -> None:
        """Build the stages of this process and open its ways to the others.

        Raises:
            InputError: the number of processes, the text or the vocabulary does not fit the design.
        """
        design, program, layout = job.design, job.program, job.layout
        if world.size != layout.processes:
            raise InputError(
                f"{world.size} processes were started, but the design draws {layout.processes} devices "
                f"in {program.ranks} meshes"
            )
        training, model = design.training, design.model
        copies, copy = layout.mesh_shape(world.process).dp, layout.dp_index(world.process)
        rows = tensor_of(design).shape[0] // copies  # of a microbatch, here
        self._batches = Batches(
            job.text,
            model,
            seed=training.seed,
            microbatches=program.microbatches,
            micro_batch_size=training.micro_batch_size,
            share=range(copy * rows, (copy + 1) * rows),
            device=world.device,
        )
        dtype = DTYPES[training.precision]
        self._scale = 1 / (copies * program.microbatches)
        self._cut = layout.tp_index(world.process)
        experts = ExpertLayers(design, layout) if model.moe else None
        groups = world.groups([*layout.tp_groups(), *(experts.required_groups() if experts else ())])
        make = experts.factory(world.process, groups, self._scale, dtype, world.device) if experts else None
        group = groups[layout.tp_group(world.process)]
        self._modules = {
            stage: build_stage(model, job.layers, stage, training.seed, dtype, world.device, group, make)
            for stage in program.stages_of(layout.rank(world.process))
        }
        message = MessageFormat((rows, model.sequence, model.hidden), MESSAGE_DTYPES[training.precision])
        sharing = [*layout.gradient_groups(), *(experts.gradient_groups(layout.reduced_stages()) if experts else ())]
        self._communicator = world.communicator(layout, message, list(dict.fromkeys(sharing)), routes(design, layout))
        sharers = _sharers(layout, world.process, self._modules, experts)
        self._update = Update(self._modules, sharers, world.process, self._communicator, training, watch)
        stages = {
            stage: LocalStage(
                module,
                training.precision,
                world.device,
                self._scale,
                split=stage in layout.split_stages(),
                recomputed=design.pipeline.recomputes(stage),
                compiled=training.compile,
            )
            for stage, module in self._modules.items()
        }
        clock, streams = make_clock(world.device), make_streams(world.device)
        self.trace = StepTrace(clock)
        for number, layer in self._expert_layers().items():
            layer.record_steps(self.trace.recorder(number))
        self._executor = Executor(layout, world.process, stages, self._communicator, self._update, clock, streams)
        self._wanted = layout.microbatches(layout.rank(world.process))
        self.notes = self._of_compiling(stages.values()) if training.compile else []
        """What a person should know of how it trains."""

    def _of_compiling(self, stages: Iterable[LocalStage]) -> list[str]:
        """How many blocks of all processes torch compiles."""
        held = sum(len(module.layers) for module in self._modules.values())
        own = sum(stage.compiled for stage in stages)
        compiled, blocks = map(int, self._communicator.total([own, held]).tolist())
        told = f"torch.compile: {compiled} of the {blocks} blocks that processes hold are compiled"
        rest = "the others, which put off gradients or exchange something inside, run as they are"
        return [told if compiled == blocks else f"{told}; {rest}"]

    def step(self, number: int) -> Step:
        """Train on the global batch of step ``number``.

        All processes end a step together, since all need its loss; so a step starts together too.
        """
        began = time.perf_counter()
        measured = self._executor.run({mb: self._batches.microbatch(number, mb) for mb in self._wanted})
        losses = [] if self._cut else measured.losses  # those of the other cuts are the same
        own = sum(loss.double() * self._scale for loss in losses)
        loss, square = self._communicator.total([own, self._update.square]).tolist()
        return Step(loss, square**0.5, time.perf_counter() - began, measured)

    def held(self) -> dict[str, list[Tensor]]:
        """What is there also between two steps, by what it is for."""
        return {"weights": list(self.parameters().values()), "optimizer": self._update.state}

    def state(self) -> dict[str, Part]:
        """The parts of the training state that this process holds: weights, and what the optimizer keeps of them."""
        named = (pair for module in self._modules.values() for pair in module.named_parameters())
        weights = {f"{WEIGHTS}{name}": Part(weight.detach(), weight_shard(weight)) for name, weight in named}
        moments = {name: Part(kept, weight_shard(weight)) for name, weight, kept in self._update.named_moments()}
        return {**weights, **moments}

    def resume(self, folder: Path) -> int:
        """Load a checkpoint and return the number of steps that it is after.

        Raises:
            RunError: a file is missing or damaged, or the checkpoint is of another model.
        """
        steps = load(folder, self.state())
        self._update.resume(steps)
        return steps

    def is_agreed(self, wish: bool) -> bool:
        """Return True on all processes if it is the wish of any of them."""
        return bool(self._communicator.total([float(wish)])[0] > 0)

    def routed(self) -> dict[int, list[float]]:
        """By layer of the model the routes to each expert so far; see :attr:`ExpertLayer.route_counts`."""
        return {number: layer.route_counts for number, layer in self._expert_layers().items()}

    def _expert_layers(self) -> dict[int, ExpertLayer]:
        """Those of this process, by their number in the model."""
        return {
            int(name.split(".")[1]): part
            for module in self._modules.values()
            for name, part in module.named_modules()
            if isinstance(part, ExpertLayer)
        }

    def cuts(self) -> dict[str, WeightShard]:
        """Which parts of the whole model's weights this process holds, of those that are cut."""
        named = (pair for module in self._modules.values() for pair in module.named_parameters())
        return {name: cut for name, parameter in named if (cut := weight_shard(parameter))}

    def parameters(self) -> dict[str, Tensor]:
        """The weights of this process under their names in the whole model."""
        return {name: p.detach() for module in self._modules.values() for name, p in module.named_parameters()}


def routes(design: Design, layout: ProcessLayout) -> BoundaryTransfers:
    """The boundaries at which tensors change their cuts, with processes for devices."""
    process = {
        device: layout.process(rank, lane)
        for rank, mesh in enumerate(design.meshes)
        for lane, device in enumerate(mesh.devices)
    }
    return {
        (source, target, tensors): renamed(crossing(design, source, target, tensors), process)
        for source, target, tensors in layout.message_sizes()
        if not is_direct(design.meshes[source], design.meshes[target])
    }


def _sharers(
    layout: ProcessLayout, process: int, modules: Mapping[int, nn.Module], experts: ExpertLayers | None
) -> Sharers:
    """Who shares a weight: the processes that hold the same cut of it. A weight that is not cut is held by
    those of all cuts, whose gradients are the same, and counts once. Expert layers say it of their own."""
    owner = {p: part for module in modules.values() for part in expert_layers(module) for p in part.parameters()}

    def sharers(stage: int, parameter: nn.Parameter) -> tuple[tuple[int, ...], int]:
        if experts and parameter in owner:
            told = experts.sharers(stage, owner[parameter], parameter)
            if told:
                return told, told[0]
        members = layout.stage_processes(stage, layout.tp_index(process))
        return members, members[0] if weight_shard(parameter) else layout.stage_processes(stage)[0]

    return sharers
