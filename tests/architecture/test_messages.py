"""Findings are data: every code has a message, every message is used, and no code parses a sentence."""

from __future__ import annotations

import ast
import gc
import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import Formatter

import pytest

from meshwave import designer, engine
from meshwave.engine.messages import Message, catalogue

ROOT = Path(__file__).parents[2]
FINDINGS = {
    "Problem": 1, "Refusal": 0, "RunRefusal": 0, "FindingError": 0, "Fix": 0, "Choice": 1, "render": 0, "validation_error": 1,
    "SpecError": 1,
}  # fmt: skip
"""Calls that name a message, and the position of its code."""
PARSERS = {
    "count", "endswith", "find", "index", "partition", "removeprefix", "removesuffix", "replace", "rindex", "rpartition",
    "rsplit", "split", "splitlines", "startswith",
}  # fmt: skip
"""String methods that take a text apart."""


@cache
def trees() -> dict[Path, ast.Module]:
    """Return the parsed files of the engine and the designer."""
    files = [file for half in ("engine", "designer") for file in sorted((ROOT / half).rglob("*.py"))]
    gc.disable()  # collections would take three quarters of the time
    parsed = {file.relative_to(ROOT): ast.parse(file.read_text()) for file in files}
    gc.enable()
    return parsed


@pytest.fixture(autouse=True, scope="module")
def forget_trees() -> Iterator[None]:
    """Forget the parsed files, which the collections of later tests would visit."""
    yield
    trees.cache_clear()


@pytest.fixture(scope="module")
def messages() -> dict[str, Message]:
    """Return the catalogue once every package that adds messages is imported."""
    for package in (engine, designer):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(("meshwave.engine.runtime", "meshwave.engine.bench")):
                importlib.import_module(module.name)
    return catalogue()


def calls() -> Iterator[tuple[Path, ast.Call, str]]:
    """Yield each call with a literal code: its file, the call and the code."""
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            position = FINDINGS.get(name)
            if position is not None and len(node.args) > position and not isinstance(node.args[0], ast.Starred):
                code = node.args[position]
                if isinstance(code, ast.Constant) and isinstance(code.value, str):
                    yield file, node, code.value


@pytest.mark.slow
def test_every_code_has_a_message(messages: dict[str, Message]) -> None:
    missing = {f"{file}:{call.lineno} {code}" for file, call, code in calls() if code not in messages}

    assert not missing


@pytest.mark.slow
def test_every_message_is_used(messages: dict[str, Message]) -> None:
    constants = {
        node.value
        for file, tree in trees().items()
        if file.parent != Path("engine/messages")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    assert not messages.keys() - constants


@pytest.mark.slow
def test_every_message_finds_its_parameters(messages: dict[str, Message]) -> None:
    """This covers calls whose parameters are a dictionary in the call itself."""
    lacking = set()
    for file, call, code in calls():
        message, keys = messages.get(code), parameters(call)
        if isinstance(message, str) and keys is not None:
            wanted = {name for _, name, *_ in Formatter().parse(message) if name}
            if wanted - keys:
                lacking.add(f"{file}:{call.lineno} {code} lacks {sorted(wanted - keys)}")

    assert not lacking


def parameters(call: ast.Call) -> set[str] | None:
    """Return the keys of the dictionary in a call; None if there is none, or if it contains another dictionary."""
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        if isinstance(argument, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in argument.keys]
            return None if None in keys else {str(key) for key in keys}
    return None


def is_sentence(node: ast.AST) -> bool:
    """Return whether an expression is the text of a finding: ``x.message``, ``x.reason``, or an error as text."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("message", "reason", "titled_reason")
    is_text = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "str" and len(node.args) == 1
    return is_text and bool(re.search(r"(error|problem|finding|refusal)$", getattr(node.args[0], "id", "")))  # type: ignore[attr-defined]


def parsing(tree: ast.AST) -> Iterator[int]:
    """Yield the lines on which code parses or searches a sentence."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            from_text = node.func.attr in PARSERS and is_sentence(node.func.value)
            by_pattern = getattr(node.func.value, "id", "") == "re" and any(map(is_sentence, node.args))
            if from_text or by_pattern:
                yield node.lineno
        is_searched = isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops)
        if is_searched and any(map(is_sentence, node.comparators)):  # type: ignore[attr-defined]
            yield node.lineno  # type: ignore[attr-defined]


@pytest.mark.slow
def test_no_code_parses_a_sentence() -> None:
    assert not [f"{file}:{line}" for file, tree in trees().items() for line in parsing(tree)]


SENTENCE = r"(?:message|reason|refusal|problem)"
SCRIPT = re.compile(
    rf"\b{SENTENCE}\??\.(?:match|search|split|includes|startsWith|endsWith|replace|indexOf)\(|/\.test\([\w.]*{SENTENCE}\)"
)


def test_no_script_parses_a_sentence() -> None:
    files = [file for file in sorted((ROOT / "static").rglob("*.js")) if file.name != "bundle.js"]

    assert not [str(file) for file in files if SCRIPT.search(file.read_text())]


@pytest.mark.parametrize(
    "source",
    ["problem.message.partition(';')", "re.sub('a', 'b', x.reason)", "'lanes' in error.message", "str(error).split()"],
)
def test_parsing_is_found(source: str) -> None:
    assert [*parsing(ast.parse(source))]
