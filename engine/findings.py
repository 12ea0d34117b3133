"""Findings: problems of a document or a program, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import isqrt
from typing import Any, Literal

from meshwave.engine.errors import InputError, MeshwaveError, RunError, closest_word, shorten
from meshwave.engine.messages import render

Severity = Literal["error", "warning"]
LONGEST_PLACE = 300
"""Maximum number of characters of a path in the text of a problem; keys of a damaged document can be long."""
Edit = tuple[str, Any]
"""Path in the document, such as ``pipeline.microbatches``, and its new value; :data:`REMOVED` deletes the key."""


class _Marker(Enum):
    REMOVED = "removed"


REMOVED = _Marker.REMOVED
"""Value of an edit that deletes its key."""


@dataclass(frozen=True)
class Fix:
    """Named edit of the document that removes a problem.

    ``code`` and ``params`` name it as a message of the catalogue ("use 12 microbatches"); ``edits`` are applied in
    order.
    """

    code: str
    params: Mapping[str, Any]
    edits: tuple[Edit, ...]

    @property
    def label(self) -> str:
        """Text of a button that applies the fix."""
        return render(self.code, self.params)

    def to_json(self) -> dict[str, Any]:
        """Return the fix as a JSON object for ``--json``."""
        edits = [
            {"path": path, "remove": True} if value is REMOVED else {"path": path, "value": value}
            for path, value in self.edits
        ]
        return {"code": self.code, "params": dict(self.params), "label": self.label, "edits": edits}

    def with_path_prefix(self, section: str) -> Fix:
        """Return the fix with ``section`` prepended to its paths."""
        return replace(self, edits=tuple((_join(section, path), value) for path, value in self.edits))


def _join(section: str, path: str) -> str:
    return f"{section}.{path}" if section and path else section or path


def set_key_fix(path: str, value: Any) -> Fix:
    """Return the fix that sets a key to a value."""
    return Fix("set_value", {"key": path.rpartition(".")[2], "value": value}, ((path, value),))


def unknown_member_params(kind: str, name: str, known: Iterable[str]) -> dict[str, Any]:
    """Return the parameters of the message ``unknown_member``."""
    names = sorted(known)
    return {"kind": kind, "name": name, "known": names, "suggestion": closest_word(name, names)}


def nearest_divisors(number: int, given: int) -> list[int]:
    """Return the nearest divisors of a number below and above the given size, as values for a fix."""
    small = [size for size in range(1, isqrt(number) + 1) if number % size == 0]
    divisors = sorted({*small, *(number // size for size in small)})
    return [*[size for size in divisors if size < given][-1:], *[size for size in divisors if size > given][:1]]


@dataclass(frozen=True, init=False)
class Problem:
    """Problem of a document or a program.

    ``where`` is a path in the document such as ``meshes[2].devices``, empty for the whole document; ``code`` is a short
    stable name, and ``params`` are the numbers and names of the message. A problem of severity *error* is refused, a
    *warning* is only listed. ``fixes`` are edits of the document that remove the problem.
    """

    where: str
    code: str
    params: Mapping[str, Any] = field(default_factory=dict)
    severity: Severity = "error"
    fixes: tuple[Fix, ...] = ()

    def __init__(
        self,
        where: str,
        code: str,
        params: Mapping[str, Any] | None = None,
        severity: Severity = "error",
        fixes: Iterable[Fix] = (),
    ) -> None:
        values = {"where": where, "code": code, "params": params or {}, "severity": severity, "fixes": tuple(fixes)}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def message(self) -> str:
        """Text of the problem: what is wrong, and what to do."""
        return render(self.code, self.params)

    def __hash__(self) -> int:
        return hash((self.where, self.code))

    def __str__(self) -> str:
        place = f"{shorten(self.where, LONGEST_PLACE)}: " if self.where else ""
        return f"{'' if self.severity == 'error' else 'warning: '}{place}{self.message}"

    def replace(self, **changes: Any) -> Problem:
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    def with_path_prefix(self, section: str) -> Problem:
        """Return the problem with ``section`` prepended to its paths."""
        return self.replace(
            where=_join(section, self.where), fixes=tuple(fix.with_path_prefix(section) for fix in self.fixes)
        )

    def to_json(self) -> dict[str, Any]:
        """Return the problem as a JSON object for ``--json``."""
        return {
            "where": self.where,
            "code": self.code,
            "params": dict(self.params),
            "message": self.message,
            "severity": self.severity,
            "fixes": [fix.to_json() for fix in self.fixes],
        }


class DesignError(InputError):
    """Error for a document that cannot be used, with all its problems."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class FindingError(MeshwaveError):
    """Error with a single finding."""

    def __init__(self, code: str, params: Mapping[str, Any] | None = None, where: str = "") -> None:
        super().__init__(code, params, where)
        self.problem = Problem(where, code, params or {})

    def __str__(self) -> str:
        return str(self.problem)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class Refusal(FindingError, InputError):
    """Error for input that is refused for one reason; ``where`` may be a command-line option such as ``--steps``."""


class RunRefusal(FindingError, RunError):
    """Error for a run that cannot be started or finished, for one reason."""


def problems_of(error: MeshwaveError) -> tuple[Problem, ...]:
    """Return the problems that an error reports."""
    match error:
        case DesignError():
            return error.problems
        case FindingError():
            return (error.problem,)
    return (Problem("", "error", {"reason": str(error)}),)
