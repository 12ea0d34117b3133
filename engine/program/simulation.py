"""Simulation of a program with its costs, which predicts its timeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.graph import Graph, early_edges
from meshwave.engine.program.program import Program
from meshwave.engine.program.shared_links import Network, UncontendedTimes, is_contended, pair_network
from meshwave.engine.program.shared_links_simulation import NO_RATES, FlowTimes, RateLog, simulate_shared_links
from meshwave.engine.program.timeline import Timeline

UnitTransferModel = Literal["latency", "sender-blocking", "link-serial", "half-duplex", "batched"]
TransferModel = Literal["shared-links", "latency", "sender-blocking", "link-serial", "half-duplex", "batched"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def simulate(
    program: Program,
    seconds: Floats,
    transfer_model: TransferModel = "latency",
    meshes: tuple[str, ...] | None = None,
    network: Network | None = None,
    alone: Timeline | None = None,
    lead: Floats | None = None,
) -> Timeline:
    """Return the timeline of a program without problems.

    A rank computes in order, each action as soon as its inputs have arrived; every action ends as early as possible.
    The function uses neither clock nor random numbers.

    Args:
        program: the program.
        seconds: ``[rows]`` seconds of each computation, reduction and optimizer step, and (at its SEND) of each
            transfer that is alone; a shared slot takes the sum of its rows.
        transfer_model: *shared-links*: transfers and collectives share the ports of ``network``; *latency*: a transfer
            starts when its tensor is produced and delays no other; *sender-blocking*: a transfer occupies its sender;
            *link-serial*: a NIC of ``network`` carries one transfer at a time in each direction, or without a network
            the link between two ranks does; *half-duplex*: the link between two ranks carries one transfer at a time in
            each direction, and both directions share its rate; *batched*: the transfers of a batch
            (:mod:`meshwave.engine.program.batches`) start when both ranks reach it and end with the longest of them,
            and occupy both ranks until then.
        meshes: name of the mesh of each rank.
        network: the shared network; without one, *shared-links* is the same as *latency*.
        alone: timeline of the same seconds with *latency*, if it has been computed.
        lead: ``[rows]`` for a REDUCE_GRAD, the share of the last computation of its stage that follows when the reduction
            can begin; None if all reductions follow that computation.
    """
    if transfer_model == "half-duplex" or (transfer_model == "link-serial" and network is None):
        network = pair_network(program, half_duplex=transfer_model == "half-duplex")
    if transfer_model in ("latency", "sender-blocking", "batched") or network is None:
        return _simulate_uncontended(program, seconds, meshes, transfer_model, lead)
    alone = alone or _simulate_uncontended(program, seconds, meshes, lead=lead)
    sizes = flow_bytes(program, seconds, network)
    if not is_contended(network, _uncontended_flows(program, network, sizes, alone)):
        return replace(alone, meshes=meshes or alone.meshes)
    play = simulate_shared_links(program, computing_seconds(program, seconds, network), sizes, network, lead=lead)
    start, end, cause = _span_times(program, play)
    return replace(alone, meshes=meshes or alone.meshes, start=start, end=end, cause=cause)


def is_shared(program: Program, seconds: Floats, network: Network, lead: Floats | None = None) -> bool:
    """Return True if any flow of a program waits for another flow, or shares a full port with it."""
    alone = _simulate_uncontended(program, seconds, None, lead=lead)
    return is_contended(network, _uncontended_flows(program, network, flow_bytes(program, seconds, network), alone))


def link_rates(
    program: Program, seconds: Floats, network: Network, entries: int, lead: Floats | None = None
) -> tuple[Timeline, RateLog]:
    """Simulate on shared links, and log up to ``entries`` rate changes of flows."""
    sizes = flow_bytes(program, seconds, network)
    play = simulate_shared_links(
        program, computing_seconds(program, seconds, network), sizes, network, lead=lead, log_entries=entries
    )
    return _make_timeline(program, play, None), play.log


# ---- without sharing ----


def _simulate_uncontended(
    program: Program,
    seconds: Floats,
    meshes: tuple[str, ...] | None,
    transfer_model: TransferModel = "latency",
    lead: Floats | None = None,
) -> Timeline:
    """Return the timeline without contention for links: each transfer delays an edge of the graph on its own."""
    graph = program.graph
    transfer = graph.edge_message
    blocked = graph.edge_blocked
    if transfer_model == "batched":
        blocked = np.where(_blocks_batch(program, blocked), blocked, -1)
        seconds = _batch_seconds(program, seconds)
    if transfer_model in ("sender-blocking", "batched"):
        transfer = np.where(transfer >= 0, transfer, blocked)
    lag, carried = np.zeros(len(transfer)), np.flatnonzero(transfer >= 0)
    lag[carried] = seconds[transfer[carried]]
    durations = slot_sums(program, seconds)
    if lead is not None:
        edges, share = early_edges(graph, program.is_compute, lead)
        lag[edges] = -share * durations[graph.nodes[graph.edge_source[edges] - 1]]
    start, end = _simulate_levels(graph, durations[graph.nodes], lag)
    by_edge = _last_inputs(graph, start, end, lag)
    by_row = np.concatenate(([-1], graph.nodes))[graph.edge_source[by_edge]]
    cause = np.concatenate(([-1], np.where(transfer[by_edge] >= 0, transfer[by_edge], by_row)))
    ended = np.zeros(len(program))
    ended[graph.nodes] = end[1:]
    sends, sent, sent_cause = _send_starts(program, ended, batched=transfer_model == "batched")
    play = FlowTimes(start, end, cause, sends, sent, sent + seconds[sends], sent_cause, NO_RATES)
    return _make_timeline(program, play, meshes)


def _send_starts(program: Program, ended: Floats, *, batched: bool) -> tuple[Ints, Floats, Ints]:
    """Return the row of each SEND, its start, and the computation for which it waited (in a batch, the last one)."""
    sends, makers = program.send_rows
    sent, cause = ended[program.slot[makers]], makers.copy()
    if batched:
        here = np.flatnonzero(program.batch[sends] >= 0)
        here = here[np.lexsort((sends[here], sent[here]))]
        batch = program.batch[sends[here]]
        last = np.zeros(int(batch.max(initial=-1)) + 1, np.int64)
        last[batch] = here  # sorted by end: the last assignment wins
        sent[here], cause[here] = sent[last[batch]], makers[last[batch]]
    return sends, sent, cause


def _blocks_batch(program: Program, blocked: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return True for each edge over which a computation waits for a batch of its own rank, ``[edges]``."""
    target = np.repeat(np.concatenate(([-1], program.graph.nodes)), np.diff(program.graph.edge_ptr))
    found: NDArray[np.bool_] = (blocked >= 0) & (program.batch[blocked] >= 0) & program.is_compute[target]
    return found


