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
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from meshwave.engine.document import Design, load_design, parse_design
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
from meshwave.engine.runs.launchers import launchers, specify_run
from meshwave.engine.runs.run_comparison import compare_run

if TYPE_CHECKING:
    from meshwave.engine.runs.accuracy import Comparison

__all__ = ["Design", "Picture", "Prediction", "Run", "compare", "example", "load", "predict", "run", "sweep"]


def load(source: str | os.PathLike[str] | dict[str, Any]) -> Design:
    """Return the design of a file, or of a document given as a dictionary.

    Raises:
        InputError: the file cannot be read.
        DesignError: the document is not a valid design; ``problems`` holds what is wrong, and where.
    """
    return parse_design(source) if isinstance(source, dict) else load_design(find_design(os.fspath(source)))


def example(name: str) -> Design:
    """Return one of the designs that ``meshwave examples`` lists.

    Raises:
        InputError: there is no example of that name.
    """
    return load_design(example_file(name))


class Picture(str):
    """An SVG document that notebooks show as a picture."""

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file."""
        Path(path).write_text(self, encoding="utf-8")


@dataclass(frozen=True, eq=False)
class Prediction(predictions.Prediction):
    """The program, timeline, memory and numbers that follow from a design."""

    @property
    def problems(self) -> list[Problem]:
        """Warnings: what is unwise, although it can be simulated."""
        return self.warnings

    def plot(self, window: tuple[float, float] | None = None, **options: Any) -> Picture:
        """Return the timeline as a picture.

        Args:
            window: the seconds to draw from and to; None for the whole step.
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
    """Predict many designs on all cores and yield the numbers of each, in their order.

    Args:
        designs: what to predict.
        processes: how many to predict at a time; all cores if None.

    Raises:
        InputError: a design cannot be predicted.
    """
    with ProcessPoolExecutor(processes or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        yield from pool.map(_numbers, [design.to_json() for design in designs])


def _numbers(document: str) -> dict[str, Any]:
    return predictions.predict(parse_design(document)).numbers


class Run:
    """A run that was launched; leaving its ``with`` block ends it if it is still under way."""

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
        """The name that ``meshwave runs`` knows the run by."""
        return self._launched.id

    @property
    def folder(self) -> Path:
        """The folder with the recordings, metrics and logs of the run."""
        return self._launched.folder

    @property
    def state(self) -> State:
        """The state of the run now."""
        return self._launched.state

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One row for each step so far: ``step``, ``loss``, ``grad_norm``, ``seconds``, ``tokens_per_s``."""
        return self._launched.metrics()

    def wait(self, timeout_s: float | None = None) -> State:
        """Return the state at the end of the run, or after ``timeout_s`` seconds."""
        return self._launched.wait(timeout_s=timeout_s)

    def cancel(self) -> None:
        """Ask the launcher to end the run."""
        self._launched.cancel()

    def compare(self, prediction: Prediction | None = None) -> Comparison:
        """Return measured beside predicted.

        Args:
            prediction: the prediction of the same program; the one of the launched design if None.

        Raises:
            InputError: ``prediction`` is of another program.
            RunError: the run has not measured a step.
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
    """Launch a design as real training and return at once.

    Args:
        design: what to run.
        target: the launch target by name.
        steps: training steps; those of the design if None.
        dry_run: wait for the modelled time in place of computing.
        hosts: emulated hosts to spread the processes over; None for none.

    Raises:
        InputError: there is no such target, or the hosts cannot be emulated.
        DesignError: the design cannot be run there.
        RunError: the target cannot run it now.
    """
    if steps is not None:
        document = design.model_dump(mode="json")
        design = parse_design({**document, "training": {**document["training"], "steps": steps}})
    options = Options(rehearse=Rehearsal() if dry_run else None, hosts=default_hosts(design, hosts) if hosts else None)
    found = predictions.predict(design)
    launcher = launchers[target](Record())
    return Run(launcher.submit(specify_run(found, options)))


def compare(designs: Sequence[Design]) -> list[dict[str, Any]]:
    """Return the numbers of several designs, in their order; the best has the largest ``samples_per_s``."""
    return [predictions.predict(design).numbers for design in designs]
