"""Trainer of one process: its stages, its share of the data, and its executor."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import lcm
from pathlib import Path

import torch
from torch import Tensor, nn

from meshwave.engine.costs.boundary_transfers import boundary_tensor, boundary_transfer, is_direct, renumber_ranks
from meshwave.engine.costs.gradient_buckets import Buckets, gradient_buckets
from meshwave.engine.costs.padded_documents import (
    length_multiple,
    possible_lengths,
    shares_lengths,
    shorten_sequences,
)
from meshwave.engine.document import Design
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.findings import Refusal
from meshwave.engine.program.action import Op
from meshwave.engine.runs.training_windows import training_part
from meshwave.engine.runtime.communication.communicator import BoundaryTransfers, MessageFormat
from meshwave.engine.runtime.communication.groups import Group
from meshwave.engine.runtime.communication.process_layout import ProcessLayout
from meshwave.engine.runtime.communication.world import World
from meshwave.engine.runtime.device.accelerator import device_name
from meshwave.engine.runtime.device.clock import make_clock
from meshwave.engine.runtime.device.streams import make_streams
from meshwave.engine.runtime.execution.checkpoint import Loaded, Part, load_newest_checkpoint
from meshwave.engine.runtime.execution.data import Microbatch, Padding, TrainingBatches
from meshwave.engine.runtime.execution.executor import Executor
from meshwave.engine.runtime.execution.initial_weights import load_initial_weights
from meshwave.engine.runtime.execution.job import Job, RunNote
from meshwave.engine.runtime.execution.sharded_update import ShardedUpdate, separate_tied_weight
from meshwave.engine.runtime.execution.stages import DTYPES, MESSAGE_DTYPES, LocalStage
from meshwave.engine.runtime.execution.step_progress import Progress, StepTimes
from meshwave.engine.runtime.execution.update import TIED_WEIGHT, GradientObserver, OptimizerUpdate, WeightGroup
from meshwave.engine.runtime.experts.build import ExpertLayers, expert_layers
from meshwave.engine.runtime.experts.layer import ExpertLayer
from meshwave.engine.runtime.experts.rebalance import PlacementChange, Rebalancer
from meshwave.engine.runtime.experts.step_times import StepTrace
from meshwave.engine.runtime.models import Stage, build_stage
from meshwave.engine.runtime.models.transformer import Head
from meshwave.engine.runtime.modules.attention_kernels import use_attention_kernel
from meshwave.engine.runtime.modules.context_share import ContextShare, balanced_chunks
from meshwave.engine.runtime.modules.products import MULTIPLE, multiplies_float8, use_float8
from meshwave.engine.runtime.modules.recomputation import recompute_layers
from meshwave.engine.runtime.modules.tensor_parallel import WeightShard, has_partial_gradient, weight_shard


@dataclass(frozen=True)
class TrainingStep:
    """Result of a training step; the loss and the gradient norm are those of the global batch."""

    loss: float
    grad_norm: float  # before clipping
    seconds: float
    times: StepTimes


class Trainer:
    """Trainer of the stages of one process, synchronized with the other processes of the run."""

    def __init__(self, job: Job, world: World, observer: GradientObserver | None = None) -> None:
        """Build the stages of this process and connect it to the other processes.

        Args:
            job: the design and its program.
            world: this process and its connection to the others.
            observer: receives the reduced gradients of each step, before clipping; None for no observer.

        Raises:
            InputError: the number of processes, the text or the vocabulary does not fit the design.
        """
        design, program, layout, process = job.design, job.program, job.layout, world.process
        job.check_process_count(world.size)
        training, model, rank = design.training, design.model, layout.rank(process)
        unshards = (program.op[program.rows(rank)] == Op.UNSHARD).any()
        gathers_blocks = training.sharding == "parameters" and not unshards
        if gathers_blocks and program.fused.any() and world.device.type != "cpu":
            raise Refusal("sharded_slots")
        self._learning_rate = training.learning_rate
        self._model = model
        shape = layout.mesh_shape(process)
        rows = boundary_tensor(design).shape[0] * shape.cp // shape.dp  # sequences per microbatch in this process
        first_row = layout.dp_index(process) // shape.cp * rows
        # devices that divide the tokens of a message
        self._token_holders = shape.cp * (shape.tp if training.sequence_parallel else 1)
        make_batches = partial(
            TrainingBatches,
            job.text,
            model,
            seed=training.seed,
            microbatches=program.microbatches,
            micro_batch_size=training.micro_batch_size,
            share=range(first_row, first_row + rows),
            document_end=training.document_end_id,
            padding=document_padding(design),
            device=world.device,
        )
        trained_part = training_part(training)
        self._batches = make_batches(part=trained_part)
        dtype = DTYPES[training.precision]
        self._scale = 1 / (shape.dp * program.microbatches)
        self._tp_index = layout.tp_index(process)
        experts = ExpertLayers(design, layout) if model.moe else None
        members = [*layout.tp_groups(), *layout.cp_groups(), *(experts.required_groups() if experts else ())]
        groups = world.make_groups(members)
        share = _context_share(design, groups[layout.cp_group(process)])
        make_experts = experts.factory(process, groups, self._scale, dtype, world.device) if experts else None
        tp_group = replace(groups[layout.tp_group(process)], divides_tokens=training.sequence_parallel)
        build = partial(build_stage, group=tp_group, experts=make_experts, share=share)
        self._modules = {
            stage: build(model, job.layers, stage, training.seed, dtype, world.device)
            for stage in program.stages_of(rank)
        }
        tokens = model.sequence // shape.cp
        tokens = len(tp_group.own_range(tokens)) if training.sequence_parallel else tokens
        tied = _tied_processes(design, layout)
        if tied:
            separate_tied_weight(self._modules) if training.sharding != "none" else _share_tied_weight(self._modules)
        message = MessageFormat((rows, tokens, model.hidden), MESSAGE_DTYPES[training.precision])
        reduced = list(range(program.stages)) if training.shards_gradients else layout.stages_with(Op.REDUCE_GRAD)
        gradient_groups = layout.gradient_groups(reduced)
        if training.sequence_parallel:
            everyone = [(stage, layout.processes_of_stage(stage)) for stage in reduced]
            gradient_groups += [(stage, members) for stage, members in everyone if len(members) > 1]
        gradient_groups += experts.gradient_groups(reduced) if experts else ()
        gradient_groups += [(0, members) for members in sorted(set(tied.values())) if len(members) > 1]
        transfers = plan_boundary_transfers(design, layout, tokens, possible_lengths(design))
        self._communicator = world.make_communicator(layout, message, list(dict.fromkeys(gradient_groups)), transfers)
        weight_group = _bind_weight_group(layout, process, self._modules, experts)
        buckets = _stage_buckets(design, job)
        update = (
            self._modules,
            weight_group,
            process,
            self._communicator,
            training,
            observer,
            tied.get(process),
            buckets,
        )
        self._update = (
            OptimizerUpdate(*update)
            if training.sharding == "none"
            else ShardedUpdate(*update, gathers_blocks=gathers_blocks)
        )
        stages = {
            stage: LocalStage(
                module,
                training.precision,
                world.device,
                self._scale,
                splits_backward=stage in layout.split_stages(),
                recomputes=design.pipeline.recomputes(stage),
                compiles=training.compile and training.sharding == "none",
                offload=training.activation_offload,
                sharded=self._update.sharded_stage(stage),
                buckets=buckets.get(stage, ()),
            )
            for stage, module in self._modules.items()
        }
        if training.attention_kernel != "default":
            parts_of_stages = [part for module in self._modules.values() for part in module.modules()]
            computed = torch.bfloat16 if training.precision == "bf16" else dtype
            use_attention_kernel(parts_of_stages, training.attention_kernel, model, computed, world.device)
        if (part := design.pipeline.recomputed_part) is not None:
            for module in self._modules.values():
                recompute_layers(module.layers.values(), part)
        self.notes = self._use_float8(world.device) if training.linear_precision == "fp8" else []
        """Notes for the user about how the run trains."""
        streams = make_streams(world.device, alternates=not gathers_blocks)
        clock = make_clock(world.device)
        self.trace = StepTrace(clock)
        for number, layer in self._expert_layers().items():
            layer.record_steps(self.trace.recorder(number))
        parts = layout, process, stages, self._communicator, self._update, clock, streams
        self._executor = Executor(*parts)
        self._stages = stages
        if training.eval_every is not None:
            self._evaluator = Executor(*parts, forwards_only=True, progress=self._executor.progress)
            self._held_out = make_batches(part=trained_part._replace(is_held_out=True))
        self._eval_batches, self._pads = training.eval_batches, training.pad_documents
        if experts is not None and design.experts.rebalance_steps is not None:
            holders = [program.ranks_of(stage)[0] for stage, count in enumerate(job.layers) for _ in range(count)]
            ranks = {number: holders[number] for number in model.expert_blocks}
            self._rebalancer = Rebalancer(
                design, experts, ranks, self._expert_layers(), self._update, self._communicator
            )
        self._own_microbatches = layout.microbatches(rank, inner=training.document_end is not None)
        self.notes += self._compilation_notes(stages.values()) if training.compile else []

    def _use_float8(self, device: torch.device) -> list[RunNote]:
        """Let the layers multiply in fp8, and return a note with the number of linear layers that do."""
        if not multiplies_float8(device):
            raise Refusal("no_float8", {"device": device_name(device)})
        parts = (part for stage in self._modules.values() for part in stage.layers.modules())
        found = [use_float8(parts), *(layer.use_float8() for layer in self._expert_layers().values())]
        own = [sum(counts) for counts in zip(*found, strict=True)]
        chosen, linear = map(int, self._communicator.sum_over_processes(own).tolist())
        note = f"fp8: {chosen} of {linear} linear layers (over all processes) multiply in fp8"
        rest = f"; the sizes of the others are not multiples of {MULTIPLE}" if chosen < linear else ""
        return [RunNote(note + rest)]

    def _compilation_notes(self, stages: Iterable[LocalStage]) -> list[RunNote]:
        """Return a note with the number of blocks that torch compiles in all processes."""
        own = [sum(stage.compiled_blocks for stage in stages), sum(len(each.layers) for each in self._modules.values())]
        compiled, blocks = map(int, self._communicator.sum_over_processes(own).tolist())
        note = f"torch.compile: {compiled} of {blocks} blocks (over all processes) are compiled"
        rest = "the others defer gradients or contain communication and are not compiled"
        return [RunNote(note if compiled == blocks else f"{note}; {rest}")]

    @property
    def progress(self) -> Progress:
        """Position of this process in its program."""
        return self._executor.progress

    def step(self, number: int) -> TrainingStep:
        """Train on the global batch of step ``number``.

        All processes need the loss of a step, so they end a step together and start the next one together.
        """
        began = time.perf_counter()
        self._update.optimizer.lr = self._learning_rate(number)
        times = self._executor.run(self._read(self._batches, number))
        losses = [] if self._tp_index else times.losses  # a tensor-parallel group has one loss
        own = sum(loss.double() * self._scale for loss in losses)
        loss, squared_norm = self._communicator.sum_over_processes([own, self._update.squared_norm]).tolist()
        return TrainingStep(loss, squared_norm**0.5, time.perf_counter() - began, times)

    def _read(self, batches: TrainingBatches, step: int) -> dict[int, Microbatch]:
        """Return the microbatches of a step; messages have the length to which they are padded."""
        found = {mb: batches.microbatch(step, mb) for mb in self._own_microbatches}
        if self._pads:
            holders = self._token_holders
            self._communicator.tokens = {mb: each.inputs.shape[1] // holders for mb, each in found.items()}
        return found

    def evaluate(self) -> float:
        """Return the mean loss of the batches of an evaluation; all processes call it between the same steps."""
        own = torch.zeros((), dtype=torch.float64)
        self.trace.is_on = False  # its steps would be recorded as those of the next step
        for stage in self._stages.values():
            stage.evaluates = True
        try:
            for batch in range(self._eval_batches):
                self.progress.begin(self.progress.step, batch + 1)
                losses = self._evaluator.run(self._read(self._held_out, batch)).losses
                own += sum(float(loss) * self._scale for loss in losses if not self._tp_index)
        finally:
            for stage in self._stages.values():
                stage.evaluates = False
        return float(self._communicator.sum_over_processes([own])[0]) / self._eval_batches

    def resident_tensors(self) -> dict[str, list[Tensor]]:
        """Return the tensors that stay allocated between steps, by category."""
        return {"weights": self._update.resident_weights, "optimizer": self._update.state}

    def state(self) -> dict[str, Part]:
        """Return the parts of the training state that this process holds: weights, and the optimizer's moments."""
        return self._update.parts()

    def resume(self, run_folder: Path) -> Loaded:
        """Load the newest intact checkpoint of a run, if it has one.

        Raises:
            RunError: all checkpoints are damaged, or the checkpoint belongs to another model.
        """
        loaded = load_newest_checkpoint(run_folder, self.state())
        if loaded.steps:
            self._update.resume(loaded.steps)
        return loaded

    def start_from(self, files: Sequence[Path]) -> None:
        """Set the weights to those of a checkpoint of safetensors files.

        Raises:
            InputError: a tensor is missing or has another shape, or a file is damaged.
        """
        assert isinstance(self._model, LanguageModel), "checked at the launch"
        load_initial_weights(files, self._model, self.state())
        self._update.resume(0)

    def is_true_on_any(self, flag: bool) -> bool:
        """Return True on all processes if at least one of them passes True."""
        return bool(self._communicator.sum_over_processes([float(flag)])[0] > 0)

    def rebalance(self) -> list[PlacementChange]:
        """Move experts if their measured load is uneven; all processes call it between the same steps."""
        return self._rebalancer.rebalance()

    def expert_routes(self) -> dict[int, list[float]]:
        """Return the number of routes to each expert so far, by layer number; see :attr:`ExpertLayer.route_counts`."""
        return {number: layer.route_counts for number, layer in self._expert_layers().items()}

    def _expert_layers(self) -> dict[int, ExpertLayer]:
        """Return the expert layers of this process by number of the layer in the model."""
        return {
            int(name.split(".")[1]): part
            for module in self._modules.values()
            for name, part in module.named_modules()
            if isinstance(part, ExpertLayer)
        }

    def weight_shards(self) -> dict[str, WeightShard]:
        """Return the part of each sharded weight that this process holds, by name."""
        return {name: shard for name, parameter in self._update.named_parameters if (shard := weight_shard(parameter))}

    def parameters(self) -> dict[str, Tensor]:
        """Return the weights of this process by name in the whole model; all processes of a mesh call it together."""
        return self._update.whole_weights()


