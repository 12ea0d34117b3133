"""What passes between two meshes of a pipeline, as a transfer that can be asked about alone."""

from __future__ import annotations

from collections.abc import Mapping

from engine.cost.crossings import crossing, most_chunks
from engine.design import Design
from engine.design.transfer_spec import TransferLink, TransferLinks, TransferSide, TransferSpec, TransferTensor
from engine.transfer import Link, Mesh, Transfer, plan


def crossing_spec(design: Design, source: int, destination: int, tensors: int = 1) -> TransferSpec:
    """The ``tensors`` of one microbatch on their way from mesh ``source`` to mesh ``destination``: activations
    forward, their gradients backward. Ranks are the devices of the cluster; hosts are its nodes, or the
    devices themselves where nothing needs leave a node."""
    found = crossing(design, source, destination, tensors)
    host = _hosts(design, found.links.host)
    return TransferSpec(
        format="meshwave-transfer/1",
        tensor=TransferTensor(shape=found.tensor.shape, item_bytes=found.tensor.item_bytes),
        source=_side(*found.source, host),
        destination=_side(*found.destination, host),
        links=TransferLinks(intra_node=_link(found.links.intra_node), inter_node=_link(found.links.inter_node)),
        nics_per_host=found.links.nics,
        chunks=_chunks(found),
    )


def _hosts(design: Design, host: Mapping[int, int]) -> dict[int, int]:
    """The hosts of a plan, which numbers them from 0, as the cluster calls them."""
    node = {rank: design.cluster.node_of(rank) for rank in host}
    has_own_port = len({*host.values()}) > len({*node.values()})
    return {rank: rank for rank in host} if has_own_port else node


def _chunks(found: Transfer) -> int | None:
    """The number of chunks where the best would make them too small for the processes that pass them on."""
    most = most_chunks(found.tasks)
    best = plan(found.tensor, found.source, found.destination, found.links, strategy="broadcast", ordering="naive")
    return most if any(each.chunks > most for each in best.tasks) else None


def _side(mesh: Mesh, spec: tuple[str, ...], host: Mapping[int, int]) -> TransferSide:
    return TransferSide(shape=mesh.shape, ranks=mesh.ranks, hosts=tuple(host[rank] for rank in mesh.ranks), spec=spec)


def _link(link: Link) -> TransferLink:
    return TransferLink(latency_s=link.latency_s, bandwidth=link.bandwidth)
