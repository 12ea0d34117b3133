"""Interleaved 1F1B: several chunks per rank on a loop (Megatron-LM, arXiv:2104.04473, section 2.2)."""

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal

from meshwave.engine import messages
from meshwave.engine.findings import Problem, set_key_fix
from meshwave.engine.frozen import nullable, option_labels
from meshwave.engine.program.action import Action, backward, forward, overlap
from meshwave.engine.schedules._base import Count, Pipe, Schedule, indivisible_microbatches, schedules

messages.add_messages(
    small_microbatch_group="a group of {group} microbatches cannot fill {ranks} meshes; use a group of {ranks} or more"
)


@schedules.register("interleaved-1f1b")
class Interleaved1F1B(Schedule):
    """Split the layers of each rank into chunks: v chunks divide the bubble by v and multiply the transfers by v.

    Chunks are assigned to the ranks in a loop.
    """

    title: ClassVar = "Interleaved 1F1B"
    published: ClassVar = "2021-04"

    chunks: Count = 2
    """Stages (chunks) per rank."""
    group: Count | None = nullable("one per rank")
    """Microbatches that pass through one chunk before the next chunk runs."""
    slots: Annotated[Literal["single", "fused"], option_labels({"single": "Single", "fused": "Fused"})] = "single"
    """Computations in a slot of the steady state. fused: a forward and a backward take
    turns; one computes while the other exchanges tokens of experts or reduces tensors (Megatron's
    ``--overlap-moe-expert-parallel-comm``); each rank runs one more warm-up forward."""

    def stage_count(self, ranks: int) -> int:
        return ranks * self.chunks

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        return [[stage % pipe.ranks for stage in range(self.stage_count(pipe.ranks))]]

    def refusal(self, pipe: Pipe) -> Problem | None:
        group = self.group or pipe.ranks
        if group < pipe.ranks:
            params = {"group": group, "ranks": pipe.ranks}
            return Problem("group", "small_microbatch_group", params, fixes=[set_key_fix("group", pipe.ranks)])
        rest = pipe.microbatches % group
        if rest and rest < pipe.ranks or pipe.microbatches < pipe.ranks:
            return indivisible_microbatches(self.title, group, pipe)
        return None

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        group = self.group or pipe.ranks
        turns = [  # (chunk, microbatch) in the order of the forwards
            (chunk, mb)
            for first in range(0, pipe.microbatches, group)
            for chunk in range(self.chunks)
            for mb in range(first, min(first + group, pipe.microbatches))
        ]
        forwards = [forward(chunk * pipe.ranks + rank, mb) for chunk, mb in turns]
        backwards = [backward((self.chunks - 1 - chunk) * pipe.ranks + rank, mb) for chunk, mb in turns]
        is_fused = self.slots == "fused"
        warmup = min(2 * (pipe.ranks - rank - 1) + (self.chunks - 1) * group + is_fused, len(turns))
        yield from forwards[:warmup]
        for f, b in zip(forwards[warmup:], backwards, strict=False):
            yield from overlap(f, b) if is_fused else (f, b)
        yield from backwards[len(turns) - warmup :]
