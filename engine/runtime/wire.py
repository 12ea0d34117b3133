"""How processes hand tensors to each other: gloo through the host, NCCL between GPUs."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from engine.program.action import Action, Op
from engine.program.answers import answers
from engine.program.program import Program
from engine.runtime.batching import Batch, Batches, batched_pairs, made_by
from engine.runtime.clock import Stamp
from engine.runtime.layout import Layout
from engine.runtime.resharding import Carrier, GlooCarrier, Moving, NcclCarrier, Resharding
from engine.transfer import Transfer

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


class GlooWire(Wire):
    """Gloo moves host memory: tensors of a GPU go through it, on the way out and in.

    A send is a rendezvous and a receive that was posted first is what lets both directions of
    a pair flow at once; the program posts receives ahead. Tags keep messages apart.
    """

    def __init__(
        self,
        layout: Layout,
        process: int,
        message: Message,
        device: torch.device,
        sharing: Sharing,
        routes: Routes,
        timeout: timedelta,
    ) -> None:
        super().__init__(layout, process, message, device, sharing, routes)
        self._make_groups("gloo", timeout)
        self._carrier = GlooCarrier(timeout)
        # Straight to gloo: on the way there torch.distributed asks the same questions at every message.
        self._gloo: Any = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))

    def _sender(self, made: Action, process: int) -> Callable[[Tensor], Leaving]:
        start, tag = self._gloo.send, self.tag(made)

        def send(tensor: Tensor) -> Leaving:
            host = tensor.to("cpu").contiguous()
            return _Sent(start([host], process, tag), host)

        return send

    def _receiver(self, made: Action, process: int) -> Callable[[], Pending]:
        start, tag, device = self._gloo.recv, self.tag(made), self._device
        shape, dtype = self._message.holding(self._tensors(made)), self._message.dtype

        def receive() -> Pending:
            host = torch.empty(shape, dtype=dtype)
            return _Gloo(start([host], process, tag), host, device)

        return receive

    @property
    def _carried_on(self) -> torch.device:
        return torch.device("cpu")

    def _join(self, made: Action, start: Callable[..., Any], tensor: Tensor, process: int) -> Batch:
        return self._batches.join(made, dist.P2POp(start, tensor, process, tag=self.tag(made)))

    def reduce(self, stage: int, members: tuple[int, ...], flat: Tensor) -> Pending:
        if (stage, members) not in self._groups:
            return _Here(flat)
        host = flat.to("cpu")
        work = dist.all_reduce(host, group=self._groups[stage, members], async_op=True)
        return _GlooReduction(work, host, self._device)

    def total(self, values: Sequence[Tensor | float]) -> Tensor:
        sums = torch.tensor([float(value) for value in values], dtype=torch.float64)
        dist.all_reduce(sums)
        return sums


class _Sent(NamedTuple):
    """Both must live until the message is gone."""

    work: Work
    tensor: Tensor

    def wait(self) -> None:
        self.work.wait()

    def is_gone(self) -> bool:
        return bool(self.work.is_completed())  # of gloo never before somebody waits


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


class _Here(Pending):
    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def wait(self) -> Tensor:
        return self._tensor


class _Gloo(Pending):
    def __init__(self, work: Work, host: Tensor, device: torch.device) -> None:
        self._work, self._host, self._device = work, host, device

    def wait(self) -> Tensor:
        self._work.wait()
        return self._host.to(self._device)


class _GlooReduction(_Gloo):
    """Collectives, unlike messages, say when they are done."""

    def __init__(self, work: Work, host: Tensor, device: torch.device) -> None:
        super().__init__(work, host, device)
        self._arrived: int | None = None
        work.get_future().add_done_callback(self._done)

    def _done(self, _: object) -> None:
        self._arrived = time.perf_counter_ns()

    @property
    def arrived(self) -> Stamp | None:
        return self._arrived


class NcclWire(Wire):
    """NCCL between GPUs: one communicator for each direction of each pair of processes.

    NCCL knows no tags, so what makes messages find each other is their order, which the program
    keeps per pair; and operations of one communicator stand in line, so that with one for both
    directions a send could wait behind the receive that it is the condition of. Batches have one communicator for
    each pair, on which both ends issue the same batches in the same order.
    """

    def __init__(
        self,
        layout: Layout,
        process: int,
        message: Message,
        device: torch.device,
        sharing: Sharing,
        routes: Routes,
        timeout: timedelta,
    ) -> None:
        super().__init__(layout, process, message, device, sharing, routes)
        self._lanes: dict[tuple[int, int], Any] = {}
        for lane in self._lanes_across():
            group = dist.new_group(lane, timeout=timeout, backend="nccl")
            if process in lane:
                self._lanes[lane] = group
        self._pairs: dict[tuple[int, int], Any] = {}
        for pair in self._batched_lanes():
            group = dist.new_group(pair, timeout=timeout, backend="nccl")
            if process in pair:
                self._pairs[pair] = group
        self._make_groups("nccl", timeout)
        # What notes arrivals, one a communicator, whose messages arrive in order: torch has 32 streams, and from then
        # on hands out the same again, so that a stream made for each would soon be one that something else waits in.
        arriving = [*(lane for lane in self._lanes if lane[1] == process), *self._groups]
        self._sides = {each: torch.cuda.Stream(device) for each in arriving}  # type: ignore[no-untyped-call]
        self._pair_sides = {pair: torch.cuda.Stream(device) for pair in self._pairs}  # type: ignore[no-untyped-call]
        self._warm_up()
        pairs = {(move.source, move.target) for route in routes.values() for move in route.moves}
        self._carrier = NcclCarrier(sorted(pairs), process, device, timeout)

    def _warm_up(self) -> None:
        """Make the communicators now, in one order for all: each waits for both its ends."""
        token = torch.zeros(1, device=self._device)
        for (source, target), group in self._lanes.items():
            if source == self._process:
                dist.send(token, target, group=group)
            else:
                dist.recv(token, source, group=group)
        for pair, group in self._pairs.items():
            peer, came = sum(pair) - self._process, torch.empty_like(token)
            both = [dist.P2POp(dist.isend, token, peer, group), dist.P2POp(dist.irecv, came, peer, group)]
            for work in dist.batch_isend_irecv(both):
                work.wait()
        for group in self._groups.values():
            dist.all_reduce(token, group=group)
        dist.all_reduce(token)
        torch.cuda.synchronize(self._device)

    def _sender(self, made: Action, process: int) -> Callable[[Tensor], Leaving]:
        group = self._lanes[self._process, process]

        def send(tensor: Tensor) -> Leaving:
            self._forget_the_gone()
            tensor = tensor.contiguous()
            return _Sent(dist.isend(tensor, process, group=group), tensor)

        return send

    def _forget_the_gone(self) -> None:
        """No answer is needed: the GPU says so; the oldest go first."""
        leaving = self._leaving
        for gone in list(takewhile(lambda name: leaving[name].is_gone(), leaving)):
            del leaving[gone]

    def _receiver(self, made: Action, process: int) -> Callable[[], Pending]:
        lane = process, self._process
        group, side = self._lanes[lane], self._sides[lane]
        shape, dtype = self._message.holding(self._tensors(made)), self._message.dtype

        def receive() -> Pending:
            tensor = torch.empty(shape, dtype=dtype, device=self._device)
            return _Nccl(dist.irecv(tensor, process, group=group), tensor, side)

        return receive

    def _batched_sender(self, made: Action, process: int) -> Callable[[Tensor], Leaving]:
        send = super()._batched_sender(made, process)

        def send_and_forget(tensor: Tensor) -> Leaving:
            self._forget_the_gone()
            return send(tensor)

        return send_and_forget

    @property
    def _carried_on(self) -> torch.device:
        return self._device

    def _join(self, made: Action, start: Callable[..., Any], tensor: Tensor, process: int) -> Batch:
        pair = min(self._process, process), max(self._process, process)
        return self._batches.join(made, dist.P2POp(start, tensor, process, self._pairs[pair]), self._pair_sides[pair])

    def reduce(self, stage: int, members: tuple[int, ...], flat: Tensor) -> Pending:
        if (stage, members) not in self._groups:
            return _Here(flat)
        shared = stage, members
        work = dist.all_reduce(flat, group=self._groups[shared], async_op=True)
        return _Nccl(work, flat, self._sides[shared])

    def total(self, values: Sequence[Tensor | float]) -> Tensor:
        sums = torch.stack([torch.as_tensor(value, dtype=torch.float64, device=self._device) for value in values])
        dist.all_reduce(sums)
        return sums


class _Nccl(Pending):
    """``Work.wait`` lets a stream wait, not the host; a stream of its own notes the arrival.

    The tensor was made on the stream of the computations and is held here until that stream has
    waited for it, so the allocator needs no ``record_stream`` to keep its memory.
    """

    def __init__(self, work: Work, tensor: Tensor, side: torch.cuda.Stream) -> None:
        self._work, self._tensor = work, tensor
        self._arrived = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):
            work.wait()
            self._arrived.record()

    def wait(self) -> Tensor:
        self._work.wait()
        return self._tensor

    @property
    def arrived(self) -> Stamp | None:
        return self._arrived
