"""Cluster presets with the sources of their numbers: one JSON file each, and the node types of the hardware table."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Annotated

from pydantic import Field

from meshwave.engine.costs.hardware import ASSUMED, node_types
from meshwave.engine.document import Cluster
from meshwave.engine.findings import Refusal, unknown_member_params
from meshwave.engine.frozen import Part

NODES = 2
"""Number of nodes of a preset that is made from a node type."""


class Preset(Part):
    """A cluster that users can select by name."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    """Name on the command line and in menus."""
    title: str
    """Displayed name."""
    source: str
    """Sources of the numbers, and the numbers that are assumed."""
    cluster: Cluster


@cache
def _load_presets() -> tuple[Preset, ...]:
    files = (file for file in resources.files(__name__).iterdir() if file.name.endswith(".json"))
    found = [Preset.model_validate_json(file.read_bytes()) for file in files]
    found += [
        Preset(name=node.name, title=node.title, source=f"{node.source}. {ASSUMED}", cluster=node.cluster(NODES))
        for node in node_types().values()
    ]
    return tuple(sorted(found, key=lambda preset: preset.name))


def presets() -> dict[str, Preset]:
    """Return all presets by name, sorted."""
    return {preset.name: preset for preset in _load_presets()}


def preset(name: str) -> Preset:
    """Return the preset with the given name.

    Raises:
        Refusal: no preset has this name; the error suggests the closest name.
    """
    known = presets()
    if name not in known:
        raise Refusal("unknown_member", unknown_member_params("cluster preset", name, known))
    return known[name]
