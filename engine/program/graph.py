"""Dependency graph of a program, which the simulator executes and the verification proves to be acyclic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import Op
from meshwave.engine.program.tables import Columns

Rows = NDArray[np.int64]


NO_ROWS = np.empty(0, np.int64)


@dataclass(frozen=True)
class Graph:
    """Dependency graph of a program: its rows, sorted so that each comes after all its dependencies.

    A slot is one node, at its first row, with the dependencies of both its computations. Node 0 is the start of the
    step; node ``k`` is row ``nodes[k - 1]``. Nodes of one level depend only on earlier levels, so a level is simulated
    at once. The edges into node ``k`` are ``edge_ptr[k]:edge_ptr[k + 1]``. A row that can never run is in ``stuck``
    instead of a level.
    """

    nodes: Rows
    level_ptr: Rows  # [levels + 1] positions of nodes
    edge_ptr: Rows  # [nodes + 2]
    edge_source: Rows  # [edges] node
    edge_message: Rows  # [edges] SEND row whose transfer delays the edge, -1 for none
    edge_blocked: Rows  # [edges] SEND row that a blocking sender finishes first, -1 for none
    stuck: Rows
    waits: tuple[Rows, Rows]  # all edges (row, row that waits for it) if a row is stuck; otherwise empty


def build_graph(program: Columns) -> Graph:
    """Return the dependency graph of a program. A transfer is a delay on an edge."""
    all_sends = _sends_of_computations(program)
    lines = [*_slots_by_rank(program), *gather_lines(program)]
    previous = _previous_rows(program, lines)
    needs, messages = _list_dependencies(program, all_sends[0])
    levels = _find_levels(program, lines, needs)
    reached = np.concatenate([*levels, np.empty(0, np.int64)])
    edges = list(_order_edges(program, previous, all_sends))
    edges += [_EdgeColumns(need, message, None) for need, message in zip(needs, messages, strict=True)]
    if len(reached) == sum(map(len, lines)):
        return _assemble_graph(program, levels, edges, _update_levels(program, all_sends))
    waits = np.zeros(len(program), np.bool_)
    waits[np.concatenate(lines)] = True
    waits[reached] = False
    stuck = np.flatnonzero(waits)
    none = _Edges.join([(NO_ROWS, NO_ROWS, None)])
    return replace(
        _assemble_graph(program, levels, edges, ([], none)), stuck=stuck, waits=_waiting_pairs(program, previous, needs)
    )


def early_edges(
    graph: Graph, is_compute: NDArray[np.bool_], lead: NDArray[np.float64]
) -> tuple[Rows, NDArray[np.float64]]:
    """Return the edges over which reductions begin before the end of a computation, and the share of it that remains.

    Args:
        graph: the graph of a program.
        is_compute: [rows] True for computations.
        lead: [rows] share that follows, for each reduction.
    """
    target = np.repeat(np.concatenate(([-1], graph.nodes)), np.diff(graph.edge_ptr))
    source = np.concatenate(([-1], graph.nodes))[graph.edge_source]
    edges = np.flatnonzero((target >= 0) & (source >= 0) & (lead[target] > 0) & is_compute[source])
    return edges, lead[target[edges]]


def _order_edges(program: Columns, previous: Rows, sends: list[Rows]) -> Iterator[_EdgeColumns]:
    """Yield the edges between successive slots of a rank.

    With blocking senders, a slot ends after all its sends: there is one edge per send, and an edge without a message
    only if the slot sends nothing.
    """
    source = _slots_of_rows(program, previous)
    columns = [column[previous] for column in sends]
    if program.fused.any():  # both computations of a slot send at the same time
        before = np.where((previous >= 0) & program.fused[previous], previous - 1, -1)
        columns += [column[before] for column in sends]
    for number, blocked in enumerate(_compact_columns(columns)):
        there = source if number == 0 else np.where(blocked >= 0, source, -1)
        yield _EdgeColumns(there, None, blocked)


def _compact_columns(columns: list[Rows]) -> list[Rows]:
    """Return the entries of each row, moved to the first columns; the last columns are filled with -1."""
    if len(columns) == 1:
        return columns
    table = np.stack(columns)
    order = np.argsort(table < 0, axis=0, kind="stable")
    return list(np.take_along_axis(table, order, axis=0))


def _sends_of_computations(program: Columns) -> list[Rows]:
    """Return the SEND of each computation, ``[rows + 1]``, -1 for none; the last entry is -1, for row -1.

    More columns follow if a computation has messages that skip stages.
    """
    sends, table = np.full(len(program) + 1, -1, np.int64), program.tables
    for computed, sent in ((table.forward, table.send_forward), (table.backward, table.send_backward)):
        made = np.flatnonzero((computed >= 0) & (sent >= 0))
        sends[computed.ravel()[made]] = sent.ravel()[made]
    skipping = program.skip_messages
    return [sends, *_spread_columns(len(program) + 1, skipping.maker, skipping.send)]


def _spread_columns(length: int, at: Rows, *values: Rows) -> list[Rows]:
    """Return ``values`` as columns ``[length]`` at the rows ``at``, with -1 in all other rows.

    If a row has several values, there is one column for each: column ``n`` of each of ``values``, then column ``n +
    1``.
    """
    order = np.argsort(at, kind="stable")
    number = _index_within_key(at[order])
    columns = []
    for n in range(int(number.max(initial=-1)) + 1):
        rows = order[number == n]
        for value in values:
            column = np.full(length, -1, np.int64)
            column[at[rows]] = value[rows]
            columns.append(column)
    return columns


def _slots_by_rank(program: Columns) -> list[Rows]:
    """Return the slots of each rank in order, by their first rows."""
    slots = np.flatnonzero(program.is_compute & ~program.fused)
    lines = np.split(slots, np.searchsorted(slots, program.offsets[1:-1]))
    return [line for line in lines if line.size]


def _previous_rows(program: Columns, lines: list[Rows]) -> Rows:
    """Return the preceding row of each row in its line, ``[rows]``, -1 for none; for a shared slot, its second row."""
    previous = np.full(len(program), -1, np.int64)
    for line in lines:
        previous[line[1:]] = line[:-1]
    return previous + (program.next_is_fused[previous] & (previous >= 0)) if program.fused.any() else previous


def _slots_of_rows(program: Columns, rows: Rows) -> Rows:
    """Return the slot of each row; -1 for row -1."""
    return np.where(rows >= 0, program.slot[rows], -1) if program.fused.any() else rows


def _list_dependencies(program: Columns, sends: Rows) -> tuple[list[Rows], list[Rows]]:
    """Return the rows on which computations depend beyond their line, and the SENDs between, each ``[rows]``.

    Entries are -1 for none. There is one list for computations, one for gathers, one for each message that skips stages
    to the same computation, and another of each for the second computation of a slot. A dependency within a rank follows from its order. It is
    kept only if the needed row comes later, because then the order cannot satisfy it.
    """
    need, message = np.full(len(program), -1, np.int64), np.full(len(program) + 1, -1, np.int64)
    table = program.tables
    hops = ((table.forward[:-1], table.forward[1:]), (table.backward[1:], table.backward[:-1]))
    here = ((table.forward, table.backward), (table.backward, table.weight))
    for source, target in (*hops, *here):
        there = np.flatnonzero((source >= 0) & (target >= 0))
        source, target = source.ravel()[there], target.ravel()[there]
        across = program.rank[source] != program.rank[target]
        kept = np.flatnonzero(across | (source > target))
        source, target, across = source[kept], target[kept], across[kept]
        need[target] = source
        message[target] = np.where(across, sends[source], -1)
    send, maker, taker = program.skip_messages
    needs, messages = [need], [message[:-1]]
    if (program.op == Op.UNSHARD).any():
        needs.append(gather_needs(program))
        messages.append(np.full(len(program), -1, np.int64))
    skips = _spread_columns(len(program), taker, maker, send)
    needs, messages = needs + skips[::2], messages + skips[1::2]
    needs = [_slots_of_rows(program, each) for each in needs]
    if program.fused.any():
        needs += [np.where(program.next_is_fused, np.append(each[1:], -1), -1) for each in needs]
        messages += [np.where(program.next_is_fused, np.append(each[1:], -1), -1) for each in messages]
    return needs, messages


def _find_levels(program: Columns, lines: list[Rows], needs: list[Rows]) -> list[Rows]:
    """Return the rows of each level of the graph: the next row of each line that depends only on earlier levels."""
    if not lines:
        return []
    never, row = len(program), np.array([len(program)])  # a row that never runs ends each line
    rows = np.concatenate([part for line in lines for part in (line, row)])
    at = np.cumsum([0, *(len(line) + 1 for line in lines[:-1])])
    done = np.zeros(never + 2, np.bool_)
    done[-1] = True  # rows without dependencies depend on row -1
    needs = [np.append(need, never)[rows] for need in needs]
    levels: list[Rows] = []
    while True:
        ready = done[needs[0][at]]
        for need in needs[1:]:
            ready &= done[need[at]]
        level = rows[at[ready]]
        if not level.size:
            return levels
        done[level] = True
        at += ready
        levels.append(level)


def _update_levels(program: Columns, sends: list[Rows]) -> tuple[list[Rows], _Edges]:
    """Return the levels of gradient reductions and optimizer steps in the graph, and all edges into them.

    Gradients of a stage are reduced when all its copies are complete, one stage of a rank after the other; a rank runs
    its optimizer step when its gradients are reduced.
    """
    reduces = np.flatnonzero(program.op == Op.REDUCE_GRAD)
    steps = np.flatnonzero(program.op == Op.STEP)
    owner = program.rank[reduces]
    number = np.arange(len(reduces)) - np.searchsorted(owner, owner)  # index among the reductions of its rank
    levels = [reduces[number == n] for n in range(int(number.max(initial=-1)) + 1)]
    computes = np.flatnonzero(program.is_compute)
    last_compute = _last_of_each_rank(program, computes)
    last_reduce = _last_of_each_rank(program, reduces)
    edges: list[tuple[Rows, Rows, Rows | None]] = [(NO_ROWS, NO_ROWS, NO_ROWS)]
    for row in reduces.tolist():
        finals = _last_computations(program, int(program.stage[row]))
        edges += [(program.slot[of], np.full(len(of), row), sent) for of, sent in _rows_with_sends(finals, sends)]
    after = np.flatnonzero(number > 0)
    edges.append((reduces[after - 1], reduces[after], None))  # a rank reduces one stage at a time
    for ends in (last_compute, last_reduce):
        before = ends[program.rank[steps]]
        there = before >= 0
        step_of = dict(zip(before[there].tolist(), steps[there].tolist(), strict=True))
        for of, sent in _rows_with_sends(before[there], sends):
            edges.append((program.slot[of], np.array([step_of[row] for row in of.tolist()], np.int64), sent))
        if program.clips:  # the norm needs the gradients of every rank
            everybody = program.slot[ends[ends >= 0]]
            edges.append((np.tile(everybody, len(steps)), np.repeat(steps, len(everybody)), None))
    return ([*levels, steps] if len(steps) else levels), _Edges.join(edges)


def _rows_with_sends(rows: Rows, sends: list[Rows]) -> Iterator[tuple[Rows, Rows]]:
    """Yield rows with their first SEND, -1 for none; then the rows that have a second SEND, and so on."""
    first, *more = _compact_columns(sends)
    yield rows, first[rows]
    for column in more:
        of = rows[column[rows] >= 0]
        yield of, column[of]


def _last_of_each_rank(program: Columns, rows: Rows) -> Rows:
    """Return the last of ``rows`` on each rank, ``[ranks]``; -1 for none."""
    last = np.full(program.ranks, -1, np.int64)
    last[program.rank[rows]] = rows  # rows ascend: the last assignment wins
    return last


def _last_computations(program: Columns, stage: int) -> Rows:
    """Return the last computation that adds to the gradients of ``stage``, on each rank that runs a copy of it."""
    of_stage = program.tables.weight[stage]
    last = _last_of_each_rank(program, np.sort(of_stage[of_stage >= 0]))[program.ranks_of(stage)]
    return last[last >= 0]


class _EdgeColumns(NamedTuple):
    """At most one edge into each row, as columns ``[rows]`` with -1 for none; a column of None is -1 everywhere."""

    source: Rows
    message: Rows | None
    blocked: Rows | None


class _Edges(NamedTuple):
    """Edges between rows; ``message`` and ``blocked`` are -1 for an edge without a message."""

    source: Rows
    target: Rows
    message: Rows
    blocked: Rows

    @classmethod
    def join(cls, parts: list[tuple[Rows, Rows, Rows | None]]) -> _Edges:
        """Return the edges of several parts (source, target, blocked), sorted by target."""
        source, target, blocked = (
            np.concatenate([np.full(len(part[0]), -1) if part[n] is None else part[n] for part in parts])
            for n in range(3)
        )
        order = np.argsort(target, kind="stable")
        return cls(source[order], target[order], np.full(len(order), -1), blocked[order])


def _assemble_graph(
    program: Columns, levels: list[Rows], edges: list[_EdgeColumns], updates: tuple[list[Rows], _Edges]
) -> Graph:
    """Return the graph with nodes numbered by level, the updates last, and edges sorted by target."""
    last, into_updates = updates
    computed = np.concatenate([*levels, NO_ROWS])
    numbered = np.concatenate([computed, *last])
    position = np.zeros(len(program) + 1, np.int64)  # the last entry is 0, for row -1
    position[numbered] = np.arange(1, len(numbered) + 1)
    sources = [position[each.source[computed]] for each in edges]
    there = [source > 0 for source in sources]
    there[0] |= ~np.logical_or.reduce(there)  # a node without dependencies depends on the start

    into = position[into_updates.target]
    alone = np.setdiff1d(np.arange(len(computed), len(numbered)) + 1, into)  # updates without dependencies
    into = np.concatenate([into, alone])
    order = np.argsort(into, kind="stable")
    count = np.bincount(into, minlength=len(numbered) + 1)  # edges into each node
    count[1 : len(computed) + 1] = np.sum(there, axis=0)
    edge_ptr = np.concatenate(([0], np.cumsum(count)))
    source, message, blocked = np.full((3, edge_ptr[-1]), -1)
    place = edge_ptr[1 : len(computed) + 1].copy()  # of the next edge into each node
    for each, of_nodes, here in zip(edges, sources, there, strict=True):
        nodes = np.flatnonzero(here)
        rows, at = computed[nodes], place[nodes]
        source[at] = of_nodes[nodes]
        if each.message is not None:
            message[at] = each.message[rows]
        if each.blocked is not None:
            blocked[at] = each.blocked[rows]
        place += here
    for column, of_updates, of_alone in (
        (source, position[into_updates.source], 0),
        (message, into_updates.message, -1),
        (blocked, into_updates.blocked, -1),
    ):
        column[len(column) - len(order) :] = np.append(of_updates, np.full(len(alone), of_alone))[order]
    return Graph(
        nodes=numbered,
        level_ptr=np.cumsum([0, *map(len, levels), *map(len, last)]) + 1,
        edge_ptr=edge_ptr,
        edge_source=source,
        edge_message=message,
        edge_blocked=blocked,
        stuck=NO_ROWS,
        waits=(NO_ROWS, NO_ROWS),
    )


def _index_within_key(sorted_keys: Rows) -> Rows:
    """Return the index of each entry among the entries with the same key."""
    return np.arange(len(sorted_keys)) - np.searchsorted(sorted_keys, sorted_keys)


def _waiting_pairs(program: Columns, previous: Rows, needs: list[Rows]) -> tuple[Rows, Rows]:
    """Return every edge between slots as (row, row that waits for it)."""
    parts = []
    for source in (_slots_of_rows(program, previous), *needs):
        target = np.flatnonzero(source >= 0)
        parts.append((source[target], target))
    source, target = (np.concatenate(column) for column in zip(*parts, strict=True))
    return source, target


def gather_lines(program: Columns) -> Iterator[Rows]:
    """Yield the UNSHARDs of each rank, then the RESHARDs of each rank; the actions of one array run one after the other."""
    for op in (Op.UNSHARD, Op.RESHARD):
        rows = np.flatnonzero(program.op == op)
        yield from (line for line in np.split(rows, np.searchsorted(rows, program.offsets[1:-1])) if line.size)


def gather_needs(program: Columns) -> Rows:
    """Return the row that each row needs because of gathers, ``[rows]``; -1 for none.

    An UNSHARD or a RESHARD needs the last computation before it. The first computation of a stage after its UNSHARD
    needs that UNSHARD.
    """
    need = np.full(len(program), -1, np.int64)
    for first, end in zip(program.offsets[:-1].tolist(), program.offsets[1:].tolist(), strict=True):
        ops, stages = program.op[first:end], program.stage[first:end]
        if not (ops == Op.UNSHARD).any():
            continue
        before, gathered = -1, dict[int, int]()
        for row, (op, stage) in enumerate(zip(ops.tolist(), stages.tolist(), strict=True), first):
            if op <= Op.W:
                need[row] = gathered.pop(stage, -1)
                before = row
            elif op in (Op.UNSHARD, Op.RESHARD):
                need[row] = before
                if op == Op.UNSHARD:
                    gathered[stage] = row
    return need
