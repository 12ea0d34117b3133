"""Network of a design: its ports, and the bytes that transfers, reductions and exchanges send through them.

The cost model prices each flow as if it were alone. This module computes the use of ports by each flow, so that
:mod:`meshwave.engine.program.shared_links` can simulate all flows together:

- a message between two devices of a node passes the sender's outgoing and the receiver's incoming link;
- a message between nodes passes the NICs of both nodes, which all their devices share, and is never faster than one
  NIC; if a node has several NICs, a device uses one of them at a time;
- a node's switch and the uplinks of leaf switches are ports if the cluster defines them, or if a calibration found that
  two messages inside a node, or two directions of a NIC, slow each other down;
- a transfer between two meshes is one flow with the bytes of all messages of its plan;
- a ring of ``n`` devices sends ``2 (n
- 1) / n`` of its bytes over each of its hops, ``(n
- 1) / n`` for a gather or a scatter. If a ring spans several meshes, each mesh counts the hops that begin in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs.alpha_beta import Message
from meshwave.engine.costs.boundary_transfers import boundary_bytes, boundary_messages, is_direct
from meshwave.engine.costs.contention import UNMEASURED_LINK, LinkSharing
from meshwave.engine.costs.distinct_actions import Kinds
from meshwave.engine.document import Cluster, Design, Link
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.shared_links import Network, Port, PortKind

Floats = NDArray[np.float64]
Usage = dict[Port, float]
"""Bytes that pass through each port."""
MAX_MEASURED_CAPACITY = 2.0
"""Largest total rate that two simultaneous messages can reach, relative to one message.

A switch that carries both messages at full rate may be able to carry more.
"""

MAX_EXCHANGE_PHASES = 4
"""Maximum number of phases in which exchanges and computation alternate inside an action.

