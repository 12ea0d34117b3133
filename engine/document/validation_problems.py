"""What pydantic refuses of a document, in words: where, what, what to do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import cache
from math import isqrt
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from meshwave.engine.errors import nearest, printable
from meshwave.engine.findings import Problem
from meshwave.engine.schedules import schedules

Place = tuple[str | int, ...]
"""Where in a document: ``("meshes", 2, "devices")``."""

MOST_ERRORS = 100_000
"""Errors of a file that are looked at one by one; pydantic takes a second to list so many."""
MOST_READ = 2_000
"""Errors of one kind that are put into words; a file that is wrong throughout has millions."""


def from_validation(error: ValidationError, document: Mapping[str, Any], root: type[BaseModel]) -> list[Problem]:
    """Every error of a validation as a problem of the document, which is a ``root``."""
    if error.error_count() > MOST_ERRORS:
        return [
            Problem("", "too_many", f"{error.error_count():,} values are wrong; check that the file is the right one")
        ]
    kinds: Counter[str] = Counter()
    details = []
    for detail in error.errors(include_url=False):
        kinds[detail["type"]] += 1
        if kinds[detail["type"]] <= MOST_READ:
            details.append(detail)
    places = [_without_tags(detail["loc"], document) for detail in details]
    found = [
        _in_words(detail, place, document, root)
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
    if wish and problem.message.startswith(f"{start} should be "):
        return problem.replace(params=f"{problem.message} or {wish}")
    if wish and problem.code == "literal_error":
        return problem.replace(params=f"{problem.message.removesuffix('.')}; or {wish}.")
    return problem


def _in_words(detail: ErrorDetails, location: Place, document: Mapping[str, Any], root: type[BaseModel]) -> Problem:
    say = _WORDS.get(detail["type"])
    if detail["type"] == "extra_forbidden":
        message = _unknown_key(detail, location, document, root)
    else:
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
    return "".join(f"[{step}]" if isinstance(step, int) else f".{printable(step)}" for step in location).lstrip(".")


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


def _keys_known_at(location: Place, document: Mapping[str, Any], root: type[BaseModel]) -> list[str]:
    """The keys that the part which holds this place knows, read off the JSON Schema."""
    schema = _schema(root)
    node: Any = schema
    walked: list[str | int] = []
    for step in location[:-1]:
        walked.append(step)
        node = _resolve(node, schema, _part_at(tuple(walked[:-1]), document))
        inside = node.get("additionalProperties") or {}  # of a table: what every key of it holds
        node = node.get("items", {}) if isinstance(step, int) else node.get("properties", {}).get(step, inside)
    node = _resolve(node, schema, _part_at(location[:-1], document))
    return list(node.get("properties", {}))


@cache
def _schema(root: type[BaseModel]) -> Any:
    return root.model_json_schema()


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


def _unknown_key(detail: ErrorDetails, location: Place, document: Mapping[str, Any], root: type[BaseModel]) -> str:
    key = str(detail["loc"][-1])
    known = _keys_known_at(location, document, root)
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
    what = _TAGGED.get(location[-1:], _tag_of(detail))
    return (
        f"there is no {what} called {quoted(detail['input'][_tag_of(detail)])}. {nearest(str(context['tag']), known)}"
    )


_TAGGED: dict[Place, str] = {("cost",): "cost model", ("model",): "model"}
"""What a union is, where its tag does not say it."""


def _missing(detail: ErrorDetails, location: Place, document: Mapping[str, Any]) -> str:
    return f"{detail['loc'][-1]!r} is missing; add it"


def _missing_tag(detail: ErrorDetails, location: Place, document: Mapping[str, Any]) -> str:
    return f"{_tag_of(detail)!r} is missing; it says which kind this is"


def _wrong_type(noun: str) -> Any:
    def say(detail: ErrorDetails, location: Place, document: Mapping[str, Any]) -> str:
        return f"{_shown(detail['input'])} should be {noun}"

    return say


def _no_list(detail: ErrorDetails, location: Place, document: Mapping[str, Any]) -> str:
    return f"{_shown(detail['input'])} should be {_LISTS.get(location[-1:], 'a list')}"


_LISTS: dict[Place, str] = {
    ("recompute",): "a list of stages such as [0, 3]",
    ("load",): "a list with a share for each expert",
}


def _heads(detail: ErrorDetails, location: Place, document: Mapping[str, Any]) -> str:
    """The numbers of heads next to the one given that suit the width, and every tp where there is one."""
    given, width = detail["ctx"]["heads"], detail["ctx"]["hidden"]
    suit = heads_beside(given, width, tensor_parallel(document.get("meshes")))
    advice = f"{' or '.join(map(str, suit))} heads, or " if suit else ""
    return f"{given} heads do not divide a hidden width of {width}; use {advice}a width of {detail['ctx']['near']}"


def heads_beside(given: int, width: int, tp: set[int]) -> list[int]:
    """The nearest numbers of heads below and above ``given`` that divide ``width`` and that every ``tp`` divides."""
    small = [number for number in range(1, isqrt(width) + 1) if width % number == 0]
    suit = sorted({d for number in small for d in (number, width // number) if all(d % size == 0 for size in tp)})
    return [*[d for d in suit if d < given][-1:], *[d for d in suit if d > given][:1]]


def tensor_parallel(meshes: Any) -> set[int]:
    """The tp sizes in a document that may be wrong anywhere."""
    axes = [mesh.get("axes") for mesh in meshes if isinstance(mesh, Mapping)] if isinstance(meshes, list) else []
    sizes = [each.get("tp") for each in axes if isinstance(each, Mapping)]
    return {size for size in sizes if type(size) is int and size > 0}


def _bound(words: str, key: str) -> Any:
    def say(detail: ErrorDetails, location: Place, document: Mapping[str, Any]) -> str:
        limit = detail["ctx"][key]
        if key == "gt" and limit == 0 and isinstance(limit, int):
            return f"{_shown(detail['input'])} should be at least 1"
        return f"{_shown(detail['input'])} should be {words} {limit:,.16g}"

    return say


def quoted(value: Any) -> str:
    """Return a value that should be a name: in quotes where it is text."""
    return repr(value[:40]) if isinstance(value, str) else _shown(value)


def _shown(value: Any) -> str:
    """A value as it stands in the document, cut short."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = f"this {type(value).__name__}"
    return printable(text if len(text) <= 40 else f"{text[:37]}...")


def _plain(detail: ErrorDetails) -> str:
    message = detail["msg"]
    return message[:1].lower() + message[1:]


_FIELD_OF = {
    "mesh_size": ("devices",),
    "cluster_size": ("nodes",),
    "heads": ("heads",),
    "top_k": ("top_k",),
    "skips_with_experts": ("moe",),
    "weight": ("weight",),
    "image_size": ("image_size",),
    "attention_resolutions": ("attention_resolutions",),
    "attention_heads": ("heads",),
}
"""The field to point at where a whole part was refused."""

_WORDS: dict[str, Any] = {
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
    "tuple_type": _no_list,
    "heads": _heads,
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
