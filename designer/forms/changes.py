"""Edits of the document for inputs of the form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshwave.designer.forms import schema
from meshwave.designer.forms.fields import DEVICE, EXPERTS_SWITCH, FREE_KEYS, Field, cluster_presets
from meshwave.designer.forms.values import PARSERS, describe_quantity, input_text, lower_label
from meshwave.designer.kit.canvas import plain_text, read_value
from meshwave.designer.state import design_edits as edits
from meshwave.designer.state import expert_edits, mesh_edits
from meshwave.engine.amounts import parse_amount
from meshwave.engine.costs import cost_models
from meshwave.engine.costs.hardware import data_sheets
from meshwave.engine.document import Design
from meshwave.engine.document.expert_problems import expert_problems
from meshwave.engine.document.model import model_families
from meshwave.engine.findings import Refusal
from meshwave.engine.hugging_face.published_models import published_model
from meshwave.engine.imports.hugging_face import replace_model
from meshwave.engine.schedules import schedules

Edit = tuple[str, Any, str]
"""The path, value and label of one edit of the session."""


def make_edit(design: Design, field: Field, given: Any) -> Edit:
    """Return the edit of the document for the input ``given`` in a field.

    Raises:
        InputError: the input is not a valid value of the field; the message contains an example.
    """
    path, value = field["path"], read_input(field, given)
    section = f"{field['group']} " if field["kind"] != "switch" else ""  # such as "device" in "device memory"
    label = f"{lower_label(section + field['label'])} {_describe_value(field, value)}"
    if path in _JOINT_EDITS:
        return _JOINT_EDITS[path](design, path, value, label)
    is_part = field["kind"] == "switch" and field["optional"] and value
    return path, {} if is_part else value, label  # a part begins with its defaults


def read_input(field: Field, given: Any) -> Any:
    """Return an input as the value that is stored in the document.

    Raises:
        InputError: the input is not a valid value of the field.
    """
    kind = field["kind"]
    if kind == "choice":
        if given not in [option["value"] for option in field["options"]]:
            raise Refusal("unknown_choice", {"choices": [option["title"] for option in field["options"]]})
        return given
    if kind == "switch":
        return bool(given) or (None if field["optional"] else False)
    text = read_value({"value": given}, "value", plain_text).strip()
    if not text and field["optional"]:
        return None
    for option in field.get("options", ()):
        if text.lower() in (str(option["value"]).lower(), option["title"].lower()):
            return option["value"]
    if field["unit"] and kind == "number" and text:
        return parse_amount(text, field["unit"])
    return PARSERS[kind](text)


def _describe_value(field: Field, value: Any) -> str:
    """Return the new value as text for the label of an undo step."""
    if field["kind"] == "switch":
        return "on" if value else "off"
    if value is None:
        return "auto"
    for option in field.get("options", ()):
        if option["value"] == value:
            return option["title"]
    if field["kind"] == "costs":
        return f"of {len(value['forward'])} stages"
    text = describe_quantity(value, field["unit"]) or input_text(field["kind"], value).replace("\n", " / ")
    return text if len(text) <= 24 else f"{text[:23]}…"


def _preset_edit(design: Design, path: str, value: Any, label: str) -> Edit:
    """Return the edit that sets a cluster preset, with as many nodes as the meshes need."""
    chosen = cluster_presets()[value]
    cluster = chosen["value"]
    last = max(device for mesh in design.meshes for device in mesh.devices)
    nodes = max(cluster["nodes"], last // cluster["devices_per_node"] + 1)
    kept = {key: getattr(design.cluster, key) for key in FREE_KEYS}
    return path, {**cluster, **kept, "nodes": nodes}, f"{path} preset {chosen['title']}"


def _device_edit(design: Design, path: str, value: Any, label: str) -> Edit:
    """Return the edit that sets the data sheet of a device and the bandwidth of its link inside the node."""
    sheet, cluster = data_sheets()[value], design.cluster.model_dump(mode="json")
    intra_node = {**cluster["intra_node"], "bandwidth": sheet.link_bandwidth}
    device = sheet.device.model_dump(mode="json")
    return "cluster", {**cluster, "device": device, "intra_node": intra_node}, f"device {value}"


def _nodes_edit(design: Design, path: str, value: Any, label: str) -> Edit:
    cluster, _ = mesh_edits.set_nodes(*_mesh_sections(design), value)
    return path, cluster["nodes"], label


def _devices_per_node_edit(design: Design, path: str, value: Any, label: str) -> Edit:
    """Return the edit of the cluster and the meshes; the devices of meshes are numbered over all nodes."""
    cluster, meshes = mesh_edits.set_devices_per_node(*_mesh_sections(design), value)
    return "", {"cluster": cluster, "meshes": [dict(mesh) for mesh in meshes]}, label


def _mesh_sections(design: Design) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    document = design.model_dump(mode="json", include={"meshes", "cluster"})
    return document["meshes"], document["cluster"]


def _schedule_edit(design: Design, path: str, value: Any, label: str) -> Edit:
    """Return the edit that changes the schedule together with its options."""
    return "pipeline", edits.choose_schedule(design, value), f"schedule {schedules[value].title}"


def _cost_kind_edit(design: Design, path: str, value: Any, label: str) -> Edit:
    """Return the edit that changes the cost model; common keys keep their values, except for costs in another unit."""
    node = schema.design_schema()["properties"]["cost"]
    known = schema.chosen_member(node, {"kind": value})["properties"]
    kept = {key: each for key, each in design.cost.model_dump(mode="json").items() if key in known}
    if cost_models[value].unit != design.cost.unit:
        kept["stage_costs"] = None
    first = cost_models[value].initial_values()
    return "cost", {**first, **kept, "kind": value}, f"{value} costs"


def _model_kind_edit(design: Design, path: str, value: Any, label: str) -> Edit:
    """Return the edit that changes the model family.

    Keys that both families have keep their values, others get initial values. Stages are reset to automatic if the
    families have different keys.
    """
    node = schema.design_schema()["properties"]["model"]
    known = schema.chosen_member(node, {"kind": value})["properties"]
    before = design.model.model_dump(mode="json")
    if set(known) == set(before):
        return path, value, label
    kept = {key: each for key, each in before.items() if key in known and key != "heads"}
    changed = {**model_families[value].initial_values(), **kept, "kind": value}
    pipeline = {**design.pipeline.model_dump(mode="json"), "stages": None}
    training = {**design.training.model_dump(mode="json"), "data": None}
    return "", {"model": changed, "pipeline": pipeline, "training": training}, label


def _published_model_edit(design: Design, path: str, value: Any, label: str) -> Edit:
    """Return the edit that sets a published model; stages, their costs, expert placement and data become automatic."""
    changed = replace_model(design, published_model(value).section())
    experts = {**changed["experts"], **expert_edits.UNPLACED}
    training = {**changed["training"], "data": None}
    kept = {key: changed[key] for key in ("model", "pipeline", "cost")}
    return "", {**kept, "experts": experts, "training": training}, f"model preset {value}"


def _experts_switch_edit(design: Design, path: str, value: Any, label: str) -> Edit:
    """Return the edit that adds or removes the experts of the model with all settings that depend on them."""
    if value:
        return "", expert_edits.add_experts(design), "add experts to the model"
    return "", expert_edits.remove_experts(design), "remove the experts from the model"


def _expert_setting_edit(design: Design, path: str, value: Any, label: str) -> Edit:
    """Return the edit of an expert group size or the expert schedule, with the settings that depend on it."""
    key = path.rpartition(".")[2]
    if key in expert_edits.GROUPS and value != 1 and (unused := expert_edits.unused_groups_problem(design)):
        raise Refusal(unused.code, unused.params)
    return "experts", expert_edits.change_setting(design, key, value), label


def _expert_placement_edit(design: Design, path: str, value: Any, label: str) -> Edit:
    """Return the edit of the expert placement; one that does not fit is refused, since the session would reset it."""
    placement = None if value is None else tuple(map(tuple, value))
    changed = design.model_copy(update={"experts": design.experts.model_copy(update={"placement": placement})})
    wrong = [problem for problem in expert_problems(changed) if problem.where.startswith(path)]
    if any(problem.severity == "error" for problem in wrong):
        raise Refusal(wrong[0].code, wrong[0].params)
    return path, value, "expert placement" if placement else "place the experts in equal blocks"


_JOINT_EDITS: Mapping[str, Callable[[Design, str, Any, str], Edit]] = {
    "cluster": _preset_edit,
    DEVICE: _device_edit,
    "cluster.nodes": _nodes_edit,
    "cluster.devices_per_node": _devices_per_node_edit,
    "pipeline.schedule": _schedule_edit,
    "cost.kind": _cost_kind_edit,
    "model": _published_model_edit,
    "model.kind": _model_kind_edit,
    EXPERTS_SWITCH: _experts_switch_edit,
    "experts.ep": _expert_setting_edit,
    "experts.esp": _expert_setting_edit,
    "experts.schedule": _expert_setting_edit,
    "experts.placement": _expert_placement_edit,
}
"""Functions that return the edits of the fields that change several keys, by path of the field."""
