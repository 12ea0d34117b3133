"""How often each expert was chosen in a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.recording.files import damage_told, write_whole


def write_routing(folder: Path, process: int, routed: Mapping[int, Sequence[float]]) -> None:
    """Write how many tokens a process has sent to each expert so far, by layer; nothing where there are no experts."""
    if routed:
        write_whole(folder / f"routing-{process}.json", routed)


def read_routing(folder: Path | str) -> dict[int, tuple[float, ...]]:
    """By layer of the model how often each expert was chosen in a run, as shares of 1; empty where none is known.

    Raises:
        RunError: what was written is damaged.
    """
    found: dict[int, NDArray[np.float64]] = {}
    for path in sorted(Path(folder).glob("routing-*.json")):
        with damage_told(path):
            for layer, counts in json.loads(path.read_bytes()).items():
                found[int(layer)] = found.get(int(layer), 0) + np.array(counts, np.float64)
    return {layer: tuple((counts / counts.sum()).tolist()) for layer, counts in sorted(found.items()) if counts.sum()}
