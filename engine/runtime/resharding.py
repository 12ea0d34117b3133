"""Takes a tensor from one mesh and sharding to another: gloo through the host, NCCL between GPUs.

    from engine.runtime.resharding import reshard

    shard = reshard(tensor, destination=(mesh, placements))

torch's own ``redistribute`` refuses a mesh of other devices that overlaps the first, and returns empty
tensors without a word where the two have no device in common (pytorch RFC #181061 asks for more).

Every process makes the same plan and plays its own part of it: it posts all receives at once, sends
what it owns, and hands on a range as soon as it is there. What a process owns leaves for other hosts
in the order of the plan, one target after the other, and so does what stays on its host; the two do
not wait for each other. Bytes alone travel, so that a dtype only has to have a size.
"""

from __future__ import annotations

import json
import socket
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from engine.errors import InputError, RunError
from engine.transfer import Box, Link, Links, Mesh, SpecError, Transfer, transfer
from engine.transfer import Tensor as Shape

Work = Any  # torch.distributed's handle of something that is on its way
Window = tuple[slice, ...]
Layout = tuple[DeviceMesh, Sequence[Placement]] | tuple[Mesh, Sequence[str]]
"""Where a tensor lies: in torch's words, or a mesh of processes with an ``R`` or ``S0`` for each dim."""

SMALL_BYTES = 1 << 16
"""What the kernel takes off a sender's hands at once: less than that need not wait for what was sent before."""
MOST_THREADS = 8
"""That hand on at once, inside a host and out of it: more slices take turns."""
GPU_LINKS = Link(5e-6, 3e11), Link(1e-5, 2.5e10)
CPU_LINKS = Link(1e-4, 4e9), Link(1.5e-4, 1.25e9)
"""Inside a host and between hosts, where nobody says better: of NVLink and a 200 Gbit/s NIC; of gloo and 10 Gbit/s."""


# ---- the part of one process ----


class Slice(NamedTuple):
    """A unit task in which this process has a part."""

    task: int
    elements: int
    read: Window | None  # in the shard that it holds, where it sends or keeps the slice
    write: Window | None  # in the shard that it gets


class Receive(NamedTuple):
    slice: int  # its place in the list of slices
    start: int  # bytes
    stop: int
    source: int
    tag: int


class Send(NamedTuple):
    slice: int
    start: int  # bytes
    stop: int
    target: int
    tag: int
    needs: tuple[int, ...]  # the receives that bring the range; none where the process owns it


class Part:
    """What one process does in a transfer; looked up once, played many times."""

    def __init__(self, planned: Transfer, process: int) -> None:
        self.process = process
        self.owned, self.needed = planned.owned.get(process), planned.needed.get(process)
        self.slices: list[Slice] = []
        self.receives: list[Receive] = []
        self.inside: list[Send] = []  # to processes of the same host, and to others
        self.outside: list[Send] = []
        self.sent_bytes = self.received_bytes = 0
        self._places: dict[int, int] = {}  # of a task among the slices
        self._brought: dict[tuple[int, int, int], int] = {}  # the receive of a range of a slice
        self._planned = planned
        self._item = planned.tensor.item_bytes
        for number, task in enumerate(planned.tasks):
            if process in task.keepers:
                self._place(number)
        self.tags = self._add_moves()

    def _add_moves(self) -> int:
        """Messages of a pair are told apart by their number; the most that any pair has."""
        numbers: Counter[tuple[int, int]] = Counter()
        host = self._planned.links.host
        for move in self._planned.moves:
            pair = move.source, move.target
            if self.process in pair:
                place = self._place(move.task)
                span = place, move.start * self._item, move.stop * self._item
                if self.process == move.target:
                    self._brought[span] = len(self.receives)
                    self.receives.append(Receive(*span, move.source, numbers[pair]))
                    self.received_bytes += move.elements * self._item
                else:
                    lane = self.inside if host[move.source] == host[move.target] else self.outside
                    lane.append(Send(*span, move.target, numbers[pair], self._bringing(*span)))
                    self.sent_bytes += move.elements * self._item
            numbers[pair] += 1
        return max(numbers.values(), default=0)

    def _place(self, number: int) -> int:
        if number not in self._places:
            task = self._planned.tasks[number]
            read = _window(task.box, self.owned) if self.process in task.senders else None
            write = _window(task.box, self.needed) if self.process in (*task.receivers, *task.keepers) else None
            self._places[number] = len(self.slices)
            self.slices.append(Slice(number, task.elements, read, write))
        return self._places[number]

    def _bringing(self, place: int, start: int, stop: int) -> tuple[int, ...]:
        if self.slices[place].read is not None:
            return ()
        if (place, start, stop) in self._brought:  # as it came
            return (self._brought[place, start, stop],)
        parts = [(number, each) for number, each in enumerate(self.receives) if each.slice == place]
        return tuple(number for number, each in parts if each.start < stop and start < each.stop)


