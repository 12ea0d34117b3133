"""Data sheets of devices, and node types, by name and with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated

from pydantic import Field

from meshwave.engine.document import Cluster
from meshwave.engine.document.cluster import Device, Link
from meshwave.engine.document.devices import Amount, device_kinds
from meshwave.engine.frozen import Part

EFFICIENCY = 0.5
"""Assumed fraction of peak FLOP/s in large matrix products, for devices without fitted constants."""
INTRA_NODE_LATENCY_S, INTER_NODE_LATENCY_S = 5e-6, 1e-5
"""Assumed latencies of links inside nodes, and between nodes, in seconds."""
ASSUMED = "Efficiency and latencies are assumed."


class DataSheet(Part):
    """Data sheet of a device."""

    name: str
    """Name of the device in a design."""
    vendor: str
    peak_flops: Amount
    """Dense 16-bit peak FLOP/s."""
    memory_bytes: Amount
    """Memory of one device in bytes."""
    memory_bandwidth: Amount
    """Bandwidth between a device and its memory in bytes/s."""
    link_bandwidth: Amount
    """Bandwidth of the link of a device inside the node, in one direction, in bytes/s."""
    host_bandwidth: Amount = 26e9
    """Bandwidth of copies to or from host memory in bytes/s, as measured on PCIe 3.0 (13 GB/s), PCIe 4.0, PCIe 5.0
    (52 GB/s) and NVLink-C2C (200 GB/s)."""
    source: str
    """Source of the numbers."""

    @property
    def device(self) -> Device:
        """The device as a section of a design."""
        return Device(
            name=self.name,
            peak_flops=self.peak_flops,
            memory_bytes=self.memory_bytes,
            memory_bandwidth=self.memory_bandwidth,
            host_bandwidth=self.host_bandwidth,
            efficiency=EFFICIENCY,
        )


class NodeType(Part):
    """Type of node: its devices, and the links inside and between nodes."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    title: str
    device: str
    """Name of the device."""
    devices_per_node: Annotated[int, Field(ge=1)]
    nics_per_node: Annotated[int, Field(ge=1)]
    nic_bandwidth: Amount
    """Bandwidth of one NIC in one direction, in bytes/s."""
    link_bandwidth: Amount
    """Bandwidth of the link of a device inside the node, in one direction, in bytes/s."""
    source: str
    """Source of the numbers."""

    def cluster(self, nodes: int) -> Cluster:
        """Return a cluster of ``nodes`` nodes with this hardware."""
        return Cluster(
            nodes=nodes,
            devices_per_node=self.devices_per_node,
            nics_per_node=self.nics_per_node,
            device=data_sheets()[self.device].device,
            intra_node=Link(latency_s=INTRA_NODE_LATENCY_S, bandwidth=self.link_bandwidth),
            inter_node=Link(latency_s=INTER_NODE_LATENCY_S, bandwidth=self.nic_bandwidth),
        )


class _Table(Part):
    devices: tuple[DataSheet, ...]
    nodes: tuple[NodeType, ...]


@cache
def _load_table() -> _Table:
    return _Table.model_validate_json(resources.files(__package__).joinpath("hardware.json").read_bytes())


@cache
def data_sheets() -> Mapping[str, DataSheet]:
    """Return the data sheets of all devices by name, including devices with fitted constants."""
    fields = set(DataSheet.model_fields)
    fitted = [
        DataSheet(vendor="NVIDIA", source=kind.origin["data sheet"], **kind.model_dump(include=fields))
        for kind in device_kinds().values()
    ]
    found = {each.name: each for each in (*fitted, *_load_table().devices)}
    return dict(sorted(found.items(), key=lambda item: (item[1].vendor != "NVIDIA", item[1].vendor, item[0])))


def node_types() -> Mapping[str, NodeType]:
    """Return all node types by name."""
    return {node.name: node for node in _load_table().nodes}
