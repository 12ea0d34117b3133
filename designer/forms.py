"""The form of a design, read off the document's own schema: its fields are its form.

:func:`fields` is what the page is given, :func:`change` what becomes of an input; both are plain
functions. Only the order of the sections, the units and a few spellings are written down here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Literal, NotRequired, TypedDict, get_args

import param

from designer import edits, expert_edits
from designer.assets import module, read_static
from designer.canvases._canvas import Canvas
from designer.session import Session
from engine.cost.presets import presets
from engine.cost.profile import USUAL, profiles
from engine.design import Design
from engine.design.moe_problems import expert_problems
from engine.errors import DesignError, InputError, Problem
from engine.moe import expert_schedules
from engine.schedules import schedules
from engine.transfer import orderings, strategies
from engine.units import quantity

SECTIONS = ("model", "experts", "training", "pipeline", "transfer", "cluster", "cost")
LONGEST_LIST = 2_000  # entries; a longer one is no longer read by a person and stays out of the form

Kind = Literal["integer", "number", "text", "choice", "switch", "list", "numbers", "lines", "rows"]
LISTS: tuple[Kind, ...] = ("list", "numbers", "lines", "rows")
NONE = "-"  # a line of a field of rows that holds nothing
Json = Mapping[str, Any]
Edit = tuple[str, Any, str]
"""The path, value and label of one edit of the session."""


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


# ---- from the document to its form ----


def fields(design: Design) -> list[Section]:
    """The sections of the form with their fields and values, in the order of the page."""
    schema, document = _schema(), design.model_dump(mode="json")
    sections = []
    for key in SECTIONS:
        node = schema["properties"][key]
        part = _part(node, document[key])
        found = [*_preset_fields(key, document[key]), *_tag_fields(key, node, document[key])]
        found += (
            _expert_fields(design, document) if key == "experts" else _fields(part, document[key], key, "", _tag(node))
        )
        found = [_of_profiles(field) if field["path"] == PROFILE else field for field in found]
        found.sort(key=lambda field: field["kind"] in LISTS)  # what is wide and seldom used comes last
        section = Section(key=key, title=titled(key), help=_line(part.get("description", "")), fields=found)
        sections.append({**section, "action": MEASURE} if key == "cost" else section)
    return sections


PROFILE = "cost.profile"
MEASURE = Action(
    title="Measured machines", help="What was measured, its lines, and a button that measures this machine."
)


def _of_profiles(field: Field) -> Field:
    """A choice among the profiles that are kept, and the one that is named though it is not."""
    names = dict.fromkeys((*profiles(), field["value"]))
    options = [Option(value=name, title=name.removesuffix(".json"), help="") for name in names]
    return {**field, "kind": "choice", "options": options, "text": ""}


@cache
def _schema() -> Json:
    return Design.model_json_schema()


def _fields(part: Json, values: Json, path: str, group: str, skip: str = "") -> Iterator[Field]:
    for name, node in part["properties"].items():
        if name != skip and not _misplaced(f"{path}.{name}", values):
            yield from _field(name, node, values.get(name), f"{path}.{name}", group)


def _expert_fields(design: Design, document: Json) -> Iterator[Field]:
    """The experts of the model, to be switched on and off, and how their layer lies on devices and is scheduled.

    Where the model has none, only what is set in vain is shown beside the switch.
    """
    idle = expert_edits.idle(design) if design.model.moe is not None else ""
    schema, experts = _schema()["$defs"], document["experts"]
    has_experts = document["model"]["moe"] is not None
    yield from _field("moe", schema["Model"]["properties"]["moe"], document["model"]["moe"], EXPERTS_SWITCH, "")
    for name, node in schema["Experts"]["properties"].items():
        if (has_experts or experts[name] != node["default"]) and not _misplaced(f"experts.{name}", experts):
            for field in _field(name, node, experts[name], f"experts.{name}", "Layer"):
                plays_no_part = idle and name in expert_edits.GROUPS
                yield {**field, "hint": "plays no part", "help": f"{field['help']} {idle}."} if plays_no_part else field


EXPERTS_SWITCH = "model.moe"


def _field(name: str, node: Json, value: Any, path: str, group: str) -> Iterator[Field]:
    """The inputs of one key: one, none where a person has nothing to choose, many for a part."""
    node, optional = _required(_resolved(node))
    if "properties" in node:
        yield from _nested(name, node, value, path, optional)
        return
    kind = _kind(node)
    if kind is None or "const" in node or _too_long(kind, value):
        return
    label, unit = _named(name)
    help, default = _described(node)
    field = Field(
        path=path,
        label=label,
        unit=unit,
        kind=kind,
        value=value,
        text=as_text(kind, value),
        optional=optional,
        placeholder="auto" if optional else "",
        hint=default if value is None else _humanised(value, unit),
        help=f"{help} Empty: {default}." if optional and default else help,
        group=group,
        wide=kind in ("text", *LISTS),
    )
    words = _words(node)
    if words:
        field["options"] = [_option(path, each) for each in words]
    if kind in ("list", "numbers") and words:
        field["hint"] = f"{', '.join(map(str, words))}, or {_LIKE[kind]}"
    if path in _MEMBERS:
        field["wide"], field["hint"] = True, ""
        field["help"] = next((option["help"] for option in field["options"] if option["value"] == value), help)
    yield field


_LIKE: Mapping[str, str] = {"list": "numbers such as 0, 3", "numbers": "shares such as 2, 1, 1, 1"}


def _option(path: str, value: Any) -> Option:
    """One of the words that a value can be; the name of a member of a folder has that one's title and help."""
    if path not in _MEMBERS:
        return Option(value=value, title=_word(str(value)), help="")
    member = _MEMBERS[path][value]
    return Option(value=value, title=member.title, help=_line(member.help().partition("\n\n")[0]))