def _window(box: Box, shard: Box | None) -> Window:
    """Where ``box`` lies in a shard."""
    assert shard is not None
    return tuple(slice(start - first, stop - first) for (start, stop), (first, _) in zip(box, shard, strict=True))


def _extent(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


# ---- what brings bytes from process to process ----

Finish = Callable[[], None]


class Under(NamedTuple):
    """Messages that are under way."""

    receive: Finish  # waits until all that this process gets is there
    send: Finish  # waits until all that it sends is gone


class Carrier(ABC):
    """A way for bytes between processes."""

    device: torch.device
    """Where its bytes lie."""

    @abstractmethod
    def bind(self, part: Part) -> Callable[[Sequence[Tensor], int], Under]:
        """What starts all messages of a part. It is called with the bytes of each slice, which are to live
        until all is sent, and the first of ``part.tags`` tags that no other transfer under way uses."""


class GlooCarrier(Carrier):
    """Gloo moves host memory. A send is a rendezvous, and ends when the kernel has the bytes.

    What cannot be sent at once, since it is not there yet or something else goes first, is sent by a
    thread: gloo's waits leave Python to the others.
    """

    def __init__(self, timeout: timedelta | None = None) -> None:
        """``timeout``: the longest that one message may take; none: that of the default group.

        Raises:
            InputError: the default group has no gloo.
        """
        self.device = torch.device("cpu")
        self._timeout = timeout
        try:
            # Straight to gloo: on the way there torch.distributed asks the same questions at every message.
            self._gloo: Any = dist.distributed_c10d._get_default_group()._get_backend(self.device)
        except RuntimeError as error:
            raise InputError(
                "tensors of the CPU travel over gloo, and the default group has none; "
                "start it with backend='gloo' or 'cpu:gloo,cuda:nccl'"
            ) from error

    def bind(self, part: Part) -> Callable[[Sequence[Tensor], int], Under]:
        lanes = [_split(lane) for lane in _lanes(part)]
        return lambda data, tag: self._carry(part, lanes, data, tag)

    def send(self, data: Tensor, target: int, tag: int) -> Work:
        return self._gloo.send([data], target, tag)

    def receive(self, data: Tensor, source: int, tag: int) -> Work:
        return self._gloo.recv([data], source, tag)

    def wait(self, work: Work) -> None:
        work.wait() if self._timeout is None else work.wait(self._timeout)

    def _carry(
        self, part: Part, lanes: Sequence[tuple[list[Send], list[Send]]], data: Sequence[Tensor], tag: int
    ) -> Under:
        arrivals = [_Arrival(self, part.process, each, data[each.slice], tag) for each in part.receives]
        sending = [_Sending(self, part.process, *lane, arrivals, data, tag) for lane in lanes]

        def receive() -> None:
            for arrival in arrivals:
                arrival.wait()

        def send() -> None:
            for lane in sending:
                lane.finish()

        return Under(receive, send)


def _lanes(part: Part) -> list[list[Send]]:
    """What may pass each other. What this process owns goes in order, inside the host and out of it; each
    slice that it hands on goes by itself, since two that come at once would wait for the whole of the first."""
    found: dict[tuple[int, int], list[Send]] = {}
    for side, sends in enumerate((part.inside, part.outside)):
        for each in sends:
            found.setdefault((side, each.slice % MOST_THREADS if each.needs else -1), []).append(each)
    return list(found.values())


def _split(lane: list[Send]) -> tuple[list[Send], list[Send]]:
    """What can be sent at once, and what has to wait for something."""
    size = 0
    for number, each in enumerate(lane):
        size += each.stop - each.start
        if each.needs or (each.target != lane[0].target and size > SMALL_BYTES):
            return lane[:number], lane[number:]
    return lane, []


class _Arrival:
    """One message that comes. Gloo may be asked only once whether it is there; several may want to know."""

    def __init__(self, carrier: GlooCarrier, process: int, receive: Receive, data: Tensor, tag: int) -> None:
        self._carrier = carrier
        self._who = f"process {process} got no bytes {receive.start}:{receive.stop} of a slice from {receive.source}"
        self._lock = threading.Lock()
        self._error: RunError | None = None
        self._work: Work = None
        try:
            self._work = carrier.receive(data[receive.start : receive.stop], receive.source, tag + receive.tag)
        except RuntimeError as error:  # the other end has gone already
            self._error = RunError(f"{self._who}: {error}")

    def wait(self) -> None:
        """
        Raises:
            RunError: it did not come.
        """
        with self._lock:
            if self._work is not None and self._error is None:
                try:
                    self._carrier.wait(self._work)
                    self._work = None
                except Exception as error:
                    self._error = RunError(f"{self._who}: {error}")
            if self._error is not None:
                raise self._error


class _Sending:
    """What a process sends in one lane: some of it at once, the rest in a thread, in order."""

    def __init__(
        self,
        carrier: GlooCarrier,
        process: int,
        now: Sequence[Send],
        later: Sequence[Send],
        arrivals: Sequence[_Arrival],
        data: Sequence[Tensor],
        tag: int,
    ) -> None:
        self._carrier, self._process = carrier, process
        self._arrivals, self._data, self._tag = arrivals, data, tag
        self._gone: list[tuple[Send, Work]] = []  # under way, to one target
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        for each in now:
            self._post(each)
        if later:
            self._thread = threading.Thread(target=self._send, args=(later,), daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """
        Raises:
            RunError: something could not be sent.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error
        self._settle()

    def _post(self, each: Send) -> None:
        data = self._data[each.slice][each.start : each.stop]
        try:
            self._gone.append((each, self._carrier.send(data, each.target, self._tag + each.tag)))
        except RuntimeError as error:
            raise self._failure(each, error) from error

    def _send(self, later: Sequence[Send]) -> None:
        try:
            for each in later:
                for need in each.needs:
                    self._arrivals[need].wait()
                if self._gone and self._gone[-1][0].target != each.target:
                    self._settle()
                self._post(each)
            self._settle()
        except Exception as error:
            self._error = error

    def _settle(self) -> None:
        """Wait until everything so far is gone."""
        for each, work in self._gone:
            try:
                self._carrier.wait(work)
            except Exception as error:
                raise self._failure(each, error) from error
        self._gone.clear()

    def _failure(self, each: Send, error: Exception) -> RunError:
        range_ = f"bytes {each.start}:{each.stop} of a slice"
        return RunError(f"process {self._process} could not send {range_} to {each.target}: {error}")


class NcclCarrier(Carrier):
    """NCCL between GPUs: one communicator for each direction of each pair of processes.

    NCCL knows no tags: messages of a pair find each other by their order, which is that of the plan, and
    transfers between the same processes have to be started in the same order by all. Nothing waits on
    the host: a lane is a stream, which waits for what it hands on.
    """

    def __init__(
        self, pairs: Iterable[tuple[int, int]], process: int, device: torch.device, timeout: timedelta | None = None
    ) -> None:
        """Every process gives the same pairs of source and target in the same order, its own or not."""
        self.device = device
        self._groups: dict[tuple[int, int], Any] = {}
        for pair in dict.fromkeys(pairs):
            group = dist.new_group(list(pair), timeout=timeout, backend="nccl")
            if process in pair:
                self._groups[pair] = group
        token = torch.zeros(1, device=device)
        for (source, target), group in self._groups.items():  # both ends at once: a communicator waits for both
            if source == process:
                dist.send(token, target, group=group)
            else:
                dist.recv(token, source, group=group)
        torch.cuda.synchronize(device)

    def bind(self, part: Part) -> Callable[[Sequence[Tensor], int], Under]:
        lanes = [
            (lane, torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]
            for lane in (part.inside, part.outside)
            if lane
        ]
        return lambda data, tag: self._carry(part, lanes, data)

    def _carry(
        self, part: Part, lanes: Sequence[tuple[list[Send], torch.cuda.Stream]], data: Sequence[Tensor]
    ) -> Under:
        me = part.process
        arrivals: list[Work] = [
            dist.irecv(data[each.slice][each.start : each.stop], each.source, group=self._groups[each.source, me])
            for each in part.receives
        ]
        gone: list[Work] = []
        for lane, stream in lanes:
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(stream):
                for number, each in enumerate(lane):
                    for need in each.needs:
                        arrivals[need].wait()
                    if number and lane[number - 1].target != each.target:
                        _wait_all(gone[-1:])
                    bytes_ = data[each.slice][each.start : each.stop]
                    gone.append(dist.isend(bytes_, each.target, group=self._groups[me, each.target]))
        # Waiting lets the stream that the caller is on wait, which is the one that the bytes were made on.
        return Under(partial(_wait_all, arrivals), partial(_wait_all, gone))


def _wait_all(works: Sequence[Work]) -> None:
    for work in works:
        work.wait()


# ---- a transfer, started as often as wanted ----


class Moving:
    """A transfer that this process takes part in, under way."""

    def __init__(self, under: Under, deliver: Callable[[], Tensor | None], held: Sequence[Tensor]) -> None:
        self._under, self._deliver = under, deliver
        self._held = held  # must live until it is gone
        self._shard: Tensor | None = None
        self._is_here = self._is_gone = False

    def received(self) -> Tensor | None:
        """Wait until this process's shard is whole, and return it; none where it gets none.

        It may still be on its way to others: it is not to be written to before :meth:`wait`.

        Raises:
            RunError: a message did not come; another process failed, or the timeout is over.
        """
        if not self._is_here:
            self._under.receive()
            self._shard, self._is_here = self._deliver(), True
        return self._shard

    def wait(self) -> Tensor | None:
        """As :meth:`received`, and until everything that this process sends is gone.

        Raises:
            RunError: a message did not come or could not be sent.
        """
        shard = self.received()
        if not self._is_gone:
            self._under.send()
            self._held, self._is_gone = (), True
        return shard


class Resharding:
    """A planned transfer, bound to this process: start it as often as wanted, several at once too.

    All processes of both meshes start it, in the same order as they start others of the same tags.
    """

    def __init__(
        self, planned: Transfer, process: int, dtype: torch.dtype, carrier: Carrier, device: torch.device | None = None
    ) -> None:
        """``device``: where shards are wanted; none: where the carrier has them.

        Raises:
            InputError: an element of ``dtype`` is not as long as those of the plan.
        """
        if dtype.itemsize != planned.tensor.item_bytes:
            raise InputError(
                f"the plan is for elements of {planned.tensor.item_bytes} bytes, and one of {dtype} has {dtype.itemsize}"
            )
        self.planned, self.process, self.dtype = planned, process, dtype
        self.device = device or carrier.device
        self.part = Part(planned, process)
        self._carry, self._there = carrier.bind(self.part), carrier.device
        self._owned, self._needed = (
            None if box is None else _extent(box) for box in (self.part.owned, self.part.needed)
        )

    @property
    def tags(self) -> int:
        """How many tags it takes: from that of :meth:`start` on."""
        return self.part.tags

    @torch.no_grad()
    def start(self, local: Tensor | None = None, *, into: Tensor | None = None, tag: int = 0) -> Moving:
        """Start to send what this process holds and to receive what it gets.

        Args:
            local: this process's shard, of a process in the source mesh. It is not to be written to
                before the end.
            into: a tensor for the shard that it gets, any strides; none: a new one.
            tag: the first of ``tags`` tags that no other transfer under way between these processes has.

        Raises:
            InputError: a tensor is not of the shape or the dtype of the shard, or is missing, or both
                share memory.
            RunError: another process has gone already.
        """
        self._check("holds", local, self._owned)
        if into is not None or self._needed is None:
            self._check("gets", into, self._needed)
        _check_apart(local, into)
        held = None if local is None else local.detach().to(self._there)
        shard = self._shard(into)
        slices = [self._bytes(each, held, shard) for each in self.part.slices]
        under = self._carry([flat for flat, _ in slices], tag)
        rest = [
            (each.write, flat) for each, (flat, is_there) in zip(self.part.slices, slices, strict=True) if not is_there
        ]

        def deliver() -> Tensor | None:
            if shard is None:
                return None
            for window, flat in rest:
                assert window is not None
                shard[window].copy_(flat.view(self.dtype).view(shard[window].shape))
            if into is not None:
                return into if into is shard else into.copy_(shard)
            return shard.to(self.device)

        return Moving(under, deliver, [flat for flat, _ in slices])

    def _shard(self, into: Tensor | None) -> Tensor | None:
        if self._needed is None:
            return None
        if into is not None and into.device == self._there:
            return into
        return torch.empty(self._needed, dtype=self.dtype, device=self._there)

    def _bytes(self, each: Slice, held: Tensor | None, shard: Tensor | None) -> tuple[Tensor, bool]:
        """The bytes of a slice, and whether the shard that this process gets needs no copy of them."""
        if each.read is not None:
            assert held is not None
            flat = _flat(held[each.read].contiguous())
            return flat, each.write is None
        assert each.write is not None
        assert shard is not None
        window = shard[each.write]
        if window.is_contiguous():
            return _flat(window), True
        return torch.empty(each.elements * self.dtype.itemsize, dtype=torch.uint8, device=self._there), False

    def _check(self, what: str, tensor: Tensor | None, shape: tuple[int, ...] | None) -> None:
        who = f"process {self.process}"
        if shape is None:
            if tensor is not None and tensor.numel():
                raise InputError(f"{who} {what} no part of the tensor, and was given one of {_described(tensor)}")
        elif tensor is None:
            if 0 not in shape:
                raise InputError(f"{who} {what} a shard of {_sizes(shape)} {_name(self.dtype)}, and was given none")
        elif tuple(tensor.shape) != shape or tensor.dtype != self.dtype:
            raise InputError(
                f"{who} {what} a shard of {_sizes(shape)} {_name(self.dtype)}, and was given {_described(tensor)}"
            )


def _flat(contiguous: Tensor) -> Tensor:
    """The bytes of a tensor; one of a single element may be contiguous with any stride."""
    return contiguous.as_strided((contiguous.numel(),), (1,)).view(torch.uint8)


def _check_apart(local: Tensor | None, into: Tensor | None) -> None:
    """What comes would overwrite what is yet to go."""
    if local is None or into is None or not local.numel() or not into.numel() or local.device != into.device:
        return
    (first, last), (begin, end) = _memory(local), _memory(into)
    if first < end and begin < last:
        raise InputError("the shard that is sent and the one that is received share memory; give a tensor of its own")


def _memory(tensor: Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


def _described(tensor: Tensor) -> str:
    return f"{_sizes(tensor.shape)} {_name(tensor.dtype)}"


def _sizes(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "one element"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ---- for everybody: what all processes agree on, and one call ----


def reshard(
    tensor: Tensor | None = None,
    source: Layout | None = None,
    destination: Layout | None = None,
    *,
    into: Tensor | None = None,
    **options: Any,
) -> Tensor | None:
    """Take a tensor to another mesh and sharding; all processes of the default group call it.

    ``prepare`` does all of it but the moving: take that where the same transfer comes again.

    Args:
        tensor: a DTensor, or this process's shard where ``source`` says of what; none in processes
            that hold no part of it.
        source: see :func:`prepare`.
        destination: see :func:`prepare`.
        into: a tensor for the shard that this process gets.
        options: see :func:`prepare`.

    Returns:
        A DTensor where ``destination`` was given here as a DeviceMesh with placements, else the local
        shard, of no elements where it is empty; none where this process is not in the destination.

    Raises:
        InputError: what is asked for cannot be, here or in another process; nothing has moved.
        RunError: a message did not come, because another process failed or is too late.
    """
    ready = prepare(tensor, source, destination, **options)
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    shard = ready.start(local if ready.part.owned is not None else None, into=into).wait()
    if shard is None or destination is None or not isinstance(destination[0], DeviceMesh):
        return shard
    shape = torch.Size(ready.planned.tensor.shape)
    stride = torch.empty(shape, device="meta").stride()
    mesh, placements = destination
    return DTensor.from_local(shard, mesh, placements, run_check=False, shape=shape, stride=stride)


def prepare(
    tensor: Tensor | None = None,
    source: Layout | None = None,
    destination: Layout | None = None,
    *,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    hosts: Sequence[int] | None = None,
    links: tuple[Link, Link] | None = None,
    strategy: str | None = None,
    ordering: str = "ensemble",
    chunks: int | None = None,
    timeout: timedelta | None = None,
) -> Resharding:
    """Agree on a transfer, and plan it; all processes of the default group call it.

    What a process does not know, the shape, a mesh, it may leave out: another says it. What two say
    must be the same, or all are told and nothing moves.

    Args:
        tensor: a DTensor, or the local shard, for its shape, dtype and device.
        source: where the tensor lies, where it is no DTensor.
        destination: where it is wanted.
        shape: of the whole tensor.
        dtype: of the tensor.
        hosts: of every process; none: those of the meshes, or by the hosts' names.
        links: inside a host and between hosts, in seconds and bytes/s; the choice of strategy, chunks
            and senders follows them.
        strategy: its name; none: the one that takes the shortest by the plan.
        ordering: its name.
        chunks: of a chain; none: the best number.
        timeout: the longest that one message may take; none: that of the default group.

    Raises:
        InputError: what is asked for cannot be, here or in another process.
    """
    said: dict[str, Any] = {"host name": socket.gethostname()}
    refusal: InputError | None = None
    try:
        said |= _said(tensor, source, destination, shape, dtype)
        said |= {"hosts": hosts, "links": links, "strategy": strategy, "ordering": ordering, "chunks": chunks}
    except InputError as error:  # told to all, or they would wait for this process
        said["error"], refusal = str(error), error
    told = _exchange(said)
    if refusal is not None:
        raise refusal
    planned, kind = _planned(_agreed(told), [each["host name"] for each in told])
    _agreed(_exchange({"plan": planned.digest.hex()}))
    process, device = dist.get_rank(), _device(told)
    return Resharding(planned, process, kind, _carrier(planned, process, device, timeout), device)


def _said(
    tensor: Tensor | None,
    source: Layout | None,
    destination: Layout | None,
    shape: Sequence[int] | None,
    dtype: torch.dtype | None,
) -> dict[str, Any]:
    """What this process knows of the transfer, as plain data."""
    if isinstance(tensor, DTensor):
        if source is not None:
            raise InputError("a DTensor says itself where it lies; leave source out")
        source, shape = (tensor.device_mesh, tensor.placements), tensor.shape if shape is None else shape
        order = getattr(tensor._spec, "shard_order", None)
    else:
        order = None
    said: dict[str, Any] = {"shape": None if shape is None else list(shape)}
    dtype = tensor.dtype if dtype is None and tensor is not None else dtype
    said["dtype"] = None if dtype is None else _name(dtype)
    said["device"] = None if tensor is None else tensor.device.type
    for end, layout in (("source", source), ("destination", destination)):
        said[end] = None if layout is None else _laid(end, layout, order if end == "source" else None)
        if said["device"] is None and layout is not None and isinstance(layout[0], DeviceMesh):
            said["device"] = layout[0].device_type
    return said


def _laid(end: str, layout: Layout, order: Any) -> dict[str, Any]:
    mesh, cut = layout
    if isinstance(mesh, Mesh):
        spec = [str(entry) for entry in cut]
        return {"mesh": list(mesh.shape), "ranks": list(mesh.ranks), "hosts": list(mesh.hosts), "spec": spec}
    axes: list[tuple[int, int]] = []  # of a tensor dim, a mesh axis; outer first
    for axis, placement in enumerate(cut):
        if isinstance(placement, Shard) and type(placement) is Shard:
            axes.append((placement.dim, axis))
        elif not isinstance(placement, Replicate):
            raise InputError(
                f"the {end} has the placement {placement} on mesh axis {axis}, and only Shard and Replicate can be "
                "resharded; redistribute the tensor on its own mesh first"
            )
    if order is not None:
        axes = [(entry.tensor_dim, axis) for entry in order for axis in entry.mesh_dims]
    ranks = mesh.mesh
    return {"mesh": list(ranks.shape), "ranks": ranks.flatten().tolist(), "axes": axes}


def _exchange(said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """``[processes]`` what each says."""
    kind = "cpu" if "cpu:gloo" in _backends() else "cuda"
    device = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
    text = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8).to(device)
    lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor([len(text)], device=device))
    longest = int(max(lengths))
    padded = torch.cat([text, text.new_zeros(longest - len(text))])
    texts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(texts, padded)
    return [json.loads(bytes(each[: int(n)].tolist())) for each, n in zip(texts, lengths, strict=True)]


def _agreed(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all say, of what each says.

    Raises:
        InputError: one refuses, or two say different things; the same on all.
    """
    agreed: dict[str, tuple[int, Any]] = {}
    for process, said in enumerate(told):
        if "error" in said:
            raise InputError(f"process {process} refuses: {said['error']}")
        for name, value in said.items():
            if value is None or name == "host name":
                continue
            first, other = agreed.setdefault(name, (process, value))
            if other != value:
                raise InputError(
                    f"processes do not agree on the {name}: process {first} says {_short(other)}, "
                    f"process {process} says {_short(value)}; nothing was moved"
                )
    return {name: value for name, (_, value) in agreed.items()}


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 120 else f"{text[:120]}..."


def _planned(agreed: Mapping[str, Any], names: Sequence[str]) -> tuple[Transfer, torch.dtype]:
    """The plan of what was agreed, and the dtype; ``names`` of the host of each process."""
    for name in ("shape", "dtype", "source", "destination"):
        if name not in agreed:
            raise InputError(f"no process says the {name} of the transfer; one has to")
    shape, dtype = tuple(agreed["shape"]), getattr(torch, agreed["dtype"])
    host = _hosts(agreed, names)
    source, destination = (_side(end, agreed[end], len(shape), host) for end in ("source", "destination"))
    usual = GPU_LINKS if agreed.get("device") == "cuda" else CPU_LINKS
    intra, inter = (Link(*link) for link in agreed.get("links", usual))
    try:
        planned = transfer(
            Shape(shape, dtype.itemsize),
            source,
            destination,
            Links(intra, inter, host),
            strategy=agreed.get("strategy"),
            ordering=agreed["ordering"],
            chunks=agreed.get("chunks"),
        )
    except SpecError as error:
        raise InputError(str(error)) from None
    return planned, dtype


def _hosts(agreed: Mapping[str, Any], names: Sequence[str]) -> dict[int, int]:
    """The host of each process."""
    if "hosts" in agreed:
        if len(agreed["hosts"]) != len(names):
            raise InputError(f"there are {len(names)} processes, and hosts of {len(agreed['hosts'])}")
        return dict(enumerate(agreed["hosts"]))
    sides = [agreed["source"], agreed["destination"]]
    if all("hosts" in side for side in sides):
        return {rank: host for side in sides for rank, host in zip(side["ranks"], side["hosts"], strict=True)}
    known = list(dict.fromkeys(names))
    return {process: known.index(name) for process, name in enumerate(names)}


def _side(end: str, laid: Mapping[str, Any], dims: int, host: Mapping[int, int]) -> tuple[Mesh, tuple[str, ...]]:
    ranks, world = laid["ranks"], dist.get_world_size()
    for rank in ranks:
        if not 0 <= rank < world:
            raise InputError(f"the {end} has process {rank}, and there are {world}")
        if ranks.count(rank) > 1:
            raise InputError(f"process {rank} stands twice in the {end}")
    mesh = Mesh(tuple(laid["mesh"]), tuple(ranks), tuple(host[rank] for rank in ranks))
    return mesh, tuple(laid["spec"]) if "spec" in laid else _spec(end, laid["axes"], dims)


def _spec(end: str, axes: Sequence[Sequence[int]], dims: int) -> tuple[str, ...]:
    """torch's placements as an entry for each of the tensor's dims."""
    entries = [""] * dims
    for dim, axis in axes:
        if not -dims <= dim < dims:
            raise InputError(f"the {end} has Shard({dim}) on mesh axis {axis}, and the tensor {dims} dims")
        entries[dim] += str(axis)
    return tuple(f"S{entry}" if entry else "R" for entry in entries)


def _device(told: Sequence[Mapping[str, Any]]) -> torch.device:
    kind = next((said["device"] for said in told if said["device"] is not None), "cpu")
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)


def _carrier(planned: Transfer, process: int, device: torch.device, timeout: timedelta | None) -> Carrier:
    if device.type == "cuda" and "cuda:nccl" in _backends():
        pairs = sorted({(move.source, move.target) for move in planned.moves})
        return NcclCarrier(pairs, process, device, timeout)
    return GlooCarrier(timeout)


def _backends() -> str:
    """Of the default group by device, such as ``cpu:gloo,cuda:nccl``."""
    return str(dist.get_backend_config())