def _context_share(design: Design, group: Group) -> ContextShare | None:
    """Return the tokens of a member of a context-parallel group; None if no mesh divides sequences."""
    degree = lcm(*(mesh.cp for mesh in design.meshes))
    if degree == 1:
        return None
    return ContextShare(group, balanced_chunks(design.model.sequence, degree), design.training.context_parallel)


def _stage_buckets(design: Design, job: Job) -> dict[int, Buckets]:
    """Return the blocks of each bucket of gradients of the stages that the program reduces in buckets."""
    reduced = job.program.stage[(job.program.op == Op.REDUCE_GRAD) & (job.program.microbatch >= 0)]
    buckets = gradient_buckets(design, job.layers) if len(reduced) else []
    return {stage: buckets[stage] for stage in sorted(set(reduced.tolist()))}


def _tied_processes(design: Design, layout: ProcessLayout) -> dict[int, tuple[int, ...]]:
    """Return the processes that sum the gradient of the embedding table, for each process that holds it or its copy.

    A sharded table has a copy on the last stage even if that is the first one.
    """
    stages, is_sharded = layout.program.stages, design.training.sharding != "none"
    if not design.model.architecture.copies_embedding or not (stages > 1 or is_sharded):
        return {}
    holders = {process for stage in (0, stages - 1) for process in layout.processes_of_stage(stage)}
    find = layout.tied_owners if is_sharded else lambda process: layout.tied_processes(layout.tp_index(process))
    return {process: find(process) for process in holders}


