"""Upgrades of documents in older format versions; newer versions are rejected."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from meshwave.engine.document.validation_problems import quote
from meshwave.engine.findings import DesignError, Fix, Problem, set_key_fix

FORMAT: Literal["meshwave/1"] = "meshwave/1"
VERSION = 1

UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""Upgrades by their initial version: ``UPGRADES[1]`` converts a document from version 1 to version 2."""


def upgrade(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document in the current version.

    Raises:
        DesignError: the format is missing, unknown or newer than this version of Meshwave.
    """
    given = document.get("format")
    if given is None:
        raise _format_error("missing_format", {"format": FORMAT}, set_key_fix("format", FORMAT))
    found = re.fullmatch(r"meshwave/([1-9][0-9]{0,8})", str(given))
    if not found:
        params = {"value": quote(given), "format": FORMAT}
        raise _format_error("unknown_format", params, set_key_fix("format", FORMAT))
    version = int(found[1])
    if version > VERSION:
        raise _format_error("newer_format", {"version": version, "supported": VERSION})
    current = dict(document)
    for number in range(version, VERSION):
        current = UPGRADES[number](current)
    return {**_name_options(current), "format": FORMAT}


NAMED_OPTIONS = {
    "fused_attention": ("attention_kernel", "unfused", "default"),
    "cuda_graphs": ("cuda_graphs", "none", "step"),
}
"""Former Booleans of the training section: the key that replaces each, and the words for False and True."""


def _name_options(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document in which words replace the former Booleans of the training section."""
    training = document.get("training")
    if not isinstance(training, Mapping):
        return document
    former = [key for key in NAMED_OPTIONS if isinstance(training.get(key), bool)]
    named = {key: words[training[old]] for old in former for key, *words in (NAMED_OPTIONS[old],)}
    return {**document, "training": {**named, **{key: value for key, value in training.items() if key not in former}}}


def _format_error(code: str, params: Mapping[str, Any], *fixes: Fix) -> DesignError:
    return DesignError([Problem("format", code, params, fixes=fixes)])
