"""A prediction in the form of another tool, one file a form."""

from engine.export._export import Export, exports

__all__ = ["Export", "exports"]
