"""How processes hand tensors to each other: gloo through the host, NCCL between GPUs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.program.acknowledgements import answers
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program
from meshwave.engine.resharding import Transfer
from meshwave.engine.runtime.communication.batching import Batch, Batches, batched_pairs, made_by
from meshwave.engine.runtime.communication.layout import Layout
from meshwave.engine.runtime.device.clock import Stamp
from meshwave.engine.runtime.resharding import Carrier, Moving, Resharding

Work = Any  # torch.distributed's handle of something that is on its way


class Message(NamedTuple):
    """What every message between stages looks like: ``[micro_batch_size, sequence, hidden]``."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def holding(self, tensors: int) -> tuple[int, ...]:
        """The shape of one that holds several of them side by side."""
        *rows, hidden = self.shape
        return *rows, tensors * hidden


Sharing = Sequence[tuple[int, tuple[int, ...]]]
"""Stages, each with processes that share gradients of it."""
Routes = Mapping[tuple[int, int, int], Transfer]
"""Between which ranks (from, to, and how many tensors a message holds) these are cut and put together again, with
processes as the plan's ranks; between all others lane ``i`` sends to lane ``i``."""


class Pending(ABC):
    """A tensor that is on its way."""

    @abstractmethod
    def wait(self) -> Tensor:
        """Return it on the device of the run, ready for the work that is issued next."""

    @property
    def arrived(self) -> Stamp | None:
        """When it was there, where that can be known (it need not be when somebody waited)."""
        return None

    @property
    def began(self) -> Stamp | None:
        """When it set out, where that was later than it was asked to, and is known."""
        return None


class Leaving(Protocol):
    """Something that is sent, and held as long as somebody may need it."""

    def wait(self) -> object:
        """Wait until it is gone."""

    def is_gone(self) -> bool:
        """Whether that is known without a wait."""


