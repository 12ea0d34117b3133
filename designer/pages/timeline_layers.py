"""Layers of the page's timeline: pinned designs, the open design, and the run overlaid on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwave.designer.state.design_edits import LARGEST_BY_HAND
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.predictions import count_computations
from meshwave.designer.views.followed_runs import RunTimeline
from meshwave.designer.views.lane_groups import group_lanes, group_ports
from meshwave.designer.views.timeline import Pin
from meshwave.designer.views.timeline_columns import Layer
from meshwave.designer.views.timeline_links import find_link_lanes
from meshwave.engine.document.differences import distinct_titles
from meshwave.engine.findings import Refusal
from meshwave.engine.predict.order_consequences import simulate_blocked_order
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.predict.questions import stage_flops
from meshwave.engine.program.blocked_order import BlockedOrder
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.units import quantity

FEW_MESHES = 10
"""Largest number of meshes whose memory the timeline draws by category, and as curves."""


def find_blocked_order(session: Session) -> BlockedOrder | None:
    """Return the order of a design whose only problem is a deadlock; None for all others, and for long orders."""
    design = session.design
    if {problem.code for problem in session.errors} != {"deadlock"} or count_computations(design) > LARGEST_BY_HAND:
        return None
    return simulate_blocked_order(design)


def timeline_layers(
    session: Session,
    tried: Prediction | None = None,
    *,
    links: bool = False,
    devices: bool = False,
    blocked: BlockedOrder | None = None,
) -> list[Layer]:
    """Return the layers of the timeline: pinned designs, the open design with slowdowns and as it is, the overlaid run.

    ``tried`` is shown instead of the open design, its slowdowns and the run during a gesture. ``links`` adds lanes of
    the links to the open design, ``devices`` adds lanes of the links of each device. ``blocked`` is shown instead of the
    last valid design.
    """
    prediction = tried or session.prediction
    pinned = [each for each in session.pinned if _has_same_axis(each, prediction)]
    *titles, title = distinct_titles([*(each.design for each in pinned), session.design])
    shown = [prediction_layer(each, f"Pinned: {title}") for each, title in zip(pinned, titles, strict=True)]
    if blocked is not None and tried is None:
        return [*shown, _blocked_layer(blocked, session)]
    if session.slowed is not None and prediction is not None and tried is None:
        groups = group_lanes(session.slowed, prediction.design)
        shown.append(Layer(session.slowed, "With slowdowns", unit=prediction.costs.unit, groups=groups))
    if prediction is not None:
        layer = prediction_layer(prediction, title if prediction.design is session.design else prediction.design.name)
        shown.append(_with_links(layer, prediction, devices=devices) if links else layer)
        if session.measured is not None and tried is None:
            shown.append(_measured_layer(session.measured, prediction))
    return shown


def _blocked_layer(blocked: BlockedOrder, session: Session) -> Layer:
    timeline, design = blocked.timeline, session.design
    unit = design.cost.unit
    return Layer(timeline, design.name, unit=unit, blocked=blocked.is_blocked, groups=group_lanes(timeline, design))


def _with_links(layer: Layer, prediction: Prediction, *, devices: bool) -> Layer:
    """Return a layer with the lanes of the links, and their groups."""
    lanes = find_link_lanes(prediction, devices=devices)
    ports = [] if isinstance(lanes, str) else [lane.load.port for lane in lanes.lanes]
    return replace(layer, links=lanes, port_groups=group_ports(ports, layer.groups, prediction.design))


def run_layers(run: RunTimeline) -> tuple[list[Layer], list[str]]:
    """Return the layers of a run of another design, measured over predicted, and the navigation path to them."""
    path = ["Open design", run.name]
    if run.prediction is None:
        return [Layer(run.measured, "Measured", groups=group_lanes(run.measured))], path
    layers = [prediction_layer(run.prediction, "Predicted"), _measured_layer(run.measured, run.prediction)]
    return [replace(layer, opens=False, crosses=False) for layer in layers], path


def pinned_prediction(session: Session, block: Pin) -> Prediction:
    """Return the prediction with the pinned block.

    Raises:
        InputError: the prediction is no longer shown, or no longer has the block.
    """
    shown = [pinned for pinned in session.pinned if _has_same_axis(pinned, session.prediction)]
    slowed = [session.prediction] if session.slowed is not None else []
    predictions: list[Prediction | None] = [*shown, *slowed, session.prediction]
    if session.measured is not None:
        predictions.append(session.prediction)  # the layer of the overlaid run
    found = predictions[block.layer] if block.layer < len(predictions) else None
    if found is None:
        raise Refusal("outdated_timeline")
    program, action = found.program, block.action
    here = (program.rank == block.rank) & (program.op == action.op)
    if not (here & (program.stage == action.stage) & (program.microbatch == action.microbatch)).any():
        raise Refusal("outdated_action", {"action": str(action)})
    return found


def _has_same_axis(pinned: Prediction, prediction: Prediction | None) -> bool:
    """Return whether two predictions have the same unit of time, seconds or cost units."""
    return prediction is None or pinned.costs.unit == prediction.costs.unit


def _measured_layer(timeline: Timeline, prediction: Prediction) -> Layer:
    """Return the layer of a run, to be drawn over its prediction.

    With unit costs a measured timeline is scaled to the length of the prediction. A dry run has the unit of the
    prediction, and no details of its blocks.
    """
    unit, groups = prediction.costs.unit, group_lanes(timeline, prediction.design)
    doubt = f", clock resolution {quantity(timeline.doubt_s, 's')}" if timeline.doubt_s else ""
    if timeline.source == "rehearsed":
        return Layer(timeline, f"Dry run{doubt}", unit=unit, over=True, groups=groups)
    if unit == "s" or not timeline.makespan:
        return Layer(timeline, f"Measured{doubt}", unit=unit, over=True, opens=unit == "s", groups=groups)
    stretch = prediction.timeline.makespan / timeline.makespan
    stretched = replace(timeline, start=timeline.start * stretch, end=timeline.end * stretch)
    return Layer(stretched, "Measured, scaled to the predicted length", unit=unit, over=True, groups=groups)


def prediction_layer(prediction: Prediction, label: str) -> Layer:
    """Return the layer of a prediction."""
    timeline = prediction.timeline
    critical = np.zeros(len(timeline), np.bool_)
    critical[timeline.critical_path] = True
    return Layer(
        timeline,
        label,
        memory=prediction.memory_curves,
        memory_parts=prediction.memory_parts if timeline.ranks <= FEW_MESHES else (),
        capacity=prediction.costs.capacity_bytes,
        critical=critical,
        stages_layers=prediction.costs.layers,
        unit=prediction.costs.unit,
        bytes=prediction.costs.bytes[prediction.program.spans],
        work=stage_flops(prediction.design, prediction.program, prediction.costs),
        priced=(prediction.program, prediction.costs),
        opens=prediction.costs.unit == "s",
        crosses=True,
        find_flows=lambda: prediction.link_flows,
        prediction=prediction,
        groups=group_lanes(timeline, prediction.design),
    )
