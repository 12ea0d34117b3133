"""Sections, fields and values of the form, as plain data for the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, NotRequired, TypedDict

from meshwave.designer.forms import schema
from meshwave.designer.forms.schema import LISTS, Json, Kind, one_line
from meshwave.designer.forms.values import input_text, key_label, label_and_unit
from meshwave.designer.state import expert_edits
from meshwave.engine.costs.hardware import data_sheets
from meshwave.engine.costs.presets import presets
from meshwave.engine.document import Design
from meshwave.engine.document.cost import CostSection, cost_models
from meshwave.engine.document.model import model_families
from meshwave.engine.experts import expert_schedules
from meshwave.engine.hugging_face.published_models import published_models
from meshwave.engine.resharding import orderings, strategies
from meshwave.engine.schedules import schedules

SECTIONS = ("model", "experts", "training", "pipeline", "transfer", "cluster", "cost")
INDEPENDENT_SECTIONS = ("model", "training", "transfer", "cluster")
"""Sections whose fields depend only on their own values; their fields are cached."""
LONGEST_LIST = 2_000  # entries; a longer list is not shown in the form
EXPERTS_SWITCH = "model.moe"
DEVICE = "cluster.device"
STAGE_COSTS = "cost.stage_costs"
FREE_KEYS = ("nodes", "price_per_device_hour", "watts_per_device")
"""Keys of the cluster that a preset does not determine."""


class Option(TypedDict):
    """One option of a field with a list of options."""

    value: Any
    title: str
    help: str


class Field(TypedDict):
    """An input of the form, as plain data."""

    path: str
    label: str
    unit: str
    kind: Kind
    value: Any
    text: str
    """The text of the input; empty for null."""
    optional: bool
    placeholder: str
    hint: str
    """The value with a unit, or the meaning of null."""
    help: str
    group: str
    wide: bool
    is_advanced: bool
    """True for a rarely changed field, which is shown under Advanced."""
    options: NotRequired[list[Option]]


class Section(TypedDict):
    """A section of the form, with its fields."""

    key: str
    title: str
    help: str
    fields: list[Field]
    action: NotRequired[Action]
    """A button of the section, if it has one."""


class Action(TypedDict):
    """A button of a section."""

    title: str
    help: str


CALIBRATE = Action(title="Calibration profiles", help="Show measured profiles, or calibrate this machine.")


_LABELS: Mapping[str, str] = {
    "cluster.device.peak_flops": "Peak rate",
    "cluster.price_per_device_hour": "Price per device-hour",
    "cost.fused": "Fused slot",
    "cost.kind": "Cost model",
    STAGE_COSTS: "Costs per stage",
    "cost.overlap": "Overlapped fraction",
    "cost.weight": "Weight gradient",
    "experts.rebalance_steps": "Rebalancing interval",
    "experts.rebalance_threshold": "Rebalancing threshold",
    "model.hidden": "Hidden size",
    "model.kind": "Model family",
    "model.moe.aux_loss": "Auxiliary loss",
    "model.sequence": "Sequence length",
    "pipeline.limit": "Activation limit",
    "pipeline.path": "Stage path",
    "pipeline.stages": "Layers per stage",
    "training.data": "Training text",
    "training.micro_batch_size": "Microbatch size",
    "training.tensor_parallel_overlap": "Tensor-parallel overlap",
    "transfer.batched": "Batched send/recv",
    "transfer.boundary": "Split over TP devices",
}
"""Labels of keys whose names would be unclear as labels."""


def form_sections(design: Design) -> list[Section]:
    """Return the sections of the form with their fields and values, in the order of the page."""
    document = design.model_dump(mode="json")
    return [
        _cached_section(key, json.dumps(document[key]))
        if key in INDEPENDENT_SECTIONS
        else _section(key, document, design)
        for key in SECTIONS
    ]


@lru_cache(maxsize=64)
def _cached_section(key: str, values: str) -> Section:
    return _section(key, {key: json.loads(values)})


def _section(key: str, document: Json, design: Design | None = None) -> Section:
    node, values = schema.design_schema()["properties"][key], document[key]
    part = schema.chosen_member(node, values)
    found = [preset(values) for preset in _PRESETS.get(key, ())]
    found += _tag_fields(key, node, values)
    found += (
        _expert_fields(design, document)
        if design and key == "experts"
        else _section_fields(part, values, key, "", schema.union_tag(node))
    )
    if design and key == "cost":
        found = [_add_choices(field, design.cost) for field in found]
    found.sort(key=lambda field: field["kind"] in LISTS)  # wide fields, which are rarely used, come last
    section = Section(key=key, title=key_label(key), help=one_line(part.get("description", "")), fields=found)
    return {**section, "action": CALIBRATE} if key == "cost" else section


def _section_fields(part: Json, values: Json, path: str, group: str, skip: str = "") -> Iterator[Field]:
    for name, node in part["properties"].items():
        if name != skip and not _is_hidden(f"{path}.{name}", values):
            yield from _key_fields(name, node, values.get(name), f"{path}.{name}", group)


def _expert_fields(design: Design, document: Json) -> Iterator[Field]:
    """Yield a switch for the experts of the model, and the fields of their layer.

    Without experts, only settings that differ from their defaults are shown.
    """
    unused = expert_edits.unused_groups_problem(design) if design.model.moe is not None else None
    parts, experts = schema.design_schema()["$defs"], document["experts"]
    has_experts = design.model.moe is not None
    if "moe" in document["model"]:  # a family that can have experts
        sizes = schema.chosen_member(schema.design_schema()["properties"]["model"], document["model"])["properties"]
        yield from _key_fields("moe", sizes["moe"], document["model"]["moe"], EXPERTS_SWITCH, "")
    for name, node in parts["Experts"]["properties"].items():
        if (has_experts or experts[name] != node["default"]) and not _is_hidden(f"experts.{name}", experts):
            for field in _key_fields(name, node, experts[name], f"experts.{name}", "Layer"):
                if unused and name in expert_edits.GROUPS:
                    field = {**field, "hint": "not used by this schedule", "help": f"{field['help']} {unused.message}."}
                yield field


def _key_fields(name: str, node: Json, value: Any, path: str, group: str) -> Iterator[Field]:
    """Yield the fields of a key: usually one, none if only one value is possible, several for a nested section."""
    node, optional = schema.unwrap_optional(schema.resolve(node))
    if "properties" in node and path != STAGE_COSTS:
        yield from _nested_fields(name, node, value, path, optional)
        return
    kind: Kind | None = "costs" if path == STAGE_COSTS else schema.input_kind(node)
    if kind is None or "const" in node or _is_too_long(kind, value):
        return
    label, unit = label_and_unit(name)
    label = _LABELS.get(path, label)
    help, default = schema.help_texts(node)
    field = Field(
        path=path,
        label=label,
        unit=unit,
        kind=kind,
        value=value,
        text=input_text(kind, value, unit),
        optional=optional,
        placeholder=_PLACEHOLDERS.get(path, "auto" if optional else ""),
        hint=default if value is None else "",
        help=" ".join((help, f"Empty: {default}.")) if optional and default else help,
        group=group,
        wide=kind in ("text", *LISTS),
        is_advanced=_is_advanced(path),
    )
    labels = schema.choice_labels(node)
    if labels:
        field["options"] = [_option(path, word, label) for word, label in labels.items()]
        field["wide"] |= kind == "choice" and max(map(len, labels.values())) > LONGEST_SHORT_OPTION
    if kind in _EXAMPLES and labels:
        field["text"] = labels.get(value, field["text"]) if isinstance(value, str) else field["text"]
        field["hint"] = f"{', '.join(labels.values())}, or {_EXAMPLES[kind]}"
    if path in _MEMBERS:
        field["wide"], field["hint"] = True, ""
        field["help"] = next((option["help"] for option in field["options"] if option["value"] == value), help)
    yield field


_PLACEHOLDERS: Mapping[str, str] = {STAGE_COSTS: "Type or paste a table:\nforward, input, weight\n1, 1, 1"}


def _is_advanced(path: str) -> bool:
    return path.startswith(_ADVANCED)


_ADVANCED = (
    "cluster.device.efficiency", "cluster.device.host_bandwidth", "cluster.node_bandwidth", "cluster.price_per_device_hour", "cluster.uplink",
    "cluster.watts_per_device", "experts.degree", "experts.load",
    "model.moe.aux_loss", "model.moe.z_loss", "training.activation_offload", "training.attention_kernel", "training.bf16_gradients", "training.blocking_gathers", "training.blocking_launches",
    "training.clip_norm", "training.compile", "training.cuda_graphs",
    "training.linear_precision", "training.seed", "training.tensor_parallel_overlap",
    "training.unsharded_stages",
    "training.weight_decay", "transfer.batched", "transfer.boundary",
)  # fmt: skip
"""Paths of the rarely changed fields, which are shown under Advanced."""


def _is_too_long(kind: Kind, value: Any) -> bool:
    if value is None or kind not in LISTS:
        return False
    parts = value.values() if kind == "costs" else value if kind in ("lines", "rows") else [value]
    return sum(map(len, parts)) > LONGEST_LIST


LONGEST_SHORT_OPTION = 18
"""Letters of the longest option that fits a choice of half the width of the form."""
_EXAMPLES: Mapping[str, str] = {
    "list": "numbers such as 0, 3",
    "numbers": "shares such as 2, 1, 1, 1",
    "integer": "a number",
}


def _option(path: str, value: Any, label: str) -> Option:
    """Return the option for a value; the name of a member of a registry gets the member's title and help."""
    if path not in _MEMBERS:
        return Option(value=value, title=label, help="")
    member = _MEMBERS[path][value]
    return Option(value=value, title=member.title, help=one_line(member.help().partition("\n\n")[0]))


