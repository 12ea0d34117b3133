"""Texts about a run: its status, metrics and mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwave.engine.costs import layers_per_stage
from meshwave.engine.document import Design
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.runs import Entry, State, format_step_time, loss_suffix, loss_text, silence_text
from meshwave.engine.runs.run_comparison import TIMELESS_KEYS
from meshwave.engine.units import quantity

STEP_SECTIONS = ("model", "meshes", "pipeline", "training")
"""Sections of the document that determine what a step computes."""


def step_document(design: Design) -> dict[str, Any]:
    """Return the parts of a design that determine the computations of a step."""
    document = design.model_dump(mode="json", include=set(STEP_SECTIONS))
    document["training"] = {key: value for key, value in document["training"].items() if key not in TIMELESS_KEYS}
    return document


def fixed_stages(design: Design, ran: Prediction) -> list[int] | None:
    """Return the ``stages`` value that keeps the layers per stage of a run; None if balancing gives the same layers."""
    given = design.pipeline.stages
    if given:
        return list(given)
    return None if layers_per_stage(design) == ran.costs.layers else list(ran.costs.layers)


def run_metrics(last: Mapping[str, Any] | None, done: int, total: int, typical_s: float | None) -> list[list[str]]:
    """Return pairs of value and name. The step time is that of the last step until the median is known."""
    if last is None:
        return [["-", "loss"], ["-", "steps"], ["-", "last step"], ["-", "tokens/s"]]
    step = last
    if typical_s:
        step = {**last, "seconds": typical_s, "tokens_per_s": last["tokens_per_s"] * last["seconds"] / typical_s}
    return [
        [loss_text(last["loss"]), "loss"] if "loss" in last else ["dry run", "no loss"],
        [f"{done} of {total}", "steps"],
        [format_step_time(step), "median step" if typical_s else "last step"],
        [quantity(step["tokens_per_s"], ""), "tokens/s" if last.get("unit", "s") == "s" else "tokens per cost unit"],
    ]


def describe_status(entry: Entry, done: int, last: Mapping[str, Any] | None, waiting: str = "") -> str:
    """Return the status text next to the launch button; ``waiting`` is the reason why the run is in a queue."""
    state = entry.state
    if waiting:
        return f"queued: {waiting}"
    if state is State.STARTING or (state is State.RUNNING and last is None):
        return "starting ..."
    prefix = mode_prefix(entry)
    if state is State.RUNNING:
        silence = silence_text(entry, reason=False)
        return f"{prefix}step {done} of {entry.steps}{loss_suffix(last)}" + (f"; {silence}" if silence else "")
    if state is State.SUCCEEDED:
        return f"{prefix}done: {done} steps{loss_suffix(last)}"
    word = str(state).lower()
    if state is State.CANCELLED:
        return entry.reason or word  # the reason includes the time
    return f"{word}: {entry.reason}" if entry.reason else word


def mode_prefix(entry: Entry) -> str:
    """Return the mode of a run that is not plain training, as a prefix."""
    return f"{entry.manner}: " if entry.manner else ""
