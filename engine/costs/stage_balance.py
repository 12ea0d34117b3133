"""Distribution of layers over stages, for designs that do not set it."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.findings import Refusal


def equal_split(layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers of each stage, as equal as possible; the first stages take the remainder.

    Raises:
        InputError: a stage would have no layer.
    """
    _check_stage_count(layers, stages)
    share, over = divmod(layers, stages)
    return tuple(share + (stage < over) for stage in range(stages))


def keep_at_end(layers: tuple[int, ...], last: int) -> tuple[int, ...]:
    """Return the layers of each stage with at least ``last`` layers on the last stage, taken from the largest stages."""
    found = list(layers)
    while found[-1] < last and (largest := max(found[:-1], default=1)) > 1:
        found[found.index(largest)] -= 1
        found[-1] += 1
    return tuple(found)


def balanced_split(layers: int, layer_seconds: Sequence[float], extra_seconds: Sequence[float]) -> tuple[int, ...]:
    """Return the layers of each stage that minimize the time of the slowest stage.

    A stage ``s`` with ``n`` layers takes ``n * layer_seconds[s] + extra_seconds[s]``; the extra seconds are those of
    embedding and head. All layers cost the same, so assigning each layer to the stage that would be fastest with it
    minimizes the maximum. Within that maximum, the layers are then distributed as equally as possible.

    Raises:
        InputError: a stage would have no layer.
    """
    _check_stage_count(layers, len(layer_seconds))
    greedy = _assign_layers(layers, layer_seconds, extra_seconds)
    slowest = max(_stage_seconds(greedy, layer_seconds, extra_seconds))
    most = [
        max(1, int((slowest - extra) / each * (1 + 1e-12) + 1e-9)) if each else layers
        for each, extra in zip(layer_seconds, extra_seconds, strict=True)
    ]
    return _distribute_evenly(layers, most, layer_seconds, extra_seconds)


def unequal_split(
    layers: int,
    blocks: Sequence[int],
    layer_seconds: Sequence[float],
    block_seconds: Sequence[float],
    extra_seconds: Sequence[float],
) -> tuple[int, ...]:
    """Return the layers of each stage, balanced although some layers cost more than others.

    The layers ``blocks`` take ``block_seconds[s]`` on stage ``s``, all others ``layer_seconds[s]``. Bisection finds the
    smallest bound on the slowest stage that some split satisfies. If every stage can take any single layer within the
    bound, the bound is feasible exactly if it is feasible when every stage takes as many layers as fit. For smaller
    bounds, a stage that takes fewer layers can leave the next stage a layer that it can take, so all possible ends are
    tried. Each stage ends at an even share of the seconds, or as near to it as the bound allows.

    Raises:
        InputError: a stage would have no layer.
    """
    _check_stage_count(layers, len(layer_seconds))
    row = _LayerSequence(layers, blocks, layer_seconds, block_seconds, extra_seconds)
    low, high = 0.0, row.slowest_stage_bound
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if row.fits(middle) else (middle, high)
    return row.spread(high)


