"""The distinct actions of a program: rows that must cost the same are priced once."""

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
    """Rows alike but for their microbatch are of one kind; 128 ranks x 1024 microbatches have a
    few thousand kinds in a million rows, so that a changed cost is priced in milliseconds."""

    op: NDArray[np.int8]  # [kinds]
    rank: Ints  # [kinds]
    stage: Ints  # [kinds]
    peer: Ints  # [kinds]
    tensors: Ints  # [kinds] how many units a message holds; 0 for no message
    of_row: Ints  # [rows] the kind of each row

    @property
    def sends(self) -> NDArray[np.intp]:
        """The kinds that are a SEND."""
        return self.of(*SENDS)

    def of(self, *ops: Op) -> NDArray[np.intp]:
        """The kinds that are one of ``ops``."""
        return np.flatnonzero(np.isin(self.op, ops))

    def __len__(self) -> int:
        return len(self.op)


@lru_cache(maxsize=8)  # a program is priced again whenever a number of its design changes
def kinds(program: Program) -> Kinds:
    """The kinds of a program's rows."""
    code = _codes(program)
    row = np.full(int(code.max(initial=-1)) + 1, -1, np.int64)
    row[code] = np.arange(len(code))  # one row stands for each code
    used = row >= 0
    number = np.cumsum(used, dtype=np.int32) - 1
    row = row[used]
    of_row = number[code]
    of_row.flags.writeable = False
    of_one = program.op[row], program.rank[row], program.stage[row], program.peer[row], program.tensors[row]
    return Kinds(*of_one, of_row)


def _codes(program: Program) -> NDArray[np.int64]:
    """[rows] a small number: by op and rank, and by the peer of a message and what it holds, or else by the stage."""
    width = max(program.ranks, program.stages) + 1
    message = (program.op >= Op.SEND_F) & (program.op <= Op.RECV_B)
    last = np.where(message, program.peer, program.stage) + 1
    code = (program.op.astype(np.int64) * program.ranks + program.rank) * width + last
    if not len(program.skips) and (program.onward == 1).all():
        return np.asarray(code)
    of_sizes = code * (int(program.tensors.max(initial=0)) + 1) + program.tensors
    return np.unique(of_sizes, return_inverse=True)[1].reshape(-1)
