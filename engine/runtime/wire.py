"""How processes hand tensors to each other: gloo through the host, NCCL between GPUs."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from engine.program.action import Action, Op
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


class Wire(ABC):
    """The ways from this process to the others of the run.

    Messages are named by the action that made the tensor: ``forward(2, 0)`` is the output of
    stage 2, ``backward(2, 0)`` the gradient of its input; what skips stages names the other one too.
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
        self._sent: list[tuple[Work, Tensor]] = []  # both must live until the message is gone
        self._moving: list[Moving] = []
        self._reshardings: dict[tuple[int, int, int], Resharding] = {}
        self._tags_of_a_route = max(map(_tags, routes.values()), default=0)
        self._places = layout.program.stages + len(layout.program.beyond)  # that a tensor of one microbatch comes from

    def sender(self, made: Action, rank: int) -> Callable[[Tensor], None]:
        """What starts to send ``made`` to a rank; it never waits for the receivers."""
        resharding = self._resharding(self._rank, rank, self._tensors(made))
        if resharding is None:
            return self._sender(made, self._layout.process(rank, self._lane))
        tag, moving = self._first_tag(made), self._moving
        return lambda tensor: moving.append(resharding.start(tensor, tag=tag))

    def receiver(self, made: Action, rank: int) -> Callable[[], Pending]:
        """What starts to receive ``made`` from a rank."""
        resharding = self._resharding(rank, self._rank, self._tensors(made))
        if resharding is None:
            return self._receiver(made, self._layout.process(rank, self._lane))
        tag, moving = self._first_tag(made), self._moving

        def receive() -> Pending:
            moving.append(resharding.start(tag=tag))
            return _Resharded(moving[-1])

        return receive

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
    def _sender(self, made: Action, process: int) -> Callable[[Tensor], None]:
        """What starts to send ``made`` to a process."""

    @abstractmethod
    def _receiver(self, made: Action, process: int) -> Callable[[], Pending]:
        """What starts to receive ``made`` from a process."""

    @abstractmethod
    def reduce(self, stage: int, members: tuple[int, ...], flat: Tensor) -> Pending:
        """Start to sum ``flat``, gradients of ``stage``, over ``members``."""

    @abstractmethod
    def total(self, values: Sequence[Tensor | float]) -> Tensor:
        """Sum float64 values over all processes of the run, and wait for it."""

    def flush(self) -> None:
        """Wait until everything that was sent in this step is gone."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()
        for moving in self._moving:
            moving.wait()
        self._moving.clear()

    def _lanes_across(self) -> list[tuple[int, int]]:
        """Every pair of processes (from, to) of which lane ``i`` sends to lane ``i``, ascending."""
        routed = {(source, target) for source, target, _ in self._routes}
        direct = (ends for ends in self._layout.boundaries() if ends not in routed)
        return sorted(
            pair
            for source, target in direct
            for pair in zip(self._layout.mesh(source), self._layout.mesh(target), strict=True)
        )

    def _make_groups(self, backend: str, timeout: timedelta) -> None:
        """Groups of its own for each stage: ranks may reduce their stages in different orders.

        All processes make all groups in the same order, as torch.distributed asks.
        """
        for stage, members in self._sharing:
            group = dist.new_group(list(members), timeout=timeout, backend=backend)
            if self._process in members:
                self._groups[stage, members] = group


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

    def _sender(self, made: Action, process: int) -> Callable[[Tensor], None]:
        start, tag, sent = self._gloo.send, self.tag(made), self._sent

        def send(tensor: Tensor) -> None:
            host = tensor.to("cpu").contiguous()
            sent.append((start([host], process, tag), host))

        return send

    def _receiver(self, made: Action, process: int) -> Callable[[], Pending]:
        start, tag, device = self._gloo.recv, self.tag(made), self._device
        shape, dtype = self._message.holding(self._tensors(made)), self._message.dtype

        def receive() -> Pending:
            host = torch.empty(shape, dtype=dtype)
            return _Gloo(start([host], process, tag), host, device)

        return receive

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


class _Resharded(Pending):
    def __init__(self, moving: Moving) -> None:
        self._moving = moving

    def wait(self) -> Tensor:
        shard = self._moving.received()
        assert shard is not None, "a process of the mesh that it goes to"
        return shard


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
    directions a send could wait behind the receive that it is the condition of.
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
        self._lanes: dict[tuple[int, int], tuple[Any, torch.cuda.Stream]] = {}
        for lane in self._lanes_across():
            group = dist.new_group(lane, timeout=timeout, backend="nccl")
            if process in lane:
                self._lanes[lane] = group, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._make_groups("nccl", timeout)
        self._warm_up()
        pairs = {(move.source, move.target) for route in routes.values() for move in route.moves}
        self._carrier = NcclCarrier(sorted(pairs), process, device, timeout)

    def _warm_up(self) -> None:
        """Make the communicators now, in one order for all: each waits for both its ends."""
        token = torch.zeros(1, device=self._device)
        for (source, target), (group, _) in self._lanes.items():
            if source == self._process:
                dist.send(token, target, group=group)
            else:
                dist.recv(token, source, group=group)
        for group in self._groups.values():
            dist.all_reduce(token, group=group)
        dist.all_reduce(token)
        torch.cuda.synchronize(self._device)

    def _sender(self, made: Action, process: int) -> Callable[[Tensor], None]:
        group, _ = self._lanes[self._process, process]

        def send(tensor: Tensor) -> None:
            tensor = tensor.contiguous()
            self._sent.append((dist.isend(tensor, process, group=group), tensor))

        return send

    def _receiver(self, made: Action, process: int) -> Callable[[], Pending]:
        group, side = self._lanes[process, self._process]
        shape, dtype = self._message.holding(self._tensors(made)), self._message.dtype

        def receive() -> Pending:
            tensor = torch.empty(shape, dtype=dtype, device=self._device)
            return _Nccl(dist.irecv(tensor, process, group=group), tensor, side)

        return receive

    def reduce(self, stage: int, members: tuple[int, ...], flat: Tensor) -> Pending:
        if (stage, members) not in self._groups:
            return _Here(flat)
        work = dist.all_reduce(flat, group=self._groups[stage, members], async_op=True)
        return _Nccl(work, flat, torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]

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
