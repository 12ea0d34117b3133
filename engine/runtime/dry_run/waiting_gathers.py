"""Gathers of a dry run: real collectives that are complete at the modelled time.

A gather is represented by an all-reduce of half its size, whose ring sends as many bytes between the same processes.
The all-gather of gloo also exchanges small messages, whose delayed acknowledgements add about 40 ms to each gather over
emulated links.
"""

from __future__ import annotations

from collections.abc import Callable

from meshwave.engine.program.action import Op
from meshwave.engine.runtime.communication.communicator import PendingTensor
from meshwave.engine.runtime.dry_run.delayed_messages import WaitingCollectives


class WaitingGathers(WaitingCollectives):
    """Gathers of the stages of this process; a mesh gathers one stage after the other."""

    op = Op.UNSHARD

    def unshard_function(self, row: int) -> Callable[[], PendingTensor]:
        """Return a function that starts the gather of a row of the rank."""
        process, rank = self.world.process, self.layout.rank(self.world.process)
        row += self.layout.program.rows(rank).start
        members, place = list(self.layout.mesh(rank)), self.layout.index_in_rank(process)
        ready = self.shared.gathers_ready[self._rows.index(row)]
        return lambda: self._start(row, place, ready, members)
