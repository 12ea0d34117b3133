"""Roofline costs: seconds from the shapes of the model and the data sheets of the cluster.

Each operator takes the longer of its FLOP time and its memory time. A message takes alpha plus bytes times beta on the
link between its two devices, as if it were alone; the simulation then shares links between messages
(:mod:`meshwave.engine.costs.network`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from meshwave.engine.costs import flops
from meshwave.engine.costs.alpha_beta import collective_seconds
from meshwave.engine.costs.block_models import BlockModel
from meshwave.engine.costs.boundary_transfers import boundary_seconds
from meshwave.engine.costs.collective_flows import (
    StateFlows,
    add_exchanges,
    add_state_flows,
    add_step_exchanges,
    blocks_of_stages,
    gather_messages,
    reduction_messages,
    step_messages,
)
from meshwave.engine.costs.contention import UNMEASURED_LINK, LinkSharing
from meshwave.engine.costs.cost_model import TRANSFER_MODEL_LABELS, CostModel, Floats
from meshwave.engine.costs.device_sizes import Sizes, device_workload, stage_copies
from meshwave.engine.costs.distinct_actions import Kinds
from meshwave.engine.costs.expert_blocks import expert_blocks
from meshwave.engine.costs.fabric import Fabric
from meshwave.engine.costs.gradient_buckets import last_operations, remaining_shares, uses_buckets
from meshwave.engine.costs.network import (
    NetworkBuilder,
    add_collective_flows,
    add_transfer_flows,
    serial_network,
)
from meshwave.engine.costs.operators import Workload
from meshwave.engine.costs.overlapped_slots import Pieces, overlapped_seconds, scale_pieces
from meshwave.engine.costs.reductions import norm_seconds, reduce_seconds, update_exchange_seconds
from meshwave.engine.costs.sharding import block_collectives
from meshwave.engine.costs.slot_pieces import SlotPieces
from meshwave.engine.costs.stage_balance import balanced_split, block_split, unequal_split
from meshwave.engine.costs.stage_costs import given_seconds
from meshwave.engine.costs.stage_prices import MeshPrices, Seconds
from meshwave.engine.document import Cluster, Design, Mesh
from meshwave.engine.document.cost import cost_models
from meshwave.engine.document.pipeline_problems import meshes_by_rank
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.shared_links import Network
from meshwave.engine.program.simulation import TransferModel


class OperatorCost(CostModel):
    """Cost model that prices stages by their operators, and messages by their links."""

    def layers_per_stage(self, design: Design) -> tuple[int, ...]:
        """Return the layers of each stage, balanced over forward and backward, including embedding and head."""
        prices = self.prices(design)
        holders = _stage_holders(design)
        last = len(holders) - 1
        again = [design.pipeline.recomputes(stage) for stage in range(len(holders))]
        if isinstance(design.model, BlockModel):
            return block_split(*_block_seconds(design, design.model, prices, holders))
        layer = [
            max(prices[rank].layer.total(recomputed=again[stage]) for rank in ranks)
            for stage, ranks in enumerate(holders)
        ]
        extra = [
            max(
                prices[rank].ends(first=stage == 0, last=stage == last).total(recomputed=again[stage]) for rank in ranks
            )
            for stage, ranks in enumerate(holders)
        ]
        moe, skips = design.model.moe, design.model.skips
        if moe is None and not skips:
            return balanced_split(design.model.layers, layer, extra)
        blocks = moe.blocks(design.model.layers) if moe else sorted(target for _, target in skips)
        uncommon = [
            max((each.expert_layer() if moe else each.joining_layer).total(recomputed=again[stage]) for each in priced)
            for stage, priced in enumerate([prices[rank] for rank in ranks] for ranks in holders)
        ]
        return unequal_split(design.model.layers, blocks, layer, uncommon, extra)

    def seconds(self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...], held: Sizes) -> Floats:
        table = self._computing_seconds(design, program, layers, held).max(axis=0)
        seconds = _seconds_by_kind(kinds, table)
        backward = table[Op.B].max(axis=0)
        seconds[kinds.sends] = _transfer_seconds(design, kinds)
        reduces = kinds.indices_of(Op.REDUCE_GRAD)
        if len(reduces):
            reductions = np.stack([self.reduce_seconds(design, program, each) for each in held.buckets])
            if not uses_buckets(design):
                reductions = exposed_reductions(design, reductions, backward)
            elif _slows_reductions(design):
                remaining = self.remaining_shares(design, program, layers) * _last_seconds(program, table)
                reductions = slowed_reductions(design, reductions, remaining)
            seconds[reduces] = reductions[kinds.bucket[reduces], kinds.stage[reduces]]
        unshards = kinds.indices_of(Op.UNSHARD)
        if len(unshards):
            gathers = _unshard_seconds(design, program, layers, self.prices(design))
            seconds[unshards] = gathers[kinds.rank[unshards], kinds.stage[unshards]]
        steps = kinds.indices_of(Op.STEP)
        seconds[steps] = self.step_seconds(design, program, held)[kinds.rank[steps]]
        return seconds

    def _computing_seconds(self, design: Design, program: Program, layers: tuple[int, ...], held: Sizes) -> Floats:
        """Return the seconds of F, B, I and W, and of the copies beside them, ``[2, op, ranks, stages]``."""
        table = _compute_seconds(design, program, layers, self.prices(design))
        copies = np.zeros_like(table)
        copies[[Op.F, Op.B, Op.I]] = self.copy_seconds(design, program, layers, held)
        return np.stack([table, copies])

    def block_seconds(self, design: Design, program: Program, layers: tuple[int, ...]) -> Floats:
        """Return the seconds of F, B, I and W alone, and of the copies beside them, ``[2, op, ranks, stages]``.

        An action takes as long as the longer of both.
        """
        held = self.sizes(design, program, layers)
        return self._computing_seconds(self.insert_measured_rates(design), program, layers, held)

    def copy_seconds(self, design: Design, program: Program, layers: tuple[int, ...], held: Sizes) -> Floats:
        """Return the seconds to copy the offloaded activations in F, B and I, ``[3, ranks, stages]`` or ``[stages]``.

        A computation takes at least as long, because the copies overlap with it.
        """
        return offload_seconds(design, held)

    def wait_seconds(self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...]) -> Floats:
        return _seconds_by_kind(kinds, _compute_waits(design, program, layers, self.prices(design)))

    def network(
        self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...], held: Sizes, seconds: Floats
    ) -> tuple[Network | None, Floats]:
        if design.cost.transfer_model == "link-serial":
            return serial_network(design, program, kinds, seconds), seconds
        builder = NetworkBuilder(Fabric(design.cluster, self.link_sharing(design)), kinds, seconds)
        measured = self.measures_collectives(design) or design.cluster.device.constants is not None
        add_transfer_flows(builder, design, kinds)
        reductions = [reduction_messages(design, program, each) for each in held.buckets]
        add_collective_flows(builder, design, kinds, Op.REDUCE_GRAD, reductions, measured)
        if len(kinds.indices_of(Op.UNSHARD)):
            add_collective_flows(builder, design, kinds, Op.UNSHARD, [gather_messages(design, program, held)], measured)
        waits = self.wait_seconds(design, program, kinds, layers)
        add_exchanges(builder, design, kinds, layers, waits, measured=measured)
        gathers, scatters = _state_seconds(design, program, layers, self.prices(design))
        if gathers.any() or scatters.any():
            flows = (
                StateFlows(gather_messages(design, program, held), gathers),
                StateFlows(reduction_messages(design, program, held), scatters),
            )
            known = measured or self.measures_stages(design)
            add_state_flows(builder, design, kinds, layers, *flows, measured=known)
        if (step_waits := self.update_exchange_seconds(design, program, held)).any():
            sent = step_messages(design, program, held)
            add_step_exchanges(builder, kinds, sent, step_waits, measured=measured)
        return builder.build(program), builder.seconds

    def remaining_shares(self, design: Design, program: Program, layers: tuple[int, ...]) -> Floats:
        return remaining_shares(design, program, layers, self.prices(design))

    def overlap_share(self, design: Design) -> float:
        """Return the fraction of the hideable communication that overlapping the two actions of a slot hides."""
        return float(not design.gathers_blocks)

    def measures_collectives(self, design: Design) -> bool:
        """Return True if the seconds of collectives are measured and therefore include their bottlenecks."""
        return False

    def measures_stages(self, design: Design) -> bool:
        """Return True if the seconds of computations are given or measured, with the collectives beside them."""
        return given_seconds(design) is not None

    def slot_seconds(
        self,
        design: Design,
        program: Program,
        kinds: Kinds,
        layers: tuple[int, ...],
        seconds: Floats,
        pairs: NDArray[np.int64],
    ) -> Floats:
        """Return the seconds of a forward and a backward that share a slot, ``[pairs]``.

        One action computes while the other waits (:mod:`meshwave.engine.costs.overlapped_slots`). The fraction
        :meth:`overlap_share` of the possible saving is subtracted.
        """
        in_turn = super().slot_seconds(design, program, kinds, layers, seconds, pairs)
        share = self.overlap_share(design)
        if not share or not self.wait_seconds(design, program, kinds, layers)[pairs].any():
            return in_turn
        pieces_of = SlotPieces(design, self.prices(design), layers)

        def pieces(kind: int) -> Pieces:
            found = pieces_of.find(int(kinds.rank[kind]), int(kinds.stage[kind]), Op(int(kinds.op[kind])))
            return scale_pieces(found, float(seconds[kind]))

        best = np.array([overlapped_seconds(*map(pieces, pair)) for pair in pairs.tolist()])
        return np.asarray(in_turn - share * (in_turn - best))

    def link_sharing(self, design: Design) -> LinkSharing:
        """Return the measured slowdown factors of simultaneous messages; if unmeasured, those of the drawn links."""
        return UNMEASURED_LINK

    def insert_measured_rates(self, design: Design) -> Design:
        """Return the design with the measured rates of device and links, if there are any."""
        return design

    def prices(self, design: Design) -> list[MeshPrices]:
        """Return the prices on each mesh; meshes with equal costs share one object."""
        known: dict[tuple[int, int, int, bytes], MeshPrices] = {}

        def prices(mesh: Mesh) -> MeshPrices:
            lies = max(mesh.tp, mesh.cp) > 1 or design.model.moe is not None or design.training.sharding != "none"
            key = (mesh.data_parallel, mesh.cp, mesh.tp, _node_numbers(design.cluster, mesh) if lies else b"")
            if key not in known:
                known[key] = self.prices_on(design, mesh)
            return known[key]

        return [prices(mesh) for mesh in design.meshes]

    def prices_on(self, design: Design, mesh: Mesh) -> MeshPrices:
        load = device_workload(design, mesh)
        state = block_collectives(design, mesh, collective_seconds)
        return MeshPrices(design.cluster, mesh, load, expert_blocks(design, mesh, load), state=state)

    def reduce_seconds(self, design: Design, program: Program, held: Sizes) -> Floats:
        """Return the seconds to all-reduce the gradients of each stage, ``[stages]``."""
        return reduce_seconds(design, program, held)

    def step_seconds(self, design: Design, program: Program, held: Sizes) -> Floats:
        """Return the seconds of the optimizer step of each rank, with its collectives, ``[ranks]``."""
        return self.update_seconds(design, held) + self.update_exchange_seconds(design, program, held)

    def update_seconds(self, design: Design, held: Sizes) -> Floats:
        """Return the seconds to update all weights of each rank, and to sum the gradient norm, ``[ranks]``."""
        return _update_seconds(design, held)

    def update_exchange_seconds(self, design: Design, program: Program, held: Sizes) -> Floats:
        """Return the seconds of the collectives of an optimizer step, except that of the gradient norm, ``[ranks]``."""
        return update_exchange_seconds(design, program, held)


@cost_models.register("roofline")
class RooflineCost(OperatorCost):
    """Seconds from FLOPs, bytes and links."""

    title: ClassVar = "Roofline"
    uses_device_constants: ClassVar = True

    kind: Literal["roofline"] = "roofline"
    """Seconds from FLOPs, bytes and links."""
    overlap: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Fraction of the hideable communication that is hidden when a forward and a backward overlap (0: none, 1: all).
    The compute of each action can hide the communication of the other one."""
    transfer_model: Annotated[TransferModel, TRANSFER_MODEL_LABELS] = "shared-links"
    """Effect of transfers on each other and on computations. shared-links: transfers and collectives share NICs and
    links. latency: no transfer delays another. sender-blocking: a transfer occupies its sender. link-serial: a NIC
    carries one transfer at a time. half-duplex: the two directions between two meshes share their bandwidth. batched:
    an adjacent send and receive between two meshes form one batch, and both meshes wait until the batch is done."""

    def overlap_share(self, design: Design) -> float:
        return self.overlap * super().overlap_share(design)


