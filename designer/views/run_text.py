"""Launch the open design and follow it: the Python face of ``static/panels/runs.js``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwave.engine.costs import layers_per_stage
from meshwave.engine.document import Design
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.runs import Entry, State, loss_in_words, loss_of, step_time
from meshwave.engine.runs.run_comparison import TIMELESS_KEYS
from meshwave.engine.units import quantity

MEANS = ("model", "meshes", "pipeline", "training")


def _meaning(design: Design) -> dict[str, Any]:
    """What a step computes."""
    document = design.model_dump(mode="json", include=set(MEANS))
    document["training"] = {key: value for key, value in document["training"].items() if key not in TIMELESS_KEYS}
    return document


def _stages(design: Design, ran: Prediction) -> list[int] | None:
    """The layers of each stage: open as before where that comes to what ran, else written down."""
    given = design.pipeline.stages
    if given:
        return list(given)
    return None if layers_per_stage(design) == ran.costs.layers else list(ran.costs.layers)


def _figures(last: Mapping[str, Any] | None, done: int, total: int, typical_s: float | None) -> list[list[str]]:
    """Each a value and its name: the step is the last one until a typical one is known."""
    if last is None:
        return [["-", "loss"], ["-", "steps"], ["-", "last step"], ["-", "tokens/s"]]
    step = last
    if typical_s:
        step = {**last, "seconds": typical_s, "tokens_per_s": last["tokens_per_s"] * last["seconds"] / typical_s}
    return [
        [loss_in_words(last["loss"]), "loss"] if "loss" in last else ["rehearsed", "no loss"],
        [f"{done} of {total}", "steps"],
        [step_time(step), "typical step" if typical_s else "last step"],
        [quantity(step["tokens_per_s"], ""), "tokens/s" if last.get("unit", "s") == "s" else "tokens a unit"],
    ]


def _status(entry: Entry, done: int, last: Mapping[str, Any] | None) -> str:
    """One line beside the launch button."""
    state = entry.state
    if state is State.STARTING or (state is State.RUNNING and last is None):
        return "starting ..."
    manner = _manner(entry)
    if state is State.RUNNING:
        return f"{manner}step {done} of {entry.steps}{loss_of(last)}"
    if state is State.SUCCEEDED:
        return f"{manner}done: {done} steps{loss_of(last)}"
    word = str(state).lower()
    if state is State.CANCELLED:
        return entry.reason or word  # the reason tells when it was cancelled
    return f"{word}: {entry.reason}" if entry.reason else word


def _manner(entry: Entry) -> str:
    """How a run differs from plain training, before what else is said of it."""
    return f"{entry.manner}: " if entry.manner else ""
