"""Transfers between the meshes of consecutive stages: their plans, bytes and seconds.

Each data-parallel replica of a mesh holds its share of the sequences, replicated over the replica's tensor-parallel
devices: ``[sequences of all replicas, s, h]`` has the sharding spec ``(S0, R, R)`` on a mesh of ``dp x tp``. On a mesh of
``dp x cp x tp``, it is ``(S0, S1, R)``: context-parallel devices divide the tokens, which are in an order in which each
device has consecutive ones. Every device sends its part directly to one receiver, all at once, between meshes of equal
``dp`` and ``cp`` without tensor parallelism, and between meshes of equal axes with sequence parallelism or whole
padded documents. Other boundaries follow the plan of the design's ``transfer`` section
(arXiv:2211.05322). With its key ``boundary``, each tensor-parallel device sends only a slice of
the sequence or hidden dim, like Megatron's scatter/gather; receivers get all slices. With sequence parallelism both
meshes hold slices of the sequence, and each slice is sent once. A message of several ``tensors``, as skip connections
need them, concatenates them: ``[sequences of all replicas, s, tensors x h]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from meshwave.engine.costs.alpha_beta import Message, transfer_seconds
from meshwave.engine.costs.operators import element_sizes
from meshwave.engine.costs.port_usage import Int64s, Messages
from meshwave.engine.document import Cluster, Design, Mesh
from meshwave.engine.document.transfer import Transfer as How
from meshwave.engine.resharding import Link, Links, Load, Tensor, Transfer, UnitTask, plan, unit_tasks
from meshwave.engine.resharding import Mesh as Grid
from meshwave.engine.resharding.tasks import Move

BOUNDARY_SPEC = ("S0", "R", "R")
"""Sharding spec of the input and output of a stage on a mesh of ``dp x tp``."""
SOURCE_SPECS = {"batch": BOUNDARY_SPEC, "sequence": ("S0", "S1", "R"), "hidden": ("S0", "R", "S1")}
"""Sharding spec of the part that each source device sends, by ``transfer.boundary``."""
SEQUENCE_PARALLEL_SPEC = SOURCE_SPECS["sequence"]
"""Sharding spec of the input and output of a stage with sequence parallelism."""
CONTEXT_PARALLEL_SPECS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    BOUNDARY_SPEC: ("S0", "S1", "R"),
    SOURCE_SPECS["sequence"]: ("S0", "S12", "R"),
    SOURCE_SPECS["hidden"]: ("S0", "S1", "S2"),
}
"""Sharding spec on a mesh of ``dp x cp x tp``, by the one on a mesh of ``dp x tp``."""
Side = tuple[Grid, tuple[str, ...]]
"""Mesh, and sharding spec of the tensor on it."""
MIN_CHUNK_BYTES = 2**15
"""Minimum size of a chunk in bytes; for smaller chunks, the overhead of forwarding exceeds the latency of the links."""


def boundary_specs(design: Design) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the sharding specs, on meshes without context parallelism, of the tensor that a stage sends and receives."""
    if design.training.sequence_parallel:
        return SEQUENCE_PARALLEL_SPEC, SEQUENCE_PARALLEL_SPEC
    return SOURCE_SPECS[design.transfer.boundary], BOUNDARY_SPEC


def boundary_transfer(design: Design, source: int, destination: int, tensors: int = 1) -> Transfer:
    """Return the transfer between two meshes, with the devices of the cluster as ranks."""
    devices = _boundary_devices(design, source, destination)
    known = _numbered_plan(design, source, destination, tensors).transfer
    return renumber_ranks(known, dict(enumerate(devices.tolist())))


def renumber_ranks(transfer: Transfer, names: Mapping[int, int]) -> Transfer:
    """Return the same transfer with other rank numbers."""

    def side(mesh: Grid, spec: Sequence[str]) -> tuple[Grid, Sequence[str]]:
        return replace(mesh, ranks=tuple(names[rank] for rank in mesh.ranks)), spec

    links = replace(transfer.links, host={names[rank]: host for rank, host in transfer.links.host.items()})
    planned = tuple(each._replace(sender=names[each.sender]) for each in transfer.plan.tasks)
    plan = replace(transfer.plan, tasks=planned)
    load = Load(transfer.tensor, side(*transfer.source), side(*transfer.destination))
    return Transfer.from_plan([load], links, plan)


def is_direct(design: Design, source: int, destination: int) -> bool:
    """Return True if device ``i`` of one mesh sends to device ``i`` of the other mesh and to no other device."""
    one, other = design.meshes[source], design.meshes[destination]
    pads = design.training.pad_documents and design.transfer.boundary == "batch"
    is_whole = one.tp == 1 or design.training.sequence_parallel or pads
    return (one.dp, one.cp, one.tp) == (other.dp, other.cp, other.tp) and is_whole


def boundary_seconds(design: Design, source: int, destination: int, tensors: int = 1) -> float:
    """Return the seconds of a transfer between two meshes, from the first byte to the last."""
    ends = design.meshes[source], design.meshes[destination]
    if is_direct(design, source, destination):
        share = boundary_bytes(design, source, destination, tensors)
        messages = (
            Message(*pair, share) for pair in zip(ends[0].ordered_devices, ends[1].ordered_devices, strict=True)
        )
        return transfer_seconds(design.cluster, messages)
    return _numbered_plan(design, source, destination, tensors).transfer.simulated_s