_MEMBERS: Mapping[str, Mapping[str, Any]] = {
    "experts.schedule": expert_schedules,
    "transfer.strategy": strategies,
    "transfer.ordering": orderings,
}
"""Registries by path of the field that selects one of their members."""


def _add_choices(field: Field, cost: CostSection) -> Field:
    """Return a field of the cost model, with options if the possible values are files of this machine."""
    options = [
        Option(value=name, title=name.removesuffix(".json"), help="")
        for name in cost.choices(field["path"].removeprefix("cost."))
    ]
    return {**field, "kind": "choice", "options": options, "text": ""} if options else field


def _nested_fields(name: str, node: Json, value: Any, path: str, optional: bool) -> Iterator[Field]:
    """Yield the fields of a nested section; an optional section has a switch."""
    label = key_label(name)
    if optional:
        yield Field(
            path=path, label=label, unit="", kind="switch", value=value is not None, text="", optional=True,
            placeholder="", hint="", help=schema.help_texts(node)[0], group=label, wide=True,
            is_advanced=_is_advanced(path),
        )  # fmt: skip
    if value is not None:
        yield from _section_fields(node, value, path, label)


def _tag_fields(key: str, node: Json, values: Json) -> Iterator[Field]:
    """Yield the field that selects a member of a union, such as the schedule."""
    tag, members = schema.union_tag(node), schema.union_members(node)
    if not tag:
        return
    chosen = values[tag]
    options = [
        Option(value=name, title=str(_UNIONS[key][name].title), help=one_line(member.get("description", "")))
        for name, member in members.items()
        if name == chosen or set(member.get("required", ())) <= {tag, *values, *_initial_values(key, name)}
    ]
    label = _LABELS.get(f"{key}.{tag}", key_label(tag))
    yield _choice_field(f"{key}.{tag}", label, chosen, options, one_line(members[chosen].get("description", "")))


