"""Pages that are made from the code: a line ``<!-- generated: KIND ARGUMENTS -->`` of a page becomes Markdown.

``document`` makes the reference of a document from its JSON Schema, ``commands`` that of the command line from its
parser, ``members`` a table of a registry, and ``output`` the output of a command, which is run for it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from inspect import signature
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.typing import ExtensionMetadata

from meshwave.engine.cli import main as cli
from meshwave.engine.exports import exports
from meshwave.engine.lessons import find_lesson, lesson_folders
from meshwave.engine.messages import _catalogue as catalogue

MARK = re.compile(r"^<!-- generated: (\w+)(.*?) -->$", re.MULTILINE)
Json = Mapping[str, Any]


def setup(app: Sphinx) -> ExtensionMetadata:
    home = tempfile.TemporaryDirectory(prefix="meshwave-docs-")  # commands find no runs and no profiles
    os.environ["MESHWAVE_HOME"] = home.name
    os.environ["COLUMNS"] = "100"
    app.connect("source-read", insert)
    app.connect("env-get-outdated", lambda app, env, *_: [name for name in env.all_docs if is_generated(env, name)])
    app.connect("build-finished", lambda *_: home.cleanup())
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def is_generated(env: BuildEnvironment, page: str) -> bool:
    """Return whether a page has to be made again although its file is the same."""
    path = Path(env.doc2path(page))
    return path.exists() and MARK.search(path.read_text(encoding="utf-8")) is not None


def insert(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the marks of a page by what they stand for."""
    source[0] = MARK.sub(lambda mark: "\n".join(KINDS[mark[1]](*shlex.split(mark[2]))), source[0])


# ---- documents ----


def document(name: str, level: str = "2", prefix: str = "") -> Iterator[str]:
    """Yield the reference of the document that the class ``module:name`` describes; ``prefix`` sets its keys apart."""
    module, _, attribute = name.partition(":")
    schema = TypeAdapter(getattr(import_module(module), attribute)).json_schema()
    yield from part(schema, schema, f"{prefix}: " if prefix else "", int(level))


def part(schema: Json, node: Json, path: str, level: int) -> Iterator[str]:
    """Yield the keys of an object, then its parts under headings of their own."""
    required = node.get("required", ())
    for key, child in node["properties"].items():
        yield from confval(f"{path}{key}", {"": Key(schema, child, key in required)})
    for key, child in node["properties"].items():
        yield from nested(schema, child, f"{path}{key}", level)


def nested(schema: Json, node: Json, path: str, level: int) -> Iterator[str]:
    """Yield the objects inside a key under a heading."""
    for member in node.get("anyOf", [node]):
        found = resolve(schema, resolve(schema, member).get("items", member))
        if "discriminator" in found:
            yield f"\n{'#' * level} `{path}`\n"
            yield from union(schema, found, f"{path}.", level + 1)
        elif "properties" in found:
            yield f"\n{'#' * level} `{path}`\n\n{text(found)}\n"
            yield from part(schema, found, f"{path}.", level + 1)


def union(schema: Json, node: Json, path: str, level: int) -> Iterator[str]:
    """Yield the members of a union in a table, then the keys of all of them."""
    tag = node["discriminator"]["propertyName"]
    names: dict[str, list[str]] = {}
    for name, reference in node["discriminator"]["mapping"].items():
        names.setdefault(reference, []).append(f"`{name}`")
    members = {", ".join(names[reference]): resolve(schema, {"$ref": reference}) for reference in names}
    yield from described(f"{path}{tag}", f"one of {', '.join(members)}", "", "Selects a row of this table:")
    yield f"\n| `{tag}` | |\n|---|---|"
    for name, member in members.items():
        yield f"| {name} | {text(member)} |"
    keys: dict[str, dict[str, Key]] = {}
    for name, member in members.items():
        for key, child in member["properties"].items():
            keys.setdefault(key, {})[name] = Key(schema, child, key in member.get("required", ()))
    for key, found in keys.items():
        if key != tag:
            yield from confval(f"{path}{key}", found, is_shared=len(found) == len(members))
    for key, found in keys.items():
        yield from nested(schema, next(iter(found.values())).node, f"{path}{key}", level)


class Key(NamedTuple):
    """A key of an object."""

    schema: Json
    node: Json
    is_required: bool

    @property
    def type(self) -> str:
        return kind(self.schema, self.node)

    @property
    def default(self) -> str:
        if self.is_required:
            return "required"
        parts = resolve(self.schema, self.node)
        if "default" not in self.node or "properties" in parts or "discriminator" in parts:
            return "that of each of its keys"
        return f"`{json.dumps(self.node['default'])}`"

    @property
    def text(self) -> str:
        return text(self.node) or text(resolve(self.schema, self.node))


def confval(name: str, keys: Mapping[str, Key], is_shared: bool = True) -> Iterator[str]:
    """Yield the description of a key by the members of a union that have it; it ``is_shared`` if all have."""
    first, *_ = keys.values()
    owners: dict[str, list[str]] = {}
    for owner, key in keys.items():
        owners.setdefault(key.text, []).append(owner)
    words = "\n".join(f"- {', '.join(found)}: {each}" for each, found in owners.items())
    if len(owners) == 1:
        words = first.text if is_shared else f"Only for {', '.join(keys)}. {first.text}"
    yield from described(name, first.type, first.default, words)


def described(name: str, type_: str, default: str, words: str) -> Iterator[str]:
    yield f"\n:::{{confval}} {name}\n:type: {type_}"
    if default:
        yield f":default: {default}"
    yield f"\n{words}\n:::"


