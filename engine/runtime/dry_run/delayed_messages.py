"""Messages and reductions of a dry run: real messages, delivered at the time at which the modelled links deliver them."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwave.engine.costs.collective_flows import gather_rings, reduction_rings
from meshwave.engine.costs.device_sizes import device_sizes
from meshwave.engine.costs.gradient_buckets import bucket_sizes
from meshwave.engine.costs.sharding import reduction_rounds
from meshwave.engine.document import Design
from meshwave.engine.machine import total_memory_bytes
from meshwave.engine.program.action import Action, Op, message_key
from meshwave.engine.runs.dry_run import Device, Waits
from meshwave.engine.runs.live_links import LiveLinks
from meshwave.engine.runtime.communication.communicator import Communicator, PendingTensor
from meshwave.engine.runtime.communication.process_layout import ProcessLayout
from meshwave.engine.runtime.communication.world import World
from meshwave.engine.runtime.device.accelerator import synchronize_stream
from meshwave.engine.runtime.device.clock import Stamp

LOOPBACK_BYTES_PER_S = 5e8
"""Conservative bandwidth of messages between processes on this machine in bytes/s, summed over all processes."""
MESSAGE_MEMORY_FRACTION = 0.25
"""Fraction of this machine's memory that messages of all processes may occupy."""
MIN_LATE_NS = 200_000
"""Shortest wait that counts as lateness. A shorter one may be overhead of a busy machine, for a message that had
arrived."""
MIN_LATE_FRACTION = 0.1
"""Shortest wait that counts as lateness, as a fraction of the time since the message was due. A shorter one may be
overhead too, because such a message has usually arrived before."""


class SharedTimes:
    """Times in nanoseconds that all processes of a host share through a file; they read the same clock.

    The file is not reset between steps, because times of an earlier step are in the past.

    Attributes:
        arrivals: ``[tags, lanes]`` arrival times of the messages that each process of a mesh sends.
        gradients_ready: ``[stages, buckets, processes]`` times at which the gradients of a process are complete.
        norm_ready: ``[processes]`` times at which all gradients are reduced.
        step_ends: ``[processes]`` ends of the last step.
        gathers_ready: ``[gathers, processes]`` times at which a process starts each of its gathers.
        flows_ready: ``[cells]`` times at which the members of the flows on shared links are ready.
    """

    def __init__(self, path: Path, layout: ProcessLayout, tags: int, cells: int = 0) -> None:
        """Map the file into memory.

        Args:
            path: the file; the first process creates it.
            layout: the layout of the processes.
            tags: the maximum number of messages in a step.
            cells: the number of cells in which processes announce flows.
        """
        lanes, stages = max(len(layout.mesh(rank)) for rank in range(len(layout.shapes))), layout.program.stages
        program = layout.program
        unshards = program.rank[program.op == Op.UNSHARD]
        gathers, processes = int(np.bincount(unshards).max(initial=0)), layout.processes
        buckets = int(program.bucket.max(initial=0)) + 1
        lengths = [tags * lanes, stages * buckets * processes, gathers * processes, processes, processes, cells]
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            os.ftruncate(file.fileno(), 8 * sum(lengths))  # all processes set the same size
            self._map = mmap.mmap(file.fileno(), 8 * sum(lengths))
        parts = np.split(np.frombuffer(self._map, np.int64), np.cumsum(lengths)[:-1])
        arrivals, gradients_ready, gathers_ready, self.norm_ready, self.step_ends, self.flows_ready = parts
        self.arrivals = arrivals.reshape(tags, lanes)
        self.gradients_ready = gradients_ready.reshape(stages, buckets, processes)
        self.gathers_ready = gathers_ready.reshape(gathers, processes)


