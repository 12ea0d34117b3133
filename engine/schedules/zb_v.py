"""ZB-V: zero bubble with the activations of 1F1B (Qi et al., Zero Bubble, arXiv:2401.10241, section 6)."""

from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from typing import ClassVar

from meshwave.engine.program.action import Action, forward, input_gradient, weight_gradient
from meshwave.engine.schedules._base import Pipe, Schedule, schedules, wave_path


@schedules.register("zb-v")
class ZeroBubbleV(Schedule):
    """Run the stages in one wave over the ranks and split the backward: no idle time for equal costs.

    If forward, input gradient and weight gradient have equal durations, no rank is idle between its first and last
    computation.
    """

    title: ClassVar = "ZB-V"
    published: ClassVar = "2024-01"

    def stage_count(self, ranks: int) -> int:
        return 2 * ranks

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        return [wave_path(pipe.ranks)]

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        """Yield the order of torch's ``ScheduleZBVZeroBubble``, without the microbatches that only fill the pipeline."""
        full = max(2 * pipe.ranks - 1, pipe.microbatches)
        return (action for action in _full_order(pipe.ranks, rank, full) if action.microbatch < pipe.microbatches)


def _full_order(ranks: int, rank: int, microbatches: int) -> Iterator[Action]:
    """Yield the order for enough microbatches to fill the pipeline."""
    down, up = rank, 2 * ranks - 1 - rank
    f0, i0, w0, f1, i1, w1 = (
        map(make, repeat(stage), range(microbatches))
        for stage in (down, up)
        for make in (forward, input_gradient, weight_gradient)
    )
    for _ in range(2 * (ranks - rank) - 1):
        yield next(f0)
    for _ in range(rank):
        yield next(f1)
        yield next(f0)
    for _ in range(ranks - rank):
        yield from (next(f1), next(i1), next(w1))
    for up_forward in f1:  # steady state
        yield from islice(f0, 1)
        yield from (next(i0), next(w0), up_forward, next(i1), next(w1))
    for _ in range(rank):
        yield from (next(i0), next(i1))
    for _ in range(ranks - rank):
        yield from (next(i0), next(w0))
    yield from w1
    yield from w0
