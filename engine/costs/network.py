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
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs.boundary_transfers import boundary_bytes, boundary_messages, is_direct
from meshwave.engine.costs.distinct_actions import Kinds
from meshwave.engine.costs.fabric import Fabric
from meshwave.engine.costs.port_usage import (
    PORT_CODES,
    PORT_KINDS,
    Int64s,
    Messages,
    Usage,
    port_kinds,
    ports_of_codes,
    sum_usages,
)
from meshwave.engine.document import Design
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.shared_links import Network, Port

Floats = NDArray[np.float64]
MAX_EXCHANGE_PHASES = 4
"""Maximum number of phases in which exchanges and computation alternate inside an action.

More phases cost simulation time and hardly change the makespan.
"""
UNLIMITED_RATE = 1e300
"""Rate in bytes/s of a port that carries one flow at a time, regardless of its size."""
NIC_KINDS, LINK_KINDS = (
    [PORT_KINDS.index(kind) for kind in kinds] for kinds in (("nic-out", "nic-in"), ("link-out", "link-in"))
)
SERIAL_KINDS = [*NIC_KINDS, *LINK_KINDS]
"""Kinds of ports that carry one transfer at a time in the transfer model link-serial."""
NO_USAGE = Usage.from_mapping({})


def transfer_messages(design: Design, source: int, destination: int, tensors: int) -> Messages:
    """Return the messages between devices that make up one transfer between two meshes."""
    if not is_direct(design, source, destination):
        return boundary_messages(design, source, destination, tensors)
    share = boundary_bytes(design, source, destination, tensors)
    senders, receivers = (np.array(design.meshes[mesh].ordered_devices, np.int64) for mesh in (source, destination))
    return Messages(senders, receivers, np.full(len(senders), share))


class Exchange(NamedTuple):
    """Exchanges inside a kind of computation, or inside the optimizer steps of a rank."""

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
        self._ports: list[Int64s] = [np.empty(0, np.int64)]  # codes of the ports in the order of their numbers
        self._number = np.full(PORT_CODES, -1, np.int64)  # number of each port that is used
        self._flows: list[tuple[float, float, int]] = []  # latency, rate, connection
        self._uses: list[tuple[NDArray[np.int64], Floats]] = []
        self._connections: dict[object, int] = {}
        self._of_kind = np.full(len(kinds), -1, np.int64)
        self._exchanges: dict[int, Exchange] = {}
        self._beside: dict[int, Exchange] = {}

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
        """Add exchanges inside actions of kind ``row``, which take ``seconds`` of it without contention."""
        if not usage or seconds <= 0:
            return
        seconds = min(seconds, float(self.seconds[row]))  # actions of a measured run may be shorter
        phases = max(1, min(layers, MAX_EXCHANGE_PHASES))
        needed = seconds if measured else max(seconds, phases * self._latency_s(usage) + self._port_seconds(usage))
        self.seconds[row] += needed - seconds
        self._exchanges[row] = Exchange(usage, needed, phases)

    def add_beside(self, row: int, usage: Usage, seconds: float, layers: int, *, measured: bool) -> None:
        """Add collectives that run beside computations of kind ``row``, and take ``seconds`` without contention."""
        if not usage or seconds <= 0:
            return
        phases = max(1, min(layers, MAX_EXCHANGE_PHASES))
        if measured:  # a given or measured computation may be shorter
            seconds = min(seconds, float(self.seconds[row]))
        else:
            seconds = max(seconds, phases * self._latency_s(usage) + self._port_seconds(usage))
            self.seconds[row] = max(self.seconds[row], seconds)
        self._beside[row] = Exchange(usage, seconds, phases)

    def build(self, program: Program) -> Network | None:
        """Return the network; None if there are no flows."""
        of_row = self._kinds.of_row
        parts, (exchange_s, beside_s) = np.ones(len(program), np.int64), np.zeros((2, len(program)))
        row_kind = self._of_kind[of_row]
        beside_kind = np.full_like(row_kind, -1)
        for slot_kind, rows in self._slots(program):
            inside, beside = ([of[kind] for kind in slot_kind if kind in of] for of in (self._exchanges, self._beside))
            parts[rows] = count = max((each.phases for each in (*inside, *beside)), default=1)
            ways = ("inside", inside, row_kind, exchange_s), ("beside", beside, beside_kind, beside_s)
            for name, found, kind_of_row, seconds in ways:
                if found:  # those of both actions of a slot, one after the other
                    seconds[rows] = total = sum(each.seconds for each in found)
                    usage = sum_usages(each.usage for each in found).divide(count)
                    kind_of_row[rows] = self._append_kind(usage, total / count, (name, slot_kind))
        if not self._flows:
            return None
        latency, rate, line = (np.array(column) for column in zip(*self._flows, strict=True))
        ports = np.concatenate(self._ports)
        return Network(
            ports=tuple(ports_of_codes(ports)),
            capacity=np.full(len(ports), UNLIMITED_RATE) if self._serial else self.fabric.capacities(port_kinds(ports)),
            latency_s=latency,
            rate=rate,
            connection=line.astype(np.int64),
            use_ptr=np.cumsum([0, *(len(ports) for ports, _ in self._uses)]),
            use_port=np.concatenate([ports for ports, _ in self._uses]),
            use_weight=np.concatenate([weights for _, weights in self._uses]),
            row_kind=row_kind,
            exchange_s=exchange_s,
            beside_kind=beside_kind,
            beside_s=beside_s,
            parts=parts,
            units=self._units(ports),
        )

    def _slots(self, program: Program) -> Iterator[tuple[tuple[int, ...], NDArray[np.int64]]]:
        """Yield the one or two kinds of each distinct slot, and the first rows of these slots."""
        if not self._exchanges and not self._beside:
            return
        of_row = self._kinds.of_row.astype(np.int64)
        first = np.flatnonzero(program.is_work & ~program.fused)
        second = np.where(program.next_is_fused[first], np.append(of_row, -1)[first + 1], -1)
        pairs, number = np.unique(of_row[first] * (len(self._kinds) + 1) + second + 1, return_inverse=True)
        order = np.argsort(number.reshape(-1), kind="stable")
        bounds = np.searchsorted(number.reshape(-1)[order], np.arange(len(pairs) + 1))
        for pair, (start, end) in zip(pairs.tolist(), pairwise(bounds.tolist()), strict=True):
            one, other = divmod(pair, len(self._kinds) + 1)
            yield ((one,) if other == 0 else (one, other - 1)), first[order[start:end]]

    def _append_kind(self, usage: Usage, seconds: float, connection: object) -> int:
        """Append a kind of flows and return its number; a flow that uses no port is a delay."""
        latency, used = min(seconds, self._latency_s(usage)), usage.select(usage.sizes > 0)
        if self._serial:
            used = used.select(np.isin(used.kinds, SERIAL_KINDS))
            latency, rate, weights = 0.0, 1.0, np.ones(len(used))
        elif not used or seconds <= latency:
            latency, rate, used, weights = seconds, 1.0, NO_USAGE, np.zeros(0)
        else:
            largest = float(used.sizes.max())
            rate = largest / (seconds - latency)
            # measured seconds may be shorter than a port allows; the flow then uses the whole port
            weights = np.minimum(used.sizes / largest, self.fabric.capacities(used.kinds) / rate)
        self._flows.append((latency, rate, self._connections.setdefault(connection, len(self._connections))))
        self._uses.append((self._port_numbers(used.codes), weights))
        return len(self._flows) - 1

    def _port_numbers(self, codes: Int64s) -> Int64s:
        new = codes[self._number[codes] < 0]
        if len(new):
            first = sum(map(len, self._ports))
            self._number[new] = np.arange(first, first + len(new))
            self._ports.append(new)
        return self._number[codes]

    def _units(self, ports: Int64s) -> Int64s:
        """Return the maximum number of flows on each port, ``[ports]``; -1 for shared ports."""
        if not self._serial:
            return np.full(len(ports), -1, np.int64)
        return np.where(np.isin(port_kinds(ports), NIC_KINDS), self.fabric.cluster.nics_per_node, 1)

    def _port_seconds(self, usage: Usage) -> float:
        return float((usage.sizes / self.fabric.capacities(usage.kinds)).max(initial=0.0))

    def _link_seconds(self, usage: Usage, size: float) -> float:
        return size / min((link.bandwidth for link in self.fabric.links_of(usage)), default=np.inf)

    def _latency_s(self, usage: Usage) -> float:
        return max((link.latency_s for link in self.fabric.links_of(usage)), default=0.0)


