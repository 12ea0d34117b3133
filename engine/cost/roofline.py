"""Roofline costs: seconds from the shapes of the model and what the cluster's data sheets promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from engine.cost import flops, u_net_prices
from engine.cost.alpha_beta import (
    ring_all_reduce_seconds,
    small_all_reduce_seconds,
)
from engine.cost.balance import balanced_split, block_split, unequal_split
from engine.cost.contention import AS_DRAWN, LinkSharing
from engine.cost.costs import CostModel, Floats, Slots, cost_models
from engine.cost.crossings import crossing_seconds
from engine.cost.expert_blocks import EXPERTS, ExpertBlock, Sharing, counts, expert_block, sharing
from engine.cost.flops import PRECISIONS, Operator, Work, Workload
from engine.cost.flows import add_exchanges, reduction_messages, weight_groups
from engine.cost.kinds import Kinds
from engine.cost.network import Fabric, NetworkBuilder, add_reductions, add_transfers, serial_network
from engine.cost.profile import BlockKind
from engine.cost.sizes import Sizes, copies, gradient_bytes, joins_of, workload
from engine.design import Cluster, Design, Device, Mesh
from engine.design.cost import RooflineCost
from engine.design.problems import renaming
from engine.design.u_net import UNet
from engine.program.action import Op
from engine.program.program import Program
from engine.shared_links import Network


class Seconds(NamedTuple):
    """One microbatch through a part of the model; a whole backward is the sum of its halves, less what
    of the second runs beside the messages of the first."""

    forward: float = 0.0
    input_gradient: float = 0.0
    weight_gradient: float = 0.0
    hidden: float = 0.0
    again: float = 0.0
    """What a backward takes more where the forward is run again before it."""
    forward_waits: float = 0.0
    """Of a forward: a device computes nothing until messages inside the block are there."""
    input_waits: float = 0.0
    """The same of the backward for the input; that for the weights waits for none."""
    hidden_waits: float = 0.0
    """What of these a whole backward fills with weight gradients."""

    def __add__(self, other: Seconds) -> Seconds:  # type: ignore[override]
        return Seconds(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, count: int) -> Seconds:
        return Seconds(*(count * mine for mine in self))

    @property
    def backward(self) -> float:
        return self.input_gradient + self.weight_gradient - self.hidden

    @property
    def backward_waits(self) -> float:
        return max(0.0, self.input_waits - self.hidden_waits)

    def total(self, *, recomputed: bool) -> float:
        """Of a training step."""
        return self.forward + self.backward + (self.again if recomputed else 0.0)


def work_seconds(work: Work, device: Device) -> float:
    """The longer of computing and moving bytes (Williams, Waterman and Patterson, "Roofline", 2009).

    ``efficiency`` lowers the peak to what large matrix products reach.
    """
    return max(work.flops / (device.peak_flops * device.efficiency), work.bytes / device.memory_bandwidth)


AllReduce = Callable[[Cluster, Sequence[Sequence[int]], float], float]
"""Seconds for groups of devices of a cluster that each all-reduce so many bytes at the same time."""


class MeshPrices:
    """Seconds of the parts of a model on one mesh, tensor-parallel all-reduces included."""

    def __init__(
        self,
        cluster: Cluster,
        mesh: Mesh,
        load: Workload,
        block: ExpertBlock | None = None,
        all_reduce: AllReduce = ring_all_reduce_seconds,
    ) -> None:
        self._cluster, self._load, self._block, self._all_reduce = cluster, load, block, all_reduce
        self._groups = [mesh.devices[first : first + mesh.tp] for first in range(0, len(mesh.devices), mesh.tp)]

    @cached_property
    def layer(self) -> Seconds:
        return self._block_of("layer", flops.layer(self._load))

    @cached_property
    def expert_layer(self) -> Seconds:
        """A layer with experts; as any other where the model has none."""
        block = self._block
        if block is None:
            return self.layer
        around = [operator for operator in block.operators if operator.name != EXPERTS]
        return self._price(around) + Seconds(
            block.forward_s,
            block.input_gradient_s,
            block.weight_gradient_s,
            block.hidden_s,
            block.forward_s,
            block.forward_waits_s,
            block.input_waits_s,
            block.hidden_s,
        )

    @cached_property
    def joining_layer(self) -> Seconds:
        """A layer that a skip connection ends in."""
        return self._block_of("joining", flops.joining_layer(self._load))

    def ends(self, *, first: bool, last: bool) -> Seconds:
        """Embedding, or head and loss."""
        embedding = self._block_of("embedding", flops.embedding(self._load)) if first else Seconds()
        return embedding + self._block_of("head", flops.ends(self._load, first=False, last=True)) if last else embedding

    def stage(self, layers: int, *, first: bool, last: bool, experts: int = 0, joins: int = 0) -> Seconds:
        """``experts`` of its layers have experts, and in ``joins`` of the others a skip connection ends."""
        dense = self.layer.times(layers - experts - joins) + self.ends(first=first, last=last)
        dense = dense + self.joining_layer.times(joins) if joins else dense
        return dense + self.expert_layer.times(experts) if experts else dense

    def unequal_stage(self, operators: Iterable[Operator], layers: int, *, first: bool, last: bool) -> Seconds:
        """A stage of ``layers`` that differ, by all its operators."""
        return self.part(operators)

    def part(self, operators: Iterable[Operator]) -> Seconds:
        """Any operators of a stage."""
        return self._price(operators)

    def _block_of(self, kind: BlockKind, operators: Iterable[Operator]) -> Seconds:
        """A whole block."""
        return self._price(operators)

    def _price(self, operators: Iterable[Operator]) -> Seconds:
        """Operators run one after the other, each bound by its own roof; reductions are not overlapped."""
        return sum(map(self._operator, operators), start=Seconds())

    def _operator(self, operator: Operator) -> Seconds:
        device = self._cluster.device
        forward = work_seconds(operator.forward, device)
        computed = Seconds(
            forward,
            work_seconds(operator.input_gradient, device),
            work_seconds(operator.weight_gradient, device),
            again=forward,
        )
        return computed + self._reductions([operator])

    def _reductions(self, operators: Iterable[Operator]) -> Seconds:
        """Those of tensor-parallel operators, for which their devices wait."""
        operators = [*operators]
        forward, backward = (
            self._reduced(size for each in operators for size in getattr(each, way))
            for way in ("forward_reduced", "backward_reduced")
        )
        return Seconds(forward, backward, again=forward, forward_waits=forward, input_waits=backward)

    def _reduced(self, messages: Iterable[float]) -> float:
        return sum(self._all_reduce(self._cluster, self._groups, size) for size in messages)


@cost_models.register("roofline")
class RooflineModel(CostModel):
    """Each operator takes the longer of its FLOPs and its bytes; messages take alpha plus bytes
    times beta on the link where their two devices really sit, as if each were alone; while they are played, all of
    them share the links (:mod:`engine.cost.network`)."""

    def layers_per_stage(self, design: Design) -> tuple[int, ...]:
        """Balanced over forward and backward, embedding and head included."""
        prices = self.prices(design)
        holders = _holders(design)
        last = len(holders) - 1
        again = [design.pipeline.recomputes(stage) for stage in range(len(holders))]
        if isinstance(design.model, UNet):
            return block_split(*u_net_prices.block_seconds(design, design.model, prices, holders))
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
            max((each.expert_layer if moe else each.joining_layer).total(recomputed=again[stage]) for each in priced)
            for stage, priced in enumerate([prices[rank] for rank in ranks] for ranks in holders)
        ]
        return unequal_split(design.model.layers, blocks, layer, uncommon, extra)

    def seconds(self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...], held: Sizes) -> Floats:
        table = _compute_seconds(design, program, layers, self.prices(design))
        seconds = _of_computations(kinds, table)
        seconds[kinds.sends] = _transfer_seconds(design, kinds)
        reduces = kinds.of(Op.REDUCE_GRAD)
        if len(reduces):
            seconds[reduces] = self.reduce_seconds(design, program, held)[kinds.stage[reduces]]
        steps = kinds.of(Op.STEP)
        seconds[steps] = self.step_seconds(design, program, held)[kinds.rank[steps]]
        return seconds

    def waits(self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...]) -> Floats:
        return _of_computations(kinds, _compute_waits(design, program, layers, self.prices(design)))

    def network(
        self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...], held: Sizes, seconds: Floats
    ) -> tuple[Network | None, Floats]:
        if design.cost.transfer_model == "link-serial":
            return serial_network(design, program, kinds, seconds), seconds
        builder = NetworkBuilder(Fabric(design.cluster, self.link_sharing(design)), kinds, seconds)
        measured = self.measures_collectives(design)
        add_transfers(builder, design, kinds)
        add_reductions(builder, design, kinds, reduction_messages(design, program, held), measured=measured)
        waits = self.waits(design, program, kinds, layers)
        add_exchanges(builder, design, kinds, layers, waits, measured=measured)
        return builder.build(program), builder.seconds

    def measures_collectives(self, design: Design) -> bool:
        """Return whether the seconds of collectives were measured, with whatever limits them."""
        return False

    def slot_seconds(self, design: Design, first: Slots, second: Slots) -> Floats:
        """Computing does not overlap, and neither do exchanges; what one waits for can hide behind what the other
        computes. Of what could be saved so, the share ``cost.overlap`` is."""
        share = design.cost.overlap if isinstance(design.cost, RooflineCost) else 0.0  # none was measured
        in_turn = first.seconds + second.seconds
        waits = first.waits + second.waits
        best = np.max([in_turn - waits, waits, first.seconds, second.seconds], axis=0)
        return in_turn - share * (in_turn - best)

    def link_sharing(self, design: Design) -> LinkSharing:
        """Return the measured factors of simultaneous messages; those of the drawn links if none were measured."""
        return AS_DRAWN

    def prices(self, design: Design) -> list[MeshPrices]:
        """Prices on each mesh; meshes that cost the same share theirs."""
        known: dict[tuple[int, int, tuple[int, ...]], MeshPrices] = {}

        def prices(mesh: Mesh) -> MeshPrices:
            lies = mesh.tp > 1 or design.model.moe is not None
            key = (mesh.dp, mesh.tp, _shape_on_nodes(design.cluster, mesh) if lies else ())
            if key not in known:
                known[key] = self.prices_on(design, mesh)
            return known[key]

        return [prices(mesh) for mesh in design.meshes]

    def prices_on(self, design: Design, mesh: Mesh) -> MeshPrices:
        load = workload(design, mesh)
        return MeshPrices(design.cluster, mesh, load, expert_block(design, mesh, load))

    def reduce_seconds(self, design: Design, program: Program, held: Sizes) -> Floats:
        """[stages] to all-reduce the gradients of a stage."""
        return reduce_seconds(design, program, held)

    def step_seconds(self, design: Design, program: Program, held: Sizes) -> Floats:
        """[ranks] to update all weights of a rank."""
        return _step_seconds(design, held)


def mesh_prices(design: Design) -> list[MeshPrices]:
    """Prices on each mesh, by the design's own model of cost where that has some."""
    model = cost_models[design.cost.kind]()
    return (model if isinstance(model, RooflineModel) else RooflineModel()).prices(design)


