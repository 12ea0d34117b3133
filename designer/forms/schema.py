"""The schema of a design, node by node: what a value of each may be, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from meshwave.engine.document import Design
from meshwave.engine.frozen import NULL_KEY

Kind = Literal["integer", "number", "text", "choice", "switch", "list", "numbers", "lines", "rows"]
LISTS: tuple[Kind, ...] = ("list", "numbers", "lines", "rows")
Json = Mapping[str, Any]


@cache
def whole() -> Json:
    return Design.model_json_schema()


def tag(node: Json) -> str:
    """The key that tells the members of a union apart; empty for what is no union."""
    return str(node["discriminator"]["propertyName"]) if "discriminator" in node else ""


def members(node: Json) -> dict[str, Json]:
    """The members of a union by what their tag says, such as the schedules; none of what is no union."""
    return {name: resolved({"$ref": ref}) for name, ref in node.get("discriminator", {}).get("mapping", {}).items()}


def part(node: Json, values: Json) -> Json:
    """The schema of a part; of a union the member that the document has chosen."""
    return members(node)[values[tag(node)]] if tag(node) else resolved(node)


def resolved(node: Json) -> Json:
    if "$ref" not in node:
        return node
    rest = {key: value for key, value in node.items() if key != "$ref"}
    return {**whole()["$defs"][node["$ref"].rsplit("/", 1)[1]], **rest}


def required(node: Json) -> tuple[Json, bool]:
    """What a value must be where it is not null, and whether it may be."""
    others = [member for member in node.get("anyOf", ()) if member.get("type") != "null"]
    optional = len(others) < len(node.get("anyOf", ()))
    if len(others) != 1:
        return ({**node, "anyOf": others} if optional else node), optional
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    return {**resolved(others[0]), **rest}, True


def words(node: Json) -> list[Any]:
    """The words that a value can be, alone or beside a list."""
    return [word for member in (node, *node.get("anyOf", ())) for word in member.get("enum", ())]


def kind(node: Json) -> Kind | None:
    """The input that a scalar, or a list of them, is typed into; None where it takes another canvas."""
    if "enum" in node:
        return "choice"
    if "anyOf" in node:  # a word or a list
        others = {kind(member) for member in node["anyOf"]} - {"choice"}
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


def described(node: Json) -> tuple[str, str]:
    """Return the help of a field and the meaning of null."""
    text = line(node.get("description", ""))
    return text.rstrip(".") + "." if text else "", node.get(NULL_KEY, "")


def line(text: str) -> str:
    """A docstring as a sentence of the page."""
    return " ".join(text.replace("``", "").split())