def operator_costs(design: Design) -> OperatorCost:
    """Return the cost model of the design, or roofline costs if it does not price operators."""
    return design.cost if isinstance(design.cost, OperatorCost) else RooflineCost()


def mesh_prices(design: Design) -> list[MeshPrices]:
    """Return the prices on each mesh by :func:`operator_costs`."""
    return operator_costs(design).prices(design)


def _node_numbers(cluster: Cluster, mesh: Mesh) -> bytes:
    """Return canonical node numbers of the devices, equal for meshes with the same layout on nodes."""
    nodes = np.array(mesh.ordered_devices) // cluster.devices_per_node
    _, first, number = np.unique(nodes, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number].tobytes()


def _stage_holders(design: Design) -> list[list[int]]:
    """Return the ranks that hold a replica of each stage, before a program exists."""
    pipeline = design.pipeline
    routes = [list(route) for route in pipeline.routes(design.pipe)]
    names = meshes_by_rank(routes[0], pipeline.placement) if pipeline.placement else None
    if names:
        routes = [[names.get(rank, rank) for rank in route] for route in routes]
    return [list(ranks) for ranks in zip(*routes, strict=True)]


def _compute_seconds(design: Design, program: Program, layers: Sequence[int], prices: Sequence[MeshPrices]) -> Floats:
    """Return the seconds of F, B, I and W, ``[op, ranks, stages]``: given by the design, or from the operators."""
    given = given_seconds(design)
    if given is None:
        return _operator_seconds(design, program, layers, prices)
    return np.repeat(given[:, None], program.ranks, axis=1)


