"""What becomes of an input: the edit that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshwave.designer.forms import schema
from meshwave.designer.forms.fields import EXPERTS_SWITCH, Field, cluster_presets
from meshwave.designer.forms.values import READERS, as_text, humanised, inner
from meshwave.designer.kit.canvas import plain_text, value_of
from meshwave.designer.state import design_edits as edits
from meshwave.designer.state import expert_edits, mesh_edits
from meshwave.engine.costs import cost_models
from meshwave.engine.document import Design
from meshwave.engine.document.expert_problems import expert_problems
from meshwave.engine.document.model import model_families
from meshwave.engine.errors import InputError
from meshwave.engine.schedules import schedules
from meshwave.engine.units import amount

Edit = tuple[str, Any, str]
"""The path, value and label of one edit of the session."""


def change(design: Design, field: Field, given: Any) -> Edit:
    """The edit that an input asks for.

    Raises:
        InputError: what was typed is no value of this field; the sentence says what to type.
    """
    path, value = field["path"], read(field, given)
    of = f"{field['group']} " if field["kind"] != "switch" else ""  # the part it belongs to: "device memory"
    label = f"{inner(of + field['label'])} {_shown(field, value)}"
    return _TOGETHER[path](design, path, value, label) if path in _TOGETHER else (path, value, label)


def read(field: Field, given: Any) -> Any:
    """What was typed or chosen, as the document has it."""
    kind = field["kind"]
    if kind == "choice":
        if given not in [option["value"] for option in field["options"]]:
            raise InputError(
                f"this is no choice here; use {' or '.join(option['title'] for option in field['options'])}"
            )
        return given
    if kind == "switch":
        return bool(given) or (None if field["optional"] else False)
    text = value_of({"value": given}, "value", plain_text).strip()
    if not text and field["optional"]:
        return None
    if text in [option["value"] for option in field.get("options", ())]:
        return text
    if field["unit"] and kind == "number" and text:
        return amount(text, field["unit"])
    return READERS[kind](text)


def _shown(field: Field, value: Any) -> str:
    """The new value in the words of an undo step."""
    if field["kind"] == "choice":
        return next(option["title"] for option in field["options"] if option["value"] == value)
    if field["kind"] == "switch":
        return "on" if value else "off"
    if value is None:
        return "auto"
    text = humanised(value, field["unit"]) or as_text(field["kind"], value).replace("\n", " / ")
    return text if len(text) <= 24 else f"{text[:23]}…"


def _preset(design: Design, path: str, value: Any, label: str) -> Edit:
    chosen = cluster_presets()[value]
    return path, chosen["value"], f"{path} of {chosen['title']}"


def _nodes(design: Design, path: str, value: Any, label: str) -> Edit:
    cluster, _ = mesh_edits.set_nodes(*_drawn(design), value)
    return path, cluster["nodes"], label


def _devices_per_node(design: Design, path: str, value: Any, label: str) -> Edit:
    """Devices are numbered through all nodes, so the meshes' lists change with them."""
    cluster, meshes = mesh_edits.set_devices_per_node(*_drawn(design), value)
    return "", {"cluster": cluster, "meshes": [dict(mesh) for mesh in meshes]}, label


def _drawn(design: Design) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    document = design.model_dump(mode="json", include={"meshes", "cluster"})
    return document["meshes"], document["cluster"]


def _schedule(design: Design, path: str, value: Any, label: str) -> Edit:
    """Another schedule with its own options."""
    return "pipeline", edits.choose_schedule(design, value), f"schedule {schedules[value].title}"


def _cost_kind(design: Design, path: str, value: Any, label: str) -> Edit:
    """Another model of cost keeps the keys that both know."""
    node = schema.whole()["properties"]["cost"]
    known = schema.part(node, {"kind": value})["properties"]
    kept = {key: each for key, each in design.cost.model_dump(mode="json").items() if key in known}
    first = cost_models[value].initial_values()
    return "cost", {**first, **kept, "kind": value}, f"{value} costs"


def _model_kind(design: Design, path: str, value: Any, label: str) -> Edit:
    """Another kind of model keeps the keys that both know; what only the new one has gets its usual values. Stages
    that were cut by hand are balanced again where their layers are others."""
    node = schema.whole()["properties"]["model"]
    known = schema.part(node, {"kind": value})["properties"]
    before = design.model.model_dump(mode="json")
    if set(known) == set(before):
        return path, value, label
    kept = {key: each for key, each in before.items() if key in known and key != "heads"}
    changed = {**model_families[value].initial_values(), **kept, "kind": value}
    pipeline = {**design.pipeline.model_dump(mode="json"), "stages": None}
    training = {**design.training.model_dump(mode="json"), "data": None}
    return "", {"model": changed, "pipeline": pipeline, "training": training}, label


def _experts_in_the_model(design: Design, path: str, value: Any, label: str) -> Edit:
    """All that has to do with experts comes and goes with them."""
    if value:
        return "", expert_edits.add_experts(design), "add experts to the model"
    return "", expert_edits.without_experts(design), "take the experts out of the model"


def _expert_setting(design: Design, path: str, value: Any, label: str) -> Edit:
    """A size of the experts' groups, or their schedule, with what has to follow it."""
    key = path.rpartition(".")[2]
    if key in expert_edits.GROUPS and value != 1 and (idle := expert_edits.idle(design)):
        raise InputError(idle)
    return "experts", expert_edits.with_setting(design, key, value), label


def _expert_homes(design: Design, path: str, value: Any, label: str) -> Edit:
    """Homes that do not fit are told of, since a design that has such gives them up."""
    homes = None if value is None else tuple(map(tuple, value))
    changed = design.model_copy(update={"experts": design.experts.model_copy(update={"placement": homes})})
    wrong = [problem for problem in expert_problems(changed) if problem.where.startswith(path)]
    if any(problem.severity == "error" for problem in wrong):
        raise InputError(wrong[0].message)
    return path, value, "homes of the experts" if homes else "experts in equal blocks"


_TOGETHER: Mapping[str, Callable[[Design, str, Any, str], Edit]] = {
    "cluster": _preset,
    "cluster.nodes": _nodes,
    "cluster.devices_per_node": _devices_per_node,
    "pipeline.schedule": _schedule,
    "cost.kind": _cost_kind,
    "model.kind": _model_kind,
    EXPERTS_SWITCH: _experts_in_the_model,
    "experts.ep": _expert_setting,
    "experts.esp": _expert_setting,
    "experts.schedule": _expert_setting,
    "experts.placement": _expert_homes,
}
"""The fields that change more than their own key."""
