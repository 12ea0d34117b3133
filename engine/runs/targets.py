"""Launch targets: places where runs can be launched, each with a name, a launcher and the launcher's options.

Targets are defined in TOML files: one of the user, and one that ``MESHWAVE_TARGETS`` names, for example for a
deployment. A launcher that needs no options, such as ``local``, is itself a target; its table can only limit runs.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from meshwave.engine.document.reading import read_toml
from meshwave.engine.document.validation_problems import quote, validation_problems
from meshwave.engine.errors import InputError, unknown_word_hint
from meshwave.engine.files import configuration_folder, expand_user, read_whole
from meshwave.engine.findings import Refusal
from meshwave.engine.frozen import Part
from meshwave.engine.runs.launchers import Launcher, launchers
from meshwave.engine.runs.run_database import Record

FILE = "targets.toml"
VARIABLE = "MESHWAVE_TARGETS"
LARGEST_FILE_BYTES = 1_000_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Target:
    """Place where runs can be launched."""

    name: str
    launcher: str
    options: Part | None = None
    """Options of the launcher; None if it has no options."""

    @property
    def title(self) -> str:
        """Text of the target in a menu."""
        member = launchers[self.launcher]
        return f"{self.name} ({member.title})" if member.needs_target else member.title

    def open(self, record: Record) -> Launcher:
        """Create the launcher of this target."""
        member: Any = launchers[self.launcher]
        return member(record) if self.options is None else member(record, self.options, self.name)  # type: ignore[no-any-return]


def target_files() -> list[Path]:
    """Return the paths of the target files, existing or not; a later file replaces targets of an earlier one."""
    stated = os.environ.get(VARIABLE)
    return [*([expand_user(stated)] if stated else []), configuration_folder() / FILE]


def read_targets() -> dict[str, Target]:
    """Return all targets by name; those of this machine come first.

    Raises:
        Refusal: a file cannot be read, or an entry of it is invalid.
    """
    found = _machine_targets()
    for file in target_files():
        if file.exists():
            found |= {name: _parse_target(file, name, table) for name, table in _read_tables(file).items()}
    return found


def find_target(name: str) -> Target:
    """Return the target with the given name.

    Raises:
        Refusal: no target has that name, or a target file is invalid.
    """
    known = read_targets()
    if name not in known:
        params = {
            "target": name,
            "hint": unknown_word_hint(name, known),
            "files": [str(file) for file in target_files()],
        }
        raise Refusal("unknown_target", params)
    return known[name]


def open_target(record: Record, name: str) -> Launcher:
    """Create the launcher of the target with the given name.

    Raises:
        Refusal: no target has that name, or a target file is invalid.
    """
    return find_target(name).open(record)


def training_targets() -> list[Target]:
    """Return the targets for a menu: all that can train, or only those of this machine if a file is invalid."""
    try:
        found = read_targets()
    except Refusal as error:
        _log.warning("%s", error)
        found = _machine_targets()
    return [target for target in found.values() if launchers[target.launcher].trains]


def _machine_targets() -> dict[str, Target]:
    return {name: Target(name, name) for name, member in launchers.items() if not member.needs_target}


def _read_tables(file: Path) -> Mapping[str, Any]:
    try:
        return read_toml(read_whole(file, "targets file", LARGEST_FILE_BYTES).decode())
    except (InputError, ValueError) as error:  # invalid TOML or invalid encoding
        raise Refusal("targets_unreadable", {"file": str(file), "reason": str(error)}) from None


def _launcher_and_options(where: Mapping[str, str], name: str, table: Mapping[str, Any]) -> tuple[str, type[Part]]:
    """Return the name of the launcher of a target, and the schema of its options."""
    if name in launchers:
        machine = launchers[name]
        if machine.needs_target or machine.target_options is None or "launcher" in table:
            raise Refusal("target_reserved", where)
        return name, machine.target_options
    known = {key: member.target_options for key, member in launchers.items() if member.needs_target}
    kind = table.get("launcher")
    if kind is None:
        raise Refusal("target_launcher", {**where, "known": list(known)})
    model = known.get(str(kind))
    if model is None:
        raise Refusal(
            "target_launcher_unknown", {**where, "given": quote(kind), "hint": unknown_word_hint(str(kind), known)}
        )
    return str(kind), model


def _parse_target(file: Path, name: str, table: Any) -> Target:
    where = {"file": str(file), "target": name}
    if not isinstance(table, dict):
        raise Refusal("target_not_a_table", where)
    kind, model = _launcher_and_options(where, name, table)
    options = {key: value for key, value in table.items() if key != "launcher"}
    try:
        return Target(name, kind, model.model_validate_json(json.dumps(options, default=str)))
    except ValidationError as error:
        problem = validation_problems(error, options, model)[0]
        raise Refusal("target_option", {**where, "problem": str(problem)}) from None
