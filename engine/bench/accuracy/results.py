"""Results of the accuracy benchmark, stored in one file that is rewritten after each case."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from meshwave.engine.bench.accuracy.cases import Case, Way
from meshwave.engine.files import write_whole
from meshwave.engine.findings import Refusal
from meshwave.engine.frozen import Part
from meshwave.engine.run_files import first_problem

FORMAT: Literal["meshwave-accuracy/1"] = "meshwave-accuracy/1"


class Result(Part):
    """Prediction and measurement of a case."""

    case: str
    """Name of the case."""
    group: str
    """Group of the case."""
    way: Way
    """Kind of run: "rehearsed" for a dry run, "measured" for training."""
    rivals: str
    """Name of the training, if other cases run the same training with other schedules; otherwise empty."""
    meshes: int
    """Number of pipeline ranks."""
    processes: int
    """Number of processes, one per device."""
    unit: Literal["s", "units"]
    """Unit of predicted and measured times."""
    scale: float | None
    """Time-dilation factor of a dry run: wall seconds per second or unit; null for training."""
    steps: int
    """Number of timed steps, excluding the first."""
    predicted: float
    """Predicted step time, in ``unit``."""
    learned: float | None = None
    """Step time predicted from the profile of a run with another schedule, in ``unit``; null without such a run."""
    ranges: tuple[float, ...] = ()
    """Shortest and longest predicted step time if computations are up to 1% longer at random; empty without hosts."""
    measured: float
    """Median measured step time, in ``unit``."""
    spread: float
    """Slowest minus fastest measured step time, in ``unit``."""
    shortest_s: float
    """Wall time of the shortest computation in seconds."""
    predicted_bubble: float
    """Predicted bubble ratio."""
    measured_bubble: float
    """Measured bubble ratio."""
    predicted_bytes: tuple[float, ...] = ()
    """Predicted peak memory of each mesh in bytes, ``[meshes]``."""
    measured_bytes: tuple[float, ...] = ()
    """Peak memory that torch allocated on each mesh in bytes, ``[meshes]``; empty for dry runs and if not measured."""
    others: float
    """Fraction of the CPU time of this machine that other processes used before the run."""
    note: str = ""
    """Note of a dry run on the size of its messages."""
    message_bytes: float | None = None
    """Size of the largest message of a dry run in bytes, reduced if this machine could not send it in time."""
    modelled_message_bytes: float | None = None
    """Size of the largest message of the design in bytes."""
    said: str = ""
    """Main cause of the prediction error, as text."""
    machine: str = ""
    """Description of the machine, if it is another one than that of the document."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Values by which a table selects the result."""

    @property
    def error(self) -> float:
        """``measured / predicted - 1``: positive if the run took longer."""
        return self.measured / self.predicted - 1

    @property
    def predicted_from_run(self) -> Result:
        """The result with the prediction from the profile of a run, if there is one; otherwise unchanged."""
        return self if self.learned is None else self.model_copy(update={"predicted": self.learned})

    @property
    def memory_errors(self) -> list[float]:
        """``predicted / measured - 1`` of each mesh, ``[meshes]``; empty if memory was not measured."""
        pairs = zip(self.predicted_bytes, self.measured_bytes, strict=False)
        return [predicted / measured - 1 for predicted, measured in pairs if measured]


class Results(Part):
    """Results of one machine, and of earlier ones."""

    format: Literal["meshwave-accuracy/1"] = FORMAT
    """Version of this document."""
    machine: str
    """Description of the machine."""
    date: str
    """Date of the last measurement."""
    results: tuple[Result, ...] = ()

    def move_to_machine(self, machine: str) -> Results:
        """Return the document of another machine, whose earlier results name the machine on which they were measured."""
        named = [each.model_copy(update={"machine": each.machine or self.machine}) for each in self.results]
        kept = [each.model_copy(update={"machine": ""}) if each.machine == machine else each for each in named]
        return self.model_copy(update={"machine": machine, "results": tuple(kept)})

    def replace_result(self, result: Result, date: str) -> Results:
        """Return the results with a new result, which replaces an earlier result of the same case."""
        kept = [each for each in self.results if each.case != result.case]
        at = next((place for place, each in enumerate(self.results) if each.case == result.case), len(kept))
        return self.model_copy(update={"results": (*kept[:at], result, *kept[at:]), "date": date})

    def select(self, cases: Iterable[Case]) -> list[Result]:
        """Return the results of the given cases in their order; cases without a result are skipped."""
        known = {result.case: result for result in self.results}
        return [known[case.name] for case in cases if case.name in known]


def read_results(path: Path) -> Results | None:
    """Read a result file; return None if it does not exist.

    Raises:
        InputError: the file cannot be read, or has invalid content.
    """
    try:
        return Results.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refusal("unreadable_results", {"path": str(path), "reason": error.strerror}) from None
    except ValidationError as error:
        raise Refusal("invalid_results", {"path": str(path), "problem": first_problem(error)}) from None


def write_results(results: Results, path: Path) -> None:
    """Write a result file with one line per result, so that diffs between versions are readable."""
    document = results.model_dump(mode="json")
    rows = ",\n    ".join(json.dumps(_round_numbers(row)) for row in document.pop("results"))
    head = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
    write_whole(path, f'{{\n  {head},\n  "results": [\n    {rows}\n  ]\n}}\n'.encode())


def _round_numbers(value: object) -> object:
    """Return a JSON value with its numbers rounded to six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _round_numbers(each) for key, each in value.items()}
    return [_round_numbers(each) for each in value] if isinstance(value, list) else value