def _initial_values(key: str, name: str) -> Json:
    """Return the initial values of a member of a union for keys that the document may lack."""
    return {} if key == "pipeline" else _UNIONS[key][name].initial_values()


_UNIONS: Mapping[str, Mapping[str, Any]] = {"pipeline": schedules, "model": model_families, "cost": cost_models}


def _preset_field(cluster: Json) -> Field:
    """Return the field that selects a preset, which sets all keys of the cluster except ``FREE_KEYS``."""
    known, free = cluster_presets(), {key: cluster[key] for key in FREE_KEYS}
    chosen = next((name for name, preset in known.items() if {**preset["value"], **free} == cluster), None)
    options = [Option(value=name, title=preset["title"], help=preset["help"]) for name, preset in known.items()]
    help = known[chosen]["help"] if chosen else "Set all cluster fields to those of a known cluster."
    return {**_choice_field("cluster", "Preset", chosen, options, help), "optional": True, "placeholder": "custom"}


def _device_field(cluster: Json) -> Field:
    """Return the field that selects a device model, which sets the data sheet and the link inside the node."""
    known, name = data_sheets(), cluster["device"]["name"]
    options = [Option(value=each.name, title=each.name, help=each.source) for each in known.values()]
    chosen = name if name in known else None
    help = (
        known[chosen].source
        if chosen
        else "Set the device fields and the link inside nodes to those of a known device."
    )
    return {**_choice_field(DEVICE, "Device", chosen, options, help), "optional": True, "placeholder": "custom"}


def _published_model_field(model: Json) -> Field:
    """Return the field that selects a published model, which sets all keys of the model except the sequence length."""
    known = _published_sections()
    chosen = next((name for name, each in known.items() if {**each, "sequence": model.get("sequence")} == model), None)
    options = [Option(value=name, title=name, help=each.source) for name, each in published_models().items()]
    help = published_models()[chosen].source if chosen else "Set all model fields to those of a published model."
    return {**_choice_field("model", "Preset", chosen, options, help), "optional": True, "placeholder": "custom"}


@cache
def _published_sections() -> Mapping[str, Json]:
    """Return the model section of each published model by name."""
    return {name: each.section() for name, each in published_models().items()}


_PRESETS: Mapping[str, tuple[Callable[[Json], Field], ...]] = {
    "cluster": (_preset_field, _device_field),
    "model": (_published_model_field,),
}
"""Fields of a section that set several of its keys."""


def _choice_field(path: str, label: str, value: Any, options: list[Option], help: str) -> Field:
    return Field(
        path=path, label=label, unit="", kind="choice", value=value, text="", optional=False, placeholder="",
        hint="", help=help, group="", wide=True, is_advanced=False, options=options,
    )  # fmt: skip


@cache
def cluster_presets() -> Mapping[str, Json]:
    """Return the title, help and value of each cluster preset by name."""
    return {
        name: {"title": preset.title, "help": preset.source, "value": preset.cluster.model_dump(mode="json")}
        for name, preset in presets().items()
    }


def _is_hidden(path: str, values: Json) -> bool:
    """Return whether a field is hidden because it has no effect with the current values.

    For example, a custom order has no effect with another schedule. The experts of the model have a section of their
    own.
    """
    if path == "pipeline.actions":
        return values["actions"] is None and values["schedule"] != "custom"
    return path == EXPERTS_SWITCH or (path == "experts.variant" and values["schedule"] != "deepspeed")
