"""Problems of single values and keys of a document, converted from validation errors of pydantic."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import isqrt
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from meshwave.engine.document.fixes import remove_key_fix, rename_key_fix
from meshwave.engine.errors import closest_word, escape_unprintable
from meshwave.engine.findings import Fix, Problem, set_key_fix
from meshwave.engine.frozen import TEXT_FORMS
from meshwave.engine.schedules import schedules

Place = tuple[str | int, ...]
"""Location in a document, such as ``("meshes", 2, "devices")``."""

LONGEST_VALUE = 40
"""Maximum number of characters of a refused value that its message repeats."""
MAX_ERRORS = 100_000
"""Maximum number of errors that are examined individually; listing as many takes pydantic a second."""
MAX_OF_A_KIND = 2_000
"""Maximum number of errors of one kind that become problems; an invalid file may have millions."""


class _Error(NamedTuple):
    """A pydantic error and its location in the document."""

    detail: ErrorDetails
    place: Place
    document: Mapping[str, Any]
    root: type[BaseModel]

    @property
    def path_text(self) -> str:
        return format_path(self.place)

    def path(self, key: str) -> str:
        """Return the path of a key in the section with the error."""
        return format_path((*self.place, key))

    @property
    def value(self) -> Any:
        return self.detail["input"]

    @property
    def context(self) -> Mapping[str, Any]:
        return self.detail.get("ctx", {})

    def problem(self, code: str, params: Mapping[str, Any], *fixes: Fix, key: str = "") -> Problem:
        """Return a problem at the path of the error, or at a ``key`` below it."""
        return Problem(format_path((*self.place, *([key] if key else []))), code, params, fixes=fixes)


def validation_problems(error: ValidationError, document: Mapping[str, Any], root: type[BaseModel]) -> list[Problem]:
    """Convert the errors of a validation to problems of the document, whose model class is ``root``."""
    if error.error_count() > MAX_ERRORS:
        return [Problem("", "too_many_errors", {"count": error.error_count()})]
    kinds: Counter[str] = Counter()
    details = []
    for detail in error.errors(include_url=False):
        kinds[detail["type"]] += 1
        if kinds[detail["type"]] <= MAX_OF_A_KIND:
            details.append(detail)
    places = [_strip_tags(detail["loc"], document) for detail in details]
    found = [
        _convert_error(_Error(detail, place, document, root))
        for detail, place in zip(details, places, strict=True)
        if not _is_consequence(detail, place, places)
    ]
    first: dict[str, Problem] = {}
    for problem in found:  # a union reports errors for each of its members
        first[problem.where] = _merge_problems(first[problem.where], problem) if problem.where in first else problem
    return list(first.values())


def _is_consequence(detail: ErrorDetails, place: Place, places: list[Place]) -> bool:
    """Return True if a list is refused only because its entries are, for example as too short."""
    is_name = detail["type"] == "literal_error" and isinstance(detail["input"], (list, tuple))
    is_short = detail["type"] == "too_short" and len(detail["input"]) > 0
    return (is_name or is_short) and any(len(other) > len(place) and other[: len(place)] == place for other in places)


def _merge_problems(problem: Problem, other: Problem) -> Problem:
    """Merge the problems of one value under two members of a union, as in "3 should be none, full or a list"."""
    expected = other.params.get("expected", [])
    if problem.code == "wrong_type" and expected:
        return problem.replace(params={**problem.params, "expected": [*problem.params["expected"], *expected]})
    if problem.code == "unknown_name" and expected:
        return problem.replace(params={**problem.params, "other": expected})
    return problem


def _convert_error(error: _Error) -> Problem:
    kind = error.detail["type"]
    if kind in _PROBLEMS:
        return _PROBLEMS[kind](error)
    if "problem" in error.context:  # raised by a validator of the section
        problem: Problem = error.context["problem"]
        return problem.with_path_prefix(error.path_text)
    reason = error.detail["msg"]
    return error.problem("invalid_value", {"reason": reason[:1].lower() + reason[1:]})


# ---- locations ----


def format_path(place: Place) -> str:
    """Return a location as text, such as ``meshes[2].devices`` for ``("meshes", 2, "devices")``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{escape_unprintable(step)}" for step in place).lstrip(
        "."
    )


def _strip_tags(location: Place, document: Mapping[str, Any]) -> Place:
    """Remove the parts that pydantic adds to a location: the tried member of a union, and ``[key]``."""
    kept: list[str | int] = []
    here: Any = document
    for number, step in enumerate(location):
        is_last = number == len(location) - 1
        if isinstance(here, Mapping):
            is_tag = step in (here.get("kind"), here.get("schedule"))
            known = step in here or (is_last and isinstance(step, str) and step.isidentifier() and not is_tag)
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