_MEMBERS: Mapping[str, Mapping[str, Any]] = {
    "experts.schedule": expert_schedules,
    "transfer.strategy": strategies,
    "transfer.ordering": orderings,
}
"""The folders that choices are made from."""


def _nested(name: str, node: Json, value: Any, path: str, optional: bool) -> Iterator[Field]:
    """The fields of a part inside a part; an optional one can be switched on and off."""
    label = titled(name)
    if optional:
        yield _switch(path, label, _described(node)[0], value)
    if value is not None:
        yield from _fields(node, value, path, label)


def _switch(path: str, label: str, help: str, value: Any) -> Field:
    return Field(
        path=path, label=label, unit="", kind="switch", value=value is not None, text="", optional=True,
        placeholder="", hint="", help=help, group=label, wide=True,
    )  # fmt: skip


def _tag(node: Json) -> str:
    return str(node["discriminator"]["propertyName"]) if "discriminator" in node else ""


def _part(node: Json, values: Json) -> Json:
    """The schema of a part; of a union the member that the document has chosen."""
    if tag := _tag(node):
        node = {"$ref": node["discriminator"]["mapping"][values[tag]]}
    return _resolved(node)


def _tag_fields(key: str, node: Json, values: Json) -> Iterator[Field]:
    """The choice between the members of a union, such as the schedules."""
    tag = _tag(node)
    if not tag:
        return
    chosen = values[tag]
    members = {name: _resolved({"$ref": ref}) for name, ref in node["discriminator"]["mapping"].items()}
    title = _titles(key, tag)
    options = [
        Option(value=name, title=title(name), help=_line(member.get("description", "")))
        for name, member in members.items()
        if name == chosen or _can_be_made(member, values, tag) or (name == "calibrated" and profiles())
    ]
    yield _choice(f"{key}.{tag}", titled(tag), chosen, options, _line(members[chosen].get("description", "")))


def _can_be_made(member: Json, values: Json, tag: str) -> bool:
    """Whether what the document holds is enough for another member; its other keys have defaults."""
    return set(member.get("required", ())) <= {tag, *values}


