"""Problems of fields with a unit."""

from __future__ import annotations

from dataclasses import replace

from meshwave.engine.findings import Problem
from meshwave.engine.units import quantity


def in_unit(problem: Problem, unit: str) -> Problem:
    """Return the problem of an amount out of range with its numbers in the unit of the field."""
    if not unit or problem.code != "out_of_range":
        return problem
    value = quantity(float(problem.params["value"]), unit, 12)
    return replace(problem, params={**problem.params, "value": value, "unit": unit})
