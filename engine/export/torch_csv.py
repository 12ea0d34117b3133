"""A program as the schedule CSV of torch.distributed.pipelining: one line a rank.

The form is ``compute_only``: torch's runtime adds its own sends, receives and reductions
when it loads the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import InputError
from engine.export._export import Export, exports
from engine.program.program import Program, format_program

if TYPE_CHECKING:
    from engine.predict import Prediction


@exports.register("torch-csv")
class TorchCsv(Export):
    """The orders of all ranks, for torch's own runtime and for torchtitan."""

    title = "torch CSV"
    note = "torch.distributed.pipelining"
    suffix = ".csv"
    mime = "text/csv"

    @staticmethod
    def make(prediction: Prediction) -> bytes:
        return ("\n".join(rows(prediction.program)) + "\n").encode()


def rows(program: Program) -> list[str]:
    """One line of comma-separated actions a rank.

    Raises:
        InputError: torch's format cannot say what the program does.
    """
    if program.replicas > 1:
        raise InputError(
            f"torch's schedule CSV knows one rank a stage, and this design keeps {program.replicas} replicas of every "
            "stage; choose a schedule without replicas (one wave of hanayo does Chimera's work) to export it"
        )
    return [",".join(order) for order in format_program(program, compute_only=True)]
