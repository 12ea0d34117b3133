"""Sends and receives of two ranks that are issued as one batch.

Between two computations a rank may send to a peer and receive from it. If the peer exchanges the same messages between
two of its own computations, they form one batch, as issued by ``torch.distributed.batch_isend_irecv``: both ranks wait
at their next computation until every operation of the batch is complete. This is the cross-communication of Hanayo
(section 4). A batch cannot deadlock: it only makes a computation also wait for the preceding computation of its own
rank.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.acknowledgements import find_messages
from meshwave.engine.program.tables import Columns

Rows = NDArray[np.int64]


def batch_messages(program: Columns, maker: Rows, taker: Rows) -> Rows:
    """Return the batch of each message, ``[messages]``, numbered from 0; -1 for a message that is sent alone.

    A batch receives right before the computation that consumes the tensor, and receives from one sender are in the
    order of its sends. A message is therefore sent alone if the receiver consumes a later message from the same sender
    first.

    Args:
        program: the computations.
        maker: ``[messages]`` row of the computation that produces each message, in the send order of a rank.
        taker: ``[messages]`` row of the computation that consumes each message.
    """
    sent, received = _send_and_receive_slots(program, maker, taker)
    low, high = np.minimum(sent, received), np.maximum(sent, received)
    gaps, number = np.unique(low * (len(program) + 1) + high, return_inverse=True)
    number = number.reshape(-1)

    def is_in_group_with(chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.bincount(number[chosen], minlength=len(gaps)) > 0

    whole = is_in_group_with(sent < received) & is_in_group_with(sent > received)
    whole &= ~is_in_group_with((received < 0) | _is_overtaken(program, maker, taker))
    return np.where(whole, np.cumsum(whole) - 1, -1)[number] if len(maker) else number


def find_batches(program: Columns) -> Rows:
    """Return the batch of the message of each SEND, ``[rows]``; -1 for every other row."""
    send, maker, taker = find_messages(program)
    order = np.argsort(send)
    batch = np.full(len(program), -1, np.int64)
    batch[send[order]] = batch_messages(program, maker[order], taker[order])
    return batch


def _send_and_receive_slots(program: Columns, maker: Rows, taker: Rows) -> tuple[Rows, Rows]:
    """Return the slots after which each message is sent and would be received, each ``[messages]``; -1 for none."""
    number = np.cumsum(program.is_compute & ~program.fused) - 1  # slot of each computation
    rank_of_slot = program.rank[program.is_compute & ~program.fused]
    before = number[taker] - 1
    same_rank = (before >= 0) & (rank_of_slot[before] == program.rank[taker])
    return number[maker], np.where(same_rank, before, -1)


def _is_overtaken(program: Columns, maker: Rows, taker: Rows) -> NDArray[np.bool_]:
    """Return True for each message if its receiver consumes a later message of the same rank earlier, ``[messages]``."""
    channel = program.rank[maker].astype(np.int64) * program.ranks + program.rank[taker]
    order = np.argsort(channel, kind="stable")
    apart = channel[order] * (len(program) + 1)  # separates the channels in one running minimum
    slot = program.slot[taker][order] + apart
    overtaken = np.empty(len(maker), np.bool_)
    overtaken[order] = np.minimum.accumulate(slot[::-1])[::-1] < slot
    return overtaken
