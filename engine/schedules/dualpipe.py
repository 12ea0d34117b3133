"""DualPipe: bidirectional pipeline whose forwards overlap backwards (DeepSeek-V3, arXiv:2412.19437, section 3.2.1)."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from meshwave.engine import messages
from meshwave.engine.findings import Problem
from meshwave.engine.program.action import Action
from meshwave.engine.schedules._base import (
    Pipe,
    Schedule,
    microbatch_fixes,
    odd_mesh_count,
    schedules,
    too_few_microbatches,
)
from meshwave.engine.schedules.dualpipe_v import ChunkQueue, bidirectional_order

messages.add_messages(odd_microbatches="{title} needs an even number of microbatches, not {microbatches}; use {needed}")


@schedules.register("dualpipe")
class DualPipe(Schedule):
    """Run two copies of the model in opposite directions, and overlap a forward of one with a backward of the other.

    The two computations share a slot, so that each hides the messages of the other.
    """

    title: ClassVar = "DualPipe"
    published: ClassVar = "2024-12"

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        return [range(pipe.ranks), range(pipe.ranks - 1, -1, -1)]

    def replica_of(self, pipe: Pipe) -> Sequence[int]:
        """Return the replica of each microbatch, ``[microbatches]``: the first half runs down, the second half up."""
        return [int(mb >= pipe.microbatches // 2) for mb in range(pipe.microbatches)]

    def refusal(self, pipe: Pipe) -> Problem | None:
        if pipe.microbatches % 2 and pipe.ranks % 2 == 0:
            needed = max(pipe.microbatches + 1, 2 * pipe.ranks)
            params = {"title": self.title, "microbatches": pipe.microbatches, "needed": needed}
            return Problem("microbatches", "odd_microbatches", params, fixes=microbatch_fixes(needed))
        return odd_mesh_count(self.title, pipe) or too_few_microbatches(self.title, 2 * pipe.ranks, pipe)

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        """Yield the order of the corresponding rank of DualPipeV on half the ranks."""
        outer, half = min(rank, pipe.ranks - 1 - rank), pipe.microbatches // 2
        down, up = range(half), range(half, pipe.microbatches)
        first, second = (down, up) if rank == outer else (up, down)
        chunks = ChunkQueue(outer, first), ChunkQueue(pipe.ranks - 1 - outer, second)
        return bidirectional_order(pipe.ranks // 2, outer, *chunks, half)
