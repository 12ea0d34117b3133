"""Texts of the page, for translation: find them in the sources, and compare a language file with them.

``python scripts/page_texts.py de`` lists the entries that ``static/locale/de.json`` lacks, and those that no source needs.
An entry translates an English text. Values that are filled in are ``{0}``, ``{1}`` and so on, in both languages.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pygments.lexers.javascript import JavascriptLexer
from pygments.token import Comment, String

ROOT = Path(__file__).parents[1]
PYTHON = (
    "designer/canvases", "designer/forms", "designer/kit", "designer/lessons", "designer/pages", "designer/state",
    "designer/views", "designer/server/administration.py", "designer/server/people_access.py", "designer/server/usage.py",
    "designer/server/workshop_access.py", "engine/lessons/checks.py",
    "engine/lessons/quantities.py", "engine/messages", "engine/predict",
    "engine/document/differences.py", "engine/experts", "engine/program/action.py", "engine/runs", "engine/runtime/communication/world.py", "engine/runtime/dry_run/message_sizes.py", "engine/schedules",
)  # fmt: skip
"""Python sources whose texts are shown on the page."""
NOT_SHOWN = frozenset(
    (
        *(f"engine/messages/{name}.py" for name in ("command_line", "runtime")),
        "engine/runs/tensorboard.py",
        *(f"engine/runs/launchers/{name}.py" for name in ("_environment", "_manifests", "_torchrun")),
    )
)
"""Sources of messages of the command line, of the processes of runs, which write them into their logs, and of files for
other programs."""

Literals = list[tuple[int, str]]
"""The lines and the texts of literals; ``{}`` stands for a value in a text."""

# ---- JavaScript ----

_COUNTED = re.compile(r'\bcount\([^;]*?, "([a-z ]+)"(?:, "([a-z ]+)")?\)')


def js_literals(source: str) -> Literals:
    """Return the strings and templates of a JavaScript module; literals that ``+`` joins are one text."""
    found: Literals = []
    _collect_js(_Tokens(source), found)
    return found


class _Tokens:
    """Iterator over the tokens of a JavaScript module, without comments and white space outside literals."""

    def __init__(self, source: str) -> None:
        self._source, self._tokens = source, JavascriptLexer().get_tokens_unprocessed(source)

    def __iter__(self) -> Iterator[tuple[int, object, str]]:
        for at, kind, token in self._tokens:
            if kind in String or (kind not in Comment and token.strip()):
                yield self._source.count("\n", 0, at) + 1, kind, token


def _collect_js(tokens: _Tokens, found: Literals) -> None:
    """Append the literals up to the end of the module, or of the value in a template."""
    joined: int | None = None  # index of the literal that a following literal continues
    follows_plus = False
    for line, kind, token in tokens:
        inner: Literals = []
        if kind is String.Interpol:
            return
        if token == "`":
            text = _read_template(tokens, inner)
        elif kind in (String.Double, String.Single):
            text = str(ast.literal_eval(token))
        else:
            follows_plus = token == "+"
            joined = joined if follows_plus else None
            continue
        if joined is not None and follows_plus:
            found[joined] = found[joined][0], found[joined][1] + text
        else:
            joined = len(found)
            found.append((line, text))
        found.extend(inner)


def _read_template(tokens: _Tokens, found: Literals) -> str:
    """Return the text of a template literal; append the literals in its values."""
    text = ""
    for _, kind, token in tokens:
        if token == "`":
            break
        if kind is String.Interpol:
            text += "{}"
            _collect_js(tokens, found)
        else:
            text += {"\\n": "\n", "\\\n": ""}.get(token, token.removeprefix("\\"))
    return text


# ---- Python ----

_EXCEPTIONS = ("ValueError", "TypeError", "KeyError", "AssertionError", "HTTPError", "RuntimeError", "LookupError")


def python_literals(source: str) -> Literals:
    """Return the strings of a Python module that may be shown.

    Left out are docstrings, annotations, ``doc=`` arguments, and the texts of assertions and of Python's exceptions.
    """
    tree = ast.parse(source)
    hidden = {id(inner) for node in ast.walk(tree) for part in _hidden_parts(node) for inner in ast.walk(part)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
            found.append((node.lineno, node.value))
        elif isinstance(node, ast.JoinedStr) and id(node) not in hidden:
            parts = (str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)
            found.append((node.lineno, "".join(parts)))
    return found


def _hidden_parts(node: ast.AST) -> list[ast.AST]:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.keyword(arg="doc") | ast.Assert():
            return [node]
        case ast.JoinedStr():
            return [each for each in node.values if isinstance(each, ast.Constant)]
        case ast.Raise(exc=ast.Call(func=ast.Name(id=name))) if name in _EXCEPTIONS:
            return [node]
        case ast.AnnAssign(annotation=annotation) | ast.arg(annotation=ast.AST() as annotation):
            return [annotation]
        case ast.FunctionDef(returns=ast.AST() as annotation):
            return [annotation]
    return []


def python_nouns(source: str) -> Iterator[str]:
    """Yield the nouns that a Python module writes after a number, singular and plural."""
    if "format_count" not in source and "plural" not in source:
        return  # parsing takes most of the time
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="format_count"), args=[_, *nouns]):
                yield from _forms(*(each.value for each in nouns if isinstance(each, ast.Constant)))
            case ast.Constant(value=str() as text):
                for match in _PLURAL.finditer(text):
                    yield from match.groups()


def _forms(singular: str = "", plural: str | None = None) -> tuple[str, str]:
    return singular, plural or f"{singular}s"


# ---- texts of the page ----

_FIELD = re.compile(r"\{[^{}]*\}")
_TAG = re.compile(r"</?\w+>")
_PLURAL = re.compile(r"\{[^{}|]*:plural\|([^{}|]*)\|([^{}|]*)\}")
_WORDS = re.compile(r"[A-Za-z]{2}.*[ ].*[A-Za-z]{2}|^[A-Z][a-z]+([.:…]| …)?$", re.S)
_CODE = re.compile(
    r"mw-|^[-./:~(]*[.#[-][a-z]|^[A-Z]\d|^(meshes|pipeline|data|rgb|var|button|input|color-mix)[.(,-]|sans-serif|\bpx\b|minmax"
    r"|^\((prefers|resolution)|charset|<(link|meta|script) |autocomplete=|@font-face|^export const|immutable|/advanced |-hint |noopener|cpu_op|^static/|Ctrl\+Y"
    r'|^translate\(|^calc\(|%s|^"tabs"|   |--json lists|\$|^#|^(exec|cd|link|addr|route|qdisc|netns|rto_min|scontrol) '
    r"|^(SELECT|INSERT|UPDATE|DELETE|ALTER|PRAGMA|BEGIN) |^rm -f"
)
_KEYS = frozenset(
    ("Enter", "Escape", "Tab", "Home", "End", "Backspace", "Delete", "Shift", "Alt", "Control", "Meta", "Space")
)
_ANSWERS = frozenset(
    ("Complete", "Completed", "Failed", "Suspended", "True", "Invalid job id", "Reason", "Partition", "Lax")
)
"""Words in the answers of Kubernetes and Slurm, and in cookies."""


def is_shown(text: str) -> bool:
    """Return True if a literal is a text for people: two words, or one that begins with a capital letter.

    Selectors, styles, commands, log messages and names of keys are not.
    """
    return bool(_WORDS.search(_FIELD.sub("", text).strip())) and not _CODE.search(text) and text not in _KEYS | _ANSWERS


def number_values(text: str) -> str:
    """Return a template with numbered values: "mesh {0} has {1} devices"."""
    numbers = iter(range(100))
    return _FIELD.sub(lambda match: f"{{{next(numbers)}}}", text)


class PageTexts(NamedTuple):
    """English texts of the page by their places in the sources."""

    shown: dict[str, str]
    """Texts that need a translation."""
    others: dict[str, str]
    """Literals that may have one, such as the single words of options and keys."""


def page_texts() -> PageTexts:
    """Return the texts of all sources of the page."""
    texts = PageTexts({}, {})
    for file, literals, nouns in _sources():
        place = file.relative_to(ROOT).as_posix()
        for line, literal in literals:
            text = number_values(_TAG.sub("", literal)).strip()
            (texts.shown if is_shown(text) else texts.others).setdefault(text, f"{place}:{line}")
        texts.shown.update({noun: place for noun in nouns if noun and noun not in texts.shown})
    for name, text in _member_texts():
        for sentence in re.split(r"(?<=[.!?]) ", number_values(text)):
            (texts.shown if is_shown(sentence) else texts.others).setdefault(sentence, name)
    return texts


def _sources() -> Iterator[tuple[Path, Literals, list[str]]]:
    """Yield each source with its literals and its nouns after numbers."""
    for file in sorted((ROOT / "static").rglob("*.js")):
        if file.name != "bundle.js":
            source = file.read_text()
            yield file, js_literals(source), [noun for one in _COUNTED.findall(source) for noun in _forms(*one)]
    for path in PYTHON:
        for file in [ROOT / path] if path.endswith(".py") else sorted((ROOT / path).rglob("*.py")):
            if file.relative_to(ROOT).as_posix() not in NOT_SHOWN:
                source = file.read_text()
                yield file, python_literals(source), list(python_nouns(source))


def _member_texts() -> Iterator[tuple[str, str]]:
    """Yield the source and the text of the form's fields, of registered members, and of the states of runs."""
    from meshwave.designer.forms import schema
    from meshwave.designer.forms.values import label_and_unit
    from meshwave.designer.views._view import views
    from meshwave.engine.costs import cost_models
    from meshwave.engine.document.model import model_families
    from meshwave.engine.experts import expert_schedules
    from meshwave.engine.exports import exports
    from meshwave.engine.frozen import LABELS_KEY, NULL_KEY
    from meshwave.engine.imports import imports, traces
    from meshwave.engine.resharding import orderings, strategies
    from meshwave.engine.runs.launchers import launchers
    from meshwave.engine.runs.run_entry import State
    from meshwave.engine.schedules import schedules

    registries = (
        schedules, expert_schedules, strategies, orderings, cost_models, model_families, exports, imports, traces, launchers, views,
    )  # fmt: skip
    for name, member in (item for registry in registries for item in registry.items()):
        yield name, getattr(member, "title", "")
        yield name, getattr(member, "note", "")
        if help := getattr(member, "help", None):
            yield name, schema.one_line(help().partition("\n\n")[0])

    yield from (("State", state.lower()) for state in State)

    def walk(node: object) -> Iterator[tuple[str, str]]:
        for member in node if isinstance(node, list) else ():
            yield from walk(member)
        for name, inner in node.items() if isinstance(node, dict) else ():
            if name == "properties":
                yield from ((key, label_and_unit(key)[0]) for key in inner)
            elif name == LABELS_KEY:
                yield from inner.items()
            elif name == NULL_KEY and isinstance(inner, str):
                yield name, schema.one_line(inner)
            elif name == "description" and isinstance(inner, str):
                yield name, schema.help_texts(node)[0] if schema.choice_labels(node) else schema.one_line(inner)
            yield from walk(inner)

    yield from walk(schema.design_schema())


# ---- language files ----


def read_entries(code: str) -> dict[str, str]:
    """Return the translations of a language by English text."""
    entries: dict[str, str] = json.loads((ROOT / "static" / "locale" / f"{code}.json").read_text())
    return entries


def find_defects(entries: dict[str, str], texts: PageTexts) -> Iterator[str]:
    """Yield a sentence about each entry that is missing, not needed, or has other values than its English text."""
    for text, place in texts.shown.items():
        if text not in entries:
            yield f"add an entry for {json.dumps(text, ensure_ascii=False)} ({place})"
    for text, translation in entries.items():
        if text not in texts.shown and text not in texts.others:
            yield f"remove the entry for {json.dumps(text, ensure_ascii=False)}: no source has this text"
        if sorted(_FIELD.findall(text)) != sorted(_FIELD.findall(translation)):
            yield f"use the values of {json.dumps(text, ensure_ascii=False)} in its translation, each once"
        if entries.get(translation, translation) != translation:
            yield f"translate {json.dumps(text, ensure_ascii=False)} otherwise: its translation is another English text"


if __name__ == "__main__":
    defects = list(find_defects(read_entries(sys.argv[1]), page_texts()))
    print("\n".join(defects) or "complete")
    sys.exit(bool(defects))
