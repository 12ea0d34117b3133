"""Transports of bytes between processes: gloo through host memory, or a backend from device to device."""

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

from meshwave.engine.errors import RunError
from meshwave.engine.findings import Refusal
from meshwave.engine.resharding import Transfer
from meshwave.engine.runtime.device.accelerator import device_backend, record_event, synchronize, use_stream
from meshwave.engine.runtime.device.clock import Stamp
from meshwave.engine.runtime.resharding.process_part import ProcessPart, Receive, Send

Work = Any  # torch.distributed's handle of an asynchronous operation
KERNEL_BUFFER_BYTES = 1 << 16
"""Message size below which a message fits into the kernel's buffers, so that the next message need not wait for it."""
MAX_FORWARDING_LANES = 8
"""Maximum number of threads that forward slices within a host, and also to other hosts; more slices share threads."""
Sums = Mapping[int, Callable[[], None]]
"""Functions that compute the sum of a slice once after all its partial sums have arrived, by index of the slice."""


class MessagesInFlight(NamedTuple):
    """Messages of a started transfer, as functions that wait for them or query their state."""

    wait_received: Callable[[], None]
    wait_until_sent: Callable[[], None]
    is_sent: Callable[[], bool]  # returns True if all messages are known to be sent, without waiting
    arrival: Callable[
        [], Stamp | None
    ]  # returns the arrival of the last message, None if unknown; valid after wait_received


StartMessages = Callable[[Sequence[Tensor], int, Sums], MessagesInFlight]
"""Function that starts all messages of a process; see :meth:`Transport.bind`."""


class Transport(ABC):
    """Transport of bytes between processes."""

    device: torch.device
    """Device of the bytes that the transport sends and receives."""

    @abstractmethod
    def bind(self, part: ProcessPart) -> StartMessages:
        """Return a function that starts all messages of a process.

        Its arguments are the bytes of each slice, which must stay alive until all messages are sent; the first of
        ``part.tag_count`` tags that no other transfer in flight uses; and the functions that compute slices that are sums.
        """


def make_transport(
    planned: Transfer, process: int, device: torch.device, timeout: timedelta | None, *, members_only: bool = False
) -> Transport:
    """Return a transport from device to device if the default group has a backend for it, else gloo.

    If ``members_only``, only the processes of the transfer call this function; otherwise all processes of the default
    group do.
    """
    if f"{device.type}:{device_backend(device)}" in str(dist.get_backend_config()):
        pairs = sorted({(move.source, move.target) for move in planned.moves})
        return DeviceTransport(pairs, process, device, timeout, members_only=members_only)
    return GlooTransport(timeout)


class GlooTransport(Transport):
    """Transport of host memory with gloo. A send waits for its receive, and completes when the kernel has the bytes.

    A thread sends the messages that cannot be sent at once, because their data has not arrived yet or another message
    precedes them. Gloo releases the GIL while it waits.
    """

    def __init__(self, timeout: timedelta | None = None) -> None:
        """Set up the transport in the default group.

        Raises:
            InputError: the default group has no gloo backend.
        """
        self.device = torch.device("cpu")
        self._timeout = timeout
        try:
            # torch.distributed's own send and receive check their arguments again for every message.
            self._gloo: Any = dist.distributed_c10d._get_default_group()._get_backend(self.device)
        except RuntimeError as error:
            raise Refusal("no_gloo_backend") from error

    def bind(self, part: ProcessPart) -> StartMessages:
        """See :meth:`Transport.bind`."""
        lanes = [_split_ready(lane) for lane in _send_lanes(part)]
        return lambda data, tag, sums: self._start(part, lanes, data, tag, sums)

    def send(self, data: Tensor, target: int, tag: int) -> Work:
        """Start to send bytes to a process."""
        return self._gloo.send([data], target, tag)

    def receive(self, data: Tensor, source: int, tag: int) -> Work:
        """Start to receive bytes from a process."""
        return self._gloo.recv([data], source, tag)

    def wait(self, work: Work) -> None:
        """Wait for a message. A received message may be waited for only once."""
        work.wait() if self._timeout is None else work.wait(self._timeout)

    def _start(
        self,
        part: ProcessPart,
        lanes: Sequence[tuple[list[Send], list[Send]]],
        data: Sequence[Tensor],
        tag: int,
        sums: Sums,
    ) -> MessagesInFlight:
        arrivals = [_Arrival(self, part.process, each, data[each.slice], tag) for each in part.receives]
        lanes_in_flight = [_Lane(self, part.process, *lane, arrivals, data, tag, sums) for lane in lanes]

        def wait_received() -> None:
            for arrival in arrivals:
                arrival.wait()

        def wait_until_sent() -> None:
            for lane in lanes_in_flight:
                lane.finish()

        def is_sent() -> bool:
            return all(lane.is_sent for lane in lanes_in_flight)

        def last_arrival() -> Stamp | None:
            return max((arrival.arrived_ns for arrival in arrivals), default=None)

        return MessagesInFlight(wait_received, wait_until_sent, is_sent, last_arrival)


