"""Edits of the pipeline section: layers per stage, choice of a schedule, and a hand-drawn order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwave.designer.state import expert_edits
from meshwave.engine import messages
from meshwave.engine.document import Design
from meshwave.engine.document.fixes import apply_edits, parse_path
from meshwave.engine.document.pipeline_problems import schedule_refusal
from meshwave.engine.document.problems import problems
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError, Problem, Refusal
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.program import Program, format_program
from meshwave.engine.schedules import Schedule, schedules

STAGE_SETTINGS = ("stages", "placement")
"""Keys of the pipeline section with a value per stage; null means that Meshwave or the schedule chooses the values."""
LARGEST_BY_HAND = 200_000
"""Largest number of actions of an order that can be edited by hand; an edit of such an order takes 0.5 s."""


def move_layers(layers: Sequence[int], boundary: int, count: int, least: int = 1) -> tuple[int, ...]:
    """Move ``count`` layers from stage ``boundary`` to the next one, or back if negative.

    Raises:
        Refusal: a stage would keep fewer than ``least`` layers, or there is no such boundary.
    """
    if not 0 <= boundary < len(layers) - 1:
        raise Refusal("unknown_boundary", {"stage": boundary, "stages": len(layers)})
    giver, taker = (boundary, boundary + 1) if count >= 0 else (boundary + 1, boundary)
    left = layers[giver] - abs(count)
    if left < least:
        params = {"stage": giver, "layers": layers[giver], "minimum": least, "count": abs(count), "other": taker}
        raise Refusal("too_few_layers_left", params)
    moved = list(layers)
    moved[giver] = left
    moved[taker] += abs(count)
    return tuple(moved)


def choose_schedule(design: Design, name: str) -> dict[str, Any]:
    """Return the pipeline section with another schedule; options that both schedules have keep their values.

    Layers per stage and placement are kept where the routes of the stages stay the same, else they are reset to
    automatic. The schedule ``custom`` starts from the current order.

    Raises:
        DesignError: the schedule cannot order this pipeline.
    """
    pipeline = design.pipeline.model_dump(mode="json")
    if refusal := choice_refusal(design, name):
        raise DesignError([refusal])
    if name == pipeline["schedule"]:
        return pipeline
    chosen = {**schedule_options(name, pipeline), "schedule": name, "microbatches": pipeline["microbatches"]}
    if name == "custom":
        kept = {key: pipeline[key] for key in ("stages", "recompute")}
        return {**chosen, **kept, "actions": pipeline["actions"] or format_program(lower(design), compute_only=True)}
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


def fix_edit(design: Design, problem: Problem | None, label: str) -> tuple[str, dict[str, Any], str]:
    """Return the path, value and label of the edit that applies a fix of a problem.

    Raises:
        Refusal: the problem has no such fix, because it was solved or changed since it was shown.
    """
    fix = next((fix for fix in problem.fixes if fix.label == label), None) if problem else None
    if fix is None:
        raise Refusal("changed_problem")
    changed = apply_edits(design.model_dump(mode="json"), fix.edits)
    sections = dict.fromkeys(str(parse_path(path)[0]) for path, _ in fix.edits)
    return "", {section: changed[section] for section in sections}, label


def reset_stage_settings(design: Design, before: Design) -> Design:
    """Adapt settings per stage or per expert where an edit changed the number of stages or experts.

    Layers and placement become automatic; costs per stage are spread over the new stages. Costs that the edit set stay,
    so that a wrong number of them is shown as a problem.
    """
    design = expert_edits.drop_misfit_placement(design)
    try:
        count = design.stages
    except InputError:
        return design
    pipeline = design.pipeline
    given = {key: getattr(pipeline, key) for key in STAGE_SETTINGS}
    gone = {key: None for key, value in given.items() if value is not None and len(value) != count}
    cost = design.cost
    if cost.stage_costs == before.cost.stage_costs and _has_matching_stage_costs(before):
        cost = cost.redistribute_costs(count)
    return design.model_copy(update={"cost": cost, "pipeline": pipeline.model_copy(update=gone)})


def _has_matching_stage_costs(design: Design) -> bool:
    """Return whether the costs per stage of a design, if it gives any, are as many as its stages."""
    given = design.cost.stage_costs
    try:
        return given is None or given.stages == design.stages
    except InputError:
        return False


def choice_refusal(design: Design, name: str) -> Problem | None:
    """Return the reason why a schedule cannot be selected for the meshes, microbatches and layers; None if it can."""
    pipeline = design.pipeline.model_dump(mode="json")
    if name == pipeline["schedule"]:
        return None
    if name == "custom":
        return None if pipeline["actions"] else _drawing_refusal(design)
    return schedule_refusal(design, schedule_with(name, pipeline))


def schedule_options(name: str, pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a schedule with the values of a pipeline section, else their defaults."""
    return {key: pipeline.get(key, field.get_default()) for key, field in schedules[name].model_fields.items()}


def schedule_with(name: str, pipeline: Mapping[str, Any], **changes: Any) -> Schedule:
    """Return a schedule with the option values of a pipeline section."""
    return schedules[name](**{**schedule_options(name, pipeline), **changes})


def _drawing_refusal(design: Design) -> Problem | None:
    """Return the reason why a custom order cannot start from the current order; None if it can."""
    if any(problem.severity == "error" for problem in problems(design)):
        return Problem("pipeline.schedule", "no_order_to_draw")
    actions = 2 * design.stages * design.pipe.microbatches
    if actions > LARGEST_BY_HAND:
        params = {"actions": actions, "maximum": LARGEST_BY_HAND}
        return Problem("pipeline.microbatches", "large_order_to_draw", params)
    return None


messages.add_messages(
    no_order_to_draw="A custom schedule starts from the current order, and this design has no valid order; fix its problems first",
    large_order_to_draw=(
        "A custom schedule would start from {actions:,} actions, and at most {maximum:,} can be drawn; use fewer microbatches"
    ),
)


def _stage_routes(schedule: Schedule, design: Design) -> list[list[int]] | None:
    """Return the rank of each stage for every replica; None for an incomplete draft or too many stages."""
    try:
        if schedule.stage_count(design.ranks) > design.model.layers:
            return None
        return [list(route) for route in schedule.routes(design.pipe)]
    except InputError:
        return None
