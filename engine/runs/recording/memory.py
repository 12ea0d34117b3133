"""The most memory that each process of a run held at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from meshwave.engine.runs.recording.files import damage_told, read_whole, write_whole

FORMAT = "meshwave-memory/1"
WITHIN = "within the step"
"""The category of all that comes and goes: gradients, activations, messages and what an operation needs."""


@dataclass(frozen=True)
class MeasuredMemory:
    """The most that torch had allocated on the device of one process at once, in one step."""

    step: int
    peak_bytes: float
    by_category: Mapping[str, float]  # at that moment; those of a prediction, as far as they can be told apart
    how: str  # it was found out

    def write(self, folder: Path, process: int) -> None:
        write_whole(folder / f"memory-{process}.json", {"format": FORMAT, **asdict(self)})


def read_memory(folder: Path) -> dict[int, MeasuredMemory]:
    """By process what was measured of its memory; those that have measured none are left out.

    Raises:
        RunError: what was written is damaged.
    """
    found = {}
    for path in folder.glob("memory-*.json"):
        document = read_whole(path, FORMAT) or {}
        with damage_told(path):
            categories = {str(kind): float(size) for kind, size in document["by_category"].items()}
            peak, process = float(document["peak_bytes"]), int(path.stem.partition("-")[2])
            found[process] = MeasuredMemory(int(document["step"]), peak, categories, str(document["how"]))
    return dict(sorted(found.items()))
