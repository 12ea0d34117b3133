"""What is wrong with a design, in words: where, what, what to do.

Two sources: what pydantic refuses part by part, put into a person's words, and the checks
that look at several parts at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from engine.errors import InputError, Problem, nearest
from engine.program.action import Action, Op, parse_cell
from engine.schedules import schedules

if TYPE_CHECKING:
    from engine.design.document import Design


Place = tuple[str | int, ...]
"""Where in a document: ``("meshes", 2, "devices")``."""

LARGEST_STEP = 4_000_000
"""Computations of the largest step: some seconds to lower and simulate."""

# ---- what pydantic refuses, in words ----


def from_validation(error: ValidationError, document: Mapping[str, Any]) -> list[Problem]:
    """Every error of a validation as a problem of the document."""
    details = error.errors(include_url=False)
    places = [_without_tags(detail["loc"], document) for detail in details]
    found = [
        _in_words(detail, place, document)
        for detail, place in zip(details, places, strict=True)
        if not _follows(detail, place, places)
    ]
    first: dict[str, Problem] = {}
    for problem in found:  # a union complains once a member
        first[problem.where] = _either(first[problem.where], problem) if problem.where in first else problem
    return list(first.values())


def _follows(detail: ErrorDetails, place: Place, places: list[Place]) -> bool:
    """A list whose members were refused is also refused as too short, or as no word: that says nothing new."""
    no_word = detail["type"] == "literal_error" and isinstance(detail["input"], (list, tuple))
    too_short = detail["type"] == "too_short" and len(detail["input"]) > 0
    return (no_word or too_short) and any(len(other) > len(place) and other[: len(place)] == place for other in places)


def _either(problem: Problem, other: Problem) -> Problem:
    """Say of a value that no member of a union takes what each would: "3 should be none, full or a list"."""
    start, _, wish = other.message.partition(" should be ")
    if not wish or not problem.message.startswith(f"{start} should be "):
        return problem
    return Problem(problem.where, problem.code, f"{problem.message} or {wish}", problem.severity)


def _in_words(detail: ErrorDetails, location: Place, document: Mapping[str, Any]) -> Problem:
    say = _WORDS.get(detail["type"])
    message = say(detail, location, document) if say else _plain(detail)
    field = _FIELD_OF.get(detail["type"], ())
    if detail["type"].startswith("union_tag"):
        field = (_tag_of(detail),)
    return Problem(path((*location, *field)), detail["type"], message)


def _tag_of(detail: ErrorDetails) -> str:
    """The key that says which member of a union is meant."""
    return str(detail["ctx"]["discriminator"]).strip("'")


def path(location: Place) -> str:
    """``("meshes", 2, "devices")`` as ``meshes[2].devices``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location).lstrip(".")


def _without_tags(location: Place, document: Mapping[str, Any]) -> Place:
    """Leave out what pydantic adds to a place: the member of a union that it tried, and ``[key]``."""
    kept: list[str | int] = []
    here: Any = document
    for number, step in enumerate(location):
        last = number == len(location) - 1
        if isinstance(here, Mapping):
            tag = step in (here.get("kind"), here.get("schedule"))
            known = step in here or (last and isinstance(step, str) and step.isidentifier() and not tag)
        else:
            known = isinstance(here, (list, tuple)) and isinstance(step, int)
        if not known:
            continue
        kept.append(step)
        try:
            here = here[step]
        except (KeyError, IndexError, TypeError):
            here = None
    return tuple(kept)


def _part_at(location: Place, document: Mapping[str, Any]) -> Any:
    here: Any = document
    for step in location:
        here = here[step]
    return here


def _keys_known_at(location: Place, document: Mapping[str, Any]) -> list[str]:
    """The keys that the part which holds this place knows, read off the JSON Schema."""
    from engine.design.document import Design

    schema = Design.model_json_schema()
    node: Any = schema
    walked: list[str | int] = []
    for step in location[:-1]:
        walked.append(step)
        node = _resolve(node, schema, _part_at(tuple(walked[:-1]), document))
        node = node.get("items", {}) if isinstance(step, int) else node.get("properties", {}).get(step, {})
    node = _resolve(node, schema, _part_at(location[:-1], document))
    return list(node.get("properties", {}))


def _resolve(node: Any, schema: Any, part: Any) -> Any:
    """Follow references, optional members and the chosen member of a tagged union."""
    while True:
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
        elif "discriminator" in node:
            tag = part.get(node["discriminator"]["propertyName"]) if isinstance(part, Mapping) else None
            mapping = node["discriminator"]["mapping"]
            node = {"$ref": mapping.get(tag, next(iter(mapping.values())))}
        elif "anyOf" in node:
            node = node["anyOf"][0]
        else:
            return node


