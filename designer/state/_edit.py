"""What a gesture makes of a document: plain functions from what is drawn to what is drawn next.

They work on the document's own form (``{"name", "devices", "axes"}`` for a mesh,
``{"nodes", "devices_per_node", ...}`` for a cluster; a schedule is chosen for a whole design), never change what they are given, and
refuse with an :class:`~meshwave.engine.errors.InputError` that says what is in the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from meshwave.engine.document import Mesh as MeshPart

Mesh = Mapping[str, Any]
Meshes = tuple[Mesh, ...]
Cluster = Mapping[str, Any]


def most(part: type[BaseModel], field: str) -> int:
    """The largest value of a number of the document, or the most letters of a text."""
    rules = part.model_fields[field].metadata
    bounds = (getattr(rule, kind, None) for rule in rules for kind in ("le", "max_length"))
    bound: int = next(bound for bound in bounds if bound is not None)
    return bound


NAME_LENGTH = most(MeshPart, "name")


# in common


def _size(cluster: Cluster) -> tuple[int, int]:
    return cluster["nodes"], cluster["devices_per_node"]


def _replace(meshes: Sequence[Mesh], mesh: int, **changes: Any) -> Meshes:
    return tuple({**old, **changes} if place == mesh else old for place, old in enumerate(meshes))
