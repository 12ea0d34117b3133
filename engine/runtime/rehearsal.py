"""A rehearsal: the processes of a run play its program over the real wire, and wait where they would compute.

Tensors have their true shapes and dtypes, as far as this machine can move them in the modelled time. Where the
network is not emulated, a message that the drawn link would have brought later is held until then; who sends
it says when that is on a :class:`Board` that all processes share.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.cost import Costs, estimate
from engine.cost.crossings import tensor_of
from engine.design import Design
from engine.program.action import SENDS, Action, Op, backward, carried, forward
from engine.program.program import Program
from engine.rehearse import Device, Lengths, Waits, come_first, in_words
from engine.runtime.clock import Clock, HostClock, Stamp
from engine.runtime.deferred import Due
from engine.runtime.executor import Executor, Measured, Slot
from engine.runtime.job import Job
from engine.runtime.layout import Layout
from engine.runtime.stages import MESSAGE_DTYPES, Saved, Tensors
from engine.runtime.streams import Streams
from engine.runtime.trainer import routes
from engine.runtime.wire import Message, Pending, Wire
from engine.runtime.world import World
from engine.units import quantity

CARRIED = 5e8
"""Bytes/s that the loopback of this machine surely brings from process to process, all of them together."""
SMALLEST_BYTES = 2**14
"""A message that is this small costs no more than an empty one."""
PART_OF_AN_ACTION = 0.01
"""How late a message may be that takes no time by the model, as a share of the shortest action."""
PART_OF_MEMORY = 0.25
"""Of this machine's memory, for the messages of all processes."""
AT_ONCE = 8
"""Messages that a process holds at once, at a guess."""
ASKING_NS = 200_000
"""A wait that is shorter may be the cost of asking, on a busy machine: the message may have been there for long."""
PART_OF_BEING_DUE = 0.1
"""So may one that is a smaller part of the time for which the message was due when it was asked for: hardly ever does a
message come so soon after somebody turns to it who could have had it so long ago."""
LEAD_NS = 500_000
"""From the word of the last process to the start of a step, for each process: all have heard it by then."""


@dataclass(frozen=True)
class Rehearsed:
    """One step: how long it took on the modelled clock, and what this process measured, counted from the start of
    the first step, so that it can be told in whole nanoseconds of any scale."""

    seconds: float
    measured: Measured


class Rehearser:
    """One process of a rehearsal: its waits, its place on the board, its executor.

    ``notes`` say what kind of rehearsal it is, and ``unit`` is that of its times.
    """

    def __init__(self, job: Job, world: World, folder: Path) -> None:
        assert job.rehearsal is not None and job.rehearsal.scale is not None, "settled when it was launched"
        design, program, layout = job.design, job.program, job.layout
        costs, self._scale = estimate(design, program), job.rehearsal.scale
        self.unit = costs.unit
        self._world, self._process = world, world.process
        lengths = Lengths.of(program, costs)
        smaller, sizes = as_far_as_they_fit(job, costs, self._scale, lengths)
        self._device = Device(costs.transfer_model)
        rows = tensor_of(smaller).shape[0] // layout.shape(world.process).copies
        shape = rows, smaller.model.sequence, smaller.model.hidden
        message = Message(shape, MESSAGE_DTYPES[design.training.precision])
        sharing = list(dict.fromkeys(layout.sharing()))
        routed = routes(smaller, layout)
        wire = world.wire(layout, message, sharing, routed)
        self._board = Board(folder / "board.bin", layout, wire.tags)
        waits = Waits.of(program, costs, self._scale)
        rank = layout.rank(world.process)
        joined = {(source, target) for source, target, _ in routed}
        own = waits.of_rank(rank)
        held = HeldWire(wire, layout, world, self._device, own, self._board, joined)
        stages = {stage: WaitingStage(program, stage, message, world.device) for stage in program.stages_of(rank)}
        reduced = Reductions(layout, world, wire, self._device, waits, self._board, costs, real=job.shaped)
        self._wire = wire
        self._executor = WaitingExecutor(layout, world.process, stages, held, reduced, self._device, own)
        nothing = torch.empty(0)
        self._batch = dict.fromkeys(layout.microbatches(rank), (nothing, nothing))
        self._start_ns = self._origin_ns = 0
        self.notes = [
            in_words(lengths, self._scale, costs.unit),
            sizes,
            *([] if come_first(_threads()) else [COMES_LAST]),
        ]

    def step(self) -> Rehearsed:
        """Play one step; all processes begin and end it together."""
        if not self._start_ns:
            self._meet()
            self._origin_ns = self._start_ns
        self._device.start(self._start_ns)
        began = self._start_ns
        measured = self._executor.run(self._batch)
        origin = self._origin_ns
        measured = replace(measured, start=measured.start - origin, end=measured.end - origin)
        return Rehearsed((self._meet() - began) / 1e9 / self._scale, measured)

    def _meet(self) -> int:
        """Wait for the others and agree on when the next step starts; returns when the last one was done."""
        self._board.done[self._process] = time.perf_counter_ns()
        self._wire.total([0.0])
        last = int(self._board.done.max())
        self._start_ns = last + LEAD_NS * (1 + self._world.size)
        return last


