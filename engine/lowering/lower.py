"""Lowering of a design to its program: the schedule's computations, then transfers, gathers and updates."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from meshwave.engine.document import Design
from meshwave.engine.document.pipeline import Pipeline
from meshwave.engine.document.pipeline_problems import meshes_by_rank
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.lowering.communication import Communication
from meshwave.engine.lowering.program_problems import locate_problems
from meshwave.engine.lowering.schedule_prices import priced_pipe
from meshwave.engine.program.program import Program
from meshwave.engine.program.verification import communication_problems, computation_problems
from meshwave.engine.schedules import Pipe

T = TypeVar("T")


def order_computations(design: Design) -> Program:
    """Return the computations of a design in the order of its schedule, without transfers, updates and verification.

    Raises:
        InputError: a cell of a custom order is not an action.
    """
    pipeline = design.pipeline
    return _assign_meshes(pipeline.program(priced_pipe(design)), pipeline.placement)


def add_messages(computations: Program, design: Design) -> Program:
    """Add the communication of a complete order of computations on the meshes of the design.

    The resulting program may still deadlock.
    """
    return Communication.from_design(design).add_to(computations)


def lower(design: Design) -> Program:
    """Return the program of a design: the schedule's computations with their communication.

    Raises:
        DesignError: a custom order is incomplete or deadlocks; contains all problems.
    """
    return lower_and_use(design, lambda program: program)


def lower_and_use(design: Design, use: Callable[[Program], T]) -> T:
    """Return the result of ``use`` with the program of a design, while another thread verifies the communication.

    Raises:
        DesignError: a custom order is incomplete or deadlocks; contains all problems. Errors of ``use`` are then ignored.
    """
    ordering = design.pipeline.model_copy(update={"stages": None, "recompute": "none"})  # the order depends on neither
    try:
        program, order = _lower(ordering, priced_pipe(design), Communication.from_design(design))
        with ThreadPoolExecutor(1) as thread:  # both threads spend most of their time in numpy, which runs in parallel
            found = thread.submit(_verify_communication, program)
            try:
                return use(program)
            finally:
                _raise_problems(found.result(), order)
    except _UnsoundOrder as error:
        raise DesignError(locate_problems(design, error.problems, error.order)) from None


@lru_cache(maxsize=4)  # a change of costs keeps the program; a large program takes 200 MB
def _lower(pipeline: Pipeline, pipe: Pipe, communication: Communication) -> tuple[Program, Program]:
    """Return the program for the parts of a design that determine it, and its computations, which are complete."""
    compute = _assign_meshes(pipeline.program(pipe), pipeline.placement)
    _raise_problems(computation_problems(compute, pipe.microbatches), compute)
    return communication.add_to(compute), compute


_verify_communication = lru_cache(maxsize=4)(communication_problems)


def _assign_meshes(program: Program, placement: tuple[int, ...] | None) -> Program:
    """Return the program with the ranks of the schedule's own placement assigned to the meshes that the user chose."""
    if placement is None:
        return program
    names = meshes_by_rank(program.placement[0].tolist(), placement)
    assert names is not None, "checked with the document"
    mesh = np.array([names[rank] for rank in range(program.ranks)], np.int32)
    order = np.argsort(mesh)
    rows = np.concatenate([np.arange(program.offsets[r], program.offsets[r + 1]) for r in order])
    sizes = np.diff(program.offsets)[order]
    return replace(
        program,
        op=program.op[rows],
        stage=program.stage[rows],
        microbatch=program.microbatch[rows],
        peer=program.peer[rows],
        fused=program.fused[rows],
        other=program.other[rows],
        offsets=np.concatenate(([0], np.cumsum(sizes))),
        placement=mesh[program.placement],
    )


class _UnsoundOrder(Exception):
    """Exception for an order of computations that cannot run."""

    def __init__(self, problems: list[Problem], order: Program) -> None:
        super().__init__()
        self.problems, self.order = problems, order


def _raise_problems(problems: list[Problem], order: Program) -> None:
    """Raise :class:`_UnsoundOrder` with the problems of an order, if there are any."""
    if problems:
        raise _UnsoundOrder(problems, order)
