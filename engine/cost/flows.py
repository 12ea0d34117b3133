"""The collectives of a design as messages: what reductions of gradients and exchanges inside stages send.

Their seconds are those of the model of cost; here is who sends how much to whom meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.cost import flops
from engine.cost.alpha_beta import Message
from engine.cost.expert_blocks import EXPERTS, counts, expert_block, sharing
from engine.cost.flops import PRECISIONS, Operator
from engine.cost.kinds import Kinds
from engine.cost.network import Fabric, NetworkBuilder, Usage, exchange_usage, merged, ring_messages
from engine.cost.sizes import Sizes, gradient_bytes, joins_of, workload
from engine.design import Design, Mesh
from engine.design.u_net import UNet
from engine.program.action import Op
from engine.program.program import Program


def reduction_messages(design: Design, program: Program, held: Sizes) -> Mapping[int, list[Message]]:
    """Return, by stage, the messages of the rings by which its gradients are reduced: first what all copies share, then the
    experts over those that hold them, and the gates over all devices."""
    size, of_item = gradient_bytes(design, held), PRECISIONS[design.training.precision].gradients
    gates, experts = (each.max(axis=0) * of_item for each in (held.gates, held.experts))
    found: dict[int, list[Message]] = {}
    for stage in range(program.stages):
        meshes = [design.meshes[rank] for rank in program.ranks_of(stage)]
        rings: list[tuple[Sequence[int], float]] = []
        shared = float(size[stage] - experts[stage])
        if experts[stage]:
            parts, partial = sharing(design, meshes)
            shared -= float(gates[stage]) if partial else 0.0
            rings += [(part.devices, part.share * float(experts[stage])) for part in parts]
            everyone = [device for mesh in meshes for device in mesh.devices]
            rings += [(everyone, float(gates[stage]))] if partial else []
        rings += [(group, shared) for group in weight_groups(meshes)]
        found[stage] = [each for group, bytes_ in rings for each in ring_messages(design.cluster, group, bytes_)]
    return found


def weight_groups(meshes: Sequence[Mesh]) -> list[list[int]]:
    """The devices that sum the gradients of the same cut of the weights: a group for each tensor-parallel cut."""
    cuts = max(mesh.tp for mesh in meshes)
    return [
        [mesh.devices[copy * mesh.tp + cut % mesh.tp] for mesh in meshes for copy in range(mesh.dp)]
        for cut in range(cuts)
    ]


def add_exchanges(
    builder: NetworkBuilder,
    design: Design,
    program: Program,
    kinds: Kinds,
    layers: Sequence[int],
    waits: NDArray[np.float64],
) -> None:
    """Add what computations exchange inside to a network: it alternates with computing as often as there are layers.

    ``waits``: [kinds] seconds of each computation in which it waits for exchanges.
    """
    if isinstance(design.model, UNet):  # whose devices exchange nothing inside a stage
        return
    with_experts, joins = counts(design, layers), joins_of(design, layers)

    @cache
    def exchanged(rank: int, stage: int) -> tuple[Usage, Usage]:
        ends = stage == 0, stage == program.stages - 1
        held = _Stage(layers[stage], with_experts[stage], joins[stage], *ends)
        return _exchanged(builder.fabric, design, design.meshes[rank], held)

    for row in np.flatnonzero(waits > 0).tolist():
        stage = int(kinds.stage[row])
        forward, backward = exchanged(int(kinds.rank[row]), stage)
        again = [forward] if design.pipeline.recomputes(stage) else []
        usage = forward if kinds.op[row] == Op.F else merged([*again, backward])
        builder.add_exchange(row, usage, float(waits[row]), layers[stage])


class _Stage(NamedTuple):
    """The blocks of a stage."""

    layers: int
    experts: int  # of the layers, those with experts
    joins: int  # and those that a skip connection ends in
    first: bool
    last: bool


def _exchanged(fabric: Fabric, design: Design, mesh: Mesh, stage: _Stage) -> tuple[Usage, Usage]:
    """Bytes that a forward and a backward of a stage put on each port: tensor-parallel reductions, and what experts
    exchange."""
    load = workload(design, mesh)
    block = expert_block(design, mesh, load)
    around = [operator for operator in block.operators if operator.name != EXPERTS] if block else []
    counted: tuple[tuple[Iterable[Operator], int], ...] = (
        (flops.layer(load), stage.layers - stage.experts - stage.joins),
        (flops.joining_layer(load) if stage.joins else (), stage.joins),
        (around, stage.experts),
        (flops.ends(load, first=stage.first, last=stage.last), 1),
    )
    groups = [mesh.devices[first : first + mesh.tp] for first in range(0, len(mesh.devices), mesh.tp)]
    found = []
    for reduced, sent in (("forward_reduced", "forward_sent"), ("backward_reduced", "backward_sent")):
        size = sum(count * sum(getattr(each, reduced)) for operators, count in counted for each in operators)
        usage = [fabric.usage(message for group in groups for message in ring_messages(fabric.cluster, group, size))]
        if block and stage.experts:
            usage.append(exchange_usage(fabric, mesh.devices, getattr(block, sent), stage.experts))
        found.append(merged(usage))
    return found[0], found[1]