def add_transfer_flows(builder: NetworkBuilder, design: Design, kinds: Kinds) -> None:
    """Add the messages between meshes to the network."""
    rows = kinds.sends
    transfers = list(zip(*(column[rows].tolist() for column in (kinds.rank, kinds.peer, kinds.tensors)), strict=True))
    different = list(dict.fromkeys(transfers))
    usages = builder.fabric.usages([transfer_messages(design, *each) for each in different])
    usage_of = dict(zip(different, usages, strict=True))
    for row, (source, destination, tensors) in zip(rows.tolist(), transfers, strict=True):
        ends = source, destination
        direct_bytes = boundary_bytes(design, *ends, tensors) if is_direct(design, *ends) else 0.0
        usage = usage_of[source, destination, tensors]
        is_queued = design.cluster.sends_in_order and NIC_KINDS[0] in usage.kinds
        builder.add_transfer(row, usage, ends[:1] if is_queued else ends, direct_bytes=direct_bytes)


def add_collective_flows(
    builder: NetworkBuilder,
    design: Design,
    kinds: Kinds,
    op: Op,
    messages: Sequence[Mapping[int, Messages]],
    measured: bool,
) -> None:
    """Add the collectives ``op`` to the network.

    Each mesh that holds a stage sends those ``messages`` of the stage, ``[buckets]``, whose source is one of its devices.
    """
    for row in kinds.indices_of(op).tolist():
        rank = int(kinds.rank[row])
        sent = messages[int(kinds.bucket[row])][int(kinds.stage[row])].sent_by(design.meshes[rank].devices)
        builder.add_collective(row, builder.fabric.usage(sent), (op.name, rank), measured=measured)


def exchange_usage(fabric: Fabric, devices: Sequence[int], sent: Sequence[Sequence[float]]) -> Usage:
    """Return the bytes that a layer with experts sends through each port of a mesh.

    Args:
        fabric: the ports.
        devices: devices of the mesh; the layer runs on consecutive blocks of them.
        sent: [inside the node, to other nodes] [devices of a block] bytes that each device sends, distributed evenly
            over the other devices of its block there.
    """
    found: dict[Port, float] = defaultdict(float)
    size = len(sent[0])
    for first in range(0, len(devices), size):
        _add_block_usage(found, fabric, devices[first : first + size], *sent)
    return Usage.from_mapping(found)


def _add_block_usage(
    found: dict[Port, float], fabric: Fabric, block: Sequence[int], near: Sequence[float], far: Sequence[float]
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


def _add_node_usage(
    found: dict[Port, float], fabric: Fabric, devices: Sequence[int], sent: Sequence[float], total: float
) -> None:
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
