"""What is wrong with a design as a whole, in words: the checks that look at several parts at once.

What is wrong with a part by itself says :mod:`meshwave.engine.document.validation_problems`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from meshwave.engine.document.expert_problems import expert_problems
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.document.partial_validation import stood_in
from meshwave.engine.document.validation_problems import heads_beside
from meshwave.engine.errors import InputError
from meshwave.engine.findings import Problem
from meshwave.engine.program.action import Action, Op, parse_cell, parse_cells
from meshwave.engine.schedules import schedules

if TYPE_CHECKING:
    from meshwave.engine.document.design import Design

LARGEST_STEP = 4_000_000
"""Computations of the largest step: some seconds to lower and simulate."""

MOST_TOLD = 20
"""Problems of one kind that are told one by one."""


def problems(design: Design) -> list[Problem]:
    """Everything that is wrong or unwise in a document whose parts are sound by themselves."""
    return told(_judged(design, frozenset(type(design).model_fields)))


def problems_beside(document: Mapping[str, Any], refused: Sequence[Problem]) -> list[Problem]:
    """What is wrong between those parts of a document that are sound, while ``refused`` is wrong with others.

    What was refused is put aside: what no check looks at gets a stand-in, so that its section can be
    judged, and the checks that look at it are not asked.
    """
    from meshwave.engine.document.design import Design

    judged, torn = stood_in(document, refused)
    try:
        design = Design.model_validate_json(json.dumps(judged))
    except ValidationError:
        return []  # wrong in a way that hides what else is
    return _judged(design, frozenset(Design.model_fields) - torn)


def told(found: Iterable[Problem]) -> list[Problem]:
    """The first problems of each kind, and how many more there are."""
    kinds: Counter[str] = Counter()
    shown: list[Problem] = []
    first: dict[str, Problem] = {}
    for problem in found:
        kinds[problem.code] += 1
        first.setdefault(problem.code, problem)
        if kinds[problem.code] <= MOST_TOLD:
            shown.append(problem)
    for code, problem in first.items():
        if kinds[code] > MOST_TOLD:
            where, more = problem.where.partition("[")[0], kinds[code] - MOST_TOLD
            shown.append(problem.replace(where=where, params=f"and {more:,} more like this"))
    return shown


def _judged(design: Design, sound: frozenset[str]) -> list[Problem]:
    """What the checks find that look at ``sound`` sections alone."""
    found = [problem for check, needs in _CHECKS.items() if sound.issuperset(needs) for problem in check(design)]
    if sound.issuperset(("meshes", "pipeline")):
        found += _stages(design, sound, found)
    return found


def _name(design: Design) -> Iterator[Problem]:
    if not design.name.strip():
        message = "the design has no name, and a list of runs could not tell it from others; give it one"
        yield Problem("name", "name_empty", message, "warning")


def _devices(design: Design) -> Iterator[Problem]:
    cluster, total = design.cluster, design.cluster.devices
    owner: dict[int, str] = {}
    for number, mesh in enumerate(design.meshes):
        where = f"meshes[{number}].devices"
        outside = [device for device in mesh.devices if device >= total]
        if outside:
            yield Problem(
                where,
                "device_outside",
                f"mesh {mesh.name} uses {_devices_named(outside)}, but the cluster has devices 0 to {total - 1} "
                f"({cluster.nodes} x {cluster.devices_per_node}); move the mesh or add nodes",
            )
        repeated = [device for device, count in Counter(mesh.devices).items() if count > 1]
        if repeated:
            message = f"mesh {mesh.name} names {_devices_named(repeated)} more than once; name each device once"
            yield Problem(where, "device_repeated", message)
        for other in dict.fromkeys(owner[device] for device in mesh.devices if device in owner):
            shared = [device for device in dict.fromkeys(mesh.devices) if owner.get(device) == other]
            yield Problem(
                where,
                "device_used_twice",
                f"{_devices_named(shared)} of mesh {mesh.name} already belong{'s' if len(shared) == 1 else ''} "
                f"to mesh {other}; a device drives one mesh",
            )
        owner.update((device, mesh.name) for device in mesh.devices if device not in owner)


def _devices_named(devices: list[int]) -> str:
    shown = ", ".join(map(str, devices[:6])) + (", ..." if len(devices) > 6 else "")
    return f"device{'s' if len(devices) > 1 else ''} {shown}"


def _mesh_names(design: Design) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for number, mesh in enumerate(design.meshes):
        if mesh.name in first:
            message = f"meshes {first[mesh.name]} and {number} are both called {mesh.name!r}; rename one"
            yield Problem(f"meshes[{number}].name", "mesh_name", message)
        first.setdefault(mesh.name, number)


def _mesh_shapes(design: Design) -> Iterator[Problem]:
    """A rectangle of the cluster's grid is what can be drawn; another set of devices runs all the same."""
    for number, mesh in enumerate(design.meshes):
        places = [divmod(device, design.cluster.devices_per_node) for device in set(mesh.devices)]
        sides = [max(side) - min(side) + 1 for side in zip(*places, strict=True)]
        if prod(sides) != len(places):
            message = (
                f"the {len(places)} devices of mesh {mesh.name} are no rectangle of nodes x devices; "
                "name neighbours, or resize it on the cluster"
            )
            yield Problem(f"meshes[{number}].devices", "mesh_shape", message, "warning")