def _batch_seconds(program: Program, seconds: Floats) -> Floats:
    """Return the seconds of each row, ``[rows]``, in which every SEND of a batch takes as long as the longest one."""
    rows = np.flatnonzero(program.batch >= 0)
    longest = np.zeros(int(program.batch.max(initial=-1)) + 1)
    np.maximum.at(longest, program.batch[rows], seconds[rows])
    seconds = seconds.copy()
    seconds[rows] = longest[program.batch[rows]]
    return seconds


def slot_sums(program: Program, values: Floats) -> Floats:
    """Return ``values`` with the sum of both rows of each shared slot at its first row, ``[rows]``."""
    fused = np.flatnonzero(program.fused)
    if fused.size:
        values = values.copy()
        values[fused - 1] += values[fused]
    return values


def _simulate_levels(graph: Graph, duration: Floats, lag: Floats) -> tuple[Floats, Floats]:
    """Return start and end of every node, each ``[nodes + 1]``; node 0 is the start of the step."""
    start, end = np.zeros(len(graph.nodes) + 1), np.zeros(len(graph.nodes) + 1)
    duration = np.concatenate(([0.0], duration))
    bounds = graph.level_ptr.tolist()
    firsts = graph.edge_ptr[graph.level_ptr]
    first_edge = graph.edge_ptr[:-1].copy()  # of each node, counted from the first edge of its level
    first_edge[graph.level_ptr[0] :] -= np.repeat(firsts[:-1], np.diff(graph.level_ptr))
    source, latest, add = graph.edge_source, np.maximum.reduceat, np.add
    for a, b, e0, e1 in zip(bounds, bounds[1:], firsts.tolist(), firsts.tolist()[1:], strict=False):
        arrivals = end[source[e0:e1]]
        arrivals += lag[e0:e1]
        ready = latest(arrivals, first_edge[a:b], out=start[a:b])
        add(ready, duration[a:b], out=end[a:b])
    return start, end