class DelayedCommunicator:
    """Communicator whose real messages are delivered at the time at which the modelled links deliver them.

    On shared links that are not emulated, a message is delivered when its simulated flow is complete. Emulated links
    delay messages themselves; the wait only adds the part of the modelled latency that they lack.
    """

    def __init__(
        self,
        communicator: Communicator,
        layout: ProcessLayout,
        world: World,
        device: Device,
        waits: Waits,
        shared: SharedTimes,
        resharded: set[tuple[int, int]],
        *,
        emulates_links: bool,
    ) -> None:
        """Wrap a communicator.

        Args:
            communicator: sends and receives the messages.
            layout: the layout of the processes.
            world: this process and its connection to the others.
            device: the simulated device, which waits.
            waits: the modelled times.
            shared: the times that processes share.
            resharded: (source rank, target rank) of boundaries where a tensor may come from any process of the source.
            emulates_links: True if the links of this run are emulated.
        """
        self._communicator, self._shared = communicator, shared
        self._layout, self._world, self._device = layout, world, device
        self._resharded = resharded
        program = layout.program
        self._rank, self._lane = layout.rank(world.process), layout.index_in_rank(world.process)
        ends = (program.rank == self._rank) | (program.peer == self._rank)
        rows = np.flatnonzero(program.is_send & ends).tolist()
        row_of = {(int(program.rank[row]), message_key(program.row(row))): row for row in rows}
        self._transfer_ns = {name: int(waits.ns[row]) for name, row in row_of.items()}
        self._flow = {name: -1 if emulates_links else waits.flow(row) for name, row in row_of.items()}

    def send_function(self, producer: Action, rank: int) -> Callable[[Tensor], None]:
        """Return a function that publishes the arrival time of a tensor and starts to send it."""
        send, device = self._communicator.send_function(producer, rank), self._device
        transfer_ns = self._transfer_ns[self._rank, _producer_message_key(producer)]
        arrivals, lane = self._shared.arrivals[self._communicator.tag(producer)], self._lane

        def start(tensor: Tensor) -> None:
            arrivals[lane] = device.send(transfer_ns)  # before the message, so that its receiver finds the time
            send(tensor)

        return start

    def receive_function(self, producer: Action, rank: int) -> Callable[[], PendingTensor]:
        """Return a function that starts to receive a tensor from a rank."""
        receive, device, world = self._communicator.receive_function(producer, rank), self._device, self._world
        flow = self._flow[rank, _producer_message_key(producer)]
        due = (
            self._bind_due_time(self._communicator.tag(producer), rank)
            if flow < 0
            else partial(device.wait_for_flow, flow)
        )
        return lambda: DelayedTensor(receive(), device, world, due)

    def _bind_due_time(self, tag: int, source: int) -> Callable[[], int]:
        """Return a function that returns the time at which a message from a rank is due, in nanoseconds."""
        is_resharded = (source, self._rank) in self._resharded
        lanes = slice(None) if is_resharded else slice(self._lane, self._lane + 1)
        arrivals = self._shared.arrivals[tag, lanes]
        return lambda: int(arrivals.max())

    def flush(self) -> None:
        """Wait until all messages of this step are sent."""
        self._communicator.flush()


def _producer_message_key(producer: Action) -> tuple[bool, int, int, int]:
    """Return the key of the message that carries the tensor of ``producer``; see :func:`message_key`."""
    step = 1 if producer.op == Op.F else -1
    consumer = producer.other if producer.other >= 0 else producer.stage + step
    return producer.op == Op.F, producer.stage, consumer, producer.microbatch


class DelayedTensor(PendingTensor):
    """Received tensor that is not delivered before it is due."""

    def __init__(
        self,
        pending: PendingTensor,
        device: Device,
        world: World,
        due: Callable[[], int],
        departure: Callable[[int], int] | None = None,
    ) -> None:
        """Wrap a tensor in flight.

        Args:
            pending: the tensor.
            device: the simulated device, which waits.
            world: this process and its connection to the others.
            due: returns the time at which the tensor is due, after it has arrived.
            departure: returns the start time of a reduction, given the time at which it was due.
        """
        self._pending, self._device, self._world, self._due = pending, device, world, due
        self._find_departure = departure
        self._arrival_ns = self._departure_ns = 0

    def wait(self) -> Tensor:
        """Wait until the tensor has arrived and is due, and return it."""
        requested = time.perf_counter_ns()
        tensor = self._pending.wait()
        synchronize_stream(self._world.device)
        arrived, due = time.perf_counter_ns(), self._due()
        self._arrival_ns = self._device.wait_for_input(max(due, arrived) if is_late(due, requested, arrived) else due)
        self._departure_ns = self._find_departure(self._arrival_ns) if self._find_departure else 0
        return tensor

    @property
    def arrival(self) -> Stamp | None:
        """Time at which the message was due, or at which it arrived if that was later."""
        return self._arrival_ns or None

    @property
    def departure(self) -> Stamp | None:
        """Time at which the reduction started; None for a message."""
        return self._departure_ns or None


