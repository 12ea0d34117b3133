"""Calibration profile: measured costs of blocks, optimizer, links, collectives and memory of a machine.

``meshwave calibrate`` measures and writes a profile (:mod:`meshwave.engine.runtime.calibration`); a profile can also be
made from a run, with ``actions``. A design refers to a profile by file name (``cost.profile``). Bytes are those of one
rank: for an all-to-all the whole buffer that it sends, for an all-gather its contribution, for a reduce-scatter or an
all-reduce the whole input.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from meshwave.engine.costs.contention import Contention
from meshwave.engine.document.cluster import Device
from meshwave.engine.document.reading import read_part
from meshwave.engine.files import read_whole
from meshwave.engine.findings import Refusal
from meshwave.engine.frozen import Part, Printable, validation_error

Name = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "overlap"]
Group = Literal["mp", "esp", "ep", "ep_esp"]
Positive = Annotated[float, Field(gt=0, le=1e30)]
Sample = tuple[Positive, Positive]
"""Size in bytes, and measured seconds."""
Ranks = Annotated[int, Field(ge=1, le=4096)]
Count = Annotated[int, Field(ge=1, le=10**12)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
NotNegative = Annotated[float, Field(ge=0, le=1e30)]
Precision = Literal["fp32", "bf16", "fp64"]
Pair = Literal["same_device", "same_node", "across_nodes"]
BlockKind = Literal["layer", "experts", "joining", "embedding", "head"]
"""Parts of a stage: a dense layer, a layer with experts, a layer in which a skip connection ends, embedding, head."""
Phase = Literal["forward", "input_gradient", "weight_gradient", "backward", "recomputed"]
"""Phase of a block. *backward* is a full backward; *recomputed* is a backward that first runs the forward again."""
Term = Literal["action", "block", "products", "attention", "bytes"]
"""Terms of a fit: 1 per action, 1 per block, FLOPs of matrix products, FLOPs of attention, and bytes moved.

FLOPs and bytes are counted as in :mod:`meshwave.engine.costs.flops`.
"""
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
"""Group whose line represents a collective if a single line is needed: the group in which Parm uses it."""


MIN_LINE_S = 1e-12
"""Lower bound on the seconds of a line when residuals are computed; it prevents a division by zero."""


def relative_excess(seconds: float, line: float) -> float:
    """Return the deviation of measured seconds from those of a line, relative to the line."""
    return seconds / max(line, MIN_LINE_S) - 1


class Machine(Part):
    """Machine and software of a measurement."""

    ranks: Ranks
    """Number of processes, numbered node by node."""
    ranks_per_node: Ranks
    backend: Literal["gloo", "nccl"] = "gloo"
    network: Annotated[str, Field(max_length=200), Printable] = ""
    """Description of the network."""
    cores: Annotated[int, Field(ge=1)] | None = None
    """Number of cores of the host, which all processes of an emulated cluster share."""
    processor: Annotated[str, Field(max_length=200), Printable] = ""
    """Model of the processor."""
    load_before: Annotated[float, Field(ge=0)] | None = None
    """Number of runnable processes just before the measurement; other load slows messages down."""
    software: Annotated[str, Field(max_length=200), Printable] = ""
    device: Annotated[str, Field(max_length=200), Printable] = ""
    """Name of the measured device."""
    made_s: Annotated[float, Field(ge=0)] | None = None
    """Time of the measurement in Unix seconds."""
    run: Annotated[str, Field(max_length=200), Printable] = ""
    """Description of the run in which the actions were measured."""


class ShapedRates(Part):
    """Rates in bytes/s, in each direction, to which an emulated cluster limited its links."""

    intra: Annotated[float, Field(gt=0)]
    """Rate of the link of each process."""
    inter: Annotated[float, Field(gt=0)]
    """Rate of a node's uplink, which its processes share."""


