"""A rehearsal: the processes of a run play its program over the real communicator, and wait where they would compute.

Tensors have their true shapes and dtypes, as far as this machine can move them in the modelled time. Where the
network is not emulated, a message that the drawn links would have brought later is held until then. What all processes
have to know for that is on a :class:`~meshwave.engine.runtime.dry_run.delayed_messages.Board` that they share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwave.engine.costs import Costs, estimate
from meshwave.engine.costs.boundary_transfers import tensor_of
from meshwave.engine.document import Design
from meshwave.engine.program.action import SENDS, Action, Op, backward, forward
from meshwave.engine.program.program import Program
from meshwave.engine.runs.dry_run import Device, Lengths, Waits, come_first, in_words, note_starts
from meshwave.engine.runs.live_links import LiveLinks
from meshwave.engine.runtime.communication.communicator import MessageFormat
from meshwave.engine.runtime.communication.process_layout import ProcessLayout
from meshwave.engine.runtime.communication.world import World
from meshwave.engine.runtime.device.accelerator import synchronize_stream
from meshwave.engine.runtime.device.clock import Clock, HostClock
from meshwave.engine.runtime.device.streams import Streams
from meshwave.engine.runtime.dry_run.delayed_messages import (
    CARRIED,
    PART_OF_MEMORY,
    Board,
    DelayedCommunicator,
    Reductions,
    came_late,
    memory_bytes,
    rings_of,
)
from meshwave.engine.runtime.dry_run.stage_collectives import StageCollectives
from meshwave.engine.runtime.execution.executor import Executor, Measured, Slot
from meshwave.engine.runtime.execution.job import Job
from meshwave.engine.runtime.execution.stages import MESSAGE_DTYPES, Saved, Tensors
from meshwave.engine.runtime.execution.trainer import routes
from meshwave.engine.runtime.modules.deferred_gradients import DeferredGradient
from meshwave.engine.units import quantity

SMALLEST_BYTES = 2**14
"""A message that is this small costs no more than an empty one."""
PART_OF_AN_ACTION = 0.01
"""How late a message may be that takes no time by the model, as a share of the shortest action."""
REDUCED = CARRIED / 2
"""The same of collectives, whose members wait for each other, and sum up what they get."""
OWN_LATENCY_NS = 100_000
"""What a small message takes from one emulated host to another."""
AT_ONCE = 8
"""Messages that a process holds at once, at a guess."""
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
        rows = tensor_of(smaller).shape[0] // layout.mesh_shape(world.process).dp
        shape = rows, smaller.model.sequence, smaller.model.hidden
        message = MessageFormat(shape, MESSAGE_DTYPES[design.training.precision])
        routed = routes(smaller, layout)
        rings = rings_of(design, layout, costs.layers)
        sharing = [(stage, members) for stage, its in rings.items() for members, _ in its]
        communicator = world.communicator(layout, message, list(dict.fromkeys(sharing)), routed)
        lanes = [len(layout.mesh(rank)) for rank in range(program.ranks)]
        waits = self._waits = Waits.of(program, costs, self._scale, lanes)
        self._board = Board(
            folder / "board.bin", layout, communicator.tags, int(waits.flows.cells[-1]) if waits.flows else 0
        )
        self._links = None
        if waits.flows is not None and not job.shaped:
            self._links = LiveLinks(waits.flows, self._board.flows, self._scale)
        device = self._device = Device(costs.transfer_model, links=self._links, place=layout.lane(world.process))
        self._rank = layout.rank(world.process)
        joined = {(source, target) for source, target, _ in routed}
        held = DelayedCommunicator(communicator, layout, world, device, waits, self._board, joined, real=job.shaped)
        stages = {stage: WaitingStage(program, stage, message, world.device) for stage in program.stages_of(self._rank)}
        reduced = Reductions(
            layout, world, communicator, device, waits, self._board, rings, self._links, real=job.shaped
        )
        ratio, exchanged = _share_of_exchanges(job, smaller, waits, lengths)
        inside = StageCollectives(design, layout, costs.layers, world, ratio) if exchanged else None
        self._communicator = communicator
        self._executor = WaitingExecutor(layout, world, stages, held, reduced, device, waits, inside)
        nothing = torch.empty(0)
        self._batch = dict.fromkeys(layout.microbatches(self._rank), (nothing, nothing))
        self._start_ns = self._origin_ns = 0
        notes = [in_words(lengths, self._scale, costs.unit), sizes, exchanged]
        self.notes = [*filter(None, notes), *([] if come_first(_threads()) else [COMES_LAST])]

    def step(self) -> Rehearsed:
        """Play one step; all processes begin and end it together."""
        if not self._start_ns:
            self._meet()
            self._origin_ns = self._start_ns
        if self._links is not None:
            self._links.start(self._start_ns)
        self._device.start(self._start_ns)
        began, origin = self._start_ns, self._origin_ns
        measured = self._executor.run(self._batch)
        ended = self._meet()
        if self._links is not None:
            program = self._waits.program
            rows = program.rows(self._rank)
            sends = np.flatnonzero(program.is_send[rows]) + rows.start
            note_starts(measured.start, self._links, self._waits, sends, first=rows.start)
        measured = replace(measured, start=measured.start - origin, end=measured.end - origin)
        return Rehearsed((ended - began) / 1e9 / self._scale, measured)

    def _meet(self) -> int:
        """Wait for the others and agree on when the next step starts; returns when the last one was done."""
        self._board.done[self._process] = time.perf_counter_ns()
        self._communicator.total([0.0])
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
    held = PART_OF_MEMORY * memory_bytes() / (AT_ONCE * largest * job.layout.processes)
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
    lanes = np.array([shape.dp * shape.tp for shape in job.layout.shapes])[job.program.rank[sends]]
    together = costs.bytes[sends] * lanes  # of all processes of a mesh
    alone = CARRIED * scale * (costs.seconds[sends] + PART_OF_AN_ACTION * lengths.shortest)
    of_each = np.maximum(alone, SMALLEST_BYTES * lanes) / together
    return min(float(of_each.min()), CARRIED * scale * lengths.step / float(together.sum()))


def _share_of_exchanges(job: Job, smaller: Design, waits: Waits, lengths: Lengths) -> tuple[float, str]:
    """The share of the bytes of the collectives inside stages that is sent, and what is to say of it; nothing where
    there are none. Emulated links carry all of them."""
    flows, program = waits.flows, job.program
    rows = np.flatnonzero(program.is_compute & (flows.first >= 0)) if flows else np.zeros(0, np.int64)
    if flows is None or not rows.size:
        return 1.0, ""
    network, first = flows.network, flows.first[rows]
    leaves = np.array([port.kind in ("link-out", "nic-out") for port in network.ports])[network.use_port]
    sent = np.add.reduceat(np.where(leaves, network.use_weight, 0.0), network.use_ptr[:-1])[flows.kind[first]]
    part = flows.size[first] * sent  # of all processes of a mesh
    share = min(1.0, PART_OF_MEMORY * memory_bytes() / (2 * float(part.max()) * program.ranks))
    if not job.shaped:
        alone = flows.size[first] / network.rate[flows.kind[first]]
        carried = REDUCED * waits.scale
        at_once = carried / program.ranks  # all meshes may exchange at the same time
        share = min(
            share, at_once * float((alone / part).min()), tensor_of(smaller).bytes / tensor_of(job.design).bytes
        )
        share = min(share, carried * lengths.step / float((part * flows.parts[rows]).sum()))
    largest = quantity(float(part.max()), "B")
    if share >= 1:
        return 1.0, f"collectives inside stages are as large as drawn, up to {largest} a mesh at once"
    return share, (
        f"collectives inside stages are smaller than drawn ({quantity(share * float(part.max()), 'B')} a mesh at once at "
        f"most instead of {largest}), since this machine could not bring more of them in the modelled time"
    )


def _smaller(design: Design, ratio: float) -> Design:
    """A design whose messages hold no more than this share of the bytes."""
    if ratio >= 1:
        return design
    model = design.model
    hidden = max(1, int(model.hidden * ratio))
    sequence = max(1, int(model.sequence * min(1.0, ratio * model.hidden / hidden)))
    return design.model_copy(update={"model": model.with_message_unit(sequence, hidden)})


class WaitingStage:
    """In place of a stage: takes and gives tensors of the true shapes and computes nothing."""

    recomputed = False  # the forward that it would run again is part of the wait

    def __init__(self, program: Program, stage: int, message: MessageFormat, device: torch.device) -> None:
        skips = [(source, target) for source, target, _ in program.skips.tolist() if target > source + 1]
        self.skip_sources = tuple(source for source, target in skips if target == stage)
        self.skip_targets = tuple(target for source, target in skips if source == stage)
        self._is_first, is_last = stage == 0, stage == program.stages - 1

        def made(action: Action) -> Tensor:
            shape = message.shape_of(program.tensors_from(action))
            return torch.zeros(shape, dtype=message.dtype, device=device)

        # One of each for all microbatches: nobody writes into what was sent.
        self._y = torch.zeros(()) if is_last else made(forward(stage, 0))
        self._given = tuple(made(forward(stage, 0)._replace(other=target)) for target in self.skip_targets)
        self._skips = tuple(made(backward(stage, 0)._replace(other=source)) for source in self.skip_sources)
        for skip in self._skips:
            skip.grad = torch.zeros_like(skip)
        self._gradient = None if self._is_first else made(backward(stage, 0))

    def forward(self, x: Tensor, targets: Tensor | None, skips: Tensors = ()) -> tuple[Tensor, Saved]:
        return self._y, Saved(self._y, None, None, self._skips, self._given)

    def backward(self, saved: Saved, gradient: Tensor | None, of_given: Tensors = ()) -> Tensor | None:
        return self._gradient

    def input_gradient(
        self, saved: Saved, gradient: Tensor | None, of_given: Tensors = ()
    ) -> tuple[Tensor | None, list[DeferredGradient]]:
        return self._gradient, []

    def forget(self) -> None:
        """There are no weights."""


class WaitingExecutor(Executor):
    """Plays the same actions, and after each waits as long as it should have taken.

    A computation that exchanges inside waits part by part, and really exchanges after each.
    """

    def __init__(
        self,
        layout: ProcessLayout,
        world: World,
        stages: Mapping[int, WaitingStage],
        communicator: DelayedCommunicator,
        update: Reductions,
        device: Device,
        waits: Waits,
        inside: StageCollectives | None,
    ) -> None:
        self._world, self._device, self._inside = world, device, inside
        self._waits, self._first = waits, layout.program.rows(layout.rank(world.process)).start
        clock: Clock = HostClock()
        super().__init__(layout, world.process, stages, communicator, update, clock, Streams())

    def _bind(self) -> list[Slot]:
        bind = dict.fromkeys((Op.F, Op.B, Op.I, Op.W, Op.STEP), self._waiting)
        bind |= dict.fromkeys(SENDS, self._sending)
        bound = ((slot, bind.get(self._actions[slot.row].op)) for slot in super()._bind())
        return [slot._replace(play=wrap(slot)) if wrap else slot for slot, wrap in bound]

    def _sending(self, slot: Slot) -> Callable[[], None]:
        """A message sets out when what it carries should have been made."""
        row, _, play = slot

        def sending() -> None:
            play()
            self._start[row] = self._device.free_ns

        return sending

    def _waiting(self, slot: Slot) -> Callable[[], None]:
        row, last, play = slot
        device, compute = self._device, self._computing(slot)

        def waiting() -> None:
            if device.clear_to_send():
                for each in (row, last):
                    self._start[each] = self._held[each] = self._stamp()
            play()
            compute()

        return waiting

    def _computing(self, slot: Slot) -> Callable[[], None]:
        """Waits for the time of a computation, part by part where it exchanges in between."""
        row = self._first + slot.row
        device, took, sends = self._device, int(self._waits.ns[row]), self._waits.sent_by(row)
        flows = self._waits.exchanges(row)
        if not flows or self._inside is None:
            return lambda: device.compute(took, sends)
        part, runs = took // len(flows), self._inside.of(self._actions[slot.row : slot.last + 1], len(flows))

        def computing() -> None:
            for flow in flows:
                device.compute(part, (flow,))
                asked = time.perf_counter_ns()
                for run in runs:
                    run()
                synchronize_stream(self._world.device)
                device.go_on_until(self._exchanged(flow, asked, time.perf_counter_ns()))
            device.announce(sends)

        return computing

    def _exchanged(self, flow: int, asked: int, came: int) -> int:
        """When an exchange is over that was asked for and came: as the shared links say, or over emulated ones once what
        they lack of the drawn latency is over too."""
        if self._device.shares_links:
            due = self._device.wait_for(flow)
            return max(due, came) if came_late(due, asked, came) else due
        flows = self._waits.flows
        assert flows is not None, "an exchange is a flow"
        latency_ns = float(flows.network.latency_s[flows.kind[flow]]) * self._waits.scale * 1e9
        return came + max(0, round(latency_ns) - OWN_LATENCY_NS)
