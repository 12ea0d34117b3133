"""Map of expert layers: a grid of layers, each priced with every expert schedule on one of several clusters.

Parm's paper (arXiv:2407.00599) measured 1296 layers on a server with 8 GPUs and on a cluster with 32 GPUs. It states
neither the layers nor the speed of the links. This grid has the same number of layers, and its clusters differ in their
links, because these determine the fastest schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import ITEM_BYTES, device_rates
from meshwave.engine.document.expert_layers import cluster_links as cluster_links
from meshwave.engine.experts import Layer, Line, Links, Price, Rates, price_expert_schedule
from meshwave.engine.findings import Refusal, unknown_member_params
from meshwave.engine.units import quantity

Floats = NDArray[np.float64]

GRID: Mapping[str, tuple[float, ...]] = {
    "mp": (1, 2, 4),
    "esp": (2, 4),
    "top_k": (1, 2),
    "capacity_factor": (1.2, 2.4),
    "batch": (2, 8),
    "sequence": (512, 1024, 2048),
    "hidden": (1024, 2048, 4096),
    "width": (2, 3, 4),  # ratio of the expert hidden size to the hidden size
}
"""Sizes of the layers of the grid, by axis: 1296 layers."""
GRID_CORNERS: Mapping[str, tuple[float, ...]] = {
    name: values if name == "mp" else (values[0], values[-1]) for name, values in GRID.items()
}
"""Smallest and largest value of each axis: 384 of these layers, for comparisons of many clusters."""
PUBLISHED_GAINS = (1.13, 5.77)
"""Smallest and largest speed-up of Parm over DeepSpeed-MoE that its paper reports."""

SPREADING_SCHEDULES = ("deepspeed", "a2a-allgather", "parm-s1", "parm-s2")
"""Schedules that distribute the experts over all ranks; all need the same memory."""
GRID_SCHEDULES = ("expert-parallel", *SPREADING_SCHEDULES, "ppmoe")
"""Schedules in the grid.

Those that are not in :data:`SPREADING_SCHEDULES` replicate experts: they hold an expert on each of the ``esp`` devices
that would share it, or in every tensor-parallel group, and need that many times the memory.
"""

STATE_BYTES = 16
"""Bytes per parameter in training: value, gradient and two Adam moments in fp32."""


# ---- clusters ----

RTX_2080_TI = Rates(flops=0.5 * 13.45e12, memory=616e9)
"""Device of Parm's testbed, in fp32 at half of its peak rate."""