class Wire(ABC):
    """The ways from this process to the others of the run.

    Messages are named by the action that made the tensor: ``forward(2, 0)`` is the output of
    stage 2, ``backward(2, 0)`` the gradient of its input; what skips stages names the other one too.

    What is sent is held until an answer to it has come, since gloo does not say otherwise that a message is gone, or
    to the end of the step. The process that answered has taken it, so that to wait for it takes no time. Others of the
    other mesh may still be on their way to it where a plan cuts it among them: whatever they need for that comes before
    the answer in the order of the program, and this process has sent its part of it, so nobody waits for ever.
    """

    _carrier: Carrier  # brings the bytes of what is cut and put together again

    def __init__(
        self, layout: Layout, process: int, message: Message, device: torch.device, sharing: Sharing, routes: Routes
    ) -> None:
        """``sharing`` are the stages and processes that sum gradients together, the same list for all."""
        self._sharing = sharing
        self._layout = layout
        self._routes = routes
        self._process = process
        self._rank, self._lane = layout.rank(process), layout.lane(process)
        self._message = message
        self._device = device
        self._groups: dict[tuple[int, tuple[int, ...]], Any] = {}  # stage and members -> who reduce gradients
        self._leaving: dict[Action, Leaving] = {}
        self._passing: list[Moving] = []  # what came here and may still go on to others
        self._batches = Batches(layout.program, self._rank)
        self._answered = _answered(layout.program, self._rank)
        self._reshardings: dict[tuple[int, int, int], Resharding] = {}
        self._tags_of_a_route = max(map(_tags, routes.values()), default=0)
        self._places = layout.program.stages + len(layout.program.beyond)  # that a tensor of one microbatch comes from

    def sender(self, made: Action, rank: int) -> Callable[[Tensor], None]:
        """What starts to send ``made`` to a rank; it never waits for the receivers."""
        start, leaving = self._sending(made, rank), self._leaving

        def send(tensor: Tensor) -> None:
            leaving[made] = start(tensor)

        return send

    def _sending(self, made: Action, rank: int) -> Callable[[Tensor], Leaving]:
        resharding = self._resharding(self._rank, rank, self._tensors(made))
        if resharding is None:
            start = self._batched_sender if made in self._batches else self._sender
            return start(made, self._layout.process(rank, self._lane))
        assert made not in self._batches, "a design that cuts tensors anew at a boundary and batches does not run"
        tag, owned = self._first_tag(made), resharding.planned.owned.get(self._process, ())
        # A mesh cuts the first dim in truth; of the others a device holds all, and may be planned to send a slice.
        sent = (slice(None), *(slice(*side) for side in owned[1:]))
        return lambda tensor: resharding.start(tensor[sent], tag=tag)

    def receiver(self, made: Action, rank: int) -> Callable[[], Pending]:
        """What starts to receive ``made`` from a rank."""
        start, answered = self._receiving(made, rank), self._answered.get(made)
        return start if answered is None else lambda: _Answer(start(), partial(self._let_go, answered))

    def _receiving(self, made: Action, rank: int) -> Callable[[], Pending]:
        resharding = self._resharding(rank, self._rank, self._tensors(made))
        if resharding is None:
            start = self._batched_receiver if made in self._batches else self._receiver
            return start(made, self._layout.process(rank, self._lane))
        tag, passing, by_host = self._first_tag(made), self._passing, self._device.type == "cpu"

        def receive() -> Pending:
            passing[:] = [moving for moving in passing if not moving.is_gone()]
            passing.append(resharding.start(tag=tag))
            return _Resharded(passing[-1], by_host)

        return receive

    def _let_go(self, came: Sequence[Action]) -> None:
        """These have surely come to who takes them."""
        for made in came:
            if made in self._leaving:
                self._leaving.pop(made).wait()

    def _tensors(self, made: Action) -> int:
        """How many the message holds."""
        return self._layout.program.tensors_from(made)

    def _resharding(self, source: int, target: int, tensors: int) -> Resharding | None:
        """What takes so many tensors from a rank to another; none where lane ``i`` sends to lane ``i``."""
        ends = source, target, tensors
        if ends in self._routes and ends not in self._reshardings:
            self._reshardings[ends] = Resharding(
                self._routes[ends], self._process, self._message.dtype, self._carrier, self._device
            )
        return self._reshardings.get(ends)

    def tag(self, made: Action) -> int:
        """A number for everything that is made in a step."""
        program = self._layout.program
        skips = made.other >= 0
        place = program.stages + program.beyond.index(_pair(made)) if skips else made.stage
        return ((made.op == Op.B) * self._places + place) * program.microbatches + made.microbatch

    def _first_tag(self, made: Action) -> int:
        """The same where each takes as many tags as any route does, beyond those that take one."""
        return self.tags + self.tag(made) * self._tags_of_a_route

    @property
    def tags(self) -> int:
        """How many of these numbers there are."""
        return 2 * self._places * self._layout.program.microbatches

    @abstractmethod
    def _sender(self, made: Action, process: int) -> Callable[[Tensor], Leaving]:
        """What starts to send ``made`` to a process."""

    @abstractmethod
    def _receiver(self, made: Action, process: int) -> Callable[[], Pending]:
        """What starts to receive ``made`` from a process."""

    def _batched_sender(self, made: Action, process: int) -> Callable[[Tensor], Leaving]:
        """What adds the send of ``made`` to a process to its batch."""

        def send(tensor: Tensor) -> Leaving:
            return self._join(made, dist.isend, tensor.to(self._carried_on).contiguous(), process)

        return send

    def _batched_receiver(self, made: Action, process: int) -> Callable[[], Pending]:
        """What adds the receive of ``made`` from a process to its batch."""
        shape, dtype = self._message.holding(self._tensors(made)), self._message.dtype

        def receive() -> Pending:
            tensor = torch.empty(shape, dtype=dtype, device=self._carried_on)
            return _InBatch(self._join(made, dist.irecv, tensor, process), tensor, self._device)

        return receive

    @property
    @abstractmethod
    def _carried_on(self) -> torch.device:
        """Where tensors lie while they are sent."""

    @abstractmethod
    def _join(self, made: Action, start: Callable[..., Any], tensor: Tensor, process: int) -> Batch:
        """Add a send or a receive, which ``start`` starts, to the batch of ``made``."""

    @abstractmethod
    def reduce(self, stage: int, members: tuple[int, ...], flat: Tensor) -> Pending:
        """Start to sum ``flat``, gradients of ``stage``, over ``members``."""

    @abstractmethod
    def total(self, values: Sequence[Tensor | float]) -> Tensor:
        """Sum float64 values over all processes of the run, and wait for it."""

    def flush(self) -> None:
        """Wait until everything that was sent in this step is gone."""
        for leaving in (*self._leaving.values(), *self._passing):
            leaving.wait()
        self._leaving.clear()
        self._passing.clear()

    def _lanes_across(self) -> list[tuple[int, int]]:
        """Every pair of processes (from, to) of which lane ``i`` sends to lane ``i``, ascending."""
        routed = {(source, target) for source, target, _ in self._routes}
        direct = (ends for ends in self._layout.boundaries() if ends not in routed)
        return sorted(
            pair
            for source, target in direct
            for pair in zip(self._layout.mesh(source), self._layout.mesh(target), strict=True)
        )

    def _batched_lanes(self) -> list[tuple[int, int]]:
        """Every two processes (lower, higher) that issue batches, ascending."""
        return sorted(
            (min(pair), max(pair))
            for ranks in batched_pairs(self._layout.program)
            for pair in zip(*map(self._layout.mesh, ranks), strict=True)
        )

    def _make_groups(self, backend: str, timeout: timedelta) -> None:
        """Groups of its own for each stage: ranks may reduce their stages in different orders.

        All processes make all groups in the same order, as torch.distributed asks.
        """
        for stage, members in self._sharing:
            group = dist.new_group(list(members), timeout=timeout, backend=backend)
            if self._process in members:
                self._groups[stage, members] = group


