"""A program as the schedule CSV of torch.distributed.pipelining: one line a rank.

The form is ``compute_only``: torch's runtime adds its own sends, receives and reductions
when it loads the file, and reads off the lines which rank holds which stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.errors import InputError
from engine.export._export import Export, exports
from engine.program.action import Op
from engine.program.program import Program, format_program

if TYPE_CHECKING:
    from engine.predict import Prediction


@exports.register("torch-csv")
class TorchCsv(Export):
    """The computations of all ranks, for torch's own runtime and for torchtitan."""

    title = "torch CSV"
    note = "torch.distributed.pipelining"
    suffix = ".csv"
    mime = "text/csv"

    @staticmethod
    def make(prediction: Prediction) -> bytes:
        return ("\n".join(rows(prediction.program)) + "\n").encode()


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
