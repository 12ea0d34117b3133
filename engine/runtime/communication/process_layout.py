"""Layout of the processes of a run: pipeline ranks x data-parallel x context-parallel x tensor-parallel coordinates."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program


class MeshShape(NamedTuple):
    """Number of copies of the weights on a mesh, and its degree of tensor parallelism.

    Their product is the number of processes. Every ``cp`` consecutive copies divide the tokens of the same sequences.
    """

    dp: int = 1
    tp: int = 1
    cp: int = 1


@dataclass(frozen=True)
class ProcessLayout:
    """Layout of the processes of a run: their pipeline ranks and their positions within the mesh of each rank.

    Processes are numbered rank by rank. The processes of a rank form a mesh in row-major order over the index of their
    copy of the weights and a tensor-parallel index; each has an index within its rank.
    """

    program: Program
    shapes: tuple[MeshShape, ...]  # [ranks]

    @cached_property
    def _first_processes(self) -> tuple[int, ...]:
        """First process of each rank, then the number of processes, ``[ranks + 1]``."""
        return tuple(accumulate((shape.dp * shape.tp for shape in self.shapes), initial=0))

    @property
    def processes(self) -> int:
        """Number of processes."""
        return self._first_processes[-1]

    def rank(self, process: int) -> int:
        """Return the pipeline rank of a process."""
        return bisect_right(self._first_processes, process) - 1

    def index_in_rank(self, process: int) -> int:
        """Return the index of a process within its rank."""
        return process - self._first_processes[self.rank(process)]

    def mesh_shape(self, process: int) -> MeshShape:
        """Return the shape of the mesh that contains a process."""
        return self.shapes[self.rank(process)]

    def dp_index(self, process: int) -> int:
        """Return the index of the copy of the weights that a process holds."""
        return self.index_in_rank(process) // self.mesh_shape(process).tp

    def tp_index(self, process: int) -> int:
        """Return the tensor-parallel index of a process."""
        return self.index_in_rank(process) % self.mesh_shape(process).tp

    def process(self, rank: int, index: int) -> int:
        """Return the process with a given index within its rank."""
        return self._first_processes[rank] + index

    def mesh(self, rank: int) -> tuple[int, ...]:
        """Return the processes of a rank."""
        return tuple(range(self._first_processes[rank], self._first_processes[rank + 1]))

    def tp_groups(self) -> list[tuple[int, ...]]:
        """Return all tensor-parallel groups."""
        return [
            self.mesh(rank)[index * tp : (index + 1) * tp]
            for rank, (dp, tp, _) in enumerate(self.shapes)
            for index in range(dp)
        ]

    def cp_groups(self) -> list[tuple[int, ...]]:
        """Return all context-parallel groups."""
        return list(dict.fromkeys(map(self.cp_group, range(self.processes))))

    def cp_group(self, process: int) -> tuple[int, ...]:
        """Return the processes that divide the tokens of a sequence with a process, in the order of their shares."""
        shape = self.mesh_shape(process)
        first = process - self.dp_index(process) % shape.cp * shape.tp
        return tuple(first + index * shape.tp for index in range(shape.cp))

    def tp_group(self, process: int) -> tuple[int, ...]:
        """Return the tensor-parallel group of a process."""
        first = process - self.tp_index(process)
        return tuple(range(first, first + self.mesh_shape(process).tp))

    def rank_of(self, stage: int, microbatch: int) -> int:
        """Return the rank that runs a stage for a microbatch."""
        return int(self.program.placement[self.program.replica[microbatch], stage])

    def stage_processes(self, stage: int, tp_index: int = 0) -> tuple[int, ...]:
        """Return the processes that hold the same tensor-parallel part of a stage, in ascending order."""
        return tuple(
            process
            for rank in self.program.ranks_of(stage)
            for process in self.mesh(rank)[tp_index :: self.shapes[rank].tp]
        )

    def tied_processes(self, tp_index: int) -> tuple[int, ...]:
        """Return the processes that hold the same tensor-parallel part of the embedding or of a head tied to it."""
        ends = (0, self.program.stages - 1)
        return tuple(sorted({process for stage in ends for process in self.stage_processes(stage, tp_index)}))

    def tied_owners(self, process: int) -> tuple[int, ...]:
        """Return the processes on the first and the last stage that own the same part of a sharded embedding table.

        ``process`` is one of them; it holds one of these stages, which have equal numbers of copies.
        """
        ends = [self.stage_processes(stage, self.tp_index(process)) for stage in (0, self.program.stages - 1)]
        index = next(members.index(process) for members in ends if process in members)
        return tuple(sorted({members[index] for members in ends}))

    def processes_of_stage(self, stage: int) -> tuple[int, ...]:
        """Return the processes that hold any part of a stage, in ascending order."""
        return tuple(process for rank in self.program.ranks_of(stage) for process in self.mesh(rank))

    def microbatches(self, rank: int, *, inner: bool = False) -> list[int]:
        """Return the microbatches whose first or last stage, or with ``inner`` any stage, is on a rank.

        The first and the last stage need their inputs and targets.
        """
        stages = range(self.program.stages) if inner else (0, self.program.stages - 1)
        return [mb for mb in range(self.program.microbatches) if rank in {self.rank_of(stage, mb) for stage in stages}]

    def gradient_groups(self, stages: Iterable[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Return (stage, processes) of every group of several processes that reduces gradients of one of ``stages``."""
        found = [
            (stage, self.stage_processes(stage, tp_index))
            for stage in stages
            for tp_index in range(self.shapes[self.program.ranks_of(stage)[0]].tp)
        ]
        return [(stage, members) for stage, members in found if len(members) > 1]

    def split_stages(self) -> set[int]:
        """Return the stages whose backward the program splits into input and weight gradients."""
        return set(self.stages_with(Op.I))

    def stages_with(self, op: Op) -> list[int]:
        """Return the stages for which the program has an action ``op``, in ascending order."""
        program = self.program
        return sorted(set(program.stage[program.op == op].tolist()))

    def collectives(self, op: Op) -> list[tuple[int, int]]:
        """Return the stages and buckets for which the program has an action ``op``, in ascending order."""
        program = self.program
        rows = program.op == op
        return sorted(set(zip(program.stage[rows].tolist(), program.bucket[rows].tolist(), strict=True)))

    def message_sizes(self) -> list[tuple[int, int, int]]:
        """Return every (source rank, target rank, number of tensors) of the program's messages, in ascending order.

        Messages at one boundary contain different numbers of tensors if skip connections cross it.
        """
        program, sends = self.program, self.program.is_send
        columns = (program.rank, program.peer, program.tensors)
        return sorted(set(zip(*(column[sends].tolist() for column in columns), strict=True)))
