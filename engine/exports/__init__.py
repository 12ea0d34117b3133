"""Exports of predictions to the formats of other tools, one file each."""

from meshwave.engine.exports._base import Export, exports

__all__ = ["Export", "exports"]
