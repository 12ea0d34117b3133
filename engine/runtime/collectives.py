"""How long collectives take on the links that are here: played in turns, in every process of a cluster.

A collective is timed over all groups of its kind at once, as a layer calls it, from the moment at
which the last member of a group comes to the moment at which its last member leaves; of several
groups the slowest counts, of several rounds the median. All cases and sizes take their turn in
every round, so that whatever else the machine does meets all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from engine.runtime.shaped import TIMEOUT, Cluster

WARM_UP = 1  # rounds that do not count: they open connections and touch memory
ITEM_BYTES = 4


@dataclass(frozen=True)
class Place:
    """What a collective of this process needs: its group, and two buffers to use as it likes."""

    group: Any  # dist.ProcessGroup
    size: int
    source: Tensor
    target: Tensor
    blocks: int = 1  # of an overlap: places that hold different experts
    gather: Any = None  # of an overlap: the group of the all-gather
    gather_size: int = 1


def all_gather(place: Place, items: int) -> None:
    part = items // place.size
    dist.all_gather_into_tensor(place.target[:items], place.source[:part], group=place.group)


def reduce_scatter(place: Place, items: int) -> None:
    part = items // place.size
    dist.reduce_scatter_tensor(place.target[:part], place.source[:items], group=place.group)


def all_reduce(place: Place, items: int) -> None:
    dist.all_reduce(place.source[:items], group=place.group)


def all_to_all(place: Place, items: int) -> None:
    dist.all_to_all_single(place.target[:items], place.source[:items], group=place.group)


def overlap(place: Place, items: int) -> list[Tensor]:
    """Parm's simultaneous all-to-all and all-gather, block by block: while one block of ``esp`` ranks is
    exchanged with, the sum of what the block before it sent is gathered (arXiv:2407.00599). Returns what
    each step gathered: at step ``i`` a peer at place ``p`` adds what it got from place ``p - i``.

    Its group is that of all ranks, so that a rank's number is its place in it. Messages are posted in
    the order in which the expert layer posts them.
    """
    chunk, shards, me = items // place.size, place.size // place.blocks, dist.get_rank()
    own = me // shards
    arrived = place.target[:items].view(place.blocks, shards, chunk)  # by step
    leaving = place.source[:items].view(place.blocks, shards, chunk)  # by block

    def post(step: int) -> list[Any]:
        to, source = (own + step) % place.blocks, (own - step) % place.blocks
        if to == own:
            arrived[step, me % shards].copy_(leaving[own, me % shards])
        others = [n for n in range(shards) if source * shards + n != me]
        messages = [dist.P2POp(dist.irecv, arrived[step, n], source * shards + n) for n in others]
        others = [n for n in range(shards) if to * shards + n != me]
        messages += [dist.P2POp(dist.isend, leaving[to, n], to * shards + n) for n in others]
        return dist.batch_isend_irecv(messages) if messages else []

    gathered, gathers = [], []
    coming = post(0)
    for step in range(place.blocks):
        _wait(coming)
        coming = post(step + 1) if step + 1 < place.blocks else []
        gathered.append(torch.empty(place.gather_size * chunk))
        summed = arrived[step].sum(0)
        gathers.append(dist.all_gather_into_tensor(gathered[-1], summed, group=place.gather, async_op=True))
    _wait(gathers)
    return gathered


def _wait(works: Sequence[Any]) -> None:
    for work in works:
        if work is not None:
            work.wait()


COLLECTIVES: Mapping[str, Callable[[Place, int], object]] = {
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_reduce": all_reduce,
    "all_to_all": all_to_all,
    "overlap": overlap,
}
"""Each over ``items`` floats: what goes in, or all that comes out, whichever is more."""


def measure(cluster: Cluster, plan: Mapping[str, Any]) -> list[list[float]] | None:
    """Seconds of each of ``plan["cases"]`` for each of ``plan["sizes"]``; rank 0 knows them.

    A case has a ``collective`` and ``groups``, the ranks of each; an overlap also ``blocks`` and the
    ``gathers``, groups too. Sizes are bytes of the larger of the two buffers, multiples of 4 for each
    rank of a group. ``plan["rounds"]`` count.
    """
    items = [size // ITEM_BYTES for size in plan["sizes"]]
    groups = _Groups()
    buffers = torch.zeros(2, max(items))
    places = [_place(case, groups, buffers) for case in plan["cases"]]
    rounds = WARM_UP + plan["rounds"]
    stamps = np.zeros((rounds, len(places), len(items), 2))
    for number in range(rounds):
        for at, (case, place) in enumerate(zip(plan["cases"], places, strict=True)):
            play = COLLECTIVES[case["collective"]]
            for which, count in enumerate(items):
                dist.barrier()
                began = time.perf_counter()
                play(place, count)
                stamps[number, at, which] = began, time.perf_counter()
        if dist.get_rank() == 0:
            print("warm" if number < WARM_UP else f"round {number - WARM_UP + 1} of {plan['rounds']}", flush=True)
    of_all: list[Any] = [None] * cluster.ranks
    dist.all_gather_object(of_all, stamps[WARM_UP:])
    if dist.get_rank():
        return None
    of_ranks = np.stack(of_all)
    return [
        np.median(_took(of_ranks[:, :, at], case["groups"]), axis=0).tolist() for at, case in enumerate(plan["cases"])
    ]


def _took(stamps: NDArray[np.float64], groups: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """[rounds, sizes] of stamps [ranks, rounds, sizes, begin and end]: the slowest group's seconds."""
    of_groups = [stamps[members, ..., 1].max(axis=0) - stamps[members, ..., 0].max(axis=0) for members in groups]
    return np.asarray(np.max(of_groups, axis=0))


def _place(case: Mapping[str, Any], groups: _Groups, buffers: Tensor) -> Place:
    group, size = groups.mine(case["groups"])
    if "gathers" not in case:
        return Place(group, size, buffers[0], buffers[1])
    gather, gather_size = groups.mine(case["gathers"])
    return Place(group, size, buffers[0], buffers[1], case["blocks"], gather, gather_size)


class _Groups:
    """Process groups of torch, each made once: all processes make all, in one order."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, ...], Any] = {}

    def mine(self, all_of_a_kind: Sequence[Sequence[int]]) -> tuple[Any, int]:
        """The group of this process, and how many are in it."""
        for members in map(tuple, all_of_a_kind):
            if members not in self._made:
                self._made[members] = dist.new_group(list(members), timeout=TIMEOUT)
        own = next(members for members in map(tuple, all_of_a_kind) if dist.get_rank() in members)
        return self._made[own], len(own)
