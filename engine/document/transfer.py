"""Transfer section of a design: strategy and ordering of the transfers between meshes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from meshwave.engine.frozen import Part, option_labels
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
    computation waits for both. With batched transfers, the cost model needs the transfer model batched send and receive."""
    boundary: Annotated[
        Literal["batch", "sequence", "hidden"],
        option_labels({"batch": "No split", "sequence": "By sequence", "hidden": "By hidden dim"}),
    ] = "batch"
    """Split of a replicated activation among the tensor-parallel devices that send it. batch: one device sends all of it.
    sequence: each device sends some of the tokens. hidden: each device sends a slice of the hidden dim. Receivers
    concatenate the slices."""
