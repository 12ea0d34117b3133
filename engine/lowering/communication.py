"""Communication of a design: the transfers, gathers and updates that are added to an order of its computations."""

from __future__ import annotations

from typing import NamedTuple

from meshwave.engine.document import Design
from meshwave.engine.lowering.gathers import add_gathers, unsharded_stage_counts
from meshwave.engine.lowering.transfers import Skips, add_transfers, onward_message_units, stage_skips
from meshwave.engine.lowering.updates import add_updates, bucket_counts, weight_sharer_counts
from meshwave.engine.program.program import Program


class Communication(NamedTuple):
    """Parts of a design that determine its communication."""

    skips: Skips
    onward: tuple[int, ...]
    batched: bool
    sharers: tuple[int, ...]
    unsharded: tuple[int, ...]
    buckets: tuple[int, ...]
    clips: bool

    @classmethod
    def from_design(cls, design: Design) -> Communication:
        """Return the communication of a design."""
        return cls(
            skips=stage_skips(design),
            onward=onward_message_units(design),
            batched=design.transfer.batched,
            sharers=weight_sharer_counts(design),
            unsharded=unsharded_stage_counts(design),
            buckets=bucket_counts(design),
            clips=design.training.clip_norm is not None,
        )

    def add_to(self, computations: Program) -> Program:
        """Return the program of these computations with transfers, gathers and updates."""
        program = add_transfers(computations, self.skips, self.onward, batched=self.batched)
        return add_updates(add_gathers(program, self.unsharded), self.sharers, self.buckets, clips=self.clips)
