"""What was measured of the designs, as data: one file, written anew after each of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from meshwave.engine.bench.accuracy.cases import Way
from meshwave.engine.errors import InputError
from meshwave.engine.files import write_whole
from meshwave.engine.frozen import Part

FORMAT: Literal["meshwave-accuracy/1"] = "meshwave-accuracy/1"


class Result(Part):
    """One design: predicted, and measured over some steps."""

    case: str
    """Its name."""
    group: str
    """What it stands for."""
    way: Way
    """Whether its stages waited or computed."""
    rivals: str
    """Names the training that others do in other schedules; empty where none do."""
    meshes: int
    """Pipeline ranks."""
    processes: int
    """One a device."""
    unit: Literal["s", "units"]
    """Of the times that are predicted and measured."""
    scale: float | None
    """Seconds of a rehearsal for each of its design's seconds or units; null: stages computed."""
    steps: int
    """That count: without the first, which warms up."""
    predicted: float
    """Of one iteration."""
    learned: float | None = None
    """The same, priced by what a run of another schedule took; null: there was none to learn from."""
    ranges: tuple[float, ...] = ()
    """Of the same prediction, where each computation is up to a percent longer by chance: from the shortest iteration to
    the longest. Empty where nobody asked."""
    measured: float
    """Of one iteration: the median."""
    spread: float
    """Of those iterations: from the fastest to the slowest."""
    shortest_s: float
    """The shortest computation of the program, as it was played."""
    predicted_bubble: float
    """The share of all devices' time that is idle."""
    measured_bubble: float
    """The same as it was."""
    predicted_bytes: tuple[float, ...] = ()
    """[meshes] the most that a device holds."""
    measured_bytes: tuple[float, ...] = ()
    """[meshes] the same as torch allocated it; empty where stages waited, or nothing counts it."""
    others: float
    """The share of this machine's cores that others kept busy just before."""
    note: str = ""
    """Note of a dry run on the size of its messages."""
    message_bytes: float | None = None
    """Largest message of a dry run, which is smaller than modelled if this machine could not send it in time."""
    modelled_message_bytes: float | None = None
    """Largest message of the design."""
    said: str = ""
    """Where the largest error comes from."""
    tags: dict[str, str] = Field(default_factory=dict)
    """What a table finds it by."""

    @property
    def error(self) -> float:
        """``measured / predicted - 1``: above 0 where it took longer."""
        return self.measured / self.predicted - 1

    @property
    def by_a_run(self) -> Result:
        """As if what was learned of a run were all that it is predicted by."""
        return self if self.learned is None else self.model_copy(update={"predicted": self.learned})

    @property
    def memory_errors(self) -> list[float]:
        """[meshes] ``predicted / measured - 1``: above 0 where less was needed; empty where it was not measured."""
        pairs = zip(self.predicted_bytes, self.measured_bytes, strict=False)
        return [predicted / measured - 1 for predicted, measured in pairs if measured]


class Results(Part):
    """All of one machine."""

    format: Literal["meshwave-accuracy/1"] = FORMAT
    """The version of this document."""
    machine: str
    """In words."""
    date: str
    """Of the last one that was measured."""
    results: tuple[Result, ...] = ()

    def with_one(self, result: Result, date: str) -> Results:
        """With one more, or with a new one in the place of an old one of that name."""
        kept = [each for each in self.results if each.case != result.case]
        at = next((place for place, each in enumerate(self.results) if each.case == result.case), len(kept))
        return self.model_copy(update={"results": (*kept[:at], result, *kept[at:]), "date": date})

    def of(self, names: Iterable[str]) -> list[Result]:
        """Those of that name that there are, in the order of the names."""
        known = {result.case: result for result in self.results}
        return [known[name] for name in names if name in known]


def read(path: Path) -> Results | None:
    """What was measured before; None where there is no such file.

    Raises:
        InputError: it holds something else.
    """
    try:
        return Results.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) or "the file"
        raise InputError(f"{path} holds no results of this bench ({where}: {error.errors()[0]['msg']})") from None


def write(results: Results, path: Path) -> None:
    """Write them, a result a line, so that a change of one is a change of one line."""
    document = results.model_dump(mode="json")
    rows = ",\n    ".join(json.dumps(_rounded(row)) for row in document.pop("results"))
    head = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
    write_whole(path, f'{{\n  {head},\n  "results": [\n    {rows}\n  ]\n}}\n'.encode())


def _rounded(value: object) -> object:
    """Six digits are more than any clock here gives."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