def _titles(key: str, tag: str) -> Callable[[str], str]:
    """What the members of a union are called: their own title where they have one."""
    classes = get_args(Design.model_fields[key].annotation)
    own = {member.model_fields[tag].default: getattr(member, "title", None) for member in classes}
    return lambda name: own.get(name) or _word(name)


def _preset_fields(key: str, values: Json) -> Iterator[Field]:
    """A choice that fills a whole section with numbers to start from."""
    if key not in _PRESETS:
        return
    known = _PRESETS[key]()
    chosen = next((name for name, preset in known.items() if preset["value"] == values), None)
    options = [Option(value=name, title=preset["title"], help=preset["help"]) for name, preset in known.items()]
    help = known[chosen]["help"] if chosen else f"Fill the {key} with the numbers of a known one."
    yield {**_choice(key, "Preset", chosen, options, help), "optional": True, "placeholder": "own numbers"}


def _choice(path: str, label: str, value: Any, options: list[Option], help: str) -> Field:
    return Field(
        path=path, label=label, unit="", kind="choice", value=value, text="", optional=False, placeholder="",
        hint="", help=help, group="", wide=True, options=options,
    )  # fmt: skip


@cache
def _cluster_presets() -> Mapping[str, Json]:
    return {
        name: {"title": preset.title, "help": preset.source, "value": preset.cluster.model_dump(mode="json")}
        for name, preset in presets().items()
    }


_PRESETS: Mapping[str, Callable[[], Mapping[str, Json]]] = {"cluster": _cluster_presets}


def _misplaced(path: str, values: Json) -> bool:
    """What would be an empty box in the way: a hand-drawn order beside another schedule than custom, a
    variant of deepspeed beside another. The experts of the model have a section of their own."""
    if path == "pipeline.actions":
        return values["actions"] is None and values["schedule"] != "custom"
    return path == EXPERTS_SWITCH or (path == "experts.variant" and values["schedule"] != "deepspeed")


# ---- the schema, node by node ----


def _resolved(node: Json) -> Json:
    if "$ref" not in node:
        return node
    rest = {key: value for key, value in node.items() if key != "$ref"}
    return {**_schema()["$defs"][node["$ref"].rsplit("/", 1)[1]], **rest}


def _required(node: Json) -> tuple[Json, bool]:
    """What a value must be where it is not null, and whether it may be."""
    members = [member for member in node.get("anyOf", ()) if member.get("type") != "null"]
    optional = len(members) < len(node.get("anyOf", ()))
    if len(members) != 1:
        return ({**node, "anyOf": members} if optional else node), optional
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    return {**_resolved(members[0]), **rest}, True


def _words(node: Json) -> list[Any]:
    """The words that a value can be, alone or beside a list."""
    return [word for member in (node, *node.get("anyOf", ())) for word in member.get("enum", ())]


def _kind(node: Json) -> Kind | None:
    """The input that a scalar, or a list of them, is typed into; None where it takes another canvas."""
    if "enum" in node:
        return "choice"
    if "anyOf" in node:  # a word or a list
        others = {_kind(member) for member in node["anyOf"]} - {"choice"}
        return others.pop() if others in ({"list"}, {"numbers"}) else None
    if node.get("type") == "array":
        return _kind_of_list(node.get("items", {}))
    kinds: Mapping[str, Kind] = {"integer": "integer", "number": "number", "string": "text", "boolean": "switch"}
    return kinds.get(node.get("type", ""))


def _kind_of_list(items: Json) -> Kind | None:
    if items.get("type") == "array":
        nested: Mapping[str, Kind] = {"string": "lines", "integer": "rows"}
        return nested.get(items["items"].get("type", ""))
    flat: Mapping[str, Kind] = {"integer": "list", "number": "numbers"}
    return flat.get(items.get("type", ""))


def _too_long(kind: Kind, value: Any) -> bool:
    if value is None or kind not in LISTS:
        return False
    return (sum(map(len, value)) if kind in ("lines", "rows") else len(value)) > LONGEST_LIST


