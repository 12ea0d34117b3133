"""A design's expert layer, as its schedule sees it on a mesh."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from math import ceil, gcd
from typing import TYPE_CHECKING, NamedTuple

from meshwave.engine.document.meshes import Mesh
from meshwave.engine.errors import InputError
from meshwave.engine.experts import (
    Choice,
    ExpertSchedule,
    Layer,
    Line,
    Links,
    Price,
    Rates,
    expert_schedules,
    load_shares,
    play,
    price,
    resolve_choice,
)

if TYPE_CHECKING:
    from meshwave.engine.document.cluster import Cluster
    from meshwave.engine.document.design import Design

DEGREES = (1, 2, 4, 8)
"""Numbers of chunks that are tried where a design leaves it open."""
ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp64": 8}


def expert_schedule(design: Design) -> ExpertSchedule:
    """The schedule of the design's expert layers."""
    return expert_schedules[design.experts.member]()


def uses_tensor_parallel_groups(design: Design) -> bool:
    """Whether the experts lie in the tensor-parallel group, so that ``ep`` and ``esp`` play no part."""
    return expert_schedule(design).places == "mp"


def group_sizes(design: Design, mesh: Mesh) -> tuple[int, int]:
    """``ep`` and ``esp`` on a mesh: as the design has them or, where their groups would cross its border,
    the largest parts of them that do not."""
    if uses_tensor_parallel_groups(design):
        return mesh.tp, 1
    ep, esp, devices = design.experts.ep, design.experts.esp, len(mesh.devices)
    if devices % (ep * esp):
        ep = gcd(ep, devices)
        esp = gcd(esp, devices // ep)
    return ep, esp


def expert_layer(design: Design, mesh: Mesh, *, degree: int | None = None) -> Layer:
    """One expert layer of ``design`` on ``mesh``, for one microbatch.

    The layer lies on blocks of ``ep x esp`` devices, one after the other, all alike; a block of its
    own for each tensor-parallel group where the experts are folded into it. The block that touches
    the most nodes stands for all.
    """
    moe, experts = design.model.moe, design.experts
    assert moe is not None, "a model with experts"
    ep, esp = group_sizes(design, mesh)
    size = ep * esp
    blocks = [mesh.devices[first : first + size] for first in range(0, len(mesh.devices), size)]
    widest = max(blocks, key=lambda block: len({design.cluster.node_of(device) for device in block}))
    samples = design.training.micro_batch_size * design.meshes[0].dp / mesh.dp  # of one data-parallel copy
    torn = not uses_tensor_parallel_groups(design) and (ep, esp) != (experts.ep, experts.esp)
    placement = None if torn else experts.placement
    return Layer(
        mp=mesh.tp,
        ep=ep,
        esp=esp,
        experts=moe.experts,
        tokens=ceil(samples * design.model.sequence),
        hidden=design.model.hidden,
        ffn_hidden=design.model.ffn_hidden,
        top_k=moe.top_k,
        capacity_factor=moe.capacity_factor,
        item_bytes=ITEM_BYTES[design.training.precision],
        nodes=tuple(design.cluster.node_of(device) for device in widest),
        homes=None if placement is None else tuple(placement[place * esp] for place in range(ep)),
        load=load_shares(experts.load, moe.experts),
        degree=degree or experts.degree or 1,
    )


# ---- what is left open, chosen ----


class ResolvedLayer(NamedTuple):
    """What an expert layer comes to on a mesh, once everything that is left open is chosen."""

    schedule: str  # one that has steps
    layer: Layer
    choice: Choice | None  # what was chosen automatically, and why


def resolve_expert_layer(design: Design, mesh: Mesh) -> ResolvedLayer:
    """The expert layer of ``design`` on ``mesh``, with the schedule and the chunks that the model of cost
    chooses where the design leaves them open."""
    degrees = DEGREES if design.experts.degree is None else (design.experts.degree,)
    deciding = _deciding(design, mesh)
    layer = expert_layer(design, deciding, degree=1)
    found = _resolved(design.experts.member, layer, mesh_links(design, deciding), device_rates(design), degrees)
    return found if deciding is mesh else found._replace(layer=expert_layer(design, mesh, degree=found.layer.degree))


def _deciding(design: Design, mesh: Mesh) -> Mesh:
    """The mesh that what is left open is chosen on. Where stages lie on several meshes these choose alike, since they
    add up gradients that schedules part in different ways: on the one whose experts touch the most nodes."""
    is_open = expert_schedule(design).chooses or design.experts.degree is None
    if not is_open or not _has_replicas(design):
        return mesh
    alike = [other for other in design.meshes if other.tp == mesh.tp]  # with another tp they cannot be replicas
    return max(alike, key=lambda other: len(set(expert_layer(design, other).nodes or ())))


def _has_replicas(design: Design) -> bool:
    """Whether stages lie on several meshes; not known, and of no use, where the pipeline itself is wrong."""
    pipeline = design.pipeline
    try:
        return pipeline.refusal(design.pipe) is None and len(pipeline.routes(design.pipe)) > 1
    except InputError:  # an order drawn by hand with a cell that is none
        return False


@lru_cache(maxsize=256)  # every edit of a design asks again, and mostly of the same layer
def _resolved(name: str, layer: Layer, links: Links, rates: Rates, degrees: tuple[int, ...]) -> ResolvedLayer:
    @lru_cache
    def seconds(of: str, degree: int) -> float:
        priced = price(of, replace(layer, degree=degree), links, rates)
        return play(priced, priced.forward).makespan + play(priced, priced.backward).makespan

    choice = resolve_choice(name, layer, links, rates, lambda of: min(seconds(of, degree) for degree in degrees))
    name = choice.name if choice else name
    degree = min(degrees, key=lambda degree: seconds(name, degree)) if len(degrees) > 1 else degrees[0]
    return ResolvedLayer(name, replace(layer, degree=degree), choice)


def price_expert_layer(design: Design, mesh: Mesh) -> Price:
    """What the expert layer of ``design`` costs on ``mesh``, with everything that is left open chosen."""
    name, layer, choice = resolve_expert_layer(design, mesh)
    return replace(price(name, layer, mesh_links(design, mesh), device_rates(design)), choice=choice)


def device_rates(design: Design) -> Rates:
    """How fast a device of the cluster computes."""
    device = design.cluster.device
    return Rates(device.peak_flops * device.efficiency, device.memory_bandwidth)


def mesh_links(design: Design, mesh: Mesh) -> Links:
    """What one device of a mesh gets of the links where all of the mesh talk at once."""
    return cluster_links(design.cluster, max(Counter(map(design.cluster.node_of, mesh.devices)).values()))


def cluster_links(cluster: Cluster, devices: int) -> Links:
    """What one device gets of the cluster's links where ``devices`` of each node talk at once."""
    sharing = max(1.0, min(devices, cluster.devices_per_node) / cluster.nics_per_node)
    intra, inter = cluster.intra_node, cluster.inter_node
    return Links(Line(intra.latency_s, 1 / intra.bandwidth), Line(inter.latency_s, sharing / inter.bandwidth))
