"""A network whose links are shared, and the play of a program on it.

The model. A *port* is one direction of something that carries bytes: the NICs of a node, the link of a device inside
its node. A *flow* is a message, or a collective of several devices, on its way. It passes one port or more, each with a
*weight*: how many bytes pass that port for each byte of the flow. Two rules say when its bytes move:

- Flows of one *connection* (an ordered pair of meshes, whose processes have one connection each) go one after another,
  in the order in which they were sent.
- The first flows of all connections share each port max-min fairly, and none is faster than it is alone.

Before its first byte a flow waits for its latency, which takes nothing from any port; a flow that waits for its
connection waits for both at the same time. Where no port is ever full and no flow waits for its connection, each takes
``latency + bytes / rate``, as if it were alone.

On emulated hosts this is what gloo over TCP does (docs/accuracy.md). NCCL enqueues the sends of a communicator on one
stream, so that they follow one another too; that several communicators share a NIC equally is assumed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine import _shared_links
from engine._shared_links import Flows, Nodes, Result, Room
from engine.compiled import compiled_module
from engine.program.action import Op
from engine.program.graph import Graph
from engine.program.program import Program, parse_program

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PortKind = Literal["nic-out", "nic-in", "link-out", "link-in", "device-out", "device-in", "uplink-out", "uplink-in"]

EVEN = _shared_links.EVEN
INTERPRETED_EVENTS = 12_000
"""A play of no more events is done by Python itself: importing numba would take longer."""
FULL = 1 + 1e-9
"""A port is not over its capacity by what rounding adds."""


class Port(NamedTuple):
    """One direction of something that carries bytes."""

    kind: PortKind
    number: int  # of the node, or of the device for link-* and device-*


@dataclass(frozen=True, eq=False)
class Network:
    """The ports of a design, and what each row of its program puts on them.

    Flows are described by *kinds*: rows that send the same from the same place to the same are of one kind.
    """

    ports: tuple[Port, ...]
    capacity: Floats  # [ports] bytes/s
    latency_s: Floats  # [kinds] before the first byte
    rate: Floats  # [kinds] bytes/s of a flow that is alone
    connection: Ints  # [kinds] flows of one connection go one after another
    use_ptr: Ints  # [kinds + 1]
    use_port: Ints  # [uses] the ports that each kind passes
    use_weight: Floats  # [uses] bytes that pass the port for each byte of the flow
    row_kind: Ints  # [rows] of a SEND or REDUCE_GRAD, or of the exchanges inside a computation; -1 for none
    exchange_s: Floats  # [rows] of a computation, the part of its seconds that its exchanges take alone
    parts: Ints  # [rows] in how many parts exchanges and computing alternate inside a computation; else 1
    units: Ints  # [ports] how many flows may pass at once where each has the port for itself; -1 where they share it

    @cached_property
    def classes(self) -> tuple[Ints, Ints]:
        """``[kinds]`` the class of each kind, and ``[classes]`` a kind of each: kinds that pass the same ports alike."""
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

    def bytes_of(self, program: Program, seconds: Floats) -> Floats:
        """``[rows]`` bytes of the flow of each row, such that alone it takes ``seconds``; 0 where there is none."""
        size = np.zeros(len(program))
        rows = np.flatnonzero(self.row_kind >= 0)
        kind = self.row_kind[rows]
        alone = np.where(program.is_compute[rows], self.exchange_s[rows], seconds[rows])
        size[rows] = np.maximum(0.0, alone - self.parts[rows] * self.latency_s[kind]) * self.rate[kind]
        return size


class Play(NamedTuple):
    """When everything happened: nodes of the program's graph from 1 on, and rows that are a SEND."""

    start: Floats  # [nodes + 1]
    end: Floats  # [nodes + 1]
    cause: Ints  # [nodes + 1] the row whose end was waited for last, -1 for none
    sent: Floats  # [rows]
    came: Floats  # [rows]
    sent_cause: Ints  # [rows]
    log: RateLog  # empty where nobody asked for it