def _described(node: Json) -> tuple[str, str]:
    """The help of a field, and what leaving it open means: descriptions say "...; null: balanced by cost"."""
    text, _, default = _line(node.get("description", "")).partition("; null: ")
    return text.rstrip(".") + "." if text else "", default.rstrip(".")


def _line(text: str) -> str:
    """A docstring as a sentence of the page."""
    return " ".join(text.replace("``", "").split())


# ---- words and numbers ----

_UNITS = (("_s", "s", 2), ("_bytes", "B", 6), ("bandwidth", "B/s", 0), ("_flops", "FLOP/s", 6))
_SPELLINGS = {
    "1f1b": "1F1B", "adamw": "AdamW", "bert": "BERT", "degree": "chunks", "ep": "EP", "esp": "ESP",
    "every": "every n-th block", "ffn": "FFN width", "gpt": "GPT", "lr": "learning rate", "moe": "MoE",
    "nics": "NICs", "sgd": "SGD", "u-transformer": "U-Transformer", "vocab": "vocabulary",
}  # fmt: skip


def _named(name: str) -> tuple[str, str]:
    """``latency_s`` is "Latency" in s."""
    for ending, unit, letters in _UNITS:
        if name.endswith(ending):
            return titled(name[: len(name) - letters]), unit
    return titled(name), ""


def titled(name: str) -> str:
    """``micro_batch_size`` as a label: Micro batch size."""
    return _word(" ".join(_SPELLINGS.get(word, word) for word in name.split("_")))


def _word(text: str) -> str:
    text = _SPELLINGS.get(text, text)
    return text if any(letter.isdigit() for letter in text) else text[:1].upper() + text[1:]


def plain(value: float) -> str:
    """A number as a person types it: 80e9, 5e-6, 0.0003."""
    size = abs(value)
    if isinstance(value, int) or not size:
        return f"{value:g}" if isinstance(value, float) else str(value)
    power = 3 * math.floor(math.log10(size) / 3) if size >= 1e5 else 0
    text = f"{value / 10.0**power:.12g}" + (f"e{power}" if power else "")
    text = re.sub(r"e-0*(\d)", r"e-\1", text)
    return text if float(text) == value else repr(value)


def as_text(kind: Kind, value: Any) -> str:
    """A value as it stands in its input."""
    if value is None or kind in ("choice", "switch"):
        return ""
    if kind in ("integer", "number"):
        return plain(value)
    if kind in ("list", "numbers"):
        return value if isinstance(value, str) else ", ".join(map(plain, value))
    if kind in ("lines", "rows"):
        return "\n".join(" ".join(map(str, line)) or NONE for line in value)
    return str(value)


def _humanised(value: Any, unit: str) -> str:
    return quantity(float(value), unit) if unit and isinstance(value, (int, float)) else ""


# ---- from an input to an edit ----


def change(design: Design, field: Field, given: Any) -> Edit:
    """The edit that an input asks for.

    Raises:
        InputError: what was typed is no value of this field; the sentence says what to type.
    """
    value = read(field, given)
    shown = _shown(field, value)
    return _TOGETHER.get(field["path"], _alone)(design, field["path"], value, f"{_inner(field)} {shown}")


def read(field: Field, given: Any) -> Any:
    """What was typed or chosen, as the document has it."""
    kind = field["kind"]
    if kind == "choice":
        if given not in [option["value"] for option in field["options"]]:
            raise InputError(f"{given!r} is none of the choices")
        return given
    if kind == "switch":
        return bool(given) or (None if field["optional"] else False)
    text = str(given).strip()
    if not text and field["optional"]:
        return None
    if text in [option["value"] for option in field.get("options", ())]:
        return text
    return _READERS[kind](text)


_TOO_LARGE = "this number is too large; write one such as 80e9"


def _read_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(_not_a_number(text)) from None
    if not math.isfinite(value):
        raise InputError(_TOO_LARGE)
    return value


