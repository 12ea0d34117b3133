"""Boundaries of a pipeline: the message between two meshes as a stand-alone transfer document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from meshwave.engine.costs.boundary_transfers import boundary_transfer, max_chunks
from meshwave.engine.document import Design
from meshwave.engine.document.meshes import find_mesh
from meshwave.engine.document.transfer_document import (
    TransferLink,
    TransferLinks,
    TransferSide,
    TransferSpec,
    TransferTensor,
)
from meshwave.engine.findings import Refusal
from meshwave.engine.program.program import Program
from meshwave.engine.resharding import Link, Mesh, Transfer, plan, unit_tasks


class Boundary(NamedTuple):
    """Largest message that one mesh sends to another."""

    source: int
    destination: int
    tensors: int  # number of tensors in the message


def find_boundary(design: Design, program: Program, wanted: str) -> Boundary:
    """Return the boundary ``A:B``, where A and B are names or numbers of meshes.

    Raises:
        InputError: a mesh does not exist, or A sends nothing to B.
    """
    sends = program.is_send
    pairs = sorted(set(zip(program.rank[sends].tolist(), program.peer[sends].tolist(), strict=True)))
    names = [mesh.name for mesh in design.meshes]
    known = ", ".join(f"{names[source]}:{names[target]}" for source, target in pairs[:LISTED_PAIRS])
    there_are = (
        f"the boundaries are {known}{', ...' * (len(pairs) > LISTED_PAIRS)}"
        if pairs
        else "this design sends nothing between meshes"
    )
    if not wanted:
        raise Refusal("missing_boundary", {"known": there_are})
    source, destination = _parse_ends(design, wanted, there_are)
    if (source, destination) not in pairs:
        raise Refusal("nothing_sent", {"source": names[source], "destination": names[destination], "known": there_are})
    there = sends & (program.rank == source) & (program.peer == destination)
    return Boundary(source, destination, int(program.tensors[there].max()))


LISTED_PAIRS = 12


def _parse_ends(design: Design, wanted: str, there_are: str) -> tuple[int, int]:
    """Return the ranks of both meshes of ``A:B``; a mesh name may contain a colon."""
    cuts = [at for at, letter in enumerate(wanted) if letter == ":"]
    if not cuts:
        raise Refusal("unreadable_boundary", {"boundary": wanted, "known": there_are})
    halves = [(wanted[:at], wanted[at + 1 :]) for at in cuts]
    names = {mesh.name for mesh in design.meshes}
    source, destination = next((pair for pair in halves if names.issuperset(pair)), halves[0])
    return find_mesh(design.meshes, source), find_mesh(design.meshes, destination)


def boundary_transfer_spec(design: Design, source: int, destination: int, tensors: int = 1) -> TransferSpec:
    """Return the transfer of ``tensors`` tensors of one microbatch from mesh ``source`` to mesh ``destination``.

    Activations are sent forward, their gradients backward. Ranks are device numbers of the cluster. Hosts are its
    nodes, or the devices themselves if every message stays inside a node.
    """
    found = boundary_transfer(design, source, destination, tensors)
    host = _cluster_hosts(design, found.links.host)
    return TransferSpec(
        format="meshwave-transfer/1",
        tensor=TransferTensor(shape=found.tensor.shape, item_bytes=found.tensor.item_bytes),
        source=_transfer_side(*found.source, host),
        destination=_transfer_side(*found.destination, host),
        links=TransferLinks(
            intra_node=_transfer_link(found.links.intra_node), inter_node=_transfer_link(found.links.inter_node)
        ),
        nics_per_host=found.links.nics,
        chunks=_limited_chunks(found),
    )


def _cluster_hosts(design: Design, host: Mapping[int, int]) -> dict[int, int]:
    """Return the host of each device in the numbering of the cluster; a plan numbers its hosts from 0."""
    node = {rank: design.cluster.node_of(rank) for rank in host}
    has_own_port = len({*host.values()}) > len({*node.values()})
    return {rank: rank for rank in host} if has_own_port else node


def _limited_chunks(found: Transfer) -> int | None:
    """Return the maximum number of chunks if the planner's optimum exceeds it, otherwise None."""
    most = max_chunks(unit_tasks(found.tensor, *found.source, *found.destination))
    best = plan(found.tensor, found.source, found.destination, found.links, strategy="broadcast", ordering="naive")
    return most if any(each.chunks > most for each in best.tasks) else None


def _transfer_side(mesh: Mesh, spec: Sequence[str], host: Mapping[int, int]) -> TransferSide:
    return TransferSide(
        shape=mesh.shape, ranks=mesh.ranks, hosts=tuple(host[rank] for rank in mesh.ranks), spec=tuple(spec)
    )


def _transfer_link(link: Link) -> TransferLink:
    return TransferLink(latency_s=link.latency_s, bandwidth=link.bandwidth)
