"""Edits of the pipeline section: layers per stage, choice of a schedule, and a hand-drawn order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwave.engine.document import Design
from meshwave.engine.document.problems import problems
from meshwave.engine.errors import InputError
from meshwave.engine.findings import Refusal
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.program import Program, format_program
from meshwave.engine.schedules import Schedule, schedules
from meshwave.engine.units import format_count

STAGE_SETTINGS = ("stages", "placement")
"""Keys of the pipeline with a value per stage, or null for the schedule's own."""
LARGEST_BY_HAND = 200_000
"""Actions of the longest order that is edited by hand; an edit of it takes 0.5 s."""


def move_layers(layers: Sequence[int], boundary: int, count: int, least: int = 1) -> tuple[int, ...]:
    """Move ``count`` layers from stage ``boundary`` to the next one, or back if negative.

    Raises:
        InputError: a stage would keep fewer than ``least`` layers, or there is no such boundary.
    """
    if not 0 <= boundary < len(layers) - 1:
        raise InputError(f"{len(layers)} stages have no boundary behind stage {boundary}")
    giver, taker = (boundary, boundary + 1) if count >= 0 else (boundary + 1, boundary)
    left = layers[giver] - abs(count)
    if left < least:
        has = f"stage {giver} has {format_count(layers[giver], 'layer')} and keeps at least {least}"
        raise InputError(f"{has}; it cannot give {abs(count)} to stage {taker}")
    moved = list(layers)
    moved[giver] = left
    moved[taker] += abs(count)
    return tuple(moved)


def choose_schedule(design: Design, name: str) -> dict[str, Any]:
    """Return the pipeline section with another schedule; options that both schedules have keep their values.

    Layers per stage and placement are kept where the routes of the stages stay the same, else they are reset to
    automatic. Custom starts from the present order.

    Raises:
        InputError: the schedule cannot order this pipeline.
    """
    pipeline = design.pipeline.model_dump(mode="json")
    if reason := schedule_refusal(design, name):
        raise InputError(reason)
    if name == pipeline["schedule"]:
        return pipeline
    chosen = {**schedule_options(name, pipeline), "schedule": name, "microbatches": pipeline["microbatches"]}
    if name == "custom":
        kept = {key: pipeline[key] for key in ("stages", "recompute")}
        return {**chosen, **kept, "actions": pipeline["actions"] or _order(design)}
    old: Any = design.pipeline
    same_path = _stage_routes(schedule_with(name, pipeline), design) == _stage_routes(old, design)
    kept = {key: pipeline[key] if same_path else None for key in STAGE_SETTINGS}
    by_number = not isinstance(pipeline["recompute"], str)  # stage numbers, which other routes do not have
    return {**chosen, **kept, "recompute": "none" if by_number and not same_path else pipeline["recompute"]}


def custom_pipeline(design: Design, order: Program) -> dict[str, Any]:
    """Return the pipeline section of schedule ``custom`` with the given order of computations.

    Layers per stage and recomputation are kept.

    Raises:
        Refusal: the order is too long to be edited by hand.
    """
    if len(order) > LARGEST_BY_HAND:
        raise Refusal("order_too_long_to_edit", {"blocks": len(order), "most": LARGEST_BY_HAND})
    pipeline = design.pipeline.model_dump(mode="json")
    kept = {key: pipeline[key] for key in ("microbatches", "stages", "recompute")}
    return {"schedule": "custom", **kept, "actions": format_program(order)}


def schedule_refusal(design: Design, name: str) -> str | None:
    """Return a sentence that says why a schedule cannot be chosen for the design; None if it can."""
    pipeline = design.pipeline.model_dump(mode="json")
    if name == pipeline["schedule"]:
        return None
    if name == "custom":
        return None if pipeline["actions"] else _custom_refusal(design)
    schedule = schedule_with(name, pipeline)
    stages, layers = schedule.stage_count(design.ranks), design.model.layers
    if stages > layers:
        words = f"{schedule.title} cuts {stages} stages here, and the model has {layers} layers"
        return f"{words}; use fewer meshes or more layers"
    return schedule.refuses(design.pipe)


def schedule_options(name: str, pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a schedule with the values of a pipeline section, else their defaults."""
    return {key: pipeline.get(key, field.get_default()) for key, field in schedules[name].model_fields.items()}


def schedule_with(name: str, pipeline: Mapping[str, Any], **changes: Any) -> Schedule:
    """Return a schedule with the option values of a pipeline section."""
    return schedules[name](**{**schedule_options(name, pipeline), **changes})


def _custom_refusal(design: Design) -> str | None:
    """Return why the design has no order to start a custom one from; None if it has."""
    if any(problem.severity == "error" for problem in problems(design)):
        return "Custom starts from the order that stands, and this design has none yet; solve its problems first"
    actions = 2 * design.stages * design.pipe.microbatches
    if actions > LARGEST_BY_HAND:
        return f"Custom would start from {actions:,} actions, and up to {LARGEST_BY_HAND:,} can be drawn; use fewer microbatches"
    return None


def _order(design: Design) -> list[list[str]]:
    """Return the present order of computations of each mesh, placement by hand included."""
    return format_program(lower(design), compute_only=True)


def _stage_routes(schedule: Schedule, design: Design) -> list[list[int]] | None:
    """Return the rank of each stage for every replica; None for an incomplete draft or too many stages."""
    try:
        if schedule.stage_count(design.ranks) > design.model.layers:
            return None
        return [list(route) for route in schedule.routes(design.pipe)]
    except InputError:
        return None