def _send_lanes(part: ProcessPart) -> list[list[Send]]:
    """Return the sends of a process in lanes; each lane is sent in order, independently of the others.

    Slices that the process owns share one lane within the host and one to other hosts, and so do the sums that it
    computes. A forwarded slice has a lane of its own; in a shared lane it would wait for a whole other slice.
    """
    found: dict[tuple[int, int], list[Send]] = {}
    for side, sends in enumerate((part.inside, part.outside)):
        for each in sends:
            lane = -1 if not each.needs else -2 if part.is_sum(each.slice) else each.slice % MAX_FORWARDING_LANES
            found.setdefault((side, lane), []).append(each)
    return list(found.values())


def _split_ready(lane: list[Send]) -> tuple[list[Send], list[Send]]:
    """Split a lane into messages that can be sent at once and messages that must wait."""
    size = 0
    for number, each in enumerate(lane):
        size += each.stop - each.start
        if each.needs or (each.target != lane[0].target and size > KERNEL_BUFFER_BYTES):
            return lane[:number], lane[number:]
    return lane, []


class _Arrival:
    """Message to be received. Several threads may wait for it, but gloo allows only one wait."""

    def __init__(self, transport: GlooTransport, process: int, receive: Receive, data: Tensor, tag: int) -> None:
        self._transport = transport
        self._failure = (
            f"process {process} did not receive bytes {receive.start}:{receive.stop} of a slice from process "
            f"{receive.source}"
        )
        self._lock = threading.Lock()
        self._error: RunError | None = None
        self._work: Work = None
        self.arrived_ns = 0
        """Time of arrival in ns of the process's clock if this process forwards the message, otherwise time of the
        first wait."""
        try:
            self._work = transport.receive(data[receive.start : receive.stop], receive.source, tag + receive.tag)
        except RuntimeError as error:  # the connection is closed
            self._error = RunError(f"{self._failure}: {error}")

    def wait(self) -> None:
        """Wait until the message has arrived.

        Raises:
            RunError: the message did not arrive.
        """
        with self._lock:
            if self._work is not None and self._error is None:
                try:
                    self._transport.wait(self._work)
                    self._work, self.arrived_ns = None, time.perf_counter_ns()
                except Exception as error:
                    self._error = RunError(f"{self._failure}: {error}")
            if self._error is not None:
                raise self._error


