"""The page: its pieces, where they lie, and how they hear of each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwave.designer.state.design_session import Session
from meshwave.designer.views.timeline import Layer, Pin
from meshwave.designer.views.timeline_links import links_of
from meshwave.engine.errors import InputError
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.predict.questions import stage_flops
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.units import quantity


def layers(
    session: Session, tried: Prediction | None = None, *, links: bool = False, devices: bool = False
) -> list[Layer]:
    """What the timeline shows: the pinned designs above the open one, and a run laid over that;
    in place of both what is ``tried`` while a gesture is under way. With ``links`` the open design has lanes of its
    links, with ``devices`` of those of each device too."""
    prediction = tried or session.prediction
    shown = []
    for pinned in session.pinned:
        if _same_axis(pinned, prediction):
            shown.append(_layer(pinned, f"Pinned: {pinned.design.name}"))
    if prediction is not None:
        lanes = links_of(prediction, devices=devices) if links else None
        shown.append(replace(_layer(prediction, prediction.design.name), links=lanes))
        if session.measured is not None and tried is None:
            shown.append(_measured(session.measured, prediction))
    return shown


def _of_pin(session: Session, block: Pin) -> Prediction:
    """The prediction whose block was pinned.

    Raises:
        InputError: it is no longer shown, or has no such block any more.
    """
    shown = [pinned for pinned in session.pinned if _same_axis(pinned, session.prediction)]
    predictions: list[Prediction | None] = [*shown, session.prediction]
    if session.measured is not None:
        predictions.append(session.prediction)  # a run of it lies over it
    found = predictions[block.layer] if block.layer < len(predictions) else None
    if found is None:
        raise InputError("that timeline is no longer shown")
    program, action = found.program, block.action
    here = (program.rank == block.rank) & (program.op == action.op)
    if not (here & (program.stage == action.stage) & (program.microbatch == action.microbatch)).any():
        raise InputError(f"there is no {action} on this mesh any more")
    return found


def _same_axis(pinned: Prediction, prediction: Prediction | None) -> bool:
    """Units and seconds have no axis in common; the numbers still tell what changed."""
    return prediction is None or pinned.costs.unit == prediction.costs.unit


def _measured(timeline: Timeline, prediction: Prediction) -> Layer:
    """A run over the prediction; unit costs are no seconds, so there it is stretched to the same length. A rehearsal
    is told in what it stands for, which may be units; it has nothing to look into."""
    unit = prediction.costs.unit
    doubt = f", clocks aligned to within {quantity(timeline.doubt_s, 's')}" if timeline.doubt_s else ""
    if timeline.source == "rehearsed":
        return Layer(timeline, f"Rehearsed{doubt}", unit=unit, over=True)
    if unit == "s" or not timeline.makespan:
        return Layer(timeline, f"Measured{doubt}", unit=unit, over=True, opens=unit == "s")
    stretch = prediction.timeline.makespan / timeline.makespan
    stretched = replace(timeline, start=timeline.start * stretch, end=timeline.end * stretch)
    return Layer(stretched, "Measured, stretched to the predicted length", unit=unit, over=True)


def _layer(prediction: Prediction, label: str) -> Layer:
    timeline = prediction.timeline
    critical = np.zeros(len(timeline), np.bool_)
    critical[timeline.critical_path] = True
    return Layer(
        timeline,
        label,
        memory=prediction.memory_curves,
        capacity=prediction.costs.capacity_bytes,
        critical=critical,
        stages_layers=prediction.costs.layers,
        unit=prediction.costs.unit,
        bytes=prediction.costs.bytes[prediction.program.spans],
        work=stage_flops(prediction.design, prediction.program, prediction.costs),
        played=(prediction.program, prediction.costs),
        opens=prediction.costs.unit == "s",
        crosses=True,
        find_flows=lambda: prediction.link_flows,
    )
