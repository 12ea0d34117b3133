"""Configuration functions of torchtitan since 0.3.0, read as data: their code is parsed and never executed.

A configuration is a call such as ``Trainer.Config(training=TrainingConfig(steps=10))``. A function returns
such a call, or the configuration of another function of the file with some fields changed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from meshwave.engine import messages
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.trainers.models import Json
from meshwave.engine.trainers.torchtitan_models import FLAVORS

CLASS = "class"
"""Key of a configuration with the name of its class; it is not a field, since it is a keyword of Python."""
PARTS = ("model_spec", "training", "parallelism")
"""Fields by which a configuration of a job is recognized."""
CHECKPOINT_MODES = {"FullAC": "full", "SelectiveAC": "selective"}
SECTIONS = {"validator": "validation"}
"""Sections of the TOML with other names."""
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""Errors of Python's parser."""


class _Unread(Exception):
    """Expression that is not data."""


def read_sections(text: str, name: str) -> tuple[Json, list[Problem]]:
    """Return the settings of a configuration function as sections of the TOML, and notes on lines that are not read.

    Args:
        text: the Python file.
        name: the name of the function; ignored if there is only one.

    Raises:
        DesignError: the file is not Python, or has no such function.
    """
    try:
        functions = _Functions(ast.parse(text))
        found = {each: config for each in functions.names if _is_job(config := functions.call(each))}
    except UNREADABLE as error:
        raise DesignError([Problem("", "unreadable_python", {"reason": str(error)})]) from None
    if not found:
        raise DesignError([Problem("", "no_torchtitan_function")])
    chosen = name if name in found else next(iter(found))
    if chosen != name and len(found) > 1:
        raise DesignError([Problem("", "torchtitan_function", {"name": name, "known": list(found)})])
    lines = sorted(functions.unread[chosen])
    notes = [Problem("", "unread_lines", {"lines": lines}, "warning")] if lines else []
    return _read_sections(found[chosen], chosen), notes


def _is_job(config: Any) -> bool:
    return isinstance(config, dict) and any(part in config for part in PARTS)


class _Functions:
    """Functions of a file and the values that they return."""

    def __init__(self, module: ast.Module) -> None:
        self._nodes = {each.name: each for each in module.body if isinstance(each, ast.FunctionDef)}
        self.names = list(self._nodes)
        self._known: dict[str, Any] = {}
        self.unread: dict[str, set[int]] = {}
        """Numbers of the lines that are not read, including those of called functions, by function."""

    def call(self, name: str) -> Any:
        """Return the value that a function returns; None if it is not data."""
        if name not in self._known:
            self._known[name], self.unread[name] = None, set()  # the result of a function that calls itself
            self._known[name] = self._run(name)
        return deepcopy(self._known[name])

    def _run(self, name: str) -> Any:
        variables: dict[str, Any] = {}
        for statement in self._nodes[name].body:
            try:
                match statement:
                    case ast.Return(value=ast.Name(id=variable)) if variable in variables:
                        return variables[variable]
                    case ast.Return(value=ast.expr() as value):
                        return self._result(value, variables, name)
                    case ast.Assign(targets=[ast.Name(id=variable)], value=value):
                        variables[variable] = self._result(value, variables, name)
                    case ast.Assign(targets=[ast.Attribute() as target], value=value):
                        part, field = _find_part(target, variables)
                        part[field] = _evaluate(value, variables, self.unread[name])
                    case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom() | ast.Assert():
                        pass
                    case _:
                        raise _Unread
            except _Unread:
                self.unread[name].add(statement.lineno)
        return None

    def _result(self, node: ast.expr, variables: Mapping[str, Any], name: str) -> Any:
        """Return the value of an expression, which may be a call of a function without arguments."""
        if isinstance(node, ast.Call) and not (node.args or node.keywords) and _dotted_name(node.func) in self._nodes:
            called = _dotted_name(node.func)
            result = self.call(called)
            self.unread[name] |= self.unread[called]
            return result
        return _evaluate(node, variables, self.unread[name])


def _find_part(target: ast.Attribute, variables: Mapping[str, Any]) -> tuple[Json, str]:
    """Return the configuration whose field is assigned, and the name of the field."""
    root, *path = _dotted_name(target.value).split(".")
    part = variables.get(root)
    for field in path:
        part = part.setdefault(field, {}) if isinstance(part, dict) else None
    if not isinstance(part, dict):
        raise _Unread
    return part, target.attr


