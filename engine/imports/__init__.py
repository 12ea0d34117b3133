"""Designs from the files of other tools, one file a format."""

from meshwave.engine.imports._base import (
    TOO_FEW_DEVICES,
    Import,
    Imported,
    find_format,
    imports,
    is_import,
    load_import,
)

__all__ = ["TOO_FEW_DEVICES", "Import", "Imported", "find_format", "imports", "is_import", "load_import"]
