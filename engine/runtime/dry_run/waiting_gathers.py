"""Gathers of a dry run: real collectives that are complete at the modelled time.

A gather is represented by an all-reduce of half its size, whose ring sends as many bytes between the same processes.
The all-gather of gloo also exchanges small messages, whose delayed acknowledgements add about 40 ms to each gather over
emulated links.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
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
        self._waits, self._emulates_links, self._ready = waits, emulates_links, shared.gathers_ready
        program, rank = layout.program, layout.rank(world.process)
        self._mesh, self._place = list(layout.mesh(rank)), layout.index_in_rank(world.process)
        self._first = program.rows(rank).start
        rows = self._first + np.flatnonzero(program.op[program.rows(rank)] == Op.UNSHARD)
        self._number = {row: number for number, row in enumerate(rows.tolist())}
        wait_ns = {int(program.stage[row]): int(waits.ns[row]) for row in rows.tolist()}
        elements_of = partial(representative_elements, emulates_links=emulates_links, at_once=len(wait_ns))
        self._flats = {
            stage: [
                (members, torch.zeros(elements_of(size / 2, ns, len(members), layout.processes), device=world.device))
                for members, size in groups[stage]
                if world.process in members
            ]
            for stage, ns in wait_ns.items()
        }
        self._last_end_ns = 0  # end of the latest gather that a computation has waited for

    def unshard_function(self, row: int, stage: int) -> Callable[[], PendingTensor]:
        """Return a function that starts the gather of ``stage`` at a row of the rank."""
        row += self._first
        number, wait_ns, flow = self._number[row], int(self._waits.ns[row]), self._waits.flow(row)
        device, links, world, flats = self._device, self._links, self._world, self._flats[stage]
        due, departure = self._bind_times(number, flow, wait_ns)

        def start() -> PendingTensor:
            self._ready[number, world.process] = device.free_ns
            if links is not None and flow >= 0:
                links.announce(flow, self._place, device.free_ns)
            started = [self._communicator.start_all_reduce(stage, *each) for each in flats]
            return DelayedTensor(Collectives(started), device, world, due, departure)

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
        self._last_end_ns = max(int(self._ready[number, self._mesh].max()), self._last_end_ns) + wait_ns
        return self._last_end_ns
