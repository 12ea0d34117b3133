"""How many layers each stage gets when the design leaves it open."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.errors import InputError


def equal_split(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage, as equal as they can be; the first stages take what is left over.

    Raises:
        InputError: a stage would be left without a layer.
    """
    _refuse_empty_stages(layers, stages)
    share, over = divmod(layers, stages)
    return tuple(share + (stage < over) for stage in range(stages))


def balanced_split(layers: int, layer_seconds: Sequence[float], extra_seconds: Sequence[float]) -> tuple[int, ...]:
    """Layers of each stage such that the slowest stage is as fast as it can be.

    Stage ``s`` with ``n`` layers takes ``n * layer_seconds[s] + extra_seconds[s]``; the extras
    are the embedding and the head. As all layers cost the same, giving each next layer to the
    stage that is the fastest with it reaches the least maximum: a stage passes it only when all
    others would too. Within that maximum the layers are then spread as equally as they can be.

    Raises:
        InputError: a stage would be left without a layer.
    """
    _refuse_empty_stages(layers, len(layer_seconds))
    greedy = _hand_out(layers, layer_seconds, extra_seconds)
    slowest = max(_seconds(greedy, layer_seconds, extra_seconds))
    most = [
        max(1, int((slowest - extra) / each * (1 + 1e-12) + 1e-9)) if each else layers
        for each, extra in zip(layer_seconds, extra_seconds, strict=True)
    ]
    return _spread(layers, most, layer_seconds, extra_seconds)


def unequal_split(
    layers: int,
    blocks: Sequence[int],
    layer_seconds: Sequence[float],
    block_seconds: Sequence[float],
    extra_seconds: Sequence[float],
) -> tuple[int, ...]:
    """The same where the layers ``blocks`` take ``block_seconds[s]`` on stage ``s``, all others ``layer_seconds[s]``.

    The least bound on the slowest stage that can be kept is found by halving. Where every stage may take
    any one layer within it, it can be kept if and only if it is when every stage takes as many as fit;
    below that, a stage that takes fewer can leave the next one a layer that it can take, and all ends are
    tried. Each stage ends where an even share of the seconds does, or as near to that as the bound allows.

    Raises:
        InputError: a stage would be left without a layer.
    """
    _refuse_empty_stages(layers, len(layer_seconds))
    row = _Row(layers, blocks, layer_seconds, block_seconds, extra_seconds)
    low, high = 0.0, row.longest
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if row.fits(middle) else (middle, high)
    return row.spread(high)


def block_split(block_seconds: Sequence[Sequence[float]], extra_seconds: Sequence[float]) -> tuple[int, ...]:
    """Layers of each stage where layers differ: ``block_seconds[s][l]`` is layer ``l`` on stage ``s``.

    Among the splits whose slowest stage is as fast as it can be it takes the one with the least sum of squares.
    Both are found stage by stage over all places where a stage can end, with time in ``stages * layers^2``.

    Raises:
        InputError: a stage would be left without a layer.
    """
    stages, layers = len(block_seconds), len(block_seconds[0]) if block_seconds else 0
    _refuse_empty_stages(layers, stages)
    taken = [np.concatenate(([0.0], np.cumsum(seconds))) for seconds in block_seconds]
    of_stage = [  # [layers + 1, layers + 1] seconds from one place to another, none backwards
        np.where(np.tri(layers + 1, dtype=np.bool_), np.inf, (before[None, :] - before[:, None]) + extra)
        for before, extra in zip(taken, extra_seconds, strict=True)
    ]
    slowest = np.full(layers + 1, np.inf)
    slowest[0] = 0.0
    for seconds in of_stage:
        slowest = np.maximum(slowest[:, None], seconds).min(axis=0)
    bound = slowest[-1] * SLACK
    squares = np.full(layers + 1, np.inf)
    squares[0] = 0.0
    starts = []
    for seconds in of_stage:
        sums = squares[:, None] + np.where(seconds <= bound, seconds, np.inf) ** 2
        starts.append(sums.argmin(axis=0))
        squares = sums.min(axis=0)
    ends = [layers]
    for start in reversed(starts):
        ends.append(int(start[ends[-1]]))
    return tuple(end - start for start, end in pairwise(reversed(ends)))