def resolve(schema: Json, node: Json) -> dict[str, Any]:
    """Return a node with what it refers to; its own words come first."""
    if "$ref" not in node:
        return dict(node)
    return {**schema["$defs"][node["$ref"].rsplit("/", 1)[1]], **{k: v for k, v in node.items() if k != "$ref"}}


def kind(schema: Json, node: Json) -> str:
    """Return the type of a value in words."""
    if "anyOf" in node:
        return " or ".join(kind(schema, member) for member in node["anyOf"])
    if "enum" in node:
        labels = node.get("x-labels", {})
        return "one of " + ", ".join(f"`{word}`{labelled(word, labels)}" for word in node["enum"])
    if "const" in node:
        return f"`{json.dumps(node['const'])}`"
    found = resolve(schema, node)
    if found.get("type") == "array":
        return f"list of {kind(schema, found['items'])}"
    if "properties" in found or "discriminator" in found or "additionalProperties" in found:
        return "object"
    return str(found.get("type", "value")) + limits(found)


def labelled(word: str, labels: Mapping[str, str]) -> str:
    """Return the label of a word in parentheses, where it says more than the word."""
    label = labels.get(word, word)
    return "" if label.lower().replace("-", " ") == re.sub("[-_]", " ", word) else f" ({label})"


def limits(node: Json) -> str:
    """Return the range of a number in words, where it has one."""
    least, most = node.get("minimum"), node.get("maximum")
    if least is not None and most is not None:
        return f" from {least:g} to {most:g}"
    if "exclusiveMinimum" in node:
        return f" over {node['exclusiveMinimum']:g}" + (f", up to {most:g}" if most is not None else "")
    return f" of at least {least:g}" if least is not None else ""


def text(node: Json) -> str:
    """Return the description of a node as Markdown."""
    meaning = f" Null: {node['x-null']}." if "x-null" in node else ""
    return re.sub(r"``(.+?)``", r"`\1`", " ".join(str(node.get("description", "")).split())) + meaning


# ---- the command line ----


def commands() -> Iterator[str]:
    """Yield the reference of every command."""
    yield from command(cli.parser(), 2)


def command(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    options = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    subparsers = [action for action in options if isinstance(action, argparse._SubParsersAction)]
    yield f"\n{'#' * level} {parser.prog}\n\n{parser.description}\n"
    yield f"```text\n{parser.format_usage().removeprefix('usage: ')}```\n"
    yield f":::{{program}} {parser.prog}\n:::\n"
    for action in options:
        if action not in subparsers:
            value = f" {action.metavar or action.dest.upper()}" if action.nargs != 0 and action.option_strings else ""
            names = ", ".join(name + value for name in action.option_strings) or str(action.metavar or action.dest)
            yield f"\n:::{{option}} {names}\n\n{action_help(parser, action)}\n:::"
    for action in subparsers:
        for child in dict.fromkeys(action.choices.values()):
            yield from command(child, level + 1)


def action_help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    words = parser._get_formatter()._expand_help(action) if action.help else ""
    return f"{words[:1].upper()}{words[1:]}." if words else f"One of: {', '.join(action.choices or ())}."


def output(*arguments: str) -> Iterator[str]:
    """Yield a command and its output; a number before the command limits the lines."""
    most = int(arguments[0]) if arguments[0].isdecimal() else None
    arguments = arguments[1:] if most else arguments
    content = BytesIO()
    printed = TextIOWrapper(content, encoding="utf-8", write_through=True)
    with redirect_stdout(printed), redirect_stderr(printed):
        cli.main(arguments)
    lines = content.getvalue().decode().rstrip().split("\n")
    shown = [*lines[:most], "..."] if most and most < len(lines) else lines
    yield "\n".join(["```console", f"$ meshwave {shlex.join(arguments)}", *shown, "```"])


# ---- registries ----


def members(name: str) -> Iterator[str]:
    """Yield a table of the members of a registry, ``module:name``."""
    module, _, attribute = name.partition(":")
    yield "| name | title | description |\n|---|---|---|"
    for key, member in getattr(import_module(module), attribute).items():
        described = " ".join((member.__doc__ or "").partition("\n\n")[0].split()).replace("|", "\\|")
        yield f"| `{key}` | {member.title} | {text({'description': described})} |"


def forms() -> Iterator[str]:
    """Yield a table of the exports."""
    yield "| `--to` | title | opened by |\n|---|---|---|"
    for name, form in exports.items():
        yield f"| `{name}` | {form.title} (`{form.suffix}`) | {form.note} |"


def messages() -> Iterator[str]:
    """Yield a table of the codes of findings, with their templates or the parameters of which their text is made."""
    yield "| code | message |\n|---|---|"
    for code, message in sorted(catalogue().items()):
        if isinstance(message, str):
            words = re.sub(r"\{(\w+)[^}]*\}", r"*\1*", message).replace("|", "\\|").replace("\n", " ")
        else:
            words = f"depends on {', '.join(f'*{name}*' for name in signature(message).parameters)}"
        yield f"| `{code}` | {words} |"


def lessons() -> Iterator[str]:
    """Yield a table of the lessons that come with Meshwave."""
    yield "| lesson | minutes | level | afterwards you can |\n|---|---|---|---|"
    for name in lesson_folders():
        about = find_lesson(name).about
        summary = about.summary[:1].lower() + about.summary[1:].removesuffix(".")
        yield f"| {about.title} (`{name}`) | {about.minutes} | {about.level} | {summary} |"


KINDS: dict[str, Callable[..., Iterator[str]]] = {
    "document": document,
    "commands": commands,
    "output": output,
    "members": members,
    "forms": forms,
    "messages": messages,
    "lessons": lessons,
}