def _shape_on_nodes(cluster: Cluster, mesh: Mesh) -> tuple[int, ...]:
    """Which devices of a mesh share a node, whatever the nodes are called."""
    seen: dict[int, int] = {}
    return tuple(seen.setdefault(cluster.node_of(device), len(seen)) for device in mesh.devices)


def _holders(design: Design) -> list[list[int]]:
    """[stages] the ranks that hold a copy of each stage, before there is a program."""
    pipeline: Any = design.pipeline  # a schedule and the keys that every pipeline has
    routes = [list(route) for route in pipeline.routes(design.pipe)]
    names = renaming(routes[0], pipeline.placement) if pipeline.placement else None
    if names:
        routes = [[names.get(rank, rank) for rank in route] for route in routes]
    return [list(ranks) for ranks in zip(*routes, strict=True)]


def _compute_seconds(design: Design, program: Program, layers: Sequence[int], prices: Sequence[MeshPrices]) -> Floats:
    """[op, ranks, stages] of F, B, I and W.

    A stage that is recomputed runs its forward once more before its backward, its collectives
    and the loss included (Chen et al., arXiv:1604.06174).
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
    """[op, ranks, stages] of them those that are waited for messages inside."""
    table = np.zeros((Op.W + 1, program.ranks, program.stages))
    for rank, stage, price in _stage_prices(design, program, layers, prices):
        again = price.forward_waits if design.pipeline.recomputes(stage) else 0.0
        table[Op.F, rank, stage] = price.forward_waits
        table[Op.B, rank, stage] = again + price.backward_waits
        table[Op.I, rank, stage] = again + price.input_waits
    return table


def _stage_prices(
    design: Design, program: Program, layers: Sequence[int], prices: Sequence[MeshPrices]
) -> Iterator[tuple[int, int, Seconds]]:
    """Each copy of a stage: its rank, its number and what a microbatch takes through it."""
    if isinstance(design.model, UNet):
        yield from u_net_prices.stage_prices(design, design.model, program, layers, prices)
        return
    with_experts, joins = counts(design, layers), joins_of(design, layers)
    for rank, stage in copies(program):
        ends = {"first": stage == 0, "last": stage == program.stages - 1}
        yield rank, stage, prices[rank].stage(layers[stage], **ends, experts=with_experts[stage], joins=joins[stage])


def _of_computations(kinds: Kinds, table: Floats) -> Floats:
    """[kinds] of a table [op, ranks, stages] of F, B, I and W; 0 of all else."""
    found = np.zeros(len(kinds))
    compute = kinds.of(Op.F, Op.B, Op.I, Op.W)
    found[compute] = table[kinds.op[compute], kinds.rank[compute], kinds.stage[compute]]
    return found


def _transfer_seconds(design: Design, kinds: Kinds) -> list[float]:
    """For each kind of SEND, from the mesh of its rank to that of its peer."""

    @cache
    def between(source: int, destination: int, tensors: int) -> float:
        return crossing_seconds(design, source, destination, tensors)

    columns = (kinds.rank, kinds.peer, kinds.tensors)
    return [between(*ends) for ends in zip(*(column[kinds.sends].tolist() for column in columns), strict=True)]


def reduce_seconds(
    design: Design, program: Program, held: Sizes, all_reduce: AllReduce = ring_all_reduce_seconds
) -> Floats:
    """[stages] to all-reduce a stage's gradients over the devices that hold the same weights.

    Those are the data-parallel copies of all meshes that hold the stage; each tensor-parallel
    cut is reduced by its own group, all groups at once. Then come the experts, each over the devices
    that hold it, and the gates that have seen a part of the tokens each, over all devices.
    """
    size, of_item = gradient_bytes(design, held), PRECISIONS[design.training.precision].gradients
    gates, experts = (each.max(axis=0) * of_item for each in (held.gates, held.experts))
    seconds = np.zeros(program.stages)
    for stage in range(program.stages):
        meshes = [design.meshes[rank] for rank in program.ranks_of(stage)]
        shared = float(size[stage] - experts[stage])
        if experts[stage]:
            parts, partial = sharing(design, meshes)
            shared -= float(gates[stage]) if partial else 0.0
            seconds[stage] += _experts_reduced(design.cluster, parts, float(experts[stage]), all_reduce)
            everyone = [device for mesh in meshes for device in mesh.devices]
            seconds[stage] += all_reduce(design.cluster, [everyone], float(gates[stage])) if partial else 0.0
        seconds[stage] += all_reduce(design.cluster, weight_groups(meshes), shared)
    return seconds


def _experts_reduced(cluster: Cluster, parts: Sequence[Sharing], size: float, all_reduce: AllReduce) -> float:
    """Reductions of experts one after the other, but for those at once that no device is in twice."""
    rounds: list[list[Sharing]] = []
    for part in parts:
        busy = set(part.devices)
        free = (each for each in rounds if all(busy.isdisjoint(other.devices) for other in each))
        found = next(free, None)
        if found is None:
            rounds.append(found := [])
        found.append(part)
    return sum(
        all_reduce(cluster, [part.devices for part in each], size * max(part.share for part in each)) for each in rounds
    )


def norm_seconds(design: Design) -> float:
    """Clipping needs the norm over all weights of the job: one number, reduced over all devices."""
    if design.training.clip_norm is None:
        return 0.0
    everyone = [device for mesh in design.meshes for device in mesh.devices]
    return small_all_reduce_seconds(design.cluster, everyone, 4.0)


def _step_seconds(design: Design, held: Sizes) -> Floats:
    """[ranks] to update all weights of a rank: bytes over memory bandwidth."""
    training = design.training
    clipped = training.clip_norm is not None
    traffic = flops.optimizer_traffic_bytes(training.optimizer, training.precision, clipped=clipped)
    seconds = held.parameters.sum(axis=1) * traffic / design.cluster.device.memory_bandwidth
    return np.asarray(seconds + norm_seconds(design))