def _operator_seconds(design: Design, program: Program, layers: Sequence[int], prices: Sequence[MeshPrices]) -> Floats:
    """Return the seconds of F, B, I and W by their operators, ``[op, ranks, stages]``.

    A recomputed stage runs its forward again before its backward, including its collectives and the loss (Chen et al.,
    arXiv:1604.06174).
    """
    table = np.zeros((Op.W + 1, program.ranks, program.stages))
    for rank, stage, price in _stage_prices(design, program, layers, prices):
        again = price.again if design.pipeline.recomputes(stage) else 0.0
        table[Op.F, rank, stage] = price.forward
        table[Op.B, rank, stage] = again + price.backward
        table[Op.I, rank, stage] = again + price.input_gradient
        table[Op.W, rank, stage] = price.weight_gradient
    return table


def _compute_waits(design: Design, program: Program, layers: Sequence[int], prices: Sequence[MeshPrices]) -> Floats:
    """Return the seconds for which F, B and I wait for collectives inside them, ``[op, ranks, stages]``.

    If the design gives the costs of stages, the waits are scaled with them.
    """
    table = np.zeros((Op.W + 1, program.ranks, program.stages))
    for rank, stage, price in _stage_prices(design, program, layers, prices):
        again = price.forward_waits if design.pipeline.recomputes(stage) else 0.0
        table[Op.F, rank, stage] = price.forward_waits
        table[Op.B, rank, stage] = again + price.backward_waits
        table[Op.I, rank, stage] = again + price.input_waits
    if design.cost.stage_costs is not None:
        own = _operator_seconds(design, program, layers, prices)
        given = _compute_seconds(design, program, layers, prices)
        table *= np.divide(given, own, out=np.zeros_like(own), where=own > 0)
    return table


