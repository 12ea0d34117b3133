"""Calibration profile: measured costs of blocks, optimizer, links, collectives and memory of a machine.

``meshwave calibrate`` measures and writes a profile (:mod:`meshwave.engine.runtime.calibration`); a run gives one too, by
its ``actions``. A design refers to it by its file name (``cost.profile``). Bytes are those of one rank: for an all-to-all
the whole buffer that it sends, for an all-gather its contribution, for a reduce-scatter or an all-reduce the whole input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from meshwave.engine.costs.contention import Contention
from meshwave.engine.document.cluster import Device
from meshwave.engine.document.reading import read_part
from meshwave.engine.errors import InputError
from meshwave.engine.files import read_whole
from meshwave.engine.frozen import Part, Printable, invalid

Name = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "overlap"]
Group = Literal["mp", "esp", "ep", "ep_esp"]
Positive = Annotated[float, Field(gt=0, le=1e30)]
Sample = tuple[Positive, Positive]
"""Bytes, and the seconds that they took."""
Ranks = Annotated[int, Field(ge=1, le=4096)]
Count = Annotated[int, Field(ge=1, le=10**12)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
NotNegative = Annotated[float, Field(ge=0, le=1e30)]
Precision = Literal["fp32", "bf16", "fp64"]
Pair = Literal["same_device", "same_node", "across_nodes"]
BlockKind = Literal["layer", "experts", "joining", "embedding", "head"]
"""Of a stage: a dense layer, one with experts, one that a skip connection ends in, and what its ends have besides."""
Phase = Literal["forward", "input_gradient", "weight_gradient", "backward", "recomputed"]
"""*backward* is a whole one, *recomputed* one that first runs the forward again."""
Term = Literal["action", "block", "products", "attention", "bytes"]
"""What seconds are a sum over: once an action, once a block, and FLOPs of matrix products, FLOPs of
attention's own, and bytes moved, as :mod:`meshwave.engine.costs.flops` counts them."""
OpName = Literal["F", "B", "I", "W", "REDUCE_GRAD", "STEP"]

FORMAT: Literal["meshwave-profile/1"] = "meshwave-profile/1"
LARGEST_FILE_BYTES = 16_000_000
USUAL_GROUP: Mapping[str, Group] = {
    "all_gather": "mp",
    "reduce_scatter": "esp",
    "all_reduce": "esp",
    "all_to_all": "ep_esp",
    "overlap": "ep_esp",
}
"""Whose line stands for a collective where a line for all groups is asked for: Parm's use of it."""


SHORTEST_S = 1e-12
"""A line that says less, such as one of no cost at all, is compared with as if it said so much."""


def excess(seconds: float, line: float) -> float:
    """Return how much longer something took than its line says, as a share of what the line says."""
    return seconds / max(line, SHORTEST_S) - 1


class Machine(Part):
    """Where it was measured."""

    ranks: Ranks
    """Processes, numbered node by node."""
    ranks_per_node: Ranks
    backend: Literal["gloo", "nccl"] = "gloo"
    network: Annotated[str, Field(max_length=200), Printable] = ""
    """What the messages went over, in words."""
    cores: Annotated[int, Field(ge=1)] | None = None
    """Of the host, which all processes of an emulated cluster share."""
    processor: Annotated[str, Field(max_length=200), Printable] = ""
    """Whose cores these are."""
    load_before: Annotated[float, Field(ge=0)] | None = None
    """Processes that wanted a core just before: others' work makes messages slower."""
    software: Annotated[str, Field(max_length=200), Printable] = ""
    device: Annotated[str, Field(max_length=200), Printable] = ""
    """What computed."""
    made_s: Annotated[float, Field(ge=0)] | None = None
    """When; Unix seconds."""
    run: Annotated[str, Field(max_length=200), Printable] = ""
    """The run whose actions these are, in words."""


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
        return [excess(seconds, self.seconds(size)) for size, seconds in self.samples]

    def seconds(self, size: float) -> float:
        return self.alpha_s + size * self.beta_s_per_byte


class LinkLine(Part):
    """A message between two processes, and the line through its samples."""

    pair: Pair
    """*same_device*: a tensor that is copied where it is; the others go from process to process."""
    alpha_s: NotNegative
    beta_s_per_byte: NotNegative
    r2: float
    samples: Annotated[tuple[Sample, ...], Field(min_length=1)]

    def seconds(self, size: float) -> float:
        return self.alpha_s + size * self.beta_s_per_byte


class MatrixRate(Part):
    """What large matrix products of a precision reach on one device."""

    precision: Precision
    flops: Annotated[float, Field(ge=1, le=1e24)]
    """FLOP/s."""


class Timed(Part):
    """One phase of a stage: its seconds, and the work of its blocks."""

    seconds: Seconds
    products: NotNegative = 0.0
    attention: NotNegative = 0.0
    bytes: NotNegative = 0.0

    def terms(self, blocks: int) -> dict[Term, float]:
        work: dict[Term, float] = {"products": self.products, "attention": self.attention, "bytes": self.bytes}
        return {"action": 1.0, "block": float(blocks), **work}


class BlockSample(Part):
    """A stage of some blocks of one size, measured."""

    blocks: Count
    batch: Count
    sequence: Count
    hidden: Count
    ffn_hidden: Count
    heads: Count
    vocab: Count
    experts: Count | None = None
    phases: Mapping[Phase, Timed]

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence


class Fit(Part):
    """Seconds of a phase as a sum over terms."""

    per: Mapping[Term, NotNegative]
    """Seconds that a unit of each term takes."""
    r2: float

    def seconds(self, terms: Mapping[Term, float]) -> float:
        return sum(self.per.get(term, 0.0) * amount for term, amount in terms.items())