def _evaluate(node: ast.expr, variables: Mapping[str, Any], unread: set[int]) -> Any:
    """Return a literal, or a call of a class as a dictionary of its keywords, without keywords on ``unread`` lines.

    Raises:
        _Unread: the expression is something else.
    """
    match node:
        case ast.Call(func=ast.Name(id="model_registry"), args=[ast.Constant(value=str(flavor)), *_]):
            return {"flavor": flavor}
        case ast.Call(func=function, args=[], keywords=keywords):
            found = {CLASS: _dotted_name(function).removesuffix(".Config")}
            for each in keywords:
                try:
                    found |= {_keyword_name(each): _evaluate(each.value, variables, unread)}
                except _Unread:
                    unread.add(each.value.lineno)
            return found
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_evaluate(each, variables, unread) for each in elements]
        case ast.Name(id=name) if name in variables and _is_flat(variables[name]):
            return deepcopy(variables[name])
    try:
        return ast.literal_eval(node)
    except (*UNREADABLE, TypeError):
        raise _Unread from None


def _keyword_name(keyword: ast.keyword) -> str:
    if keyword.arg is None:  # **fields
        raise _Unread
    return keyword.arg


def _is_flat(value: Any) -> bool:
    """Return True if a value contains no containers that contain others, so that copies cannot grow without limit."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not any(isinstance(part, dict | list) for part in parts)


def _dotted_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{_dotted_name(value)}.{name}"
    raise _Unread


# ---- sections ----


def _read_sections(config: Json, function: str) -> Json:
    """Return the fields of a configuration as sections, named as in the TOML format."""
    found: Json = {"model": _model_section(config, function)}
    for name, value in config.items():
        if isinstance(value, dict) and name not in ("model_spec", "model_converters"):
            found[SECTIONS.get(name, name)] = {key: each for key, each in value.items() if key != CLASS}
        elif name not in (CLASS, "model_spec", "model_converters", "activation_checkpoint"):
            found.setdefault("job", {})[name] = value
    found["activation_checkpoint"] = _checkpoint_section(config.get("activation_checkpoint", {}))
    _convert_token_counts(found.get("parallelism", {}), found.get("training", {}))
    return found


def _model_section(config: Json, function: str) -> Json:
    spec = config.get("model_spec")
    flavor = spec.get("flavor", "") if isinstance(spec, dict) else ""
    names = {name for name, _ in FLAVORS if function.startswith(name)}
    return {"name": next(iter(names), function), "flavor": flavor, "converters": list(_read_converters(config))}


def _read_converters(config: Json) -> Iterator[str]:
    """Yield the names of a model's converters; the converter of linear layers to fp8 is named ``float8``."""
    part = config.get("model_converters")
    found = part.get("converters") if isinstance(part, dict) else None
    for each in found if isinstance(found, list) else ():
        name = each.get(CLASS, "") if isinstance(each, dict) else str(each)
        yield "float8" if name.startswith("Float8Linear") else name


def _checkpoint_section(part: Any) -> Json:
    """Return the settings of activation checkpointing; later versions choose them by class, and None disables it."""
    if not isinstance(part, dict):
        return {"mode": "none"}
    fields = {key: value for key, value in part.items() if key != CLASS}
    mode = CHECKPOINT_MODES.get(part.get(CLASS, ""), "selective")
    return {"mode": mode, "selective_ac_option": "op", **fields}


def _convert_token_counts(parallelism: Json, training: Json) -> None:
    """Convert batch sizes in tokens, as used after torchtitan 0.3.0, to batch sizes in sequences."""
    keys = ("max_context_length", "num_tokens_per_microbatch_per_dp_rank")
    sequence, tokens = (training.get(key) for key in keys)
    if not (isinstance(sequence, int) and isinstance(tokens, int) and 0 < sequence <= tokens):
        return
    for key in keys:
        del training[key]
    size, microbatches = tokens // sequence, parallelism.pop("num_pp_microbatches", 1)
    is_pipeline = parallelism.get("pipeline_parallel_degree", 1) != 1
    if is_pipeline:
        parallelism["pipeline_parallel_microbatch_size"] = size
    count = microbatches if is_pipeline and isinstance(microbatches, int) else 1
    training |= {"seq_len": sequence, "local_batch_size": size * count}
    if isinstance(total := training.pop("num_tokens_per_train_step", None), int):
        training["global_batch_size"] = total // sequence


messages.add_messages(
    unreadable_python="the file is not Python: {reason}",
    no_torchtitan_function="no function of the file returns the configuration of a job of torchtitan",
    torchtitan_function=(
        "the file has no configuration function {name:typed}; it has {known:list}. Name one of them: FILE:FUNCTION"
    ),
    unread_lines="lines that are not data were not read: {lines:list}",
)
