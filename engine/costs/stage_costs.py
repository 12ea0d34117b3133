"""Times of stages for which a design gives the costs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.document import Design
from meshwave.engine.program.action import Op

Floats = NDArray[np.float64]


def given_seconds(design: Design) -> Floats | None:
    """Return the given time of F, B, I and W of each stage, ``[op, stages]``; None if the design gives no costs."""
    given = design.cost.stage_costs
    if given is None:
        return None
    table = np.zeros((Op.W + 1, given.stages))
    table[Op.F], table[Op.I], table[Op.W] = given.forward, given.input, given.weight
    table[Op.B] = table[Op.I] + table[Op.W]
    return recompute_forward(design, table)


def recompute_forward(design: Design, table: Floats) -> Floats:
    """Add the forward of each recomputed stage to its backward in a table ``[op, stages]``, and return the table."""
    again = np.array([design.pipeline.recomputes(stage) for stage in range(table.shape[1])])
    table[[Op.B, Op.I]] += again * table[Op.F]
    return table