def _value_at(place: Place, document: Mapping[str, Any]) -> Any:
    here: Any = document
    for step in place:
        here = here[step]
    return here


def _known_keys(place: Place, document: Mapping[str, Any], root: type[BaseModel]) -> list[str]:
    """Return the keys of the section that contains a location, from the JSON Schema."""
    schema = _json_schema(root)
    node: Any = schema
    walked: list[str | int] = []
    for step in place[:-1]:
        walked.append(step)
        node = _resolve_schema(node, schema, _value_at(tuple(walked[:-1]), document))
        table = node.get("additionalProperties") or {}  # values of a mapping with arbitrary keys
        node = node.get("items", {}) if isinstance(step, int) else node.get("properties", {}).get(step, table)
    node = _resolve_schema(node, schema, _value_at(place[:-1], document))
    return sorted(node.get("properties", {}))


@cache
def _json_schema(root: type[BaseModel]) -> Any:
    return root.model_json_schema()


def _resolve_schema(node: Any, schema: Any, part: Any) -> Any:
    """Resolve references, optional members and the selected member of a tagged union."""
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


# ---- keys and names ----


def _unknown_key(error: _Error) -> Problem:
    key = str(error.detail["loc"][-1])
    section = _value_at(error.place[:-1], error.document)
    if error.place[0] == "pipeline" and isinstance(section, Mapping):
        owners = [name for name, member in schedules.items() if key in member.model_fields]
        if owners:
            params = {"key": key, "schedules": owners, "schedule": section.get("schedule")}
            return error.problem("unused_option", params, remove_key_fix(error.path_text))
    known = _known_keys(error.place, error.document, error.root)
    suggestion = closest_word(key, known)
    params = {"key": key, "known": known, "suggestion": suggestion}
    return error.problem("unknown_key", params, *_rename_fix(error, suggestion), remove_key_fix(error.path_text))


def _rename_fix(error: _Error, name: str | None) -> list[Fix]:
    """Return the fix that renames the refused key; empty if the name is taken, or the value cannot be written as JSON."""
    section = _value_at(error.place[:-1], error.document)
    if name is None or name in section:
        return []
    value = section[error.place[-1]]
    try:
        json.dumps(value, default=str, allow_nan=False)
    except ValueError:
        return []
    return [rename_key_fix(error.path_text, value, name)]


def _unknown_name(error: _Error) -> Problem:
    expected = str(error.context.get("expected", ""))
    known = sorted(word.strip(" '") for word in expected.replace(" or ", ", ").split(","))
    if not isinstance(error.value, str):
        return error.problem("wrong_type", {"value": show_value(error.value), "expected": known})
    suggestion = closest_word(error.value, known)
    params = {"value": error.value[:LONGEST_VALUE], "known": known, "suggestion": suggestion}
    if "[key]" in error.detail["loc"]:
        return error.problem("unknown_name", params, *_rename_fix(error, suggestion))
    return error.problem("unknown_name", params, *([set_key_fix(error.path_text, suggestion)] if suggestion else []))


def _unknown_kind(error: _Error) -> Problem:
    key = _tag_key(error)
    known = sorted(word.strip(" '") for word in str(error.context["expected_tags"]).split(","))
    suggestion = closest_word(str(error.context["tag"]), known)
    noun = _NOUNS.get(error.place[-1:], key)
    params = {"noun": noun, "name": quote(error.value[key]), "known": known, "suggestion": suggestion}
    fixes = [set_key_fix(error.path(key), suggestion)] if suggestion else []
    return error.problem("unknown_kind", params, *fixes, key=key)


_NOUNS: dict[Place, str] = {("cost",): "cost model", ("model",): "model"}
"""Names of the tagged unions whose tag does not contain a name."""


def _tag_key(error: _Error) -> str:
    """Return the key that selects the member of a union."""
    return str(error.context["discriminator"]).strip("'")


def _missing_key(error: _Error) -> Problem:
    return error.problem("missing_key", {"key": error.detail["loc"][-1]})


def _missing_kind(error: _Error) -> Problem:
    key = _tag_key(error)
    return error.problem("missing_kind", {"key": key}, key=key)


# ---- values ----


def _wrong_type(noun: str) -> Callable[[_Error], Problem]:
    def problem(error: _Error) -> Problem:
        return error.problem("wrong_type", {"value": show_value(error.value), "expected": [noun]})

    return problem