def _threads() -> list[int]:
    """Those of this process, of its messages too."""
    tasks = Path("/proc/self/task")
    return [int(task.name) for task in tasks.iterdir()] if tasks.is_dir() else [0]


COMES_LAST = (
    "other work of this machine may delay the waits, since this user may not let them come first; keep it quiet"
)


def as_far_as_they_fit(job: Job, costs: Costs, scale: float, lengths: Lengths) -> tuple[Design, str]:
    """The design with messages as large as this machine can bring in the modelled time and hold in its memory, which
    is itself where they fit; and how it is with them, in a sentence. Emulated links take the time that they take."""
    sends = np.flatnonzero(job.program.is_send)
    largest = float(costs.bytes[sends].max(initial=0.0))
    if not largest:
        return job.design, "no mesh sends anything to another one"
    held = PART_OF_MEMORY * _memory_bytes() / (AT_ONCE * largest * job.layout.processes)
    design = _smaller(job.design, held if job.shaped else min(held, _carried(job, costs, scale, lengths, sends)))
    where = "links are emulated; " if job.shaped else ""
    if design is job.design:
        return design, f"{where}messages are as large as drawn, up to {quantity(largest, 'B')} a process"
    sent = quantity(largest * tensor_of(design).bytes / tensor_of(job.design).bytes, "B")
    smaller = f"messages are smaller than drawn ({sent} at most instead of {quantity(largest, 'B')} a process), since"
    if job.shaped:
        return design, f"{where}{smaller} this machine could not hold more of them; they take as long as the drawn ones"
    return (
        design,
        f"{smaller} this machine could not bring more of them in the modelled time; they take as long as the drawn ones",
    )


def _carried(job: Job, costs: Costs, scale: float, lengths: Lengths, sends: NDArray[np.intp]) -> float:
    """The share of each message's bytes that the loopback brings while the drawn link brings all of them."""
    lanes = np.array([shape.copies * shape.cuts for shape in job.layout.shapes])[job.program.rank[sends]]
    together = costs.bytes[sends] * lanes  # of all processes of a mesh
    alone = CARRIED * scale * (costs.seconds[sends] + PART_OF_AN_ACTION * lengths.shortest)
    of_each = np.maximum(alone, SMALLEST_BYTES * lanes) / together
    return min(float(of_each.min()), CARRIED * scale * lengths.step / float(together.sum()))


def _smaller(design: Design, ratio: float) -> Design:
    """A design whose messages hold no more than this share of the bytes."""
    if ratio >= 1:
        return design
    model = design.model
    hidden = max(1, int(model.hidden * ratio))
    sequence = max(1, int(model.sequence * min(1.0, ratio * model.hidden / hidden)))
    return design.model_copy(update={"model": model.with_message_unit(sequence, hidden)})


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Board:
    """What all processes of a host can read at once: nanoseconds of the clock that they share, in a file.

    Nothing has to be wiped from step to step: what is left of an earlier one is in the past.
    """

    def __init__(self, path: Path, layout: Layout, tags: int) -> None:
        """``tags`` is how many messages a step can have."""
        lanes, stages = max(len(layout.mesh(rank)) for rank in range(len(layout.shapes))), layout.program.stages
        sizes = [tags * lanes, stages * layout.processes, layout.processes, layout.processes]
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            os.ftruncate(file.fileno(), 8 * sum(sizes))  # to the same size by everybody
            self._map = mmap.mmap(file.fileno(), 8 * sum(sizes))
        arrives, reduced, norms, done = np.split(np.frombuffer(self._map, np.int64), np.cumsum(sizes)[:-1])
        self.arrives = arrives.reshape(tags, lanes)  # when what each process of a mesh sends is there
        self.reduced = reduced.reshape(stages, layout.processes)  # since when a copy's gradients are complete
        self.norms = norms  # [processes] since when all gradients are reduced
        self.done = done  # [processes] the end of a step