def boundary_messages(design: Design, source: int, destination: int, tensors: int = 1) -> Messages:
    """Return all messages between devices in the plan of a transfer between two meshes."""
    devices, numbered = (
        _boundary_devices(design, source, destination),
        _numbered_plan(design, source, destination, tensors).messages,
    )
    return Messages(devices[numbered.source], devices[numbered.destination], numbered.bytes)


def boundary_bytes(design: Design, source: int, destination: int, tensors: int = 1) -> float:
    """Return the bytes of a transfer per source device.

    The total does not depend on the plan, since each receiver gets its part once.
    """
    ends = design.meshes[source], design.meshes[destination]
    copies = 1 if design.training.sequence_parallel else ends[1].tp
    return boundary_tensor(design, tensors).bytes * copies / len(ends[0].devices)


def boundary_tensor(design: Design, tensors: int = 1) -> Tensor:
    """Return the tensor ``[sequences, s, h]`` that all replicas of a stage pass on for one microbatch.

    If ``tensors`` is above one, as many tensors are concatenated along the last dim.
    """
    first = design.meshes[0]
    item = element_sizes(design.training).item
    sequences = design.training.micro_batch_size * first.data_parallel
    return Tensor((sequences, design.model.sequence, tensors * design.model.hidden), item)


def _boundary_devices(design: Design, source: int, destination: int) -> Int64s:
    """Return the devices of two meshes in ascending order."""
    return np.union1d(design.meshes[source].devices, design.meshes[destination].devices)


@dataclass(frozen=True, eq=False)
class _Plan:
    """Planned transfer between two meshes, whose devices are numbered from 0."""

    transfer: Transfer

    @cached_property
    def messages(self) -> Messages:
        """Messages of the plan, from one number to another."""
        moves = np.array(self.transfer.moves, np.int64).reshape(-1, len(Move._fields))
        item = np.array([task.bytes / task.elements if task.elements else 0.0 for task in self.transfer.tasks])
        task, source, target, start, stop = moves.T
        return Messages(source, target, (stop - start) * item[task])


def _numbered_plan(design: Design, source: int, destination: int, tensors: int) -> _Plan:
    """Return the plan with devices and nodes renumbered from 0, so that equal boundaries share one cached plan."""
    devices = _boundary_devices(design, source, destination)
    nodes = np.unique(devices // design.cluster.devices_per_node)

    def side(mesh: Mesh, spec: tuple[str, ...]) -> Side:
        shape = (mesh.dp, mesh.tp) if mesh.cp == 1 else (mesh.data_parallel, mesh.cp, mesh.tp)
        ordered = np.array(mesh.ordered_devices)
        ranks = np.searchsorted(devices, ordered)
        hosts = np.searchsorted(nodes, ordered // design.cluster.devices_per_node)
        grid = Grid(shape, tuple(ranks.tolist()), tuple(hosts.tolist()))
        return grid, spec if mesh.cp == 1 else CONTEXT_PARALLEL_SPECS[spec]

    ends = design.meshes[source], design.meshes[destination]
    sides = map(side, ends, boundary_specs(design))
    return _plan_transfer(design.cluster, *sides, boundary_tensor(design, tensors), design.transfer)


@lru_cache(maxsize=256)
def _plan_transfer(cluster: Cluster, source: Side, destination: Side, tensor: Tensor, how: How) -> _Plan:
    sides = source, destination
    tasks = unit_tasks(tensor, *source, *destination)
    links = _boundary_links(cluster, source[0], destination[0], tasks)
    found = plan(tensor, *sides, links, strategy=how.strategy, ordering=how.ordering)
    most = max_chunks(tasks)
    if any(each.chunks > most for each in found.tasks):
        found = plan(tensor, *sides, links, strategy=how.strategy, ordering=how.ordering, chunks=most)
    return _Plan(Transfer.from_plan([Load(tensor, *sides)], links, found))


def max_chunks(tasks: Iterable[UnitTask]) -> int:
    """Return the maximum number of chunks per task that keeps chunks at or above ``MIN_CHUNK_BYTES``."""
    return max(1, min((task.bytes for task in tasks), default=1) // MIN_CHUNK_BYTES)


def _boundary_links(cluster: Cluster, source: Grid, destination: Grid, tasks: Sequence[UnitTask]) -> Links:
    """Return the links for a plan; its hosts are nodes, or devices if no slice has to leave its node."""
    node = {rank: host for grid in (source, destination) for rank, host in zip(grid.ranks, grid.hosts, strict=True)}
    near, far = (
        Link(link.latency_s, link.bandwidth) for link in (cluster.link_inside_node, cluster.link_between_nodes)
    )
    nodes = [({node[rank] for rank in task.senders}, {node[rank] for rank in task.receivers}) for task in tasks]
    if all(len(needing) <= 1 and needing <= owning for owning, needing in nodes):
        return Links(near, near, {rank: rank for rank in node})
    return Links(near, far, node, cluster.nics_per_node)
