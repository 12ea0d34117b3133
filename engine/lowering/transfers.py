"""Transfers: a SEND and a RECV between adjacent or skip-connected stages on different ranks."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs import layers_per_stage
from meshwave.engine.document import Design
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.program.action import RECEIVES, SENDS, Op
from meshwave.engine.program.batches import batch_messages
from meshwave.engine.program.program import Program

LOOKAHEAD = 2
"""Number of computations by which a receive is posted before the one that consumes its tensor (Hanayo, section 4)."""

Rows = NDArray[np.int64]


Skips = Sequence[tuple[int, int, int]]
"""Stages (source, target) of skip connections, with the number of units per microbatch that skip between them."""


def add_transfers(program: Program, skips: Skips = (), onward: Sequence[int] = (), *, batched: bool = False) -> Program:
    """Return the program with its transfers.

    A SEND follows the slot of the computation that produced the tensor. Receives from one sender are posted in the
    order of its sends, because NCCL matches messages by order only, and before the sends between the same two
    computations, because only then does gloo use both directions at once. A tensor for a later stage is sent after the
    one for the next stage, which is needed sooner.

    Args:
        program: the computations.
        skips: skip connections between stages.
        onward: [stages - 1] units that each stage sends to the next; 1 each if empty.
        batched: True to place a receive that forms a batch with a send next to it
            (:mod:`meshwave.engine.program.batches`); other receives are posted ahead.
    """
    program = replace(
        program,
        batched=batched,
        skips=np.array(skips, np.int32) if skips else program.skips,
        onward_units=np.array(onward, np.int32) if onward else program.onward_units,
    )
    producer, consumer, skipping = _find_messages(program)
    in_batch = np.zeros(len(producer), np.bool_)
    if batched:
        in_batch = batch_messages(program, producer, consumer) >= 0
    slot = _receive_rows(program, producer, consumer, in_batch)
    n = len(program)
    in_gap = np.bincount(slot, minlength=n)  # receives posted before each row
    after_recvs = np.cumsum(in_gap)
    after = producer + program.next_is_fused[producer]  # last row of the slot that produces the tensor
    made = np.bincount(after, minlength=n)  # sends that follow each row: at most two for a fused slot
    sends_before = np.concatenate(([0], np.cumsum(made)))[:-1]
    rows = np.arange(n) + after_recvs + sends_before  # new row of each computation

    last = np.zeros(n, np.bool_)
    last[program.offsets[1:][np.diff(program.offsets) > 0] - 1] = True
    number = (
        np.arange(len(after)) - sends_before[after]
    )  # index among the sends of its slot; sends of the forward come first
    following = rows[np.minimum(after + 1, n - 1)] - made[after] + number
    sends = np.where(last[after], rows[after] + 1 + number, following)

    by_slot = np.argsort(slot, kind="stable")  # within a gap, in the order of the senders
    gap = slot[by_slot]
    place = np.arange(len(gap)) - (after_recvs - in_gap)[gap]  # index within its gap
    closing = np.concatenate(([0], np.where(last, 0, made)))  # sends at the end of the gap before a row
    recvs = np.empty_like(slot)
    recvs[by_slot] = rows[gap] - closing[gap] - in_gap[gap] + place

    total = n + 2 * len(producer)
    op, fused = np.empty(total, np.int8), np.zeros(total, np.bool_)
    stage, microbatch = np.empty((2, total), np.int32)
    peer, other = np.full((2, total), -1, np.int32)
    for column, values in (
        (op, program.op),
        (fused, program.fused),
        (stage, program.stage),
        (microbatch, program.microbatch),
    ):
        column[rows] = values
    sender, receiver = program.rank[producer], program.rank[consumer]
    forward, of_microbatch = program.op[producer] == Op.F, program.microbatch[producer]
    source, target = program.stage[producer], program.stage[consumer]
    for at, kinds, here, there, to in (
        (sends, SENDS, source, target, receiver),
        (recvs, RECEIVES, target, source, sender),
    ):
        op[at], stage[at], microbatch[at], peer[at] = np.where(forward, *map(np.int8, kinds)), here, of_microbatch, to
        other[at[skipping]] = there[skipping]
    counts = np.bincount(sender, minlength=program.ranks) + np.bincount(receiver, minlength=program.ranks)
    return Program(
        op=op,
        stage=stage,
        microbatch=microbatch,
        peer=peer,
        fused=fused,
        offsets=program.offsets + np.concatenate(([0], np.cumsum(counts))),
        placement=program.placement,
        replica=program.replica,
        other=other,
        skips=program.skips,
        onward_units=program.onward_units,
        batched=batched,
    )


def _find_messages(program: Program) -> tuple[Rows, Rows, NDArray[np.bool_]]:
    """Return the producer and the consumer of every message between ranks, and True for messages that skip stages.

    Messages are in the order of producers; those of one producer are sorted by the distance of the target stage.
    """
    table = program.tables
    skips = sorted(program.distant_skips, key=lambda pair: pair[1] - pair[0])
    sources, targets = ([pair[end] for pair in skips] for end in (0, 1))
    hops = [
        (table.forward[:-1], table.forward[1:]),
        (table.backward[1:], table.backward[:-1]),
        (table.forward[sources], table.forward[targets]),
        (table.backward[targets], table.backward[sources]),
    ]
    producer, consumer = (np.concatenate([hop[end].ravel() for hop in hops]) for end in (0, 1))
    skipping = np.arange(len(producer)) >= sum(hop[0].size for hop in hops[:2])
    across = program.rank[producer] != program.rank[consumer]
    order = np.flatnonzero(across)[np.argsort(producer[across], kind="stable")]
    return producer[order], consumer[order], skipping[order]


def _receive_rows(program: Program, producer: Rows, consumer: Rows, in_batch: NDArray[np.bool_]) -> Rows:
    """Return the row before which each receive is posted.

    No receive is posted later than receives of later messages from the same sender. Then all receives are moved ahead
    by the same number of computations, which keeps their order. Receives in a batch are not moved, and later messages
    from the same sender are received after them.
    """
    if not len(producer):
        return np.empty(0, np.int64)
    sender, receiver = program.rank[producer].astype(np.int64), program.rank[consumer]
    channel = sender * program.ranks + receiver
    order = np.argsort(channel, kind="stable")
    apart = channel[order] * len(program)  # separates the channels in one running minimum
    latest = np.minimum.accumulate((consumer[order] + apart)[::-1])[::-1] - apart
    ahead = np.maximum(latest - LOOKAHEAD, program.offsets[receiver[order]])
    slot = np.empty_like(consumer)
    slot[order] = np.maximum.accumulate(np.where(in_batch[order], latest, ahead) + apart) - apart
    return program.slot[slot]


Skip = tuple[int, int]
"""Block, and a later block that consumes its output."""


def stage_skips(design: Design) -> tuple[tuple[int, int, int], ...]:
    """Return the stages (source, target) of skip connections and the units that skip between them, in ascending order.

    Raises:
        InputError: there are more stages than layers.
    """
    skips = design.model.skips
    found = skips_by_stages(skips, layers_per_stage(design)) if skips else {}
    units = design.model.skip_message_units
    return tuple((*pair, sum(units(source) for source, _ in blocks)) for pair, blocks in found.items())


def onward_message_units(design: Design) -> tuple[int, ...]:
    """Return the units that each stage sends to the next one, ``[stages - 1]``, without skip connections.

    The result is empty if each stage sends one unit, as in language models; the number of layers is then not needed.

    Raises:
        InputError: there are more stages than layers.
    """
    model = design.model
    if isinstance(model, LanguageModel):
        return ()
    ends = accumulate(layers_per_stage(design)[:-1])
    return tuple(model.onward_message_units(end - 1) for end in ends)


def skips_by_stages(skips: Sequence[Skip], layers: Sequence[int]) -> dict[tuple[int, int], list[Skip]]:
    """Return the skip connections of blocks on different stages by their stages, in ascending order.

    Args:
        skips: skip connections of blocks.
        layers: number of layers of each stage.
    """
    ends = list(accumulate(layers))
    found: dict[tuple[int, int], list[Skip]] = defaultdict(list)
    for source, target in sorted(skips):
        found[bisect_right(ends, source), bisect_right(ends, target)].append((source, target))
    return {pair: found[pair] for pair in sorted(found) if pair[0] != pair[1]}
