"""Simulation of a program on shared links: prepares tables for the event loop, which is compiled if that saves time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.compiled import compiled_module
from meshwave.engine.files import import_path
from meshwave.engine.program import shared_links_loop
from meshwave.engine.program.action import COLLECTIVES, Op
from meshwave.engine.program.graph import Graph, early_edges
from meshwave.engine.program.program import Program, parse_program
from meshwave.engine.program.shared_links import Network, pair_network
from meshwave.engine.program.shared_links_tables import Flows, Nodes, Result, Workspace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
INTERPRETED_EVENTS = 12_000
"""Maximum number of events for which Python runs the loop itself, because importing numba would take longer."""


class FlowTimes(NamedTuple):
    """Simulated times of all actions (nodes of the program's graph, from 1 on) and messages."""

    start: Floats  # [nodes + 1]
    end: Floats  # [nodes + 1]
    cause: Ints  # [nodes + 1] row for whose end the node waited last, -1 for none
    sends: Ints  # [messages] the row of each SEND
    sent: Floats  # [messages]
    came: Floats  # [messages]
    sent_cause: Ints  # [messages] row
    log: RateLog  # empty unless requested


class RateLog(NamedTuple):
    """Changes of rates; each rate is valid until the next entry of its class."""

    time_s: Floats
    kind: Ints  # kind of flow that represents its class
    rate: Floats  # bytes/s of each flow


NO_RATES = RateLog(np.zeros(0), np.zeros(0, np.int64), np.zeros(0))


def simulate_shared_links(
    program: Program,
    durations: Floats,
    sizes: Floats,
    network: Network,
    *,
    lead: Floats | None = None,
    log_entries: int = 0,
    must_compile: bool = False,
) -> FlowTimes:
    """Simulate a program without problems on a shared network.

    Args:
        program: the program.
        network: the ports, and the kinds of flows.
        durations: ``[rows]`` seconds of each slot without waits for flows.
        sizes: ``[rows]`` bytes of the flow of each row; for a shared slot, the sum is at its first row.
        lead: ``[rows]`` share of the last computation that follows a reduction; see
            :func:`~meshwave.engine.program.simulation.simulate`.
        log_entries: maximum number of rate changes to log.
        must_compile: run the compiled loop if numba is available, however few events there are.
    """
    network = network.coupled_network
    graph, tables = program.graph, _Tables.from_program(program, lead)
    messages = tables.messages
    node_rows = np.concatenate(([0], graph.nodes))
    node_kind, beside_kind = (
        np.where(tables.has_flow, of_row[node_rows], -1) for of_row in (network.row_kind, network.beside_kind)
    )
    node_kind[0] = beside_kind[0] = -1
    has_exchange, has_beside = node_kind >= 0, beside_kind >= 0
    parts = np.where(has_exchange | has_beside, network.parts[node_rows], 1)
    compute = np.concatenate(([0.0], durations[graph.nodes])) / parts
    node_size = np.where(has_exchange, sizes[node_rows] / parts, 0.0)
    beside_size = np.where(has_beside, network.beside_bytes[node_rows] / parts, 0.0)
    of_kind, first_of_class = network.classes
    class_ptr, class_port, class_weight = _port_uses(network, first_of_class)
    counts = np.bincount(class_port, minlength=len(network.ports))
    port_ptr = np.concatenate(([0], np.cumsum(counts)))
    port_class = np.repeat(np.arange(len(first_of_class)), np.diff(class_ptr))[np.argsort(class_port, kind="stable")]
    nodes, flows, classes = len(node_rows), 2 * len(node_rows) + len(messages), len(first_of_class)
    lines = int(network.connection.max(initial=-1)) + 1
    lines_of_class = np.bincount(of_kind, minlength=classes)  # a connection has at most one flow of a class in progress
    heap_first = np.concatenate(([0], np.cumsum(lines_of_class)))[:-1]
    start, end, cause = np.zeros(nodes), np.zeros(nodes), np.full(nodes, -1)
    sent, came, sent_cause = np.zeros(len(messages)), np.zeros(len(messages)), np.full(len(messages), -1)
    log = np.zeros(log_entries), np.zeros(log_entries, np.int64), np.zeros(log_entries)
    given = (
        Nodes(
            tables.pending.copy(), tables.out_ptr, tables.out_node, tables.made_ptr, tables.made, compute, parts.copy(), np.zeros(nodes, np.int64),
            tables.takers, tables.timer_ptr, tables.timer_node, tables.timer_target, *_timer_starts(tables, parts, compute),
        ),
        Flows(
            np.concatenate((network.row_kind[messages], node_kind, beside_kind)),
            np.concatenate((sizes[messages], node_size, beside_size)),
            network.latency_s, network.connection, of_kind, class_ptr, class_port, class_weight,
            network.rate[first_of_class], port_ptr, port_class, network.capacity, network.units.copy(),
        ),
    )  # fmt: skip
    written = Result(start, end, cause, sent, came, sent_cause, *log)
    workspace = _allocate_workspace(flows + len(tables.timer_node), lines, len(of_kind), len(network.ports), heap_first)
    logged = _run_event_loop(*given, written, workspace, must_compile=must_compile)
    row_of = np.concatenate((node_rows, messages, [-1]))  # row of each cause; node 0 is the start of the step
    row_of[0] = -1
    sent_cause = np.where(sent_cause >= nodes, row_of[sent_cause], tables.makers)
    used = slice(min(logged, log_entries))
    rates = RateLog(log[0][used], first_of_class[log[1][used]], log[2][used])
    return FlowTimes(start, end, row_of[cause], messages, sent, came, sent_cause, rates)


def _timer_starts(tables: _Tables, parts: Ints, compute: Floats) -> tuple[Ints, Floats]:
    """Return, for each timer, the parts of its computation that remain when it starts, and its seconds, ``[timers]`` each."""
    node = tables.timer_node
    passed = (1 - tables.timer_share) * parts[node]
    part = np.minimum(passed.astype(np.int64), parts[node] - 1)
    return parts[node] - part, (passed - part) * compute[node]


def _allocate_workspace(flows: int, lines: int, kinds: int, ports: int, heap_first: Ints) -> Workspace:
    classes = len(heap_first)
    leaves = 1 << max(0, classes - 1).bit_length()

    def integers(length: int) -> Ints:
        return np.zeros(length, np.int64)

    return Workspace(
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
        ends=np.full(2 * leaves, np.inf),
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
    """Compile the event loop or load it from numba's cache, and return True if numba is available."""
    if compiled_module(shared_links_loop.__name__) is None:
        return False
    program = parse_program("0F0 0SEND_F0\n1RECV_F0 1F0")
    ones = np.ones(len(program))
    simulate_shared_links(program, ones, ones, pair_network(program), must_compile=True)
    return True


def compile_in_background(then: Callable[[], None] = lambda: None) -> threading.Thread:
    """Compile the loop in another process, load it in this one, and finally call ``then``.

    Compiling can block the interpreter for ten seconds. Until it is loaded, Python runs the loop.
    """

    def compile_and_load() -> None:
        environment = {**os.environ, "PYTHONPATH": import_path()}
        call = [sys.executable, "-m", __name__]
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(call, env=environment, check=True, capture_output=True, timeout=COMPILING_S)
            compile_loop()
        _compiling.clear()
        then()

    _compiling.set()
    thread = threading.Thread(target=compile_and_load, daemon=True, name="compile-shared-links")
    thread.start()
    return thread


COMPILING_S = 300.0
_ready = threading.Event()
"""Set when the compiled loop is loaded in this process."""
_compiling = threading.Event()
"""Set while another process compiles the loop."""


def _run_event_loop(nodes: Nodes, flows: Flows, result: Result, workspace: Workspace, *, must_compile: bool) -> int:
    """Run the loop: compiled if that saves time, otherwise in Python on lists, which are faster there."""
    events = len(nodes.pending) + 2 * len(nodes.takers)
    is_worth_it = must_compile or _ready.is_set() or (events > INTERPRETED_EVENTS and not _compiling.is_set())
    module = compiled_module(shared_links_loop.__name__) if is_worth_it else None
    if module is not None:
        logged = int(module.simulate_flows(nodes, flows, result, workspace))
        _ready.set()
        return logged
    lists: list[Any] = [type(part)(*(column.tolist() for column in part)) for part in (nodes, flows, result, workspace)]
    logged = shared_links_loop.simulate_flows(*lists)
    for column, found in zip(result, lists[2], strict=True):
        column[:] = found
    return logged


def _port_uses(network: Network, kinds: Ints) -> tuple[Ints, Ints, Floats]:
    """Return the ports and weights of some kinds of flows as (offsets, ports, weights)."""
    counts = np.diff(network.use_ptr)[kinds]
    ptr = np.concatenate(([0], np.cumsum(counts)))
    use = np.repeat(network.use_ptr[kinds] - ptr[:-1], counts) + np.arange(ptr[-1])
    return ptr, network.use_port[use], network.use_weight[use]


@dataclass(frozen=True, eq=False)
class _Tables:
    """Graph of a program in the form that the loop reads: dependents of each node, and receivers of messages."""

    pending: Ints  # [nodes + 1]
    out_ptr: Ints
    out_node: Ints
    made_ptr: Ints
    made: Ints
    messages: Ints  # [messages] their rows
    makers: Ints  # [messages] row of the computation that produces each
    takers: Ints  # [messages]
    has_flow: NDArray[np.bool_]  # [nodes + 1] computations and collectives
    timer_ptr: Ints
    timer_node: Ints  # [timers]
    timer_target: Ints  # [timers] reduction that begins inside each node
    timer_share: Floats  # [timers] share of the node that follows

    @classmethod
    def from_program(cls, program: Program, lead: Floats | None) -> _Tables:
        known = program.__dict__.get("_shared_tables")  # cached on the program like its other tables
        if known is None or not _are_equal(known[0], lead):
            known = program.__dict__["_shared_tables"] = lead, cls._build(program, program.graph, lead)
        tables: _Tables = known[1]
        return tables

    @classmethod
    def _build(cls, program: Program, graph: Graph, lead: Floats | None) -> _Tables:
        nodes = len(graph.nodes) + 1
        target = np.repeat(np.arange(nodes), np.diff(graph.edge_ptr))
        source, message = graph.edge_source, graph.edge_message
        real = np.ones(len(target), np.bool_)
        real[: graph.edge_ptr[1]] = False  # edges into node 0
        plain = real & (message < 0)
        early, share = (np.empty(0, np.int64), np.zeros(0))
        if lead is not None:
            early, share = early_edges(graph, program.is_compute, lead)
            plain[early] = False
            by_source = np.argsort(source[early], kind="stable")
            early, share = early[by_source], share[by_source]
        timer_ptr = np.concatenate(([0], np.cumsum(np.bincount(source[early], minlength=nodes))))
        order = np.argsort(source[plain], kind="stable")
        out_node = target[plain][order]
        out_ptr = np.concatenate(([0], np.cumsum(np.bincount(source[plain], minlength=nodes))))
        carried = np.flatnonzero(real & (message >= 0))
        sends, makers = program.send_rows
        in_order = np.argsort(sends, kind="stable")  # faster than the default for rows that ascend in long runs
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
        has_flow = np.concatenate(([False], (op <= Op.W) | np.isin(op, (*COLLECTIVES, Op.STEP))))
        pending = np.bincount(target[real], minlength=nodes)
        timers = timer_ptr, source[early], target[early], share
        return cls(pending, out_ptr, out_node, made_ptr, made, sends, makers, takers, has_flow, *timers)


def _are_equal(known: Floats | None, lead: Floats | None) -> bool:
    return known is lead or (known is not None and lead is not None and np.array_equal(known, lead))


if __name__ == "__main__":  # run by the setup, so that no user waits for it later
    from meshwave.engine.program.shared_links_simulation import compile_loop as compile_by_name

    compile_by_name()  # numba caches by module name, and __main__ would not be found later
