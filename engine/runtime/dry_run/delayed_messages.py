"""The messages of a dry run: real ones, handed out when the drawn links would have brought them."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from meshwave.engine.costs.collective_flows import reduction_rings
from meshwave.engine.costs.device_sizes import sizes
from meshwave.engine.document import Design
from meshwave.engine.program.action import Action, Op, message_key
from meshwave.engine.runs.dry_run import Device, Waits
from meshwave.engine.runs.live_links import LiveLinks
from meshwave.engine.runtime.communication.communicator import Communicator, PendingTensor
from meshwave.engine.runtime.communication.process_layout import ProcessLayout
from meshwave.engine.runtime.communication.world import World
from meshwave.engine.runtime.device.accelerator import synchronize_stream
from meshwave.engine.runtime.device.clock import Stamp

CARRIED = 5e8
"""Bytes/s that the loopback of this machine surely brings from process to process, all of them together."""
PART_OF_MEMORY = 0.25
"""Of this machine's memory, for the messages of all processes."""
ASKING_NS = 200_000
"""A wait that is shorter may be the cost of asking, on a busy machine: the message may have been there for long."""
PART_OF_BEING_DUE = 0.1
"""So may one that is a smaller part of the time for which the message was due when it was asked for: hardly ever does a
message come so soon after somebody turns to it who could have had it so long ago."""


def memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Board:
    """What all processes of a host can read at once: nanoseconds of the clock that they share, in a file.

    Nothing has to be wiped from step to step: what is left of an earlier one is in the past.
    """

    def __init__(self, path: Path, layout: ProcessLayout, tags: int, cells: int = 0) -> None:
        """``tags`` is how many messages a step can have; ``cells``, in how many places flows are announced."""
        lanes, stages = max(len(layout.mesh(rank)) for rank in range(len(layout.shapes))), layout.program.stages
        sizes = [tags * lanes, stages * layout.processes, layout.processes, layout.processes, cells]
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            os.ftruncate(file.fileno(), 8 * sum(sizes))  # to the same size by everybody
            self._map = mmap.mmap(file.fileno(), 8 * sum(sizes))
        parts = np.split(np.frombuffer(self._map, np.int64), np.cumsum(sizes)[:-1])
        arrives, reduced, self.norms, self.done, self.flows = parts
        self.arrives = arrives.reshape(tags, lanes)  # when what each process of a mesh sends is there
        self.reduced = reduced.reshape(stages, layout.processes)  # since when a copy's gradients are complete
        # norms: [processes] since when all gradients are reduced; done: [processes] the end of a step
        # flows: [cells] since when those who take part in the flows of shared links are ready


class DelayedCommunicator:
    """The real communicator, whose messages are handed out when the drawn links would have brought them.

    Where links are shared and not emulated, that is when the flow of the message is complete. Emulated links take their
    own time, and more where several messages share one; what they lack of the drawn latency is waited for.
    """

    def __init__(
        self,
        communicator: Communicator,
        layout: ProcessLayout,
        world: World,
        device: Device,
        waits: Waits,
        board: Board,
        joined: set[tuple[int, int]],
        *,
        real: bool,
    ) -> None:
        """``real``: links are emulated. What goes from one rank to another that are ``joined`` may come from any process
        of the first."""
        self._communicator, self._board = communicator, board
        self._layout, self._world, self._device = layout, world, device
        self._joined = joined
        program = layout.program
        self._rank, self._lane = layout.rank(world.process), layout.lane(world.process)
        ends = (program.rank == self._rank) | (program.peer == self._rank)
        rows = np.flatnonzero(program.is_send & ends).tolist()
        self._row = {(int(program.rank[row]), message_key(program.row(row))): row for row in rows}
        self._takes = {name: int(waits.ns[row]) for name, row in self._row.items()}
        self._flow = {name: -1 if real else waits.flow(row) for name, row in self._row.items()}

    def sender(self, made: Action, rank: int) -> Callable[[Tensor], None]:
        send, device, took = self._communicator.sender(made, rank), self._device, self._takes[self._rank, _name(made)]
        places, lane = self._board.arrives[self._communicator.tag(made)], self._lane

        def start(tensor: Tensor) -> None:
            places[lane] = device.send(took)  # before the message: who has it finds this there
            send(tensor)

        return start

    def receiver(self, made: Action, rank: int) -> Callable[[], PendingTensor]:
        receive, device, world = self._communicator.receiver(made, rank), self._device, self._world
        flow = self._flow[rank, _name(made)]
        due = self._due(self._communicator.tag(made), rank) if flow < 0 else partial(device.wait_for, flow)
        return lambda: DelayedMessage(receive(), device, world, due)

    def _due(self, tag: int, source: int) -> Callable[[], int]:
        """Asks when a message from a rank is there."""
        lanes = slice(None) if (source, self._rank) in self._joined else slice(self._lane, self._lane + 1)
        places = self._board.arrives[tag, lanes]
        return lambda: int(places.max())

    def flush(self) -> None:
        self._communicator.flush()


