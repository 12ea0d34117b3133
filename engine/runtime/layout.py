"""Which process is which: ranks of the pipeline times data-parallel copies."""

from __future__ import annotations

from dataclasses import dataclass

from engine.program.action import Op
from engine.program.program import Program


@dataclass(frozen=True)
class Layout:
    """The processes of a run: rank by rank, and inside a rank copy by copy.

    A *copy* is a data-parallel coordinate. Copy ``i`` of a rank talks to copy ``i`` of the next.
    """

    program: Program
    copies: int

    @property
    def processes(self) -> int:
        return self.program.ranks * self.copies

    def rank(self, process: int) -> int:
        return process // self.copies

    def copy(self, process: int) -> int:
        return process % self.copies

    def process(self, rank: int, copy: int) -> int:
        return rank * self.copies + copy

    def rank_of(self, stage: int, microbatch: int) -> int:
        """The rank that ``microbatch`` meets ``stage`` on."""
        return int(self.program.placement[self.program.replica[microbatch], stage])

    def holders(self, stage: int) -> list[int]:
        """The processes that hold a copy of ``stage`` and so share its gradients, ascending."""
        return [self.process(rank, copy) for rank in self.program.ranks_of(stage) for copy in range(self.copies)]

    def microbatches(self, rank: int) -> list[int]:
        """The microbatches whose first or last stage is on ``rank``: it needs their tokens or targets."""
        ends = (0, self.program.stages - 1)
        return [mb for mb in range(self.program.microbatches) if rank in {self.rank_of(stage, mb) for stage in ends}]

    def split_stages(self) -> set[int]:
        """The stages whose backward the program runs in two halves."""
        program = self.program
        return set(program.stage[program.op == Op.I].tolist())

    def reduced_stages(self) -> list[int]:
        """The stages whose gradients the program reduces, ascending."""
        program = self.program
        return sorted(set(program.stage[program.op == Op.REDUCE_GRAD].tolist()))

    def lanes(self) -> list[tuple[int, int]]:
        """Every pair of processes (from, to) that the program sends something along, ascending."""
        program = self.program
        sends = (program.op == Op.SEND_F) | (program.op == Op.SEND_B)
        ranks = set(zip(program.rank[sends].tolist(), program.peer[sends].tolist(), strict=True))
        return sorted(
            (self.process(source, copy), self.process(target, copy))
            for source, target in ranks
            for copy in range(self.copies)
        )