class Block(Part):
    """A kind of block: a line over its work for each phase, and what the lines go through."""

    kind: BlockKind
    precision: Precision
    fits: Mapping[Phase, Fit]
    samples: Annotated[tuple[BlockSample, ...], Field(min_length=1, max_length=10_000)]

    @model_validator(mode="after")
    def _every_phase_has_a_line(self) -> Self:
        lacking = [phase for phase in get_args(Phase) if phase not in self.fits]
        if lacking:
            raise invalid("fits", "missing_phases", {"kind": self.kind, "missing": lacking})
        return self

    def points(self, phase: Phase) -> list[tuple[BlockSample, float, float]]:
        """Of each sample of a phase: its seconds, and those of the line."""
        fit = self.fits[phase]
        timed = ((sample, sample.phases[phase]) for sample in self.samples if phase in sample.phases)
        return [(sample, each.seconds, fit.seconds(each.terms(sample.blocks))) for sample, each in timed]

    def residuals(self, phase: Phase) -> list[float]:
        """Of each sample of a phase: how much longer it took than the line says, as a share of what the line says."""
        return [excess(seconds, line) for _, seconds, line in self.points(phase)]

    def span(self, size: str) -> tuple[float, float]:
        """The least and the most of a size, such as ``hidden`` or ``tokens``, that was measured."""
        found = [float(getattr(sample, size)) for sample in self.samples]
        return min(found), max(found)


class OptimizerLine(Part):
    """The end of a step: the line through (parameters, seconds)."""

    optimizer: Literal["adamw", "sgd"]
    precision: Precision
    clipped: bool
    """Whether the norm of all gradients is taken first."""
    alpha_s: NotNegative
    s_per_parameter: NotNegative
    r2: float
    samples: Annotated[tuple[Sample, ...], Field(min_length=1)]

    def seconds(self, parameters: float) -> float:
        return self.alpha_s + parameters * self.s_per_parameter


class Kept(Part):
    """What a block keeps between its forward and its backward."""

    kind: BlockKind
    precision: Precision
    samples: Annotated[tuple[Sample, ...], Field(min_length=1)]
    """Bytes that the formulas say, and bytes that were allocated."""

    @property
    def ratio(self) -> float:
        """Allocated bytes for one of the formulas', over all samples."""
        return sum(allocated for _, allocated in self.samples) / sum(said for said, _ in self.samples)


class ActionTime(Part):
    """How long an action of a run took, beside what roofline costs say of it.

    A design is priced from it: its own roofline seconds times measured over roofline of the action nearest to
    its own.
    """

    op: OpName
    layers: Annotated[int, Field(ge=0, le=10**6)]
    """Of the stage; of a STEP of all stages of the rank."""
    experts: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Layers of them with experts."""
    first: bool = False
    """Whether the stage has the embedding."""
    last: bool = False
    """Whether it has head and loss."""
    tp: Ranks = 1
    seconds: Seconds
    """The median over steps, microbatches and processes, warm-up left out."""
    roofline_s: Seconds
    """What :mod:`meshwave.engine.costs.models.roofline` says of it on the ``reference`` device, with the profile's own
    links and, for a pair that these lack, the link that the design which ran has drawn
    (:func:`meshwave.engine.costs.profile_prices.measured`)."""


class Profile(Part):
    """What was measured on a machine; every section can be left out."""

    format: Literal["meshwave-profile/1"] = FORMAT
    machine: Machine
    rates: ShapedRates | None = None
    """Of an emulated cluster; null: the links are as they are."""
    reference: Device | None = None
    """The device that ``roofline_s`` of the actions is of: that of the design that ran."""
    matrix: Annotated[tuple[MatrixRate, ...], Field(max_length=100)] = ()
    collectives: Annotated[tuple[Measured, ...], Field(max_length=10_000)] = ()
    links: Annotated[tuple[LinkLine, ...], Field(max_length=100)] = ()
    contention: Annotated[tuple[Contention, ...], Field(max_length=2)] = ()
    """What simultaneous messages do to each other, one entry per kind of link."""
    blocks: Annotated[tuple[Block, ...], Field(max_length=100)] = ()
    optimizer: Annotated[tuple[OptimizerLine, ...], Field(max_length=100)] = ()
    memory: Annotated[tuple[Kept, ...], Field(max_length=100)] = ()
    actions: Annotated[tuple[ActionTime, ...], Field(max_length=100_000)] = ()

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
        """The document, ending with a newline; everything that was measured is a line."""
        document = self.model_dump(mode="json", exclude_none=True)
        lists = {name: document.pop(name) for name in LISTS}
        parts = [json.dumps(document, indent=2).removesuffix("\n}")]
        for name, found in lists.items():
            rows = ",\n    ".join(map(json.dumps, found))
            parts += [f'  "{name}": [\n    {rows}\n  ]'] if found else []
        return ",\n".join(parts) + "\n}\n"


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


# ---- files ----

LISTS = ("matrix", "collectives", "links", "contention", "blocks", "optimizer", "memory", "actions")


def parse_profile(text: str | bytes) -> Profile:
    """
    Raises:
        DesignError: with every problem of the document.
    """
    return read_part(text, Profile, "profile", "a machine and what was measured of it")


def load_profile(path: Path | str) -> Profile:
    """Read a profile from a file.

    Raises:
        InputError: it cannot be read, or what is in it is no profile.
    """
    return parse_profile(read_whole(path, "profile", LARGEST_FILE_BYTES))
