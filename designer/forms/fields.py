"""What the page is given: the sections of a form with their fields and values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, NotRequired, TypedDict

from meshwave.designer.forms import schema
from meshwave.designer.forms.schema import LISTS, Json, Kind, line
from meshwave.designer.forms.values import as_text, humanised, named, titled, word
from meshwave.designer.state import expert_edits
from meshwave.engine.costs.presets import presets
from meshwave.engine.document import Design
from meshwave.engine.document.cost import CostSection, cost_models
from meshwave.engine.document.model import model_families
from meshwave.engine.experts import expert_schedules
from meshwave.engine.resharding import orderings, strategies
from meshwave.engine.schedules import schedules

SECTIONS = ("model", "experts", "training", "pipeline", "transfer", "cluster", "cost")
ALONE = ("model", "training", "transfer", "cluster")
"""Sections whose fields follow from what stands in them, and which most edits leave as they are."""
LONGEST_LIST = 2_000  # entries; a longer one is no longer read by a person and stays out of the form
EXPERTS_SWITCH = "model.moe"


class Option(TypedDict):
    """One entry of a choice."""

    value: Any
    title: str
    help: str


class Field(TypedDict):
    """One input of the form, as plain data."""

    path: str
    label: str
    unit: str
    kind: Kind
    value: Any
    text: str
    """The value as a person types it; empty for null."""
    optional: bool
    placeholder: str
    hint: str
    """The value in words, or what null means."""
    help: str
    group: str
    wide: bool
    options: NotRequired[list[Option]]


class Section(TypedDict):
    """A part of the document."""

    key: str
    title: str
    help: str
    fields: list[Field]
    action: NotRequired[Action]
    """What can be done beside filling in."""


class Action(TypedDict):
    """A button of a section."""

    title: str
    help: str


MEASURE = Action(
    title="Calibration profiles", help="Measurements, fitted lines, and a button that calibrates this machine."
)


def fields(design: Design) -> list[Section]:
    """The sections of the form with their fields and values, in the order of the page."""
    document = design.model_dump(mode="json")
    return [
        _known_section(key, json.dumps(document[key])) if key in ALONE else _section(key, document, design)
        for key in SECTIONS
    ]


@lru_cache(maxsize=64)
def _known_section(key: str, values: str) -> Section:
    return _section(key, {key: json.loads(values)})


def _section(key: str, document: Json, design: Design | None = None) -> Section:
    node, values = schema.whole()["properties"][key], document[key]
    part = schema.part(node, values)
    found = [_preset_field(values)] if key == "cluster" else []
    found += _tag_fields(key, node, values)
    found += (
        _expert_fields(design, document)
        if design and key == "experts"
        else _fields(part, values, key, "", schema.tag(node))
    )
    if design and key == "cost":
        found = [_with_choices(field, design.cost) for field in found]
    found.sort(key=lambda field: field["kind"] in LISTS)  # what is wide and seldom used comes last
    section = Section(key=key, title=titled(key), help=line(part.get("description", "")), fields=found)
    return {**section, "action": MEASURE} if key == "cost" else section


def _fields(part: Json, values: Json, path: str, group: str, skip: str = "") -> Iterator[Field]:
    for name, node in part["properties"].items():
        if name != skip and not _misplaced(f"{path}.{name}", values):
            yield from _field(name, node, values.get(name), f"{path}.{name}", group)


def _expert_fields(design: Design, document: Json) -> Iterator[Field]:
    """The experts of the model, to be switched on and off, and how their layer lies on devices and is scheduled.

    Where the model has none, only what is set in vain is shown beside the switch.
    """
    idle = expert_edits.idle(design) if design.model.moe is not None else ""
    parts, experts = schema.whole()["$defs"], document["experts"]
    has_experts = design.model.moe is not None
    if "moe" in document["model"]:  # a family that can have experts
        sizes = schema.part(schema.whole()["properties"]["model"], document["model"])["properties"]
        yield from _field("moe", sizes["moe"], document["model"]["moe"], EXPERTS_SWITCH, "")
    for name, node in parts["Experts"]["properties"].items():
        if (has_experts or experts[name] != node["default"]) and not _misplaced(f"experts.{name}", experts):
            for field in _field(name, node, experts[name], f"experts.{name}", "Layer"):
                plays_no_part = idle and name in expert_edits.GROUPS
                yield {**field, "hint": "plays no part", "help": f"{field['help']} {idle}."} if plays_no_part else field


def _field(name: str, node: Json, value: Any, path: str, group: str) -> Iterator[Field]:
    """The inputs of one key: one, none where a person has nothing to choose, many for a part."""
    node, optional = schema.required(schema.resolved(node))
    if "properties" in node:
        yield from _nested(name, node, value, path, optional)
        return
    kind = schema.kind(node)
    if kind is None or "const" in node or _too_long(kind, value):
        return
    label, unit = named(name)
    help, default = schema.described(node)
    field = Field(
        path=path,
        label=label,
        unit=unit,
        kind=kind,
        value=value,
        text=as_text(kind, value),
        optional=optional,
        placeholder="auto" if optional else "",
        hint=default if value is None else humanised(value, unit),
        help=f"{help} Empty: {default}." if optional and default else help,
        group=group,
        wide=kind in ("text", *LISTS),
    )
    words = schema.words(node)
    if words:
        field["options"] = [_option(path, each) for each in words]
    if kind in ("list", "numbers") and words:
        field["hint"] = f"{', '.join(map(str, words))}, or {_LIKE[kind]}"
    if path in _MEMBERS:
        field["wide"], field["hint"] = True, ""
        field["help"] = next((option["help"] for option in field["options"] if option["value"] == value), help)
    yield field


def _too_long(kind: Kind, value: Any) -> bool:
    if value is None or kind not in LISTS:
        return False
    return (sum(map(len, value)) if kind in ("lines", "rows") else len(value)) > LONGEST_LIST


_LIKE: Mapping[str, str] = {"list": "numbers such as 0, 3", "numbers": "shares such as 2, 1, 1, 1"}


def _option(path: str, value: Any) -> Option:
    """One of the words that a value can be; the name of a member of a folder has that one's title and help."""
    if path not in _MEMBERS:
        return Option(value=value, title=word(str(value)), help="")
    member = _MEMBERS[path][value]
    return Option(value=value, title=member.title, help=line(member.help().partition("\n\n")[0]))


