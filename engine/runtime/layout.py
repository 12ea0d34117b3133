"""Which process is which: ranks of the pipeline times data-parallel copies times tensor-parallel cuts."""

from __future__ import annotations

from dataclasses import dataclass

from engine.program.action import Op
from engine.program.program import Program


@dataclass(frozen=True)
class Layout:
    """The processes of a run: rank by rank, inside a rank copy by copy, inside a copy cut by cut.

    A *copy* is a data-parallel coordinate and a *cut* a tensor-parallel one; both together are a
    *lane*. Lane ``i`` of a rank talks to lane ``i`` of the next.
    """

    program: Program
    copies: int
    cuts: int = 1

    @property
    def lanes(self) -> int:
        """The processes of one rank."""
        return self.copies * self.cuts

    @property
    def processes(self) -> int:
        return self.program.ranks * self.lanes

    def rank(self, process: int) -> int:
        return process // self.lanes

    def lane(self, process: int) -> int:
        return process % self.lanes

    def copy(self, process: int) -> int:
        return self.lane(process) // self.cuts

    def cut(self, process: int) -> int:
        return process % self.cuts

    def process(self, rank: int, lane: int) -> int:
        return rank * self.lanes + lane

    def mesh(self, rank: int) -> tuple[int, ...]:
        """The processes of a rank."""
        return tuple(range(rank * self.lanes, (rank + 1) * self.lanes))

    def cut_groups(self) -> list[tuple[int, ...]]:
        """Every copy's processes: together they compute what one would."""
        return [tuple(range(first, first + self.cuts)) for first in range(0, self.processes, self.cuts)]

    def cut_group(self, process: int) -> tuple[int, ...]:
        """That of a process."""
        first = process - self.cut(process)
        return tuple(range(first, first + self.cuts))

    def rank_of(self, stage: int, microbatch: int) -> int:
        """The rank that ``microbatch`` meets ``stage`` on."""
        return int(self.program.placement[self.program.replica[microbatch], stage])

    def holders(self, stage: int, cut: int = 0) -> tuple[int, ...]:
        """The processes that hold the same cut of ``stage`` and so share its gradients, ascending."""
        lanes = range(cut, self.lanes, self.cuts)
        return tuple(self.process(rank, lane) for rank in self.program.ranks_of(stage) for lane in lanes)

    def microbatches(self, rank: int) -> list[int]:
        """The microbatches whose first or last stage is on ``rank``: it needs their tokens or targets."""
        ends = (0, self.program.stages - 1)
        return [mb for mb in range(self.program.microbatches) if rank in {self.rank_of(stage, mb) for stage in ends}]

    def sharing(self) -> list[tuple[int, tuple[int, ...]]]:
        """Every stage that is reduced, with the processes that share a cut of it."""
        found = [(stage, self.holders(stage, cut)) for stage in self.reduced_stages() for cut in range(self.cuts)]
        return [(stage, members) for stage, members in found if len(members) > 1]

    def split_stages(self) -> set[int]:
        """The stages whose backward the program runs in two halves."""
        program = self.program
        return set(program.stage[program.op == Op.I].tolist())

    def reduced_stages(self) -> list[int]:
        """The stages whose gradients the program reduces, ascending."""
        program = self.program
        return sorted(set(program.stage[program.op == Op.REDUCE_GRAD].tolist()))

    def wires(self) -> list[tuple[int, int]]:
        """Every pair of processes (from, to) that the program sends something along, ascending."""
        program = self.program
        sends = (program.op == Op.SEND_F) | (program.op == Op.SEND_B)
        ranks = set(zip(program.rank[sends].tolist(), program.peer[sends].tolist(), strict=True))
        return sorted(
            (self.process(source, lane), self.process(target, lane))
            for source, target in ranks
            for lane in range(self.lanes)
        )