class HeldWire:
    """The real wire, whose messages are handed out when the drawn link would have brought them.

    Emulated links take their own time, and more where several messages share one; what they lack of the drawn
    latency is waited for.
    """

    def __init__(
        self,
        wire: Wire,
        layout: Layout,
        world: World,
        device: Device,
        waits: Sequence[int],
        board: Board,
        joined: set[tuple[int, int]],
    ) -> None:
        """``waits``: [rows of the rank].

        What goes from one rank to another that are ``joined`` may come from any process of the first.
        """
        self._wire, self._board = wire, board
        self._layout, self._world, self._device = layout, world, device
        self._joined = joined
        self._rank, self._lane = layout.rank(world.process), layout.lane(world.process)
        rows = zip(layout.program.actions(self._rank), waits, strict=True)
        self._takes = {carried(action): ns for action, ns in rows if action.op in SENDS}

    def sender(self, made: Action, rank: int) -> Callable[[Tensor], None]:
        send, device, took = self._wire.sender(made, rank), self._device, self._takes[_name(made)]
        places, lane = self._board.arrives[self._wire.tag(made)], self._lane

        def start(tensor: Tensor) -> None:
            places[lane] = device.send(rank, took)  # before the message: who has it finds this there
            send(tensor)

        return start

    def receiver(self, made: Action, rank: int) -> Callable[[], Pending]:
        receive, device, world = self._wire.receiver(made, rank), self._device, self._world
        due = self._due(self._wire.tag(made), rank)
        return lambda: _Held(receive(), device, world, due)

    def _due(self, tag: int, source: int) -> Callable[[], int]:
        """Asks when a message from a rank is there."""
        lanes = slice(None) if (source, self._rank) in self._joined else slice(self._lane, self._lane + 1)
        places = self._board.arrives[tag, lanes]
        return lambda: int(places.max())

    def flush(self) -> None:
        self._wire.flush()


def _name(made: Action) -> tuple[bool, int, int, int]:
    """What :func:`carried` says of the message that carries something."""
    onward = 1 if made.op == Op.F else -1
    return made.op == Op.F, made.stage, made.other if made.other >= 0 else made.stage + onward, made.microbatch


class _Held(Pending):
    """Something on its way that is not there before it is ``due``, which is asked once it is.

    Of a reduction, which begins when the last one is ready for it, ``took_ns`` says when that was.
    """

    def __init__(
        self, pending: Pending, device: Device, world: World, due: Callable[[], int], took_ns: int | None = None
    ) -> None:
        self._pending, self._device, self._world, self._due, self._took_ns = pending, device, world, due, took_ns
        self._there_ns = 0

    def wait(self) -> Tensor:
        asked = time.perf_counter_ns()
        tensor = self._pending.wait()
        if self._world.device.type == "cuda":  # NCCL lets a stream wait, and here it is the host that does
            torch.cuda.current_stream(self._world.device).synchronize()
        came, due = time.perf_counter_ns(), self._due()
        self._there_ns = self._device.hold(due, late=came_late(due, asked, came))
        return tensor

    @property
    def arrived(self) -> Stamp | None:
        return self._there_ns or None

    @property
    def began(self) -> Stamp | None:
        return self._there_ns - self._took_ns if self._there_ns and self._took_ns is not None else None


def came_late(due_ns: int, asked_ns: int, came_ns: int) -> bool:
    """Whether it came while it was waited for, and had not been there since it was due; 0 where nobody knows when it
    was."""
    was_due = asked_ns - due_ns if due_ns else 0
    return came_ns - asked_ns > max(ASKING_NS, PART_OF_BEING_DUE * was_due)


class WaitingStage:
    """In place of a stage: takes and gives tensors of the true shapes and computes nothing."""

    recomputed = False  # the forward that it would run again is part of the wait

    def __init__(self, program: Program, stage: int, message: Message, device: torch.device) -> None:
        skips = [(source, target) for source, target, _ in program.skips.tolist() if target > source + 1]
        self.takes = tuple(source for source, target in skips if target == stage)
        self.gives = tuple(target for source, target in skips if source == stage)
        self._is_first, is_last = stage == 0, stage == program.stages - 1

        def made(action: Action) -> Tensor:
            shape = message.holding(program.tensors_from(action))
            return torch.zeros(shape, dtype=message.dtype, device=device)

        # One of each for all microbatches: nobody writes into what was sent.
        self._y = torch.zeros(()) if is_last else made(forward(stage, 0))
        self._given = tuple(made(forward(stage, 0)._replace(other=target)) for target in self.gives)
        self._skips = tuple(made(backward(stage, 0)._replace(other=source)) for source in self.takes)
        for skip in self._skips:
            skip.grad = torch.zeros_like(skip)
        self._gradient = None if self._is_first else made(backward(stage, 0))

    def forward(self, x: Tensor, targets: Tensor | None, skips: Tensors = ()) -> tuple[Tensor, Saved]:
        return self._y, Saved(self._y, None, None, self._skips, self._given)

    def backward(self, saved: Saved, gradient: Tensor | None, of_given: Tensors = ()) -> Tensor | None:
        return self._gradient

    def input_gradient(
        self, saved: Saved, gradient: Tensor | None, of_given: Tensors = ()
    ) -> tuple[Tensor | None, list[Due]]:
        return self._gradient, []

    def forget(self) -> None:
        """There are no weights."""


