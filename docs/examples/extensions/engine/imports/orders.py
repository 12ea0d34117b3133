"""Read the orders that ``meshwave program`` prints: a line for each rank, its computations side by side."""

import re
from typing import ClassVar

from meshwave.engine.document import Design
from meshwave.engine.imports import Import, Imported, imports


@imports.register("orders")
class Orders(Import):
    """A pipeline schedule with a line for each rank and spaces between its computations."""

    title: ClassVar = "Orders (text)"
    note: ClassVar = "any editor: 0F0 0F1 0B0 0B1"
    suffixes: ClassVar = (".orders",)

    @staticmethod
    def recognizes(text: str) -> bool:
        return re.match(r"\s*\d+[FBIW]\d+", text) is not None

    @staticmethod
    def read(text: str, name: str, into: Design | None = None, *, draft: bool = False) -> Imported:
        rows = [",".join(line.split()) for line in text.splitlines() if line.strip()]
        return imports["torch-csv"].read("\n".join(rows), name, into, draft=draft)
