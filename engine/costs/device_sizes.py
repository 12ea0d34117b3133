"""Memory and messages of every device: parameters, activations, buffers, and sent bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs import flops, stage_memory, transformer_layers
from meshwave.engine.costs.block_models import BlockModel
from meshwave.engine.costs.boundary_transfers import boundary_bytes
from meshwave.engine.costs.distinct_actions import Kinds
from meshwave.engine.costs.expert_blocks import ExpertBlocks, ExpertCounts, expert_blocks, expert_counts
from meshwave.engine.costs.operators import Kernels, Workload, element_sizes
from meshwave.engine.costs.packed_documents import mean_attended_share
from meshwave.engine.costs.sharding import StateBytes, state_bytes, state_shares, unsharded_bytes
from meshwave.engine.costs.transformer_layers import Sparse
from meshwave.engine.document import Design, Mesh
from meshwave.engine.document.expert_layers import COMMON
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.program.acknowledgements import find_acknowledgements
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program

Floats = NDArray[np.float64]


class StageSizes(NamedTuple):
    """Sizes of one stage for one microbatch on one device: numbers of parameters, otherwise bytes."""

    parameters: float
    copied: float
    """Number of parameters of which mixed precision keeps a second copy."""
    kept: float
    recomputed: float
    """Bytes kept instead of ``kept`` if the stage is recomputed."""
    outputs: float
    """Part of ``kept`` that consists of outputs of the stage."""
    deferred: float
    transient: float
    neighbours: tuple[float, float]
    """Numbers of parameters and of copied parameters of the two largest adjacent blocks."""
    partial: float = 0.0
    """Number of parameters whose gradients a device has for its own tokens only; see :func:`partial_parameters`."""


class Sizes(NamedTuple):
    """Memory and parameters of one device of each rank."""

    parameters: Floats  # [ranks, stages] parameters of one device; 0 if a rank does not hold the stage
    reduced: Floats  # [ranks, stages] part of ``parameters`` whose gradients REDUCE_GRAD sums; STEP sums those of a tied table
    partial: Floats  # [ranks, stages] part of ``reduced`` that whole meshes sum; see :func:`partial_parameters`
    own: Floats  # [ranks, stages] parameters whose state is on the device; all of them without sharding
    computed_bytes: Floats  # [ranks, stages] bytes of the weights in the compute precision
    gates: Floats  # [ranks, stages] part of ``parameters`` that belongs to gates
    experts: Floats  # [ranks, stages] part of ``parameters`` that belongs to experts
    static_bytes: Mapping[str, Floats]  # [ranks] bytes of weights, gradients and optimizer
    activation_bytes: Floats  # [stages] bytes kept for one microbatch from its forward to its backward
    offloaded_bytes: Floats  # [stages] bytes in host memory for one microbatch between its forward and its backward
    deferred_bytes: Floats  # [stages] bytes kept for one microbatch between the halves of a split backward
    working_bytes: Floats  # [ranks] bytes of the largest transient, and of the buffers of messages in flight
    buckets: Sequence[Sizes] = ()  # [buckets] the same with only the parameters of each bucket of gradients


def device_workload(design: Design, mesh: Mesh) -> Workload:
    """Return the work of one device of ``mesh`` for one microbatch.

    A microbatch has ``micro_batch_size`` sequences on each data-parallel replica of the first mesh; a mesh with another
    ``dp`` divides the same sequences differently. Context-parallel devices share the tokens of a sequence, each with a
    balanced part of a causal mask.
    """
    first = design.meshes[0]
    batch = design.training.micro_batch_size * first.data_parallel / mesh.dp
    model, precision = design.model, element_sizes(design.training)
    recomputes = design.pipeline.recomputed_part
    if isinstance(model, BlockModel):
        if recomputes == "operators":
            recomputes = "layers-early-stop"  # convolutions are run again
        return replace(model.workload(batch), precision=precision, kernels=Kernels(recomputes=recomputes))
    assert isinstance(model, LanguageModel), "a model is one or the other"
    load = Workload.from_model(model, batch=batch, tp=mesh.tp)
    is_sequence_parallel = design.training.sequence_parallel and mesh.tp > 1
    kernels = Kernels(
        linear="product" if design.training.linear_precision == "same" else design.training.linear_precision,
        fuses_elementwise=design.training.compile,
        attention=design.training.attention_kernel,
        recomputes=recomputes,
        overlaps_tensor_parallel=design.training.tensor_parallel_overlap,
        blocks_launches=design.training.blocking_launches,
        graphs=design.training.cuda_graphs,
    )
    return replace(
        load,
        precision=precision,
        attended_share=mean_attended_share(design, mesh),
        sequence_parallel=is_sequence_parallel,
        separates_table=model.architecture.copies_embedding and design.training.sharding != "none",
        kernels=kernels,
        cp=mesh.cp,
        context_exchange=design.training.context_parallel,
    )


def workloads(design: Design) -> list[Workload]:
    """Return the work of one device of each mesh, ``[meshes]``; meshes of equal sizes share one object."""
    found = {(mesh.data_parallel, mesh.cp, mesh.tp): mesh for mesh in design.meshes}
    of_sizes = {sizes: device_workload(design, mesh) for sizes, mesh in found.items()}
    return [of_sizes[mesh.data_parallel, mesh.cp, mesh.tp] for mesh in design.meshes]


def stage_copies(program: Program) -> Iterator[tuple[int, int]]:
    """Yield each (rank, stage) for which the rank holds a replica of the stage."""
    for route in program.placement.tolist():
        yield from ((rank, stage) for stage, rank in enumerate(route))


def skip_joins_per_stage(design: Design, layers: Sequence[int]) -> tuple[int, ...]:
    """Return the number of layers of each stage in which a skip connection ends, ``[stages]``."""
    joins = [target for _, target in design.model.skips]
    ends = list(accumulate(layers))
    return tuple(sum(end - n <= join < end for join in joins) for n, end in zip(layers, ends, strict=True))


def kept_skip_tensors(design: Design, program: Program, layers: Sequence[int]) -> NDArray[np.int64]:
    """Return the numbers of received and of other skip tensors kept until the backward of a stage, ``[2, stages]``.

    The others are copies: several concatenated tensors, or one that is sent along with the output. A single tensor for
    a later stage is the input of a norm and is counted there. If the first layer joins a skip connection, the stage
    also keeps the result of the join.
    """
    kept = np.zeros((2, program.stages), np.int64)
    for source, target, tensors in program.skips.tolist():
        kept[0, target] += tensors
        kept[1, source] += tensors if tensors > 1 or target == source + 1 else 0
    starts = list(accumulate(layers, initial=0))[:-1]
    joins = {target for _, target in design.model.skips}
    kept[1] += [stage > 0 and start in joins for stage, start in enumerate(starts)]
    return kept


def device_sizes(design: Design, program: Program, layers: Sequence[int], device: int | None = None) -> Sizes:
    """Return the memory that the fullest device of each rank needs, or a ``device`` of each group that shares experts.

    Weights, gradients and optimizer states cover all stages of a rank, by precision (arXiv:1910.02054, section 3.1: 16
    bytes per parameter with AdamW and fp32, 18 with mixed precision and fp32 gradients), divided as in
    :mod:`meshwave.engine.costs.sharding`. At any time, two consecutive blocks have gathered weights, or gradients that
    are not yet scattered. If replicas of a stage are on meshes of different shape, its activations are those of the
    larger device.

    A recomputed stage keeps its input, and its activations are part of the working set of its backward. Tensors of skip
    connections are kept with the inputs and outputs of a stage. Offloaded activations of one layer are being copied, and
    are part of the working set.
    """
    parameters, reduced, partial, own, copied, own_copied, gates, experts = np.zeros((8, program.ranks, program.stages))
    activations, offloads, deferred = np.zeros((3, program.stages))
    transients, gathered = np.zeros((2, program.ranks))
    holders = [tuple(program.ranks_of(stage)) for stage in range(program.stages)]
    shares_on = {ranks: state_shares(design, [design.meshes[rank] for rank in ranks], device) for ranks in set(holders)}
    precision = element_sizes(design.training)
    loads = workloads(design)
    blocks = [expert_blocks(design, mesh, load, device) for mesh, load in zip(design.meshes, loads, strict=True)]
    with_experts = expert_counts(design, layers)
    stage_sizes = _stage_sizes(design, program, layers)
    for rank, stage in stage_copies(program):
        load, shares = loads[rank], shares_on[holders[stage]]
        for number, count in with_experts[stage].items():
            gates[rank, stage] += count * blocks[rank][number].gate_parameters
            experts[rank, stage] += count * blocks[rank][number].expert_parameters
        held = stage_sizes(stage, load, blocks[rank])
        table = _table_of_first_stage(design, program, rank, stage, load)
        parameters[rank, stage], copied[rank, stage] = held.parameters, held.copied
        parameters[rank, stage] -= 0.0 if load.separates_table else table
        of_experts = float(experts[rank, stage])
        dense = held.parameters - of_experts - table
        own[rank, stage] = dense * shares.dense + of_experts * shares.experts
        is_end = stage in (0, program.stages - 1) and not table
        reduced[rank, stage] = parameters[rank, stage] - is_end * table_of_step(design, program.stages, load)
        partial[rank, stage] = held.partial
        copied_table = table if load.separates_table else 0.0
        copied_dense = held.copied - of_experts - copied_table
        own_copied[rank, stage] = copied_dense * shares.dense + of_experts * shares.experts
        gathered[rank] = max(gathered[rank], unsharded_bytes(design, design.meshes[rank], *held.neighbours))
        kept, transient = held.kept, held.transient
        if design.pipeline.recomputes(stage):
            kept, transient = held.recomputed, transient + kept
        else:
            offloaded = design.training.activation_offload * (kept - held.recomputed - held.outputs)
            kept, transient = kept - offloaded, transient + offloaded / layers[stage]
            offloads[stage] = max(offloads[stage], offloaded)
        activations[stage] = max(activations[stage], kept)
        deferred[stage] = max(deferred[stage], held.deferred)
        transients[rank] = max(transients[rank], transient)
    columns = (each.sum(axis=1).tolist() for each in (parameters, copied, own, own_copied))
    states = [state_bytes(design.training, *column) for column in zip(*columns, strict=True)]
    return Sizes(
        parameters=parameters,
        reduced=reduced,
        partial=partial,
        own=own,
        computed_bytes=precision.computed_bytes(parameters, copied),
        gates=gates,
        experts=experts,
        static_bytes={name: np.array([state._asdict()[name] for state in states]) for name in StateBytes._fields},
        activation_bytes=activations,
        offloaded_bytes=offloads,
        deferred_bytes=deferred,
        working_bytes=transients
        + gathered
        + _buffered_units(program) * np.array([load.residual_stream.hidden_bytes for load in loads]),
    )


def _table_of_first_stage(design: Design, program: Program, rank: int, stage: int, load: Workload) -> float:
    """Return the parameters of a head that is tied to the embedding of another stage on the same rank.

    Both stages use one table. If the state is sharded, the head has a copy of the weights, but no state of its own.
    """
    is_head = stage == program.stages - 1 > 0 and rank in program.ranks_of(0)
    return load.table_parameters if is_head and design.model.architecture.copies_embedding else 0.0


def table_of_step(design: Design, stages: int, load: Workload) -> float:
    """Return the parameters of a table whose gradients STEP sums instead of REDUCE_GRAD; 0 if there is none.

    The first and the last stage share it. If the state is sharded, REDUCE_GRAD sums the gradients of each copy before.
    """
    is_shared = design.model.architecture.copies_embedding and stages > 1 and design.training.sharding == "none"
    return load.table_parameters if is_shared else 0.0


ROW_PRODUCTS = {"attention output", "feed-forward out"}
"""Names of the operators whose results are summed over a tensor-parallel group; the gradient of their bias is whole."""


def partial_parameters(load: Workload, layers: int, joins: int, *, first: bool, last: bool) -> float:
    """Return the parameters of a stage that tensor parallelism does not divide, if it divides the tokens instead.

    With sequence parallelism, the gradients of norms and of other whole weights are sums over the tokens of a device, so
    that all devices of a mesh must sum them. Layers with experts count as dense ones; gates are counted apart. A sharded
    state of these weights counts as divided by data parallelism only.
    """
    tp = load.tp
    if not load.sequence_parallel or tp == 1:
        return 0.0

    def count(of_device: Workload) -> float:
        sparse = [Sparse(joins, transformer_layers.joining_layer_operators(of_device))] if joins else []
        return stage_memory.sum_over_stage(
            lambda operator: 0.0 if operator.name in ROW_PRODUCTS else operator.parameters,
            of_device,
            layers,
            first,
            last,
            sparse,
        )

    return (tp * count(load) - count(replace(load, tp=1))) / (tp - 1)


StageSizesOf = Callable[[int, Workload, ExpertBlocks], StageSizes]
"""Function that returns the sizes of a stage, given the workload of a device and the experts of its layers."""


def _stage_sizes(design: Design, program: Program, layers: Sequence[int]) -> StageSizesOf:
    if isinstance(design.model, BlockModel):
        return _block_stage_sizes(design.model, program, layers)
    return _transformer_stage_sizes(design, program, layers)


def _transformer_stage_sizes(design: Design, program: Program, layers: Sequence[int]) -> StageSizesOf:
    with_experts, joins, skipped = (
        expert_counts(design, layers),
        skip_joins_per_stage(design, layers),
        kept_skip_tensors(design, program, layers),
    )

    kinds = _kinds_of_layers(design, layers, with_experts)
    known: dict[tuple[Any, ...], StageSizes] = {}

    def sizes_of_stage(stage: int, load: Workload, blocks: ExpertBlocks) -> StageSizes:
        if with_experts[stage]:
            return sizes_of_new_stage(stage, load, blocks)
        key = load, kinds[stage], stage == 0, stage == program.stages - 1, *skipped[:, stage].tolist()
        if key not in known:
            known[key] = sizes_of_new_stage(stage, load, blocks)
        return known[key]

    def sizes_of_new_stage(stage: int, load: Workload, blocks: ExpertBlocks) -> StageSizes:
        ends = {"first": stage == 0, "last": stage == program.stages - 1}
        uncommon = [Sparse(count, blocks[number].operators) for number, count in with_experts[stage].items()]
        if joins[stage]:
            uncommon.append(Sparse(joins[stage], transformer_layers.joining_layer_operators(load)))
        how: dict[str, Any] = {**ends, "sparse": uncommon}
        came, held = skipped[:, stage] * load.residual_stream.hidden_bytes
        output = 0.0 if ends["last"] else load.residual_stream.hidden_bytes
        return StageSizes(
            parameters=flops.stage_parameters(load, layers[stage], **how),
            copied=flops.copied_parameters(load, layers[stage], **how),
            kept=flops.activation_bytes(load, layers[stage], **how) + came + held,
            recomputed=flops.input_bytes(load, **ends) + came,
            outputs=output + held,
            deferred=stage_memory.deferred_bytes(load, layers[stage], **how),
            transient=stage_memory.transient_bytes(load, layers[stage], **how),
            neighbours=stage_memory.largest_neighbours(load, kinds[stage], **how),
            partial=partial_parameters(load, layers[stage], joins[stage], **ends),
        )

    return sizes_of_stage


def _kinds_of_layers(
    design: Design, layers: Sequence[int], with_experts: Sequence[ExpertCounts]
) -> list[tuple[int, ...]]:
    """Return the kind of each layer, ``[stages][layers]``.

    It is 0, or for layers with experts 1 + the place of their number in ``with_experts`` of the stage, or for other
    layers in which a skip connection ends the next number.
    """
    routed, own = {*design.model.expert_blocks}, design.experts.own_layers
    targets, starts = {target for _, target in design.model.skips}, accumulate(layers, initial=0)

    def kind(layer: int, numbers: list[int]) -> int:
        if layer in routed:
            return 1 + numbers.index(layer if layer in own else COMMON)
        return 1 + len(numbers) if layer in targets else 0

    return [
        tuple(kind(layer, list(counts)) for layer in range(start, start + count))
        for start, count, counts in zip(starts, layers, with_experts, strict=False)
    ]


def _block_stage_sizes(model: BlockModel, program: Program, layers: Sequence[int]) -> StageSizesOf:
    skips = program.skips.tolist()

    def sizes_of_stage(stage: int, load: Workload, experts: ExpertBlocks) -> StageSizes:
        first, last, start = stage == 0, stage == program.stages - 1, sum(layers[:stage])
        operators = model.stage_operators(load, start, layers[stage], last=last)
        shared = model.shared_bytes(load)
        kept, transient = sum(each.kept_bytes for each in operators), max(each.transient_bytes for each in operators)
        if load.kernels.recomputes not in (None, "attention"):
            blocks = range(start, start + layers[stage])
            inside = [sum(each.kept_bytes for each in model.block_operators(load, block)) for block in blocks]
            inputs = sum(model.block_output_units(block) for block in blocks[:-1]) * load.hidden_bytes
            inputs -= (len(blocks) - 1) * shared
            inputs += model.block_operators(load, start)[0].kept_bytes if first else 0.0
            kept, transient = kept - sum(inside) + inputs, transient + max(inside)
        taken = model.input_units(layers, stage, skips) * load.hidden_bytes
        given = model.output_units(layers, stage, skips) * load.hidden_bytes
        return StageSizes(
            parameters=sum(each.parameters for each in operators),
            copied=sum(each.copied for each in operators),
            kept=kept + taken + given + (0.0 if first else shared),
            recomputed=model.input_bytes(load, taken, first=first, last=last),
            outputs=given,
            deferred=sum(each.deferred_bytes for each in operators) + shared,
            transient=transient,
            neighbours=model.largest_neighbours(load, start, layers[stage], last=last),
        )

    return sizes_of_stage


@lru_cache(maxsize=4)  # determined by the program alone: numbers of the design do not matter
def _buffered_units(program: Program) -> Floats:
    """Return the number of message units that a device of each rank buffers at once, ``[ranks]``.

    These are receives that were posted and not consumed, skip tensors for stages of the same rank, and the largest
    outgoing message.
    """
    sent = program.tensors * program.is_send
    leaving = [sent[first:end].max(initial=0) for first, end in pairwise(program.offsets)]
    return np.asarray(peak_per_rank(program, _buffer_changes(program)) + leaving)


def _buffer_changes(program: Program) -> Floats:
    """Return the change in buffered message units at each row, ``[rows]``.

    The number grows when a receive is posted or a tensor is made for a later stage of the rank, and shrinks when a
    computation consumes it.
    """
    table = program.tables
    found = []
    for op, takers in ((Op.RECV_F, table.forward), (Op.RECV_B, table.backward)):
        rows = np.flatnonzero(program.op == op)
        found.append((rows, takers[program.stage[rows], program.microbatch[rows]]))
    rows, taker = (np.concatenate(column) for column in zip(*found, strict=True))
    held = program.tensors[rows]
    change: Floats = -np.bincount(taker, held, minlength=len(program)).astype(np.float64)
    change[rows] += held
    for source, target, tensors in program.skips.tolist():
        if target > source + 1:
            for maker, taker in (
                (table.forward[source], table.forward[target]),
                (table.backward[target], table.backward[source]),
            ):
                here = program.rank[maker] == program.rank[taker]
                change[maker[here]] += tensors
                change[taker[here]] -= tensors
    return change


def sent_byte_changes(program: Program, size: Floats) -> Floats:
    """Return the change of unacknowledged sent bytes at each forward and backward, ``[2, stages, microbatches]``.

    Args:
        program: the program.
        size: [rows] bytes that a row sends. They are added at the computation that makes them, and subtracted at the
            computation that receives an acknowledgement; see :mod:`meshwave.engine.program.acknowledgements`.
    """
    (send, maker, taker), answer = find_acknowledgements(program)
    change: Floats = np.bincount(maker, size[send], minlength=len(program) + 1).astype(np.float64)
    came = np.flatnonzero(answer >= 0)
    change -= np.bincount(taker[answer[came]], size[send[came]], minlength=len(program) + 1)
    return change[np.stack((program.tables.forward, program.tables.backward))]  # no bytes for a missing row


def peak_per_rank(program: Program, change: Floats) -> Floats:
    """Return the maximum of the running sum of ``change``, ``[rows]``, on each rank, ``[ranks]``."""
    alive = np.zeros(len(change) + 1)
    np.cumsum(change, out=alive[1:])
    highest = [alive[first : end + 1].max() for first, end in pairwise(program.offsets)]
    return np.array(highest) - alive[program.offsets[:-1]]


def message_bytes_by_kind(design: Design, kinds: Kinds, held: Sizes) -> Floats:
    """Return the bytes that one device sends, reduces or gathers, ``[kinds]``; 0 for other actions.

    For a SEND these are all bytes of the transfer divided by the number of source devices: with tensor parallelism,
    each device of the receiver gets the whole ``[b, s, h]`` of its replica.
    """
    size = np.zeros(len(kinds))
    columns = (kinds.rank, kinds.peer, kinds.tensors)
    ends = zip(*(column[kinds.sends].tolist() for column in columns), strict=True)
    size[kinds.sends] = [boundary_bytes(design, *each) for each in ends]
    reduces = kinds.indices_of(Op.REDUCE_GRAD)
    reduced = np.stack([gradient_bytes(design, each) for each in held.buckets])
    size[reduces] = reduced[kinds.bucket[reduces], kinds.stage[reduces]]
    unshards = kinds.indices_of(Op.UNSHARD)
    size[unshards] = held.computed_bytes[kinds.rank[unshards], kinds.stage[unshards]]
    return size


def gradient_bytes(design: Design, held: Sizes) -> Floats:
    """Return the gradient bytes that REDUCE_GRAD sums for each stage on one device, ``[stages]``."""
    return np.asarray(held.reduced.max(axis=0) * element_sizes(design.training).gradients)
