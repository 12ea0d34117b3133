"""Limits of the fields of a document, and names that are within them."""

from __future__ import annotations

from pydantic import BaseModel

from meshwave.engine.document import Mesh
from meshwave.engine.findings import Refusal


def field_limit(section: type[BaseModel], field: str) -> int:
    """Return the largest value of a number field of a section, or the longest length of a text field."""
    rules = section.model_fields[field].metadata
    bounds = (getattr(rule, kind, None) for rule in rules for kind in ("le", "max_length"))
    limit: int = next(bound for bound in bounds if bound is not None)
    return limit


def read_name(kind: str, given: str, maximum: int) -> str:
    """Return the name of a ``kind`` such as "mesh" as given, with single spaces.

    Raises:
        Refusal: it is empty, or has more than ``maximum`` characters.
    """
    name = " ".join(given.split())
    if not name:
        raise Refusal("missing_name", {"kind": kind})
    if len(name) > maximum:
        raise Refusal("long_name", {"kind": kind, "maximum": maximum, "length": len(name)})
    return name


NAME_LENGTH = field_limit(Mesh, "name")