def _unknown_key(detail: ErrorDetails, location: Place, document: Mapping[str, Any]) -> str:
    key = str(detail["loc"][-1])
    known = _keys_known_at(location, document)
    section = _part_at(location[:-1], document)
    if location[0] == "pipeline" and isinstance(section, Mapping):
        owners = [name for name, member in schedules.items() if key in member.model_fields]
        if owners:
            return f"{key!r} is an option of {' and '.join(owners)}, not of {section.get('schedule')}; remove it"
    return f"there is no key {key!r} here. {nearest(key, known)}"


def _unknown_name(detail: ErrorDetails, location: Place, document: Mapping[str, Any]) -> str:
    expected = str(detail.get("ctx", {}).get("expected", ""))
    known = [word.strip(" '") for word in expected.replace(" or ", ", ").split(",")]
    if not isinstance(detail["input"], str):
        return f"{_shown(detail['input'])} should be {'one of ' if len(known) > 1 else ''}{', '.join(known)}"
    return f"{detail['input']!r} is not known here. {nearest(str(detail['input']), known)}"


def _unknown_tag(detail: ErrorDetails, location: Place, document: Mapping[str, Any]) -> str:
    context = detail["ctx"]
    known = [word.strip(" '") for word in str(context["expected_tags"]).split(",")]
    what = _tag_of(detail)
    return f"there is no {'cost model' if what == 'kind' else what} called {context['tag']!r}. {nearest(str(context['tag']), known)}"


def _missing(detail: ErrorDetails, location: Place, document: Mapping[str, Any]) -> str:
    return f"{detail['loc'][-1]!r} is missing; add it"


def _missing_tag(detail: ErrorDetails, location: Place, document: Mapping[str, Any]) -> str:
    return f"{_tag_of(detail)!r} is missing; it says which kind this is"


def _wrong_type(noun: str) -> Any:
    def say(detail: ErrorDetails, location: Place, document: Mapping[str, Any]) -> str:
        return f"{_shown(detail['input'])} should be {noun}"

    return say


def _bound(words: str, key: str) -> Any:
    def say(detail: ErrorDetails, location: Place, document: Mapping[str, Any]) -> str:
        limit = detail["ctx"][key]
        if key == "gt" and limit == 0 and isinstance(limit, int):
            return f"{_shown(detail['input'])} should be at least 1"
        return f"{_shown(detail['input'])} should be {words} {limit:,.16g}"

    return say


