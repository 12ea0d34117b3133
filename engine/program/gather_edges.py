"""Dependencies of gathers in the graph of a program: UNSHARD and RESHARD overlap with computations of their rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import Op
from meshwave.engine.program.tables import Columns

Rows = NDArray[np.int64]


def gather_lines(program: Columns) -> Iterator[Rows]:
    """Yield, for each rank with gathers, its UNSHARDs and then its RESHARDs; one kind runs one after the other."""
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
