"""Fit of the constants of a device to published runs.

``python -m meshwave.engine.bench.published.fitting h100-sxm --write`` fits all runs on the devices of one file of
``engine/document/devices``; ``--only`` names the constants to fit.

The simulated step time is approximated by a closed form, multiplied by the ratio of simulated time to closed form at
the initial constants. The prior of each constant is a normal distribution of its logarithm, whose centre and relative
width come from measured kernels and from the constants of related devices. Deviations of single runs count linearly
beyond a few per cent, so that a run that the model cannot describe does not distort the constants.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.bench.published.designs import published_design
from meshwave.engine.bench.published.runs import Run, parse_run, read_rows
from meshwave.engine.costs.cost_model import pricing_model
from meshwave.engine.costs.models.roofline import RooflineCost, exposed_reductions, stage_seconds
from meshwave.engine.document import Cluster, Design, devices
from meshwave.engine.document.devices import Constants, device_kinds, find_device_kind
from meshwave.engine.errors import InputError
from meshwave.engine.predict.prediction import predict

Floats = NDArray[np.float64]
NOISE = 0.06
"""Relative deviation of runs from a good model, estimated from repeats and releases of the same configuration."""
LINEAR_BEYOND = 0.06
"""Relative deviation beyond which a run counts linearly."""
STEP = 0.03
"""Relative change of a constant for its numerical derivative."""


class Prior(NamedTuple):
    """Prior distribution of a fitted constant."""

    centre: float
    width: float
    lowest: float
    highest: float


PRIORS = {
    "product_efficiency": Prior(0.70, 0.1, 0.4, 0.85),
    "product_8bit_efficiency": Prior(0.66, 0.15, 0.3, 0.76),
    "attention_efficiency": Prior(0.55, 0.15, 0.25, 0.7),
    "eager_attention_efficiency": Prior(0.35, 0.15, 0.2, 0.6),
    "memory_efficiency": Prior(0.75, 0.12, 0.4, 0.93),
    "eager_memory_efficiency": Prior(0.40, 0.2, 0.2, 0.6),
    "kernel_s": Prior(8e-6, 0.5, 1e-6, 40e-6),
    "intra_node_efficiency": Prior(0.78, 0.1, 0.4, 0.95),
    "inter_node_efficiency": Prior(0.75, 0.15, 0.5, 0.97),
    "intra_node_latency_s": Prior(3e-6, 0.5, 0.5e-6, 15e-6),
    "inter_node_latency_s": Prior(10e-6, 0.5, 3e-6, 40e-6),
    "overlap": Prior(0.7, 0.3, 0.2, 1.0),
}
"""Priors from measured matrix products, attention, memory streams and collectives.

``docs/development/published-runs.md`` lists their sources.
"""

FAMILIES: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("A100-SXM4-80GB", "A100-SXM4-40GB"),),
    (("H100-SXM5-80GB",), ("H100-SXM5-96GB",)),
    (("B200-SXM-180GB",), ("B300-SXM-288GB",), ("GB200-186GB",), ("GB300-288GB",)),
)
"""Fitted kinds of devices by family of chips; the kinds of an inner tuple share constants."""


class PricedRun(Protocol):
    """Published run whose step time depends on the current constants."""

    run: Run

    def ratio(self) -> float:
        """Return predicted divided by published step time, with the current constants."""


class FittedRun:
    """Published run whose step time is computed from device constants without a simulation."""

    def __init__(self, run: Run, design: Design) -> None:
        assert run.step_s is not None, "checked when the row was parsed"
        self.run, self._design, self.published_s = run, design, run.step_s
        prediction = predict(design)
        self._program, self._layers = prediction.program, prediction.costs.layers
        self._held = pricing_model(design).sizes(design, self._program, self._layers)
        self._ratio = prediction.timeline.makespan / self._closed_form_s(design)

    def ratio(self) -> float:
        """Return predicted divided by published step time, with the current constants."""
        cluster = Cluster.model_validate(self._design.cluster.model_dump())  # without cached constants
        return (
            self._ratio * self._closed_form_s(self._design.model_copy(update={"cluster": cluster})) / self.published_s
        )

    def _closed_form_s(self, design: Design) -> float:
        """Return the seconds of all microbatches on the slowest rank, the others' warm-up, and the update."""
        model, program = cast(RooflineCost, pricing_model(design)), self._program  # no published run has other costs
        forward, backward = stage_seconds(design, program, self._layers, model.prices(design))
        busy = np.bincount(program.placement[0], forward + backward, minlength=program.ranks)
        warm_up = (program.ranks - 1) * busy.mean() * program.ranks / program.stages
        exposed = exposed_reductions(design, model.reduce_seconds(design, program, self._held), backward)
        update = model.step_seconds(design, program, self._held)
        return float(design.pipeline.microbatches * busy.max() + warm_up + exposed.max() + update.max())


