"""Hardware of a design: nodes of equal devices, and the links inside and between them."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Self

from pydantic import Field, model_validator

from meshwave.engine.document.devices import Constants, find_device_kind
from meshwave.engine.findings import set_key_fix
from meshwave.engine.frozen import Part, Printable, nullable, validation_error

Rate = Annotated[float, Field(ge=1, le=1e24)]
"""Number of bytes or FLOPs, or such a number per second; limited so that sums stay finite."""

MAX_DEVICES = 16_384
"""Maximum number of devices of a cluster that the page can draw."""

MAX_MESHES = 4096
"""Maximum number of meshes of a design, and thus of ranks of a pipeline."""

MAX_PER_NODE = 1024
"""Maximum number of devices of a node, and of its NICs."""

Expense = Annotated[float, Field(ge=0, le=1e9)]

Nics = Annotated[int, Field(ge=1, le=MAX_PER_NODE)]


class Device(Part):
    """One accelerator or CPU slot, as specified in its data sheet."""

    name: Annotated[str, Printable] = "device"
    """Displayed name."""
    peak_flops: Rate
    """Dense matrix FLOP/s at the training precision."""
    memory_bytes: Rate
    """Memory of one device in bytes."""
    memory_bandwidth: Rate
    """Bandwidth between a device and its memory in bytes/s."""
    host_bandwidth: Rate = 26e9
    """Bandwidth of copies between a device and the memory of its host, in one direction, in bytes/s. The default was
    measured on PCIe 4.0."""
    efficiency: Annotated[float, Field(ge=1e-6, le=1)] = 0.5
    """Fraction of the peak FLOP/s in large matrix products. Not used for devices with built-in performance
    constants."""

    @cached_property
    def constants(self) -> Constants | None:
        """Performance constants of the device with this name; None if there are none."""
        kind = find_device_kind(self.name)
        return kind.constants if kind else None


class Link(Part):
    """Connection that takes ``latency_s + bytes / bandwidth``, independently in each direction."""

    latency_s: Annotated[float, Field(ge=0, le=1e6)]
    """Fixed seconds per message (alpha)."""
    bandwidth: Rate
    """Bandwidth of one link or NIC in one direction, in bytes/s."""

    def derate(self, efficiency: float, latency_s: float) -> Link:
        """Return the link with a fraction of its bandwidth, at least 1 byte/s, and with another latency."""
        return Link(latency_s=latency_s, bandwidth=max(1.0, efficiency * self.bandwidth))


class Uplink(Part):
    """Link between a leaf switch, which joins several nodes, and the rest of the network."""

    nodes: Annotated[int, Field(ge=1, le=4096)]
    """Number of nodes of each leaf switch; nodes are numbered switch by switch."""
    bandwidth: Rate
    """Bandwidth in one direction for all messages that leave a leaf switch, in bytes/s."""


class Cluster(Part):
    """Nodes of equal devices, numbered row by row: device ``d`` is on node ``d // devices_per_node``."""

    nodes: Annotated[int, Field(ge=1, le=4096)]
    """Number of machines in the cluster."""
    devices_per_node: Annotated[int, Field(ge=1, le=MAX_PER_NODE)]
    """Number of devices in each machine."""
    nics_per_node: Nics = 1
    """Number of NICs that the devices of a node share for messages to other nodes."""
    device: Device
    intra_node: Link
    inter_node: Link
    node_bandwidth: Rate | None = nullable("limited only by the link of each device")
    """Total bandwidth between the devices of a node in bytes/s, as limited by a PCIe switch."""
    uplink: Uplink | None = nullable("the network between nodes is as fast as all NICs together")
    """Uplinks of leaf switches that are slower than the NICs below them."""
    sends_in_order: bool = False
    """A device sends its messages to other nodes one after another, in the order in which it produced them. Otherwise,
    messages to different devices share its NIC at the same time."""
    price_per_device_hour: Expense | None = nullable("no price is predicted")
    """Price of one device for one hour, in any currency."""
    watts_per_device: Expense | None = nullable("no energy is predicted")
    """Mean power in watts of one device during training, including its share of the node."""

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        if self.devices > MAX_DEVICES:
            fewer = MAX_DEVICES // self.devices_per_node
            sizes = {"nodes": self.nodes, "devices_per_node": self.devices_per_node, "devices": self.devices}
            params = {**sizes, "maximum": MAX_DEVICES, "fewer": fewer}
            raise validation_error("nodes", "cluster_size", params, set_key_fix("nodes", fewer))
        return self

    @cached_property
    def link_inside_node(self) -> Link:
        """Link for messages inside a node: derated by the constants of the device if it has some."""
        link, found = self.intra_node, self.device.constants
        return link.derate(found.intra_node_efficiency, found.intra_node_latency_s) if found else link

    @cached_property
    def link_between_nodes(self) -> Link:
        """Link for messages between nodes: derated by the constants of the device if it has some."""
        link, found = self.inter_node, self.device.constants
        return link.derate(found.inter_node_efficiency, found.inter_node_latency_s) if found else link

    @property
    def devices(self) -> int:
        """Number of devices of all nodes."""
        return self.nodes * self.devices_per_node

    def node_of(self, device: int) -> int:
        """Return the node number of a device."""
        return device // self.devices_per_node