def _not_a_number(text: str) -> str:
    if not text:
        return "this needs a number"
    scaled = re.fullmatch(r"([\d.]+)\s*([kMGTP])i?\s*[A-Za-z/]*", text)
    if scaled and scaled[1].count(".") < 2 and scaled[1] != ".":
        power = 3 * ("kMGTP".index(scaled[2]) + 1)
        return f"write it as a plain number: {scaled[1]}e{power}"
    return f"{text!r} is not a number; write one such as 0.5 or 80e9"


def _read_integer(text: str) -> int:
    exact = re.fullmatch(r"[+-]?\d{1,20}", text)  # also above 2**53
    value = int(text) if exact else _read_number(text)
    if value != int(value):
        raise InputError(f"{text} is not a whole number; use {math.floor(value)} or {math.ceil(value)}")
    if abs(value) >= 2**63:
        raise InputError(_TOO_LARGE)
    return int(value)


def _read_list(text: str) -> list[int]:
    return [_read_integer(word) for word in re.split(r"[\s,;]+", text) if word]


def _read_numbers(text: str) -> list[float]:
    return [_read_number(word) for word in re.split(r"[\s,;]+", text) if word]


def _read_rows(text: str) -> list[list[int]]:
    return [_read_list("" if line.strip() == NONE else line) for line in text.splitlines() if line.strip()]


def _read_lines(text: str) -> list[list[str]]:
    return [line.replace(",", " ").split() for line in text.splitlines() if line.strip()]


_READERS: Mapping[str, Callable[[str], Any]] = {
    "integer": _read_integer, "number": _read_number, "text": str, "list": _read_list, "numbers": _read_numbers,
    "lines": _read_lines, "rows": _read_rows,
}  # fmt: skip


def _shown(field: Field, value: Any) -> str:
    """The new value in the words of an undo step."""
    if field["kind"] == "choice":
        return next(option["title"] for option in field["options"] if option["value"] == value)
    if field["kind"] == "switch":
        return "on" if value else "off"
    if value is None:
        return "auto"
    text = _humanised(value, field["unit"]) or as_text(field["kind"], value).replace("\n", " / ")
    return text if len(text) <= 24 else f"{text[:23]}…"


def _inner(field: Field) -> str:
    """A label inside a sentence, with the part it belongs to: "device memory"."""
    words = f"{field['group']} {field['label']}" if field["group"] and field["kind"] != "switch" else field["label"]
    return " ".join(word if word in _SPELLINGS.values() or word.isupper() else word.lower() for word in words.split())


def _alone(design: Design, path: str, value: Any, label: str) -> Edit:
    return path, value, label


def _preset(design: Design, path: str, value: Any, label: str) -> Edit:
    chosen = _PRESETS[path]()[value]
    return path, chosen["value"], f"{path} of {chosen['title']}"


def _nodes(design: Design, path: str, value: Any, label: str) -> Edit:
    cluster, _ = edits.set_nodes(*_drawn(design), value)
    return path, cluster["nodes"], label


def _devices_per_node(design: Design, path: str, value: Any, label: str) -> Edit:
    """Devices are numbered through all nodes, so the meshes' lists change with them."""
    cluster, meshes = edits.set_devices_per_node(*_drawn(design), value)
    return "", {"cluster": cluster, "meshes": [dict(mesh) for mesh in meshes]}, label


def _drawn(design: Design) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    document = design.model_dump(mode="json", include={"meshes", "cluster"})
    return document["meshes"], document["cluster"]


def _schedule(design: Design, path: str, value: Any, label: str) -> Edit:
    """Another schedule with its own options."""
    return "pipeline", edits.choose_schedule(design, value), f"schedule {schedules[value].title}"


def _cost_kind(design: Design, path: str, value: Any, label: str) -> Edit:
    """Another model of cost keeps the keys that both know."""
    node = _schema()["properties"]["cost"]
    known = _part(node, {"kind": value})["properties"]
    kept = {key: each for key, each in design.cost.model_dump(mode="json").items() if key in known}
    first = {"profile": _usual_profile()} if value == "calibrated" else {}
    return "cost", {**first, **kept, "kind": value}, f"{value} costs"


