"""Expert loads measured by earlier runs of a model, for selection on the expert canvas."""

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
from meshwave.engine.units import format_time

RUNS_READ = 30
"""Number of recent runs whose load is read."""
LOADS_OFFERED = 5


class MeasuredLoad(NamedTuple):
    """Share of tokens that each expert received in a run."""

    run: str
    when: str
    steps: int
    load: tuple[float, ...]  # [experts] relative to an even load, averaged over the expert layers of the model

    @property
    def label(self) -> str:
        """Label such as ``measured 12:30, 20 steps``."""
        return f"measured {self.when}, {self.steps} steps"


class MeasuredLoads:
    """Measured loads of the runs in a record; each run is read once, when it has ended."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._known: dict[str, tuple[Mapping[str, Any], MeasuredLoad] | None] = {}

    def find_loads(self, design: Design) -> tuple[MeasuredLoad, ...]:
        """Return the loads of runs with the same model, data and tokenizer, latest first.

        Placement and schedule do not affect which experts the gate chooses.
        """
        if design.model.moe is None:
            return ()
        wanted = _routing_key(design)
        return tuple(routed for meaning, routed in self._read_loads() if meaning == wanted)[:LOADS_OFFERED]

    def _read_loads(self) -> Iterator[tuple[Mapping[str, Any], MeasuredLoad]]:
        for entry in self._record.entries(RUNS_READ):
            if entry.state.is_over:
                if entry.id not in self._known:
                    self._known[entry.id] = self._read_run(entry)
                if found := self._known[entry.id]:
                    yield found

    def _read_run(self, entry: Entry) -> tuple[Mapping[str, Any], MeasuredLoad] | None:
        folder = self._record.folder(entry.id)
        with suppress(MeshwaveError):  # the run was deleted, is damaged or of another version
            layers = read_routing(folder)
            if layers:
                mean = np.mean(list(layers.values()), axis=0)
                load = tuple(float(f"{share * len(mean):.4g}") for share in mean)
                last = Run(self._record, entry.id).latest_metrics()
                steps = last["step"] + 1 if last else 0
                return _routing_key(read_design(folder)), MeasuredLoad(
                    entry.id, format_time(entry.created_s, exact=True), steps, load
                )
        return None


def _routing_key(design: Design) -> dict[str, Any]:
    """Return the parts of a design that determine how its gate routes tokens."""
    training = design.training
    return {
        "model": design.model.model_dump(mode="json"),
        "data": training.data,
        "tokenizer": [training.tokenizer, training.end_of_text],
        "document_end": [training.document_end, training.pad_documents],
    }
