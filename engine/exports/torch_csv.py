"""A program as the schedule CSV of torch.distributed.pipelining: one line a rank.

The form is ``compute_only``: torch's runtime adds its own sends, receives and reductions
when it loads the file, and reads off the lines which rank holds which stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from meshwave.engine.document import Design
from meshwave.engine.errors import InputError
from meshwave.engine.exports._base import Export, exports
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program, format_program

if TYPE_CHECKING:
    from meshwave.engine.predict.prediction import Prediction


@exports.register("torch-csv")
class TorchCsv(Export):
    """The computations of all ranks, for torch's own runtime and for torchtitan."""

    title = "torch CSV"
    note = "torch.distributed.pipelining"
    suffix = ".csv"
    mime = "text/csv"

    @staticmethod
    def make(prediction: Prediction) -> bytes:
        one_shape(prediction.design, "torch's pipelining")
        return ("\n".join(rows(prediction.program)) + "\n").encode()

    @staticmethod
    def left_out(prediction: Prediction) -> list[str]:
        return list(beside_the_order(prediction.design, prediction.program))


def one_shape(design: Design, whose: str) -> tuple[int, int]:
    """The dp and tp that all meshes have, since ``whose`` pipelines repeat one shape for every rank.

    Raises:
        InputError: they differ.
    """
    shapes = {(mesh.dp, mesh.tp): mesh.name for mesh in design.meshes}
    if len(shapes) > 1:
        drawn = " and ".join(f"{name} dp={dp} x tp={tp}" for (dp, tp), name in list(shapes.items())[:2])
        raise InputError(f"{whose} cuts every mesh alike, and {drawn} differ; give all the same dp and tp")
    return next(iter(shapes))


def beside_the_order(design: Design, program: Program) -> Iterator[str]:
    """What a design has that no order of stages can say: the modules that torch runs in this order must have it."""
    mesh, moe, pipeline = design.meshes[0], design.model.moe, design.pipeline
    if mesh.dp * mesh.tp > 1:
        yield f"each line is a mesh of dp={mesh.dp} x tp={mesh.tp} devices; how they share a stage is for its module to say"
    if mesh.tp > 1:
        yield f"torch sends from each device to its like; the {design.transfer.strategy} transfers of the design play no part"
    if moe is not None and design.model.expert_blocks:
        yield (
            f"the experts ({moe.experts} in every {ordinal(moe.every)}block, {design.experts.schedule} with "
            f"ep={design.experts.ep} x esp={design.experts.esp}) are for the modules of the stages to have"
        )
    if chosen := [str(stage) for stage in range(program.stages) if pipeline.recomputes(stage)]:
        which = "all stages" if len(chosen) == program.stages else f"stage{'s' * (len(chosen) > 1)} {', '.join(chosen)}"
        yield f"recomputing of {which} is for the modules to do (torch.utils.checkpoint)"


def ordinal(number: int) -> str:
    """``every 2nd block``, ``every block``: the word between, with the space that follows."""
    if number == 1:
        return ""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending} "


def rows(program: Program) -> list[str]:
    """One line of comma-separated computations a rank; a slot of two is ``(0F3;7B1)OVERLAP_F_B``.

    Raises:
        InputError: torch's runtime cannot run the program.
    """
    refuse(program)
    return [",".join(order) for order in format_program(program, compute_only=True)]


def refuse(program: Program) -> None:
    """Raise :class:`InputError` for what torch's runtime would refuse, or worse, run wrongly."""
    if program.replicas > 1:
        raise InputError(
            f"torch's schedule CSV knows one rank a stage, and this design keeps {program.replicas} replicas of every "
            "stage; choose a schedule without replicas (one wave of hanayo does Chimera's work, and dualpipe-v that of "
            "dualpipe) to export it"
        )
    if program.beyond:
        source, target = program.beyond[0]
        raise InputError(
            "torch's pipelining hands what a stage makes to the next one alone, and here tensors skip from stage "
            f"{source} to stage {target}; cut the model into two stages, or give it no skip connections, to export it"
        )
    last = np.flatnonzero((program.op == Op.F) & (program.stage == program.stages - 1))
    falls = np.flatnonzero(np.diff(program.microbatch[last]) < 0)
    if len(falls):
        early, late = (str(program.row(last[at])) for at in (falls[0] + 1, falls[0]))
        raise InputError(
            f"torch numbers losses in the order in which the last stage runs its forwards, and rank "
            f"{program.rank[last[0]]} runs {late} before {early}: a backward would start from the loss of another "
            f"microbatch; let stage {program.stages - 1} run its forwards in ascending order (backwards may stand as they are)"
        )