def published_runs(kinds: Sequence[str], file: Path | None) -> list[FittedRun]:
    """Return the published runs on the given kinds of devices that can be expressed as designs."""
    found = []
    for row in read_rows(file):
        try:
            run = parse_run(row)
            design = published_design(run).design
        except InputError:
            continue
        if design.cluster.device.name in kinds:
            found.append(FittedRun(run, design))
    return found


def related_prior(kinds: Sequence[str], names: Iterable[str]) -> tuple[Floats, Floats]:
    """Return centres and widths of the logarithms of constants, given the constants of the rest of the family.

    The constants that a family has in common are distributed as ``PRIORS`` states, and those of each of its ``n`` sets
    around them with the same widths. Given the other sets, those of one set are therefore distributed around the mean of
    these and of the centre from measured kernels, with a variance of ``1 + 1 / n`` times the squared width.
    """
    centre, width = np.array([PRIORS[name][:2] for name in names]).T
    family = next((each for each in FAMILIES if any(kinds[0] in alike for alike in each)), ())
    others = [constants_in_use(alike[0]) for alike in family if kinds[0] not in alike]
    known = np.log([centre, *([other[name] for name in names] for other in others)])
    return known.mean(axis=0), width * np.sqrt(1 + 1 / len(known))


def fit_parameters(
    runs: Sequence[PricedRun],
    kinds: Sequence[str],
    start: Mapping[str, float],
    steps: int = 4,
    fixed: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, float]:
    """Fit the constants to the runs by damped Gauss-Newton steps from ``start``, and return them by name.

    The other constants keep their ``fixed`` values.
    """
    centre, width = related_prior(kinds, start)
    lowest, highest = np.log([PRIORS[name][2:] for name in start]).T
    now = np.clip(np.log(list(start.values())), lowest, highest)

    def deviations(logs: Floats) -> Floats:
        use_constants(kinds, {**fixed, **dict(zip(start, np.exp(logs).tolist(), strict=True))})
        return np.log([run.ratio() for run in runs])

    def cost(found: Floats, logs: Floats) -> float:
        robust = 2 * LINEAR_BEYOND**2 * (np.sqrt(1 + (found / LINEAR_BEYOND) ** 2) - 1) / NOISE**2
        return float(robust.sum() + (((logs - centre) / width) ** 2).sum())

    found = deviations(now)
    for _ in range(steps):
        slopes = np.zeros((len(runs), len(now)))
        for column in range(len(now)):
            step = STEP if now[column] + STEP < highest[column] else -STEP
            moved = now.copy()
            moved[column] += step
            slopes[:, column] = (deviations(moved) - found) / step
        weights = 1 / np.sqrt(1 + (found / LINEAR_BEYOND) ** 2) / NOISE**2
        matrix = slopes.T @ (weights[:, None] * slopes) + np.diag(1 / width**2)
        gradient = slopes.T @ (weights * found) + (now - centre) / width**2
        for damping in (0.01, 0.1, 1.0, 10.0):
            tried = np.clip(
                now - np.linalg.solve(matrix + damping * np.diag(np.diag(matrix)), gradient), lowest, highest
            )
            deviating = deviations(tried)
            if cost(deviating, tried) < cost(found, now):
                now, found = tried, deviating
                break
    return dict(zip(start, np.exp(now).tolist(), strict=True))


def use_constants(kinds: Sequence[str], values: Mapping[str, float]) -> None:
    """Replace the constants of the given kinds of devices for the rest of the process."""
    known = {name: find_device_kind(name) or kind for name, kind in device_kinds().items()}
    for name in kinds:
        known[name] = known[name].model_copy(update={"constants": Constants(**values)})
    devices.replace_device_kinds(known)


def constants_in_use(kind: str) -> dict[str, float]:
    """Return the constants of a kind of device, those that replace its own if there are any."""
    found = find_device_kind(kind)
    assert found is not None, "a kind of device with constants"
    return found.constants.model_dump()


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit the constants of device files that share one set of constants."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("files", nargs="+", help="names of files in engine/document/devices, without .json")
    parser.add_argument("--runs", type=Path, help="rows of training runs as JSON; default: those that Meshwave ships")
    parser.add_argument("--only", nargs="+", choices=PRIORS, help="constants to fit; default: all")
    parser.add_argument("--write", action="store_true", help="write the constants into the files")
    options = parser.parse_args(arguments)
    folder = Path(str(resources.files(devices)))
    paths = [folder / f"{name}.json" for name in options.files]
    documents: list[dict[str, Any]] = [json.loads(path.read_text()) for path in paths]
    kinds = [document["name"] for document in documents]
    runs, start = published_runs(kinds, options.runs), documents[0]["constants"]
    free = {name: start[name] for name in options.only or start}
    found = fit_parameters(runs, kinds, free, fixed=start)
    constants = {**start, **{name: float(f"{value:.3g}") for name, value in found.items()}}
    print(json.dumps(constants, indent=2))
    for path, document in zip(paths, documents, strict=True) if options.write else ():
        path.write_text(json.dumps({**document, "constants": constants}, indent=2) + "\n")


if __name__ == "__main__":
    main()
