"""How a tensor gets from one mesh to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from meshwave.engine.frozen import Part
from meshwave.engine.resharding import orderings, strategies

if TYPE_CHECKING:
    StrategyName = str
    OrderingName = str
else:
    StrategyName = Literal[tuple(strategies)]
    OrderingName = Literal[tuple(orderings)]
    """Every one that lies in its folder."""


class Transfer(Part):
    """A strategy over unit tasks, put in an ordering."""

    strategy: StrategyName = "broadcast"
    """How one piece of the tensor travels to all that need it."""
    ordering: OrderingName = "load-balance"
    """Who sends which piece, and when."""
    batched: bool = False
    """Issue a send and a receive that stand next to each other between the same two meshes as one batch
    (batch_isend_irecv); the next computation waits for both. The cost model is then transfer_model batched."""
    boundary: Literal["batch", "sequence", "hidden"] = "batch"
    """What the tensor-parallel devices of a mesh send of an activation, which each of them holds whole. batch: it
    leaves from one of them; sequence, hidden: each sends its slice of that dim, and receivers put the slices together."""
