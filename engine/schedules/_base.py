"""Base class of schedules: rules that order the computations of every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from meshwave.engine import messages
from meshwave.engine.findings import Fix, Problem
from meshwave.engine.frozen import Part, option_labels
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program, from_columns, to_columns
from meshwave.engine.registry import Registry

MAX_MICROBATCHES = 20_000
"""Maximum number of microbatches of a training step."""
Count = Annotated[int, Field(ge=1, le=4096)]
"""Option that multiplies the number of computations of a schedule; the limit exceeds any published example."""
BackwardForm = Annotated[Literal["whole", "split"], option_labels({"whole": "Full", "split": "Split"})]
"""Option of a schedule: run a backward in one piece, or its input and weight gradients as two computations."""


@dataclass(frozen=True)
class Prices:
    """Durations and memory sizes of a design's stages, for schedules that search for an order.

    Two prices are equal if their numbers and their ``design`` are equal; ``judge`` is not compared.
    """

    forward: tuple[float, ...]  # [stages] seconds of a forward
    input_gradient: tuple[float, ...]  # [stages]
    weight_gradient: tuple[float, ...]  # [stages]
    hop: tuple[float, ...]  # [stages - 1] seconds of a transfer to the next stage, in either direction
    activation: tuple[float, ...]  # [stages] bytes kept for a microbatch, from F to B or I
    deferred: tuple[float, ...]  # [stages] bytes kept for a microbatch, from I to W
    room: tuple[float, ...]  # [ranks] bytes of a device that are available for both
    unit: str = "units"  # unit of all seconds
    design: str = ""  # digest of all other inputs that affect the time of a step
    judge: Callable[[Program], tuple[float, bool]] | None = field(default=None, compare=False)
    """Function that returns the seconds of a whole step, and True if it fits into the memory of the devices."""


@dataclass(frozen=True)
class Pipe:
    """Pipeline to be ordered: its number of ranks (meshes) and microbatches."""

    ranks: int
    microbatches: int
    prices: Prices | None = None  # only for a schedule that ``depends_on_costs``


class Schedule(Part):
    """Rule that orders the computations of each rank. A member is one file in this folder.

    Its fields are its options in the document and its form on the page; the first sentence of its docstring is its help
    text. It yields computations only: the simulator determines idle time, and lowering adds transfers.
    """

    title: ClassVar[str]
    published: ClassVar[str] = "9999"  # year and month of its first paper, by which menus are sorted
    depends_on_costs: ClassVar[bool] = False

    def stage_count(self, ranks: int) -> int:
        """Return the number of stages of the model."""
        return ranks

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        """Return the rank that holds each stage, for every replica of the model, ``[replicas][stages]``."""
        return [range(pipe.ranks)]

    def replica_of(self, pipe: Pipe) -> Sequence[int]:
        """Return the replica that runs each microbatch, ``[microbatches]``."""
        return [0] * pipe.microbatches

    def refusal(self, pipe: Pipe) -> Problem | None:
        """Return the problem that prevents this schedule from ordering a pipeline; None if it can order it.

        A schedule that needs another number of meshes lists the supported numbers as ``mesh_counts`` in its problem.
        """
        return None

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        """Yield the ordered computations of one rank."""
        raise TypeError(f"{type(self).__name__} gives its orders as columns")

    def orders(self, pipe: Pipe) -> list[NDArray[np.int32]]:
        """Return the computations of each rank, arrays ``[actions, 4]`` with columns op, stage, microbatch and fused."""
        return [to_columns(self.rank_actions(pipe, rank)) for rank in range(pipe.ranks)]

    def program(self, pipe: Pipe) -> Program:
        """Return the program of computations of every rank, without transfers."""
        return from_columns(self.orders(pipe), np.array(self.routes(pipe)), np.array(self.replica_of(pipe)))

    def is_known(self, pipe: Pipe) -> bool:
        """Return True if the order needs no search, because it follows from a rule or is cached."""
        return True

    def search_result(self, pipe: Pipe) -> Any:
        """Return the result of the search for the order, which another process can cache; None for a rule."""
        return None

    def remember(self, pipe: Pipe, result: Any) -> None:
        """Cache the result of a search that another process has run."""

    def search_findings(self, pipe: Pipe) -> Sequence[str]:
        """Return sentences about the orders that a search simulated; empty for a rule."""
        return ()

    @classmethod
    def help(cls) -> str:
        return cleandoc(cls.__doc__ or "")


schedules: Registry[type[Schedule]] = Registry("schedule", "meshwave.engine.schedules")


def schedule_names() -> list[str]:
    """Return the names of all schedules by date of publication; schedules without a paper come last."""
    return sorted(schedules, key=lambda name: (schedules[name].published, name))


def microbatch_fixes(*counts: int) -> list[Fix]:
    """Return a fix for each of the given numbers of microbatches that a document supports."""
    supported = [count for count in counts if 0 < count <= MAX_MICROBATCHES]
    return [Fix("use_microbatches", {"microbatches": count}, (("microbatches", count),)) for count in supported]


def too_few_microbatches(title: str, needed: int, pipe: Pipe) -> Problem | None:
    """Return the refusal of a schedule that needs ``needed`` microbatches to fill its pipeline; None if it has them."""
    if pipe.microbatches >= needed:
        return None
    params = {"title": title, "ranks": pipe.ranks, "needed": needed, "microbatches": pipe.microbatches}
    return Problem("microbatches", "too_few_microbatches", params, fixes=microbatch_fixes(needed))


def indivisible_microbatches(title: str, group: int, pipe: Pipe) -> Problem:
    """Return the refusal of a schedule that orders microbatches in groups; it suggests the nearest multiples."""
    fewer = pipe.microbatches // group * group
    supported = [count for count in (fewer, fewer + group) if count]
    params = {"title": title, "group": group, "microbatches": pipe.microbatches, "supported": supported}
    return Problem("microbatches", "indivisible_microbatches", params, fixes=microbatch_fixes(*supported))


def odd_mesh_count(title: str, pipe: Pipe) -> Problem | None:
    """Return the refusal of a schedule that needs an even number of meshes; None if the number is even."""
    if pipe.ranks % 2 == 0:
        return None
    counts = [count for count in (pipe.ranks - 1, pipe.ranks + 1) if count]
    return Problem("schedule", "odd_mesh_count", {"title": title, "ranks": pipe.ranks, "mesh_counts": counts})


messages.add_messages(
    too_few_microbatches=(
        "{title} needs at least {needed} microbatches for {ranks} {ranks:plural|mesh|meshes}, not {microbatches}; "
        "use {needed}"
    ),
    indivisible_microbatches="{title} needs a multiple of {group} microbatches, not {microbatches}; use {supported:or}",
    odd_mesh_count="{title} needs an even number of meshes, not {ranks}; use {mesh_counts:or}",
)


def wave_path(ranks: int, times: int = 1) -> list[int]:
    """Return the rank of each stage, ``[stages]``, on a path that runs down the ranks and back up ``times`` times."""
    return [*range(ranks), *reversed(range(ranks))] * times


def order_by_slot(
    ranks: int, rank: NDArray[np.int64], slots: Mapping[Op, NDArray[np.int64]]
) -> list[NDArray[np.int32]]:
    """Order the computations of each rank by their clock slots.

    Every computation takes one slot of the clock; only the order is kept. Computations in the same slot are ordered by
    kind in the order of ``slots``, then by stage and microbatch.

    Args:
        ranks: number of ranks.
        rank: [stages, microbatches] rank of each computation.
        slots: [stages, microbatches] slot of each computation, by kind.
    """
    stage, microbatch = np.indices(rank.shape)
    op, kinds = np.repeat(list(slots), rank.size), len(slots)
    columns = (op, np.tile(stage.ravel(), kinds), np.tile(microbatch.ravel(), kinds), np.zeros_like(op))
    rows = np.stack(columns, axis=1).astype(np.int32)
    slot = np.concatenate([each.ravel() for each in slots.values()])
    owner = np.tile(rank.ravel(), kinds)
    order = np.argsort(owner * (slot.max(initial=0) + 1) + slot, kind="stable")
    return np.split(rows[order], np.searchsorted(owner[order], np.arange(1, ranks)))