More phases cost simulation time and hardly change the makespan.
"""
UNLIMITED_RATE = 1e300
"""Rate in bytes/s of a port that carries one flow at a time, regardless of its size."""
SERIAL_PORTS = ("nic-out", "nic-in", "link-out", "link-in")
"""Ports that carry one transfer at a time in the transfer model link-serial."""


# ---- use of ports ----


class Fabric:
    """Ports of a cluster, their capacities, and the ports on the path between two devices."""

    def __init__(self, cluster: Cluster, sharing: LinkSharing = UNMEASURED_LINK) -> None:
        self.cluster, self._sharing = cluster, sharing
        self._between: dict[tuple[int, int], tuple[Port, ...]] = {}
        together = sharing.same_node_capacity
        together = None if together is None else max(1.0, min(together, 2 * sharing.same_node_duplex))
        limit = together * cluster.link_inside_node.bandwidth if together and together < MAX_MEASURED_CAPACITY else None
        drawn = [rate for rate in (cluster.node_bandwidth, limit) if rate is not None]
        self._switch = min(drawn, default=None)

    def ports(self, source: int, target: int) -> tuple[Port, ...]:
        """Return the ports on the path from one device to another."""
        if (source, target) not in self._between:
            self._between[source, target] = tuple(self._path_ports(source, target))
        return self._between[source, target]

    def _path_ports(self, source: int, target: int) -> Iterator[Port]:
        nodes = self.cluster.node_of(source), self.cluster.node_of(target)
        if nodes[0] == nodes[1]:
            yield from (Port("link-out", source), Port("link-in", target))
            if self._switch is not None:
                yield Port("switch", nodes[0])
            return
        yield from (Port("nic-out", nodes[0]), Port("nic-in", nodes[1]))
        if self.cluster.nics_per_node > 1:
            yield from (Port("device-out", source), Port("device-in", target))
        if self._sharing.across_nodes_duplex < 1:
            yield from (Port("nic-both", node) for node in nodes)
        uplink = self.cluster.uplink
        leaves = [node // uplink.nodes for node in nodes] if uplink else [0, 0]
        if leaves[0] != leaves[1]:
            yield from (Port("uplink-out", leaves[0]), Port("uplink-in", leaves[1]))

    def capacity(self, port: Port) -> float:
        """Return the capacity of a port in bytes/s."""
        return self._capacity[port.kind]

    @cached_property
    def _capacity(self) -> dict[PortKind, float]:
        nic = self.cluster.link_between_nodes.bandwidth
        nics = nic * max(float(self.cluster.nics_per_node), self._sharing.across_nodes_capacity)
        uplink = self.cluster.uplink.bandwidth if self.cluster.uplink else nic
        link = self.cluster.link_inside_node.bandwidth
        return {
            "nic-out": nics,
            "nic-in": nics,
            "nic-both": 2 * self._sharing.across_nodes_duplex * nics,
            "device-out": nic,
            "device-in": nic,
            "uplink-out": uplink,
            "uplink-in": uplink,
            "switch": self._switch or link,
            "link-out": link,
            "link-in": link,
        }

    def link_of(self, port: Port) -> Link:
        """Return the link of a port: the link inside a node, or the link between nodes."""
        near = port.kind in ("link-out", "link-in", "switch")
        return self.cluster.link_inside_node if near else self.cluster.link_between_nodes

    def usage(self, messages: Iterable[Message]) -> Usage:
        """Return the bytes that messages between devices send through each port."""
        found: Usage = defaultdict(float)
        for source, target, size in messages:
            if source != target:
                for port in self.ports(source, target):
                    found[port] += size
        return found


def ring_messages(cluster: Cluster, group: Sequence[int], size: float, rounds: int = 2) -> list[Message]:
    """Return the messages of a ring that passes through each node once.

    ``rounds`` is 2 for an all-reduce of ``size`` bytes, and 1 for an all-gather or a reduce-scatter of ``size`` bytes
    in total.
    """
    n = len(group)
    if n < 2:
        return []
    around = sorted(group, key=lambda device: (cluster.node_of(device), device))
    each = rounds * (n - 1) / n * size
    return [Message(one, other, each) for one, other in zip(around, (*around[1:], around[0]), strict=True)]


def transfer_messages(design: Design, source: int, destination: int, tensors: int) -> Iterable[Message]:
    """Return the messages between devices that make up one transfer between two meshes."""
    ends = design.meshes[source], design.meshes[destination]
    if not is_direct(design, source, destination):
        return boundary_messages(design, source, destination, tensors)
    share = boundary_bytes(design, source, destination, tensors)
    return [Message(*pair, share) for pair in zip(ends[0].ordered_devices, ends[1].ordered_devices, strict=True)]


# ---- the network of a program ----


class Exchange(NamedTuple):
    """Exchanges inside a kind of computation."""

    usage: Usage  # bytes of all exchanges
    seconds: float  # seconds of the exchanges alone
    phases: int  # number of alternations with computation


class NetworkBuilder:
    """Builder of a network: collects the kinds of flows, and raises seconds that are shorter than a port allows."""

    def __init__(self, fabric: Fabric, kinds: Kinds, seconds: Floats, *, serial: bool = False) -> None:
        """Initialize the builder without flows.

        Args:
            fabric: the ports.
            kinds: distinct actions of the program.
            seconds: [kinds] seconds of each action alone.
            serial: True if a NIC carries one flow at a time, and a flow takes its seconds regardless of its size.
        """
        self.fabric, self.seconds, self._serial = fabric, seconds.copy(), serial
        self._kinds = kinds
        self._ports: dict[Port, int] = {}
        self._capacity: list[float] = []
        self._units: list[int] = []
        self._flows: list[tuple[float, float, int]] = []  # latency, rate, connection
        self._uses: list[tuple[NDArray[np.int64], Floats]] = []
        self._connections: dict[object, int] = {}
        self._of_kind = np.full(len(kinds), -1, np.int64)
        self._exchanges: dict[int, Exchange] = {}

    def add_transfer(self, row: int, usage: Usage, connection: object, *, direct_bytes: float = 0.0) -> None:
        """Add the SENDs of kind ``row``; transfers on the same ``connection`` run one after another.

        A plan takes its price or the time of its ports, whichever is longer. If ``direct_bytes`` is given, it is the
        size of each of several messages without a plan, which take the time of their links and ports.
        """
        seconds = float(self.seconds[row])
        if not self._serial and seconds > 0:
            needed = self._latency_s(usage) + max(self._port_seconds(usage), self._link_seconds(usage, direct_bytes))
            seconds = needed if direct_bytes else max(seconds, needed)
            self.seconds[row] = seconds
        self._of_kind[row] = self._append_kind(usage, seconds, connection)

    def add_collective(self, row: int, usage: Usage, connection: object, *, measured: bool) -> None:
        """Add the reductions of kind ``row``. Unless ``measured``, they take at least the time that the ports need."""
        if usage and self.seconds[row] > 0:
            if not measured:
                self.seconds[row] = max(self.seconds[row], self._latency_s(usage) + self._port_seconds(usage))
            self._of_kind[row] = self._append_kind(usage, float(self.seconds[row]), connection)

    def add_exchange(self, row: int, usage: Usage, seconds: float, layers: int, *, measured: bool) -> None:
        """Add exchanges inside computations of kind ``row``, which take ``seconds`` of it without contention."""
        if not usage or seconds <= 0:
            return
        phases = max(1, min(layers, MAX_EXCHANGE_PHASES))
        needed = seconds if measured else max(seconds, phases * self._latency_s(usage) + self._port_seconds(usage))
        self.seconds[row] += needed - seconds
        self._exchanges[row] = Exchange(usage, needed, phases)

    def build(self, program: Program) -> Network | None:
        """Return the network; None if there are no flows."""
        of_row = self._kinds.of_row
        exchange_s, phases = np.zeros(len(program)), np.ones(len(program), np.int64)
        row_kind = self._of_kind[of_row]
        for slot_kind, rows in self._slots(program):
            found = [self._exchanges[kind] for kind in slot_kind if kind in self._exchanges]
            if not found:
                continue
            joined = _join_exchanges(found)
            parts = {port: size / joined.phases for port, size in joined.usage.items()}
            row_kind[rows] = self._append_kind(parts, joined.seconds / joined.phases, ("inside", slot_kind))
            exchange_s[rows], phases[rows] = joined.seconds, joined.phases
        if not self._flows:
            return None
        latency, rate, line = (np.array(column) for column in zip(*self._flows, strict=True))
        return Network(
            ports=tuple(self._ports),
            capacity=np.array(self._capacity),
            latency_s=latency,
            rate=rate,
            connection=line.astype(np.int64),
            use_ptr=np.cumsum([0, *(len(ports) for ports, _ in self._uses)]),
            use_port=np.concatenate([ports for ports, _ in self._uses]),
            use_weight=np.concatenate([weights for _, weights in self._uses]),
            row_kind=row_kind,
            exchange_s=exchange_s,
            parts=phases,
            units=np.array(self._units, np.int64),
        )

    def _slots(self, program: Program) -> Iterator[tuple[tuple[int, ...], NDArray[np.int64]]]:
        """Yield the one or two kinds of each distinct slot, and the first rows of these slots."""
        if not self._exchanges:
            return
        of_row = self._kinds.of_row.astype(np.int64)
        first = np.flatnonzero(program.is_compute & ~program.fused)
        second = np.where(program.next_is_fused[first], np.append(of_row, -1)[first + 1], -1)
        pairs, number = np.unique(of_row[first] * (len(self._kinds) + 1) + second + 1, return_inverse=True)
        order = np.argsort(number.reshape(-1), kind="stable")
        bounds = np.searchsorted(number.reshape(-1)[order], np.arange(len(pairs) + 1))
        for pair, (start, end) in zip(pairs.tolist(), pairwise(bounds.tolist()), strict=True):
            one, other = divmod(pair, len(self._kinds) + 1)
            yield ((one,) if other == 0 else (one, other - 1)), first[order[start:end]]

    def _append_kind(self, usage: Usage, seconds: float, connection: object) -> int:
        """Append a kind of flows and return its number; a flow that uses no port is a delay."""
        latency, used = min(seconds, self._latency_s(usage)), {port: size for port, size in usage.items() if size > 0}
        if self._serial:
            used = {port: size for port, size in used.items() if port.kind in SERIAL_PORTS}
            latency, rate, weights = 0.0, 1.0, np.ones(len(used))
        elif not used or seconds <= latency:
            latency, rate, used, weights = seconds, 1.0, {}, np.zeros(0)
        else:
            largest = max(used.values())
            rate = largest / (seconds - latency)
            # measured seconds may be shorter than a port allows; the flow then uses the whole port
            limits = [self.fabric.capacity(port) / rate for port in used]
            weights = np.minimum(np.array([size / largest for size in used.values()]), limits)
        self._flows.append((latency, rate, self._connections.setdefault(connection, len(self._connections))))
        self._uses.append((np.array([self._port_number(port) for port in used], np.int64), weights))
        return len(self._flows) - 1

    def _port_number(self, port: Port) -> int:
        if port not in self._ports:
            self._ports[port] = len(self._ports)
            self._capacity.append(UNLIMITED_RATE if self._serial else self.fabric.capacity(port))
            at_once = self.fabric.cluster.nics_per_node if port.kind in ("nic-out", "nic-in") else 1
            self._units.append(at_once if self._serial else -1)
        return self._ports[port]

    def _port_seconds(self, usage: Usage) -> float:
        return max((size / self.fabric.capacity(port) for port, size in usage.items()), default=0.0)

    def _link_seconds(self, usage: Usage, size: float) -> float:
        return size / min((self.fabric.link_of(port).bandwidth for port in usage), default=np.inf)

    def _latency_s(self, usage: Usage) -> float:
        return max((self.fabric.link_of(port).latency_s for port in usage), default=0.0)


def _join_exchanges(found: Sequence[Exchange]) -> Exchange:
    """Return the exchanges of both actions of a slot, one after the other."""
    usage = sum_usages(each.usage for each in found)
    return Exchange(usage, sum(each.seconds for each in found), max(each.phases for each in found))


def add_transfer_flows(builder: NetworkBuilder, design: Design, kinds: Kinds) -> None:
    """Add the messages between meshes to the network."""
    usage_of = cache(lambda *ends: builder.fabric.usage(transfer_messages(design, *ends)))
    for row in kinds.sends.tolist():
        ends, tensors = (int(kinds.rank[row]), int(kinds.peer[row])), int(kinds.tensors[row])
        direct_bytes = boundary_bytes(design, *ends, tensors) if is_direct(design, *ends) else 0.0
        builder.add_transfer(row, usage_of(*ends, tensors), ends, direct_bytes=direct_bytes)


def add_collective_flows(
    builder: NetworkBuilder,
    design: Design,
    kinds: Kinds,
    op: Op,
    messages: Mapping[int, Sequence[Message]],
    measured: bool,
) -> None:
    """Add the collectives ``op`` to the network.

    Each mesh that holds a stage sends those ``messages`` of the stage whose source is one of its devices.
    """
    for row in kinds.indices_of(op).tolist():
        rank = int(kinds.rank[row])
        mine = set(design.meshes[rank].devices)
        sent = (message for message in messages.get(int(kinds.stage[row]), ()) if message.source in mine)
        builder.add_collective(row, builder.fabric.usage(sent), (op.name, rank), measured=measured)


def sum_usages(usages: Iterable[Mapping[Port, float]]) -> dict[Port, float]:
    """Return the total of several usages per port."""
    total: defaultdict[Port, float] = defaultdict(float)
    for usage in usages:
        for port, size in usage.items():
            total[port] += size
    return dict(total)


def exchange_usage(fabric: Fabric, devices: Sequence[int], sent: Sequence[Sequence[float]]) -> Usage:
    """Return the bytes that a layer with experts sends through each port of a mesh.

    Args:
        fabric: the ports.
        devices: devices of the mesh; the layer runs on consecutive blocks of them.
        sent: [inside the node, to other nodes] [devices of a block] bytes that each device sends, distributed evenly
            over the other devices of its block there.
    """
    found: Usage = defaultdict(float)
    size = len(sent[0])
    for first in range(0, len(devices), size):
        _add_block_usage(found, fabric, devices[first : first + size], *sent)
    return found


def _add_block_usage(
    found: Usage, fabric: Fabric, block: Sequence[int], near: Sequence[float], far: Sequence[float]
) -> None:
    """Add the bytes of one block node by node, because there may be too many pairs of devices."""
    nodes: dict[int, list[int]] = defaultdict(list)  # positions in the block
    for place, device in enumerate(block):
        nodes[fabric.cluster.node_of(device)].append(place)
    each = {  # bytes that each device of another node receives from a node
        node: sum(far[place] for place in places) / max(1, len(block) - len(places)) for node, places in nodes.items()
    }
    for node, places in nodes.items():
        inside = sum(near[place] for place in places)
        if len(places) > 1:
            _add_node_usage(
                found, fabric, [block[place] for place in places], [near[place] for place in places], inside
            )
        comes = sum(each.values()) - each[node]
        for other, targets in nodes.items():
            if other == node:
                continue
            for port in fabric.ports(block[places[0]], block[targets[0]]):
                if port.kind not in ("device-out", "device-in"):
                    found[port] += each[node] * len(targets)
        if len(nodes) > 1 and fabric.cluster.nics_per_node > 1:
            for place in places:
                found[Port("device-out", block[place])] += far[place]
                found[Port("device-in", block[place])] += comes


def _add_node_usage(found: Usage, fabric: Fabric, devices: Sequence[int], sent: Sequence[float], total: float) -> None:
    """Add the messages between devices of a node."""
    for device, size in zip(devices, sent, strict=True):
        found[Port("link-out", device)] += size
        found[Port("link-in", device)] += (total - size) / (len(devices) - 1)
    for port in fabric.ports(devices[0], devices[1]):
        if port.kind == "switch":
            found[port] += total


def serial_network(design: Design, program: Program, kinds: Kinds, seconds: Floats) -> Network | None:
    """Return a network whose NICs and links inside nodes carry one transfer at a time in each direction."""
    builder = NetworkBuilder(Fabric(design.cluster), kinds, seconds, serial=True)
    add_transfer_flows(builder, design, kinds)
    return builder.build(program)
