"""Programs: the ordered actions of every rank, stored as columns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import Action, Op, format_cells, parse_cell
from meshwave.engine.program.batches import find_batches
from meshwave.engine.program.graph import Graph, build_graph
from meshwave.engine.program.tables import Messages, Tables, find_skip_messages, find_tables, message_units

Ints = NDArray[np.int32]


def _no_rows() -> Ints:
    return np.empty(0, np.int32)


def _no_skips() -> Ints:
    return np.empty((0, 3), np.int32)


@dataclass(frozen=True, eq=False)
class Program:
    """Program of a step: the ordered actions of every rank.

    One row is one action; the rows of rank ``r`` are ``offsets[r]:offsets[r + 1]``. A rank is a place in the pipeline
    (one mesh). Rows are stored as columns because 128 ranks x 1024 microbatches have a quarter of a million
    computations and as many messages.

    ``skips`` are the pairs of stages that skip connections of the model connect. Tensors that skip to the next stage
    are part of its input message. Tensors to a later stage on another rank are sent directly, in one message per pair
    of stages, and their gradients return the same way.

    The size of a message is counted in units that the model defines: tensors of equal size for a language model; a
    common divisor of the sizes for a model whose tensors differ.
    """

    op: NDArray[np.int8]  # [rows] kind of action (Op)
    stage: Ints  # [rows] -1 for STEP
    microbatch: Ints  # [rows] bucket of a REDUCE_GRAD of a part of a stage; -1 for other actions on weights
    peer: Ints  # [rows] other rank of a SEND or RECV, else -1
    fused: NDArray[np.bool_]  # [rows] True for a backward that shares its slot with the forward in the preceding row
    offsets: NDArray[np.int64]  # [ranks + 1]
    placement: Ints  # [replicas, stages] rank that holds a stage of a replica
    replica: Ints  # [microbatches] replica of each microbatch
    clips: bool = False  # True if STEP needs the norm of all gradients, so that no rank steps before the last backward
    other: Ints = field(
        default_factory=_no_rows
    )  # [rows] stage at the other end of a message that skips stages, else -1
    skips: Ints = field(default_factory=_no_skips)  # [pairs, 3] stage, later stage, units
    onward_units: Ints = field(
        default_factory=_no_rows
    )  # [stages - 1] units that each stage sends to the next, without skips; 1 by default
    batched: bool = False  # True if messages are issued in batches

    def __post_init__(self) -> None:
        if not len(self.other):
            object.__setattr__(self, "other", np.full(len(self.op), -1, np.int32))
        if not len(self.onward_units):
            object.__setattr__(self, "onward_units", np.ones(max(0, self.stages - 1), np.int32))

    def __getstate__(self) -> dict[str, Any]:
        """Return the columns and the digest for pickling; derived tables are computed again when needed."""
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"digest": self.digest}

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.offsets) - 1

    @property
    def stages(self) -> int:
        """Number of stages."""
        return int(self.placement.shape[1])

    @property
    def replicas(self) -> int:
        """Number of replicas of the model."""
        return int(self.placement.shape[0])

    @property
    def microbatches(self) -> int:
        """Number of microbatches."""
        return len(self.replica)

    def __len__(self) -> int:
        return len(self.op)

    @cached_property
    def rank(self) -> Ints:
        """Rank of each row, ``[rows]``."""
        return np.repeat(np.arange(self.ranks, dtype=np.int32), np.diff(self.offsets))

    @cached_property
    def is_compute(self) -> NDArray[np.bool_]:
        """True for computations, ``[rows]``."""
        return self.op <= Op.W

    @cached_property
    def is_work(self) -> NDArray[np.bool_]:
        """True for computations and optimizer steps, which may contain collectives, ``[rows]``."""
        work: NDArray[np.bool_] = self.is_compute | (self.op == Op.STEP)
        return work

    @property
    def is_send(self) -> NDArray[np.bool_]:
        """True for a SEND, ``[rows]``."""
        sent: NDArray[np.bool_] = (self.op == Op.SEND_F) | (self.op == Op.SEND_B)
        return sent

    def rows(self, rank: int) -> slice:
        """Return the rows of a rank."""
        return slice(int(self.offsets[rank]), int(self.offsets[rank + 1]))

    def row(self, index: int) -> Action:
        """Return the action of a row."""
        columns = (self.stage, self.microbatch, self.fused, self.other)
        return Action(Op(int(self.op[index])), *(int(column[index]) for column in columns))

    def actions(self, rank: int) -> list[Action]:
        """Return the ordered actions of a rank."""
        rows = self.rows(rank)
        columns = (self.op, self.stage, self.microbatch, self.fused.view(np.int8), self.other)
        return [Action(Op(op), *rest) for op, *rest in zip(*(c[rows].tolist() for c in columns), strict=True)]

    def ranks_of(self, stage: int) -> list[int]:
        """Return the ranks that hold a copy of ``stage`` and reduce its gradients, in ascending order."""
        return sorted({int(rank) for rank in self.placement[:, stage]})

    def stages_of(self, rank: int) -> list[int]:
        """Return the stages that ``rank`` holds, in ascending order."""
        return sorted({int(stage) for stage in np.nonzero(self.placement == rank)[1]})

    @cached_property
    def tables(self) -> Tables:
        """Row of each computation and of each message."""
        return find_tables(self)

    @cached_property
    def skip_messages(self) -> Messages:
        """Messages of tensors that skip stages."""
        return find_skip_messages(self)

    @cached_property
    def distant_skips(self) -> list[tuple[int, int]]:
        """Stages (source, target) whose skip connections have separate messages."""
        return [(source, target) for source, target, _ in self.skips.tolist() if target > source + 1]

    @cached_property
    def tensors(self) -> Ints:
        """Number of units in each message, ``[rows]``; 0 for other rows."""
        return message_units(self)

    @cached_property
    def bucket(self) -> Ints:
        """Bucket of each row, ``[rows]``: 0 for rows that do not reduce one of several buckets of gradients."""
        return np.where(self.op == Op.REDUCE_GRAD, np.maximum(self.microbatch, 0), 0).astype(np.int32)

    @cached_property
    def row_microbatch(self) -> Ints:
        """Microbatch of each row, ``[rows]``; -1 for actions on weights, even if they have a bucket."""
        return np.where(self.op < Op.REDUCE_GRAD, self.microbatch, -1).astype(np.int32)

    def tensors_from(self, made: Action) -> int:
        """Return the number of units that a forward or backward sends to the adjacent or the named stage."""
        end = made.other if made.other >= 0 else made.stage + (1 if made.op == Op.F else -1)
        pair = sorted((made.stage, end))
        skipping = sum(int(tensors) for *ends, tensors in self.skips.tolist() if ends == pair)
        return skipping + (int(self.onward_units[pair[0]]) if made.other < 0 else 0)

    @cached_property
    def slot(self) -> NDArray[np.int64]:
        """First row of the slot of each row, ``[rows]``: the row itself, unless it is fused."""
        return np.arange(len(self)) - self.fused

    @cached_property
    def next_is_fused(self) -> NDArray[np.bool_]:
        """True if the next row runs in the same slot, ``[rows]``."""
        return np.append(self.fused[1:], False)

    def rows_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all rows of slots that are given by their first rows, in their order."""
        double = self.next_is_fused[slots]
        rows = np.repeat(slots, 1 + double)
        rows[np.cumsum(1 + double)[double] - 1] += 1
        return rows

    def reorder(self, rows: NDArray[np.int64]) -> Program:
        """Return the program with its rows in another order within each rank."""
        columns = {name: getattr(self, name)[rows] for name in ("op", "stage", "microbatch", "peer", "fused")}
        return replace(self, **columns)

    @cached_property
    def spans(self) -> NDArray[np.int64]:
        """Rows that become spans of a timeline: all except receives, which share the span of their send."""
        return np.flatnonzero((self.op != Op.RECV_F) & (self.op != Op.RECV_B))

    @cached_property
    def span_of_row(self) -> NDArray[np.int64]:
        """Span of each row, ``[rows + 1]``; -1 for a receive; the last entry is -1, for row -1."""
        span = np.full(len(self) + 1, -1, np.int64)
        span[self.spans] = np.arange(len(self.spans))
        return span

    @cached_property
    def send_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of all sends, and for each the row of the computation that produced its tensor."""
        table, skipping = self.tables, self.skip_messages
        pairs = ((table.send_forward, table.forward), (table.send_backward, table.backward))
        sends = np.concatenate([*(sent[sent >= 0] for sent, _ in pairs), skipping.send])
        return sends, np.concatenate([*(made[sent >= 0] for sent, made in pairs), skipping.maker])

    @cached_property
    def batch(self) -> NDArray[np.int64]:
        """Batch of each SEND, ``[rows]``, if messages are batched; otherwise -1."""
        return find_batches(self)

    @cached_property
    def graph(self) -> Graph:
        """Dependency graph of the program."""
        return build_graph(self)

    @cached_property
    def digest(self) -> str:
        """Hash of the program: programs with equal digests order the same actions."""
        sha = hashlib.sha256(b"meshwave-program/2" + bytes([self.clips]))
        columns = (self.op, self.stage, self.microbatch, self.peer, self.fused, self.offsets)
        skips = (self.other, self.skips) if len(self.skips) else ()  # unchanged digest for programs without skips
        onward = (self.onward_units,) if (self.onward_units != 1).any() else ()
        sha.update(b"batched" * self.batched)
        for column in (*columns, self.placement, self.replica, *skips, *onward):
            sha.update(str(column.shape).encode() + column.dtype.str.encode() + np.ascontiguousarray(column).tobytes())
        return sha.hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def build_program(
    orders: Sequence[Iterable[Action]],
    placement: Sequence[Sequence[int]] | None = None,
    replica: Sequence[int] | None = None,
    skips: Sequence[Sequence[int]] | None = None,
) -> Program:
    """Return the program with one order of actions per rank.

    If ``placement`` is None, it is derived from the orders; if ``skips`` is None, so are the stages between which
    tensors skip, with one tensor each.
    """
    flat = [to_columns(order) for order in orders]
    return from_columns(flat, placement, replica, skips)


def to_columns(order: Iterable[Action]) -> NDArray[np.int32]:
    """Return an order as ``[actions, 5]`` with columns op, stage, microbatch, fused, other."""
    return np.fromiter(chain.from_iterable(order), np.int32).reshape(-1, len(Action._fields))


def from_columns(
    orders: Sequence[NDArray[np.int32]],
    placement: Sequence[Sequence[int]] | Ints | None = None,
    replica: Sequence[int] | Ints | None = None,
    skips: Sequence[Sequence[int]] | Ints | None = None,
) -> Program:
    """Return the program whose orders are given as one array per rank, with one row per action.

    Columns are op, stage, microbatch and fused; messages that skip stages also need the other stage.
    """
    offsets = np.concatenate(([0], np.cumsum([len(order) for order in orders]))).astype(np.int64)
    width = max((order.shape[1] for order in orders), default=4)
    rows = np.concatenate([*orders, np.empty((0, width), np.int32)])
    other = np.ascontiguousarray(rows[:, 4]) if width > 4 else np.full(len(rows), -1, np.int32)
    if placement is None or replica is None:
        placement, replica = _read_placement(rows, offsets)
    placement, replica = np.asarray(placement, np.int32), np.asarray(replica, np.int32)
    if skips is None:
        skips = _read_skips(rows, other, placement.shape[1])
    return Program(
        op=rows[:, 0].astype(np.int8),
        stage=np.ascontiguousarray(rows[:, 1]),
        microbatch=np.ascontiguousarray(rows[:, 2]),
        peer=_message_peers(rows, other, placement, replica),
        fused=rows[:, 3].astype(np.bool_),
        offsets=offsets,
        placement=placement,
        replica=replica,
        other=other,
        skips=np.asarray(skips, np.int32).reshape(-1, 3),
    )


def _read_skips(rows: NDArray[np.int32], other: Ints, stages: int) -> Ints:
    """Return the skip connections whose messages a program contains, ``[pairs, 3]``; each counts as one tensor.

    These are the messages between stages that are not adjacent. Impossible skip connections are reported by :mod:`meshwave.engine.program.verification`.
    """
    forward = (other >= 0) & ((rows[:, 0] == Op.SEND_F) | (rows[:, 0] == Op.RECV_B))  # source stage
    named = np.where(forward, [rows[:, 1], other], [other, rows[:, 1]])[:, other >= 0]
    pairs = np.unique(named.T, axis=0)
    pairs = pairs[(pairs[:, 0] + 1 < pairs[:, 1]) & (pairs[:, 1] < stages)]
    return np.insert(pairs, 2, 1, axis=1).astype(np.int32)


def _message_peers(rows: NDArray[np.int32], other: Ints, placement: Ints, replica: Ints) -> Ints:
    """Return the other rank of every SEND and RECV, which the notation omits, ``[rows]``; -1 for other rows."""
    peer = np.full(len(rows), -1, np.int32)
    for op, towards in ((Op.SEND_F, 1), (Op.RECV_F, -1), (Op.SEND_B, -1), (Op.RECV_B, 1)):
        at = np.flatnonzero(rows[:, 0] == op)
        stage, microbatch = np.where(other[at] >= 0, other[at], rows[at, 1] + towards), rows[at, 2]
        there = (stage >= 0) & (stage < placement.shape[1]) & (microbatch >= 0) & (microbatch < len(replica))
        peer[at[there]] = placement[replica[microbatch[there]], stage[there]]
    return peer


def _read_placement(rows: NDArray[np.int32], offsets: NDArray[np.int64]) -> tuple[Ints, Ints]:
    """Return the placement of stages and the replica of each microbatch, derived from the computations.

    The ranks that a microbatch passes are its route; each distinct route is a replica. A stage without computations has
    rank -1, which :mod:`meshwave.engine.program.verification` reports.
    """
    rank = np.repeat(np.arange(len(offsets) - 1, dtype=np.int32), np.diff(offsets))
    compute = (rows[:, 0] <= Op.W) & (rows[:, 2] >= 0)
    if not compute.any():
        return np.full((1, 0), -1, np.int32), np.zeros(0, np.int32)
    stage, microbatch = rows[compute, 1], rows[compute, 2]
    routes = np.full((microbatch.max() + 1, stage.max() + 1), -1, np.int32)
    routes[microbatch, stage] = rank[compute]
    placement, first, replica = np.unique(routes, axis=0, return_index=True, return_inverse=True)
    by_first = np.argsort(first)
    renumber = np.argsort(by_first)
    return placement[by_first], renumber[replica.reshape(-1)].astype(np.int32)


def parse_program(orders: str | Sequence[Sequence[str]]) -> Program:
    """Return the program written as text, with one line per rank, or as lists of cells.

    Raises:
        Refusal: a cell is not an action.
    """
    if isinstance(orders, str):
        orders = [line.split() for line in orders.strip().splitlines()]
    return build_program([_parse_order(order) for order in orders])


def _parse_order(cells: Iterable[str]) -> list[Action]:
    return [action for cell in cells for action in parse_cell(cell)]


def format_program(program: Program, *, compute_only: bool = False) -> list[list[str]]:
    """Return the ordered actions of each rank as cells; the inverse of :func:`parse_program`."""
    columns = (program.op, program.stage, program.microbatch, program.fused.view(np.int8), program.other)
    shown = np.ones(len(program), np.bool_) if not compute_only else program.is_compute
    rows = [np.flatnonzero(shown[program.rows(rank)]) + program.offsets[rank] for rank in range(program.ranks)]
    return [format_cells(zip(*(column[own].tolist() for column in columns), strict=True)) for own in rows]
