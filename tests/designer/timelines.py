"""Timelines of 1F1B by its closed form, so that tests of the drawing need no simulator."""

from __future__ import annotations

import numpy as np

from meshwave.engine.program.action import Op
from meshwave.engine.program.timeline import Floats, Source, Timeline


def one_f_one_b(
    ranks: int,
    microbatches: int,
    *,
    forward_s: float = 1e-3,
    source: Source = "predicted",
    slower: float = 0.0,
    seed: int = 0,
) -> Timeline:
    """Return a step whose backwards take twice as long as its forwards.

    Transfers take half a forward if there is slack, else no time. ``slower`` stretches every block by up to that
    fraction, like a measured step.
    """
    rank, mb = (grid.ravel() for grid in np.meshgrid(np.arange(ranks), np.arange(microbatches), indexing="ij"))
    forward = np.where(mb < ranks - rank, rank + mb, 3 * mb + rank)
    backward = ranks + 3 * mb + 2 * (ranks - 1 - rank)
    blocks = len(rank)
    columns = {
        "rank": [rank, rank],
        "peer": [np.full(2 * blocks, -1)],
        "op": [np.full(blocks, Op.F), np.full(blocks, Op.B)],
        "start": [forward, backward],
        "end": [forward + 1, backward + 2],
    }
    down, up = rank < ranks - 1, rank > 0
    needed = np.concatenate((forward.reshape(ranks, -1)[1:].ravel(), backward.reshape(ranks, -1)[:-1].ravel()))
    sent = np.concatenate((forward[down] + 1, backward[up] + 2))
    columns["rank"] += [rank[down], rank[up]]
    columns["peer"] += [rank[down] + 1, rank[up] - 1]
    columns["op"] += [np.full(down.sum(), Op.SEND_F), np.full(up.sum(), Op.SEND_B)]
    columns["start"] += [sent]
    columns["end"] += [np.minimum(sent + 0.5, needed)]
    stage, microbatch = np.concatenate((rank, rank, rank[down], rank[up])), np.concatenate((mb, mb, mb[down], mb[up]))
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    start, end = joined["start"] * forward_s, joined["end"] * forward_s
    if slower:
        drift = np.random.default_rng(seed).uniform(0, slower, len(end))
        end = end + (end - start) * drift * (joined["op"] <= Op.W) * 0.5
        stretch = 1 + slower
        start, end = start * stretch, end * stretch
    return Timeline(
        source=source,
        digest=f"1f1b {ranks} x {microbatches}",
        meshes=tuple(_name(number) for number in range(ranks)),
        rank=joined["rank"].astype(np.int32),
        peer=joined["peer"].astype(np.int32),
        op=joined["op"].astype(np.int8),
        stage=stage.astype(np.int32),
        microbatch=microbatch.astype(np.int32),
        fused=np.zeros(len(start), np.bool_),
        start=start,
        end=end,
        cause=_causes(joined, blocks),
    )


def _name(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else f"M{number}"


def _causes(joined: dict[str, np.ndarray], blocks: int) -> np.ndarray:
    """Return the cause of each span: for a transfer, the block that made its tensor; for a block, its transfer if it
    waited, else the previous block.
    """
    rank, op, start, end = (joined[name] for name in ("rank", "op", "start", "end"))
    count = 2 * blocks
    order = np.lexsort((start[:count], rank[:count]))
    previous = np.full(count, -1)
    previous[order[1:]] = np.where(rank[order[1:]] == rank[order[:-1]], order[:-1], -1)
    free = np.where(previous >= 0, end[previous], 0)
    cause = np.full(len(op), -1, np.int64)
    cause[:count] = previous
    forwards = np.arange(blocks).reshape(rank.max() + 1, -1)
    backwards = blocks + forwards
    maker = np.concatenate((forwards[:-1], backwards[1:])).ravel()
    taker = np.concatenate((forwards[1:], backwards[:-1])).ravel()
    cause[count:] = maker
    waits = start[taker] > free[taker]
    cause[taker[waits]] = count + np.flatnonzero(waits)
    return cause


def memory(timeline: Timeline, weights: float = 20e9, activation: float = 2e9) -> list[tuple[Floats, Floats]]:
    """Return the times and bytes of each rank: weights, and an activation from each forward to its backward."""
    curves = []
    for rank in range(timeline.ranks):
        on = timeline.rank == rank
        comes, goes = on & (timeline.op == Op.F), on & (timeline.op == Op.B)
        times = np.concatenate((timeline.start[comes], timeline.end[goes]))
        change = np.concatenate((np.full(comes.sum(), activation), np.full(goes.sum(), -activation)))
        order = np.lexsort((change, times))
        curves.append(
            (np.concatenate(([0.0], times[order])), weights + np.concatenate(([0.0], np.cumsum(change[order]))))
        )
    return curves


def critical(timeline: Timeline) -> np.ndarray:
    """Return ``[spans]``, True for spans on the critical path."""
    flags = np.zeros(len(timeline), np.bool_)
    flags[timeline.critical_path] = True
    return flags
