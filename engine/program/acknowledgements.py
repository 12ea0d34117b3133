"""Acknowledgements: a send is known to be complete when a later message from its receiver has arrived."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.row_order import lexical_order
from meshwave.engine.program.tables import Columns, Messages

Rows = NDArray[np.int64]


def find_messages(program: Columns) -> Messages:
    """Return all messages whose tensor is consumed."""
    table, skipping = program.tables, program.skip_messages
    ends = (
        (table.send_forward[:-1], table.forward[:-1], table.forward[1:]),
        (table.send_backward[1:], table.backward[1:], table.backward[:-1]),
    )
    there = [(send >= 0) & (maker >= 0) & (taker >= 0) for send, maker, taker in ends]
    columns = zip(*([column[kept] for column in each] for each, kept in zip(ends, there, strict=True)), strict=True)
    return Messages(*(np.concatenate((*each, more)) for each, more in zip(columns, skipping, strict=True)))


@lru_cache(maxsize=4)  # keyed by the program, since message sizes have no effect
def find_acknowledgements(program: Columns) -> tuple[Messages, Rows]:
    """Return all messages, and for each message the index of the first message that acknowledges it, ``[messages]``.

    An acknowledgement has the opposite direction and is sent after the message was received; -1 if the step has none.
    """
    found = find_messages(program)
    send, _, taker = found
    count, rows = len(send), len(program) + 1
    source, target = program.rank[send].astype(np.int64), program.rank[taker].astype(np.int64)
    way, back = source * program.ranks + target, target * program.ranks + source
    by_taker = lexical_order((-send, taker, way))  # of messages to one computation, the last sent comes first
    place = np.empty(count, np.int64)
    place[by_taker] = np.arange(count)
    by_send = lexical_order((send, way))
    soonest = np.minimum.accumulate(place[by_send][::-1])[
        ::-1
    ]  # earliest consumed message of those sent later in this direction
    sent = (way * rows + send)[by_send]
    after = np.searchsorted(sent, back * rows + taker, side="right")
    is_answered = (after < count) & (np.append(way[by_send], -1)[np.minimum(after, count)] == back)
    answer = np.full(count, -1, np.int64)
    answer[is_answered] = by_taker[soonest[after[is_answered]]]
    return found, answer
