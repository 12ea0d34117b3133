"""What passes between two meshes of a pipeline, as a transfer that can be asked about alone."""

from __future__ import annotations

from collections.abc import Mapping

from engine.cost.crossings import SPEC, crossing
from engine.design import Design
from engine.design.transfer_spec import TransferLink, TransferLinks, TransferSide, TransferSpec, TransferTensor
from engine.transfer import Link, Mesh


def crossing_spec(design: Design, source: int, destination: int) -> TransferSpec:
    """The tensor of one microbatch on its way from mesh ``source`` to mesh ``destination``: activations
    forward, their gradients backward. Ranks are the devices of the cluster; hosts are its nodes, or the
    devices themselves where nothing needs leave a node."""
    found = crossing(design, source, destination)
    return TransferSpec(
        format="meshwave-transfer/1",
        tensor=TransferTensor(shape=found.tensor.shape, item_bytes=found.tensor.item_bytes),
        source=_side(found.source[0], found.links.host),
        destination=_side(found.destination[0], found.links.host),
        links=TransferLinks(intra_node=_link(found.links.intra_node), inter_node=_link(found.links.inter_node)),
        nics_per_host=found.links.nics,
    )


def _side(mesh: Mesh, host: Mapping[int, int]) -> TransferSide:
    return TransferSide(shape=mesh.shape, ranks=mesh.ranks, hosts=tuple(host[rank] for rank in mesh.ranks), spec=SPEC)


def _link(link: Link) -> TransferLink:
    return TransferLink(latency_s=link.latency_s, bandwidth=link.bandwidth)
