"""A design's expert layer, as its schedule sees it on a mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from engine.design.meshes import Mesh
from engine.moe import ExpertSchedule, Layer, Line, Links, Rates, expert_schedules, play, price, shares
from engine.moe._schedule import Choice

if TYPE_CHECKING:
    from engine.design.cluster import Cluster
    from engine.design.document import Design

DEGREES = (1, 2, 4, 8)
"""Numbers of chunks that are tried where a design leaves it open."""
ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp64": 8}


def expert_schedule(design: Design) -> ExpertSchedule:
    """The schedule of the design's expert layers."""
    return expert_schedules[design.experts.member]()


def expert_layer(design: Design, mesh: Mesh, *, degree: int | None = None) -> Layer:
    """One expert layer of ``design`` on ``mesh``, for one microbatch.

    The layer lies on blocks of ``ep x esp`` devices, one after the other, all alike; a block of its
    own for each tensor-parallel group where the experts are folded into it. The block that touches
    the most nodes stands for all.
    """
    moe, experts = design.model.moe, design.experts
    assert moe is not None, "a model with experts"
    folded = expert_schedule(design).places == "mp"
    ep, esp = (mesh.tp, 1) if folded else (experts.ep, experts.esp)
    size = ep * esp
    blocks = [mesh.devices[first : first + size] for first in range(0, len(mesh.devices), size)]
    widest = max(blocks, key=lambda block: len({design.cluster.node_of(device) for device in block}))
    placement = experts.placement
    return Layer(
        mp=mesh.tp,
        ep=ep,
        esp=esp,
        experts=moe.experts,
        tokens=design.training.micro_batch_size * design.model.sequence,
        hidden=design.model.hidden,
        ffn_hidden=design.model.ffn_hidden,
        top_k=moe.top_k,
        capacity_factor=moe.capacity_factor,
        item_bytes=ITEM_BYTES[design.training.precision],
        nodes=tuple(design.cluster.node_of(device) for device in widest),
        homes=None if placement is None else tuple(placement[place * esp] for place in range(ep)),
        load=shares(experts.load, moe.experts),
        degree=degree or experts.degree or 1,
    )


class Resolved(NamedTuple):
    """What an expert layer comes to on a mesh, once everything that is left open is chosen."""

    schedule: str  # one that has steps
    layer: Layer
    choice: Choice | None  # what was chosen automatically, and why


def resolved(design: Design, mesh: Mesh) -> Resolved:
    """The expert layer of ``design`` on ``mesh``, with the schedule and the chunks that the model of cost
    chooses where the design leaves them open."""
    found = links(design.cluster, len(mesh.devices))
    name = design.experts.member
    choice = price(name, expert_layer(design, mesh), found).choice
    name = choice.name if choice else name
    if design.experts.degree is not None:
        return Resolved(name, expert_layer(design, mesh), choice)
    device = design.cluster.device
    rates = Rates(device.peak_flops * device.efficiency, device.memory_bandwidth)
    layers = [expert_layer(design, mesh, degree=degree) for degree in DEGREES]

    def seconds(layer: Layer) -> float:
        priced = price(name, layer, found, rates)
        return play(priced, priced.forward).makespan + play(priced, priced.backward).makespan

    return Resolved(name, min(layers, key=seconds), choice)


def links(cluster: Cluster, devices: int) -> Links:
    """What one device gets of the cluster's links where ``devices`` of each node talk at once."""
    sharing = max(1.0, min(devices, cluster.devices_per_node) / cluster.nics_per_node)
    intra, inter = cluster.intra_node, cluster.inter_node
    return Links(Line(intra.latency_s, 1 / intra.bandwidth), Line(inter.latency_s, sharing / inter.bandwidth))