class MeasuredCollective(Part):
    """Measurement of one collective on all groups of a kind at once, and the line fitted to its samples."""

    collective: Name
    """Name of the collective; *overlap* is an all-to-all of ``ep_esp`` that overlaps with the all-gather of ``mp``."""
    group: Group
    size: Ranks
    """Number of ranks of a group."""
    alpha_s: Annotated[float, Field(ge=0)]
    beta_s_per_byte: Annotated[float, Field(ge=0)]
    r2: float
    """Share of the variance of the samples that the line explains."""
    samples: Annotated[tuple[Sample, ...], Field(min_length=1)]
    mp: Ranks | None = None
    """Layout for which an overlap was measured."""
    esp: Ranks | None = None

    @property
    def residuals(self) -> list[float]:
        """Deviation of each sample from the line, relative to the line."""
        return [relative_excess(seconds, self.seconds(size)) for size, seconds in self.samples]

    def seconds(self, size: float) -> float:
        """Return the duration of the collective for ``size`` bytes in seconds."""
        return self.alpha_s + size * self.beta_s_per_byte


class LinkLine(Part):
    """Measurement of messages between two processes, and the line fitted to its samples."""

    pair: Pair
    """Pair of processes; *same_device* is a copy of a tensor on one device."""
    alpha_s: NotNegative
    beta_s_per_byte: NotNegative
    r2: float
    samples: Annotated[tuple[Sample, ...], Field(min_length=1)]

    def seconds(self, size: float) -> float:
        """Return the duration of a message of ``size`` bytes in seconds."""
        return self.alpha_s + size * self.beta_s_per_byte


class MatrixRate(Part):
    """Rate of large matrix products in a precision on one device."""

    precision: Precision
    flops: Annotated[float, Field(ge=1, le=1e24)]
    """Rate in FLOP/s."""


class TimedPhase(Part):
    """Measured seconds of one phase of a stage, and the work of its blocks."""

    seconds: Seconds
    products: NotNegative = 0.0
    attention: NotNegative = 0.0
    bytes: NotNegative = 0.0

    def terms(self, blocks: int) -> dict[Term, float]:
        """Return the amount of each term for a stage of ``blocks`` blocks."""
        work: dict[Term, float] = {"products": self.products, "attention": self.attention, "bytes": self.bytes}
        return {"action": 1.0, "block": float(blocks), **work}


class BlockSample(Part):
    """Measurement of a stage of equal blocks."""

    blocks: Count
    batch: Count
    sequence: Count
    hidden: Count
    ffn_hidden: Count
    heads: Count
    vocab: Count
    experts: Count | None = None
    phases: Mapping[Phase, TimedPhase]

    @property
    def tokens(self) -> int:
        """Number of tokens of one microbatch."""
        return self.batch * self.sequence


class Fit(Part):
    """Fitted seconds of a phase, as a sum over terms."""

    per: Mapping[Term, NotNegative]
    """Seconds per unit of each term."""
    r2: float

    def seconds(self, terms: Mapping[Term, float]) -> float:
        """Return the seconds for the given amounts of the terms."""
        return sum(self.per.get(term, 0.0) * amount for term, amount in terms.items())


def is_exact(sizes: Collection[object], coefficients: Iterable[float]) -> bool:
    """Return True if a fit to samples of these sizes is exact by construction, which makes its r2 meaningless."""
    return len(sizes) <= sum(each > 0 for each in coefficients)


class Block(Part):
    """Fits of one kind of block: for each phase the seconds, with the samples to which they were fitted."""

    kind: BlockKind
    precision: Precision
    fits: Mapping[Phase, Fit]
    samples: Annotated[tuple[BlockSample, ...], Field(min_length=1, max_length=10_000)]

    @model_validator(mode="after")
    def _check_phases(self) -> Self:
        lacking = [phase for phase in get_args(Phase) if phase not in self.fits]
        if lacking:
            raise validation_error("fits", "missing_phases", {"kind": self.kind, "missing": lacking})
        return self

    def points(self, phase: Phase) -> list[tuple[BlockSample, float, float]]:
        """Return each sample of a phase with its measured and fitted seconds."""
        fit = self.fits[phase]
        timed = ((sample, sample.phases[phase]) for sample in self.samples if phase in sample.phases)
        return [(sample, each.seconds, fit.seconds(each.terms(sample.blocks))) for sample, each in timed]

    def residuals(self, phase: Phase) -> list[float]:
        """Return the deviation of each sample of a phase from the fit, relative to the fit."""
        return [relative_excess(seconds, line) for _, seconds, line in self.points(phase)]

    def value_range(self, size: str) -> tuple[float, float]:
        """Return the smallest and the largest measured value of a size such as ``hidden`` or ``tokens``."""
        found = [float(getattr(sample, size)) for sample in self.samples]
        return min(found), max(found)