def _share_tied_weight(modules: Mapping[int, Stage]) -> None:
    """Tie the copy of the embedding table in the head to the embedding if both stages are in this process."""
    weights = {name: weight for module in modules.values() for name, weight in module.named_parameters()}
    heads = (module.head for module in modules.values() if isinstance(module.head, Head))
    for head in heads:
        if TIED_WEIGHT in weights:
            head.tie_weights(weights[TIED_WEIGHT])


def document_padding(design: Design) -> Padding | None:
    """Return the padding of the documents of a design; None if each sequence is whole."""
    if not design.training.pad_documents:
        return None
    sizes = [mesh.data_parallel for mesh in design.meshes]
    rows = range(design.training.micro_batch_size * sizes[0]) if shares_lengths(design) else None
    return Padding(length_multiple(design), rows, len(set(sizes)) > 1)


def plan_boundary_transfers(
    design: Design, layout: ProcessLayout, tokens: int, lengths: Iterable[int]
) -> BoundaryTransfers:
    """Return the transfers of boundaries at which tensors are resharded; their ranks are processes.

    Args:
        design: the design.
        layout: its processes.
        tokens: tokens of each whole sequence in a message of this process.
        lengths: tokens that a sequence can have.
    """
    process = {
        device: layout.process(rank, lane)
        for rank, mesh in enumerate(design.meshes)
        for lane, device in enumerate(mesh.ordered_devices)
    }
    planned = [each for each in layout.message_sizes() if not is_direct(design, *each[:2])]
    by_length = {
        length * tokens // design.model.sequence: shorten_sequences(design, length) for length in lengths if planned
    }
    return {
        (*sizes, own): renumber_ranks(boundary_transfer(shortened, *sizes), process)
        for sizes in planned
        for own, shortened in by_length.items()
    }


def _bind_weight_group(
    layout: ProcessLayout, process: int, modules: Mapping[int, nn.Module], experts: ExpertLayers | None
) -> WeightGroup:
    """Return a function that returns the processes that reduce the gradient of a weight, and the one that counts it.

    These processes hold the same shard of the weight. A weight that is not sharded has the same gradient on all
    processes of a tensor-parallel group; its norm counts once, or in parts with sequence parallelism. Expert layers
    have separate groups.
    """
    owner = {p: part for module in modules.values() for part in expert_layers(module) for p in part.parameters()}

    def weight_group(stage: int, parameter: nn.Parameter) -> tuple[tuple[int, ...], int]:
        if experts and parameter in owner:
            members = experts.processes_sharing_weight(stage, owner[parameter], parameter)
            if members:
                return members, members[0]
        if has_partial_gradient(parameter):
            members = layout.processes_of_stage(stage)
            return members, members[0]
        members = layout.stage_processes(stage, layout.tp_index(process))
        return members, members[0] if weight_shard(parameter) else layout.stage_processes(stage)[0]

    return weight_group
