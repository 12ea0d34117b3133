"""Load of the ports of a design in a step, and lower bounds of the step time.

Three lower bounds are valid for every prediction, because sharing of links only causes delays:

- the *network*: a port cannot exceed its capacity;
- the *critical path*: the makespan if each transfer and collective had its links to itself;
- *compute*: the computing time of the busiest mesh.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs import Costs
from meshwave.engine.program.program import Program
from meshwave.engine.program.shared_links import Network, Port, PortKind
from meshwave.engine.program.simulation import flow_bytes
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.units import percent

Floats = NDArray[np.float64]
Binding = Literal["network", "compute", "critical_path"]

EQUAL_BOUNDS_WITHIN = 0.01
"""Relative difference up to which bounds count as equal; the more specific bound is then reported."""
PORT_NAMES: Mapping[PortKind, tuple[str, str]] = {
    "nic-out": ("NIC of node {}, outgoing", "NIC {} out"),
    "nic-in": ("NIC of node {}, incoming", "NIC {} in"),
    "nic-both": ("NIC of node {}, both directions", "NIC {} both"),
    "switch": ("switch inside node {}", "switch {}"),
    "uplink-out": ("uplink of leaf switch {}, outgoing", "uplink {} out"),
    "uplink-in": ("uplink of leaf switch {}, incoming", "uplink {} in"),
    "device-out": ("NIC of device {}, outgoing", "dev {} NIC out"),
    "device-in": ("NIC of device {}, incoming", "dev {} NIC in"),
    "link-out": ("link of device {}, outgoing", "dev {} out"),
    "link-in": ("link of device {}, incoming", "dev {} in"),
}
"""Name and label of each kind of port; a device uses one NIC of its node at a time."""
PORT_KIND_ORDER: Mapping[PortKind, int] = {kind: place for place, kind in enumerate(PORT_NAMES)}
PORT_GROUP_ORDER = ("nic", "switch", "uplink", "device", "link")
"""Order of kinds of ports; those of nodes precede those of devices."""
_GROUP_OF_KIND: Mapping[PortKind, int] = {kind: PORT_GROUP_ORDER.index(kind.partition("-")[0]) for kind in PORT_NAMES}


def port_name(port: Port) -> str:
    """Return the name of a port, such as ``NIC of node 1, outgoing``."""
    return PORT_NAMES[port.kind][0].format(port.number)


def port_label(port: Port) -> str:
    """Return the label of a port, such as ``NIC 1 out`` or ``dev 3 in``."""
    return PORT_NAMES[port.kind][1].format(port.number)


def is_device_port(port: Port) -> bool:
    """Return True if a port belongs to a single device."""
    return port.kind.startswith(("link", "device"))


class PortLoad(NamedTuple):
    """Load of a port in a step."""

    port: Port
    bytes: float | None  # bytes in a step; None for link-serial, which counts seconds
    busy_s: float  # lower bound: bytes divided by capacity
    share: float  # busy_s divided by the makespan

    def as_data(self) -> dict[str, Any]:
        """Return the load as JSON data."""
        named = {"name": port_name(self.port), "kind": self.port.kind, "number": self.port.number}
        return {**named, "bytes": self.bytes, "busy_s": self.busy_s, "share": self.share}


def port_loads(program: Program, costs: Costs, makespan_s: float) -> list[PortLoad]:
    """Return the load of every used port, sorted by :func:`port_order`."""
    network = costs.network
    if network is None or costs.unit != "s":
        return []
    carried = _load_per_port(program, costs.seconds, network)
    serial = network.units >= 0
    busy = carried / np.where(serial, np.maximum(1, network.units), network.capacity)
    loads = [
        PortLoad(port, None if alone else size, seconds, seconds / makespan_s if makespan_s else 0.0)
        for port, alone, size, seconds in zip(
            network.ports, serial.tolist(), carried.tolist(), busy.tolist(), strict=True
        )
    ]
    return sorted((load for load in loads if load.busy_s > 0), key=lambda load: port_order(load.port))


def port_order(port: Port) -> tuple[int, int, int]:
    """Return the sort key of a port: NICs first, by number, outgoing before incoming."""
    return _GROUP_OF_KIND[port.kind], port.number, PORT_KIND_ORDER[port.kind]


def _load_per_port(program: Program, seconds: Floats, network: Network) -> Floats:
    """Return the load of each port in a step, ``[ports]``: bytes, or seconds if a port is serial.

    A serial port carries one transfer at a time.
    """
    sizes = flow_bytes(program, seconds, network)
    of_kind = np.zeros(len(network.rate))
    for kind, of_rows in ((network.row_kind, sizes), (network.beside_kind, network.beside_bytes)):
        rows = np.flatnonzero(kind >= 0)
        of_kind += np.bincount(kind[rows], of_rows[rows], minlength=len(of_kind))
    use_kind = np.repeat(np.arange(len(network.rate)), np.diff(network.use_ptr))
    passed = of_kind[use_kind] * network.use_weight
    return np.asarray(np.bincount(network.use_port, passed, minlength=len(network.ports)), np.float64)


class Bounds(NamedTuple):
    """Lower bounds of the step time, and the name of the binding bound."""

    network_s: float | None  # bound of the busiest port; None if no links are shared
    critical_path_s: float
    busy_s: float  # bound of the busiest mesh
    port: Port | None
    mesh: str
    makespan_s: float
    binding: Binding

    @property
    def binding_s(self) -> float:
        """Value of the binding bound in seconds."""
        return {"network": self.network_s or 0.0, "compute": self.busy_s, "critical_path": self.critical_path_s}[
            self.binding
        ]

    @property
    def share(self) -> float:
        """Binding bound divided by the makespan."""
        return self._share(self.binding_s)

    @property
    def description(self) -> str:
        """Sentence without a full stop that names the bottleneck of the step."""
        port = (
            "" if self.port is None else f"the {port_name(self.port)}, is busy {self._percent(self.network_s or 0.0)}"
        )
        if self.binding == "network":
            return f"{port} of the step"
        if self.binding == "compute":
            return f"mesh {self.mesh} computes for {self._percent(self.busy_s)} of the step"
        path = f"the critical path without shared links takes {self._percent(self.critical_path_s)} of the step"
        if self.critical_path_s < (1 - EQUAL_BOUNDS_WITHIN) * self.makespan_s:
            path += ", and waiting for shared links takes the rest"
        return f"{path}; the busiest port, {port} of the step" if port else path

    def as_data(self) -> dict[str, Any]:
        """Return the bounds as JSON data."""
        port = None if self.port is None else {**self.port._asdict(), "name": port_name(self.port)}
        return {
            "network_s": self.network_s,
            "critical_path_s": self.critical_path_s,
            "busy_s": self.busy_s,
            "binding": self.binding,
            "binding_s": self.binding_s,
            "share": self.share,
            "port": port,
            "mesh": self.mesh,
            "words": self.description,
        }

    def _share(self, seconds: float) -> float:
        return seconds / self.makespan_s if self.makespan_s else 0.0

    def _percent(self, seconds: float) -> str:
        return percent(self._share(seconds))


def find_bounds(program: Program, costs: Costs, timeline: Timeline, loads: list[PortLoad]) -> Bounds | None:
    """Return the lower bounds of a prediction; None for unit costs, which define no bytes."""
    if costs.unit != "s":
        return None
    makespan = timeline.makespan
    busiest = max(loads, key=lambda load: load.busy_s, default=None)
    busy = timeline.busy
    mesh = int(np.argmax(busy))
    network_s = None if busiest is None else busiest.busy_s
    alone_s = makespan if costs.network is None else costs.simulate_without_sharing(program).makespan
    found: dict[Binding, float] = {"network": network_s or 0.0, "compute": float(busy[mesh]), "critical_path": alone_s}
    near = max(found.values()) - EQUAL_BOUNDS_WITHIN * makespan
    binding = next(name for name, seconds in found.items() if seconds >= near)
    port = None if busiest is None else busiest.port
    return Bounds(network_s, alone_s, found["compute"], port, timeline.meshes[mesh], makespan, binding)