class RateLog(NamedTuple):
    """The rate of each flow of a class, from a moment on until its next entry."""

    time_s: Floats
    kind: Ints  # a kind of flows, for all that pass the same ports with the same weights
    rate: Floats  # bytes/s of each


NO_RATES = RateLog(np.zeros(0), np.zeros(0, np.int64), np.zeros(0))


# ---- is anything shared? ----


class Alone(NamedTuple):
    """When the bytes of each flow would move if all were alone."""

    kind: Ints
    start: Floats
    end: Floats


def is_contended(network: Network, alone: Alone) -> bool:
    """Whether flows get in each other's way: one waits for its connection, or a port is over its capacity.

    Where nothing does while all move as if they were alone, that is how they move.
    """
    return _queues(network, alone) or any(peak > FULL for peak in _peaks(network, alone))


def _queues(network: Network, alone: Alone) -> bool:
    line = network.connection[alone.kind]
    order = np.lexsort((alone.start, line))
    line, start, end = line[order], alone.start[order], alone.end[order]
    same = line[1:] == line[:-1]
    if network.units.max(initial=-1) >= 0:
        return True
    return bool((same & (start[1:] < end[:-1] * (1 - 1e-12))).any())


def _peaks(network: Network, alone: Alone) -> Sequence[float]:
    """``[ports]`` the most that flows would take of each port at once, as a share of its capacity."""
    counts = np.diff(network.use_ptr)[alone.kind]
    flow = np.repeat(np.arange(len(alone.kind)), counts)
    first = network.use_ptr[alone.kind[flow]]
    use = first + np.arange(len(flow)) - np.repeat(np.cumsum(counts) - counts, counts)
    port = network.use_port[use]
    taken = network.use_weight[use] * network.rate[alone.kind[flow]] / network.capacity[port]
    crowded = (
        np.bincount(port, taken, minlength=len(network.ports)) > FULL
    )  # not even all of its flows together fill it
    keep = crowded[port] & (alone.end[flow] > alone.start[flow])
    port, taken, flow = port[keep], taken[keep], flow[keep]
    moments = np.concatenate((alone.end[flow] * (1 - 1e-12), alone.start[flow]))
    change, ports = np.concatenate((-taken, taken)), np.concatenate((port, port))
    order = np.lexsort((change, moments, ports))  # at one moment those that end come first
    level = np.cumsum(change[order])
    return [float(level.max(initial=0.0))]  # every port ends at 0, so that one sum serves all


# ---- the play ----


