"""Transfer section of a design: strategy and ordering of the transfers between meshes."""

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
    """All registered orderings."""


class Transfer(Part):
    """Strategy, ordering and batching of transfers between meshes."""

    strategy: StrategyName = "broadcast"
    """Method of sending one slice of the tensor to all devices that need it."""
    ordering: OrderingName = "load-balance"
    """Choice of the sender of each slice, and order of the slices."""
    batched: bool = False
    """Issue an adjacent send and receive between the same two meshes as one batch (batch_isend_irecv); the next
    computation waits for both. The cost model must then have transfer_model batched."""
    boundary: Literal["batch", "sequence", "hidden"] = "batch"
    """Split of the replicated activation among the tensor-parallel devices that send it. batch: one
    device sends all of it; sequence, hidden: each device sends its slice of that dim, and receivers concatenate the
    slices."""
