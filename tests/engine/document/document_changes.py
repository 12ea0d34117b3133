"""Changes of a document, for tests of its problems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Change = Callable[[dict[str, Any]], Any]


def put(where: str, value: Any) -> Change:
    """Return a change that sets a value at a path such as ``meshes[2].devices``."""
    steps: list[Any] = [
        int(step) if step.isdecimal() else step for step in where.replace("[", ".").replace("]", "").split(".")
    ]

    def change(document: dict[str, Any]) -> None:
        here = document
        for step in steps[:-1]:
            here = here[step]
        here[steps[-1]] = value

    return change


def drop(where: str, key: str) -> Change:
    return lambda document: (document[where] if where else document).pop(key)


def combine_changes(*changes: Change) -> Change:
    return lambda document: [change(document) for change in changes]


def pipeline(**section: Any) -> Change:
    return put("pipeline", section)
