"""Expert layers of a design, resolved for a mesh and a schedule.

The number of a layer selects its own placement and load; ``COMMON`` stands for all layers without any.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from math import ceil, gcd
from typing import TYPE_CHECKING, NamedTuple

from meshwave.engine.document.devices import CAST_BYTES, FORMAT_RATES
from meshwave.engine.document.meshes import Mesh
from meshwave.engine.document.model import Model
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
    price_expert_schedule,
    resolve_choice,
    simulate_layer,
)

if TYPE_CHECKING:
    from meshwave.engine.document.cluster import Cluster
    from meshwave.engine.document.design import Design

DEGREES = (1, 2, 4, 8)
"""Numbers of chunks to try if a design does not set one."""
TILE_ROWS = 128
"""Rows per tile of grouped matrix products on GPUs; each expert computes up to one tile more than it has rows."""
COMMON = -1
ITEM_BYTES = {"fp32": 4, "bf16": 2, "pure_bf16": 2, "fp64": 8}


def expert_schedule(design: Design) -> ExpertSchedule:
    """Return the schedule of the design's expert layers."""
    return expert_schedules[design.experts.member]()


def uses_tensor_parallel_groups(design: Design) -> bool:
    """Return True if experts are distributed over the tensor-parallel group, so that ``ep`` and ``esp`` are unused."""
    return expert_schedule(design).places == "mp"


