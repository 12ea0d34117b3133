"""Peak memory of each process of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from meshwave.engine.run_files import Count, NotNegative, RunFile, files_by_process, read_document, write_document

FORMAT: Literal["meshwave-memory/1"] = "meshwave-memory/1"
WITHIN = "within the step"
"""Category of memory that is allocated and freed within a step: gradients, activations, messages, temporaries."""


class MeasuredMemory(RunFile):
    """Peak memory that torch allocated on the device of one process in one step."""

    format: Literal["meshwave-memory/1"] = FORMAT
    step: Count
    peak_bytes: NotNegative
    by_category: dict[str, NotNegative]
    """Bytes at that moment, where measurable."""
    how: str
    """Measurement method."""

    def write(self, folder: Path, process: int) -> None:
        """Write the measurement to the run folder."""
        write_document(folder / f"memory-{process}.json", self.model_dump())


def read_memory(folder: Path) -> dict[int, MeasuredMemory]:
    """Return the measured memory by process; processes without a measurement are left out.

    Raises:
        RunFolderError: a file is damaged.
    """
    files = files_by_process(folder, "memory", ".json")
    documents = {process: read_document(path, MeasuredMemory) for process, path in files.items()}
    return {process: found for process, found in documents.items() if found}