class WaitingExecutor(Executor):
    """Plays the same actions, and after each waits as long as it should have taken."""

    def __init__(
        self,
        layout: Layout,
        process: int,
        stages: Mapping[int, WaitingStage],
        wire: HeldWire,
        update: Reductions,
        device: Device,
        waits: Sequence[int],
    ) -> None:
        """``waits``: [rows of the rank] nanoseconds."""
        self._device, self._waits = device, waits
        clock: Clock = HostClock()
        super().__init__(layout, process, stages, wire, update, clock, Streams())

    def _bind(self) -> list[Slot]:
        bind = dict.fromkeys((Op.F, Op.B, Op.I, Op.W, Op.STEP), self._waiting)
        bind |= dict.fromkeys(SENDS, self._sending)
        bound = ((slot, bind.get(self._actions[slot.row].op)) for slot in super()._bind())
        return [slot._replace(play=wrap(slot)) if wrap else slot for slot, wrap in bound]

    def _sending(self, slot: Slot) -> Callable[[], None]:
        """A message sets out when what it carries should have been made, or when the link is free."""
        row, _, play = slot

        def sending() -> None:
            play()
            self._start[row] = self._device.sent_ns

        return sending

    def _waiting(self, slot: Slot) -> Callable[[], None]:
        row, last, play = slot
        device, took = self._device, self._waits[row]

        def waiting() -> None:
            if device.clear_to_send():
                for each in (row, last):
                    self._start[each] = self._held[each] = self._stamp()
            play()
            device.compute(took)

        return waiting


class Reductions:
    """In place of the update: gradients are reduced in the modelled time, by messages as large as fit into it."""

    def __init__(
        self,
        layout: Layout,
        world: World,
        wire: Wire,
        device: Device,
        waits: Waits,
        board: Board,
        costs: Costs,
        *,
        real: bool,
    ) -> None:
        """``real``: the links are as drawn, so that the messages are too, and nothing is held."""
        self._layout, self._world, self._wire, self._device, self._board = layout, world, wire, device, board
        self._real = real
        program, mine = layout.program, layout.program.rows(layout.rank(world.process))
        rows = [row for row in range(mine.start, mine.stop) if program.op[row] == Op.REDUCE_GRAD]
        self._took = {int(program.stage[row]): int(waits.ns[row]) for row in rows}
        shared = {stage: members for stage, members in layout.sharing() if world.process in members}
        self._members = {stage: shared.get(stage, (world.process,)) for stage in self._took}
        most = PART_OF_MEMORY * _memory_bytes() / (layout.processes * max(1, len(rows)))
        self._flat = {
            stage: torch.zeros(self._numbers(stage, min(most, float(costs.bytes[row]))), device=world.device)
            for stage, row in zip(self._took, rows, strict=True)
        }
        self._reducing: list[tuple[int, Pending]] = []
        self._done_ns = 0

    def _numbers(self, stage: int, size: float) -> int:
        """How many are summed up, of gradients of so many bytes."""
        fits = CARRIED * self._took[stage] / 1e9 / (2 * len(self._members[stage]))
        return max(1, int(size if self._real else min(size, fits)) // 4)

    def reduce(self, stage: int) -> None:
        """This copy of the stage is complete."""
        self._board.reduced[stage, self._world.process] = self._device.free_ns
        self._reducing.append((stage, self._wire.reduce(stage, self._members[stage], self._flat[stage])))

    def collect(self) -> dict[int, Pending]:
        """Wait until all are reduced, one after the other, and those of all processes where they are clipped."""
        self._done_ns, found = 0, dict[int, Pending]()
        for stage, pending in self._reducing:
            took = None if self._real else self._took[stage]
            found[stage] = _Held(pending, self._device, self._world, partial(self._due, stage), took)
            found[stage].wait()
        self._reducing.clear()
        if self._layout.program.clips:
            self._board.norms[self._world.process] = max(self._device.free_ns, self._done_ns)
            self._wire.total([0.0])
            self._device.hold(int(self._board.norms.max()), late=False)
        return found

    def _due(self, stage: int) -> int:
        """Once every copy is complete and the reduction before is done, it takes its time."""
        if self._real:
            return 0
        holders = [process for rank in self._layout.program.ranks_of(stage) for process in self._layout.mesh(rank)]
        self._done_ns = max(self._done_ns, int(self._board.reduced[stage, holders].max())) + self._took[stage]
        return self._done_ns

    def apply(self) -> None:
        """There are no weights."""
