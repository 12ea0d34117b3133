"""Invented results, for tests of the pages and figures that are made from results."""

from __future__ import annotations

from typing import Any

from meshwave.engine.bench.accuracy.results import Result, Results


def result(case: str, predicted: float = 1.0, measured: float = 1.02, **more: Any) -> Result:
    """Return a result, by default that of a dry run."""
    plain: dict[str, Any] = {
        "group": "every schedule, 4 meshes",
        "way": "rehearsed",
        "rivals": "",
        "meshes": 4,
        "processes": 4,
        "unit": "s",
        "scale": 2.0,
        "steps": 3,
        "spread": 0.01,
        "shortest_s": 0.02,
        "predicted_bubble": 0.25,
        "measured_bubble": 0.26,
        "others": 0.05,
    }
    return Result(case=case, predicted=predicted, measured=measured, **{**plain, **more})


def results(*found: Result) -> Results:
    return Results(machine="2 cores of a test", date="2026-11-21", results=found)
