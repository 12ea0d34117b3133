"""Problems of the pipeline of a design: schedule, hand-drawn orders, and stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from meshwave.engine.document.fixes import mesh_count_fixes, remove_action_fix
from meshwave.engine.errors import InputError
from meshwave.engine.findings import Fix, Problem, Refusal, set_key_fix
from meshwave.engine.program.action import Action, Op, parse_cell, parse_cells
from meshwave.engine.schedules import Schedule, microbatch_fixes

if TYPE_CHECKING:
    from meshwave.engine.document.design import Design

LARGEST_STEP = 4_000_000
"""Maximum number of computations of a step; lowering and simulating as many takes some seconds."""


def schedule_problems(design: Design) -> Iterator[Problem]:
    """Yield a problem if the schedule cannot order this pipeline."""
    refusal = design.pipeline.refusal(design.pipe)
    if refusal is not None:
        problem = refusal.with_path_prefix("pipeline")
        counts = problem.params.get("mesh_counts", ())
        yield problem.replace(fixes=(*problem.fixes, *mesh_count_fixes(design.meshes, design.cluster, counts)))


def schedule_refusal(design: Design, schedule: Schedule) -> Problem | None:
    """Return the reason why a schedule cannot be used for the meshes, microbatches and layers of a design, or None."""
    stages, layers = schedule.stage_count(design.ranks), design.model.layers
    if stages > layers:
        return _too_few_layers(design, stages)
    return schedule.refusal(design.pipe)


# ---- hand-drawn orders ----


def order_problems(design: Design) -> Iterator[Problem]:
    """Yield problems of the actions of a custom schedule, and of actions given for another schedule."""
    name, actions = design.pipeline.schedule, design.pipeline.actions
    where = "pipeline.actions"
    if actions is None:
        if name == "custom":
            yield Problem(where, "missing_orders")
        return
    if name != "custom":
        yield Problem(where, "unused_orders", {"schedule": name}, fixes=[set_key_fix(where, None)])
        return
    if design.pipeline.placement is not None:
        placement = "pipeline.placement"
        yield Problem(placement, "unused_placement", fixes=[set_key_fix(placement, None)])
    if len(actions) != design.ranks:
        yield Problem(where, "order_count", {"given": len(actions), "expected": design.ranks})
    for rank, order in enumerate(actions):
        if not _is_valid(order, design.pipeline.microbatches, design.model.layers):
            for number in range(len(order)):
                yield from _cell_problems(design, rank, number)


@lru_cache(maxsize=1024)  # an edit changes the order of one mesh, but all orders are checked
def _is_valid(order: tuple[str, ...], microbatches: int, stages: int) -> bool:
    """Return True if all cells of an order are computations of this model and step."""
    try:
        actions = parse_cells(order)
    except InputError:
        return False
    return all(op <= Op.W and mb < microbatches and stage < stages for op, stage, mb, *_ in actions)


def _cell_problems(design: Design, rank: int, number: int) -> Iterator[Problem]:
    assert design.pipeline.actions is not None
    cell, where = design.pipeline.actions[rank][number], f"pipeline.actions[{rank}][{number}]"
    remove = remove_action_fix(where, cell)
    try:
        actions = parse_cell(cell)
    except Refusal as error:
        yield error.problem.replace(where=where, fixes=(remove,))
        return
    for action in actions:
        yield from _action_problems(design, where, action, remove)


def _action_problems(design: Design, where: str, action: Action, remove: Fix) -> Iterator[Problem]:
    microbatches, layers = design.pipeline.microbatches, design.model.layers
    if action.op > Op.W:
        yield Problem(where, "unnecessary_action", {"action": str(action)}, fixes=[remove])
    elif action.microbatch >= microbatches:
        params = {"action": str(action), "microbatch": action.microbatch, "microbatches": microbatches}
        yield Problem(where, "unknown_microbatch", params, fixes=[remove])
    elif action.stage >= layers:
        params = {"action": str(action), "stage": action.stage, "layers": layers}
        yield Problem(where, "undefined_stage", params, fixes=[remove])


# ---- stages ----

UNCOUNTABLE_STAGES = {
    "unknown_action",
    "wrong_slot",
    "unnecessary_action",
    "unknown_microbatch",
    "undefined_stage",
    "missing_orders",
}
"""Codes of problems of a hand-drawn order that make its number of stages undefined."""


def stage_problems(design: Design, valid: frozenset[str], found: Sequence[Problem]) -> Iterator[Problem]:
    """Yield problems of the stages, if the ``valid`` sections and the problems ``found`` so far define the stages."""
    errors = {problem.code for problem in found if problem.severity == "error"}
    if design.pipeline.schedule == "custom" and ("model" not in valid or errors & UNCOUNTABLE_STAGES):
        return
    if "model" in valid:
        yield from _layer_problems(design)
    if "cost" in valid:
        yield from _stage_cost_problems(design)
    too_large = list(_size_problems(design))
    yield from too_large
    if not too_large and design.pipeline.refusal(design.pipe) is None:
        yield from _placement_problems(design)
    yield from _recompute_problems(design)


def _layer_problems(design: Design) -> Iterator[Problem]:
    count, given, layers = design.stages, design.pipeline.stages, design.model.layers
    where, balance = "pipeline.stages", Fix("balance_stages", {}, (("pipeline.stages", None),))
    if given is not None and len(given) != count:
        params = {"schedule": design.pipeline.schedule, "stages": count, "given": len(given)}
        yield Problem(where, "stage_count", params, fixes=[balance])
    elif given is not None and sum(given) != layers:
        fixes = [balance, *([set_key_fix("model.layers", sum(given))] if _can_set_layers(design) else [])]
        yield Problem(where, "stage_layers", {"given": sum(given), "layers": layers}, fixes=fixes)
    elif given is not None and given[-1] < design.model.architecture.mtp_layers:
        params = {"mtp_layers": design.model.architecture.mtp_layers, "given": given[-1]}
        yield Problem(where, "divided_mtp_layers", params, fixes=[balance])
    elif count > layers:
        yield _too_few_layers(design, count)
    elif count + design.model.architecture.mtp_layers > layers + 1:
        params = {"mtp_layers": design.model.architecture.mtp_layers, "given": layers + 1 - count}
        yield Problem("model.mtp_layers", "divided_mtp_layers", params, fixes=[set_key_fix("model.mtp_layers", 0)])


def _stage_cost_problems(design: Design) -> Iterator[Problem]:
    given, where = design.cost.stage_costs, "cost.stage_costs"
    if given is not None and given.stages != design.stages:
        params = {"given": given.stages, "stages": design.stages}
        spread = given.redistribute(design.stages).model_dump(mode="json")
        fixes = [
            Fix("spread_stage_costs", {"stages": design.stages}, ((where, spread),)),
            Fix("remove_stage_costs", {}, ((where, None),)),
        ]
        yield Problem(where, "stage_cost_count", params, fixes=fixes)


def _too_few_layers(design: Design, stages: int) -> Problem:
    where = "model.layers"
    fixes = [set_key_fix(where, stages)] if _can_set_layers(design) else []
    return Problem(where, "too_few_layers", {"stages": stages, "layers": design.model.layers}, fixes=fixes)


def _can_set_layers(design: Design) -> bool:
    """Return True if the number of layers is a key of the model, rather than computed from other keys."""
    return "layers" in type(design.model).model_fields


def _size_problems(design: Design) -> Iterator[Problem]:
    stages, microbatches = design.stages, design.pipeline.microbatches
    computations = 2 * stages * microbatches
    if computations > LARGEST_STEP:
        sizes = {"stages": stages, "microbatches": microbatches, "computations": computations}
        fewer = LARGEST_STEP // (2 * stages)
        fixes = [fix.with_path_prefix("pipeline") for fix in microbatch_fixes(fewer)]
        yield Problem("pipeline.microbatches", "step_size", {**sizes, "maximum": LARGEST_STEP}, fixes=fixes)


def _placement_problems(design: Design) -> Iterator[Problem]:
    given = design.pipeline.placement
    if given is None or design.pipeline.schedule == "custom":  # order_problems reports it
        return
    where = "pipeline.placement"
    unknown = [(stage, mesh) for stage, mesh in enumerate(given) if mesh >= design.ranks]
    own = list(design.pipeline.routes(design.pipe)[0])
    fixes = [Fix("default_placement", {}, ((where, None),))]
    if unknown:
        stage, mesh = unknown[0]
        params = {"stage": stage, "mesh": mesh, "last": design.ranks - 1}
        yield Problem(f"{where}[{stage}]", "placement_mesh", params, fixes=fixes)
    elif len(given) != design.stages:
        yield Problem(where, "placement_count", {"stages": design.stages, "given": len(given)}, fixes=fixes)
    elif meshes_by_rank(own, given) is None:
        yield Problem(where, "unsupported_placement", {"schedule": design.pipeline.schedule, "own": own}, fixes=fixes)


def _recompute_problems(design: Design) -> Iterator[Problem]:
    given = design.pipeline.recompute
    if not isinstance(given, tuple):
        return
    for number, stage in enumerate(given):
        where = f"pipeline.recompute[{number}]"
        valid = sorted({each for each in given if each < design.stages})
        fixes = [set_key_fix("pipeline.recompute", valid)]
        if stage >= design.stages:
            params = {"stage": stage, "last": design.stages - 1}
            yield Problem(where, "unknown_recomputed_stage", params, fixes=fixes)
        elif stage in given[:number]:
            yield Problem(where, "repeated_recomputed_stage", {"stage": stage}, fixes=fixes)


def meshes_by_rank(own: list[int], given: tuple[int, ...]) -> dict[int, int] | None:
    """Return the mesh of each rank if renumbering the ranks turns placement ``own`` into ``given``; otherwise None."""
    meshes: dict[int, int] = {}
    for rank, mesh in zip(own, given, strict=True):
        if meshes.setdefault(rank, mesh) != mesh:
            return None
    return meshes if len(set(meshes.values())) == len(meshes) else None
