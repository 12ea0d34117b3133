"""What was measured on a machine: a line ``alpha + beta * bytes`` for each collective and kind of group.

``meshwave calibrate`` writes such a file, ``engine/runtime`` measures what is in it. Bytes are
those of Meshwave everywhere: of an all-to-all the whole buffer that a rank sends, of an all-gather
what one rank contributes, of a reduce-scatter or an all-reduce the whole buffer that goes in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from engine.design.refusals import from_validation
from engine.errors import DesignError, InputError, Problem, nearest
from engine.part import Part
from engine.resources import write_whole

Name = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "overlap"]
Group = Literal["mp", "esp", "ep", "ep_esp"]
Sample = tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]]
"""Bytes, and the seconds that they took."""
Ranks = Annotated[int, Field(ge=1, le=4096)]

FORMAT: Literal["meshwave-profile/1"] = "meshwave-profile/1"
LARGEST_FILE_BYTES = 16_000_000
STEPS = 40
"""Of the fit; a handful is enough."""
Floats = NDArray[np.float64]
USUAL_GROUP: Mapping[str, Group] = {
    "all_gather": "mp",
    "reduce_scatter": "esp",
    "all_reduce": "esp",
    "all_to_all": "ep_esp",
    "overlap": "ep_esp",
}
"""Whose line stands for a collective where a line for all groups is asked for: Parm's use of it."""


class Machine(Part):
    """Where it was measured."""

    ranks: Ranks
    """Processes, numbered node by node."""
    ranks_per_node: Ranks
    backend: Literal["gloo", "nccl"] = "gloo"
    network: Annotated[str, Field(max_length=200)] = ""
    """What the messages went over, in words."""
    cores: Annotated[int, Field(ge=1)] | None = None
    """Of the host, which all processes of an emulated cluster share."""
    load_before: Annotated[float, Field(ge=0)] | None = None
    """Processes that wanted a core just before: others' work makes messages slower."""
    software: Annotated[str, Field(max_length=200)] = ""


class ShapedRates(Part):
    """What links were held to, in bytes/s and each direction."""

    intra: Annotated[float, Field(gt=0)]
    """Of each process."""
    inter: Annotated[float, Field(gt=0)]
    """Of a node's uplink, which its processes share."""


class Measured(Part):
    """One collective over all groups of a kind at once, and the line through its samples."""

    collective: Name
    """*overlap* is an all-to-all of ``ep_esp`` with the all-gather of ``mp`` that hides under it."""
    group: Group
    size: Ranks
    """Ranks of a group."""
    alpha_s: Annotated[float, Field(ge=0)]
    beta_s_per_byte: Annotated[float, Field(ge=0)]
    r2: float
    """The share of the samples' variance that the line explains."""
    samples: Annotated[tuple[Sample, ...], Field(min_length=1)]
    mp: Ranks | None = None
    """Of an overlap: the layout that it was measured for."""
    esp: Ranks | None = None

    @property
    def residuals(self) -> list[float]:
        """Of each sample: how much longer it took than the line says, as a share of what the line says."""
        return [seconds / self.seconds(size) - 1 for size, seconds in self.samples]

    def seconds(self, size: float) -> float:
        return self.alpha_s + size * self.beta_s_per_byte


class Profile(Part):
    """A machine's collectives."""

    format: Literal["meshwave-profile/1"] = FORMAT
    machine: Machine
    rates: ShapedRates | None = None
    """Of an emulated cluster; null: the links are as they are."""
    collectives: Annotated[tuple[Measured, ...], Field(max_length=10_000)]

    def fit(self, mp: int, esp: int) -> dict[str, dict[str, float]]:
        """The ``fit`` of ``meshwave moe`` for experts laid out so: alpha and beta by collective, for the
        group that usually calls it and, as ``all_to_all@ep``, for each kind of group that was measured.

        There an all-gather goes by all that was gathered, so that its beta is divided by its ranks.

        Raises:
            InputError: nothing was measured for this layout.
        """
        found: dict[str, dict[str, float]] = {}
        for measured in self._of(mp, esp):
            line = _as_fit(measured)
            if USUAL_GROUP[measured.collective] == measured.group or measured.collective not in found:
                found[measured.collective] = line
            if measured.collective != "overlap":
                found[f"{measured.collective}@{measured.group}"] = line
        if not found:
            have = sorted({(each.group, each.size) for each in self.collectives})
            listed = ", ".join(f"{group} of {size}" for group, size in have)
            raise InputError(f"the profile has nothing for mp={mp} and esp={esp}; it has {listed or 'no collectives'}")
        return found

    def _of(self, mp: int, esp: int) -> list[Measured]:
        """What was measured on the groups of a layout, those of one rank left out."""
        sizes = group_sizes(self.machine.ranks, mp, esp)
        return [
            each
            for each in self.collectives
            if each.size == sizes[each.group] > 1 and (each.collective != "overlap" or (each.mp, each.esp) == (mp, esp))
        ]

    def to_json(self) -> str:
        """The document, ending with a newline; each list of samples is a line."""
        document = self.model_dump(mode="json", exclude_none=True)
        rows = [json.dumps(each) for each in document.pop("collectives")]
        head = json.dumps(document, indent=2).removesuffix("\n}")
        return f'{head},\n  "collectives": [\n    ' + ",\n    ".join(rows) + "\n  ]\n}\n"


