"""What a schedule is: a rule that orders compute on every rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from engine.part import Part
from engine.program.action import Action, Op
from engine.program.program import Program, as_columns, from_columns
from engine.registry import Registry

Count = Annotated[int, Field(ge=1, le=4096)]
"""An option that multiplies what a schedule orders; far above what any paper draws."""


@dataclass(frozen=True)
class Pipe:
    """The size of a pipeline: how many ranks (meshes) and microbatches a schedule has to order."""

    ranks: int
    microbatches: int


class Schedule(Part):
    """The rule that orders compute on each rank. A member is one file in this folder.

    Its fields are its options in the document and its form on the page; the first sentence of
    its docstring is its help text. It yields compute alone: idle time is the simulator's to
    find, transfers are the lowering's to add.
    """

    title: ClassVar[str]

    def stage_count(self, ranks: int) -> int:
        """How many stages the model is cut into."""
        return ranks

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        """``[replicas][stages]``: the rank that holds each stage, for every replica of the model."""
        return [range(pipe.ranks)]

    def replica_of(self, pipe: Pipe) -> Sequence[int]:
        """``[microbatches]``: the replica that each microbatch goes through."""
        return [0] * pipe.microbatches

    def refuses(self, pipe: Pipe) -> str | None:
        """Why this pipeline cannot be scheduled, in a sentence with a way out; None if it can."""
        return None

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        """The ordered computations of one rank."""
        raise TypeError(f"{type(self).__name__} gives its orders as columns")

    def orders(self, pipe: Pipe) -> list[NDArray[np.int32]]:
        """Per rank an array ``[actions, 4]`` of op, stage, microbatch, fused."""
        return [as_columns(self.rank_actions(pipe, rank)) for rank in range(pipe.ranks)]

    def program(self, pipe: Pipe) -> Program:
        """The computations of every rank, without transfers."""
        return from_columns(self.orders(pipe), np.array(self.routes(pipe)), np.array(self.replica_of(pipe)))

    @classmethod
    def help(cls) -> str:
        return cleandoc(cls.__doc__ or "")


schedules: Registry[type[Schedule]] = Registry("schedule", "engine.schedules")


def by_slot(
    ranks: int,
    rank: NDArray[np.int64],
    forward_slot: NDArray[np.int64],
    backward_slot: NDArray[np.int64],
) -> list[NDArray[np.int32]]:
    """Order each rank by the clock slots of its forwards and backwards.

    All three arrays are ``[stages, microbatches]``: who computes, and when, on a clock on which
    a forward and a backward each take one slot. Only the order is kept of the slots.
    """
    stage, microbatch = np.indices(rank.shape)
    op = np.repeat([Op.F, Op.B], rank.size)
    columns = (op, np.tile(stage.ravel(), 2), np.tile(microbatch.ravel(), 2), np.zeros_like(op))
    rows = np.stack(columns, axis=1).astype(np.int32)
    slot = np.concatenate([forward_slot.ravel(), backward_slot.ravel()])
    owner = np.tile(rank.ravel(), 2)
    order = np.argsort(owner * (slot.max(initial=0) + 1) + slot, kind="stable")
    return np.split(rows[order], np.searchsorted(owner[order], np.arange(1, ranks)))
