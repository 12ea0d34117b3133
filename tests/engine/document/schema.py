"""Validator for the part of JSON Schema (draft 2020-12) that the schema of a design uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "null": type(None),
    "boolean": bool,
}
KNOWN = {
    *(
        "$ref",
        "$defs",
        "$schema",
        "title",
        "description",
        "x-null",
        "x-labels",
        "default",
        "type",
        "properties",
        "required",
    ),
    *(
        "additionalProperties",
        "propertyNames",
        "items",
        "minItems",
        "maxItems",
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "discriminator",
    ),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern"),
}


def faults(value: Any, schema: dict[str, Any], root: dict[str, Any], where: str = "") -> Iterator[str]:
    """Yield the places where a value violates the schema."""
    assert schema.keys() <= KNOWN, f"the schema says something that is not checked here: {schema.keys() - KNOWN}"
    if "$ref" in schema:
        yield from faults(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root, where)
    for several in ("anyOf", "oneOf"):
        if several in schema and all(any(faults(value, member, root)) for member in schema[several]):
            yield f"{where}: none of the members fits"
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        yield f"{where}: {value!r} is no {kind}"
        return
    if ("enum" in schema and value not in schema["enum"]) or ("const" in schema and value != schema["const"]):
        yield f"{where}: {value!r} is not one of the known"
    if isinstance(value, dict):
        yield from object_faults(value, schema, root, where)
    elif isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"{where}: too few"
        if len(value) > schema.get("maxItems", len(value)):
            yield f"{where}: too many"
        for number, item in enumerate(value):
            yield from faults(item, schema.get("items", {}), root, f"{where}[{number}]")
    elif isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            yield f"{where}: {len(value)} characters"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{where}: {value!r} does not match {schema['pattern']}"
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        if not low <= value <= high or value <= schema.get("exclusiveMinimum", value - 1):
            yield f"{where}: {value} is out of bounds"


def object_faults(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], where: str) -> Iterator[str]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for key in schema.get("required", []):
        if key not in value:
            yield f"{where}: {key} is missing"
    for key, item in value.items():
        yield from faults(key, schema.get("propertyNames", {}), root, f"{where}.{key}")
        if key in known:
            yield from faults(item, known[key], root, f"{where}.{key}")
        elif isinstance(others, dict):
            yield from faults(item, others, root, f"{where}.{key}")
        elif not others:
            yield f"{where}: there is no key {key}"
