"""What the runs of a model measured of its experts' load, to be offered in place of a guess."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from meshwave.engine.document import Design
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.runs import Entry, Record, Run
from meshwave.engine.runs.recording import read_routing
from meshwave.engine.runs.run_folder import read_design
from meshwave.engine.units import when

LOOKED_AT = 30
"""Runs, the latest ones; older ones are a list of numbers in their folder."""
OFFERED = 5


class Routed(NamedTuple):
    """How often each expert was chosen in a run."""

    run: str
    when: str
    steps: int
    load: tuple[float, ...]  # [experts] in even shares, the mean over the model's layers of experts

    @property
    def words(self) -> str:
        return f"measured {self.when}, {self.steps} steps"


class Routings:
    """The routing of the runs of a record; each run is read once, when it is over."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._known: dict[str, tuple[Mapping[str, Any], Routed] | None] = {}

    def of(self, design: Design) -> tuple[Routed, ...]:
        """Those of runs of this very model on the same text, the latest first: placements and schedules
        change no choice of a gate."""
        if design.model.moe is None:
            return ()
        meant = _meaning(design)
        return tuple(routed for meaning, routed in self._all() if meaning == meant)[:OFFERED]

    def _all(self) -> Iterator[tuple[Mapping[str, Any], Routed]]:
        for entry in self._record.all(LOOKED_AT):
            if entry.state.is_over:
                if entry.id not in self._known:
                    self._known[entry.id] = self._read(entry)
                if found := self._known[entry.id]:
                    yield found

    def _read(self, entry: Entry) -> tuple[Mapping[str, Any], Routed] | None:
        folder = self._record.folder(entry.id)
        with suppress(MeshwaveError):  # it is gone, damaged or of another version
            layers = read_routing(folder)
            if layers:
                mean = np.mean(list(layers.values()), axis=0)
                load = tuple(float(f"{share * len(mean):.4g}") for share in mean)
                last = Run(self._record, entry.id).latest()
                steps = last["step"] + 1 if last else 0
                return _meaning(read_design(folder)), Routed(entry.id, when(entry.created_s, exact=True), steps, load)
        return None


def _meaning(design: Design) -> dict[str, Any]:
    """What decides how a gate routes."""
    return {"model": design.model.model_dump(mode="json"), "data": design.training.data}
