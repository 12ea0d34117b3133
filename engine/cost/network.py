"""The network of a design: its ports, and the bytes that transfers, reductions and exchanges put on them.

Seconds come from the model of cost, which prices each flow as if it were alone. Here is what each of them uses
meanwhile, so that :mod:`engine.shared_links` can play all of them together:

- a message between two devices of a node passes the sender's link out and the receiver's link in;
- a message between nodes passes the NICs of both nodes, which all their devices share, and is never faster than one
  NIC; where a node has several NICs, a device uses one of them at a time;
- where a node's switch or the uplinks of leaf switches are drawn, or a calibration found that two messages inside a
  node or two directions of a NIC get in each other's way, these are ports too;
- a transfer between two meshes is one flow: the bytes of all its messages, by the plan that it follows;
- a ring of ``n`` devices moves ``2 (n - 1) / n`` of its bytes over each of its hops, ``(n - 1) / n`` for a gather or a
  scatter. Of a ring over several meshes each counts the hops that begin in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from engine.cost.alpha_beta import Message
from engine.cost.contention import AS_DRAWN, LinkSharing
from engine.cost.crossings import crossing_messages, is_direct, tensor_of
from engine.cost.kinds import Kinds
from engine.design import Cluster, Design
from engine.program.action import Op
from engine.shared_links import Network, Port

Floats = NDArray[np.float64]
Usage = dict[Port, float]
"""Bytes that pass each port."""
MEASURED_MOST = 2.0
"""Largest total rate that two simultaneous messages can show: a switch that carries both in full may carry more."""

PARTS = 4
"""Exchanges and computing alternate inside a computation at most so often: more of them take longer to play and change
little, since what a stage exchanges is spread evenly over it either way."""
SERIAL = 1e300
"""Bytes/s, of a port that no flow can fill."""


# ---- what passes which ports ----


class Fabric:
    """Ports of a cluster: those that a message between two devices passes, and the capacity of each."""

    def __init__(self, cluster: Cluster, sharing: LinkSharing = AS_DRAWN) -> None:
        self.cluster, self._sharing = cluster, sharing
        self._between: dict[tuple[int, int], tuple[Port, ...]] = {}
        together = sharing.same_node_capacity
        together = None if together is None else max(1.0, min(together, 2 * sharing.same_node_duplex))
        limit = together * cluster.intra_node.bandwidth if together and together < MEASURED_MOST else None
        drawn = [rate for rate in (cluster.node_bandwidth, limit) if rate is not None]
        self._switch = min(drawn, default=None)
        self._ways: dict[str, tuple[Port, ...]] = {}

    def ports(self, source: int, target: int) -> tuple[Port, ...]:
        """The ports that a message from one device to another passes."""
        if (source, target) not in self._between:
            self._between[source, target] = tuple(self._passed(source, target))
        return self._between[source, target]

    def _passed(self, source: int, target: int) -> Iterator[Port]:
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
        """Bytes/s of a port."""
        nic = self.cluster.inter_node.bandwidth
        nics = nic * max(float(self.cluster.nics_per_node), self._sharing.across_nodes_capacity)
        uplink = self.cluster.uplink.bandwidth if self.cluster.uplink else nic
        link = self.cluster.intra_node.bandwidth
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
        }[port.kind]

    def usage(self, messages: Iterable[Message]) -> Usage:
        """Bytes that some messages between devices put on each port."""
        found: Usage = defaultdict(float)
        for source, target, size in messages:
            if source != target:
                for port in self.ports(source, target):
                    found[port] += size
        return found


def ring_messages(cluster: Cluster, group: Sequence[int], size: float, rounds: int = 2) -> list[Message]:
    """The messages of a ring that goes through each node once: ``rounds`` is 2 for an all-reduce of ``size`` bytes, 1
    for an all-gather or a reduce-scatter of as many in all."""
    n = len(group)
    if n < 2:
        return []
    around = sorted(group, key=lambda device: (cluster.node_of(device), device))
    each = rounds * (n - 1) / n * size
    return [Message(one, other, each) for one, other in zip(around, (*around[1:], around[0]), strict=True)]


def transfer_messages(design: Design, source: int, destination: int, tensors: int) -> Iterable[Message]:
    """The messages between devices of one message between two meshes."""
    ends = design.meshes[source], design.meshes[destination]
    if not is_direct(*ends):
        return crossing_messages(design, source, destination, tensors)
    share = tensor_of(design, tensors).bytes / ends[0].dp
    return [Message(*pair, share) for pair in zip(ends[0].devices, ends[1].devices, strict=True)]


# ---- the network of a program ----


class NetworkBuilder:
    """Collects kinds of flows."""

    def __init__(self, fabric: Fabric, kinds: Kinds, *, serial: bool = False) -> None:
        """``serial``: a NIC carries one flow at a time, and a flow takes its seconds whatever it holds."""
        self.fabric, self._serial = fabric, serial
        self._kinds = kinds
        self._ports: dict[Port, int] = {}
        self._capacity: list[float] = []
        self._units: list[int] = []
        self._flows: list[tuple[float, float, int]] = []  # latency, rate, connection
        self._uses: list[tuple[NDArray[np.int64], Floats]] = []
        self._lines: dict[object, int] = {}
        self._of_kind = np.full(len(kinds), -1, np.int64)
        self._exchange_s = np.zeros(len(kinds))
        self._parts = np.ones(len(kinds), np.int64)

    def add(self, row: int, usage: Mapping[Port, float], seconds: float, connection: object) -> None:
        """A flow of the kind of actions ``row``, which takes ``seconds`` alone and moves the bytes of ``usage``.

        Flows of one ``connection`` go one after another. What needs no port is not a flow.
        """
        used = {port: size for port, size in usage.items() if size > 0}
        if not used or seconds <= 0:
            return
        if self._serial:
            self._append(row, used, np.ones(len(used)), (0.0, 1.0), connection)
            return
        latency = min(seconds, max(self._latency(port) for port in used))
        size = max(used.values())
        rate = size / (seconds - latency) if seconds > latency else SERIAL
        weights = [  # what is priced faster than its port has all of it
            min(part / size, self.fabric.capacity(port) / rate) for port, part in used.items()
        ]
        self._append(row, used, np.array(weights), (latency, rate), connection)

    def _append(
        self,
        row: int,
        ports: Iterable[Port],
        weights: Floats,
        latency_and_rate: tuple[float, float],
        connection: object,
    ) -> None:
        self._flows.append((*latency_and_rate, self._lines.setdefault(connection, len(self._lines))))
        self._uses.append((np.array([self._number(port) for port in ports], np.int64), weights))
        self._of_kind[row] = len(self._flows) - 1

    def add_exchange(self, row: int, usage: Mapping[Port, float], seconds: float, parts: int) -> None:
        """The exchanges inside a kind of computation, which take ``seconds`` of it alone and come in ``parts``."""
        parts = max(1, min(parts, PARTS))
        self.add(row, {port: size / parts for port, size in usage.items()}, seconds / parts, ("inside", row))
        if self._of_kind[row] >= 0:
            self._exchange_s[row], self._parts[row] = seconds, parts

    def built(self) -> Network | None:
        """The network; None where nothing uses it."""
        if not self._flows:
            return None
        latency, rate, line = (np.array(column) for column in zip(*self._flows, strict=True))
        of_row = self._kinds.of_row
        return Network(
            ports=tuple(self._ports),
            capacity=np.array(self._capacity),
            latency_s=latency,
            rate=rate,
            connection=line.astype(np.int64),
            use_ptr=np.cumsum([0, *(len(ports) for ports, _ in self._uses)]),
            use_port=np.concatenate([ports for ports, _ in self._uses]),
            use_weight=np.concatenate([weights for _, weights in self._uses]),
            row_kind=self._of_kind[of_row],
            exchange_s=self._exchange_s[of_row],
            parts=self._parts[of_row],
            units=np.array(self._units, np.int64),
        )

    def _number(self, port: Port) -> int:
        if port not in self._ports:
            self._ports[port] = len(self._ports)
            self._capacity.append(SERIAL if self._serial else self.fabric.capacity(port))
            at_once = self.fabric.cluster.nics_per_node if port.kind in ("nic-out", "nic-in") else 1
            self._units.append(at_once if self._serial else -1)
        return self._ports[port]

    def _latency(self, port: Port) -> float:
        cluster = self.fabric.cluster
        near = port.kind in ("link-out", "link-in", "switch")
        return (cluster.intra_node if near else cluster.inter_node).latency_s


def add_transfers(builder: NetworkBuilder, design: Design, kinds: Kinds, seconds: Floats) -> None:
    """The messages between meshes. ``seconds``: [kinds] of each alone."""

    @cache
    def usage(source: int, destination: int, tensors: int) -> Usage:
        return builder.fabric.usage(transfer_messages(design, source, destination, tensors))

    for row in kinds.sends.tolist():
        ends = int(kinds.rank[row]), int(kinds.peer[row])
        builder.add(row, usage(*ends, int(kinds.tensors[row])), float(seconds[row]), ends)


def add_reductions(
    builder: NetworkBuilder, design: Design, kinds: Kinds, seconds: Floats, messages: Mapping[int, Sequence[Message]]
) -> None:
    """The reductions of gradients: each mesh that holds a stage sends what its own devices send of ``messages``,
    which are those of all reductions of a stage."""
    for row in kinds.of(Op.REDUCE_GRAD).tolist():
        rank = int(kinds.rank[row])
        mine = set(design.meshes[rank].devices)
        sent = (message for message in messages.get(int(kinds.stage[row]), ()) if message.source in mine)
        builder.add(row, builder.fabric.usage(sent), float(seconds[row]), ("gradients", rank))


def merged(usages: Iterable[Mapping[Port, float]]) -> dict[Port, float]:
    """The sum of what several put on each port."""
    total: defaultdict[Port, float] = defaultdict(float)
    for usage in usages:
        for port, size in usage.items():
            total[port] += size
    return dict(total)


def exchange_usage(fabric: Fabric, devices: Sequence[int], sent: Sequence[Sequence[float]], layers: int) -> Usage:
    """Bytes that so many layers of experts put on each port of a mesh. ``sent``: [inside the node, to other nodes]
    [devices of a block] what each sends, to all others of its node, or of other nodes, alike."""
    found: Usage = defaultdict(float)
    for place, device in enumerate(devices):
        node = fabric.cluster.node_of(device)
        near = [other for other in devices if other != device and fabric.cluster.node_of(other) == node]
        far = [other for other in devices if fabric.cluster.node_of(other) != node]
        for others, side in ((near, sent[0]), (far, sent[1])):
            share = layers * side[place % len(side)] / max(1, len(others))
            for port, size in fabric.usage(Message(device, other, share) for other in others if share).items():
                found[port] += size
    return found


def serial_network(design: Design, kinds: Kinds, seconds: Floats) -> Network | None:
    """A network whose NICs carry one transfer at a time in each direction, and links inside a node likewise."""
    builder = NetworkBuilder(Fabric(design.cluster), kinds, serial=True)
    add_transfers(builder, design, kinds, seconds)
    return builder.built()
