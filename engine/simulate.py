"""Play a program against its costs: the predicted timeline."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from engine.program.graph import Graph
from engine.program.program import Program
from engine.timeline import Timeline

TransferModel = Literal["latency", "sender-blocking", "link-serial"]
Floats = NDArray[np.float64]


def simulate(
    program: Program,
    seconds: Floats,
    transfer_model: TransferModel = "latency",
    meshes: tuple[str, ...] | None = None,
) -> Timeline:
    """When each action of a sound program begins and ends.

    A rank computes in order, each action as soon as its inputs are there; everything is done as
    early as it can be. Pure: no clock and no chance.

    Args:
        seconds: ``[rows of the program]`` how long each computation, reduction and step takes, and
            each transfer at its SEND; a slot of two takes the sum of their rows.
        transfer_model: *latency*: a transfer starts when its tensor is made and disturbs nothing;
            *sender-blocking*: the sender does nothing else meanwhile; *link-serial*: one transfer
            at a time on each directed pair of ranks.
        meshes: a name for each rank.
    """
    serial = transfer_model == "link-serial"
    graph = program.serial_graph if serial else program.graph
    transfer = graph.edge_message  # the SEND that lies on each edge, if any
    if transfer_model == "sender-blocking":
        transfer = np.where(transfer >= 0, transfer, graph.edge_blocked)
    lag = np.zeros(len(transfer))
    if not serial:
        lag[transfer >= 0] = seconds[transfer[transfer >= 0]]
    start, end = _play(graph, _of_slots(program, seconds)[graph.nodes], lag)
    by_edge = _causes(graph, start, end, lag)
    by_row = np.concatenate(([-1], graph.nodes))[graph.edge_source[by_edge]]
    cause = np.where(transfer[by_edge] >= 0, transfer[by_edge], by_row)
    return _timeline(program, graph, start, end, cause, seconds, serial, meshes)


def _of_slots(program: Program, seconds: Floats) -> Floats:
    """``[rows]`` how long the slot takes that begins with each row."""
    fused = np.flatnonzero(program.fused)
    if fused.size:
        seconds = seconds.copy()
        seconds[fused - 1] += seconds[fused]
    return seconds


def _play(graph: Graph, duration: Floats, lag: Floats) -> tuple[Floats, Floats]:
    """``[nodes + 1]`` starts and ends; node 0 is the start of the step."""
    start, end = np.zeros(len(graph.nodes) + 1), np.zeros(len(graph.nodes) + 1)
    duration = np.concatenate(([0.0], duration))
    bounds = graph.level_ptr.tolist()
    firsts = graph.edge_ptr[graph.level_ptr].tolist()
    source, edge_ptr, latest = graph.edge_source, graph.edge_ptr, np.maximum.reduceat
    for a, b, e0, e1 in zip(bounds, bounds[1:], firsts, firsts[1:], strict=False):
        arrivals = end[source[e0:e1]]
        arrivals += lag[e0:e1]
        start[a:b] = ready = latest(arrivals, edge_ptr[a:b] - e0)
        end[a:b] = ready + duration[a:b]
    return start, end


def _causes(graph: Graph, start: Floats, end: Floats, lag: Floats) -> NDArray[np.int64]:
    """``[nodes]`` the edge over which each node's last input arrived."""
    into = np.repeat(np.arange(len(start)), np.diff(graph.edge_ptr))
    on_time = np.flatnonzero(end[graph.edge_source] + lag == start[into])
    cause = np.full(len(start), -1, np.int64)
    cause[into[on_time][::-1]] = on_time[::-1]  # of several, the first: what the rank did before
    return cause[1:]


def _timeline(
    program: Program,
    graph: Graph,
    start: Floats,
    end: Floats,
    cause: NDArray[np.int64],
    seconds: Floats,
    serial: bool,
    meshes: tuple[str, ...] | None,
) -> Timeline:
    rows = program.spans
    begins, ends, caused = np.zeros(len(program)), np.zeros(len(program)), np.full(len(program), -1, np.int64)
    begins[graph.nodes], ends[graph.nodes], caused[graph.nodes] = start[1:], end[1:], cause
    for column in (begins, ends, caused):
        column[program.fused] = column[program.slot[program.fused]]
    if not serial:
        sends, makers = program.senders
        begins[sends] = ends[makers]
        ends[sends] = begins[sends] + seconds[sends]
        caused[sends] = makers
    return Timeline(
        source="predicted",
        digest=program.digest,
        meshes=meshes or tuple(f"rank {rank}" for rank in range(program.ranks)),
        rank=program.rank[rows],
        peer=program.peer[rows],
        op=program.op[rows],
        stage=program.stage[rows],
        microbatch=program.microbatch[rows],
        fused=program.fused[rows],
        start=begins[rows],
        end=ends[rows],
        cause=program.span_of_row[caused[rows]],
        other=program.other[rows],
    )
