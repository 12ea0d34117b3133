"""Networks of shared links, and the rules by which flows share them.

A *port* is one direction of a resource that transfers bytes: the NICs of a node, or the link of a device within its
node. A *flow* is a message, or a collective of several devices, in progress. It uses one or more ports, each with a
*weight*: the bytes on the port per byte of the flow. Two rules define when its bytes are transferred:

- Flows of one *connection* (an ordered pair of meshes, whose processes have one connection each) run one after another,
  in the order in which they were sent. If devices send in order (``cluster.sends_in_order``), a mesh has one connection
  to all meshes on other nodes.
- The first flows of all connections share each port max-min fairly, and none is faster than it is alone.

Before its first byte a flow waits for its latency, which uses no port; a flow that waits for its connection waits for
both at the same time. If no port is ever full and no flow waits for its connection, each flow takes ``latency + bytes /
rate``, as if it were alone.

On emulated hosts this is the behaviour of gloo over TCP (docs/accuracy.md). NCCL enqueues the sends of a communicator
on one stream, so they also run one after another; equal sharing of a NIC by several communicators is an assumption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.program import Program
from meshwave.engine.program.row_order import lexical_order

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PortKind = Literal[
    "nic-out",
    "nic-in",
    "nic-both",
    "link-out",
    "link-in",
    "switch",
    "device-out",
    "device-in",
    "uplink-out",
    "uplink-in",
]

FULL = 1 + 1e-9
"""Utilization above which a port counts as overloaded, with a margin for rounding errors."""


class Port(NamedTuple):
    """One direction of a resource that transfers bytes."""

    kind: PortKind
    number: int  # index of the node; of the device for link-* and device-*; of the leaf switch for uplink-*


@dataclass(frozen=True, eq=False)
class Network:
    """Ports of a design, and the load of each row of its program on them.

    Flows are described by *kinds*: rows that send equal amounts between the same places are of one kind.
    """

    ports: tuple[Port, ...]
    capacity: Floats  # [ports] bytes/s
    latency_s: Floats  # [kinds] seconds before the first byte
    rate: Floats  # [kinds] bytes/s of a flow that is alone
    connection: Ints  # [kinds] connection; its flows run one after another
    use_ptr: Ints  # [kinds + 1]
    use_port: Ints  # [uses] ports that each kind uses
    use_weight: Floats  # [uses] bytes on the port per byte of the flow
    row_kind: Ints  # [rows] kind of a SEND, a collective, or the exchanges of a slot (first row) or step; -1 for none
    exchange_s: Floats  # [rows] seconds of a computation or optimizer step that its exchanges take alone
    beside_kind: (
        Ints  # [rows] kind of the collectives that run beside the computation of a slot (first row); -1 for none
    )
    beside_s: Floats  # [rows] seconds that they take alone
    parts: Ints  # [rows] number of equal parts, each with one exchange and one flow beside it, of a computation; else 1
    units: Ints  # [ports] maximum number of flows on a port that each flow uses exclusively; -1 for a shared port

    @cached_property
    def flow_rows(self) -> Ints:
        """Rows that have a flow, in ascending order."""
        return np.flatnonzero((self.row_kind >= 0) | (self.beside_kind >= 0))

    @cached_property
    def beside_bytes(self) -> Floats:
        """Bytes of the flows beside each computation, ``[rows]``."""
        size, rows = np.zeros(len(self.beside_kind)), np.flatnonzero(self.beside_kind >= 0)
        kind = self.beside_kind[rows]
        size[rows] = np.maximum(0.0, self.beside_s[rows] - self.parts[rows] * self.latency_s[kind]) * self.rate[kind]
        return size

    @cached_property
    def classes(self) -> tuple[Ints, Ints]:
        """Class of each kind, ``[kinds]``, and one kind of each class, ``[classes]``.

        Kinds that use the same ports with the same weights and rates form a class.
        """
        known: dict[object, int] = {}
        of_kind = np.zeros(len(self.rate), np.int64)
        for kind in range(len(self.rate)):
            uses = slice(self.use_ptr[kind], self.use_ptr[kind + 1])
            ports = tuple(self.use_port[uses].tolist()) or ("a link of its own", int(self.connection[kind]))
            key = (self.rate[kind], ports, tuple(self.use_weight[uses].tolist()))
            of_kind[kind] = known.setdefault(key, len(known))
        first = np.zeros(len(known), np.int64)
        first[of_kind[::-1]] = np.arange(len(self.rate))[::-1]
        return of_kind, first

    def scale_exchanges(self, factors: Floats, *, beside: bool = True) -> Network:
        """Return the network with collectives inside computations that take ``factors`` times as long, ``[rows]``.

        Those beside computations are scaled only if ``beside``. Cached results about the ports are kept.
        """
        beside_s = self.beside_s * factors if beside else self.beside_s
        found = replace(self, exchange_s=self.exchange_s * factors, beside_s=beside_s)
        found.__dict__.update(
            {name: self.__dict__[name] for name in ("classes", "coupled_network") if name in self.__dict__}
        )
        return found

    def scale_latencies(self, factors: Floats) -> Network:
        """Return the network with latencies that are ``factors`` times as long, ``[rows]``."""
        coupled, found = self.coupled_network, self._scale_latencies(factors)
        found.__dict__["coupled_network"] = found if coupled is self else coupled._scale_latencies(factors)
        return found

    def _scale_latencies(self, factors: Floats) -> Network:
        columns = self.row_kind.copy(), self.beside_kind.copy()
        has_flow = [np.flatnonzero(column >= 0) for column in columns]
        kind = np.concatenate([column[rows] for column, rows in zip(columns, has_flow, strict=True)])
        scales, place = np.unique(factors[np.concatenate(has_flow)], return_inverse=True)
        pairs, number = np.unique(kind.astype(np.int64) * len(scales) + place, return_inverse=True)
        old, scale = np.divmod(pairs, len(scales))
        for column, rows, numbers in zip(columns, has_flow, np.split(number, [len(has_flow[0])]), strict=True):
            column[rows] = numbers
        uses = [np.arange(self.use_ptr[kind], self.use_ptr[kind + 1]) for kind in old.tolist()]
        return replace(
            self,
            latency_s=self.latency_s[old] * scales[scale],
            rate=self.rate[old],
            connection=self.connection[old],
            use_ptr=np.cumsum([0, *map(len, uses)]),
            use_port=self.use_port[np.concatenate(uses)],
            use_weight=self.use_weight[np.concatenate(uses)],
            row_kind=columns[0],
            beside_kind=columns[1],
        )

    @cached_property
    def coupled_network(self) -> Network:
        """Network with only those ports that can make flows wait for each other, without duplicates.

        A port that all connections together cannot fill is omitted. Ports that are used by the same flows with the same
        shares of their capacity are represented by one of them: a mesh of 256 devices has hundreds of such ports.
        """
        if not len(self.ports) or not len(self.rate) or self.units.max() >= 0:
            return self
        kind = np.repeat(np.arange(len(self.rate)), np.diff(self.use_ptr))
        share = self.use_weight / self.capacity[self.use_port]
        lines = int(self.connection.max()) + 1
        pair, place = np.unique(self.use_port * lines + self.connection[kind], return_inverse=True)
        most = np.zeros(len(pair))
        np.maximum.at(most, place.reshape(-1), share * self.rate[kind])
        crowded = np.bincount(pair // lines, most, minlength=len(self.ports)) > FULL
        marks = np.random.default_rng(0).random((2, len(self.rate)))  # equal sums: the same flows with the same shares
        sums = np.stack([np.bincount(self.use_port, share * mark[kind], minlength=len(self.ports)) for mark in marks])
        _, first = np.unique(sums, axis=1, return_index=True)
        kept = np.zeros(len(self.ports), np.bool_)
        kept[first] = True
        kept &= crowded
        number = np.cumsum(kept) - 1
        uses = kept[self.use_port]
        ports = np.flatnonzero(kept)
        return replace(
            self,
            ports=tuple(self.ports[port] for port in ports.tolist()),
            capacity=self.capacity[ports],
            use_ptr=np.concatenate(([0], np.cumsum(np.bincount(kind[uses], minlength=len(self.rate))))),
            use_port=number[self.use_port[uses]],
            use_weight=self.use_weight[uses],
            units=self.units[ports],
        )

    def bytes_of(self, program: Program, seconds: Floats) -> Floats:
        """Return the bytes of each row's flow, ``[rows]``, given its uncontended ``seconds``; 0 for rows without a flow.

        They do not include those of flows beside computations.
        """
        size, rows = np.zeros(len(program)), np.flatnonzero(self.row_kind >= 0)
        kind = self.row_kind[rows]
        alone = np.where(program.is_work[rows], self.exchange_s[rows], seconds[rows])
        size[rows] = np.maximum(0.0, alone - self.parts[rows] * self.latency_s[kind]) * self.rate[kind]
        return size


# ---- contention ----


class UncontendedTimes(NamedTuple):
    """Times at which the bytes of each flow would be transferred if it were alone."""

    kind: Ints
    start: Floats
    end: Floats


def is_contended(network: Network, alone: UncontendedTimes) -> bool:
    """Return True if a flow waits for its connection, or a port is overloaded.

    Otherwise the uncontended timeline is exact.
    """
    network = network.coupled_network
    return _has_queue(network, alone) or any(peak > FULL for peak in _peak_utilization(network, alone))


def _has_queue(network: Network, alone: UncontendedTimes) -> bool:
    if network.units.max(initial=-1) >= 0:
        return True
    line = network.connection[alone.kind]
    order = lexical_order((alone.start, line))
    line, start, end = line[order], alone.start[order], alone.end[order]
    same = line[1:] == line[:-1]
    return bool((same & (start[1:] < end[:-1] * (1 - 1e-12))).any())


def _peak_utilization(network: Network, alone: UncontendedTimes) -> Sequence[float]:
    """Return the peak utilization of the busiest port, as a list of one number; empty if no port can be full."""
    kind = np.repeat(np.arange(len(network.rate)), np.diff(network.use_ptr))  # of each use
    share = network.use_weight * network.rate[kind] / network.capacity[network.use_port]
    flows = np.bincount(alone.kind, minlength=len(network.rate))
    sums = np.bincount(network.use_port, share * flows[kind], minlength=len(network.ports))
    crowded = np.flatnonzero((sums > FULL)[network.use_port])  # all flows together cannot fill the other ports
    use_ptr = np.searchsorted(crowded, network.use_ptr)
    lasting = np.flatnonzero(alone.end > alone.start)
    counts = np.diff(use_ptr)[alone.kind[lasting]]
    first = use_ptr[alone.kind[lasting]] - (np.cumsum(counts) - counts)
    use = crowded[np.repeat(first, counts) + np.arange(counts.sum())]
    flow, port, taken = np.repeat(lasting, counts), network.use_port[use], share[use]
    port = port.astype(np.min_scalar_type(len(network.ports)))  # short integers are sorted faster
    order = np.argsort(np.concatenate((port, port)), kind="stable")
    moments = np.concatenate((alone.end[flow] * (1 - 1e-12), alone.start[flow]))[order]
    change = np.concatenate((-taken, taken))[order]
    for first, end in pairwise(np.cumsum([0, *2 * np.bincount(port)]).tolist()):
        by_time = np.argsort(moments[first:end], kind="stable")  # ends stay before starts at the same time
        change[first:end] = change[first:end][by_time]
    level = np.cumsum(change)
    return [float(level.max(initial=0.0))]  # every port ends at 0, so one running sum covers all ports


def pair_network(program: Program, *, half_duplex: bool = False) -> Network:
    """Return the network of a program without a cluster: one link per ordered pair of ranks.

    If ``half_duplex``, both directions between two ranks share one rate.
    """
    sends = np.flatnonzero(program.is_send)
    rank, peer, ranks = program.rank[sends].astype(np.int64), program.peer[sends].astype(np.int64), program.ranks
    links, kind = np.unique(rank * ranks + peer, return_inverse=True)
    row_kind = np.full(len(program), -1, np.int64)
    row_kind[sends] = kind.reshape(-1)
    ends = links // max(ranks, 1), links % max(ranks, 1)
    pairs, pair_of_link = np.unique(np.minimum(*ends) * ranks + np.maximum(*ends), return_inverse=True)
    shared = pairs if half_duplex else pairs[:0]
    uses = pair_of_link.reshape(-1)[: len(links) * half_duplex]
    return Network(
        ports=tuple(Port("link-out", pair) for pair in shared.tolist()),
        capacity=np.ones(len(shared)),
        latency_s=np.zeros(len(links)),
        rate=np.ones(len(links)),
        connection=np.arange(len(links)),
        use_ptr=np.arange(len(links) + 1) * half_duplex,
        use_port=uses,
        use_weight=np.ones(len(uses)),
        row_kind=row_kind,
        exchange_s=np.zeros(len(program)),
        beside_kind=np.full(len(program), -1, np.int64),
        beside_s=np.zeros(len(program)),
        parts=np.ones(len(program), np.int64),
        units=np.full(len(shared), -1, np.int64),
    )
