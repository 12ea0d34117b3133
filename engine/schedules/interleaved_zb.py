"""Interleaved zero bubble: interleaved 1F1B with its backward split (arXiv:2401.10241; torch's "ZB1P")."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import ClassVar

from meshwave.engine import messages
from meshwave.engine.findings import Problem
from meshwave.engine.program.action import Action, forward, input_gradient, weight_gradient
from meshwave.engine.schedules._base import Count, Pipe, Schedule, microbatch_fixes, schedules

messages.add_messages(
    unequal_rounds="{title} needs a multiple of {rounds} microbatches, not {microbatches}; use {supported:or}"
)


@schedules.register("interleaved-zb")
class InterleavedZeroBubble(Schedule):
    """Interleaved 1F1B with a split backward: weight gradients fill two thirds of its bubble.

    Chunks are assigned to the ranks in a loop. Every rank keeps the activations of all its chunks for as many
    microbatches as there are ranks.
    """

    title: ClassVar = "Interleaved zero bubble"
    published: ClassVar = "2024-01"

    chunks: Count = 2
    """Stages (chunks) per rank."""

    def stage_count(self, ranks: int) -> int:
        return ranks * self.chunks

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        return [[*range(pipe.ranks)] * self.chunks]

    def refusal(self, pipe: Pipe) -> Problem | None:
        rounds = _round_count(pipe)
        rest = pipe.microbatches % rounds
        if not rest:
            return None
        fewer = pipe.microbatches - rest
        supported = [fewer, min(fewer + rounds, (rounds + 1) * pipe.ranks)]
        params = {"title": self.title, "rounds": rounds, "microbatches": pipe.microbatches, "supported": supported}
        return Problem("microbatches", "unequal_rounds", params, fixes=microbatch_fixes(*supported))

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        """Yield the order of torch's ``ScheduleInterleavedZeroBubble``.

        Its warm-up is half as long as that of interleaved 1F1B, and on rank ``r`` weight gradients start ``r`` input
        gradients late.
        """
        group = pipe.microbatches // _round_count(pipe)
        turns = [  # (chunk, microbatch) in the order of the forwards
            (chunk, mb)
            for first in range(0, pipe.microbatches, group)
            for chunk in range(self.chunks)
            for mb in range(first, first + group)
        ]
        back = [((self.chunks - 1 - chunk) * pipe.ranks + rank, mb) for chunk, mb in turns]
        warmup = min((self.chunks - 1) * group + pipe.ranks - 1 - rank, len(turns))
        forwards = (forward(chunk * pipe.ranks + rank, mb) for chunk, mb in turns)
        weights = (weight_gradient(*each) for each in back)
        for _ in range(warmup):
            yield next(forwards)
        for number, each in enumerate(back):
            yield from islice(forwards, 1)
            yield input_gradient(*each)
            if number >= rank:
                yield next(weights)
        yield from weights


def _round_count(pipe: Pipe) -> int:
    """Return the number of groups of microbatches that pass through the chunks one after the other."""
    return max(1, pipe.microbatches // pipe.ranks)