def _usual_profile() -> str:
    """That of this machine, or another that is kept."""
    names = profiles()
    if not names:
        raise InputError("no profile is kept yet; measure this machine first")
    return USUAL if USUAL in names else names[0]


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
    EXPERTS_SWITCH: _experts_in_the_model,
    "experts.ep": _expert_setting,
    "experts.esp": _expert_setting,
    "experts.schedule": _expert_setting,
    "experts.placement": _expert_homes,
}
"""The fields that change more than their own key."""


# ---- problems at their fields ----


def field_of(where: str, paths: Sequence[str]) -> str | None:
    """The field that a problem's place belongs to: itself, or the nearest one that holds it."""
    holding = [path for path in paths if where == path or where.startswith((f"{path}.", f"{path}["))]
    return max(holding, key=len, default=None)


def at_fields(problems: Sequence[Problem], paths: Sequence[str]) -> dict[str, list[dict[str, str]]]:
    """The problems of each field that has any."""
    found: dict[str, list[dict[str, str]]] = {}
    for problem in problems:
        path = field_of(problem.where, paths)
        if path is not None:
            found.setdefault(path, []).append({"severity": problem.severity, "message": problem.message})
    return found


# ---- the widget ----


class Form(Canvas):
    """All numbers and choices of the open design, section by section; each change is one edit."""

    sections = param.List(default=[], doc="See fields().")
    problems = param.Dict(default={}, doc="Path of a field to the problems shown at it.")
    turned = param.Integer(default=0, doc="Changes when another design is put in place: what was refused is forgotten.")

    _esm = module("form.js")
    _stylesheets: ClassVar = [read_static("canvas.css"), read_static("shell.css"), read_static("form.css")]
    _gestures = ("change", "act")

    def __init__(self, session: Session, on_measured: Callable[[], None] = lambda: None, **params: Any) -> None:
        """``on_measured`` opens what was measured, beside the choice of a model of cost."""
        super().__init__(session.edit, **params)
        self._session, self._on_measured = session, on_measured
        session.param.watch(lambda *_: self._show(), ["design", "problems"])
        session.param.watch(lambda *_: self.param.update(turned=session.opened + session.turned), ["opened", "turned"])
        self._show()

    def holds(self, path: str) -> bool:
        """Whether there is a field for a problem's place."""
        return field_of(path, list(self._by_path)) is not None

    def focus_field(self, path: str) -> bool:
        """Bring the field of a problem's place into view and give it the keyboard; False if there is none."""
        field = field_of(path, list(self._by_path))
        if field is not None:
            self._send_msg({"type": "focus", "path": field})
        return field is not None

    def _show(self) -> None:
        sections = fields(self._session.design)
        self._by_path = {field["path"]: field for section in sections for field in section["fields"]}
        self.param.update(sections=sections, problems=at_fields(self._session.problems, list(self._by_path)))

    def _on_act(self, gesture: Mapping[str, Any]) -> None:
        self._on_measured()

    def look(self) -> None:
        """Show what can be chosen now, as when a profile has come."""
        self._show()

    def _on_change(self, gesture: Mapping[str, Any]) -> None:
        """Make the edit, or say at the field why not."""
        path = str(gesture["path"])
        refused: str | None = "this went wrong; the terminal that started the designer says why"
        try:
            self._change(path, gesture["value"])
            refused = None
        except DesignError as error:
            refused = _refusal(error, path)
        except InputError as error:
            refused = str(error)
        finally:
            self._send_msg({"type": "changed", "path": path, "refused": refused})

    def _change(self, path: str, given: Any) -> None:
        field = self._by_path.get(path)
        if field is None:
            raise InputError("the design has changed and this field is gone")
        self._edit(*change(self._session.design, field, given))

    _by_path: Mapping[str, Field] = {}


def _refusal(error: DesignError, path: str) -> str:
    """Why an edit was refused, without the place where the words are shown anyway."""
    return "; ".join(problem.message if problem.where == path else str(problem) for problem in error.problems)