def offload_seconds(design: Design, held: Sizes) -> Floats:
    """Return the seconds to copy the offloaded activations of a microbatch to the host, or back, ``[stages]``."""
    return held.offloaded_bytes / design.cluster.device.host_bandwidth


def _unshard_seconds(design: Design, program: Program, layers: Sequence[int], prices: Sequence[MeshPrices]) -> Floats:
    """Return the seconds to gather the weights of each stage, ``[ranks, stages]``."""
    table = np.zeros((program.ranks, program.stages))
    for rank, stage, price in _stage_prices(design, program, layers, prices):
        table[rank, stage] = price.unshard
    return table


def _state_seconds(
    design: Design, program: Program, layers: Sequence[int], prices: Sequence[MeshPrices]
) -> tuple[Floats, Floats]:
    """Return the seconds of gathers and of scatters beside one computation of each stage, ``[ranks, stages]`` each."""
    gathers, scatters = np.zeros((2, program.ranks, program.stages))
    if design.training.shards_gradients:
        for rank, stage, price in _stage_prices(design, program, layers, prices):
            gathers[rank, stage], scatters[rank, stage] = price.gather, price.scatter
    return gathers, scatters


def stage_seconds(
    design: Design, program: Program, layers: Sequence[int], prices: Sequence[MeshPrices]
) -> tuple[Floats, Floats]:
    """Return the seconds of a forward, and of a full backward, of each stage of one replica, ``[stages]`` each."""
    table = _compute_seconds(design, program, layers, prices)
    return table[Op.F].max(axis=0), table[Op.B].max(axis=0)


