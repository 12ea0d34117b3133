"""Cards of designs on the start page: name, schedule, step time and a picture of the timeline."""

from __future__ import annotations

from typing import Any

from meshwave.designer.state.schedule_pictures import schedule_picture
from meshwave.engine.document import Design
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.schedules import schedules
from meshwave.engine.units import duration, format_count

LARGEST_EXACT_CARD = 400
"""Largest number of computations of a timeline whose picture is drawn block by block."""


def design_card(design: Design, prediction: Prediction | None) -> dict[str, Any]:
    """Return the card of a design; without a prediction it has no step time and no picture."""
    meshes = format_count(len(design.meshes), "mesh", "meshes")
    card = {"name": design.name, "schedule": schedules[design.pipeline.schedule].title, "meshes": meshes}
    if prediction is None:
        return card | {"step": "", "picture": None}
    step = duration(prediction.timeline.makespan, prediction.costs.unit)
    return card | {"step": step, "picture": schedule_picture(prediction.timeline, LARGEST_EXACT_CARD)}


def predicted_card(design: Design) -> dict[str, Any]:
    """Return the card of a design, with its step time if the design can be predicted."""
    try:
        return design_card(design, predict(design))
    except MeshwaveError:
        return design_card(design, None)
