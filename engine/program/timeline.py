"""Timelines: spans on lanes with their causes, for predicted and measured steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.findings import Refusal
from meshwave.engine.program.action import COLLECTIVES, Action, Op
from meshwave.engine.program.row_order import lexical_order

if TYPE_CHECKING:
    from pandas import DataFrame

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Source = Literal["predicted", "measured", "rehearsed"]


@dataclass(frozen=True, eq=False)
class Timeline:
    """Spans of one training step, stored as columns.

    A computation, a gradient reduction and an optimizer step are each one span on the lane of their rank; a transfer is
    one span (its SEND) on the lane ``rank -> peer``. Seconds count from the start of the step.
    """

    source: Source
    digest: str  # digest of the program; timelines with equal digests can be joined
    meshes: tuple[str, ...]  # name of each rank's mesh
    rank: Ints  # [spans] rank of the action; the sender of a transfer
    peer: Ints  # [spans] receiver of a transfer, else -1
    op: NDArray[np.int8]  # [spans] Op, without receives
    stage: Ints  # [spans] -1 for STEP
    microbatch: Ints  # [spans] bucket of a REDUCE_GRAD of a part of a stage; -1 for other actions on weights
    fused: Bools  # [spans] True if it shares the slot of the previous span, with equal start and end
    start: Floats  # [spans] seconds
    end: Floats  # [spans] seconds
    cause: NDArray[np.int64]  # [spans] span for which this one waited last, else -1
    other: Ints = field(
        default_factory=lambda: np.empty(0, np.int32)
    )  # [spans] target stage of a skip connection, else -1
    doubt_s: float = 0.0  # upper bound on the clock skew between ranks

    def __post_init__(self) -> None:
        if not len(self.other):
            object.__setattr__(self, "other", np.full(len(self.op), -1, np.int32))

    def __len__(self) -> int:
        return len(self.op)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.meshes)

    @property
    def is_compute(self) -> Bools:
        """True for computations, ``[spans]``."""
        compute: Bools = self.op <= Op.W
        return compute

    @property
    def is_transfer(self) -> Bools:
        """True for transfers, ``[spans]``."""
        sent: Bools = (self.op == Op.SEND_F) | (self.op == Op.SEND_B)
        return sent

    @property
    def is_collective(self) -> Bools:
        """True for gradient reductions and weight gathers, which run concurrently with computations, ``[spans]``."""
        return np.isin(self.op, COLLECTIVES)

    def action(self, span: int) -> Action:
        """Return the action of a span."""
        columns = (self.stage, self.microbatch, self.fused, self.other)
        return Action(Op(int(self.op[span])), *(int(column[span]) for column in columns))

    @property
    def microbatches(self) -> int:
        """Number of microbatches."""
        return int(self.microbatch[self.op != Op.REDUCE_GRAD].max(initial=-1)) + 1

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end of all spans; 0 for an empty timeline."""
        return float(self.end.max() - self.start.min()) if len(self) else 0.0

    @property
    def is_work(self) -> Bools:
        """True for computations and optimizer steps, ``[spans]``."""
        work: Bools = self.is_compute | (self.op == Op.STEP)
        return work

    @cached_property
    def busy(self) -> Floats:
        """Seconds in which each rank computes, ``[ranks]``; a shared slot counts once."""
        work = self.is_work & ~self.fused
        return self._sum_by_rank(work, (self.end - self.start)[work])

    @property
    def bubble_ratio(self) -> float:
        """Fraction of idle time of all devices: ``1 - sum(busy) / (ranks * makespan)``."""
        return 1 - float(self.busy.sum()) / (self.ranks * self.makespan) if self.makespan else 0.0

    @property
    def span_bubble_ratio(self) -> float:
        """Bubble ratio of the computations between each rank's own first start and last end.

        Unlike :attr:`bubble_ratio`, it excludes the skew between ranks (the measure of arXiv:2401.10241).
        """
        first, last = np.full(self.ranks, np.inf), np.zeros(self.ranks)
        compute = self.is_compute
        np.minimum.at(first, self.rank[compute], self.start[compute])
        np.maximum.at(last, self.rank[compute], self.end[compute])
        own = np.where(np.isfinite(first), last - first, 0.0)
        compute &= ~self.fused
        busy = self._sum_by_rank(compute, (self.end - self.start)[compute])
        return 1 - float(busy.sum() / own.sum()) if own.sum() else 0.0

    @cached_property
    def exposed_communication(self) -> Floats:
        """Seconds in which each rank only waits for a transfer or a collective in progress, ``[ranks]``.

        Waiting for a computation of another rank is bubble, not communication.
        """
        work = np.flatnonzero(self.is_work)
        order = work[lexical_order((self.start[work], self.rank[work]))]
        first = np.ones(len(order), np.bool_)
        first[1:] = self.rank[order[1:]] != self.rank[order[:-1]]
        free = np.where(first, 0.0, np.concatenate(([0.0], self.end[order[:-1]])))
        cause = self.cause[order]
        by_wire = (cause >= 0) & ~self.is_work[cause]
        waited = self.start[order] - np.maximum(free, self.start[cause])
        exposed = np.where(by_wire, np.maximum(waited, 0.0), 0.0)
        return self._sum_by_rank(order, exposed)

    @property
    def mean_exposed_communication(self) -> float:
        """Mean exposed communication of the ranks in seconds.

        Like the bubble it covers all devices, so it is a fraction of the step; the maximum over ranks is not.
        """
        return float(self.exposed_communication.mean()) if self.ranks else 0.0

    def to_pandas(self) -> DataFrame:
        """Return one row per span: mesh, peer of a transfer, action, and start and end in seconds.

        Raises:
            ImportError: pandas is not installed.
        """
        from pandas import DataFrame

        names = np.array([*self.meshes, ""])  # -1 means no mesh
        return DataFrame(
            {
                "mesh": names[self.rank],
                "peer": names[self.peer],
                "op": [Op(op).name for op in self.op.tolist()],
                "stage": self.stage,
                "microbatch": self.microbatch,
                "start_s": self.start,
                "end_s": self.end,
                "cause": self.cause,
            }
        )

    def _sum_by_rank(self, spans: Bools | NDArray[np.intp], seconds: Floats) -> Floats:
        """Return the sum of ``seconds`` of the given spans per rank, ``[ranks]``."""
        return np.asarray(np.bincount(self.rank[spans], seconds, minlength=self.ranks), np.float64)

    @cached_property
    def critical_path(self) -> NDArray[np.int64]:
        """Indices of the spans that determine the step time, from first to last."""
        path = []
        span = int(np.argmax(self.end)) if len(self) else -1
        while span >= 0:
            path.append(span)
            span = int(self.cause[span])
        return np.array(path[::-1], np.int64)


def check_same_program(predicted: str, measured: str) -> None:
    """Check that two digests belong to the same program.

    Raises:
        InputError: the digests differ.
    """
    if predicted != measured:
        raise Refusal("another_program", {"measured": measured, "predicted": predicted})
