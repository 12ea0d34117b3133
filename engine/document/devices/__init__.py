"""Kinds of devices: data sheets, and the constants of the roofline cost model, one JSON file each with its sources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Literal

from pydantic import Field

from meshwave.engine.frozen import Part, option_labels

Amount = Annotated[float, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=1)]
GRAPH_KERNEL_S = 2e-6
"""Fixed seconds of a kernel that a CUDA graph launches: 1 to 3 µs, where a host takes 4 to 6 µs for each launch."""
FORMAT_RATES = {"fp8": 2.0, "fp4": 4.0}
"""Peak FLOP/s of a number format, relative to 16 bits."""
CAST_BYTES = {"fp8": 4.0, "fp4": 3.0}
"""Bytes that the cast of an element to a number format moves: a read in 16 bits, and a copy for products of its rows and one
for products of its columns."""
Graphs = Annotated[
    Literal["none", "router", "attention", "step"],
    option_labels({"none": "None", "router": "Router", "attention": "Attention and router", "step": "Whole step"}),
]
GraphPart = Literal["router", "attention"]
"""Part of a layer that a CUDA graph of its own can launch, with the norm before it; shared experts belong to the router."""
GRAPH_PARTS: Mapping[Graphs, tuple[GraphPart, ...]] = {
    "none": (),
    "router": ("router",),
    "attention": ("router", "attention"),
    "step": (),
}
"""Parts of layers that CUDA graphs of parts launch."""
AttentionKernel = Annotated[
    Literal["default", "flash_2", "flash_3", "cudnn", "unfused"],
    option_labels(
        {
            "default": "Default of the device",
            "flash_2": "FlashAttention-2",
            "flash_3": "FlashAttention-3",
            "cudnn": "cuDNN",
            "unfused": "Unfused",
        }
    ),
]


class Constants(Part):
    """Constants that convert FLOPs and bytes to seconds on one kind of device, for every model and design."""

    product_efficiency: Share
    """Fraction of the peak FLOP/s in large 16-bit matrix products."""
    product_8bit_efficiency: Share
    """Fraction of the 8-bit peak FLOP/s in matrix products of linear layers, without their casts."""
    attention_efficiency: Share
    """Fraction of the 16-bit peak FLOP/s in the forward of an attention kernel made for the device, counting pairs
    inside the mask."""
    eager_attention_efficiency: Share
    """Fraction of the 16-bit peak FLOP/s in the attention kernel of an older generation, which frameworks without tuned
    kernels use.
    """
    memory_efficiency: Share
    """Fraction of the memory bandwidth in fused norms, activations and residual sums, and in the optimizer."""
    eager_memory_efficiency: Share
    """Fraction of the memory bandwidth in unfused elementwise kernels, including their casts and copies."""
    kernel_s: Seconds
    """Fixed duration of an operator in seconds: launch, fill and drain."""
    intra_node_efficiency: Share
    """Fraction of the bandwidth of a device's link inside the node in collectives and messages."""
    inter_node_efficiency: Share
    """Fraction of the bandwidth of a NIC in collectives and messages."""
    intra_node_latency_s: Seconds
    """Seconds of one step of a collective inside a node."""
    inter_node_latency_s: Seconds
    """Seconds of one step of a collective between nodes."""
    overlap: Annotated[float, Field(ge=0, le=1)]
    """Fraction of the concurrent computing time that can hide communication: of the last backward for data parallelism,
    of the block beside it for sharded weights and gradients, of the adjacent matrix products for overlapped tensor
    parallelism."""

    def launched_kernel_s(self, graphs: Graphs, part: GraphPart | None) -> float:
        """Return the fixed seconds of a kernel of a part of a layer: of one that a CUDA graph launches, or the host."""
        return GRAPH_KERNEL_S if graphs == "step" or part in GRAPH_PARTS[graphs] else self.kernel_s


class DeviceKind(Part):
    """Kind of device: the numbers of its data sheet, and its performance constants."""

    name: str
    """Name of the device in a design; its constants price every design whose device has this name."""
    peak_flops: Amount
    """Dense 16-bit peak FLOP/s."""
    memory_bytes: Amount
    """Memory of one device in bytes."""
    memory_bandwidth: Amount
    """Bandwidth between a device and its memory in bytes/s."""
    host_bandwidth: Amount
    """Measured bandwidth of copies to or from host memory in bytes/s, by the generation of PCIe or of NVLink-C2C."""
    multiprocessors: int
    """Number of streaming multiprocessors, each of which computes one tile of a matrix product."""
    link_bandwidth: Amount
    """Bandwidth of the link of a device inside the node, in one direction, in bytes/s."""
    linked_devices: int
    """Number of devices connected by these links (size of the NVLink domain)."""
    nics: int
    """Number of NICs per linked_devices devices in the vendor's reference system."""
    nic_bandwidth: Amount
    """Bandwidth of one NIC in one direction, in bytes/s."""
    constants: Constants
    blocking_launch_s: Seconds
    """Additional seconds of an operator whose kernels are launched one by one, each after the end of the previous one."""
    switch_reduction_efficiency: Share | None = None
    """Fraction of the bandwidth of a device's link in all-reduces whose sums the switches of the node compute (NVLS),
    counting the bytes that a device sends; None if switches do not sum."""
    attention_kernels: Mapping[AttentionKernel, Share] = {}
    """Measured fraction of the 16-bit peak FLOP/s in the forward of attention kernels, counting pairs inside the mask.
    Kernels that are missing here have ``attention_efficiency``."""
    origin: Mapping[str, str]
    """Source of the data sheet and of each constant."""


@cache
def device_kinds() -> Mapping[str, DeviceKind]:
    """Return all kinds of devices by name, sorted."""
    files = (file for file in resources.files(__name__).iterdir() if file.name.endswith(".json"))
    found = [DeviceKind.model_validate_json(file.read_bytes()) for file in files]
    return {kind.name: kind for kind in sorted(found, key=lambda kind: kind.name)}


def find_device_kind(name: str) -> DeviceKind | None:
    """Return the kind of the device with the given name; None if the name is unknown."""
    return (_replaced or device_kinds()).get(name)


_replaced: dict[str, DeviceKind] = {}


def replace_device_kinds(kinds: Mapping[str, DeviceKind]) -> None:
    """Replace the kinds of devices for the rest of the process, while their constants are fitted."""
    _replaced.clear()
    _replaced.update(kinds)