_MEMBERS: Mapping[str, Mapping[str, Any]] = {
    "experts.schedule": expert_schedules,
    "transfer.strategy": strategies,
    "transfer.ordering": orderings,
}
"""The folders that choices are made from."""


def _with_choices(field: Field, cost: CostSection) -> Field:
    """A field of the cost model, as a choice where its values are what this machine has."""
    options = [
        Option(value=name, title=name.removesuffix(".json"), help="")
        for name in cost.choices(field["path"].removeprefix("cost."))
    ]
    return {**field, "kind": "choice", "options": options, "text": ""} if options else field


def _nested(name: str, node: Json, value: Any, path: str, optional: bool) -> Iterator[Field]:
    """The fields of a part inside a part; an optional one can be switched on and off."""
    label = titled(name)
    if optional:
        yield Field(
            path=path, label=label, unit="", kind="switch", value=value is not None, text="", optional=True,
            placeholder="", hint="", help=schema.described(node)[0], group=label, wide=True,
        )  # fmt: skip
    if value is not None:
        yield from _fields(node, value, path, label)


def _tag_fields(key: str, node: Json, values: Json) -> Iterator[Field]:
    """The choice between the members of a union, such as the schedules."""
    tag, members = schema.tag(node), schema.members(node)
    if not tag:
        return
    chosen = values[tag]
    options = [
        Option(value=name, title=_title(key, name), help=line(member.get("description", "")))
        for name, member in members.items()
        if name == chosen or set(member.get("required", ())) <= {tag, *values, *_initial_values(key, name)}
    ]
    yield _choice(f"{key}.{tag}", titled(tag), chosen, options, line(members[chosen].get("description", "")))


def _initial_values(key: str, name: str) -> Json:
    """What a member of a union has for the keys that the document may lack."""
    return {} if key == "pipeline" else _UNIONS[key][name].initial_values()


def _title(key: str, name: str) -> str:
    """What a member of a union is called."""
    return str(_UNIONS[key][name].title)


_UNIONS: Mapping[str, Mapping[str, Any]] = {"pipeline": schedules, "model": model_families, "cost": cost_models}


def _preset_field(cluster: Json) -> Field:
    """A choice that fills the whole cluster with numbers to start from."""
    known = cluster_presets()
    chosen = next((name for name, preset in known.items() if preset["value"] == cluster), None)
    options = [Option(value=name, title=preset["title"], help=preset["help"]) for name, preset in known.items()]
    help = known[chosen]["help"] if chosen else "Fill the cluster with the numbers of a known one."
    return {**_choice("cluster", "Preset", chosen, options, help), "optional": True, "placeholder": "own numbers"}


def _choice(path: str, label: str, value: Any, options: list[Option], help: str) -> Field:
    return Field(
        path=path, label=label, unit="", kind="choice", value=value, text="", optional=False, placeholder="",
        hint="", help=help, group="", wide=True, options=options,
    )  # fmt: skip


@cache
def cluster_presets() -> Mapping[str, Json]:
    return {
        name: {"title": preset.title, "help": preset.source, "value": preset.cluster.model_dump(mode="json")}
        for name, preset in presets().items()
    }


def _misplaced(path: str, values: Json) -> bool:
    """What would be an empty box in the way: a hand-drawn order beside another schedule than custom, a
    variant of deepspeed beside another. The experts of the model have a section of their own."""
    if path == "pipeline.actions":
        return values["actions"] is None and values["schedule"] != "custom"
    return path == EXPERTS_SWITCH or (path == "experts.variant" and values["schedule"] != "deepspeed")