def expert_group_sizes(design: Design, mesh: Mesh) -> tuple[int, int]:
    """Return ``ep`` and ``esp`` on a mesh.

    They are those of the design, or their largest divisors for which the groups fit into the mesh.
    """
    if uses_tensor_parallel_groups(design):
        return mesh.tp, 1
    ep, esp, devices = design.experts.ep, design.experts.esp, len(mesh.devices)
    if devices % (ep * esp):
        ep = gcd(ep, devices)
        esp = gcd(esp, devices // ep)
    return ep, esp


def expert_layer(design: Design, mesh: Mesh, number: int = COMMON, *, degree: int | None = None) -> Layer:
    """Return one expert layer of ``design`` on ``mesh``, for one microbatch.

    The layer uses equal, consecutive blocks of ``ep x esp`` devices, or one block per tensor-parallel group if the
    experts are distributed over it. The block that spans the most nodes represents all blocks.
    """
    moe, experts = design.model.moe, design.experts.section_of_layer(number)
    assert moe is not None, "a model with experts"
    ep, esp = expert_group_sizes(design, mesh)
    size = ep * esp
    blocks = [mesh.ordered_devices[first : first + size] for first in range(0, len(mesh.devices), size)]
    widest = max(blocks, key=lambda block: len({design.cluster.node_of(device) for device in block}))
    first = design.meshes[0]
    samples = design.training.micro_batch_size * first.data_parallel / mesh.dp  # per replica
    is_split = not uses_tensor_parallel_groups(design) and (ep, esp) != (experts.ep, experts.esp)
    placement = None if is_split else experts.placement
    return replace(
        whole_expert_layer(design.model),
        mp=mesh.tp,
        ep=ep,
        esp=esp,
        tokens=ceil(samples * design.model.sequence),
        item_bytes=ITEM_BYTES[design.training.precision],
        nodes=tuple(design.cluster.node_of(device) for device in widest),
        placement=None if placement is None else tuple(placement[place * esp] for place in range(ep)),
        load=load_shares(experts.load, moe.experts),
        degree=degree or experts.degree or 1,
    )


def whole_expert_layer(model: Model) -> Layer:
    """Return the expert layer of a model on one device, for one sequence."""
    moe, mlp = model.moe, model.architecture.mlp
    assert moe is not None, "a model with experts"
    return Layer(
        mp=1,
        ep=1,
        esp=1,
        experts=moe.experts,
        tokens=model.sequence,
        hidden=model.hidden,
        ffn_hidden=moe.expert_width(model.ffn_hidden),
        top_k=moe.top_k,
        capacity_factor=moe.capacity_factor,
        matrices=3 if mlp.gated else 2,
        has_biases=mlp.bias,
        clamps_activation=mlp.activation == "clamped_swish",
        router_vector_count=moe.router_vector_count,
    )


# ---- automatic choices ----


class ResolvedLayer(NamedTuple):
    """Expert layer on a mesh, with all automatic choices made."""

    schedule: str  # a schedule that defines steps
    layer: Layer
    choice: Choice | None  # automatic choice and its reason


def resolve_expert_layer(design: Design, mesh: Mesh, number: int = COMMON) -> ResolvedLayer:
    """Return an expert layer of ``design`` on ``mesh``, with the fastest schedule and chunks by the cost model.

    Only settings that the design does not set are chosen, for all layers together: the capacity depends on the chunks.
    """
    degrees = DEGREES if design.experts.degree is None else (design.experts.degree,)
    deciding = _deciding_mesh(design, mesh)
    layer = expert_layer(design, deciding, degree=1)
    found = _resolve_layer(design.experts.member, layer, mesh_links(design, deciding), device_rates(design), degrees)
    if deciding is mesh and number not in design.experts.own_layers:
        return found
    return found._replace(layer=expert_layer(design, mesh, number, degree=found.layer.degree))


def _deciding_mesh(design: Design, mesh: Mesh) -> Mesh:
    """Return the mesh for which automatic choices are made.

    Replicas of a stage must use the same schedule, because schedules distribute the summed gradients in different ways.
    The choice is made for the mesh whose experts span the most nodes.
    """
    is_open = expert_schedule(design).chooses or design.experts.degree is None
    if not is_open or not _has_replicas(design):
        return mesh
    alike = [other for other in design.meshes if other.tp == mesh.tp]  # replicas have equal tp
    return max(alike, key=lambda other: len(set(expert_layer(design, other).nodes or ())))


def _has_replicas(design: Design) -> bool:
    """Return True if stages have several replicas; False if the pipeline itself is invalid."""
    pipeline = design.pipeline
    try:
        return pipeline.refusal(design.pipe) is None and len(pipeline.routes(design.pipe)) > 1
    except InputError:  # a hand-drawn order with an invalid cell
        return False


@lru_cache(maxsize=256)  # most consecutive edits resolve the same layer
def _resolve_layer(name: str, layer: Layer, links: Links, rates: Rates, degrees: tuple[int, ...]) -> ResolvedLayer:
    @lru_cache
    def seconds(of: str, degree: int) -> float:
        priced = price_expert_schedule(of, replace(layer, degree=degree), links, rates)
        return simulate_layer(priced, priced.forward).makespan + simulate_layer(priced, priced.backward).makespan

    choice = resolve_choice(name, layer, links, rates, lambda of: min(seconds(of, degree) for degree in degrees))
    name = choice.name if choice else name
    degree = min(degrees, key=lambda degree: seconds(name, degree)) if len(degrees) > 1 else degrees[0]
    return ResolvedLayer(name, replace(layer, degree=degree), choice)


def price_expert_layer(design: Design, mesh: Mesh, number: int = COMMON) -> Price:
    """Return the price of an expert layer of ``design`` on ``mesh``, with automatic choices made."""
    name, layer, choice = resolve_expert_layer(design, mesh, number)
    return replace(price_expert_schedule(name, layer, mesh_links(design, mesh), device_rates(design)), choice=choice)


def device_rates(design: Design) -> Rates:
    """Return the compute and memory rates of a device of the cluster."""
    device, precision = design.cluster.device, design.training.linear_precision
    faster = FORMAT_RATES.get(precision, 1.0) * device.peak_flops
    if (constants := device.constants) is None:
        rate = device.peak_flops * device.efficiency
        return Rates(rate, device.memory_bandwidth, expert_flops=faster * device.efficiency)
    is_16bit = precision == "same"
    share = constants.product_efficiency if is_16bit else constants.product_8bit_efficiency
    return Rates(
        device.peak_flops * constants.product_efficiency,
        device.memory_bandwidth * constants.memory_efficiency,
        expert_flops=faster * share,
        tile_rows=TILE_ROWS,
        kernel_s=constants.launched_kernel_s(design.training.cuda_graphs, None),
        router_kernel_s=constants.launched_kernel_s(design.training.cuda_graphs, "router"),
        cast_bytes=CAST_BYTES.get(precision, 0.0),
        eager_memory=device.memory_bandwidth * constants.eager_memory_efficiency,
    )


def mesh_links(design: Design, mesh: Mesh) -> Links:
    """Return the links per device while all devices of a mesh communicate at once."""
    return cluster_links(design.cluster, max(Counter(map(design.cluster.node_of, mesh.devices)).values()))


def cluster_links(cluster: Cluster, devices: int) -> Links:
    """Return the links per device while ``devices`` devices of each node communicate at once."""
    sharing = max(1.0, min(devices, cluster.devices_per_node) / cluster.nics_per_node)
    intra, inter = cluster.link_inside_node, cluster.link_between_nodes
    lines = Line(intra.latency_s, 1 / intra.bandwidth), Line(inter.latency_s, sharing / inter.bandwidth)
    return Links(*lines, is_grouped=cluster.device.constants is not None)
