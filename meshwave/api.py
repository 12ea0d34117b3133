"""The public Python API: load a design, predict it, run it, and compare both.

Example:
    >>> import meshwave as mw
    >>> p = mw.predict(mw.example("02-two-waves"))
    >>> p.numbers["bubble_ratio"] < 0.5
    True
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.document.problems import problems as document_problems
from meshwave.engine.errors import RunError
from meshwave.engine.exports.html import page_frame
from meshwave.engine.exports.svg import draw_svg
from meshwave.engine.files import example as example_file
from meshwave.engine.files import find_design
from meshwave.engine.findings import Problem
from meshwave.engine.predict import prediction as predictions
from meshwave.engine.runs import Options, Record, State
from meshwave.engine.runs import Run as LaunchedRun
from meshwave.engine.runs.dry_run import Rehearsal
from meshwave.engine.runs.emulation.hosts import default_hosts, read_executed_bundle
from meshwave.engine.runs.launchers import specify_run
from meshwave.engine.runs.run_comparison import compare_run
from meshwave.engine.runs.targets import open_target

if TYPE_CHECKING:
    from meshwave.engine.runs.accuracy import Comparison

__all__ = ["Design", "Picture", "Prediction", "Run", "compare", "example", "load", "predict", "run", "sweep"]


def load(source: str | os.PathLike[str] | dict[str, Any]) -> Design:
    """Return the design in a file, or in a document given as a dictionary.

    Raises:
        InputError: the file cannot be read.
        DesignError: the document is not a valid design; ``problems`` lists all its problems with their locations.
    """
    return parse_design(source) if isinstance(source, dict) else load_design(find_design(os.fspath(source)))


def example(name: str) -> Design:
    """Return an example design by name; ``meshwave examples`` lists the names.

    Raises:
        InputError: the example does not exist.
    """
    return load_design(example_file(name))


class Picture(str):
    """SVG document that notebooks show as a picture."""

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file."""
        Path(path).write_text(self, encoding="utf-8")


@dataclass(frozen=True, eq=False)
class Prediction(predictions.Prediction):
    """Program, timeline, memory and metrics predicted for a design."""

    @property
    def problems(self) -> list[Problem]:
        """Warnings about the design, which do not prevent its simulation: those of the document and of the prediction."""
        return [*document_problems(self.design), *self.warnings]

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """Metrics of the prediction as JSON values, with all warnings about the design."""
        return {**super().numbers, "warnings": [str(problem) for problem in self.problems]}

    def plot(self, window: tuple[float, float] | None = None, **options: Any) -> Picture:
        """Return the timeline as a picture.

        Args:
            window: start and end of the drawn period in seconds; None for the whole step.
            options: ``width`` in pixels and ``theme``, "light" or "dark".
        """
        title, unit = self.design.name, self.costs.unit
        return Picture(draw_svg(self.timeline, title=title, unit=unit, window=window, **options))

    def _repr_html_(self) -> str:
        return page_frame(self)


def predict(design: Design) -> Prediction:
    """Predict a training step of a design.

    Raises:
        InputError: the order deadlocks, or the cost model cannot price the design.
    """
    found = predictions.predict(design)
    return Prediction(*(getattr(found, field.name) for field in fields(found)))


def sweep(designs: Iterable[Design], *, processes: int | None = None) -> Iterator[dict[str, Any]]:
    """Predict several designs on all cores, and yield the metrics of each in order.

    Args:
        designs: the designs to predict.
        processes: number of designs to predict at a time; None for all cores.

    Raises:
        InputError: a design cannot be predicted.
    """
    with ProcessPoolExecutor(processes or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        yield from pool.map(_numbers, [design.to_json() for design in designs])


def _numbers(document: str) -> dict[str, Any]:
    return predict(parse_design(document)).numbers


class Run:
    """Launched run; leaving its ``with`` block cancels the run if it is still active."""

    def __init__(self, launched: LaunchedRun) -> None:
        self._launched = launched

    def __repr__(self) -> str:
        return f"Run({self.id!r}, {self.state})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.state.is_over:
            self.cancel()

    @property
    def id(self) -> str:
        """ID of the run, as shown by ``meshwave runs``."""
        return self._launched.id

    @property
    def folder(self) -> Path:
        """Folder with the recordings, metrics and logs of the run."""
        return self._launched.folder

    @property
    def state(self) -> State:
        """Current state of the run."""
        return self._launched.state

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One row for each completed step: ``step``, ``loss``, ``grad_norm``, ``seconds``, ``tokens_per_s``."""
        return self._launched.metrics()

    def wait(self, timeout_s: float | None = None) -> State:
        """Wait until the run ends or ``timeout_s`` seconds have passed, and return its state."""
        return self._launched.wait(timeout_s=timeout_s)

    def cancel(self) -> None:
        """Cancel the run."""
        self._launched.cancel()

    def compare(self, prediction: Prediction | None = None) -> Comparison:
        """Return a comparison of measured and predicted times and memory.

        Args:
            prediction: a prediction of the same program; None for that of the launched design.

        Raises:
            InputError: ``prediction`` is for another program.
            RunError: no step of the run was measured.
        """
        bundle = read_executed_bundle(self.folder)
        if prediction is not None and prediction.program.digest != bundle.program.digest:
            raise RunError(f"run {self.id} is of another program than the prediction; predict the design that it ran")
        found = compare_run(self._launched, bundle)
        if found is None:
            raise RunError(f"run {self.id} has not measured a step yet; it is {str(self.state).lower()}")
        return found


def run(
    design: Design, target: str = "local", *, steps: int | None = None, dry_run: bool = False, hosts: int | None = None
) -> Run:
    """Launch a design as training, and return at once.

    Args:
        design: the design to run.
        target: the name of a launch target.
        steps: number of training steps; None for that of the design.
        dry_run: True to wait for the modelled time instead of computing.
        hosts: number of emulated hosts to distribute the processes over; None for none.

    Raises:
        InputError: the target does not exist, or the hosts cannot be emulated.
        DesignError: the target cannot run the design.
        RunError: the target cannot run it now.
    """
    if steps is not None:
        document = design.model_dump(mode="json")
        design = parse_design({**document, "training": {**document["training"], "steps": steps}})
    options = Options(rehearse=Rehearsal() if dry_run else None, hosts=default_hosts(design, hosts) if hosts else None)
    found = predictions.predict(design)
    launcher = open_target(Record(), target)
    return Run(launcher.submit(specify_run(found, options)))


def compare(designs: Sequence[Design]) -> list[dict[str, Any]]:
    """Return the metrics of several designs in order; the best has the largest ``samples_per_s``."""
    return [predict(design).numbers for design in designs]