def _as_fit(measured: Measured) -> dict[str, float]:
    parts = measured.size if measured.collective == "all_gather" else 1
    return {"alpha_s": measured.alpha_s, "beta_s_per_byte": measured.beta_s_per_byte / parts}


def group_sizes(ranks: int, mp: int, esp: int) -> dict[str, int]:
    """Ranks of each kind of group.

    Raises:
        InputError: the groups do not divide the ranks.
    """
    for name, size in (("mp", mp), ("esp", esp)):
        if size < 1 or ranks % size:
            raise InputError(f"groups of {name}={size} do not divide {ranks} ranks; use a divisor")
    return {"mp": mp, "esp": esp, "ep": ranks // esp, "ep_esp": ranks}


def members(group: str, ranks: int, mp: int, esp: int) -> list[list[int]]:
    """All groups of a kind: ``mp`` and ``esp`` are neighbours, an ``ep`` group has every ``esp``-th rank."""
    size = group_sizes(ranks, mp, esp)[group]
    if group == "ep":
        return [list(range(first, ranks, esp)) for first in range(esp)]
    return [list(range(first, first + size)) for first in range(0, ranks, size)]


# ---- the line through samples ----


class Line(NamedTuple):
    alpha_s: float
    beta_s_per_byte: float
    r2: float


def fit_line(samples: Sequence[tuple[float, float]]) -> Line:
    """The line of least squares through (bytes, seconds) on a scale of ratios, with nothing negative.

    The squares are those of ``log(seconds / line)``, so that small messages, which decide alpha,
    count as much as large ones, and twice as long as much as half as long (Gauss-Newton). ``r2`` is
    that of the seconds themselves, as papers give it.
    """
    size, seconds = np.array(samples, float).T
    columns = np.stack([np.ones_like(size), size], axis=1)
    line = _non_negative(columns / seconds[:, None], np.ones_like(size))
    for _ in range(STEPS):
        predicted = columns @ line
        off = np.log(seconds / predicted)
        off /= max(1, 2 * np.abs(off).max())  # a part of the way where it is far
        line = _non_negative(columns / predicted[:, None], 1 + off)
    left = float(((seconds - columns @ line) ** 2).sum())
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    return Line(float(line[0]), float(line[1]), 1 - left / spread if spread else 1.0)


def _non_negative(columns: Floats, wanted: Floats) -> Floats:
    """Least squares: with both unknowns or, where one of them came out negative, the best without it."""
    options: list[Floats] = []
    if np.ptp(columns[:, 1] / columns[:, 0]) > 0:  # more than one size
        options.append(np.asarray(np.linalg.lstsq(columns, wanted, rcond=None)[0], np.float64))
    for only in (0, 1):
        column = columns[:, only]
        line = np.zeros(2)
        line[only] = column @ wanted / (column @ column)
        options.append(line)
    feasible = [line for line in options if (line >= 0).all()]
    return min(feasible, key=lambda line: float(((columns @ line - wanted) ** 2).sum()))


# ---- files ----

PARTS: Mapping[str, type[Part]] = {"machine": Machine, "rates": ShapedRates, "collectives": Measured}


def parse_profile(text: str | bytes) -> Profile:
    """
    Raises:
        DesignError: with every problem of the document.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the profile is not JSON: {error}") from None
    try:
        return Profile.model_validate_json(text)
    except ValidationError as error:
        found = from_validation(error, document if isinstance(document, Mapping) else {})
        raise DesignError(map(_with_known_keys, found)) from None


def _with_known_keys(problem: Problem) -> Problem:
    """Of a key that a profile does not have: those that it has there, rather than those of a design."""
    if problem.code != "extra_forbidden":
        return problem
    part, key = problem.where.partition("[")[0].split(".")[0], problem.where.rpartition(".")[2]
    owner = PARTS.get(part, Profile) if key != part else Profile
    return problem._replace(message=f"there is no key {key!r} here. {nearest(key, owner.model_fields)}")


def load_profile(path: Path | str) -> Profile:
    """Read a profile from a file.

    Raises:
        InputError: it cannot be read, or what is in it is no profile.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', error)}") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise InputError(f"{path} is larger than a profile can be ({LARGEST_FILE_BYTES // 10**6} MB)")
    return parse_profile(content)


def save_profile(profile: Profile, path: Path | str) -> None:
    """Write a profile; a crash leaves the old file or the new one, never half of one."""
    write_whole(path, profile.to_json().encode())