def _answered(program: Program, rank: int) -> dict[Action, list[Action]]:
    """What has surely come to others once ``rank`` has received something, by the latter."""
    messages, answer = answers(program)
    found: dict[Action, list[Action]] = {}
    for number in np.flatnonzero((answer >= 0) & (program.rank[messages.send] == rank)).tolist():
        sent, proof = (made_by(program.row(int(messages.send[each]))) for each in (number, answer[number]))
        found.setdefault(proof, []).append(sent)
    return found


def _pair(made: Action) -> tuple[int, int]:
    """The stages that something skips from and to, or its gradient back."""
    return min(made.stage, made.other), max(made.stage, made.other)


def _tags(route: Transfer) -> int:
    """The most messages that any pair of processes has in it."""
    return max(Counter((move.source, move.target) for move in route.moves).values(), default=0)


class _Answer(Pending):
    """Something that tells that what was sent before has come."""

    def __init__(self, pending: Pending, let_go: Callable[[], None]) -> None:
        self._pending, self._let_go = pending, let_go

    def wait(self) -> Tensor:
        tensor = self._pending.wait()
        self._let_go()
        return tensor

    @property
    def arrived(self) -> Stamp | None:
        return self._pending.arrived

    @property
    def began(self) -> Stamp | None:
        return self._pending.began


class _Resharded(Pending):
    def __init__(self, moving: Moving, by_host: bool) -> None:
        """``by_host``: the host's clock stamps all of this run; else only stamps of the GPU's say when it arrived."""
        self._moving, self._by_host = moving, by_host

    def wait(self) -> Tensor:
        shard = self._moving.received()
        assert shard is not None, "a process of the mesh that it goes to"
        return shard

    @property
    def arrived(self) -> Stamp | None:
        arrived = self._moving.arrived
        return None if isinstance(arrived, int) and not self._by_host else arrived


class _InBatch(Pending):
    """A tensor that is there when its batch is complete."""

    def __init__(self, batch: Batch, tensor: Tensor, device: torch.device) -> None:
        self._batch, self._tensor, self._device = batch, tensor, device

    def wait(self) -> Tensor:
        self._batch.wait()
        return self._tensor.to(self._device)

    @property
    def arrived(self) -> Stamp | None:
        return self._batch.arrived