def _name(made: Action) -> tuple[bool, int, int, int]:
    """Key of a message, see :func:`message_key`."""
    onward = 1 if made.op == Op.F else -1
    return made.op == Op.F, made.stage, made.other if made.other >= 0 else made.stage + onward, made.microbatch


class DelayedMessage(PendingTensor):
    """Something on its way that is not there before it is ``due``, which is asked once it is.

    Of a reduction, which begins when the last one is ready for it, ``begins`` says when that was, given when it was due.
    """

    def __init__(
        self,
        pending: PendingTensor,
        device: Device,
        world: World,
        due: Callable[[], int],
        begins: Callable[[int], int] | None = None,
    ) -> None:
        self._pending, self._device, self._world, self._due, self._begins = pending, device, world, due, begins
        self._there_ns = self._began_ns = 0

    def wait(self) -> Tensor:
        asked = time.perf_counter_ns()
        tensor = self._pending.wait()
        synchronize_stream(self._world.device)  # NCCL lets a stream wait, and in a dry run it is the host that does
        came, due = time.perf_counter_ns(), self._due()
        self._there_ns = self._device.hold(max(due, came) if came_late(due, asked, came) else due)
        self._began_ns = self._begins(self._there_ns) if self._begins else 0
        return tensor

    @property
    def arrival(self) -> Stamp | None:
        return self._there_ns or None

    @property
    def departure(self) -> Stamp | None:
        return self._began_ns or None


class _All(PendingTensor):
    """Several reductions, of which the last to come counts."""

    def __init__(self, pending: Sequence[PendingTensor]) -> None:
        self._pending = pending

    def wait(self) -> Tensor:
        found = [pending.wait() for pending in self._pending]
        return found[-1] if found else torch.zeros(())


def came_late(due_ns: int, asked_ns: int, came_ns: int) -> bool:
    """Whether it came while it was waited for, and had not been there since it was due; 0 where nobody knows when it
    was."""
    was_due = asked_ns - due_ns if due_ns else 0
    return came_ns - asked_ns > max(ASKING_NS, PART_OF_BEING_DUE * was_due)


Rings = Mapping[int, Sequence[tuple[tuple[int, ...], float]]]
"""By stage, the processes that reduce gradients together, and bytes."""


def rings_of(design: Design, layout: ProcessLayout, layers: tuple[int, ...]) -> Rings:
    """Who reduces which gradients of each stage that is reduced, in one order for all processes."""
    process = dict(
        zip((device for mesh in design.meshes for device in mesh.devices), range(layout.processes), strict=True)
    )
    rings = reduction_rings(design, layout.program, sizes(design, layout.program, layers))
    return {
        stage: [
            (tuple(process[device] for device in members), size)
            for members, size in rings[stage]
            if len(members) > 1 and size > 0
        ]
        for stage in layout.reduced_stages()
    }