def play_shared(program: Program, durations: Floats, sizes: Floats, network: Network, *, log_entries: int = 0) -> Play:
    """Play a sound program on a shared network.

    Args:
        durations: ``[rows]`` seconds of each slot, of what is not waiting for flows.
        sizes: ``[rows]`` bytes of the flow of each row, those of a slot's second row added to its first.
        log_entries: how many changes of rates to note.
    """
    graph, tables = program.graph, _Tables.of(program)
    messages = tables.messages
    node_rows = np.concatenate(([0], graph.nodes))
    node_kind = np.where(tables.has_flow, network.row_kind[node_rows], -1)
    node_kind[0] = -1
    has_exchange = node_kind >= 0
    parts = np.where(has_exchange, network.parts[node_rows], 1)
    compute = np.concatenate(([0.0], durations[graph.nodes])) / parts
    node_size = np.where(has_exchange, sizes[node_rows] / parts, 0.0)
    of_kind, first_of_class = network.classes
    class_ptr, class_port, class_weight = _uses_of(network, first_of_class)
    counts = np.bincount(class_port, minlength=len(network.ports))
    port_ptr = np.concatenate(([0], np.cumsum(counts)))
    port_class = np.repeat(np.arange(len(first_of_class)), np.diff(class_ptr))[np.argsort(class_port, kind="stable")]
    nodes, flows, classes = len(node_rows), len(node_rows) + len(messages), len(first_of_class)
    lines = int(network.connection.max(initial=-1)) + 1
    lines_of_class = np.bincount(of_kind, minlength=classes)  # no connection has two flows of a class on their way
    heap_first = np.concatenate(([0], np.cumsum(lines_of_class)))[:-1]
    start, end, cause = np.zeros(nodes), np.zeros(nodes), np.full(nodes, -1)
    sent, came, sent_cause = np.zeros(len(messages)), np.zeros(len(messages)), np.full(len(messages), -1)
    log = np.zeros(log_entries), np.zeros(log_entries, np.int64), np.zeros(log_entries)
    given = (
        Nodes(
            tables.pending.copy(), tables.out_ptr, tables.out_node, tables.made_ptr, tables.made, compute, parts.copy(),
            tables.takers,
        ),
        Flows(
            np.concatenate((network.row_kind[messages], node_kind)), np.concatenate((sizes[messages], node_size)),
            network.latency_s, network.connection, of_kind, class_ptr, class_port, class_weight,
            network.rate[first_of_class], port_ptr, port_class, network.capacity, network.units.copy(),
        ),
    )  # fmt: skip
    written = Result(start, end, cause, sent, came, sent_cause, *log)
    logged = _run(
        *given, written, _room(flows, lines, len(of_kind), len(network.ports), heap_first), nodes + 2 * len(messages)
    )
    row_of = np.concatenate((node_rows, messages, [-1]))  # of a cause; node 0 is the start of the step
    row_of[0] = -1
    result = Play(
        start, end, row_of[cause], *(np.zeros(len(program)) for _ in range(2)), np.full(len(program), -1), NO_RATES
    )
    result.sent[messages], result.came[messages] = sent, came
    result.sent_cause[messages] = np.where(sent_cause >= nodes, row_of[sent_cause], tables.makers)
    time_s, of_class, rate = (column[: min(logged, log_entries)] for column in log)
    return result._replace(log=RateLog(time_s, first_of_class[of_class], rate))


def _room(flows: int, lines: int, kinds: int, ports: int, heap_first: Ints) -> Room:
    classes = len(heap_first)

    def integers(length: int) -> Ints:
        return np.zeros(length, np.int64)

    return Room(
        counts=integers(8),
        heap_time=np.zeros(flows + 1),
        heap_order=integers(flows + 1),
        heap_code=integers(flows + 1),
        behind=np.full(flows, -1),
        first=np.full(lines, -1),
        last=np.full(lines, -1),
        waiting=integers(lines + 1),
        asked=integers(flows),
        heap_first=heap_first,
        marks=np.zeros(kinds),
        numbers=integers(kinds),
        busy=integers(classes),
        served=np.zeros(classes),
        since=np.zeros(classes),
        rate=np.zeros(classes),
        ends=np.zeros(classes),
        active=integers(classes),
        place=integers(classes),
        demand=np.zeros(ports),
        left=np.zeros(ports),
        shares=np.zeros(ports),
        fair=np.zeros(classes),
        found=integers(classes),
        seeds=integers(ports + 1),
        port_mark=integers(ports),
        class_mark=integers(classes),
    )


def compile_loop() -> bool:
    """Compile the loop, or load what numba keeps of it, so that the next play need not; whether that can be done."""
    program = parse_program("0F0 0SEND_F0\n1RECV_F0 1F0")
    if compiled_module(_shared_links.__name__) is None:
        return False
    play_shared(program, np.ones(len(program)), np.ones(len(program)), pair_network(program))
    _ready.set()
    return True


_ready = threading.Event()
"""Set once the compiled loop is in this process."""