class Collectives(PendingTensor):
    """Group of collectives, complete when the last one is."""

    def __init__(self, pending: Sequence[PendingTensor]) -> None:
        self._pending = pending

    def wait(self) -> Tensor:
        """Wait until all collectives are complete, and return the last result."""
        found = [pending.wait() for pending in self._pending]
        return found[-1] if found else torch.zeros(())


def is_late(due_ns: int, requested_ns: int, arrived_ns: int) -> bool:
    """Return True if a tensor arrived during the wait for it, False if it had arrived before.

    Args:
        due_ns: time at which the tensor was due; 0 if unknown.
        requested_ns: start of the wait.
        arrived_ns: end of the wait.
    """
    since_due = requested_ns - due_ns if due_ns else 0
    return arrived_ns - requested_ns > max(MIN_LATE_NS, MIN_LATE_FRACTION * since_due)


CollectiveGroups = Mapping[tuple[int, int], Sequence[tuple[tuple[int, ...], float]]]
"""Groups of processes that reduce the gradients or gather the weights of each stage and bucket, with the size in bytes."""


def collective_groups(design: Design, layout: ProcessLayout, layers: tuple[int, ...], op: Op) -> CollectiveGroups:
    """Return the groups of processes that run the collectives ``op`` of each stage and bucket.

    The order is the same on all processes. The size is that of an all-reduce whose ring sends as many bytes.
    """
    process = dict(zip(design.process_devices, range(layout.processes), strict=True))
    find_rings = gather_rings if op == Op.UNSHARD else reduction_rings
    held = device_sizes(design, layout.program, layers)
    parts, share = [held], 0.5
    if op == Op.REDUCE_GRAD:
        parts, share = bucket_sizes(design, layers, held), reduction_rounds(design) / 2
    rings = [find_rings(design, layout.program, each) for each in parts]
    return {
        (stage, bucket): [
            (tuple(process[device] for device in members), share * size)
            for members, size in rings[bucket][stage]
            if len(members) > 1 and size > 0
        ]
        for stage, bucket in layout.collectives(op)
    }


