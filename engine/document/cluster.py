"""The hardware: nodes of equal devices, and the links inside and between them."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from meshwave.engine.frozen import Part, Printable

Rate = Annotated[float, Field(ge=1, le=1e24)]
"""A number of bytes, FLOP or either of them a second; within what any sum of them can still hold."""

MOST_DEVICES = 4096
"""Of a cluster: as many as the page can draw and a person can look at."""


MOST_OF_A_NODE = 1024
"""Devices of a node, and NICs that they share."""

Nics = Annotated[int, Field(ge=1, le=MOST_OF_A_NODE)]


class Device(Part):
    """One accelerator (or CPU core) as its data sheet has it."""

    name: Annotated[str, Printable] = "device"
    """What people call it."""
    peak_flops: Rate
    """Dense matrix FLOP/s at the training precision."""
    memory_bytes: Rate
    """Memory of one device."""
    memory_bandwidth: Rate
    """Bytes/s between a device and its own memory."""
    efficiency: Annotated[float, Field(ge=1e-6, le=1)] = 0.5
    """The share of the peak that large matrix products reach."""


class Link(Part):
    """A connection that costs ``latency_s + bytes / bandwidth``, each direction on its own."""

    latency_s: Annotated[float, Field(ge=0, le=1e6)]
    """Seconds that any message takes at least (alpha)."""
    bandwidth: Rate
    """Bytes/s in one direction of one link or NIC."""


class Uplink(Part):
    """The link between a leaf switch, which joins some nodes, and the rest of the network."""

    nodes: Annotated[int, Field(ge=1, le=4096)]
    """Nodes at each leaf switch, numbered in order."""
    bandwidth: Rate
    """Bytes/s in one direction, of all that leaves a leaf switch at once."""


class Cluster(Part):
    """Nodes of equal devices, numbered row by row: device ``d`` is on node ``d // devices_per_node``."""

    nodes: Annotated[int, Field(ge=1, le=4096)]
    """Machines in the cluster."""
    devices_per_node: Annotated[int, Field(ge=1, le=MOST_OF_A_NODE)]
    """Devices in each machine."""
    nics_per_node: Nics = 1
    """NICs that the devices of a node share when they talk to other nodes at once."""
    device: Device
    intra_node: Link
    inter_node: Link
    node_bandwidth: Rate | None = None
    """Bytes/s that the devices of a node exchange with each other at once, as a PCIe switch limits it; null: no limit
    but that of each device's link."""
    uplink: Uplink | None = None
    """Uplinks of leaf switches, where they are slower than the NICs below them; null: the network between nodes is as
    fast as all NICs."""

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        if self.devices > MOST_DEVICES:
            raise PydanticCustomError(
                "cluster_size",
                "{nodes} x {devices_per_node} are {devices} devices, and a cluster has at most {most}; "
                "use {fewer} nodes or fewer",
                {
                    "nodes": self.nodes,
                    "devices_per_node": self.devices_per_node,
                    "devices": self.devices,
                    "most": MOST_DEVICES,
                    "fewer": MOST_DEVICES // self.devices_per_node,
                },
            )
        return self

    @property
    def devices(self) -> int:
        """How many devices there are in all."""
        return self.nodes * self.devices_per_node

    def node_of(self, device: int) -> int:
        return device // self.devices_per_node