class Reductions:
    """In place of the update: gradients are reduced in the modelled time, by messages as large as fit into it."""

    def __init__(
        self,
        layout: ProcessLayout,
        world: World,
        communicator: Communicator,
        device: Device,
        waits: Waits,
        board: Board,
        rings: Rings,
        links: LiveLinks | None = None,
        *,
        real: bool,
    ) -> None:
        """``real``: the links are as drawn, so that the messages are too, and nothing is held."""
        self._layout, self._world, self._communicator, self._device, self._board = (
            layout,
            world,
            communicator,
            device,
            board,
        )
        self._real, self._links = real, links
        program, mine = layout.program, layout.program.rows(layout.rank(world.process))
        rows = [row for row in range(mine.start, mine.stop) if program.op[row] == Op.REDUCE_GRAD]
        self._took = {int(program.stage[row]): int(waits.ns[row]) for row in rows}
        self._flow = {int(program.stage[row]): waits.flow(row) for row in rows} if links else {}
        self._most = PART_OF_MEMORY * memory_bytes() / (layout.processes * max(1, len(rows)))
        self._flat = {
            stage: [
                (members, torch.zeros(self._numbers(stage, len(members), size), device=world.device))
                for members, size in rings[stage]
                if world.process in members
            ]
            for stage in self._took
        }
        self._reducing: list[tuple[int, PendingTensor]] = []
        self._done_ns = 0

    def _numbers(self, stage: int, members: int, size: float) -> int:
        """How many are summed up, of gradients of so many bytes."""
        fits = CARRIED * self._took[stage] / 1e9 / (2 * members)
        return max(1, int(min(self._most, size if self._real else min(size, fits))) // 4)

    def reduce(self, stage: int) -> None:
        """This copy of the stage is complete."""
        self._board.reduced[stage, self._world.process] = self._device.free_ns
        if self._links is not None and self._flow[stage] >= 0:
            place = self._holders(stage).index(self._world.process)
            self._links.announce(self._flow[stage], place, self._device.free_ns)
        begun = [self._communicator.reduce(stage, members, flat) for members, flat in self._flat[stage]]
        self._reducing.append((stage, _All(begun)))

    def collect(self) -> dict[int, PendingTensor]:
        """Wait until all are reduced, one after the other, and those of all processes where they are clipped."""
        self._done_ns, found = 0, dict[int, PendingTensor]()
        for stage, pending in self._reducing:
            found[stage] = DelayedMessage(pending, self._device, self._world, *self._held_until(stage))
            found[stage].wait()
        self._reducing.clear()
        if self._layout.program.clips:
            self._board.norms[self._world.process] = max(self._device.free_ns, self._done_ns)
            self._communicator.total([0.0])
            self._device.hold(int(self._board.norms.max()))
        return found

    def _holders(self, stage: int) -> list[int]:
        return [process for rank in self._layout.program.ranks_of(stage) for process in self._layout.mesh(rank)]

    def _held_until(self, stage: int) -> tuple[Callable[[], int], Callable[[int], int] | None]:
        """When a reduction is there, and when it began, where links do not tell that themselves."""
        if self._real:
            return lambda: 0, None
        links, flow = self._links, self._flow.get(stage, -1)
        if links is None or flow < 0:
            return partial(self._due, stage), lambda there_ns: there_ns - self._took[stage]
        return partial(self._complete, flow), lambda there_ns: links.sent(flow)

    def _complete(self, flow: int) -> int:
        self._done_ns = self._device.wait_for(flow)
        return self._done_ns

    def _due(self, stage: int) -> int:
        """Once every copy is complete and the reduction before is done, it takes its time."""
        ready = int(self._board.reduced[stage, self._holders(stage)].max())
        self._done_ns = max(self._done_ns, ready) + self._took[stage]
        return self._done_ns

    def apply(self) -> None:
        """There are no weights."""