def _tensor_parallel(design: Design) -> Iterator[Problem]:
    model = design.model
    if not isinstance(model, LanguageModel):
        yield from _no_tensor_parallel(design)
        return
    heads, width = model.heads, model.hidden
    for number, mesh in enumerate(design.meshes):
        if heads % mesh.tp:
            divisors = [size for size in range(1, heads + 1) if heads % size == 0]
            near = [*[d for d in divisors if d < mesh.tp][-1:], *[d for d in divisors if d > mesh.tp][:1]]
            suit = heads_beside(heads, width, {each.tp for each in design.meshes})
            advice = f", or {_alternatives(suit)} heads" if suit else ""
            message = (
                f"tp={mesh.tp} of mesh {mesh.name} does not divide the {heads} heads of the model; "
                f"use tp={_alternatives(near)}{advice}"
            )
            yield Problem(f"meshes[{number}].axes.tp", "tp_heads", message)


def _no_tensor_parallel(design: Design) -> Iterator[Problem]:
    for number, mesh in enumerate(design.meshes):
        if mesh.tp > 1:
            message = (
                f"a {design.model.kind} does not support tensor parallelism (tp={mesh.tp} of mesh {mesh.name}); "
                f"use tp=1 and dp={len(mesh.devices)}"
            )
            yield Problem(f"meshes[{number}].axes.tp", "tp_unsupported", message)


def _training_data(design: Design) -> Iterator[Problem]:
    if not design.model.window and design.training.data is not None:
        message = f"a {design.model.kind} makes its data from the seed and reads no text; set training.data to null"
        yield Problem("training.data", "data_unused", message)


def _alternatives(numbers: Sequence[int]) -> str:
    return " or ".join(map(str, numbers))


def _actions(design: Design) -> Iterator[Problem]:
    name, actions = design.pipeline.schedule, design.pipeline.actions
    if actions is None:
        if name == "custom":
            message = "a custom schedule needs its actions: per mesh a list such as 0F0 0B0"
            yield Problem("pipeline.actions", "actions_missing", message)
        return
    if name != "custom":
        message = f"actions are only for schedule 'custom'; {name} makes its own: remove them or change the schedule"
        yield Problem("pipeline.actions", "actions_unused", message)
        return
    if design.pipeline.placement is not None:
        message = "the orders already say where each stage lies; remove it"
        yield Problem("pipeline.placement", "placement_custom", message)
    if len(actions) != design.ranks:
        lists = "is 1 list" if len(actions) == 1 else f"are {len(actions)} lists"
        message = f"there {lists} of actions for {design.ranks} mesh{'es' * (design.ranks > 1)}; give one a mesh"
        yield Problem("pipeline.actions", "actions_ranks", message)
    for rank, order in enumerate(actions):
        if _is_sound(order, design.pipeline.microbatches, design.model.layers):
            continue
        for number, cell in enumerate(order):
            yield from _action(design, f"pipeline.actions[{rank}][{number}]", cell)


@lru_cache(maxsize=1024)  # an edit changes the order of one mesh, and all are looked at again
def _is_sound(order: tuple[str, ...], microbatches: int, stages: int) -> bool:
    """Whether all cells of an order are computations that there can be, so that none needs a word."""
    try:
        actions = parse_cells(order)
    except InputError:
        return False
    return all(op <= Op.W and mb < microbatches and stage < stages for op, stage, mb, *_ in actions)


def _action(design: Design, where: str, cell: str) -> Iterator[Problem]:
    """One cell of a hand-drawn order."""
    try:
        actions = parse_cell(cell)
    except InputError as error:
        yield Problem(where, "action", str(error))
        return
    for action in actions:
        yield from _of_the_model(design, where, action)


def _of_the_model(design: Design, where: str, action: Action) -> Iterator[Problem]:
    """An action of a stage or a microbatch that there cannot be."""
    microbatches, layers = design.pipeline.microbatches, design.model.layers
    if action.op > Op.W:
        message = f"{action} is no computation; leave sends, receives and updates out, they are added by themselves"
        yield Problem(where, "action_kind", message)
    elif action.microbatch >= microbatches:
        message = (
            f"{action} is of microbatch {action.microbatch}, but there are {microbatches} (0 to {microbatches - 1})"
        )
        yield Problem(where, "action_microbatch", message)
    elif action.stage >= layers:
        message = f"{action} is of stage {action.stage}, but {layers} layers make at most as many stages"
        yield Problem(where, "action_stage", message)


