"""What crosses from one mesh to another for one microbatch: which plan it follows, and how long it takes.

Each copy of a mesh holds its share of the sequences, and all its tensor-parallel devices hold that share
whole: ``[sequences of all copies, s, h]`` lies on a mesh of ``dp x tp`` as ``(S0, R, R)``. Between meshes
of as many copies without tensor parallelism no device needs what another needs too: each part is sent
straight to its one receiver, all of them at once. Between others the plan of the design's ``transfer``
section is followed (arXiv:2211.05322); by its ``boundary`` each tensor-parallel device may send a slice of the sequence
or hidden dim alone, as Megatron's scatter/gather does, and receivers get all slices. A message of several ``tensors``, as skip connections need them, holds them side by side:
``[sequences of all copies, s, tensors x h]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from meshwave.engine.costs.alpha_beta import Message, transfer_seconds
from meshwave.engine.costs.operators import PRECISIONS
from meshwave.engine.document import Cluster, Design, Mesh
from meshwave.engine.document.transfer import Transfer as How
from meshwave.engine.resharding import Link, Links, Load, Tensor, Transfer, UnitTask, plan, unit_tasks
from meshwave.engine.resharding import Mesh as Grid

SPEC = ("S0", "R", "R")
"""How what passes between stages lies on a mesh of ``dp x tp``."""
SENT = {"batch": SPEC, "sequence": ("S0", "S1", "R"), "hidden": ("S0", "R", "S1")}
"""By ``transfer.boundary`` the part of it that each device of the source sends."""
SMALLEST_CHUNK_BYTES = 2**15
"""A chunk that is smaller costs more in the processes that pass it on than the links' alpha tells."""


def crossing(design: Design, source: int, destination: int, tensors: int = 1) -> Transfer:
    """The boundary from one mesh to another, with the devices of the cluster as ranks."""
    devices = _devices(design, source, destination)
    known = _known(design, source, destination, tensors)
    return renamed(known, dict(enumerate(devices)))


def renamed(transfer: Transfer, names: Mapping[int, int]) -> Transfer:
    """The same plan with its ranks called otherwise."""

    def side(mesh: Grid, spec: Sequence[str]) -> tuple[Grid, Sequence[str]]:
        return replace(mesh, ranks=tuple(names[rank] for rank in mesh.ranks)), spec

    links = replace(transfer.links, host={names[rank]: host for rank, host in transfer.links.host.items()})
    planned = tuple(each._replace(sender=names[each.sender]) for each in transfer.plan.tasks)
    plan = replace(transfer.plan, tasks=planned)
    load = Load(transfer.tensor, side(*transfer.source), side(*transfer.destination))
    return Transfer.of([load], links, plan)


def is_direct(source: Mesh, destination: Mesh) -> bool:
    """Whether device ``i`` of one mesh has what device ``i`` of the other needs, and nobody else needs it."""
    return source.dp == destination.dp and source.tp == destination.tp == 1


def crossing_seconds(design: Design, source: int, destination: int, tensors: int = 1) -> float:
    """How long it takes from the first byte to the last."""
    ends = design.meshes[source], design.meshes[destination]
    if is_direct(*ends):
        share = tensor_of(design, tensors).bytes / ends[0].dp
        messages = (Message(*pair, share) for pair in zip(ends[0].devices, ends[1].devices, strict=True))
        return transfer_seconds(design.cluster, messages)
    return _known(design, source, destination, tensors).played_s


def crossing_messages(design: Design, source: int, destination: int, tensors: int = 1) -> list[Message]:
    """Every message between devices of the plan that a crossing follows."""
    devices, found = _devices(design, source, destination), _known(design, source, destination, tensors)
    item = [task.bytes / task.elements if task.elements else 0.0 for task in found.tasks]
    return [
        Message(devices[move.source], devices[move.target], move.elements * item[move.task]) for move in found.moves
    ]


def crossing_bytes(design: Design, source: int, destination: int, tensors: int = 1) -> float:
    """What moves in all, over the devices of the source: whatever the plan, each receiver gets its part once."""
    ends = design.meshes[source], design.meshes[destination]
    return tensor_of(design, tensors).bytes * ends[1].tp / len(ends[0].devices)


def tensor_of(design: Design, tensors: int = 1) -> Tensor:
    """What all copies together hand on for one microbatch: ``[sequences, s, h]``, of several side by side."""
    sequences = design.training.micro_batch_size * design.meshes[0].dp
    item = PRECISIONS[design.training.precision].item
    return Tensor((sequences, design.model.sequence, tensors * design.model.hidden), item)


def _devices(design: Design, source: int, destination: int) -> list[int]:
    return sorted({*design.meshes[source].devices, *design.meshes[destination].devices})


def _known(design: Design, source: int, destination: int, tensors: int) -> Transfer:
    """The crossing with devices and nodes numbered from 0: most boundaries of a pipeline are alike."""
    devices = _devices(design, source, destination)
    place = {device: number for number, device in enumerate(devices)}
    nodes = sorted({design.cluster.node_of(device) for device in devices})
    host = {device: nodes.index(design.cluster.node_of(device)) for device in devices}
    grids = [
        Grid((mesh.dp, mesh.tp), tuple(place[d] for d in mesh.devices), tuple(host[d] for d in mesh.devices))
        for mesh in (design.meshes[source], design.meshes[destination])
    ]
    return _planned(design.cluster, *grids, tensor_of(design, tensors), design.transfer)


@lru_cache(maxsize=256)
def _planned(cluster: Cluster, source: Grid, destination: Grid, tensor: Tensor, how: How) -> Transfer:
    sides = (source, SENT[how.boundary]), (destination, SPEC)
    tasks = unit_tasks(tensor, *sides[0], *sides[1])
    links = _links(cluster, source, destination, tasks)
    found = plan(tensor, *sides, links, strategy=how.strategy, ordering=how.ordering)
    most = most_chunks(tasks)
    if any(each.chunks > most for each in found.tasks):
        found = plan(tensor, *sides, links, strategy=how.strategy, ordering=how.ordering, chunks=most)
    return Transfer.of([Load(tensor, *sides)], links, found)


def most_chunks(tasks: Iterable[UnitTask]) -> int:
    """As many as leave none of a task's chunks too small for the processes that pass them on."""
    return max(1, min((task.bytes for task in tasks), default=1) // SMALLEST_CHUNK_BYTES)


def _links(cluster: Cluster, source: Grid, destination: Grid, tasks: Sequence[UnitTask]) -> Links:
    """Nodes are the hosts of the plan; where nothing needs leave its node, each device is one, with its own port."""
    node = {rank: host for grid in (source, destination) for rank, host in zip(grid.ranks, grid.hosts, strict=True)}
    near, far = (Link(link.latency_s, link.bandwidth) for link in (cluster.intra_node, cluster.inter_node))
    nodes = [({node[rank] for rank in task.senders}, {node[rank] for rank in task.receivers}) for task in tasks]
    if all(len(needing) <= 1 and needing <= owning for owning, needing in nodes):
        return Links(near, near, {rank: rank for rank in node})
    return Links(near, far, node, cluster.nics_per_node)
