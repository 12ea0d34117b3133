"""What lies between ORDER and RESTORE: slots to their experts and back, chunk by chunk.

A layer of degree ``n`` cuts the slots in ``n`` chunks. All of them are sent on their way first, then
chunk by chunk is waited for, computed and sent back, so that the messages of one chunk run beside
the products of another; the same backwards, with the adjoint of every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from engine.moe import Step, StepOp, backward
from engine.recording import Way
from engine.runtime.deferred import Defers, Due, Later
from engine.runtime.moe.experts import FeedForward, Kept
from engine.runtime.moe.overlap import Overlap
from engine.runtime.moe.steps import SLOTS, Arrives, Steps, indices
from engine.runtime.moe.trace import At

Compute = Callable[[int, Tensor], Tensor]
"""What the experts do with the rows of a chunk."""


class Rows(NamedTuple):
    """The blocks that arrive at the experts of a process."""

    order: Tensor | None  # expert by expert; none: they lie so
    back: Tensor | None  # the inverse
    counts: tuple[int, ...]  # blocks of each expert


class Journey:
    """Takes ``[copies, blocks, slots, hidden]`` there and back."""

    def __init__(
        self, inside: Sequence[Step], steps: Steps, experts: FeedForward, held: Sequence[int], part: Defers
    ) -> None:
        """``held`` are the numbers of the experts of this process, ``part`` knows whether their gradients wait."""
        self._steps, self._experts, self._held, self._part = steps, experts, held, part
        self._chunks = steps.layer.degree if len(inside) > 1 else 1
        self._ways = [
            _Way(steps, played, way, self._chunks > 1)
            for way, played in ((Way.FORWARD, inside), (Way.BACKWARD, backward(inside)))
        ]
        self._rows = self._arrivals(inside)

    def __call__(self, slots: Tensor, anchor: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        """Where nothing is exchanged ``rows`` says how many blocks each expert has.

        ``anchor`` is a weight: the backward must run even where no input needs its gradient.
        """
        plan = self._rows if rows is None else Rows(None, None, tuple(rows))
        y: Tensor = _Travel.apply(slots, anchor, self, plan)  # type: ignore[no-untyped-call]
        return y

    def forward(self, slots: Tensor, plan: Rows) -> tuple[Tensor, list[list[Kept]]]:
        kept: list[list[Kept]] = []

        def compute(chunk: int, x: Tensor) -> Tensor:
            found, of_chunk = self._experts.forward(*_sorted(x, plan))
            kept.append(of_chunk)
            return _unsorted(found, x, plan)

        return self._play(self._ways[0], slots, compute), kept

    def backward(self, gradient: Tensor, plan: Rows, kept: list[list[Kept]]) -> Tensor:
        def compute(chunk: int, x: Tensor) -> Tensor:
            rows, _ = _sorted(x, plan)
            return _unsorted(self._experts.backward(rows, kept[chunk], self._later), x, plan)

        return self._play(self._ways[1], gradient, compute)

    @property
    def _later(self) -> Later | None:
        """Where weight gradients are left for later, each noted as a step when it is computed."""
        return None if self._part.later is None else _Noted(self._part.later, self._steps)

    def _play(self, way: _Way, slots: Tensor, compute: Compute) -> Tensor:
        coming = [way.there(chunk, number) for number, chunk in enumerate(slots.chunk(self._chunks, SLOTS))]
        leaving = [way.back(self._computed(way.at(n), compute, n, arrive()), n) for n, arrive in enumerate(coming)]
        done = [arrive() for arrive in leaving]
        return done[0] if len(done) == 1 else torch.cat(done, SLOTS)

    def _computed(self, at: At, compute: Compute, chunk: int, x: Tensor) -> Tensor:
        ends = self._steps.begins(StepOp.EXPERTS, at)
        y = compute(chunk, x)
        ends()
        return y

    def _arrivals(self, inside: Sequence[Step]) -> Rows:
        """Of which expert each block is that arrives here, followed through the steps before the experts."""
        steps, layer = self._steps, self._steps.layer
        here, copies, blocks = steps.me // layer.esp, 1, list(range(layer.experts))
        for step in inside[: _at_experts(inside)]:
            if step.op in (StepOp.DUMP, StepOp.GATHER_SHARDS):
                copies *= steps.groups[step.group].size
            elif step.op == StepOp.DISPATCH:
                of_each = copies if step.group == "ep" else 1
                sources = [steps.place(step.group, member) for member in range(steps.groups[step.group].size)]
                blocks = [e for place in sources for _ in range(of_each) for e in steps.visited(place, here)]
                copies = 1
        blocks *= copies
        order = sorted(range(len(blocks)), key=blocks.__getitem__)
        back = sorted(range(len(order)), key=order.__getitem__)
        counts = tuple(blocks.count(expert) for expert in self._held)
        return Rows(indices(order, steps.device), indices(back, steps.device), counts)


class _Way:
    """The steps of one direction, on either side of the experts."""

    def __init__(self, steps: Steps, played: Sequence[Step], way: Way, in_chunks: bool) -> None:
        at = _at_experts(played)
        self._before, self._after = list(played[:at]), list(played[at + 1 :])
        self._steps, self._way, self._in_chunks, self._overlap = steps, way, in_chunks, None
        last = self._after[-1] if self._after else None
        if last is not None and last.hidden and last.collective and steps.groups[last.group].size > 1:
            exchange = max(n for n, step in enumerate(self._after) if step.collective == "all_to_all")
            combine, *between = self._after[exchange:-1]
            self._overlap = Overlap(combine, between, last, steps)
            self._after = self._after[:exchange]

    def at(self, chunk: int) -> At:
        """Where the steps of a chunk are played."""
        return At(self._way, chunk if self._in_chunks else -1)

    def there(self, x: Tensor, chunk: int) -> Arrives:
        return self._run(self._before, x, self.at(chunk))

    def back(self, x: Tensor, chunk: int) -> Arrives:
        arrives, at = self._run(self._after, x, self.at(chunk)), self.at(chunk)
        return arrives if self._overlap is None else self._overlap.start(arrives(), beside=self._in_chunks, at=at)

    def _run(self, steps: Sequence[Step], x: Tensor, at: At) -> Arrives:
        """Begin one step after the other; the last collective, and what is done behind it, is still on its way."""
        arrives: Arrives = lambda: x  # noqa: E731
        for step in steps:
            arrives = self._after_that(step, arrives, at)
        return arrives

    def _after_that(self, step: Step, before: Arrives, at: At) -> Arrives:
        if step.collective:
            return self._steps.start(step, before(), at)
        return lambda: self._steps.start(step, before(), at)()


class _Noted(Later):
    """Leaves what is due where it belongs, to be noted as a step when it is done."""

    def __init__(self, later: Later, steps: Steps) -> None:
        super().__init__()
        self._later, self._steps = later, steps

    def add(self, due: Due) -> None:
        def noted() -> None:
            ends = self._steps.begins(StepOp.EXPERTS, At(Way.WEIGHTS))
            due()
            ends()

        self._later.add(noted)


def _at_experts(steps: Sequence[Step]) -> int:
    return next(number for number, step in enumerate(steps) if step.op == StepOp.EXPERTS)


def _sorted(x: Tensor, plan: Rows) -> tuple[Tensor, list[int]]:
    """``[rows, hidden]``, expert by expert, and how many rows each has."""
    blocks = x.flatten(0, 1)
    blocks = blocks if plan.order is None else blocks.index_select(0, plan.order)
    return blocks.flatten(0, 1), [count * blocks.shape[1] for count in plan.counts]


def _unsorted(rows: Tensor, like: Tensor, plan: Rows) -> Tensor:
    blocks = rows.reshape(like.shape[0] * like.shape[1], *like.shape[SLOTS:])
    return (blocks if plan.back is None else blocks.index_select(0, plan.back)).view(like.shape)


class _Travel(Function):
    @staticmethod
    def forward(ctx: Any, slots: Tensor, anchor: Tensor, journey: Journey, plan: Rows) -> Tensor:
        y, ctx.kept = journey.forward(slots, plan)
        ctx.journey, ctx.plan = journey, plan
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        kept, ctx.kept = ctx.kept, None  # once: what a chunk has kept goes with it
        return ctx.journey.backward(gradient, ctx.plan, kept), None, None, None