class OptimizerLine(Part):
    """Duration of an optimizer step: a line fitted to (parameters, seconds)."""

    optimizer: Literal["adamw", "sgd"]
    precision: Precision | Literal["pure_bf16"]
    clipped: bool
    """True if the norm of all gradients is computed first, for clipping."""
    alpha_s: NotNegative
    s_per_parameter: NotNegative
    r2: float
    samples: Annotated[tuple[Sample, ...], Field(min_length=1)]

    def seconds(self, parameters: float) -> float:
        """Return the seconds to update this number of parameters."""
        return self.alpha_s + parameters * self.s_per_parameter


class KeptActivations(Part):
    """Activation memory that a block keeps between its forward and its backward."""

    kind: BlockKind
    precision: Precision
    samples: Annotated[tuple[Sample, ...], Field(min_length=1)]
    """Computed bytes and allocated bytes of each sample."""

    @property
    def ratio(self) -> float:
        """Ratio of allocated to computed bytes of activations, over all samples."""
        return sum(allocated for _, allocated in self.samples) / sum(said for said, _ in self.samples)


class ActionTime(Part):
    """Measured time and roofline time of an action in a run.

    A design is priced by its own roofline seconds times the ratio of measured to roofline seconds of the most similar
    action.
    """

    op: OpName
    layers: Annotated[int, Field(ge=0, le=10**6)]
    """Number of layers of the stage; for a STEP, of all stages of the rank."""
    experts: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Number of these layers that have experts."""
    first: bool = False
    """True if the stage has the embedding."""
    last: bool = False
    """True if the stage has head and loss."""
    recomputed: bool = False
    """True if the action includes a second forward of its stage."""
    tp: Ranks = 1
    seconds: Seconds
    """Median over steps, microbatches and processes in seconds, excluding warm-up steps."""
    roofline_s: Seconds
    """Roofline seconds (:mod:`meshwave.engine.costs.models.roofline`) on the ``reference`` device.

    Links are those of the profile or, if it has none, of the executed design
    (:func:`meshwave.engine.costs.profile_prices.measured_design`).
    """


class Profile(Part):
    """Measurements of a machine; every section may be omitted."""

    format: Literal["meshwave-profile/1"] = FORMAT
    machine: Machine
    rates: ShapedRates | None = None
    """Rates of an emulated cluster; null if its links were not limited."""
    reference: Device | None = None
    """Device for which ``roofline_s`` of the actions was computed: that of the executed design."""
    matrix: Annotated[tuple[MatrixRate, ...], Field(max_length=100)] = ()
    collectives: Annotated[tuple[MeasuredCollective, ...], Field(max_length=10_000)] = ()
    links: Annotated[tuple[LinkLine, ...], Field(max_length=100)] = ()
    contention: Annotated[tuple[Contention, ...], Field(max_length=2)] = ()
    """Slowdown of simultaneous messages, one entry per kind of link."""
    blocks: Annotated[tuple[Block, ...], Field(max_length=100)] = ()
    optimizer: Annotated[tuple[OptimizerLine, ...], Field(max_length=100)] = ()
    memory: Annotated[tuple[KeptActivations, ...], Field(max_length=100)] = ()
    actions: Annotated[tuple[ActionTime, ...], Field(max_length=100_000)] = ()

    @property
    def worst_residual(self) -> float | None:
        """Largest deviation of a measured block time from its fit, relative to the fit; None if all fits are exact."""
        found = [
            abs(each)
            for block in self.blocks
            for phase, fit in block.fits.items()
            if not is_exact(block.points(phase), fit.per.values())
            for each in block.residuals(phase)
        ]
        return max(found, default=None)

    def fit(self, mp: int, esp: int) -> dict[str, dict[str, float]]:
        """Return the ``fit`` section of an expert-layer document for a layout: alpha and beta by collective.

        A collective is listed for the group that usually runs it and, as ``all_to_all@ep``, for each measured kind of
        group. The document counts all gathered bytes of an all-gather, so its beta is divided by the number of ranks.

        Raises:
            InputError: the profile has no measurement for this layout.
        """
        found: dict[str, dict[str, float]] = {}
        for measured in self._layout_measurements(mp, esp):
            line = _fit_parameters(measured)
            if USUAL_GROUP[measured.collective] == measured.group or measured.collective not in found:
                found[measured.collective] = line
            if measured.collective != "overlap":
                found[f"{measured.collective}@{measured.group}"] = line
        if not found:
            have = sorted({(each.group, each.size) for each in self.collectives})
            listed = ", ".join(f"{group} of {size}" for group, size in have)
            raise Refusal("unmeasured_layout", {"mp": mp, "esp": esp, "measured": listed or "no collectives"})
        return found

    def _layout_measurements(self, mp: int, esp: int) -> list[MeasuredCollective]:
        """Return the measurements for the groups of a layout, except groups of one rank."""
        sizes = collective_group_sizes(self.machine.ranks, mp, esp)
        return [
            each
            for each in self.collectives
            if each.size == sizes[each.group] > 1 and (each.collective != "overlap" or (each.mp, each.esp) == (mp, esp))
        ]

    def to_json(self) -> str:
        """Return the profile as JSON with one line per measurement and a final newline."""
        document = self.model_dump(mode="json", exclude_none=True)
        lists = {name: document.pop(name) for name in LISTS}
        parts = [json.dumps(document, indent=2).removesuffix("\n}")]
        for name, found in lists.items():
            rows = ",\n    ".join(map(json.dumps, found))
            parts += [f'  "{name}": [\n    {rows}\n  ]'] if found else []
        return ",\n".join(parts) + "\n}\n"


def _fit_parameters(measured: MeasuredCollective) -> dict[str, float]:
    parts = measured.size if measured.collective == "all_gather" else 1
    return {"alpha_s": measured.alpha_s, "beta_s_per_byte": measured.beta_s_per_byte / parts}


def collective_group_sizes(ranks: int, mp: int, esp: int) -> dict[str, int]:
    """Return the number of ranks of each kind of group.

    Raises:
        InputError: the groups do not divide the ranks.
    """
    for name, size in (("mp", mp), ("esp", esp)):
        if size < 1 or ranks % size:
            raise Refusal("indivisible_groups", {"name": name, "size": size, "ranks": ranks})
    return {"mp": mp, "esp": esp, "ep": ranks // esp, "ep_esp": ranks}


def collective_group_members(group: str, ranks: int, mp: int, esp: int) -> list[list[int]]:
    """Return the ranks of each group of a kind.

    ``mp`` and ``esp`` groups have adjacent ranks; an ``ep`` group has every ``esp``-th rank.
    """
    size = collective_group_sizes(ranks, mp, esp)[group]
    if group == "ep":
        return [list(range(first, ranks, esp)) for first in range(esp)]
    return [list(range(first, first + size)) for first in range(0, ranks, size)]


# ---- files ----

LISTS = ("matrix", "collectives", "links", "contention", "blocks", "optimizer", "memory", "actions")


def parse_profile(text: str | bytes) -> Profile:
    """Parse a profile from JSON.

    Raises:
        DesignError: with every problem of the document.
    """
    return read_part(text, Profile, "profile", "a machine and its measurements")


def load_profile(path: Path | str) -> Profile:
    """Read a profile from a file.

    Raises:
        InputError: the file cannot be read or is not a profile.
    """
    return parse_profile(read_whole(path, "profile", LARGEST_FILE_BYTES))