def block_split(block_seconds: Sequence[Sequence[float]], extra_seconds: Sequence[float]) -> tuple[int, ...]:
    """Return the layers of each stage, balanced although every layer may cost differently.

    ``block_seconds[s][l]`` is the time of layer ``l`` on stage ``s``. Among the splits that minimize the slowest stage,
    it returns the one with the least sum of squares. Dynamic programming over the ends of stages finds it in ``O(stages
    * layers^2)``.

    Raises:
        InputError: a stage would have no layer.
    """
    stages, layers = len(block_seconds), len(block_seconds[0]) if block_seconds else 0
    _check_stage_count(layers, stages)
    taken = [np.concatenate(([0.0], np.cumsum(seconds))) for seconds in block_seconds]
    of_stage = [  # [layers + 1, layers + 1] seconds from one layer boundary to another; infinite backwards
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
"""Factor on a bound, so that rounding of a sum does not exceed the bound."""


class _LayerSequence:
    """Sequence of layers of two kinds, to be split into stages."""

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
        self._blocks = list(accumulate(of_blocks))  # [layers + 1] number of blocks before each layer
        self._each, self._extra = list(zip(layer_seconds, block_seconds, strict=True)), extra_seconds
        self._layers, self._stages = layers, len(self._each)

    @property
    def slowest_stage_bound(self) -> float:
        """Upper bound on the time of the slowest stage of any split."""
        return max(self._seconds_before(self._layers, each) for each in self._each) + max(self._extra)

    @property
    def _single_layer_bound(self) -> float:
        """Smallest bound within which every stage can take any single layer."""
        return max(max(each) + extra for each, extra in zip(self._each, self._extra, strict=True))

    def fits(self, bound: float) -> bool:
        if bound >= self._single_layer_bound:
            return self._latest_ends(bound) is not None
        return bool(self._reachable_ends(bound)[-1][-1])

    def spread(self, bound: float) -> tuple[int, ...]:
        even = self._even_ends()
        ends = (
            self._ends_from_first(bound * SLACK, even)
            if bound >= self._single_layer_bound
            else self._ends_from_last(bound * SLACK, even)
        )
        return tuple(end - start for start, end in pairwise([0, *ends]))

    def _even_ends(self) -> list[int]:
        """Return the end of each stage if all stages take equally long, regardless of the bound."""
        mean = [sum(part) / self._stages for part in zip(*self._each, strict=True)]
        whole = self._seconds_before(self._layers, mean)
        return [self._nearest_end(whole * (stage + 1) / self._stages, mean) for stage in range(self._stages)]

    def _ends_from_first(self, bound: float, even: Sequence[int]) -> list[int]:
        """Return the end of each stage, computed from the first to the last."""
        last, first = self._latest_ends(bound), self._earliest_ends(bound)
        assert last is not None, "the bound is one that fits"
        ends, at = [], 0
        for stage in range(self._stages):
            at = min(max(even[stage], first[stage], at + 1), self._furthest_end(stage, at, bound), last[stage])
            ends.append(at)
        return ends

    def _ends_from_last(self, bound: float, even: Sequence[int]) -> list[int]:
        """Return the end of each stage, computed from the last to the first among all reachable ends."""
        reachable, ends = self._reachable_ends(bound), [self._layers]
        for stage in reversed(range(1, self._stages)):
            starts = np.flatnonzero(reachable[stage - 1][: ends[-1]])
            fit = [at for at in starts.tolist() if self._furthest_end(stage, at, bound) >= ends[-1]]
            ends.append(min(fit, key=lambda at, goal=even[stage - 1]: abs(at - goal)))  # type: ignore[misc]
        return ends[::-1]

    def _reachable_ends(self, bound: float) -> list[NDArray[np.bool_]]:
        """Return True where a stage can end if all stages before it are within the bound, ``[stages][layers + 1]``."""
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

    def _seconds_before(self, layer: int, each: Sequence[float]) -> float:
        """Return the seconds of all layers before ``layer``, from those of a layer without and with experts (``each``)."""
        with_experts = self._blocks[layer]
        return (layer - with_experts) * each[0] + with_experts * each[1]

    def _end_within(self, seconds: float, each: Sequence[float]) -> int:
        """Return the largest number of leading layers that take at most ``seconds``."""
        return bisect_right(range(self._layers + 1), seconds, key=lambda layer: self._seconds_before(layer, each)) - 1

    def _end_before(self, seconds: float, each: Sequence[float]) -> int:
        """Return the smallest number of leading layers that take at least ``seconds``."""
        return bisect_left(range(self._layers + 1), seconds, key=lambda layer: self._seconds_before(layer, each))

    def _nearest_end(self, seconds: float, each: Sequence[float]) -> int:
        """Return the number of leading layers whose time is nearest to ``seconds``."""
        below = self._end_within(seconds, each)
        options = range(below, min(below + 1, self._layers) + 1)
        return min(options, key=lambda layer: abs(self._seconds_before(layer, each) - seconds))

    def _furthest_end(self, stage: int, start: int, bound: float) -> int:
        """Return the end of the longest run of layers from ``start`` that ``stage`` can take."""
        each = self._each[stage]
        return self._end_within(bound - self._extra[stage] + self._seconds_before(start, each), each)

    def _latest_ends(self, bound: float) -> list[int] | None:
        """Return the latest end of each stage; None if the bound is infeasible."""
        ends, at = [], 0
        for stage in range(self._stages):
            most = self._layers - (self._stages - 1 - stage)  # each later stage needs at least one layer
            reached = min(self._furthest_end(stage, at, bound), most)
            if reached <= at:
                return None
            at = reached
            ends.append(at)
        return ends if at == self._layers else None

    def _earliest_ends(self, bound: float) -> list[int]:
        """Return the earliest end of each stage such that the later stages can take the remaining layers."""
        earliest, at = [0] * self._stages, self._layers
        for stage in reversed(range(self._stages)):
            earliest[stage], each = at, self._each[stage]
            room = self._seconds_before(at, each) - (bound - self._extra[stage])
            at = max(stage, self._end_before(room, each))
        return earliest


def _check_stage_count(layers: int, stages: int) -> None:
    if stages < 1:
        raise Refusal("no_stages")
    if stages > layers:
        raise Refusal("too_few_layers", {"stages": stages, "layers": layers})


def _stage_seconds(split: Sequence[int], layer_seconds: Sequence[float], extra_seconds: Sequence[float]) -> list[float]:
    return [n * each + extra for n, each, extra in zip(split, layer_seconds, extra_seconds, strict=True)]


def _assign_layers(layers: int, layer_seconds: Sequence[float], extra_seconds: Sequence[float]) -> list[int]:
    split = [1] * len(layer_seconds)
    queue = [(2 * each + extra_seconds[stage], stage) for stage, each in enumerate(layer_seconds)]
    heapq.heapify(queue)
    for _ in range(layers - len(split)):
        seconds, stage = queue[0]
        split[stage] += 1
        heapq.heapreplace(queue, (seconds + layer_seconds[stage], stage))
    return split


def _distribute_evenly(
    layers: int, most: Sequence[int], layer_seconds: Sequence[float], extra_seconds: Sequence[float]
) -> tuple[int, ...]:
    """Assign each layer to the stage with the fewest layers that is below its maximum; ties go to the fastest stage."""
    split = [1] * len(most)
    queue = [(1, each + extra_seconds[stage], stage) for stage, each in enumerate(layer_seconds)]
    heapq.heapify(queue)
    for _ in range(layers - len(split)):
        held, seconds, stage = heapq.heappop(queue)
        while held >= most[stage]:  # a full stage is not considered again
            held, seconds, stage = heapq.heappop(queue)
        split[stage] += 1
        heapq.heappush(queue, (held + 1, seconds + layer_seconds[stage], stage))
    return tuple(split)
