"""A prediction in the form of another tool, one file a form."""

from meshwave.engine.exports._base import Export, exports

__all__ = ["Export", "exports"]
