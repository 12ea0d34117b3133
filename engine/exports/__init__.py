"""Exports of predictions to the formats of other tools, one file per format."""

from meshwave.engine.exports._base import Export, exports
