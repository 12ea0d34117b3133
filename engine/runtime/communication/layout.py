"""Which process is which: ranks of the pipeline times data-parallel copies times tensor-parallel cuts."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program


class Shape(NamedTuple):
    """How many processes a mesh has: data-parallel copies, and tensor-parallel cuts of each."""

    copies: int = 1
    cuts: int = 1


@dataclass(frozen=True)
class Layout:
    """Where the processes of a run stand in its program.

    A rank is a mesh. Its processes are row-major over a data-parallel and a tensor-parallel coordinate;
    both together are a *lane*. Processes are counted rank by rank.
    """

    program: Program
    shapes: tuple[Shape, ...]  # [ranks]

    @cached_property
    def _firsts(self) -> tuple[int, ...]:
        """``[ranks + 1]`` the first process of each rank, and how many there are."""
        return tuple(accumulate((shape.copies * shape.cuts for shape in self.shapes), initial=0))

    @property
    def processes(self) -> int:
        return self._firsts[-1]

    def rank(self, process: int) -> int:
        return bisect_right(self._firsts, process) - 1

    def lane(self, process: int) -> int:
        return process - self._firsts[self.rank(process)]

    def shape(self, process: int) -> Shape:
        """That of its mesh."""
        return self.shapes[self.rank(process)]

    def copy(self, process: int) -> int:
        return self.lane(process) // self.shape(process).cuts

    def cut(self, process: int) -> int:
        return self.lane(process) % self.shape(process).cuts

    def process(self, rank: int, lane: int) -> int:
        return self._firsts[rank] + lane

    def mesh(self, rank: int) -> tuple[int, ...]:
        """The processes of a rank."""
        return tuple(range(self._firsts[rank], self._firsts[rank + 1]))

    def cut_groups(self) -> list[tuple[int, ...]]:
        """Every copy's processes: together they compute what one would."""
        return [
            self.mesh(rank)[copy * cuts : (copy + 1) * cuts]
            for rank, (copies, cuts) in enumerate(self.shapes)
            for copy in range(copies)
        ]

    def cut_group(self, process: int) -> tuple[int, ...]:
        """That of a process."""
        first = process - self.cut(process)
        return tuple(range(first, first + self.shape(process).cuts))

    def rank_of(self, stage: int, microbatch: int) -> int:
        """The rank that ``microbatch`` meets ``stage`` on."""
        return int(self.program.placement[self.program.replica[microbatch], stage])

    def holders(self, stage: int, cut: int = 0) -> tuple[int, ...]:
        """The processes that hold the same cut of ``stage`` and so share its gradients, ascending."""
        return tuple(
            process
            for rank in self.program.ranks_of(stage)
            for process in self.mesh(rank)[cut :: self.shapes[rank].cuts]
        )

    def microbatches(self, rank: int) -> list[int]:
        """The microbatches whose first or last stage is on ``rank``: it needs their tokens or targets."""
        ends = (0, self.program.stages - 1)
        return [mb for mb in range(self.program.microbatches) if rank in {self.rank_of(stage, mb) for stage in ends}]

    def sharing(self) -> list[tuple[int, tuple[int, ...]]]:
        """Every stage that is reduced, with the processes that share a cut of it."""
        found = [
            (stage, self.holders(stage, cut))
            for stage in self.reduced_stages()
            for cut in range(self.shapes[self.program.ranks_of(stage)[0]].cuts)
        ]
        return [(stage, members) for stage, members in found if len(members) > 1]

    def split_stages(self) -> set[int]:
        """The stages whose backward the program runs in two halves."""
        program = self.program
        return set(program.stage[program.op == Op.I].tolist())

    def reduced_stages(self) -> list[int]:
        """The stages whose gradients the program reduces, ascending."""
        program = self.program
        return sorted(set(program.stage[program.op == Op.REDUCE_GRAD].tolist()))

    def boundaries(self) -> list[tuple[int, int]]:
        """Every pair of ranks (from, to) that the program sends something along, ascending."""
        program, sends = self.program, self.program.is_send
        return sorted(set(zip(program.rank[sends].tolist(), program.peer[sends].tolist(), strict=True)))

    def crossings(self) -> list[tuple[int, int, int]]:
        """The same with how many tensors a message holds, where skip connections make some larger than others."""
        program, sends = self.program, self.program.is_send
        columns = (program.rank, program.peer, program.tensors)
        return sorted(set(zip(*(column[sends].tolist() for column in columns), strict=True)))
