"""Examples that are configurations of published training runs, with the published step times and their sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

from meshwave.engine.document import Design, load_design
from meshwave.engine.files import published_examples
from meshwave.engine.predict.similar_runs import ERROR_DIGITS, SimilarRun, predicted_published_runs
from meshwave.engine.units import duration, percent_change

FILE = "published_examples.json"


class PublishedStep(NamedTuple):
    """Published step time of an example."""

    name: str
    run: SimilarRun
    source: str

    def comparison(self, predicted_s: float | None = None) -> str:
        """Return published and predicted step time, such as "published 37.8 s, predicted −0.3%".

        Without ``predicted_s``, the prediction is the one that ``make published`` stored.
        """
        error = self.run.error
        if predicted_s is not None:
            error = round(predicted_s / self.run.published_s - 1, ERROR_DIGITS)  # or both forms could round differently
        return f"published {duration(self.run.published_s, 's')}, predicted {percent_change(error)}"


@cache
def published_steps() -> Mapping[str, PublishedStep]:
    """Return the published step time of each published example by its name."""
    runs = {run.id: run for run in predicted_published_runs()}
    index = json.loads((resources.files(__package__) / FILE).read_text())
    return {
        name: PublishedStep(_load_example(name).name, runs[entry["run"]], entry["source"])
        for name, entry in index.items()
    }


def find_published_step(design: Design) -> PublishedStep | None:
    """Return the published step time of a design that is a published example, whatever its name; None for others."""
    devices = sum(len(mesh.devices) for mesh in design.meshes)
    for name, step in published_steps().items():
        if (step.run.device, step.run.devices) == (design.cluster.device.name, devices):
            example = _load_example(name)
            if design.model_copy(update={"name": example.name}) == example:
                return step
    return None


@cache
def _load_example(name: str) -> Design:
    return load_design(published_examples()[name])