def _stage_prices(
    design: Design, program: Program, layers: Sequence[int], prices: Sequence[MeshPrices]
) -> Iterator[tuple[int, int, Seconds]]:
    """Yield the rank, stage, and seconds of one microbatch for each replica of a stage."""
    if isinstance(design.model, BlockModel):
        yield from _block_stage_prices(design, design.model, program, layers, prices)
        return
    known: dict[tuple[Any, ...], Seconds] = {}  # stages of equal blocks on meshes with equal prices
    stages = blocks_of_stages(design, layers)
    for rank, stage in stage_copies(program):
        blocks = stages[stage]
        key = prices[rank], blocks.layers, blocks.first, blocks.last, tuple(blocks.experts.items()), blocks.joins
        if key not in known:
            ends = {"first": blocks.first, "last": blocks.last}
            known[key] = prices[rank].stage(blocks.layers, **ends, experts=blocks.experts, joins=blocks.joins)
        yield rank, stage, known[key]


def _block_stage_prices(
    design: Design, model: BlockModel, program: Program, layers: Sequence[int], prices: Sequence[MeshPrices]
) -> Iterator[tuple[int, int, Seconds]]:
    for rank, stage in stage_copies(program):
        load, last = device_workload(design, design.meshes[rank]), stage == program.stages - 1
        operators = model.stage_operators(load, sum(layers[:stage]), layers[stage], last=last)
        yield rank, stage, prices[rank].unequal_stage(operators, layers[stage], first=stage == 0, last=last)


def _block_seconds(
    design: Design, model: BlockModel, prices: Sequence[MeshPrices], holders: Sequence[Sequence[int]]
) -> tuple[list[list[float]], list[float]]:
    """Return the seconds of each block, ``[stages][blocks]``, and of the ends of the model, ``[stages]``.

    Both are those of the slowest mesh that holds the stage.
    """

    @cache
    def block_seconds(price: MeshPrices, load: Workload, again: bool) -> list[float]:
        operators = (model.block_operators(load, number) for number in range(model.layers))
        return [price.part(each).total(recomputed=again) for each in operators]

    blocks, extra = [], []
    for stage, ranks in enumerate(holders):
        again, first, last = design.pipeline.recomputes(stage), stage == 0, stage == len(holders) - 1
        held = [(prices[rank], device_workload(design, design.meshes[rank])) for rank in ranks]
        blocks.append(
            [max(each) for each in zip(*(block_seconds(price, load, again) for price, load in held), strict=True)]
        )
        besides = ((price, model.end_operators(load, first=first, last=last)) for price, load in held)
        extra.append(max(price.part(operators).total(recomputed=again) for price, operators in besides))
    return blocks, extra


