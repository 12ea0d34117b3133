"""Errors of published runs with their source left out of the fit: ``python -m meshwave.engine.bench.published.left_out``.

They determine the intervals of predictions, since a design of a user is in no fit either. A source is left out on all devices
of a family at once. The step times are linearized at the constants of each device, which makes a fit for each source affordable.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwave.engine import predict
from meshwave.engine.bench.published.fitting import (
    FAMILIES,
    PRIORS,
    STEP,
    PricedRun,
    constants_in_use,
    fit_parameters,
    published_runs,
    use_constants,
)
from meshwave.engine.bench.published.runs import Run
from meshwave.engine.files import write_whole
from meshwave.engine.predict.similar_runs import LEFT_OUT_FILE

Floats = NDArray[np.float64]
NEVER_FITTED = ("H200-SXM5-141GB",)
"""Kinds of devices with the constants of another kind: no fit contains their runs."""
ROUNDS = 4
"""Number of fits of each set of constants of a family, each with the latest constants of the others."""


class LinearizedRun:
    """Published run for which the logarithm of the step time is linear in the logarithms of the constants."""

    def __init__(self, run: Run, kind: str, start: Mapping[str, float], base: float, slopes: Floats) -> None:
        self.run, self._kind, self._base, self._slopes = run, kind, base, slopes
        self._start = np.log(list(start.values()))

    def ratio(self) -> float:
        """Return predicted divided by published step time, with the current constants."""
        moved = np.log(list(constants_in_use(self._kind).values())) - self._start
        return float(np.exp(self._base + self._slopes @ moved))


def linearize(runs: Sequence[PricedRun], kinds: Sequence[str], start: Mapping[str, float]) -> list[LinearizedRun]:
    """Return the runs linearized at the constants ``start``."""
    use_constants(kinds, start)
    base = np.log([run.ratio() for run in runs])
    slopes = np.zeros((len(runs), len(start)))
    for column, (name, value) in enumerate(start.items()):
        step = STEP if np.log(value) + STEP < np.log(PRIORS[name].highest) else -STEP
        use_constants(kinds, {**start, name: value * float(np.exp(step))})
        slopes[:, column] = (np.log([run.ratio() for run in runs]) - base) / step
    use_constants(kinds, start)
    return [
        LinearizedRun(run.run, kinds[0], start, float(here), row)
        for run, here, row in zip(runs, base, slopes, strict=True)
    ]


def left_out_errors(family: Mapping[tuple[str, ...], Sequence[PricedRun]]) -> dict[str, float]:
    """Return the error of each run by its id, predicted with constants fitted to the other sources.

    ``family`` has the runs of each set of constants of a family. The fits start from the priors of measured kernels.
    """
    errors: dict[str, float] = {}
    for source in sorted({run.run.publication for runs in family.values() for run in runs}):
        for kinds in family:
            use_constants(kinds, {name: prior.centre for name, prior in PRIORS.items()})
        for kinds, runs in [*family.items()] * ROUNDS:
            others = [run for run in runs if run.run.publication != source]
            use_constants(kinds, fit_parameters(others, kinds, constants_in_use(kinds[0])))
        left_out = (run for runs in family.values() for run in runs if run.run.publication == source)
        errors |= {run.run.id: run.ratio() - 1 for run in left_out}
    return errors


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the errors of all published runs with their source left out of the fit."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--runs", type=Path, help="rows of training runs as JSON; default: those that Meshwave ships")
    options = parser.parse_args(arguments)
    found = {run.run.id: run.ratio() - 1 for run in published_runs(NEVER_FITTED, options.runs)}
    for family in FAMILIES:
        found |= left_out_errors(
            {
                kinds: linearize(published_runs(kinds, options.runs), kinds, constants_in_use(kinds[0]))
                for kinds in family
            }
        )
    write_errors(found, Path(str(resources.files(predict) / LEFT_OUT_FILE)))


def write_errors(found: Mapping[str, float], path: Path) -> None:
    """Write errors by id of the run, one per line."""
    lines = ",\n".join(f"{json.dumps(name)}: {error:.4f}" for name, error in found.items())
    write_whole(path, f"{{\n{lines}\n}}\n".encode())


if __name__ == "__main__":
    main()
