"""Design to program, one file a pass."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from meshwave.engine.document import Design
from meshwave.engine.document.pipeline import Pipeline
from meshwave.engine.document.problems import renaming
from meshwave.engine.findings import DesignError
from meshwave.engine.lowering.faults import as_problems
from meshwave.engine.lowering.schedule_prices import findings, priced_pipe
from meshwave.engine.lowering.transfers import Skips, add_transfers, onward_of, skips_of
from meshwave.engine.lowering.updates import add_updates, sharers
from meshwave.engine.program.program import Program
from meshwave.engine.program.verification import complete, verify
from meshwave.engine.schedules import Pipe

__all__ = ["findings", "lower", "order", "priced_pipe", "with_messages"]


def order(design: Design) -> Program:
    """The computations of a design alone, as its schedule orders them; nothing is proved of them.

    Raises:
        InputError: a hand-drawn cell is no action.
    """
    pipeline = design.pipeline
    return _on_meshes(pipeline.program(priced_pipe(design)), pipeline.placement)


def with_messages(computations: Program, design: Design) -> Program:
    """A complete order of computations with the transfers and updates that it needs on the design's
    meshes; whether it waits for ever is not asked."""
    handed = skips_of(design), onward_of(design)
    program = add_transfers(computations, *handed, batched=design.transfer.batched)
    return add_updates(program, sharers(design), clips=design.training.clip_norm is not None)


def lower(design: Design) -> Program:
    """What every rank does: the schedule's computations, then transfers, then updates.

    Raises:
        DesignError: a hand-drawn order is incomplete or waits for ever, with every problem.
    """
    ordering = design.pipeline.model_copy(update={"stages": None, "recompute": "none"})  # what the order depends on
    try:
        clips, batched = design.training.clip_norm is not None, design.transfer.batched
        handed = skips_of(design), onward_of(design)
        return _lower(ordering, priced_pipe(design), handed, sharers(design), clips, batched)
    except _Unsound as wrong:
        raise DesignError(as_problems(design, wrong.faults)) from None


@lru_cache(maxsize=4)  # a changed cost needs no new program; a large one takes 200 MB
def _lower(
    pipeline: Pipeline,
    pipe: Pipe,
    handed: tuple[Skips, tuple[int, ...]],
    copies: tuple[int, ...],
    clips: bool,
    batched: bool,
) -> Program:
    compute = _on_meshes(pipeline.program(pipe), pipeline.placement)
    _refuse(complete(compute, pipe.microbatches))
    program = add_updates(add_transfers(compute, *handed, batched=batched), copies, clips=clips)
    _refuse(verify(program))
    return program


def _on_meshes(program: Program, placement: tuple[int, ...] | None) -> Program:
    """Let each rank of the schedule's own placement be played by the mesh that the user chose."""
    if placement is None:
        return program
    names = renaming(program.placement[0].tolist(), placement)
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


class _Unsound(Exception):
    """An order that cannot run, with every fault in the words of the verifier."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__()
        self.faults = faults


def _refuse(faults: list[str]) -> None:
    if faults:
        raise _Unsound(faults)
