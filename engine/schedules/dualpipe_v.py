"""DualPipeV: DualPipe cut in half, one copy of the weights (DeepSeek's DualPipe repository)."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import ClassVar

from meshwave.engine.findings import Problem
from meshwave.engine.program.action import Action, backward, forward, input_gradient, overlap, weight_gradient
from meshwave.engine.schedules._base import Pipe, Schedule, schedules, too_few_microbatches, wave_path


@schedules.register("dualpipe-v")
class DualPipeV(Schedule):
    """Overlap a forward of one chunk with a backward of the other in one slot, so that each hides
    the other's messages, on stages folded once over the ranks."""

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
    """What a rank has still to do for one of its two chunks, microbatch by microbatch."""

    def __init__(self, stage: int, microbatches: Sequence[int]) -> None:
        self._stage = stage
        self._forwards, self._backwards = iter(microbatches), iter(microbatches)

    def forward(self) -> Action:
        return forward(self._stage, next(self._forwards))

    def backward(self) -> Action:
        return backward(self._stage, next(self._backwards))

    def input_gradient(self) -> Action:
        return input_gradient(self._stage, next(self._backwards))


def bidirectional_order(
    ranks: int, rank: int, first: ChunkQueue, second: ChunkQueue, microbatches: int
) -> Iterator[Action]:
    """The order of a rank in eight steps, those of the authors' code (and torch's ``ScheduleDualPipeV``).

    Args:
        ranks: how many the pipeline folds over, or half of those of a pipeline in both directions.
        rank: among those.
        first: the chunk of which the rank runs an early stage.
        second: the one of which it runs a late stage.
        microbatches: of each chunk.
    """
    after = ranks - rank - 1
    weights: deque[Action] = deque()

    def split(chunk: ChunkQueue) -> Action:
        """An input gradient, whose weight gradient waits in line."""
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
        if turn == 0 and after == 0:  # apart, the last rank's first backward is sooner done
            yield first.forward()
            yield second.backward()
        else:
            yield from overlap(first.forward(), second.backward())
        yield from overlap(second.forward(), first.backward())
    for _ in range(after):
        yield second.backward()
        yield from overlap(second.forward(), first.backward())
    for number in range(2 * (rank + 1)):  # both chunks in turns; from the middle on they are split
        chunk = first if number % 2 else second
        yield split(chunk) if number > rank else chunk.backward()
    for _ in range(after):
        yield weights.popleft()
        yield split(first)
    yield from weights
