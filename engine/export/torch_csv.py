"""A program as the schedule CSV of torch.distributed.pipelining: one line a rank.

The form is ``compute_only``: torch's runtime adds its own sends, receives and reductions
when it loads the file.
"""

from __future__ import annotations

from engine.errors import InputError
from engine.program.program import Program, format_program


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
