"""Kinds of devices: data sheets, and the constants of the roofline cost model, one JSON file each with its sources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated

from pydantic import Field

from meshwave.engine.frozen import Part

Amount = Annotated[float, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=1)]


class Constants(Part):
    """Constants that turn FLOPs and bytes into seconds on one kind of device, the same for every model and design."""

    product_efficiency: Share
    """Share of the peak that large 16-bit matrix products sustain."""
    product_8bit_efficiency: Share
    """Share of the 8-bit peak that the matrix products of linear layers sustain, with the casts around them."""
    attention_efficiency: Share
    """Share of the 16-bit peak that the forward of an attention kernel made for the device sustains on the pairs inside
    the mask."""
    eager_attention_efficiency: Share
    """The same for the attention kernel of an older generation that frameworks without tuned kernels use."""
    memory_efficiency: Share
    """Share of the memory bandwidth that fused norms, activations and residual sums, and the optimizer, sustain."""
    eager_memory_efficiency: Share
    """Share of the memory bandwidth that unfused elementwise kernels sustain, including their casts and copies."""
    kernel_s: Seconds
    """Fixed seconds of an operator: launch, fill and drain."""
    intra_node_efficiency: Share
    """Share of the bandwidth of a device's link inside the node that collectives and messages sustain."""
    inter_node_efficiency: Share
    """Share of the bandwidth of a NIC that collectives and messages sustain."""
    intra_node_latency_s: Seconds
    """Seconds of one step of a collective inside a node."""
    inter_node_latency_s: Seconds
    """Seconds of one step of a collective between nodes."""
    overlap: Annotated[float, Field(ge=0, le=1)]
    """Fraction of the concurrent compute time that can hide communication: of the last backward for data parallelism,
    of the adjacent matrix products for overlapped tensor parallelism."""


class DeviceKind(Part):
    """A kind of device: the numbers of its data sheet, and its constants."""

    name: str
    """Name of the device in a design; its constants price every design whose device has this name."""
    peak_flops: Amount
    """Dense 16-bit FLOP/s."""
    memory_bytes: Amount
    """Memory of one device."""
    memory_bandwidth: Amount
    """Bytes/s between a device and its own memory."""
    multiprocessors: int
    """Streaming multiprocessors, which compute one tile of a matrix product each."""
    link_bandwidth: Amount
    """Bytes/s of a device's link inside the node, in one direction."""
    linked_devices: int
    """Number of devices connected by these links (size of the NVLink domain)."""
    nics: int
    """Number of NICs per linked_devices devices in the vendor's reference system."""
    nic_bandwidth: Amount
    """Bytes/s of one NIC, in one direction."""
    constants: Constants
    origin: Mapping[str, str]
    """Source of the data sheet and of each constant."""


@cache
def device_kinds() -> Mapping[str, DeviceKind]:
    """Return all kinds of devices by name, sorted."""
    files = (file for file in resources.files(__name__).iterdir() if file.name.endswith(".json"))
    found = [DeviceKind.model_validate_json(file.read_bytes()) for file in files]
    return {kind.name: kind for kind in sorted(found, key=lambda kind: kind.name)}


def find_device_kind(name: str) -> DeviceKind | None:
    """Return the kind of the device called ``name``; None if it is unknown."""
    return (_replaced or device_kinds()).get(name)


_replaced: dict[str, DeviceKind] = {}


def replace_device_kinds(kinds: Mapping[str, DeviceKind]) -> None:
    """Use other kinds of devices in the rest of the process, while their constants are fitted."""
    _replaced.clear()
    _replaced.update(kinds)
