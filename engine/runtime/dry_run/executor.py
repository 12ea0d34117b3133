"""Dry run in one process: executes the program with real messages, and waits for the modelled time of computations.

Tensors have the shapes and dtypes of training, unless this machine cannot send them in the modelled time. If the
network is not emulated, a message is delivered at the time at which the modelled links deliver it. Processes share the
times that this needs in :class:`~meshwave.engine.runtime.dry_run.delayed_messages.SharedTimes`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from meshwave.engine.costs import Costs, estimate
from meshwave.engine.costs.boundary_transfers import boundary_tensor
from meshwave.engine.costs.models.roofline import operator_costs
from meshwave.engine.costs.overlapped_slots import Pieces, scale_pieces
from meshwave.engine.costs.slot_pieces import SlotPieces
from meshwave.engine.program.action import SENDS, Action, Op, backward, forward
from meshwave.engine.program.program import Program
from meshwave.engine.runs.dry_run import (
    Device,
    Waits,
    action_durations,
    dry_run_note,
    plan_waits,
    raise_priority,
    record_send_starts,
)
from meshwave.engine.runs.live_links import LiveLinks
from meshwave.engine.runtime.communication.communicator import MessageFormat, PendingTensor
from meshwave.engine.runtime.communication.process_layout import ProcessLayout
from meshwave.engine.runtime.communication.world import World
from meshwave.engine.runtime.device.accelerator import synchronize_stream
from meshwave.engine.runtime.device.clock import Clock, HostClock
from meshwave.engine.runtime.device.streams import Streams
from meshwave.engine.runtime.device.turns import Turns, wait_in_turn
from meshwave.engine.runtime.dry_run.delayed_messages import (
    DelayedCommunicator,
    SharedTimes,
    WaitingUpdate,
    collective_groups,
    is_late,
)
from meshwave.engine.runtime.dry_run.message_sizes import (
    EMULATED_LATENCY_NS,
    _exchange_ratio,
    padded_message_lengths,
    shrink_to_fit,
)
from meshwave.engine.runtime.dry_run.stage_collectives import StageCollectives, StartCollective
from meshwave.engine.runtime.dry_run.waiting_gathers import WaitingGathers
from meshwave.engine.runtime.execution.data import Microbatch
from meshwave.engine.runtime.execution.executor import Executor, Slot
from meshwave.engine.runtime.execution.job import Job, RunNote
from meshwave.engine.runtime.execution.stages import MESSAGE_DTYPES, Saved, Tensors
from meshwave.engine.runtime.execution.step_progress import Progress, StepTimes
from meshwave.engine.runtime.execution.trainer import plan_boundary_transfers
from meshwave.engine.runtime.modules.deferred_gradients import DeferredGradient

FindPieces = Callable[[int], Pieces]
"""Function that returns the pieces of a computation that runs alone, in nanoseconds, given its row in the program."""
START_LEAD_NS = 500_000
"""Time between the arrival of the last process and the start of a step, in ns per process, so that all learn the start.
"""
NO_PRIORITY_NOTE = (
    "other processes may delay the waits, because this user cannot raise their priority; keep the machine idle"
)


@dataclass(frozen=True)
class DryRunStep:
    """Result of a dry-run step: its duration in modelled time, and the times that this process measured.

    The times are relative to the start of the first step, so that whole nanoseconds are exact at any time scale.
    """

    seconds: float
    times: StepTimes


class DryRunner:
    """Dry run of one process: waits for the modelled time of each action and exchanges real messages."""

    def __init__(self, job: Job, world: World, folder: Path) -> None:
        """Prepare the waits and the messages of this process.

        Args:
            job: the design and its program.
            world: this process and its connection to the others.
            folder: the run folder.
        """
        assert job.rehearsal is not None and job.rehearsal.scale is not None, "the launcher sets the scale"
        design, program, layout, process = job.design, job.program, job.layout, world.process
        costs, self._scale = estimate(design, program), job.rehearsal.scale
        self.unit = costs.unit
        """Unit of the modelled times."""
        self._world, self._process, self._rank = world, process, layout.rank(process)
        durations = action_durations(program, costs)
        smaller, size_note = shrink_to_fit(job, costs, self._scale, durations)
        mesh = layout.mesh_shape(process)
        rows = boundary_tensor(smaller).shape[0] * mesh.cp // mesh.dp
        holders = mesh.cp * (mesh.tp if design.training.sequence_parallel else 1)  # of the tokens of a sequence
        shape = rows, smaller.model.sequence // holders, smaller.model.hidden
        message = MessageFormat(shape, MESSAGE_DTYPES[design.training.precision])
        lengths = padded_message_lengths(design, smaller)
        transfers = plan_boundary_transfers(smaller, layout, shape[1], {*lengths.values(), smaller.model.sequence})
        reductions, gathers = (
            collective_groups(design, layout, costs.layers, op) for op in (Op.REDUCE_GRAD, Op.UNSHARD)
        )
        groups = [
            (stage, members)
            for found in (reductions, gathers)
            for (stage, _), its_groups in found.items()
            for members, _ in its_groups
        ]
        communicator = world.make_communicator(layout, message, list(dict.fromkeys(groups)), transfers)
        communicator.tokens = {mb: length // holders for mb, length in lengths.items()}
        lanes = [len(layout.mesh(rank)) for rank in range(program.ranks)]
        waits = self._waits = plan_waits(program, costs, self._scale, lanes)
        cells = int(waits.flows.cells[-1]) if waits.flows else 0
        self._shared = SharedTimes(folder / "board.bin", layout, communicator.tag_count, cells)
        self._links = None
        if waits.flows is not None and not job.emulates_links:
            self._links = LiveLinks(waits.flows, self._shared.flows_ready, self._scale)
        device = self._device = Device(costs.transfer_model, links=self._links, place=layout.index_in_rank(process))
        resharded = {(source, target) for source, target, *_ in transfers}
        messenger = DelayedCommunicator(
            communicator, layout, world, device, waits, self._shared, resharded, emulates_links=job.emulates_links
        )
        parts = layout, world, communicator, device, waits, self._shared
        update = WaitingUpdate(*parts, reductions, self._links, emulates_links=job.emulates_links)
        waiting_gathers = WaitingGathers(*parts, gathers, self._links, emulates_links=job.emulates_links)
        stages = {
            stage: WaitingStage(program, stage, message, world.device, waiting_gathers)
            for stage in program.stages_of(self._rank)
        }
        ratio, exchange_note = _exchange_ratio(job, smaller, waits, durations)
        shares = {mb: tokens / shape[1] for mb, tokens in communicator.tokens.items()}
        collectives = StageCollectives(design, layout, costs.layers, world, ratio, shares) if exchange_note else None
        takes_turns = (
            collectives is not None and job.emulates_links and operator_costs(design).overlap_share(design) == 1
        )
        pieces = _bind_pieces(job, costs, self._rank, self._scale) if takes_turns else None
        self._communicator = communicator
        self._executor = WaitingExecutor(layout, world, stages, messenger, update, device, waits, collectives, pieces)
        self._batch = {
            mb: Microbatch(torch.empty(0, communicator.tokens.get(mb, shape[1])), torch.empty(0))
            for mb in layout.microbatches(self._rank)
        }
        self._start_ns = self._origin_ns = 0
        texts = [exchange_note, "" if raise_priority(_thread_ids()) else NO_PRIORITY_NOTE]
        self.notes = [RunNote(dry_run_note(durations, self._scale, costs.unit)), size_note]
        self.notes += [RunNote(text) for text in texts if text]
        """Notes for the user about this dry run."""

    @property
    def progress(self) -> Progress:
        """Position of this process in its program."""
        return self._executor.progress

    def step(self) -> DryRunStep:
        """Run one step, which all processes begin and end together, and return its duration and times."""
        if not self._start_ns:
            self._synchronize()
            self._origin_ns = self._start_ns
        if self._links is not None:
            self._links.start(self._start_ns)
        self._device.start(self._start_ns)
        began, origin = self._start_ns, self._origin_ns
        times = self._executor.run(self._batch)
        ended = self._synchronize()
        if self._links is not None:
            program = self._waits.program
            rows = program.rows(self._rank)
            sends = np.flatnonzero(program.is_send[rows]) + rows.start
            record_send_starts(times.start, self._links, self._waits, sends, first=rows.start)
        times = replace(times, start=times.start - origin, end=times.end - origin)
        return DryRunStep((ended - began) / 1e9 / self._scale, times)

    def _synchronize(self) -> int:
        """Wait for all processes, set the start of the next step, and return the end of this step on the last process."""
        self._shared.step_ends[self._process] = time.perf_counter_ns()
        self._communicator.sum_over_processes([0.0])
        last = int(self._shared.step_ends.max())
        self._start_ns = last + START_LEAD_NS * (1 + self._world.size)
        return last


def _bind_pieces(job: Job, costs: Costs, rank: int, scale: float) -> FindPieces:
    """Return a function that maps a row of the program to the pieces of its computation alone, in nanoseconds."""
    program = job.program
    pieces_of = SlotPieces(job.design, operator_costs(job.design).prices(job.design), costs.layers)
    alone_ns = (costs.seconds + costs.overlap_saved) * (scale * 1e9)

    def find(row: int) -> Pieces:
        op, stage, *_ = program.row(row)
        return scale_pieces(pieces_of.find(rank, stage, op), float(alone_ns[row]))

    return find


def _thread_ids() -> list[int]:
    """Return the ids of all threads of this process, including the threads that send its messages."""
    tasks = Path("/proc/self/task")
    return [int(task.name) for task in tasks.iterdir()] if tasks.is_dir() else [0]


class WaitingStage:
    """Stage of a dry run: takes and returns tensors of the same shapes as in training, and computes nothing."""

    recomputes = False  # the wait includes the recomputation
    on_final_gradients: Callable[[int], None] | None = None  # the executor knows when gradients would be final

    def __init__(
        self, program: Program, stage: int, message: MessageFormat, device: torch.device, gathers: WaitingGathers
    ) -> None:
        self._gathers = gathers
        skips = [(source, target) for source, target, _ in program.skips.tolist() if target > source + 1]
        self.skip_sources = tuple(source for source, target in skips if target == stage)
        self.skip_targets = tuple(target for source, target in skips if source == stage)
        is_first, is_last = stage == 0, stage == program.stages - 1

        def tensor_from(producer: Action) -> Tensor:
            shape = message.message_shape(program.tensors_from(producer))
            return torch.zeros(shape, dtype=message.dtype, device=device)

        # All microbatches share these tensors, because nothing writes to a tensor that was sent.
        self._y = torch.zeros(()) if is_last else tensor_from(forward(stage, 0))
        self._skip_outputs = tuple(
            tensor_from(forward(stage, 0)._replace(other=target)) for target in self.skip_targets
        )
        self._skips = tuple(tensor_from(backward(stage, 0)._replace(other=source)) for source in self.skip_sources)
        for skip in self._skips:
            skip.grad = torch.zeros_like(skip)
        self._gradient = None if is_first else tensor_from(backward(stage, 0))

    def forward(self, x: Tensor, targets: Tensor | None, skips: Tensors = ()) -> tuple[Tensor, Saved]:
        """Return an output of zeros with the shape that training returns."""
        y = self._y[:, : x.shape[1]] if self._y.dim() else self._y
        return y, Saved(x, None, None, self._skips, self._skip_outputs)

    def backward(self, saved: Saved, gradient: Tensor | None, skip_gradients: Tensors = ()) -> Tensor | None:
        """Return an input gradient of zeros with the shape that training returns."""
        return None if self._gradient is None else self._gradient[:, : saved.x.shape[1]]

    def input_gradient(
        self, saved: Saved, gradient: Tensor | None, skip_gradients: Tensors = ()
    ) -> tuple[Tensor | None, list[DeferredGradient]]:
        """Return an input gradient of zeros with the shape that training returns, and no deferred gradients."""
        return self.backward(saved, gradient, skip_gradients), []

    def weight_gradient(self, deferred: list[DeferredGradient]) -> None:
        """Do nothing: there are no weights."""

    def unshard_function(self, row: int) -> Callable[[], PendingTensor]:
        """Return a function that starts a gather, which is complete at its modelled time."""
        return self._gathers.unshard_function(row)

    def reshard(self) -> None:
        """Do nothing: there are no weights."""

    def drop_cast_weights(self) -> None:
        """Do nothing: there are no weights."""


class WaitingExecutor(Executor):
    """Executor of a dry run: runs the same actions as training, and waits for the modelled time of each.

    A computation that contains communication waits in equal parts, with a real exchange after each part, and collectives
    of sharded state beside it. On emulated links, the two computations of a slot alternate at their exchanges, as in
    training; the buckets of gradients of such a slot are reduced after it, in their own rows.
    """

    def __init__(
        self,
        layout: ProcessLayout,
        world: World,
        stages: Mapping[int, WaitingStage],
        messenger: DelayedCommunicator,
        update: WaitingUpdate,
        device: Device,
        waits: Waits,
        collectives: StageCollectives | None,
        pieces: FindPieces | None,
    ) -> None:
        self._world, self._device, self._collectives = world, device, collectives
        self._pieces, self._turns = pieces, Turns()
        self._waits, self._first_row = waits, layout.program.rows(layout.rank(world.process)).start
        clock: Clock = HostClock()
        super().__init__(layout, world.process, stages, messenger, update, clock, Streams(alternates=False))

    def _bind_actions(self) -> list[Slot]:
        wrap = dict.fromkeys((Op.F, Op.B, Op.I, Op.W, Op.STEP), self._wait_after)
        wrap |= dict.fromkeys(SENDS, self._record_departure)
        wrapped = ((slot, wrap.get(self._actions[slot.row].op)) for slot in super()._bind_actions())
        return [slot._replace(run=wrapper(slot)) if wrapper else slot for slot, wrapper in wrapped]

    def _record_departure(self, slot: Slot) -> Callable[[], None]:
        """Return a function that sends, and records the modelled end of the producing action as the start of the send."""

        def send() -> None:
            slot.run()
            self._start[slot.row] = self._device.free_ns

        return send

    def _wait_after(self, slot: Slot) -> Callable[[], None]:
        """Return a function that runs a slot and waits for its modelled time."""
        device, wait = self._device, self._bind_wait(slot)

        def run() -> None:
            if device.finish_sending():
                for each in (slot.row, slot.last):
                    self._start[each] = self._ready[each] = self._stamp()
            slot.run()
            wait()

        return run

    def _bind_wait(self, slot: Slot) -> Callable[[], None]:
        """Return a function that waits for the modelled time of a slot, in parts if it contains communication."""
        row = self._first_row + slot.row
        device, total_ns, sends = self._device, int(self._waits.ns[row]), self._waits.flows_sent(row)
        flows, beside = self._waits.exchanges(row), self._waits.flows_beside(row)
        has_exchanges = bool(flows) and self._collectives is not None
        has_beside = bool(beside) and self._collectives is not None
        if not has_exchanges and not has_beside and row not in self._waits.early:
            return lambda: device.compute(total_ns, sends)
        actions = self._actions[slot.row : slot.last + 1]
        if has_exchanges and self._pieces is not None and slot.last > slot.row:
            both = [self._bind_alternating_computation(each, flows[0], self._pieces) for each in (slot.row, slot.last)]
            return self._bind_alternating_slot(actions, both, beside)
        starts = self._collectives.bind(actions, 1 / len(flows)) if has_exchanges and self._collectives else []
        starts_beside = (
            self._collectives.bind_beside(actions, 1 / len(beside)) if has_beside and self._collectives else []
        )
        pieces = [*self._waits.pieces(row)]

        def wait() -> None:
            works: list[Any] = []
            for piece in pieces:
                has_exchange, begins = piece.exchange >= 0 and has_exchanges, piece.begins >= 0 and has_beside
                if begins:
                    works = [start() for start in starts_beside]
                device.compute(piece.ns, (piece.exchange,) * has_exchange, (piece.begins,) * begins)
                if piece.reduction >= 0:
                    self._finish_gradients(piece.reduction - self._first_row)
                elif has_exchange:
                    self._exchange(starts, piece.exchange)
                if piece.ends >= 0 and has_beside:
                    self._finish_beside(works, piece.ends)
            device.announce(sends)

        return wait

    def _exchange(self, starts: Sequence[StartCollective], flow: int) -> None:
        """Run the collectives of an exchange, which extends the current computation."""
        requested = time.perf_counter_ns()
        for start in starts:
            start().wait()
        synchronize_stream(self._world.device)
        self._device.extend_until(self._exchange_end(flow, requested, time.perf_counter_ns()))

    def _finish_beside(self, works: Sequence[Any], flow: int) -> None:
        """Wait for the collectives beside a part of a computation, which extend it if they take longer."""
        requested = time.perf_counter_ns()
        for work in works:
            work.wait()
        synchronize_stream(self._world.device)
        arrived = time.perf_counter_ns()
        if self._device.shares_links or is_late(0, requested, arrived):
            self._device.extend_until(self._exchange_end(flow, requested, arrived))

    def _bind_alternating_slot(
        self, actions: Sequence[Action], both: Sequence[Callable[[], None]], beside: Sequence[int]
    ) -> Callable[[], None]:
        """Return a function that runs two alternating computations, with their sharded state beside them as a whole."""
        starts = self._collectives.bind_beside(actions, 1.0) if beside and self._collectives else []

        def run() -> None:
            works = [start() for start in starts]
            self._turns.run(*both)
            if works:
                self._finish_beside(works, beside[-1])

        return run

    def _bind_alternating_computation(self, row: int, flow: int, find_pieces: FindPieces) -> Callable[[], None]:
        """Return a function that waits for the modelled time of a computation that shares a slot with another one.

        At each of its exchanges, the other computation of the slot takes its turn.
        """
        assert self._collectives is not None, "a computation with exchanges"
        pieces = find_pieces(self._first_row + row)
        whole = sum(piece.wait_s for piece in pieces) or 1.0
        action = [self._actions[row]]
        steps = [(int(compute), self._collectives.bind(action, wait / whole)) for compute, wait in pieces]
        device = self._device

        def run() -> None:
            for compute_ns, starts in steps:
                device.compute(compute_ns)
                if starts:
                    wait_in_turn(_Exchange([start() for start in starts], self._extend_by_exchange, flow))

        return run

    def _extend_by_exchange(self, flow: int, requested: int, arrived: int) -> None:
        """Extend the slot if the computation waited for its exchange, and not only for its turn."""
        if is_late(0, requested, arrived):
            self._device.extend_until(self._exchange_end(flow, requested, arrived))

    def _exchange_end(self, flow: int, requested: int, arrived: int) -> int:
        """Return the end of an exchange in ns: that of its flow, or over emulated links arrival plus missing latency."""
        if self._device.shares_links:
            due = self._device.wait_for_flow(flow)
            return max(due, arrived) if is_late(due, requested, arrived) else due
        flows = self._waits.flows
        assert flows is not None, "an exchange has a flow"
        latency_ns = float(flows.network.latency_s[flows.kind[flow]]) * self._waits.scale * 1e9
        return arrived + max(0, round(latency_ns) - EMULATED_LATENCY_NS)


class _Exchange(NamedTuple):
    """Started collectives of one piece of a computation."""

    works: Sequence[Any]
    extend: Callable[[int, int, int], None]
    flow: int

    def wait(self) -> None:
        """Wait until all collectives have ended."""
        requested = time.perf_counter_ns()
        for work in self.works:
            work.wait()
        self.extend(self.flow, requested, time.perf_counter_ns())
