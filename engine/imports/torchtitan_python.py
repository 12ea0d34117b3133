"""Import of a design from a configuration function of torchtitan: the Python of its releases since 0.3.0."""

from __future__ import annotations

from typing import ClassVar

from meshwave.engine.document import Design
from meshwave.engine.imports._base import Imported, imports
from meshwave.engine.imports.torchtitan import Torchtitan, import_sections
from meshwave.engine.trainers.torchtitan_python import read_sections


@imports.register("torchtitan-python")
class TorchtitanPython(Torchtitan):
    """Configuration function of torchtitan, read without executing it; FILE:FUNCTION names one of several."""

    title: ClassVar = "torchtitan settings (Python)"
    note: ClassVar = "configuration function of torchtitan since 0.3.0"
    suffixes: ClassVar = (".py",)

    @staticmethod
    def recognizes(text: str) -> bool:
        return "torchtitan" in text

    @staticmethod
    def read(text: str, name: str, into: Design | None = None, *, draft: bool = False) -> Imported:
        sections, notes = read_sections(text, name)
        design, others = import_sections(sections, name, into, draft=draft)
        return Imported(design, (*notes, *others))