SLACK = 1 + 1e-9
"""On a bound, so that no sum is too large by its rounding."""


class _Row:
    """Layers of two kinds in a row, to be cut into stages."""

    def __init__(
        self,
        layers: int,
        blocks: Sequence[int],
        layer_seconds: Sequence[float],
        block_seconds: Sequence[float],
        extra_seconds: Sequence[float],
    ) -> None:
        of_blocks = [0] * (layers + 1)
        for block in blocks:
            of_blocks[block + 1] = 1
        self._blocks = list(accumulate(of_blocks))  # [layers + 1] of the layers before each
        self._each, self._extra = list(zip(layer_seconds, block_seconds, strict=True)), extra_seconds
        self._layers, self._stages = layers, len(self._each)

    @property
    def longest(self) -> float:
        """No less than any split takes."""
        return max(self._before(self._layers, each) for each in self._each) + max(self._extra)

    @property
    def _any_layer(self) -> float:
        """The bound from which on every stage may take any one layer."""
        return max(max(each) + extra for each, extra in zip(self._each, self._extra, strict=True))

    def fits(self, bound: float) -> bool:
        if bound >= self._any_layer:
            return self._ends(bound) is not None
        return bool(self._reachable(bound)[-1][-1])

    def spread(self, bound: float) -> tuple[int, ...]:
        even = self._even()
        ends = self._forth(bound * SLACK, even) if bound >= self._any_layer else self._back(bound * SLACK, even)
        return tuple(end - start for start, end in pairwise([0, *ends]))

    def _even(self) -> list[int]:
        """[stages] where each ends if all take as long, whatever the bound."""
        mean = [sum(part) / self._stages for part in zip(*self._each, strict=True)]
        whole = self._before(self._layers, mean)
        return [self._nearest(whole * (stage + 1) / self._stages, mean) for stage in range(self._stages)]

    def _forth(self, bound: float, even: Sequence[int]) -> list[int]:
        """[stages] where each ends, from the first to the last."""
        last, first = self._ends(bound), self._starts(bound)
        assert last is not None, "the bound is one that fits"
        ends, at = [], 0
        for stage in range(self._stages):
            at = min(max(even[stage], first[stage], at + 1), self._reach(stage, at, bound), last[stage])
            ends.append(at)
        return ends

    def _back(self, bound: float, even: Sequence[int]) -> list[int]:
        """The same from the last to the first, among all ends that can be reached."""
        reachable, ends = self._reachable(bound), [self._layers]
        for stage in reversed(range(1, self._stages)):
            starts = np.flatnonzero(reachable[stage - 1][: ends[-1]])
            fit = [at for at in starts.tolist() if self._reach(stage, at, bound) >= ends[-1]]
            ends.append(min(fit, key=lambda at, goal=even[stage - 1]: abs(at - goal)))  # type: ignore[misc]
        return ends[::-1]

    def _reachable(self, bound: float) -> list[NDArray[np.bool_]]:
        """[stages][layers + 1] whether a stage can end there, with all before it within the bound."""
        starts = np.zeros(self._layers + 1, np.bool_)
        starts[0] = True
        found = []
        blocks, number = np.array(self._blocks), np.arange(self._layers + 1)
        for (dense, with_experts), extra in zip(self._each, self._extra, strict=True):
            taken = (number - blocks) * dense + blocks * with_experts
            reach = np.searchsorted(taken, taken + (bound - extra), side="right") - 1
            at = np.flatnonzero(starts & (reach > number))
            change = np.zeros(self._layers + 2, np.int64)
            np.add.at(change, at + 1, 1)
            np.add.at(change, reach[at] + 1, -1)
            starts = change.cumsum()[:-1] > 0
            found.append(starts)
        return found

    def _before(self, layer: int, each: Sequence[float]) -> float:
        """Seconds of all layers before one, where they take so long ``each``."""
        with_experts = self._blocks[layer]
        return (layer - with_experts) * each[0] + with_experts * each[1]

    def _end_within(self, seconds: float, each: Sequence[float]) -> int:
        """How many of the first layers take no longer than that."""
        return bisect_right(range(self._layers + 1), seconds, key=lambda layer: self._before(layer, each)) - 1

    def _end_before(self, seconds: float, each: Sequence[float]) -> int:
        """How many of the first layers take that long at least."""
        return bisect_left(range(self._layers + 1), seconds, key=lambda layer: self._before(layer, each))

    def _nearest(self, seconds: float, each: Sequence[float]) -> int:
        """How many of the first layers take as long as that, as nearly as can be."""
        below = self._end_within(seconds, each)
        options = range(below, min(below + 1, self._layers) + 1)
        return min(options, key=lambda layer: abs(self._before(layer, each) - seconds))

    def _reach(self, stage: int, start: int, bound: float) -> int:
        """The end of the longest run of layers from ``start`` that ``stage`` can take."""
        each = self._each[stage]
        return self._end_within(bound - self._extra[stage] + self._before(start, each), each)

    def _ends(self, bound: float) -> list[int] | None:
        """[stages] where each ends at the latest; none where the bound cannot be kept."""
        ends, at = [], 0
        for stage in range(self._stages):
            most = self._layers - (self._stages - 1 - stage)  # each that follows needs one
            reached = min(self._reach(stage, at, bound), most)
            if reached <= at:
                return None
            at = reached
            ends.append(at)
        return ends if at == self._layers else None

    def _starts(self, bound: float) -> list[int]:
        """[stages] where each ends at the earliest, so that those that follow can take the rest."""
        earliest, at = [0] * self._stages, self._layers
        for stage in reversed(range(self._stages)):
            earliest[stage], each = at, self._each[stage]
            room = self._before(at, each) - (bound - self._extra[stage])
            at = max(stage, self._end_before(room, each))
        return earliest


