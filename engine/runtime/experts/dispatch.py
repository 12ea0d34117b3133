"""What lies between ORDER and RESTORE: slots to their experts and back, chunk by chunk.

A layer of degree ``n`` cuts the slots in ``n`` chunks. All of them are sent on their way first, then
chunk by chunk is waited for, computed and sent back, so that the messages of one chunk run beside
the products of another; the same backwards, with the adjoint of every step.

Where all know how many tokens each gate has sent to each expert, experts compute those alone: a
device is busy as long as its own experts are asked for, not as long as the most wanted one is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import Function

from meshwave.engine.experts import Step, StepOp, backward
from meshwave.engine.runs.recording import Way
from meshwave.engine.runtime.experts.feed_forward import FeedForward, Kept
from meshwave.engine.runtime.experts.overlap import Overlap
from meshwave.engine.runtime.experts.step_times import At
from meshwave.engine.runtime.experts.steps import SLOTS, Arrives, Steps, indices
from meshwave.engine.runtime.modules.deferred_gradients import DeferrableModule, DeferredGradient, GradientQueue

Compute = Callable[[int, Tensor], Tensor]
"""What the experts do with the rows of a chunk."""


Loads = NDArray[np.int64]
"""``[devices, experts]`` how many tokens the gate of each device of the block sends to each expert."""


class Blocks(NamedTuple):
    """Everything that arrives at the experts of a process, empty slots too."""

    order: Tensor | None  # of the blocks, expert by expert; none: they lie so
    back: Tensor | None  # the inverse
    counts: tuple[int, ...]  # blocks of each expert

    def rows(self, x: Tensor) -> tuple[Tensor, Sequence[int]]:
        """``[rows, hidden]`` of ``x [copies, blocks, slots, hidden]``, and how many rows each expert has."""
        blocks = x.flatten(0, 1)
        blocks = blocks if self.order is None else blocks.index_select(0, self.order)
        return blocks.flatten(0, 1), [count * blocks.shape[1] for count in self.counts]

    def whole(self, rows: Tensor, like: Tensor) -> Tensor:
        """The rows where they came from."""
        blocks = rows.reshape(like.shape[0] * like.shape[1], *like.shape[SLOTS:])
        return (blocks if self.back is None else blocks.index_select(0, self.back)).view(like.shape)


class Tokens(NamedTuple):
    """Of everything that arrives the slots with a token in them."""

    taken: Tensor  # the numbers of those rows, expert by expert
    counts: Sequence[int]  # rows of each expert

    def rows(self, x: Tensor) -> tuple[Tensor, Sequence[int]]:
        return x.flatten(0, 2).index_select(0, self.taken), self.counts

    def whole(self, rows: Tensor, like: Tensor) -> Tensor:
        """The same, with zeros in the slots that are empty: nobody asks what came of them."""
        return like.new_zeros(like.shape).flatten(0, 2).index_copy_(0, self.taken, rows).view(like.shape)


Plan = Blocks | Tokens
"""Which rows of a chunk the experts compute."""


class Block(NamedTuple):
    """Slots of one expert, filled from the first on, that come from one device."""

    source: int
    expert: int


class Journey:
    """Takes ``[copies, blocks, slots, hidden]`` there and back."""

    def __init__(
        self, inside: Sequence[Step], steps: Steps, experts: FeedForward, held: Sequence[int], part: DeferrableModule
    ) -> None:
        """``held`` are the numbers of the experts of this process, ``part`` knows whether their gradients wait."""
        self._steps, self._experts, self._held, self._part = steps, experts, held, part
        self._chunks = steps.layer.degree if len(inside) > 1 else 1
        self._ways = [
            _Way(steps, played, way, self._chunks > 1)
            for way, played in ((Way.FORWARD, inside), (Way.BACKWARD, backward(inside)))
        ]
        self._arriving = arriving(steps, steps.me, inside[: _at_experts(inside)])
        self._order = np.argsort([block.expert for block in self._arriving], kind="stable")
        self._all = self._everything()
        splits = [step.group for step in inside[: _at_experts(inside)] if step.op == StepOp.SPLIT_SLOTS]
        self._parts = steps.groups[splits[0]].size if splits else 1  # in which a device has cut its slots

    def __call__(
        self, slots: Tensor, anchor: Tensor, rows: Sequence[int] | None = None, loads: Loads | None = None
    ) -> Tensor:
        """Where nothing is exchanged ``rows`` says how many blocks each expert has; ``loads``, where they
        are known, which slots have tokens in them.

        ``anchor`` is a weight: the backward must run even where no input needs its gradient.
        """
        each = slots.shape[SLOTS] // self._chunks
        plans: list[Plan] = [self._all if rows is None else Blocks(None, None, tuple(rows))] * self._chunks
        if loads is not None:
            plans = [self._with_tokens(loads, chunk * each, each // self._parts) for chunk in range(self._chunks)]
        y: Tensor = _Travel.apply(slots, anchor, self, plans)  # type: ignore[no-untyped-call]
        return y

    def forward(self, slots: Tensor, plans: Sequence[Plan]) -> tuple[Tensor, list[list[Kept]]]:
        kept: list[list[Kept]] = []

        def compute(chunk: int, x: Tensor) -> Tensor:
            found, of_chunk = self._experts.forward(*plans[chunk].rows(x))
            kept.append(of_chunk)
            return plans[chunk].whole(found, x)

        return self._play(self._ways[0], slots, compute), kept

    def backward(self, gradient: Tensor, plans: Sequence[Plan], kept: list[list[Kept]]) -> Tensor:
        def compute(chunk: int, x: Tensor) -> Tensor:
            rows, _ = plans[chunk].rows(x)
            return plans[chunk].whole(self._experts.backward(rows, kept[chunk], self._later), x)

        return self._play(self._ways[1], gradient, compute)

    @property
    def _later(self) -> GradientQueue | None:
        """Where weight gradients are left for later, each noted as a step when it is computed."""
        return None if self._part.gradient_queue is None else _Noted(self._part.gradient_queue, self._steps)

    def _play(self, way: _Way, slots: Tensor, compute: Compute) -> Tensor:
        coming = [way.there(chunk, number) for number, chunk in enumerate(slots.chunk(self._chunks, SLOTS))]
        with self._experts.cast(slots.dtype):
            leaving = [way.back(self._computed(way.at(n), compute, n, arrive()), n) for n, arrive in enumerate(coming)]
        done = [arrive() for arrive in leaving]
        return done[0] if len(done) == 1 else torch.cat(done, SLOTS)

    def _computed(self, at: At, compute: Compute, chunk: int, x: Tensor) -> Tensor:
        ends = self._steps.begins(StepOp.EXPERTS, at)
        y = compute(chunk, x)
        ends()
        return y

    def _everything(self) -> Blocks:
        """All blocks that arrive here, expert by expert."""
        device, experts = self._steps.device, [block.expert for block in self._arriving]
        back = np.argsort(self._order)
        counts = tuple(experts.count(expert) for expert in self._held)
        return Blocks(indices(self._order.tolist(), device), indices(back.tolist(), device), counts)

    def _with_tokens(self, loads: Loads, first: int, slots: int) -> Plan:
        """Of each block that arrives here the slots in use: those of its expert from ``first`` on, of which
        each of the devices that have cut them among themselves has sent ``slots``."""
        source, expert = np.array([self._arriving[at] for at in self._order], np.int64).reshape(-1, 2).T
        begins = first + source % self._parts * slots  # the devices that cut are neighbours
        used = np.clip(loads[source, expert] - begins, 0, slots)
        if (used == slots).all():
            return self._all
        number = np.arange(slots)
        index = (self._order[:, None] * slots + number)[number < used[:, None]]
        counts = [int(used[expert == held].sum()) for held in self._held]
        return Tokens(torch.from_numpy(index).to(self._steps.device), counts)


def arriving(steps: Steps, device: int, before: Sequence[Step]) -> list[Block]:
    """The blocks that ``device`` has after those steps of a layer, in the order in which they lie."""
    layer = steps.layer
    if not before:
        return [Block(device, expert) for expert in range(layer.experts)]
    *before, step = before
    if step.op == StepOp.DUMP:
        return arriving(steps, device, before) * layer.size(step.group)
    if step.op == StepOp.GATHER_SHARDS:
        return [block for member in layer.members(step.group, device) for block in arriving(steps, member, before)]
    if step.op != StepOp.DISPATCH:
        return arriving(steps, device, before)
    found = []
    for member in layer.members(step.group, device):
        lie = arriving(steps, member, before)
        found += [lie[at] for at in steps.outgoing(step.group, member, device, len(lie) // layer.experts)]
    return found


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


class _Noted(GradientQueue):
    """Leaves what is due where it belongs, to be noted as a step when it is done."""

    def __init__(self, later: GradientQueue, steps: Steps) -> None:
        super().__init__()
        self._later, self._steps = later, steps

    def add(self, due: DeferredGradient) -> None:
        def noted() -> None:
            ends = self._steps.begins(StepOp.EXPERTS, At(Way.WEIGHTS))
            due()
            ends()

        self._later.add(noted)


def _at_experts(steps: Sequence[Step]) -> int:
    return next(number for number, step in enumerate(steps) if step.op == StepOp.EXPERTS)


class _Travel(Function):
    @staticmethod
    def forward(ctx: Any, slots: Tensor, anchor: Tensor, journey: Journey, plans: Sequence[Plan]) -> Tensor:
        y, ctx.kept = journey.forward(slots, plans)
        ctx.journey, ctx.plans = journey, plans
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        kept, ctx.kept = ctx.kept, None  # once: what a chunk has kept goes with it
        return ctx.journey.backward(gradient, ctx.plans, kept), None, None, None
