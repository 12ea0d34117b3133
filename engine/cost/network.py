"""The network of a design: its ports, and the bytes that transfers, reductions and exchanges put on them.

Seconds come from the model of cost, which prices each flow as if it were alone. Here is what each of them uses
meanwhile, so that :mod:`engine.shared_links` can play all of them together:

- a message between two devices of a node passes the sender's link out and the receiver's link in;
- a message between nodes passes the NICs of both nodes, which all their devices share, and is never faster than one
  NIC; where a node has several NICs, a device uses one of them at a time;
- a transfer between two meshes is one flow: the bytes of all its messages, by the plan that it follows;
- a ring of ``n`` devices moves ``2 (n - 1) / n`` of its bytes over each of its hops, ``(n - 1) / n`` for a gather or a
  scatter. Of a ring over several meshes each counts the hops that begin in it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from engine.cost.alpha_beta import Message
from engine.cost.crossings import crossing_messages, is_direct, tensor_of
from engine.cost.kinds import Kinds
from engine.design import Cluster, Design
from engine.program.action import Op
from engine.shared_links import Network, Port

Floats = NDArray[np.float64]
Usage = Counter[Port]
"""Bytes that pass each port."""

PARTS = 4
"""Exchanges and computing alternate inside a computation at most so often: more of them take longer to play and change
little, since what a stage exchanges is spread evenly over it either way."""
SERIAL = 1e300
"""Bytes/s, of a port that no flow can fill."""


# ---- what passes which ports ----


def message_usage(cluster: Cluster, messages: Iterable[Message]) -> Usage:
    """Bytes that some messages between devices put on each port."""
    found: Usage = Counter()
    for source, target, size in messages:
        if source != target:
            for port in ports_between(cluster, source, target):
                found[port] += size  # type: ignore[assignment]  # a Counter of bytes
    return found


@cache
def _ports(nics: int, source: int, target: int, source_node: int, target_node: int) -> tuple[Port, ...]:
    if source_node == target_node:
        return Port("link-out", source), Port("link-in", target)
    nodes = Port("nic-out", source_node), Port("nic-in", target_node)
    return nodes if nics == 1 else (*nodes, Port("device-out", source), Port("device-in", target))


def ports_between(cluster: Cluster, source: int, target: int) -> tuple[Port, ...]:
    """The ports that a message from one device to another passes."""
    return _ports(cluster.nics_per_node, source, target, cluster.node_of(source), cluster.node_of(target))


def capacity_of(cluster: Cluster, port: Port) -> float:
    """Bytes/s of a port."""
    if port.kind in ("link-out", "link-in"):
        return cluster.intra_node.bandwidth
    return cluster.inter_node.bandwidth * (cluster.nics_per_node if port.kind in ("nic-out", "nic-in") else 1)


def ring_messages(cluster: Cluster, group: Sequence[int], size: float, rounds: int = 2) -> list[Message]:
    """The messages of a ring that goes through each node once: ``rounds`` is 2 for an all-reduce of ``size`` bytes, 1
    for an all-gather or a reduce-scatter of as many in all."""
    n = len(group)
    if n < 2:
        return []
    around = sorted(group, key=lambda device: (cluster.node_of(device), device))
    each = rounds * (n - 1) / n * size
    return [Message(one, other, each) for one, other in zip(around, (*around[1:], around[0]), strict=True)]


def transfer_usage(design: Design, source: int, destination: int, tensors: int) -> Usage:
    """Bytes that one message between two meshes puts on each port."""
    ends = design.meshes[source], design.meshes[destination]
    if is_direct(*ends):
        share = tensor_of(design, tensors).bytes / ends[0].dp
        return message_usage(
            design.cluster, (Message(*pair, share) for pair in zip(ends[0].devices, ends[1].devices, strict=True))
        )
    return message_usage(design.cluster, crossing_messages(design, source, destination, tensors))


# ---- the network of a program ----


class NetworkBuilder:
    """Collects kinds of flows."""

    def __init__(self, cluster: Cluster, kinds: Kinds, *, serial: bool = False) -> None:
        """``serial``: a NIC carries one flow at a time, and a flow takes its seconds whatever it holds."""
        self._cluster, self._serial = cluster, serial
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
            min(part / size, capacity_of(self._cluster, port) / rate) for port, part in used.items()
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
            self._capacity.append(SERIAL if self._serial else capacity_of(self._cluster, port))
            at_once = self._cluster.nics_per_node if port.kind in ("nic-out", "nic-in") else 1
            self._units.append(at_once if self._serial else -1)
        return self._ports[port]

    def _latency(self, port: Port) -> float:
        near = port.kind in ("link-out", "link-in")
        return (self._cluster.intra_node if near else self._cluster.inter_node).latency_s


def add_transfers(builder: NetworkBuilder, design: Design, kinds: Kinds, seconds: Floats) -> None:
    """The messages between meshes. ``seconds``: [kinds] of each alone."""

    @cache
    def usage(source: int, destination: int, tensors: int) -> Usage:
        return transfer_usage(design, source, destination, tensors)

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
        builder.add(row, message_usage(design.cluster, sent), float(seconds[row]), ("gradients", rank))


def merged(usages: Iterable[Mapping[Port, float]]) -> dict[Port, float]:
    """The sum of what several put on each port."""
    total: defaultdict[Port, float] = defaultdict(float)
    for usage in usages:
        for port, size in usage.items():
            total[port] += size
    return dict(total)


def exchange_usage(cluster: Cluster, devices: Sequence[int], sent: Sequence[Sequence[float]], layers: int) -> Usage:
    """Bytes that so many layers of experts put on each port of a mesh. ``sent``: [inside the node, to other nodes]
    [devices of a block] what each sends; a node gets as much as it sends."""
    found: Usage = Counter()
    inside, outside = sent
    for place, device in enumerate(devices):
        near, far = (layers * side[place % len(side)] for side in (inside, outside))
        for kinds, number, size in (
            (("link-out", "link-in"), device, near),
            (("nic-out", "nic-in"), cluster.node_of(device), far),
        ):
            for kind in kinds:
                found[Port(kind, number)] += size  # type: ignore[arg-type, assignment]
    return found


def serial_network(design: Design, kinds: Kinds, seconds: Floats) -> Network | None:
    """A network whose NICs carry one transfer at a time in each direction, and links inside a node likewise."""
    builder = NetworkBuilder(design.cluster, kinds, serial=True)
    add_transfers(builder, design, kinds, seconds)
    return builder.built()
