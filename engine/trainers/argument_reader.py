"""Typed access to the arguments of a launch script, which collects problems and unused arguments."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from meshwave.engine import messages
from meshwave.engine.findings import Problem
from meshwave.engine.trainers.launch_script import Arguments

LARGEST = 1e15
"""Largest magnitude of a number."""


class ArgumentReader:
    """Arguments of a launch script."""

    def __init__(self, arguments: Arguments) -> None:
        self._arguments = arguments
        self._used: set[str] = set()
        self.problems: list[Problem] = []
        self.notes: list[Problem] = []

    def words(self, name: str) -> tuple[str, ...]:
        """Return the values of an argument; empty if it is absent or names a variable that the script does not set."""
        self._used.add(name)
        found = self._arguments.get(name, ())
        if any("$" in word for word in found):
            self.add_note("unset_variable", argument=name, value=" ".join(found))
            return ()
        return found

    def has_argument(self, name: str) -> bool:
        """Return True if an argument is present."""
        self._used.add(name)
        return name in self._arguments

    def text(self, name: str, default: str = "") -> str:
        """Return the value of an argument."""
        found = self.words(name)
        return found[0] if found else default

    def integer(self, name: str, default: int | None = None) -> Any:
        """Return the value of an argument as a whole number; ``default`` if it is absent or not a number."""
        return self._number(name, int, default)

    def number(self, name: str, default: float | None = None) -> Any:
        """Return the value of an argument as a number; ``default`` if it is absent or not a number."""
        return self._number(name, float, default)

    def _number(self, name: str, kind: type[int] | type[float], default: float | None) -> Any:
        text = self.text(name)
        try:
            value = kind(text) if text else default
        except ValueError:
            value = math.nan
        if value is not None and not abs(value) <= LARGEST:
            self.add_problem("argument_value", argument=name, value=text)
            return default
        return value

    def choice(self, name: str, choices: Mapping[str, Any], default: str) -> Any:
        """Return the meaning of the value of an argument, by ``choices``; any other value is a problem."""
        value = self.text(name, default)
        if value not in choices:
            self.add_problem(
                "unsupported_argument", argument=name, value=value, choices=[each for each in choices if each]
            )
        return choices.get(value, choices[default])

    def add_problem(self, code: str, **params: Any) -> None:
        """Add a problem that prevents the import."""
        self.problems.append(Problem("", code, params))

    def add_note(self, code: str, **params: Any) -> None:
        """Add a remark about the import."""
        self.notes.append(Problem("", code, params, "warning"))

    def require(self, names: Iterable[str]) -> None:
        """Add a problem if an argument is absent."""
        missing = [name for name in names if not self.text(name)]
        if missing:
            self.add_problem("missing_arguments", arguments=missing)

    def unused_arguments(self) -> Collection[str]:
        """Return the arguments that were not read, in order."""
        return [name for name in self._arguments if name not in self._used]


messages.add_messages(
    argument_value="{argument} {value:typed} is not a valid number; correct it",
    unsupported_argument="{argument} {value} cannot be represented in a design (supported: {choices:or})",
    missing_arguments="the file lacks the arguments {arguments:list}; give the whole launch script",
    unset_variable="{argument} is ignored: its value {value} is a variable that the file does not set",
)
