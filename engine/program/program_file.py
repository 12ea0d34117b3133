"""The JSON file of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError, model_validator

from meshwave.engine.findings import Refusal
from meshwave.engine.program.program import Program, _parse_order, build_program, format_program
from meshwave.engine.run_files import Count, RunFile, first_problem


def to_json(program: Program) -> Mapping[str, Any]:
    """Return a program as plain data: ``compute``, ``actions``, the stage placement, and the digest."""
    return {
        "format": "meshwave-program/1",
        "digest": program.digest,
        "ranks": program.ranks,
        "stages": program.stages,
        "microbatches": program.microbatches,
        "placement": program.placement.tolist(),
        "replica": program.replica.tolist(),
        "clips": program.clips,
        **({"skips": program.skips.tolist()} if len(program.skips) else {}),
        **({"onward": program.onward_units.tolist()} if (program.onward_units != 1).any() else {}),
        **({"batched": True} if program.batched else {}),
        "compute": format_program(program, compute_only=True),
        "actions": format_program(program),
    }


class ProgramFile(RunFile):
    """Schema of ``program.json``."""

    digest: str
    actions: list[list[str]]
    placement: Annotated[list[list[Count]], Field(min_length=1)]
    replica: list[Count]
    clips: bool
    skips: list[Annotated[list[Count], Field(min_length=3, max_length=3)]] = []
    onward: list[Count] = []
    batched: bool = False
    layers: list[Count] = []
    """Number of layers of each stage; only in a run folder."""

    @model_validator(mode="after")
    def _is_consistent(self) -> ProgramFile:
        stages = {len(row) for row in self.placement}
        if len(stages) > 1 or len(self.onward) not in (0, max(0, *stages) - 1):
            raise ValueError("placement and onward have different numbers of stages")
        if max(self.replica, default=0) >= len(self.placement):
            raise ValueError(f"a microbatch names a replica beyond the {len(self.placement)} in placement")
        return self

    def program(self) -> Program:
        """Return the program that the file contains.

        Raises:
            InputError: a cell is not an action, or the digest belongs to another program.
        """
        orders = [_parse_order(order) for order in self.actions]
        built = build_program(orders, self.placement, self.replica, self.skips)
        program = replace(built, clips=self.clips, onward_units=np.array(self.onward, np.int32), batched=self.batched)
        if program.digest != self.digest:
            raise Refusal("program_digest", {"stated": self.digest, "digest": program.digest})
        return program


def from_json(document: Mapping[str, Any]) -> Program:
    """Return the program given as plain data; the inverse of :func:`to_json`.

    Raises:
        InputError: a key is missing, a cell is not an action, or the digest belongs to another program.
    """
    try:
        return ProgramFile.model_validate(document).program()
    except ValidationError as error:
        raise Refusal("damaged_program", {"reason": first_problem(error)}) from None