class _Lane:
    """Messages that a process sends in order: the first ones at once, the others in a thread."""

    def __init__(
        self,
        transport: GlooTransport,
        process: int,
        now: Sequence[Send],
        later: Sequence[Send],
        arrivals: Sequence[_Arrival],
        data: Sequence[Tensor],
        tag: int,
        sums: Sums,
    ) -> None:
        self._transport, self._process = transport, process
        self._arrivals, self._data, self._tag, self._sums = arrivals, data, tag, sums
        self._in_flight: list[tuple[Send, Work]] = []  # sends in flight to one target
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        for each in now:
            self._post_send(each)
        if later:
            self._thread = threading.Thread(target=self._send_later, args=(later,), daemon=True)
            self._thread.start()

    @property
    def is_sent(self) -> bool:
        """True if all data is known to be sent. Without a thread, this is known only after :meth:`finish`."""
        if self._thread is None:
            return not self._in_flight
        return not self._thread.is_alive() and self._error is None

    def finish(self) -> None:
        """Wait until all messages are sent.

        Raises:
            RunError: a message could not be sent.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error
        self._wait_in_flight()

    def _post_send(self, each: Send) -> None:
        data = self._data[each.slice][each.start : each.stop]
        try:
            self._in_flight.append((each, self._transport.send(data, each.target, self._tag + each.tag)))
        except RuntimeError as error:
            raise self._send_error(each, error) from error

    def _send_later(self, later: Sequence[Send]) -> None:
        try:
            for each in later:
                for need in each.needs:
                    self._arrivals[need].wait()
                if each.slice in self._sums:
                    self._sums[each.slice]()
                if self._in_flight and self._in_flight[-1][0].target != each.target:
                    self._wait_in_flight()
                self._post_send(each)
            self._wait_in_flight()
        except Exception as error:
            self._error = error

    def _wait_in_flight(self) -> None:
        for each, work in self._in_flight:
            try:
                self._transport.wait(work)
            except Exception as error:
                raise self._send_error(each, error) from error
        self._in_flight.clear()

    def _send_error(self, each: Send, error: Exception) -> RunError:
        range_ = f"bytes {each.start}:{each.stop} of a slice"
        return RunError(f"process {self._process} could not send {range_} to process {each.target}: {error}")


class DeviceTransport(Transport):
    """Transport with the device's backend, such as NCCL: one communicator per direction and pair of processes.

    The backend has no tags: messages of a pair are matched by their order in the plan, so all processes start transfers
    between the same processes in the same order. The host does not wait: a lane is a stream, which waits for the data
    that it forwards.
    """

    def __init__(
        self,
        pairs: Iterable[tuple[int, int]],
        process: int,
        device: torch.device,
        timeout: timedelta | None = None,
        *,
        members_only: bool = False,
    ) -> None:
        """Create the communicators.

        Args:
            pairs: (source, target) of all messages, in the same order on every process.
            process: this process.
            device: device of this process.
            timeout: timeout of one message; None for that of the default group.
            members_only: True if only processes in ``pairs`` call this; otherwise all processes of the default group
                do.
        """
        self.device, backend = device, device_backend(device)
        self._groups: dict[tuple[int, int], Any] = {}
        for pair in dict.fromkeys(pairs):
            if members_only and process not in pair:
                continue
            group = dist.new_group(list(pair), timeout=timeout, backend=backend, use_local_synchronization=members_only)
            if process in pair:
                self._groups[pair] = group
        token = torch.zeros(1, device=device)
        # The first message creates a communicator and waits for both ends, so all create them here, in one order.
        for (source, target), group in self._groups.items():
            if source == process:
                dist.send(token, target, group=group)
            else:
                dist.recv(token, source, group=group)
        synchronize(device)
        # All transfers share one stream for arrivals, although their stamps may be a little late: torch reuses its 32
        # streams, and a stream that waits for an arrival must not be one that sends.
        self._arriving = torch.Stream(device)

    def bind(self, part: ProcessPart) -> StartMessages:
        """See :meth:`Transport.bind`."""
        lanes = [(lane, torch.Stream(self.device)) for lane in (part.inside, part.outside) if lane]
        return lambda data, tag, sums: self._start(part, lanes, data, sums)

    def _start(
        self,
        part: ProcessPart,
        lanes: Sequence[tuple[list[Send], torch.Stream]],
        data: Sequence[Tensor],
        sums: Sums,
    ) -> MessagesInFlight:
        me = part.process
        arrivals: list[Work] = [
            dist.irecv(data[each.slice][each.start : each.stop], each.source, group=self._groups[each.source, me])
            for each in part.receives
        ]
        sends: list[Work] = []
        for lane, stream in lanes:
            stream.wait_stream(torch.accelerator.current_stream(self.device))
            with use_stream(stream):
                for number, each in enumerate(lane):
                    for need in each.needs:
                        arrivals[need].wait()
                    if each.slice in sums:
                        sums[each.slice]()
                    if number and lane[number - 1].target != each.target:
                        _wait_all(sends[-1:])
                    bytes_ = data[each.slice][each.start : each.stop]
                    sends.append(dist.isend(bytes_, each.target, group=self._groups[me, each.target]))
        with use_stream(self._arriving):
            _wait_all(arrivals)
            arrival = record_event()
        # These waits block the caller's stream, which is the one that the bytes were allocated on.
        return MessagesInFlight(
            partial(_wait_all, arrivals),
            partial(_wait_all, sends),
            lambda: all(work.is_completed() for work in sends),
            lambda: arrival if arrivals else None,
        )


def _wait_all(works: Sequence[Work]) -> None:
    for work in works:
        work.wait()
