"""What brings bytes from process to process: gloo through the host, NCCL between GPUs."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.errors import InputError, RunError
from meshwave.engine.runtime.device.accelerator import device_backend, record_event, synchronize, use_stream
from meshwave.engine.runtime.device.clock import Stamp
from meshwave.engine.runtime.resharding.process_part import Part, Receive, Send

Work = Any  # torch.distributed's handle of something that is on its way
SMALL_BYTES = 1 << 16
"""What the kernel takes off a sender's hands at once: less than that need not wait for what was sent before."""
MOST_THREADS = 8
"""That hand on at once, inside a host and out of it: more slices take turns."""
Finish = Callable[[], None]
Sums = Mapping[int, Callable[[], None]]
"""Of slices that a process adds up: what makes the sum, once all addends are there, and only once."""


class Under(NamedTuple):
    """Messages that are under way."""

    receive: Finish  # waits until all that this process gets is there
    send: Finish  # waits until all that it sends is gone
    is_gone: Callable[[], bool]  # whether it is known, without a wait, that it is
    arrived: Callable[[], Stamp | None]  # when the last was there, where that is known; to be asked once it is


Carry = Callable[[Sequence[Tensor], int, Sums], Under]
"""What starts all messages of a part; see :meth:`Carrier.bind`."""


class Carrier(ABC):
    """A way for bytes between processes."""

    device: torch.device
    """Where its bytes lie."""

    @abstractmethod
    def bind(self, part: Part) -> Carry:
        """What starts all messages of a part. It is called with the bytes of each slice, which are to live
        until all is sent, the first of ``part.tags`` tags that no other transfer under way uses, and what
        makes the slices that are sums."""


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

    def bind(self, part: Part) -> Carry:
        lanes = [_split(lane) for lane in _lanes(part)]
        return lambda data, tag, sums: self._carry(part, lanes, data, tag, sums)

    def send(self, data: Tensor, target: int, tag: int) -> Work:
        return self._gloo.send([data], target, tag)

    def receive(self, data: Tensor, source: int, tag: int) -> Work:
        return self._gloo.recv([data], source, tag)

    def wait(self, work: Work) -> None:
        work.wait() if self._timeout is None else work.wait(self._timeout)

    def _carry(
        self,
        part: Part,
        lanes: Sequence[tuple[list[Send], list[Send]]],
        data: Sequence[Tensor],
        tag: int,
        sums: Sums,
    ) -> Under:
        arrivals = [_Arrival(self, part.process, each, data[each.slice], tag) for each in part.receives]
        sending = [_Sending(self, part.process, *lane, arrivals, data, tag, sums) for lane in lanes]

        def receive() -> None:
            for arrival in arrivals:
                arrival.wait()

        def send() -> None:
            for lane in sending:
                lane.finish()

        def is_gone() -> bool:
            return all(lane.is_gone for lane in sending)

        def arrived() -> Stamp | None:
            return max((arrival.came_ns for arrival in arrivals), default=None)

        return Under(receive, send, is_gone, arrived)


def _lanes(part: Part) -> list[list[Send]]:
    """What may pass each other. What this process owns goes in order, inside the host and out of it, and so
    do the sums that it makes; each slice that it hands on goes by itself, since two that come at once would wait for the
    whole of the first."""
    found: dict[tuple[int, int], list[Send]] = {}
    for side, sends in enumerate((part.inside, part.outside)):
        for each in sends:
            lane = -1 if not each.needs else -2 if part.is_sum(each.slice) else each.slice % MOST_THREADS
            found.setdefault((side, lane), []).append(each)
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
        self.came_ns = 0
        """When it was there: of what is handed on. Of other messages when somebody asked, which may be later."""
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
                    self._work, self.came_ns = None, time.perf_counter_ns()
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
        sums: Sums,
    ) -> None:
        self._carrier, self._process = carrier, process
        self._arrivals, self._data, self._tag, self._sums = arrivals, data, tag, sums
        self._gone: list[tuple[Send, Work]] = []  # under way, to one target
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        for each in now:
            self._post(each)
        if later:
            self._thread = threading.Thread(target=self._send, args=(later,), daemon=True)
            self._thread.start()

    @property
    def is_gone(self) -> bool:
        """Known where a thread sends, which waits; of what was sent at once nothing is known before somebody does."""
        if self._thread is None:
            return not self._gone
        return not self._thread.is_alive() and self._error is None

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
                if each.slice in self._sums:
                    self._sums[each.slice]()
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
        self,
        pairs: Iterable[tuple[int, int]],
        process: int,
        device: torch.device,
        timeout: timedelta | None = None,
        *,
        by_members: bool = False,
    ) -> None:
        """Every process gives the same pairs of source and target in the same order, its own or not.

        ``by_members``: processes that are in no pair do not come here; else all of the default group do.
        """
        self.device, backend = device, device_backend(device)
        self._groups: dict[tuple[int, int], Any] = {}
        for pair in dict.fromkeys(pairs):
            if by_members and process not in pair:
                continue
            group = dist.new_group(list(pair), timeout=timeout, backend=backend, use_local_synchronization=by_members)
            if process in pair:
                self._groups[pair] = group
        token = torch.zeros(1, device=device)
        for (source, target), group in self._groups.items():  # both ends at once: a communicator waits for both
            if source == process:
                dist.send(token, target, group=group)
            else:
                dist.recv(token, source, group=group)
        synchronize(device)
        # One for all transfers, so that its notes may be a little late: torch has 32 streams and then hands out the same
        # again, and one that waits for an arrival must never be one that something is sent in.
        self._arriving = torch.Stream(device)

    def bind(self, part: Part) -> Carry:
        lanes = [(lane, torch.Stream(self.device)) for lane in (part.inside, part.outside) if lane]
        return lambda data, tag, sums: self._carry(part, lanes, data, sums)

    def _carry(
        self,
        part: Part,
        lanes: Sequence[tuple[list[Send], torch.Stream]],
        data: Sequence[Tensor],
        sums: Sums,
    ) -> Under:
        me = part.process
        arrivals: list[Work] = [
            dist.irecv(data[each.slice][each.start : each.stop], each.source, group=self._groups[each.source, me])
            for each in part.receives
        ]
        gone: list[Work] = []
        for lane, stream in lanes:
            stream.wait_stream(torch.accelerator.current_stream(self.device))
            with use_stream(stream):
                for number, each in enumerate(lane):
                    for need in each.needs:
                        arrivals[need].wait()
                    if each.slice in sums:
                        sums[each.slice]()
                    if number and lane[number - 1].target != each.target:
                        _wait_all(gone[-1:])
                    bytes_ = data[each.slice][each.start : each.stop]
                    gone.append(dist.isend(bytes_, each.target, group=self._groups[me, each.target]))
        with use_stream(self._arriving):
            _wait_all(arrivals)
            came = record_event()
        # Waiting lets the stream that the caller is on wait, which is the one that the bytes were made on.
        return Under(
            partial(_wait_all, arrivals),
            partial(_wait_all, gone),
            lambda: all(work.is_completed() for work in gone),
            lambda: came if arrivals else None,
        )


def _wait_all(works: Sequence[Work]) -> None:
    for work in works:
        work.wait()