def representative_elements(
    size: float, wait_ns: int, members: int, processes: int, *, emulates_links: bool, at_once: int = 1
) -> int:
    """Return the number of float32 elements that a collective of ``size`` bytes and ``wait_ns`` sends.

    Without emulated links, this machine must be able to send them in that time. All ``processes`` hold the tensors of
    ``at_once`` collectives.
    """
    limits = [size, MESSAGE_MEMORY_FRACTION * total_memory_bytes() / (processes * at_once)]
    if not emulates_links:
        limits.append(LOOPBACK_BYTES_PER_S * wait_ns / 1e9 / (2 * members))
    return max(1, int(min(limits)) // 4)


@dataclass
class WaitingCollectives:
    """Collectives of the stages of this process: real all-reduces that are complete at the modelled time.

    Their messages are as large as this machine can send in that time. Over emulated links they have their full size and
    are not delayed.
    """

    layout: ProcessLayout
    world: World
    communicator: Communicator
    device: Device
    waits: Waits
    shared: SharedTimes
    groups: CollectiveGroups
    links: LiveLinks | None = None
    emulates_links: bool = field(kw_only=True)

    op: ClassVar[Op]
    """Action that starts the collectives."""

    def __post_init__(self) -> None:
        """Allocate the messages."""
        program, process = self.layout.program, self.world.process
        rows = program.rows(self.layout.rank(process))
        self._rows = [row for row in range(rows.start, rows.stop) if program.op[row] == self.op]
        self._row_of = {(int(program.stage[row]), int(program.bucket[row])): row for row in self._rows}
        self._flats = {
            part: [
                (members, self._make_message(size, int(self.waits.ns[row]), len(members), len(self._row_of)))
                for members, size in self.groups[part]
                if process in members
            ]
            for part, row in self._row_of.items()
        }
        self._last_end_ns = 0  # end of the latest collective that a computation has waited for

    def _make_message(self, size: float, wait_ns: int, members: int, at_once: int) -> Tensor:
        elements = representative_elements(
            size,
            wait_ns,
            members,
            self.layout.processes,
            emulates_links=self.emulates_links,
            at_once=at_once,
        )
        return torch.zeros(elements, device=self.world.device)

    def _start(self, row: int, place: int, ready: NDArray[np.int64], members: list[int]) -> DelayedTensor:
        """Publish the time at which this process is ready, and start the collectives of a row.

        Args:
            row: row of the action.
            place: place of this process among the members of a flow.
            ready: times at which the processes are ready, by process.
            members: processes that must be ready before the collectives start.
        """
        program, flow = self.layout.program, self.waits.flow(row)
        stage, bucket = int(program.stage[row]), int(program.bucket[row])
        ready[self.world.process] = self.device.free_ns
        if self.links is not None and flow >= 0:
            self.links.announce(flow, place, self.device.free_ns)
        started = [self.communicator.start_all_reduce(stage, *each) for each in self._flats[stage, bucket]]
        times = self._bind_times(row, flow, ready, members)
        return DelayedTensor(Collectives(started), self.device, self.world, *times)

    def _bind_times(
        self, row: int, flow: int, ready: NDArray[np.int64], members: list[int]
    ) -> tuple[Callable[[], int], Callable[[int], int] | None]:
        """Return functions for the due time and the start time; over emulated links collectives are due at once."""
        links, wait_ns = self.links, int(self.waits.ns[row])
        if self.emulates_links:
            return lambda: 0, None
        if links is None or flow < 0:
            return partial(self._due_ns, wait_ns, ready, members), lambda due_ns: due_ns - wait_ns
        return partial(self._wait_for_flow, flow), lambda due_ns: links.start_ns(flow)

    def _due_ns(self, wait_ns: int, ready: NDArray[np.int64], members: list[int]) -> int:
        """Return the end of a collective in ns. It starts when its members are ready and the previous one is complete.

        Computations wait for collectives in the order in which these start.
        """
        self._last_end_ns = max(int(ready[members].max()), self._last_end_ns) + wait_ns
        return self._last_end_ns

    def _wait_for_flow(self, flow: int) -> int:
        self._last_end_ns = self.device.wait_for_flow(flow)
        return self._last_end_ns


class WaitingUpdate(WaitingCollectives):
    """Update step of a dry run: reduces gradients in the modelled time and updates no weights."""

    op = Op.REDUCE_GRAD

    def __post_init__(self) -> None:
        """Allocate the messages."""
        super().__post_init__()
        self._reducing: dict[tuple[int, int], PendingTensor] = {}

    def start_reduction(self, stage: int, bucket: int = -1) -> None:
        """Publish the time at which the gradients of this process are complete, and start to reduce them."""
        ranks = self.layout.program.ranks_of(stage)
        members = [process for rank in ranks for process in self.layout.mesh(rank)]
        part = stage, max(bucket, 0)
        place, ready = members.index(self.world.process), self.shared.gradients_ready[part]
        self._reducing[stage, bucket] = self._start(self._row_of[part], place, ready, members)

    def collect_gradients(self) -> dict[tuple[int, int], PendingTensor]:
        """Wait for all reductions in order, and for the reductions of all processes if gradients are clipped."""
        found, self._reducing, self._last_end_ns = self._reducing, {}, 0
        for pending in found.values():
            pending.wait()
        if self.layout.program.clips:
            self.shared.norm_ready[self.world.process] = max(self.device.free_ns, self._last_end_ns)
            self.communicator.sum_over_processes([0.0])
            self.device.wait_for_input(int(self.shared.norm_ready.max()))
        return found

    def apply(self) -> None:
        """Do nothing: there are no weights."""
