"""Distinct actions of a program: rows with equal costs, which are priced once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import SENDS, Op
from meshwave.engine.program.program import Program

Ints = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Kinds:
    """Distinct actions of a program; rows that differ only in their microbatch have the same kind.

    A program of 128 ranks x 1024 microbatches has a few thousand kinds in a million rows, so pricing takes
    milliseconds.
    """

    op: NDArray[np.int8]  # [kinds]
    rank: Ints  # [kinds]
    stage: Ints  # [kinds]
    peer: Ints  # [kinds]
    tensors: Ints  # [kinds] message units; 0 for other actions
    bucket: Ints  # [kinds] bucket of a reduction; 0 for other actions
    of_row: Ints  # [rows] kind of each row

    @property
    def sends(self) -> NDArray[np.intp]:
        """Indices of the kinds that are SENDs."""
        return self.indices_of(*SENDS)

    def indices_of(self, *ops: Op) -> NDArray[np.intp]:
        """Return the indices of the kinds whose op is one of ``ops``."""
        return np.flatnonzero(np.isin(self.op, ops))

    def __len__(self) -> int:
        return len(self.op)


@lru_cache(maxsize=4)  # a program is priced again whenever a number of its design changes
def distinct_kinds(program: Program) -> Kinds:
    """Return the distinct actions of a program."""
    code = _kind_numbers(program)
    row = np.full(int(code.max(initial=-1)) + 1, -1, np.int64)
    row[code] = np.arange(len(code))  # one row represents each code
    used = row >= 0
    number = np.cumsum(used, dtype=np.int32) - 1
    row = row[used]
    of_row = number[code]
    of_row.flags.writeable = False
    of_one = program.op[row], program.rank[row], program.stage[row], program.peer[row], program.tensors[row]
    return Kinds(*of_one, program.bucket[row], of_row)


def _kind_numbers(program: Program) -> NDArray[np.int64]:
    """Return a small number for the kind of each row, ``[rows]``.

    The kind depends on op and rank; for messages also on peer and size, otherwise on the stage and the bucket.
    """
    buckets = int(program.bucket.max(initial=0)) + 1
    width = max(program.ranks, program.stages * buckets) + 1
    message = (program.op >= Op.SEND_F) & (program.op <= Op.RECV_B)
    last = np.where(message, program.peer, program.stage + program.stages * program.bucket) + 1
    code = (program.op.astype(np.int64) * program.ranks + program.rank) * width + last
    if not len(program.skips) and (program.onward_units == 1).all():
        return np.asarray(code)
    of_sizes = code * (int(program.tensors.max(initial=0)) + 1) + program.tensors
    return np.unique(of_sizes, return_inverse=True)[1].reshape(-1)