def _shown(value: Any) -> str:
    """A value as it stands in the document, cut short."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = f"this {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:37]}..."


def _plain(detail: ErrorDetails) -> str:
    message = detail["msg"]
    return message[:1].lower() + message[1:]


_FIELD_OF = {
    "mesh_size": ("devices",),
    "cluster_size": ("nodes",),
    "heads": ("heads",),
    "top_k": ("top_k",),
    "weight": ("weight",),
}
"""The field to point at where a whole part was refused."""

_WORDS: dict[str, Any] = {
    "extra_forbidden": _unknown_key,
    "literal_error": _unknown_name,
    "union_tag_invalid": _unknown_tag,
    "union_tag_not_found": _missing_tag,
    "missing": _missing,
    "int_type": _wrong_type("a whole number"),
    "int_from_float": _wrong_type("a whole number"),
    "int_parsing": _wrong_type("a whole number"),
    "float_type": _wrong_type("a number"),
    "finite_number": _wrong_type("a finite number"),
    "string_type": _wrong_type("text"),
    "string_pattern_mismatch": _wrong_type("a plain file name, without folders"),
    "tuple_type": _wrong_type("a list"),
    "mapping_type": _wrong_type("an object"),
    "dict_type": _wrong_type("an object"),
    "model_type": _wrong_type("an object with keys"),
    "model_attributes_type": _wrong_type("an object with keys"),
    "greater_than": _bound("more than", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than": _bound("less than", "lt"),
    "less_than_equal": _bound("at most", "le"),
    "too_short": lambda detail, location, document: "the list is empty; give at least one",
    "too_long": lambda detail, location, document: (
        f"the list has at most {detail['ctx']['max_length']:,} entries; shorten it"
    ),
    "string_too_short": lambda detail, location, document: "the text is empty; give it a name",
    "string_too_long": lambda detail, location, document: (
        f"the text has {len(detail['input'])} characters; use at most {detail['ctx']['max_length']}"
    ),
}


# ---- checks that look at several parts ----


def problems(design: Design) -> list[Problem]:
    """Everything that is wrong or unwise in a document whose parts are sound by themselves."""
    found = [problem for check in _CHECKS for problem in check(design)]
    if not any(problem.severity == "error" for problem in found):
        found += _stages(design)
    return found


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
    for number, mesh in enumerate(design.meshes):
        if design.model.heads % mesh.tp:
            message = f"tp={mesh.tp} of mesh {mesh.name} does not divide the {design.model.heads} heads of the model; change one"
            yield Problem(f"meshes[{number}].axes.tp", "tp_heads", message)


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
        for number, cell in enumerate(order):
            yield from _action(design, f"pipeline.actions[{rank}][{number}]", cell)


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
    pipeline = cast(Any, design.pipeline)
    reason = pipeline.refuses(design.pipe)
    if reason:
        options = (*schedules[pipeline.schedule].model_fields, "microbatches")
        key = next((option for option in options if option in reason.split()), "schedule")
        yield Problem(f"pipeline.{key}", "schedule", reason)


def _cost(design: Design) -> Iterator[Problem]:
    if design.cost.kind == "calibrated":
        message = "measured profiles come later; use roofline or unit"
        yield Problem("cost.kind", "calibrated", message)


def _experts(design: Design) -> Iterator[Problem]:
    moe, experts = design.model.moe, design.experts
    if moe is None:
        return
    if moe.experts % experts.ep:
        message = f"ep={experts.ep} does not divide {moe.experts} experts; use a divisor"
        yield Problem("experts.ep", "ep_experts", message)
    else:
        yield from _expert_groups(design)
    if isinstance(experts.load, tuple) and len(experts.load) != moe.experts:
        message = f"there are loads for {len(experts.load)} of {moe.experts} experts; give one an expert"
        yield Problem("experts.load", "load_experts", message)
    if experts.placement is not None and len(experts.placement) > design.cluster.devices:
        message = (
            f"there are experts for {len(experts.placement)} devices, and the cluster has {design.cluster.devices}; "
            "give one entry a device or null"
        )
        yield Problem("experts.placement", "placement_devices", message)
    for device, held in enumerate(experts.placement or ()):
        unknown = [expert for expert in held if expert >= moe.experts]
        if unknown:
            message = f"there is no expert {unknown[0]}; the model has experts 0 to {moe.experts - 1}"
            yield Problem(f"experts.placement[{device}]", "placement_experts", message)
    if experts.placement:
        missing = sorted(set(range(moe.experts)) - {expert for held in experts.placement for expert in held})
        if missing:
            yield Problem("experts.placement", "expert_missing", f"expert {missing[0]} is on no device; place it")


def _expert_groups(design: Design) -> Iterator[Problem]:
    """One group of ep x esp devices holds each expert once."""
    ep, esp = design.experts.ep, design.experts.esp
    drawn = sum(len(mesh.devices) for mesh in design.meshes)
    if ep * esp > drawn:
        message = f"ep={ep} x esp={esp} needs {ep * esp} devices, and all meshes have {drawn}; use a smaller one"
        yield Problem("experts.ep", "experts_devices", message)
        return
    torn = next((mesh for mesh in design.meshes if len(mesh.devices) % (ep * esp)), None)
    if torn is not None:
        has = f"{len(torn.devices)} device{'s' * (len(torn.devices) > 1)}"
        message = f"groups of ep={ep} x esp={esp} devices do not divide the {has} of mesh {torn.name}; groups would cross meshes"
        yield Problem("experts.ep", "experts_mesh", message, "warning")


_CHECKS = (_devices, _mesh_names, _mesh_shapes, _tensor_parallel, _actions, _schedule, _cost, _experts)


def _stages(design: Design) -> list[Problem]:
    """The stages against the model and the meshes; asked only of a design that is sound so far."""
    found: list[Problem] = []
    count, given, layers = design.stages, design.pipeline.stages, design.model.layers
    name = cast(Any, design.pipeline).schedule
    if given is not None and len(given) != count:
        message = f"{name} cuts the model into {count} stages here, but {len(given)} are given; give {count} or null"
        found.append(Problem("pipeline.stages", "stage_count", message))
    elif given is not None and sum(given) != layers:
        message = f"the stages hold {sum(given)} layers, but the model has {layers}; change a stage or the model"
        found.append(Problem("pipeline.stages", "stage_layers", message))
    elif count > layers:
        message = (
            f"{count} stages need at least {count} layers, and the model has {layers}; use fewer stages or more layers"
        )
        found.append(Problem("model.layers", "too_few_layers", message))
    return found or [*_size(design), *_placement(design), *_recompute(design)]


def _size(design: Design) -> Iterator[Problem]:
    microbatches = cast(Any, design.pipeline).microbatches
    computations = 2 * design.stages * microbatches
    if computations > LARGEST_STEP:
        message = (
            f"{design.stages} stages x {microbatches} microbatches, forward and backward, are {computations:,} "
            f"computations, and a step can have {LARGEST_STEP:,}; use fewer microbatches or stages"
        )
        yield Problem("pipeline.microbatches", "too_large", message)


def _placement(design: Design) -> Iterator[Problem]:
    given = design.pipeline.placement
    if given is None:
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
