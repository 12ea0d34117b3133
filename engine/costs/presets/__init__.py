"""Clusters to start from, as data: one JSON file each, with where its numbers come from."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Annotated

from pydantic import Field

from meshwave.engine.document import Cluster
from meshwave.engine.errors import InputError, nearest
from meshwave.engine.frozen import Part


class Preset(Part):
    """A cluster that a person can pick by its name."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    """What it is called on the command line and in menus."""
    title: str
    """What people call it."""
    source: str
    """Where the numbers come from, and which are assumed."""
    cluster: Cluster


@cache
def _all() -> tuple[Preset, ...]:
    files = (file for file in resources.files(__name__).iterdir() if file.name.endswith(".json"))
    found = (Preset.model_validate_json(file.read_bytes()) for file in files)
    return tuple(sorted(found, key=lambda preset: preset.name))


def presets() -> dict[str, Preset]:
    """All presets by name, in the order of their names."""
    return {preset.name: preset for preset in _all()}


def preset(name: str) -> Preset:
    """The preset called ``name``.

    Raises:
        InputError: there is none; the nearest name is given.
    """
    known = presets()
    if name not in known:
        raise InputError(f"there is no cluster preset called {name!r}. {nearest(name, known)}")
    return known[name]