def _wrong_list(error: _Error) -> Problem:
    return _wrong_type(_LISTS.get(error.place[-1:], "a list"))(error)


_LISTS: dict[Place, str] = {
    ("recompute",): "a list of stages such as [0, 3]",
    ("load",): "a list with a share for each expert",
}


def _range_problem(relation: str, key: str) -> Callable[[_Error], Problem]:
    def problem(error: _Error) -> Problem:
        limit, bound = error.context[key], relation
        if key == "gt" and limit == 0 and isinstance(limit, int):
            limit, bound = 1, "minimum"
        is_setting = bound == "minimum" and isinstance(limit, int) and isinstance(error.place[-1], str)
        fixes = [set_key_fix(error.path_text, limit)] if is_setting else []
        return error.problem("out_of_range", {"value": show_value(error.value), bound: limit}, *fixes)

    return problem


def _long_list(error: _Error) -> Problem:
    return error.problem("long_list", {"maximum": error.context["max_length"]})


def _long_text(error: _Error) -> Problem:
    return error.problem("long_text", {"length": len(error.value), "maximum": error.context["max_length"]})


def _indivisible_width(error: _Error) -> Problem:
    """Return the problem of a width that is not divisible by the heads; suggestions are divisible by every tp."""
    problem: Problem = error.context["problem"]
    heads, hidden = problem.params["heads"], problem.params["hidden"]
    suitable = nearest_head_counts(heads, hidden, tensor_parallel_sizes(error.document.get("meshes")))
    fixes = (*(set_key_fix("heads", count) for count in suitable), *problem.fixes)
    return problem.replace(params={**problem.params, "suitable": suitable}, fixes=fixes).with_path_prefix(
        error.path_text
    )


def nearest_head_counts(given: int, width: int, tp: Iterable[int]) -> list[int]:
    """Return the nearest numbers of heads below and above ``given`` that divide the width and that every tp divides."""
    small = [number for number in range(1, isqrt(width) + 1) if width % number == 0]
    suitable = sorted({d for number in small for d in (number, width // number) if all(d % size == 0 for size in tp)})
    return [*[d for d in suitable if d < given][-1:], *[d for d in suitable if d > given][:1]]


def tensor_parallel_sizes(meshes: Any) -> set[int]:
    """Return the tp sizes in a document that may be invalid."""
    axes = [mesh.get("axes") for mesh in meshes if isinstance(mesh, Mapping)] if isinstance(meshes, list) else []
    sizes = [each.get("tp") for each in axes if isinstance(each, Mapping)]
    return {size for size in sizes if type(size) is int and size > 0}


def quote(value: Any) -> str:
    """Return a value that should be a name as text, in quotes if it is a string."""
    return repr(value[:LONGEST_VALUE]) if isinstance(value, str) else show_value(value)


def show_value(value: Any) -> str:
    """Return a value as in the document, truncated to a readable length."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = f"this {type(value).__name__}"
    return escape_unprintable(text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}...")


def _wrong_form(error: _Error) -> Problem:
    pattern = error.context["pattern"]
    return _wrong_type(TEXT_FORMS.get(pattern, f"text that matches {pattern}"))(error)


_PROBLEMS: Mapping[str, Callable[[_Error], Problem]] = {
    "extra_forbidden": _unknown_key,
    "literal_error": _unknown_name,
    "union_tag_invalid": _unknown_kind,
    "union_tag_not_found": _missing_kind,
    "missing": _missing_key,
    "int_type": _wrong_type("a whole number"),
    "int_from_float": _wrong_type("a whole number"),
    "int_parsing": _wrong_type("a whole number"),
    "float_type": _wrong_type("a number"),
    "finite_number": _wrong_type("a finite number"),
    "string_type": _wrong_type("text"),
    "string_pattern_mismatch": _wrong_form,
    "tuple_type": _wrong_list,
    "mapping_type": _wrong_type("an object"),
    "dict_type": _wrong_type("an object"),
    "model_type": _wrong_type("an object with keys"),
    "model_attributes_type": _wrong_type("an object with keys"),
    "greater_than": _range_problem("above", "gt"),
    "greater_than_equal": _range_problem("minimum", "ge"),
    "less_than": _range_problem("below", "lt"),
    "less_than_equal": _range_problem("maximum", "le"),
    "too_short": lambda error: error.problem("empty_list", {}),
    "too_long": _long_list,
    "string_too_short": lambda error: error.problem("empty_text", {}),
    "string_too_long": _long_text,
    "indivisible_width": _indivisible_width,
}
"""Functions that convert pydantic errors to problems, by error type."""
