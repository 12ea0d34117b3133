"""Edits that inputs of the form request."""

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
from meshwave.engine.schedules import schedules

Edit = tuple[str, Any, str]
"""The path, value and label of one edit of the session."""


def make_edit(design: Design, field: Field, given: Any) -> Edit:
    """Return the edit that an input requests.

    Raises:
        InputError: the text is not a value of this field; the message has an example.
    """
    path, value = field["path"], read_input(field, given)
    section = f"{field['group']} " if field["kind"] != "switch" else ""  # such as "device" in "device memory"
    label = f"{lower_label(section + field['label'])} {_describe_value(field, value)}"
    if path in _JOINT_EDITS:
        return _JOINT_EDITS[path](design, path, value, label)
    is_part = field["kind"] == "switch" and field["optional"] and value
    return path, {} if is_part else value, label  # a part begins with its defaults


def read_input(field: Field, given: Any) -> Any:
    """Return the value of an input as the document has it.

    Raises:
        InputError: the text is not a value of this field.
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
    if text in [option["value"] for option in field.get("options", ())]:
        return text
    if field["unit"] and kind == "number" and text:
        return parse_amount(text, field["unit"])
    return PARSERS[kind](text)


def _describe_value(field: Field, value: Any) -> str:
    """Return the new value for the label of an undo step."""
    if field["kind"] == "choice":
        return next(option["title"] for option in field["options"] if option["value"] == value)
    if field["kind"] == "switch":
        return "on" if value else "off"
    if value is None:
        return "auto"
    if field["kind"] == "costs":
        return f"of {len(value['forward'])} stages"
    text = describe_quantity(value, field["unit"]) or input_text(field["kind"], value).replace("\n", " / ")
    return text if len(text) <= 24 else f"{text[:23]}…"


def _preset(design: Design, path: str, value: Any, label: str) -> Edit:
    """Set the cluster, with as many nodes as the meshes need."""
    chosen = cluster_presets()[value]
    cluster = chosen["value"]
    last = max(device for mesh in design.meshes for device in mesh.devices)
    nodes = max(cluster["nodes"], last // cluster["devices_per_node"] + 1)
    kept = {key: getattr(design.cluster, key) for key in FREE_KEYS}
    return path, {**cluster, **kept, "nodes": nodes}, f"{path} preset {chosen['title']}"


def _device(design: Design, path: str, value: Any, label: str) -> Edit:
    """Set the data sheet of the device, and the bandwidth of its link inside the node."""
    sheet, cluster = data_sheets()[value], design.cluster.model_dump(mode="json")
    intra_node = {**cluster["intra_node"], "bandwidth": sheet.link_bandwidth}
    device = sheet.device.model_dump(mode="json")
    return "cluster", {**cluster, "device": device, "intra_node": intra_node}, f"device {value}"


def _nodes(design: Design, path: str, value: Any, label: str) -> Edit:
    cluster, _ = mesh_edits.set_nodes(*_mesh_sections(design), value)
    return path, cluster["nodes"], label


def _devices_per_node(design: Design, path: str, value: Any, label: str) -> Edit:
    """Change the cluster and the meshes, because devices are numbered over all nodes."""
    cluster, meshes = mesh_edits.set_devices_per_node(*_mesh_sections(design), value)
    return "", {"cluster": cluster, "meshes": [dict(mesh) for mesh in meshes]}, label


def _mesh_sections(design: Design) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    document = design.model_dump(mode="json", include={"meshes", "cluster"})
    return document["meshes"], document["cluster"]


def _schedule(design: Design, path: str, value: Any, label: str) -> Edit:
    """Change the schedule together with its options."""
    return "pipeline", edits.choose_schedule(design, value), f"schedule {schedules[value].title}"


def _cost_kind(design: Design, path: str, value: Any, label: str) -> Edit:
    """Change the cost model; keys that both models have keep their values, but for costs in another unit."""
    node = schema.design_schema()["properties"]["cost"]
    known = schema.chosen_member(node, {"kind": value})["properties"]
    kept = {key: each for key, each in design.cost.model_dump(mode="json").items() if key in known}
    if cost_models[value].unit != design.cost.unit:
        kept["stage_costs"] = None
    first = cost_models[value].initial_values()
    return "cost", {**first, **kept, "kind": value}, f"{value} costs"


def _model_kind(design: Design, path: str, value: Any, label: str) -> Edit:
    """Change the model family; keys that both families have keep their values, others get initial values.

    Stages are reset to automatic if the families have different keys.
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


def _experts_in_the_model(design: Design, path: str, value: Any, label: str) -> Edit:
    """Add or remove the experts of the model with all settings that depend on them."""
    if value:
        return "", expert_edits.add_experts(design), "add experts to the model"
    return "", expert_edits.remove_experts(design), "remove the experts from the model"


def _expert_setting(design: Design, path: str, value: Any, label: str) -> Edit:
    """Change the size of an expert group or the schedule, with the settings that depend on it."""
    key = path.rpartition(".")[2]
    if key in expert_edits.GROUPS and value != 1 and (unused := expert_edits.unused_groups_problem(design)):
        raise Refusal(unused.code, unused.params)
    return "experts", expert_edits.change_setting(design, key, value), label


def _expert_homes(design: Design, path: str, value: Any, label: str) -> Edit:
    """Change the placement of the experts; refuse one that does not fit, since the session would reset it."""
    homes = None if value is None else tuple(map(tuple, value))
    changed = design.model_copy(update={"experts": design.experts.model_copy(update={"placement": homes})})
    wrong = [problem for problem in expert_problems(changed) if problem.where.startswith(path)]
    if any(problem.severity == "error" for problem in wrong):
        raise Refusal(wrong[0].code, wrong[0].params)
    return path, value, "expert placement" if homes else "experts in equal blocks"


_JOINT_EDITS: Mapping[str, Callable[[Design, str, Any, str], Edit]] = {
    "cluster": _preset,
    DEVICE: _device,
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
"""Fields that change more than their own key."""
