"""What a gesture makes of a document: plain functions from what is drawn to what is drawn next.

They work on the document's own form (``{"name", "devices", "axes"}`` for a mesh,
``{"nodes", "devices_per_node", ...}`` for a cluster; a schedule is chosen for a whole design), never change what they are given, and
refuse with an :class:`~meshwave.engine.errors.InputError` that says what is in the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwave.designer.state.mesh_edits import _count, _path
from meshwave.engine.document import Design
from meshwave.engine.document.problems import problems
from meshwave.engine.errors import InputError
from meshwave.engine.findings import Refusal
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.program import Program, format_program
from meshwave.engine.schedules import Schedule, schedules

BY_HAND = ("stages", "placement")  # what a person may set a stage, or leave to the schedule
LARGEST_BY_HAND = 200_000  # actions; an order of more is no longer drawn by hand: an edit of its document takes 0.5 s


# the pipeline


def move_layers(layers: Sequence[int], boundary: int, count: int, least: int = 1) -> tuple[int, ...]:
    """Move ``count`` layers over the boundary behind stage ``boundary`` to the next stage, or
    to it if negative; every stage keeps at least ``least``."""
    if not 0 <= boundary < len(layers) - 1:
        raise InputError(f"{len(layers)} stages have no boundary behind stage {boundary}")
    giver, taker = (boundary, boundary + 1) if count >= 0 else (boundary + 1, boundary)
    left = layers[giver] - abs(count)
    if left < least:
        has = f"stage {giver} has {_count(layers[giver], 'layer')} and keeps at least {least}"
        raise InputError(f"{has}; it cannot give {abs(count)} to stage {taker}")
    moved = list(layers)
    moved[giver] = left
    moved[taker] += abs(count)
    return tuple(moved)


def choose_schedule(design: Design, name: str) -> dict[str, Any]:
    """The pipeline under another schedule, with its own options, of which the common ones keep their values.

    Layers and places set by hand stay where the stages keep their number and meshes, else they
    go back to automatic. Custom starts from the order that stands.

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
    same_path = _path(schedule_with(name, pipeline), design) == _path(old, design)
    kept = {key: pipeline[key] if same_path else None for key in BY_HAND}
    by_number = not isinstance(pipeline["recompute"], str)  # of stages, which another path has not
    return {**chosen, **kept, "recompute": "none" if by_number and not same_path else pipeline["recompute"]}


def by_hand(design: Design, order: Program) -> dict[str, Any]:
    """The pipeline with an order of its computations that was drawn by hand; a named schedule becomes custom.

    Layers and recomputation stay with their stages.

    Raises:
        Refusal: the order is too long to be drawn.
    """
    if len(order) > LARGEST_BY_HAND:
        raise Refusal("order_too_long_to_edit", {"blocks": len(order), "most": LARGEST_BY_HAND})
    pipeline = design.pipeline.model_dump(mode="json")
    kept = {key: pipeline[key] for key in ("microbatches", "stages", "recompute")}
    return {"schedule": "custom", **kept, "actions": format_program(order)}


def schedule_refusal(design: Design, name: str) -> str | None:
    """Why a schedule cannot be chosen for these meshes, microbatches and layers, in a sentence; None if it can."""
    pipeline = design.pipeline.model_dump(mode="json")
    if name == pipeline["schedule"]:
        return None
    if name == "custom":
        return None if pipeline["actions"] else _unfit_to_draw(design)
    schedule = schedule_with(name, pipeline)
    stages, layers = schedule.stage_count(design.ranks), design.model.layers
    if stages > layers:
        words = f"{schedule.title} cuts {stages} stages here, and the model has {layers} layers"
        return f"{words}; use fewer meshes or more layers"
    return schedule.refuses(design.pipe)


def schedule_options(name: str, pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a schedule adds: as a pipeline has them, else at their defaults."""
    return {key: pipeline.get(key, field.get_default()) for key, field in schedules[name].model_fields.items()}


def schedule_with(name: str, pipeline: Mapping[str, Any], **changes: Any) -> Schedule:
    """A schedule with the values that a pipeline has for its options."""
    return schedules[name](**{**schedule_options(name, pipeline), **changes})


def _unfit_to_draw(design: Design) -> str | None:
    """Why there is no order that a drawn one could start from."""
    if any(problem.severity == "error" for problem in problems(design)):
        return "Custom starts from the order that stands, and this design has none yet; solve its problems first"
    actions = 2 * design.stages * design.pipe.microbatches
    if actions > LARGEST_BY_HAND:
        return f"Custom would start from {actions:,} actions, and up to {LARGEST_BY_HAND:,} can be drawn; use fewer microbatches"
    return None


def _order(design: Design) -> list[list[str]]:
    """The computations of each mesh as they stand, also where stages were placed by hand."""
    return format_program(lower(design), compute_only=True)