def _seconds_by_kind(kinds: Kinds, table: Floats) -> Floats:
    """Return the entries by kind, ``[kinds]``, of a table ``[op, ranks, stages]`` of F, B, I, W; 0 for others."""
    found = np.zeros(len(kinds))
    compute = kinds.indices_of(Op.F, Op.B, Op.I, Op.W)
    found[compute] = table[kinds.op[compute], kinds.rank[compute], kinds.stage[compute]]
    return found


def _transfer_seconds(design: Design, kinds: Kinds) -> list[float]:
    """Return the seconds of each kind of SEND, from the mesh of its rank to that of its peer."""

    @cache
    def seconds(source: int, destination: int, tensors: int) -> float:
        return boundary_seconds(design, source, destination, tensors)

    columns = (kinds.rank, kinds.peer, kinds.tensors)
    return [seconds(*ends) for ends in zip(*(column[kinds.sends].tolist() for column in columns), strict=True)]


def exposed_reductions(design: Design, reductions: Floats, backward: Floats) -> Floats:
    """Return the seconds of reductions that the last backward of each stage does not hide, ``[stages]``.

    The constants of a device assume that gradients are reduced during the backward even if the design has no buckets; the
    fraction of the backward that hides reductions is one of them.
    """
    constants = design.cluster.device.constants
    return reductions if constants is None else np.maximum(0.0, reductions - constants.overlap * backward)


def _last_seconds(program: Program, table: Floats) -> Floats:
    """Return the seconds of the last computation of each stage, ``[stages]``, from those by ``[op, ranks, stages]``."""
    last = last_operations(program)
    seconds = np.take_along_axis(table, np.maximum(last, 0)[None].astype(np.intp), axis=0)[0]
    return np.asarray(np.where(last >= 0, seconds, 0.0).max(axis=0))


def _slows_reductions(design: Design) -> bool:
    """Return True if a reduction takes longer while its device computes."""
    constants = design.cluster.device.constants
    return constants is not None and 0 < constants.overlap < 1


def slowed_reductions(design: Design, reductions: Floats, remaining: Floats) -> Floats:
    """Return the seconds of the reductions of buckets beside the backward, ``[buckets, stages]``.

    While a device computes, a reduction takes ``1 / overlap`` of its time alone, by the same constant of the device as in
    :func:`exposed_reductions`.

    Args:
        design: the design.
        reductions: [buckets, stages] seconds of each reduction alone.
        remaining: [buckets, stages] seconds of the last computation that follow when the gradients of a bucket are final.
    """
    constants = design.cluster.device.constants
    assert constants is not None, "they slow reductions"
    found, left = np.zeros_like(reductions), np.full(reductions.shape[1], np.inf)
    for number, (alone, after) in enumerate(zip(reductions, remaining, strict=True)):
        left = np.minimum(left, after)  # time beside the backward when this reduction starts
        hidden = np.minimum(alone, constants.overlap * left)
        found[number] = alone + hidden * (1 / constants.overlap - 1)
        left = np.maximum(0.0, left - found[number])
    return found


def _update_seconds(design: Design, held: Sizes) -> Floats:
    """Return the seconds to update all weights of each rank, bytes divided by memory bandwidth, ``[ranks]``."""
    traffic = flops.optimizer_traffic_bytes(design.training)
    device = design.cluster.device
    rate = device.memory_bandwidth * (device.constants.memory_efficiency if device.constants else 1.0)
    seconds = held.own.sum(axis=1) * traffic / rate
    return np.asarray(seconds + norm_seconds(design))
