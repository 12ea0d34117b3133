"""Largest values and longest texts that the fields of a document may have."""

from __future__ import annotations

from pydantic import BaseModel

from meshwave.engine.document import Mesh


def field_limit(section: type[BaseModel], field: str) -> int:
    """Return the largest value of a number field of a section, or the longest length of a text field."""
    rules = section.model_fields[field].metadata
    bounds = (getattr(rule, kind, None) for rule in rules for kind in ("le", "max_length"))
    limit: int = next(bound for bound in bounds if bound is not None)
    return limit


NAME_LENGTH = field_limit(Mesh, "name")
