"""Bring a document of an older version up to date; refuse one of a newer version politely."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from meshwave.engine.document.validation_problems import quoted
from meshwave.engine.findings import DesignError, Problem

FORMAT: Literal["meshwave/1"] = "meshwave/1"
VERSION = 1

UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From a version to the next one: ``UPGRADES[1]`` makes a version 2 of a version 1."""


def upgrade(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document in today's version.

    Raises:
        DesignError: the format is missing, unknown or newer than this Meshwave.
    """
    stated = document.get("format")
    if stated is None:
        raise _wrong(f'the document does not say its format; add "format": "{FORMAT}"')
    found = re.fullmatch(r"meshwave/([1-9][0-9]{0,8})", str(stated))
    if not found:
        raise _wrong(f'{quoted(stated)} is no format of a design; it should be "{FORMAT}"')
    number = int(found[1])
    if number > VERSION:
        raise _wrong(
            f"this design is of version {number}, and this Meshwave reads up to {VERSION}; update Meshwave to open it"
        )
    current = dict(document)
    for version in range(number, VERSION):
        current = UPGRADES[version](current)
    return {**current, "format": FORMAT}


def _wrong(message: str) -> DesignError:
    return DesignError([Problem("format", "format", message)])