def _last_inputs(graph: Graph, start: Floats, end: Floats, lag: Floats) -> NDArray[np.int64]:
    """Return the edge over which the last input of each node arrived, ``[nodes]``."""
    into = np.repeat(np.arange(len(start)), np.diff(graph.edge_ptr))
    on_time = np.flatnonzero(end[graph.edge_source] + lag == start[into])
    cause = np.full(len(start), -1, np.int64)
    cause[into[on_time][::-1]] = on_time[::-1]  # of several edges, the first one: the preceding action of the rank
    return cause[1:]


# ---- links are shared ----


def flow_bytes(program: Program, seconds: Floats, network: Network) -> Floats:
    """Return the bytes of the flow of each row, ``[rows]``; a shared slot has one flow, at its first row."""
    return slot_sums(program, network.bytes_of(program, seconds))


def computing_seconds(program: Program, seconds: Floats, network: Network) -> Floats:
    """Return the seconds of each slot without its messages and exchanges, ``[rows]``."""
    computing = seconds.copy()
    flows = network.row_kind >= 0
    computing[flows] -= np.where(program.is_work, network.exchange_s, seconds)[flows]
    return np.maximum(0.0, slot_sums(program, computing))


def _uncontended_flows(program: Program, network: Network, sizes: Floats, alone: Timeline) -> UncontendedTimes:
    """Return the times at which the bytes of every flow are transferred if no flow delays another."""
    rows = np.flatnonzero(network.row_kind >= 0)
    span = program.span_of_row[rows]
    kind, parts = network.row_kind[rows], network.parts[rows]
    took = sizes[rows] / parts / network.rate[kind]
    first = alone.start[span] + network.latency_s[kind]
    has_exchange, found = program.is_work[rows], list(_uncontended_flows_beside(program, network, alone))
    if not has_exchange.any() and not found:
        return UncontendedTimes(kind, first, first + took)
    exchanges = has_exchange & ~program.fused[rows]
    starts = np.where(has_exchange & ~exchanges, np.inf, first)
    for part in range(int(parts.max(initial=1))):
        here = np.flatnonzero((parts > part) & np.isfinite(starts))
        each = (alone.end[span[here]] - alone.start[span[here]]) / parts[here]
        late = np.where(exchanges[here], (part + 1) * each - took[here] - network.latency_s[kind[here]], 0.0)
        found.append(UncontendedTimes(kind[here], starts[here] + late, starts[here] + late + took[here]))
    return UncontendedTimes(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _uncontended_flows_beside(program: Program, network: Network, alone: Timeline) -> Iterator[UncontendedTimes]:
    """Yield the times of the flows beside computations, part by part."""
    rows = np.flatnonzero(network.beside_kind >= 0)
    if not len(rows):
        return
    span, kind, parts = program.span_of_row[rows], network.beside_kind[rows], network.parts[rows]
    took = network.beside_bytes[rows] / parts / network.rate[kind]
    each = (alone.end[span] - alone.start[span]) / parts
    for part in range(int(parts.max())):
        here = np.flatnonzero(parts > part)
        first = alone.start[span[here]] + part * each[here] + network.latency_s[kind[here]]
        yield UncontendedTimes(kind[here], first, first + took[here])


# ---- the timeline ----


def _make_timeline(program: Program, play: FlowTimes, meshes: tuple[str, ...] | None) -> Timeline:
    rows = program.spans
    start, end, cause = _span_times(program, play)
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
        start=start,
        end=end,
        cause=cause,
        other=program.other[rows],
    )


def _span_times(program: Program, play: FlowTimes) -> tuple[Floats, Floats, Ints]:
    """Return the start, the end and the cause of each span, each ``[spans]``."""
    span = program.span_of_row
    start, end, cause = np.zeros(len(program.spans)), np.zeros(len(program.spans)), np.full(len(program.spans), -1)
    nodes, sends, second = span[program.graph.nodes], span[play.sends], np.flatnonzero(program.fused)
    for column, of_nodes, of_sends in (
        (start, play.start, play.sent),
        (end, play.end, play.came),
        (cause, play.cause, play.sent_cause),
    ):
        column[nodes], column[sends] = of_nodes[1:], of_sends
        column[span[second]] = column[span[program.slot[second]]]
    return start, end, span[cause]
