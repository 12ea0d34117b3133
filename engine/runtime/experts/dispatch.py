"""Expert computation between ORDER and RESTORE: dispatch of slots to experts, experts, and combine, chunk by chunk.

A layer of degree ``n`` splits the slots into ``n`` chunks. All chunks are sent first; then each chunk in turn is
received, computed and sent back, so that the messages of one chunk overlap the matrix products of another. The backward
does the same with the adjoint of every step.

If all devices know the number of tokens that each gate has sent to each expert, experts compute only these tokens: the
time of a device then depends on the load of its own experts, not on the most loaded expert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import Function

from meshwave.engine.experts import Step, StepOp, backward_steps
from meshwave.engine.runs.recording import LayerPass
from meshwave.engine.runtime.device.turns import keep_turn
from meshwave.engine.runtime.experts.feed_forward import FeedForward, SavedRun
from meshwave.engine.runtime.experts.overlap import OverlappedCombine
from meshwave.engine.runtime.experts.step_times import StepPosition
from meshwave.engine.runtime.experts.steps import SLOTS, PendingTensor, StepRunner, index_tensor
from meshwave.engine.runtime.modules.deferred_gradients import DeferrableModule, DeferredGradient, GradientQueue

ComputeChunk = Callable[[int, Tensor], Tensor]
"""Function that computes the experts on a chunk, given its number and ``[copies, blocks, slots, hidden]``."""
GateLoads = NDArray[np.int64]
"""Number of tokens that the gate of each device of the block sends to each expert, ``[devices, experts]``."""


class AllSlots(NamedTuple):
    """Selection of all received rows, including empty slots."""

    order: Tensor | None  # order of the blocks by expert; None if they are already in this order
    inverse: Tensor | None
    counts: tuple[int, ...]  # number of blocks of each expert

    def select_rows(self, x: Tensor) -> tuple[Tensor, Sequence[int]]:
        """Return the rows ``[rows, hidden]`` of ``x [copies, blocks, slots, hidden]`` and the row count of each expert."""
        blocks = x.flatten(0, 1)
        blocks = blocks if self.order is None else blocks.index_select(0, self.order)
        return blocks.flatten(0, 1), [count * blocks.shape[1] for count in self.counts]

    def restore_blocks(self, rows: Tensor, like: Tensor) -> Tensor:
        """Return rows in the order and the shape of ``like [copies, blocks, slots, hidden]``."""
        blocks = rows.reshape(like.shape[0] * like.shape[1], *like.shape[SLOTS:])
        return (blocks if self.inverse is None else blocks.index_select(0, self.inverse)).view(like.shape)


class OccupiedSlots(NamedTuple):
    """Selection of the received rows that contain a token."""

    rows: Tensor  # indices of these rows, expert by expert
    counts: Sequence[int]  # number of rows of each expert

    def select_rows(self, x: Tensor) -> tuple[Tensor, Sequence[int]]:
        """Return the rows ``[rows, hidden]`` of ``x [copies, blocks, slots, hidden]`` and the row count of each expert."""
        return x.flatten(0, 2).index_select(0, self.rows), self.counts

    def restore_blocks(self, rows: Tensor, like: Tensor) -> Tensor:
        """Return rows in the order and the shape of ``like``, with zeros in empty slots."""
        return like.new_zeros(like.shape).flatten(0, 2).index_copy_(0, self.rows, rows).view(like.shape)


Selection = AllSlots | OccupiedSlots
"""Selection of the rows of a chunk that the experts compute."""


class SlotBlock(NamedTuple):
    """Block of slots of one expert that come from one device; occupied slots come first."""

    source: int
    expert: int


class ExpertPath:
    """Computation of the experts on ``[copies, blocks, slots, hidden]``: dispatch, experts, combine."""

    def __init__(
        self,
        inside: Sequence[Step],
        runner: StepRunner,
        experts: FeedForward,
        expert_numbers: Sequence[int],
        module: DeferrableModule,
    ) -> None:
        """Prepare the steps of both directions.

        Args:
            inside: the steps between ORDER and RESTORE.
            runner: runs the steps.
            experts: the experts of this process.
            expert_numbers: their numbers.
            module: the module whose gradient queue, if it has one, receives the deferred gradients of the experts.
        """
        self._runner, self._experts, self._expert_numbers, self._module = runner, experts, expert_numbers, module
        self._chunks = runner.layer.degree if len(inside) > 1 else 1
        self._forward, self._backward = (
            _Direction(runner, steps, way, self._chunks > 1)
            for way, steps in ((LayerPass.FORWARD, inside), (LayerPass.BACKWARD, backward_steps(inside)))
        )
        dispatch = inside[: _experts_index(inside)]
        self._received = received_blocks(runner, runner.index, dispatch)
        self._order = np.argsort([block.expert for block in self._received], kind="stable")
        self._all_slots = self._select_all()
        splits = [step.group for step in dispatch if step.op == StepOp.SPLIT_SLOTS]
        self._split = (
            runner.groups[splits[0]].size if splits else 1
        )  # number of parts into which a device splits its slots

    def __call__(
        self, slots: Tensor, anchor: Tensor, blocks: Sequence[int] | None = None, loads: GateLoads | None = None
    ) -> Tensor:
        """Compute the experts on ``slots [copies, blocks, slots, hidden]``, as an autograd operation.

        Args:
            slots: the slots of this device.
            anchor: a weight, so that the backward runs even if no input needs its gradient.
            blocks: the number of blocks of each expert, if no slots are exchanged; otherwise None.
            loads: the load of every gate, so that experts skip empty slots; None if unknown.
        """
        chunk_slots = slots.shape[SLOTS] // self._chunks
        whole = self._all_slots if blocks is None else AllSlots(None, None, tuple(blocks))
        selections: list[Selection] = [whole] * self._chunks
        if loads is not None:
            selections = [
                self._select_occupied(loads, chunk * chunk_slots, chunk_slots // self._split)
                for chunk in range(self._chunks)
            ]
        y: Tensor = _ExpertPath.apply(slots, anchor, self, selections)  # type: ignore[no-untyped-call]
        return y

    def forward(self, slots: Tensor, selections: Sequence[Selection]) -> tuple[Tensor, list[list[SavedRun]]]:
        """Return the results, and for each chunk the tensors that its backward needs."""
        saved: list[list[SavedRun]] = []

        def compute(chunk: int, x: Tensor) -> Tensor:
            rows, saved_runs = self._experts.forward(*selections[chunk].select_rows(x))
            saved.append(saved_runs)
            return selections[chunk].restore_blocks(rows, x)

        return self._run(self._forward, slots, compute), saved

    def backward(self, gradient: Tensor, selections: Sequence[Selection], saved: list[list[SavedRun]]) -> Tensor:
        """Return the gradient of the slots."""

        def compute(chunk: int, x: Tensor) -> Tensor:
            rows, _ = selections[chunk].select_rows(x)
            return selections[chunk].restore_blocks(self._experts.backward(rows, saved[chunk], self._queue), x)

        return self._run(self._backward, gradient, compute)

    @property
    def _queue(self) -> GradientQueue | None:
        """Queue of weight gradients that records the computation of each as a step; None if gradients are not deferred."""
        queue = self._module.gradient_queue
        return None if queue is None else _RecordedQueue(queue, self._runner)

    def _run(self, direction: _Direction, slots: Tensor, compute: ComputeChunk) -> Tensor:
        with keep_turn() if direction.uses_thread else nullcontext():
            chunks = self._run_chunks(direction, slots.chunk(self._chunks, SLOTS), compute)
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks, SLOTS)

    def _run_chunks(self, direction: _Direction, chunks: Sequence[Tensor], compute: ComputeChunk) -> list[Tensor]:
        arriving = [direction.start_before(chunk, number) for number, chunk in enumerate(chunks)]
        with self._experts.share_cast_weights(chunks[0].dtype):
            leaving = [
                direction.start_after(self._compute(direction.position(number), compute, number, pending()), number)
                for number, pending in enumerate(arriving)
            ]
        return [pending() for pending in leaving]

    def _compute(self, position: StepPosition, compute: ComputeChunk, chunk: int, x: Tensor) -> Tensor:
        end_step = self._runner.begin_step(StepOp.EXPERTS, position)
        y = compute(chunk, x)
        end_step()
        return y

    def _select_all(self) -> AllSlots:
        """Return the selection of all received blocks, expert by expert."""
        device, experts = self._runner.device, [block.expert for block in self._received]
        inverse = np.argsort(self._order)
        counts = tuple(experts.count(expert) for expert in self._expert_numbers)
        return AllSlots(index_tensor(self._order.tolist(), device), index_tensor(inverse.tolist(), device), counts)

    def _select_occupied(self, loads: GateLoads, first: int, slots: int) -> Selection:
        """Return the selection of the occupied slots of each received block of a chunk.

        The chunk starts at slot ``first`` of each expert. Each of the devices among which the slots are split has sent
        ``slots`` slots of every expert.
        """
        source, expert = np.array([self._received[block] for block in self._order], np.int64).reshape(-1, 2).T
        start = first + source % self._split * slots  # devices that split slots are adjacent
        occupied = np.clip(loads[source, expert] - start, 0, slots)
        if (occupied == slots).all():
            return self._all_slots
        number = np.arange(slots)
        rows = (self._order[:, None] * slots + number)[number < occupied[:, None]]
        counts = [int(occupied[expert == own].sum()) for own in self._expert_numbers]
        return OccupiedSlots(torch.from_numpy(rows).to(self._runner.device), counts)


def received_blocks(runner: StepRunner, device: int, steps: Sequence[Step]) -> list[SlotBlock]:
    """Return the blocks that ``device`` has after ``steps`` of a layer, in memory order."""
    layer = runner.layer
    if not steps:
        return [SlotBlock(device, expert) for expert in range(layer.experts)]
    *before, step = steps
    if step.op == StepOp.DUMP:
        return received_blocks(runner, device, before) * layer.size(step.group)
    members = layer.members(step.group, device) if step.group else ()
    if step.op == StepOp.GATHER_SHARDS:
        return [block for member in members for block in received_blocks(runner, member, before)]
    if step.op != StepOp.DISPATCH:
        return received_blocks(runner, device, before)
    received = []
    for member in members:
        blocks = received_blocks(runner, member, before)
        outgoing = runner.outgoing_blocks(step.group, member, device, len(blocks) // layer.experts)
        received += [blocks[number] for number in outgoing]
    return received


class _Direction:
    """Steps of the forward or the backward, before and after the experts."""

    def __init__(self, runner: StepRunner, steps: Sequence[Step], way: LayerPass, has_chunks: bool) -> None:
        index = _experts_index(steps)
        self._before, self._after = list(steps[:index]), list(steps[index + 1 :])
        self._runner, self._way, self._has_chunks, self._overlap = runner, way, has_chunks, None
        last = self._after[-1] if self._after else None
        if last is not None and last.hidden and last.collective and runner.groups[last.group].size > 1:
            exchange = max(n for n, step in enumerate(self._after) if step.collective == "all_to_all")
            combine, *between = self._after[exchange:-1]
            self._overlap = OverlappedCombine(combine, between, last, runner)
            self._after = self._after[:exchange]

    @property
    def uses_thread(self) -> bool:
        """True if another thread issues collectives."""
        return self._overlap is not None

    def position(self, chunk: int) -> StepPosition:
        """Return the position of the steps of a chunk, for the record of step times."""
        return StepPosition(self._way, chunk if self._has_chunks else -1)

    def start_before(self, x: Tensor, chunk: int) -> PendingTensor:
        """Start the steps before the experts and return their pending result."""
        return self._start(self._before, x, self.position(chunk))

    def start_after(self, x: Tensor, chunk: int) -> PendingTensor:
        """Start the steps after the experts and return their pending result."""
        position = self.position(chunk)
        pending = self._start(self._after, x, position)
        if self._overlap is None:
            return pending
        return self._overlap.start(pending(), in_thread=self._has_chunks, position=position)

    def _start(self, steps: Sequence[Step], x: Tensor, position: StepPosition) -> PendingTensor:
        """Run ``steps`` in order. The last collective and the steps after it remain pending."""
        pending: PendingTensor = lambda: x  # noqa: E731
        for step in steps:
            pending = self._start_after(step, pending, position)
        return pending

    def _start_after(self, step: Step, before: PendingTensor, position: StepPosition) -> PendingTensor:
        if step.collective:
            return self._runner.start(step, before(), position)
        return lambda: self._runner.start(step, before(), position)()


class _RecordedQueue(GradientQueue):
    """Queue that forwards gradients to another queue and records the computation of each as a step."""

    def __init__(self, queue: GradientQueue, runner: StepRunner) -> None:
        super().__init__()
        self._queue, self._runner = queue, runner

    def add(self, gradient: DeferredGradient) -> None:
        def compute_and_record() -> None:
            end_step = self._runner.begin_step(StepOp.EXPERTS, StepPosition(LayerPass.WEIGHTS))
            gradient()
            end_step()

        self._queue.add(compute_and_record)


def _experts_index(steps: Sequence[Step]) -> int:
    return next(number for number, step in enumerate(steps) if step.op == StepOp.EXPERTS)


class _ExpertPath(Function):
    @staticmethod
    def forward(ctx: Any, slots: Tensor, anchor: Tensor, path: ExpertPath, selections: Sequence[Selection]) -> Tensor:
        y, saved = path.forward(slots, selections)
        ctx.save_for_backward(*(tensor for runs in saved for each in runs for tensor in each.tensors))
        ctx.runs = [[each._replace(tensors=()) for each in runs] for runs in saved]
        ctx.path, ctx.selections = path, selections
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        tensors = iter(ctx.saved_tensors)
        saved = [[each.with_tensors(tensors) for each in runs] for runs in ctx.runs]
        return ctx.path.backward(gradient, ctx.selections, saved), None, None, None