def _run(nodes: Nodes, flows: Flows, result: Result, room: Room, events: int) -> int:
    """Run the loop: compiled where that is worth its start, else in Python on lists, which are faster there."""
    name = _shared_links.__name__
    module = compiled_module(name) if events > INTERPRETED_EVENTS or _ready.is_set() else None
    if module is not None:
        logged = int(module.play(nodes, flows, result, room))
        _ready.set()
        return logged
    lists = [type(part)(*(column.tolist() for column in part)) for part in (nodes, flows, result, room)]
    logged = _shared_links.play(*lists)
    for column, found in zip(result, lists[2], strict=True):
        column[:] = found
    return logged


def _uses_of(network: Network, kinds: Ints) -> tuple[Ints, Ints, Floats]:
    """The ports and weights of some kinds, as (ptr, ports, weights)."""
    counts = np.diff(network.use_ptr)[kinds]
    ptr = np.concatenate(([0], np.cumsum(counts)))
    use = np.repeat(network.use_ptr[kinds] - ptr[:-1], counts) + np.arange(ptr[-1])
    return ptr, network.use_port[use], network.use_weight[use]


@dataclass(frozen=True, eq=False)
class _Tables:
    """The graph of a program as the loop reads it: who waits for a node, and who takes a message."""

    pending: Ints  # [nodes + 1]
    out_ptr: Ints
    out_node: Ints
    made_ptr: Ints
    made: Ints
    messages: Ints  # [messages] their rows
    makers: Ints  # [messages] the row of the computation that makes each
    takers: Ints  # [messages]
    has_flow: NDArray[np.bool_]  # [nodes + 1] computations and reductions

    @classmethod
    def of(cls, program: Program) -> _Tables:
        found = program.__dict__.get("_shared_tables")  # as the program's other tables: made once for each program
        if found is None:
            found = program.__dict__["_shared_tables"] = cls._made(program, program.graph)
        return found

    @classmethod
    def _made(cls, program: Program, graph: Graph) -> _Tables:
        nodes = len(graph.nodes) + 1
        target = np.repeat(np.arange(nodes), np.diff(graph.edge_ptr))
        source, message = graph.edge_source, graph.edge_message
        real = np.ones(len(target), np.bool_)
        real[: graph.edge_ptr[1]] = False  # what node 0 waits for
        plain = real & (message < 0)
        order = np.argsort(source[plain], kind="stable")
        out_node = target[plain][order]
        out_ptr = np.concatenate(([0], np.cumsum(np.bincount(source[plain], minlength=nodes))))
        carried = np.flatnonzero(real & (message >= 0))
        sends, makers = program.senders
        in_order = np.argsort(sends)
        sends, makers = sends[in_order], makers[in_order]
        number = np.full(len(program), -1, np.int64)
        number[sends] = np.arange(len(sends))
        takers = np.full(len(sends), -1, np.int64)
        takers[number[message[carried]]] = target[carried]
        position = np.zeros(len(program), np.int64)
        position[graph.nodes] = np.arange(1, nodes)
        of_maker = position[program.slot[makers]]
        made = np.argsort(of_maker, kind="stable")
        made_ptr = np.concatenate(([0], np.cumsum(np.bincount(of_maker, minlength=nodes))))
        op = program.op[graph.nodes]
        has_flow = np.concatenate(([False], (op <= Op.W) | (op == Op.REDUCE_GRAD)))
        pending = np.bincount(target[real], minlength=nodes)
        return cls(pending, out_ptr, out_node, made_ptr, made, sends, makers, takers, has_flow)


def pair_network(program: Program, *, half_duplex: bool = False) -> Network:
    """The network of a program without a cluster: a link for each ordered pair of ranks. Both links of two ranks share
    one rate if ``half_duplex``."""
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
        parts=np.ones(len(program), np.int64),
        units=np.full(len(shared), -1, np.int64),
    )


if __name__ == "__main__":  # what a setup calls, so that nobody waits for it later
    from engine import shared_links  # by its name: numba keeps what it compiles for the module of that name

    shared_links.compile_loop()
