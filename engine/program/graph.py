"""What waits for what in a program: the graph that the simulator plays and the verifier proves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine.program.action import Op

if TYPE_CHECKING:
    from engine.program.program import Program

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Tables:
    """``[stages, microbatches]`` the row of each computation, -1 where there is none."""

    forward: Rows
    backward: Rows  # B, or I where the backward is split
    weight: Rows  # B, or W where the backward is split
    send_forward: Rows
    send_backward: Rows


@dataclass(frozen=True)
class Graph:
    """The rows of a program in an order in which each comes after all that it waits for.

    A slot is one node, that of its first row, and waits for all that its two computations wait for.
    Node 0 is the start of the step; node ``k`` is row ``nodes[k - 1]``. Nodes of one level wait
    only for earlier levels, so that a level is played at once. The edges into node ``k`` are
    ``edge_ptr[k]:edge_ptr[k + 1]``. A row that can never run is in no level but in ``stuck``.
    """

    nodes: Rows
    level_ptr: Rows  # [levels + 1] positions of nodes
    edge_ptr: Rows  # [nodes + 2]
    edge_source: Rows  # [edges] node
    edge_message: Rows  # [edges] the SEND row whose transfer lies on the edge, -1 for none
    edge_blocked: Rows  # [edges] the SEND row that a blocking sender finishes first, -1 for none
    stuck: Rows
    waits: tuple[Rows, Rows]  # every edge as (row, row that waits for it)


def find_tables(program: Program) -> Tables:
    """Where each computation and each message of a program stands."""

    def rows_of(*ops: Op) -> Rows:
        table = np.full((program.stages, program.microbatches), -1, np.int64)
        rows = np.flatnonzero(reduce(np.logical_or, [program.op == op for op in ops]))
        stage, microbatch = program.stage[rows], program.microbatch[rows]
        known = (stage < program.stages) & (microbatch < program.microbatches) & (microbatch >= 0)
        table[stage[known], microbatch[known]] = rows[known]
        return table

    return Tables(
        forward=rows_of(Op.F),
        backward=rows_of(Op.B, Op.I),
        weight=rows_of(Op.B, Op.W),
        send_forward=rows_of(Op.SEND_F),
        send_backward=rows_of(Op.SEND_B),
    )


def build_graph(program: Program, *, serial_links: bool = False) -> Graph:
    """The dependencies of a program, in levels.

    With ``serial_links`` the messages of one directed pair of ranks wait for each other, so
    that each SEND is a node of its own; otherwise a transfer is only a delay on an edge.
    """
    edges = _Edges()
    table = program.tables
    sends = _sends(program, table)
    _chains(program, edges, sends)
    _data(program, edges, table, serial_links)
    _updates(program, edges, table, sends)
    played = (program.is_compute & ~program.fused) | (program.op >= Op.REDUCE_GRAD)
    if serial_links:
        played = played | (program.op == Op.SEND_F) | (program.op == Op.SEND_B)
    return _levels(np.flatnonzero(played), len(program), *_between_slots(program, *edges.columns()))


def _between_slots(
    program: Program, source: Rows, target: Rows, message: Rows, blocked: Rows
) -> tuple[Rows, Rows, Rows, Rows]:
    """Let slots wait for slots: what a fused computation needs, its whole slot needs."""
    if not program.fused.any():
        return source, target, message, blocked
    source, target = program.slot[source], program.slot[target]
    apart = source != target
    return source[apart], target[apart], message[apart], blocked[apart]


class _Edges:
    def __init__(self) -> None:
        self._parts: list[tuple[Rows, Rows, Rows, Rows]] = []

    def add(self, source: Rows, target: Rows, message: Rows | int = -1, blocked: Rows | int = -1) -> None:
        columns = (source, target, np.broadcast_to(message, source.shape), np.broadcast_to(blocked, source.shape))
        self._parts.append(tuple(np.asarray(c, np.int64) for c in columns))  # type: ignore[arg-type]

    def columns(self) -> tuple[Rows, Rows, Rows, Rows]:
        source, target, message, blocked = (np.concatenate(c) for c in zip(*self._parts, strict=True))
        return source, target, message, blocked


def _sends(program: Program, table: Tables) -> Rows:
    """``[rows]`` the SEND of what a computation makes, -1 for none."""
    sends = np.full(len(program), -1, np.int64)
    for computed, sent in ((table.forward, table.send_forward), (table.backward, table.send_backward)):
        made = (computed >= 0) & (sent >= 0)
        sends[computed[made]] = sent[made]
    return sends


def _chains(program: Program, edges: _Edges, sends: Rows) -> None:
    """A rank computes in order, and steps after its last computation.

    A sender that its messages block sends both of a slot at once.
    """
    rows = np.flatnonzero(program.is_compute | (program.op == Op.STEP))
    same = program.rank[rows[1:]] == program.rank[rows[:-1]]
    source, target = rows[:-1][same], rows[1:][same]
    edges.add(source, target, blocked=sends[source])
    before_slot_ends = np.flatnonzero(program.fused[source])
    if before_slot_ends.size:
        edges.add(source[before_slot_ends], target[before_slot_ends], blocked=sends[source[before_slot_ends] - 1])


def _data(program: Program, edges: _Edges, table: Tables, serial_links: bool) -> None:
    hops = [
        (table.forward[:-1], table.forward[1:], table.send_forward[:-1]),
        (table.backward[1:], table.backward[:-1], table.send_backward[1:]),
    ]
    for source, target, sent in hops:
        _hop(program, edges, source.ravel(), target.ravel(), sent.ravel(), serial_links)
    for source, target in ((table.forward, table.backward), (table.backward, table.weight)):
        _within_rank(program, edges, source.ravel(), target.ravel())
    if serial_links:
        rows = np.flatnonzero((program.op == Op.SEND_F) | (program.op == Op.SEND_B))
        channel = program.rank[rows].astype(np.int64) * program.ranks + program.peer[rows]
        order = np.argsort(channel, kind="stable")
        rows, channel = rows[order], channel[order]
        same = channel[1:] == channel[:-1]
        edges.add(rows[:-1][same], rows[1:][same])


def _hop(program: Program, edges: _Edges, source: Rows, target: Rows, sent: Rows, serial_links: bool) -> None:
    """From a stage to its neighbour: a hand-over on the same rank, or a message."""
    there = (source >= 0) & (target >= 0)
    source, target, sent = source[there], target[there], sent[there]
    across = program.rank[source] != program.rank[target]
    _within_rank(program, edges, source[~across], target[~across])
    source, target, sent = source[across], target[across], sent[across]
    if serial_links:
        known = sent >= 0
        edges.add(source[known], sent[known])
        edges.add(sent[known], target[known], message=sent[known])
        source, target, sent = source[~known], target[~known], sent[~known]
    edges.add(source, target, message=sent)


def _within_rank(program: Program, edges: _Edges, source: Rows, target: Rows) -> None:
    """An edge on one rank is implied by its order; only one against the order has to be kept."""
    against = (source > target) & (target >= 0)
    edges.add(source[against], target[against])


def _updates(program: Program, edges: _Edges, table: Tables, sends: Rows) -> None:
    """Gradients are reduced once all copies are complete; a rank steps when its gradients are there."""
    reduces = np.flatnonzero(program.op == Op.REDUCE_GRAD)
    last = table.weight.max(axis=1, initial=-1)  # of one copy; other copies are looked up below
    for row in reduces.tolist():
        stage = int(program.stage[row])
        if program.replicas == 1:
            finals = [int(last[stage])]
        else:
            of_stage = table.weight[stage]
            owner = program.rank[of_stage]
            finals = [int(of_stage[owner == rank].max(initial=-1)) for rank in program.ranks_of(stage)]
        sources = np.array([final for final in finals if final >= 0], np.int64)
        edges.add(sources, np.full(len(sources), row), blocked=sends[sources])
    owner = program.rank[reduces]
    same = owner[1:] == owner[:-1]
    edges.add(reduces[:-1][same], reduces[1:][same])  # one communicator after the other
    steps = np.flatnonzero(program.op == Op.STEP)
    for step in steps.tolist():
        before = reduces[owner == program.rank[step]][-1:]
        edges.add(before, np.full(len(before), step))
    if program.clips:
        _norm(program, edges, reduces, steps)


def _norm(program: Program, edges: _Edges, reduces: Rows, steps: Rows) -> None:
    """The norm of all gradients is there when every rank has all of its own: none steps before."""
    computes = np.flatnonzero(program.is_compute)
    ends = [rows[np.searchsorted(rows, program.offsets[1:]) - 1] for rows in (computes, reduces) if len(rows)]
    last = np.unique(np.concatenate(ends))
    source, target = np.repeat(last, len(steps)), np.tile(steps, len(last))
    edges.add(source, target)


def _levels(nodes: Rows, rows: int, source: Rows, target: Rows, message: Rows, blocked: Rows) -> Graph:
    """Peel the graph level by level (Kahn's algorithm, a level at a time)."""
    order = np.argsort(source, kind="stable")
    out_target = target[order]
    out_ptr = _starts(source, rows)
    waiting = np.bincount(target, minlength=rows)
    first_seen = np.empty(rows, np.int64)
    frontier = nodes[waiting[nodes] == 0]
    levels = []
    while frontier.size:
        levels.append(frontier)
        begin = out_ptr[frontier]
        count = out_ptr[frontier + 1] - begin
        ends = count.cumsum()
        reached = out_target[np.arange(ends[-1]) + np.repeat(begin - ends + count, count)]
        np.subtract.at(waiting, reached, 1)
        freed = reached[waiting[reached] == 0]
        place = np.arange(freed.size)
        first_seen[freed] = place  # a row that two of this level freed is listed once
        frontier = freed[first_seen[freed] == place]
    played = np.concatenate([*levels, np.empty(0, np.int64)])
    position = np.zeros(rows, np.int64)
    position[played] = np.arange(1, len(played) + 1)
    roots = levels[0] if levels else np.empty(0, np.int64)
    none = np.full(len(roots), -1, np.int64)
    kept = (position[source] > 0) & (position[target] > 0)
    into = np.concatenate([position[roots], position[target[kept]]])
    by_target = np.argsort(into, kind="stable")
    return Graph(
        nodes=played,
        level_ptr=np.cumsum([0, *map(len, levels)]) + 1,
        edge_ptr=_starts(into, len(played) + 1),
        edge_source=np.concatenate([np.zeros_like(roots), position[source[kept]]])[by_target],
        edge_message=np.concatenate([none, message[kept]])[by_target],
        edge_blocked=np.concatenate([none, blocked[kept]])[by_target],
        stuck=nodes[position[nodes] == 0],
        waits=(source, target),
    )


def _starts(key: Rows, keys: int) -> Rows:
    """``[keys + 1]`` where the entries of each key begin once they are sorted by key."""
    return np.concatenate(([0], np.cumsum(np.bincount(key, minlength=keys))))