def _schedule(design: Design) -> Iterator[Problem]:
    pipeline = design.pipeline
    reason = pipeline.refuses(design.pipe)
    if reason:
        options = (*schedules[pipeline.schedule].model_fields, "microbatches")
        key = next((option for option in options if option in reason.split()), "schedule")
        yield Problem(f"pipeline.{key}", "schedule", reason)


Check = Callable[["Design"], Iterator[Problem]]

_CHECKS: dict[Check, tuple[str, ...]] = {
    _name: ("name",),
    _devices: ("cluster", "meshes"),
    _mesh_names: ("meshes",),
    _mesh_shapes: ("cluster", "meshes"),
    _tensor_parallel: ("model", "meshes"),
    _training_data: ("model", "training"),
    _actions: ("model", "meshes", "pipeline"),
    _schedule: ("meshes", "pipeline"),
    expert_problems: ("cluster", "model", "meshes", "experts"),
}
"""The sections of the document that each check looks at."""


# ---- the stages, of a pipeline that has some ----


def _stages(design: Design, sound: frozenset[str], found: Sequence[Problem]) -> Iterator[Problem]:
    """The stages against the model and the meshes, as far as they can be counted in spite of what was found."""
    errors = {problem.code for problem in found if problem.severity == "error"}
    if design.pipeline.schedule == "custom" and ("model" not in sound or errors & _NO_STAGES):
        return
    if "model" in sound:
        yield from _layers(design)
    too_large = list(_size(design))
    yield from too_large
    if not too_large and "schedule" not in errors:  # else there may be no route to hold it against
        yield from _placement(design)
    yield from _recompute(design)


_NO_STAGES = {"action", "action_kind", "action_microbatch", "action_stage", "actions_missing"}
"""With these a hand-drawn order does not say how many stages there are."""


def _layers(design: Design) -> Iterator[Problem]:
    count, given, layers = design.stages, design.pipeline.stages, design.model.layers
    name = design.pipeline.schedule
    if given is not None and len(given) != count:
        message = f"{name} cuts the model into {count} stages here, but {len(given)} are given; give {count} or null"
        yield Problem("pipeline.stages", "stage_count", message)
    elif given is not None and sum(given) != layers:
        message = f"the stages hold {sum(given)} layers, but the model has {layers}; change a stage or the model"
        yield Problem("pipeline.stages", "stage_layers", message)
    elif count > layers:
        message = (
            f"{count} stages need at least {count} layers, and the model has {layers}; use fewer stages or more layers"
        )
        yield Problem("model.layers", "too_few_layers", message)


def _size(design: Design) -> Iterator[Problem]:
    microbatches = design.pipeline.microbatches
    computations = 2 * design.stages * microbatches
    if computations > LARGEST_STEP:
        message = (
            f"{design.stages} stages x {microbatches} microbatches, forward and backward, are {computations:,} "
            f"computations, and a step can have {LARGEST_STEP:,}; use fewer microbatches or stages"
        )
        yield Problem("pipeline.microbatches", "too_large", message)


def _placement(design: Design) -> Iterator[Problem]:
    given = design.pipeline.placement
    if given is None or design.pipeline.schedule == "custom":  # which has none: told with its actions
        return
    where = "pipeline.placement"
    beyond = [(stage, mesh) for stage, mesh in enumerate(given) if mesh >= design.ranks]
    own = list(design.pipeline.routes(design.pipe)[0])
    if beyond:
        stage, mesh = beyond[0]
        message = f"stage {stage} is placed on mesh {mesh}, but there are meshes 0 to {design.ranks - 1}"
        yield Problem(f"{where}[{stage}]", "placement_mesh", message)
    elif len(given) != design.stages:
        message = (
            f"{design.stages} stages need {design.stages} places, and {len(given)} are given; give one a stage or null"
        )
        yield Problem(where, "placement_count", message)
    elif renaming(own, given) is None:
        shown = ", ".join(map(str, own[:8])) + (", ..." if len(own) > 8 else "")
        message = (
            f"{design.pipeline.schedule} places its stages on meshes {shown}, in any order of the meshes, but not like this; "
            "use null, another order of the meshes, or a custom schedule"
        )
        yield Problem(where, "placement_shape", message)


def _recompute(design: Design) -> Iterator[Problem]:
    given = design.pipeline.recompute
    if not isinstance(given, tuple):
        return
    for number, stage in enumerate(given):
        where = f"pipeline.recompute[{number}]"
        if stage >= design.stages:
            message = f"there is no stage {stage} to recompute; there are stages 0 to {design.stages - 1}"
            yield Problem(where, "recompute_stage", message)
        elif stage in given[:number]:
            yield Problem(where, "recompute_repeated", f"stage {stage} is named more than once; name each stage once")


def renaming(own: list[int], given: tuple[int, ...]) -> dict[int, int] | None:
    """The mesh that stands for each rank of a schedule's own placement; None if there is none."""
    names: dict[int, int] = {}
    for rank, mesh in zip(own, given, strict=True):
        if names.setdefault(rank, mesh) != mesh:
            return None
    return names if len(set(names.values())) == len(names) else None
