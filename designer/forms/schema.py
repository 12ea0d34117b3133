"""Access to the JSON Schema of a design: sections, unions, and the input for each kind of value."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from meshwave.engine.document import Design
from meshwave.engine.frozen import LABELS_KEY, NULL_KEY, label_words

Kind = Literal["integer", "number", "text", "choice", "switch", "list", "numbers", "lines", "rows", "costs"]
LISTS: tuple[Kind, ...] = ("list", "numbers", "lines", "rows", "costs")
Json = Mapping[str, Any]


@cache
def design_schema() -> Json:
    """Return the JSON Schema of a design."""
    return Design.model_json_schema()


def union_tag(node: Json) -> str:
    """Return the key that distinguishes the members of a union; empty if the node is not a union."""
    return str(node["discriminator"]["propertyName"]) if "discriminator" in node else ""


def union_members(node: Json) -> dict[str, Json]:
    """Return the members of a union by the value of their tag; empty if the node is not a union."""
    return {name: resolve({"$ref": ref}) for name, ref in node.get("discriminator", {}).get("mapping", {}).items()}


def chosen_member(node: Json, values: Json) -> Json:
    """Return the schema of a section; for a union, that of the member in the document."""
    return union_members(node)[values[union_tag(node)]] if union_tag(node) else resolve(node)


def resolve(node: Json) -> Json:
    """Return a node with its reference replaced by the definition."""
    if "$ref" not in node:
        return node
    rest = {key: value for key, value in node.items() if key != "$ref"}
    return {**design_schema()["$defs"][node["$ref"].rsplit("/", 1)[1]], **rest}


def unwrap_optional(node: Json) -> tuple[Json, bool]:
    """Return the schema of a value that is not null, and whether null is allowed."""
    others = [member for member in node.get("anyOf", ()) if member.get("type") != "null"]
    optional = len(others) < len(node.get("anyOf", ()))
    if len(others) != 1:
        return ({**node, "anyOf": others} if optional else node), optional
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    return {**resolve(others[0]), **rest}, True


def choice_labels(node: Json) -> dict[Any, str]:
    """Return the words that are valid values of a key, including a key that also accepts a list, with their labels."""
    return {
        word: each.get(LABELS_KEY, {}).get(word, str(word))
        for each in (node, *node.get("anyOf", ()))
        for word in each.get("enum", [each["const"]] if "const" in each else [])
    }


def input_kind(node: Json) -> Kind | None:
    """Return the kind of input for a value or a list of values; None if the form has no input for it."""
    if "enum" in node:
        return "choice"
    if "anyOf" in node:  # a word, or a list or a number
        others = {input_kind(member) for member in node["anyOf"] if "const" not in member} - {"choice"}
        return others.pop() if others in ({"list"}, {"numbers"}, {"integer"}) else None
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


def help_texts(node: Json) -> tuple[str, str]:
    """Return the help of a field, in which labels stand for the words that it explains, and the meaning of null."""
    text = label_words(one_line(node.get("description", "")), choice_labels(node))
    return text.rstrip(".") + "." if text else "", node.get(NULL_KEY, "")


def one_line(text: str) -> str:
    """Return a docstring as one line without markup."""
    return " ".join(text.replace("``", "").split())