@dataclass(frozen=True)
class GridCluster:
    """Devices and links for which the layers of the grid are priced."""

    title: str
    description: str
    """Source of the link rates."""
    links: Links
    devices: int = 32
    devices_per_node: int = 4
    rates: Rates = RTX_2080_TI
    memory_bytes: float = 11e9
    """Memory of one device in bytes."""
    item_bytes: int = 4

    @property
    def nodes(self) -> tuple[int, ...]:
        """Node of each device, ``[devices]``."""
        return tuple(device // self.devices_per_node for device in range(self.devices))


PCIE = Line(1.07e-5, 2.24e-10)
NVLINK = Line(5e-6, 1 / 200e9)
NETWORK = Line(5.1e-6, 3.26e-10)
FITTED = "as fitted by FSMoE for its second testbed (8 nodes of 4 RTX 2080 Ti)"
SAME_GPUS = "same GPUs, so that only the links differ"

CLUSTERS: Mapping[str, GridCluster] = {
    "pcie": GridCluster(
        "PCIe, 100 Gb/s per node",
        f"links {FITTED}: 4.5 GB/s inside a node, 3.1 GB/s per GPU between nodes",
        Links(PCIE, NETWORK),
    ),
    "server": GridCluster(
        "PCIe, one server of 8",
        f"PCIe {FITTED}: 4.5 GB/s; all 8 GPUs are on one node, whose links are assumed to be as fast as in the testbed",
        Links(PCIE, NETWORK),
        devices=8,
        devices_per_node=8,
    ),
    "pcie-slow": GridCluster(
        "PCIe, 10 Gb/s per node",
        f"PCIe {FITTED}: 4.5 GB/s; a network of 10 Gb/s per node is assumed, 0.31 GB/s per GPU",
        Links(PCIE, Line(2e-5, 4 / 1.25e9)),
    ),
    "nvlink": GridCluster(
        "NVLink, 100 Gb/s per GPU",
        f"NVLink of 200 GB/s and a network of 100 Gb/s per GPU, 12.5 GB/s, are assumed; {SAME_GPUS}",
        Links(NVLINK, Line(1e-5, 1 / 12.5e9)),
    ),
    "nvlink-slow": GridCluster(
        "NVLink, 100 Gb/s per node",
        f"NVLink of 200 GB/s is assumed; the network is {FITTED}, 3.1 GB/s per GPU; {SAME_GPUS}",
        Links(NVLINK, NETWORK),
    ),
}
OWN_CLUSTER = "own"
"""Name that stands for the cluster of the open design."""


def find_cluster(name: str, design: Design) -> GridCluster:
    """Return the cluster with the given name; :data:`OWN_CLUSTER` stands for that of ``design``.

    Raises:
        InputError: the name is unknown.
    """
    if name == OWN_CLUSTER:
        return design_cluster(design)
    if name not in CLUSTERS:
        raise Refusal("unknown_member", unknown_member_params("cluster", name, {OWN_CLUSTER: "", **CLUSTERS}))
    return CLUSTERS[name]


def design_cluster(design: Design) -> GridCluster:
    """Return a cluster of 8, 16 or 32 devices with the device type, node size and links of ``design``.

    The layers of the grid need at least 8 devices: a smaller cluster is extended by nodes of its size.
    """
    cluster = design.cluster
    devices = next((size for size in (32, 16) if size <= cluster.devices), 8)
    per_node = min(cluster.devices_per_node, devices)
    links = cluster_links(cluster, per_node)
    inside, between = (quantity(1 / line.beta, "B/s") for line in (links.intra, links.inter))
    return GridCluster(
        "This design",
        f"devices and links of this design: {inside} inside a node, {between} per device between nodes",
        links,
        devices,
        per_node,
        device_rates(design),
        cluster.device.memory_bytes,
        ITEM_BYTES[design.training.precision],
    )


# ---- layers ----


class Grid(NamedTuple):
    """Times of the forward and backward of every layer, by schedule."""

    axes: Mapping[str, Floats]  # axis name -> [layers]
    seconds: Mapping[str, Floats]  # schedule -> [layers] seconds, including experts and gate
    communication_s: Mapping[str, Floats]  # schedule -> [layers] seconds of communication within ``seconds``
    memory_bytes: Mapping[str, Floats] = MappingProxyType({})  # schedule -> [layers] bytes of the experts' state
    cluster: GridCluster = CLUSTERS["pcie"]

    @property
    def parm_auto_seconds(self) -> Floats:
        """Seconds of each layer with the schedule that Parm chooses, ``[layers]``."""
        return np.where(self._chooses_s1(), self.seconds["parm-s1"], self.seconds["parm-s2"])

    def _chooses_s1(self) -> NDArray[np.bool_]:
        return self.communication_s["parm-s1"] <= self.communication_s["parm-s2"]

    @property
    def winner(self) -> NDArray[np.int64]:
        """Index of the fastest of :data:`SPREADING_SCHEDULES` for each layer, ``[layers]``."""
        return np.asarray(np.argmin([self.seconds[name] for name in SPREADING_SCHEDULES], axis=0))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the priced schedules."""
        return tuple(name for name in GRID_SCHEDULES if name in self.seconds)

    def fits(self, name: str) -> NDArray[np.bool_]:
        """Return True for layers whose experts fit into the memory of a device under a schedule, ``[layers]``."""
        return np.asarray(
            self.memory_bytes.get(name, np.zeros_like(self.parm_auto_seconds)) <= self.cluster.memory_bytes
        )

    @property
    def fastest(self) -> NDArray[np.int64]:
        """Index into :attr:`names` of the fastest schedule that fits each layer, ``[layers]``; of all if none fits."""
        return np.asarray(np.argmin(self._fitting_seconds(), axis=0))

    @property
    def speedup_over_second(self) -> Floats:
        """Time of the second fastest schedule divided by that of the fastest, ``[layers]``; 1 if only one fits."""
        first, second = np.sort(self._fitting_seconds(), axis=0)[:2]
        ratio: Floats = np.where(np.isfinite(second), second, first) / first
        return ratio

    def _fitting_seconds(self) -> Floats:
        """Seconds, ``[schedules, layers]``; infinite if a schedule does not fit into memory but another one does."""
        fits = np.array([self.fits(name) for name in self.names])
        return np.where(fits | ~fits.any(axis=0), [self.seconds[name] for name in self.names], np.inf)

    def speedup(self, over: str = "deepspeed", name: str = "") -> Floats:
        """Return the speed-up of schedule ``name``, by default Parm's choice, over schedule ``over``, ``[layers]``."""
        return self.seconds[over] / (self.seconds[name] if name else self.parm_auto_seconds)


@lru_cache(maxsize=16)
def price_grid(cluster: GridCluster, *, corners: bool = False) -> Grid:
    """Price every layer of :data:`GRID`, or of :data:`GRID_CORNERS`, with :data:`GRID_SCHEDULES`."""
    sizes = GRID_CORNERS if corners else GRID
    points = np.array(list(product(*sizes.values())))
    known: dict[Layer, list[tuple[float, ...]]] = {}  # many points are the same layer
    found = []
    for point in points.tolist():
        layer = _grid_layer(cluster, dict(zip(sizes, point, strict=True)))
        if layer not in known:
            known[layer] = [
                _training_figures(price_expert_schedule(name, layer, cluster.links, cluster.rates))
                for name in GRID_SCHEDULES
            ]
        found.append(known[layer])
    of_layers = np.array(found)  # [layers, schedules, 3]
    first, second, third = (
        {name: of_layers[:, at, part] for at, name in enumerate(GRID_SCHEDULES)} for part in range(3)
    )
    return Grid(dict(zip(sizes, points.T, strict=True)), first, second, third, cluster)


def _grid_layer(cluster: GridCluster, point: Mapping[str, float]) -> Layer:
    """Return the layer at a point of the grid; top-k is part of the capacity, so that equal layers are priced once."""
    esp, hidden = int(point["esp"]), int(point["hidden"])
    tokens, ep = int(point["batch"] * point["sequence"]), cluster.devices // esp
    routes = point["top_k"] * point["capacity_factor"]
    return Layer(
        mp=int(point["mp"]),
        ep=ep,
        esp=esp,
        experts=max(ep, int(max(GRID["mp"]))),  # PPMoE needs one expert for every tensor-parallel device
        tokens=tokens,
        hidden=hidden,
        ffn_hidden=int(point["width"] * hidden),
        capacity_factor=round(routes, 6),
        item_bytes=cluster.item_bytes,
        nodes=cluster.nodes,
    )


def _training_figures(priced: Price) -> tuple[float, ...]:
    """Return the seconds of forward and backward, their communication seconds, and the bytes of the experts' state."""
    both = (priced.forward, priced.backward)
    return sum(map(priced.seconds, both)), sum(map(priced.communication_s, both)), STATE_BYTES * priced.expert_weights
