"""DualPipeV: one half of DualPipe, with a single copy of the weights (DeepSeek's DualPipe repository)."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import ClassVar

from meshwave.engine.findings import Problem
from meshwave.engine.program.action import Action, backward, forward, input_gradient, overlap, weight_gradient
from meshwave.engine.schedules._base import Pipe, Schedule, schedules, too_few_microbatches, wave_path


@schedules.register("dualpipe-v")
class DualPipeV(Schedule):
    """Overlap a forward of one chunk with a backward of the other in one slot, on stages in one wave over the ranks.

    Each of the two computations hides the messages of the other.
    """

    title: ClassVar = "DualPipeV"
    published: ClassVar = "2025-02"

    def stage_count(self, ranks: int) -> int:
        return 2 * ranks

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        return [wave_path(pipe.ranks)]

    def refusal(self, pipe: Pipe) -> Problem | None:
        return too_few_microbatches(self.title, 2 * pipe.ranks, pipe)

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        up = 2 * pipe.ranks - 1 - rank
        chunks = ChunkQueue(rank, range(pipe.microbatches)), ChunkQueue(up, range(pipe.microbatches))
        return bidirectional_order(pipe.ranks, rank, *chunks, pipe.microbatches)


class ChunkQueue:
    """Remaining computations of a rank for one of its two chunks, in order of microbatches."""

    def __init__(self, stage: int, microbatches: Sequence[int]) -> None:
        self._stage = stage
        self._forwards, self._backwards = iter(microbatches), iter(microbatches)

    def forward(self) -> Action:
        """Return the next forward."""
        return forward(self._stage, next(self._forwards))

    def backward(self) -> Action:
        """Return the next full backward."""
        return backward(self._stage, next(self._backwards))

    def input_gradient(self) -> Action:
        """Return the next input gradient."""
        return input_gradient(self._stage, next(self._backwards))


def bidirectional_order(
    ranks: int, rank: int, first: ChunkQueue, second: ChunkQueue, microbatches: int
) -> Iterator[Action]:
    """Yield the order of a rank in the eight steps of the authors' code (and of torch's ``ScheduleDualPipeV``).

    Args:
        ranks: number of ranks that the wave covers; half the ranks of a bidirectional pipeline.
        rank: the rank among these.
        first: chunk with the rank's early stage.
        second: chunk with the rank's late stage.
        microbatches: microbatches of each chunk.
    """
    after = ranks - rank - 1
    weights: deque[Action] = deque()

    def split(chunk: ChunkQueue) -> Action:
        """Return the next input gradient, and queue its weight gradient."""
        action = chunk.input_gradient()
        weights.append(weight_gradient(action.stage, action.microbatch))
        return action

    for _ in range(2 * after):
        yield first.forward()
    for _ in range(rank + 1):
        yield first.forward()
        yield second.forward()
    for _ in range(after):
        yield split(second)
        yield weights.popleft()
        yield second.forward()
    for turn in range(microbatches - 2 * ranks + rank + 1):  # the main step
        if turn == 0 and after == 0:  # without overlap, the last rank's first backward ends earlier
            yield first.forward()
            yield second.backward()
        else:
            yield from overlap(first.forward(), second.backward())
        yield from overlap(second.forward(), first.backward())
    for _ in range(after):
        yield second.backward()
        yield from overlap(second.forward(), first.backward())
    for number in range(2 * (rank + 1)):  # alternate chunks; from the middle on, backwards are split
        chunk = first if number % 2 else second
        yield split(chunk) if number > rank else chunk.backward()
    for _ in range(after):
        yield weights.popleft()
        yield split(first)
    yield from weights