def _refuse_empty_stages(layers: int, stages: int) -> None:
    if stages < 1:
        raise InputError("there are no stages to hold the layers; give every mesh a computation")
    if stages > layers:
        raise InputError(
            f"{stages} stages need at least {stages} layers, and the model has {layers}; "
            "use fewer stages or more layers"
        )


def _seconds(split: Sequence[int], layer_seconds: Sequence[float], extra_seconds: Sequence[float]) -> list[float]:
    return [n * each + extra for n, each, extra in zip(split, layer_seconds, extra_seconds, strict=True)]


def _hand_out(layers: int, layer_seconds: Sequence[float], extra_seconds: Sequence[float]) -> list[int]:
    split = [1] * len(layer_seconds)
    queue = [(2 * each + extra_seconds[stage], stage) for stage, each in enumerate(layer_seconds)]
    heapq.heapify(queue)
    for _ in range(layers - len(split)):
        seconds, stage = queue[0]
        split[stage] += 1
        heapq.heapreplace(queue, (seconds + layer_seconds[stage], stage))
    return split


def _spread(
    layers: int, most: Sequence[int], layer_seconds: Sequence[float], extra_seconds: Sequence[float]
) -> tuple[int, ...]:
    """Hand out layers to the stage with the fewest that may have more; of equals, to the fastest."""
    split = [1] * len(most)
    queue = [(1, each + extra_seconds[stage], stage) for stage, each in enumerate(layer_seconds)]
    heapq.heapify(queue)
    for _ in range(layers - len(split)):
        held, seconds, stage = heapq.heappop(queue)
        while held >= most[stage]:  # full: it does not come back
            held, seconds, stage = heapq.heappop(queue)
        split[stage] += 1
        heapq.heappush(queue, (held + 1, seconds + layer_seconds[stage], stage))
    return tuple(split)
