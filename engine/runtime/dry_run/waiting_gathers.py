"""Gathers of a dry run: real all-gathers that are complete at the modelled time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from meshwave.engine.program.action import Op
from meshwave.engine.runs.dry_run import Device, Waits
from meshwave.engine.runs.live_links import LiveLinks
from meshwave.engine.runtime.communication.communicator import Communicator, PendingTensor
from meshwave.engine.runtime.communication.process_layout import ProcessLayout
from meshwave.engine.runtime.communication.world import World
from meshwave.engine.runtime.dry_run.delayed_messages import (
    CollectiveGroups,
    Collectives,
    DelayedTensor,
    SharedTimes,
    representative_elements,
)


class WaitingGathers:
    """Gathers of the stages of this process; a mesh gathers one stage after the other."""

    def __init__(
        self,
        layout: ProcessLayout,
        world: World,
        communicator: Communicator,
        device: Device,
        waits: Waits,
        shared: SharedTimes,
        groups: CollectiveGroups,
        links: LiveLinks | None = None,
        *,
        emulates_links: bool,
    ) -> None:
        """Prepare the gathers. Over emulated links they have their full size and are not delayed."""
        self._world, self._communicator, self._device, self._links = world, communicator, device, links
        self._waits, self._groups, self._emulates_links = waits, groups, emulates_links
        program, rank = layout.program, layout.rank(world.process)
        rows = program.rows(rank)
        self._first = rows.start
        self._number = {
            row - rows.start: number
            for number, row in enumerate(row for row in range(rows.start, rows.stop) if program.op[row] == Op.UNSHARD)
        }
        self._ready = shared.gathers_ready[:, layout.mesh(rank)]
        self._place, self._processes = layout.index_in_rank(world.process), layout.processes
        self._last_end_ns = 0  # end of the latest gather that a computation has waited for

    def unshard_function(self, row: int, stage: int) -> Callable[[], PendingTensor]:
        """Return a function that starts the gather of ``stage`` at a row of the rank."""
        number, wait_ns = self._number[row], int(self._waits.ns[self._first + row])
        flow, device, links = self._waits.flow(self._first + row), self._device, self._links
        parts = []
        for members, size in self._groups[stage]:
            if self._world.process in members:
                elements = representative_elements(
                    size, wait_ns, len(members), self._processes, emulates_links=self._emulates_links
                )
                part = torch.zeros(-(-elements // len(members)), device=self._world.device)
                parts.append((members, part, torch.zeros(len(part) * len(members), device=self._world.device)))
        due, departure = self._bind_times(number, flow, wait_ns)

        def start() -> PendingTensor:
            self._ready[number, self._place] = device.free_ns
            if links is not None and flow >= 0:
                links.announce(flow, self._place, device.free_ns)
            started = [self._communicator.start_all_gather(stage, *each) for each in parts]
            return DelayedTensor(Collectives(started), device, self._world, due, departure)

        return start

    def _bind_times(
        self, number: int, flow: int, wait_ns: int
    ) -> tuple[Callable[[], int], Callable[[int], int] | None]:
        """Return functions for the due time and the start time of a gather; over emulated links it is due at once."""
        links = self._links
        if self._emulates_links:
            return lambda: 0, None
        if links is None or flow < 0:
            return partial(self._due_ns, number, wait_ns), lambda due_ns: due_ns - wait_ns
        return partial(self._device.wait_for_flow, flow), lambda due_ns: links.start_ns(flow)

    def _due_ns(self, number: int, wait_ns: int) -> int:
        """Return the end of a gather in ns. It starts when all processes and the previous gather are ready.

        Computations wait for gathers in the order in which these start.
        """
        self._last_end_ns = max(int(self._ready[number].max()), self._last_end_ns) + wait_ns
        return self._last_end_ns
