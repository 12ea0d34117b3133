"""Every schedule for one design, side by side: what each takes, holds and sends, and what is to be learned of it.

A variant is a schedule with values for its options. It is judged as any design is: lowered, priced
and simulated with the design's own meshes, model, links and microbatches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args, get_origin

import numpy as np
from pydantic import ValidationError

from meshwave.engine.document import Design, parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.program.action import Op
from meshwave.engine.program.simulation import simulate
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.schedules import Schedule, schedules

LARGEST_STEP = 400_000
"""Computations of the largest step that is judged: a second or two, and some hundred megabytes for as long."""
CUTS = (1, 2, 4, 8, 16)
"""Waves, chunks and replicas that are tried; of those that cut the model, as far as its layers go."""
SEARCHED_CUTS = (1, 2)
"""The same of a schedule that searches its order, which takes a second or more each time."""
EQUAL_WITHIN = 0.005
"""Times that differ by less are told as equal."""
UNCHANGED_WITHIN = 5e-4
"""A change that would be written as none."""

Pipeline = Mapping[str, Any]


@dataclass(frozen=True)
class Variant:
    """A schedule with its options, as a choice for a design."""

    schedule: str
    options: Mapping[str, Any]
    title: str
    pipeline: Pipeline  # the section of the document that chooses it
    stages: int
    microbatches: int
    refusal: str | None  # why it cannot be chosen here, in a sentence
    present: bool  # what the design has now

    @property
    def key(self) -> str:
        """Tells it from the others of its design."""
        return " ".join([self.schedule, *(f"{name}={value}" for name, value in self.options.items())])

    @property
    def computations(self) -> int:
        """Of a step, with whole backwards."""
        return 2 * self.stages * self.microbatches

    @property
    def too_large(self) -> bool:
        """Whether it is left out of the gallery though it can be chosen."""
        return self.refusal is None and self.computations > LARGEST_STEP


@dataclass(frozen=True, eq=False)
class Entry:
    """What a variant was found to take, hold and send."""

    variant: Variant
    unit: Literal["s", "units"]
    makespan_s: float
    bubble_ratio: float
    span_bubble_ratio: float
    peak_bytes: float  # of the fullest device
    capacity_bytes: float
    fits: bool
    traffic_bytes: float  # that all devices together send from mesh to mesh in a step
    weight_copies: float  # of a device's share of the model, where there are most
    free_s: float  # the step, were transfers free
    forward_s: float  # T_F: one microbatch through a mesh's share of the model
    backward_s: float  # T_B
    transfer_s: float  # T_C: one hop, the mean of all
    uneven: bool  # whether stages take different times
    splits: bool  # whether weight gradients are computed apart
    digest: str
    timeline: Timeline | None  # None once it has been drawn


@dataclass(frozen=True)
class RefusedVariant:
    """A variant that cannot be judged, and why, in a sentence; it may be chosen all the same."""

    variant: Variant
    reason: str


def judge_variants(design: Design) -> Iterator[Entry | RefusedVariant]:
    """Judge every variant, the quickest to judge first; of those that order the same step the first, and what
    a search found even where it is one of the others."""
    seen: set[str] = set()
    for variant in list_variants(design):
        judged = judge_variant(design, variant)
        if isinstance(judged, Entry):
            if judged.digest in seen and not schedules[variant.schedule].weighs:
                continue
            seen.add(judged.digest)
        yield judged


# ---- which variants there are ----


def list_variants(design: Design) -> list[Variant]:
    """Every variant of every schedule: the present one first, then by the size of the step; those that
    search their order last.

    A schedule that has one that can be chosen is not shown with options that it refuses, but for
    the first that cuts more stages than the model has layers.
    """
    found: list[Variant] = []
    for name in schedules:
        if name != "custom":
            found += _without_refused(design, [_variant(design, name, options) for options in _options(design, name)])
    if not any(variant.present for variant in found):
        found.append(_present_variant(design))
    return sorted(found, key=lambda each: (not each.present, schedules[each.schedule].weighs, each.computations))


def _without_refused(design: Design, of_schedule: list[Variant]) -> list[Variant]:
    """Without the refused ones, unless there are no others; but with the first that cuts too many stages."""
    kept = [variant for variant in of_schedule if variant.refusal is None]
    too_many = [variant for variant in of_schedule if variant.refusal and variant.stages > design.model.layers]
    return kept + too_many[:1] if kept else of_schedule[:1]


def _options(design: Design, name: str) -> list[dict[str, Any]]:
    """Values of a schedule's options that are worth a look, the design's own among them where it has it."""
    schedule, now = schedules[name], _pipeline_section(design)
    default = {key: field.get_default() for key, field in schedule.model_fields.items()}
    own = {key: now[key] for key in default} if now["schedule"] == name else None
    values = {key: _values(design, name, key, default) for key in default}
    combined = [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
    if schedule.weighs:  # once on each path
        combined = list({_stage_routes(design, name, options): options for options in reversed(combined)}.values())[
            ::-1
        ]
    return combined if own is None or own in combined else [*combined, own]


def _values(design: Design, name: str, key: str, default: Mapping[str, Any]) -> Sequence[Any]:
    """The values of one option; of a schedule that searches only those that lay its stages elsewhere."""
    schedule = schedules[name]
    annotation, value = schedule.model_fields[key].annotation, default[key]
    words = get_args(annotation) if get_origin(annotation) is Literal else ()
    if words:
        moved = {_stage_routes(design, name, {**default, key: word}) for word in words}
        return words if len(moved) > 1 or not schedule.weighs else [value]
    if isinstance(value, bool) or not isinstance(value, int):
        return [value]
    cuts = [count for count in (SEARCHED_CUTS if schedule.weighs else CUTS) if count >= value]
    stages = [_stage_count(design, name, {**default, key: count}) for count in cuts]
    if len(set(stages)) == 1:
        return [count for count in cuts if count <= design.ranks]
    tried = sum(count is not None and count <= design.model.layers for count in stages)
    return cuts[: tried + 1]


def _variant(design: Design, name: str, options: Mapping[str, Any]) -> Variant:
    now = _pipeline_section(design)
    present = now["schedule"] == name and all(now[key] == value for key, value in options.items())
    if present:
        return _present_variant(design)
    return Variant(
        schedule=name,
        options=options,
        title=_title(name, options),
        pipeline=_pipeline_of_variant(design, name, options),
        stages=_stage_count(design, name, options) or 0,
        microbatches=design.pipe.microbatches,
        refusal=_refusal(design, name, options),
        present=False,
    )


def _present_variant(design: Design) -> Variant:
    """What the design has now, with all that was set by hand."""
    now = _pipeline_section(design)
    name = now["schedule"]
    options = {key: now[key] for key in schedules[name].model_fields}
    try:
        stages = design.stages
    except InputError:  # a draft by hand without actions
        stages = 0
    return Variant(name, options, _title(name, options), now, stages, design.pipe.microbatches, None, True)


def _pipeline_section(design: Design) -> dict[str, Any]:
    section: Any = design.pipeline
    dumped: dict[str, Any] = section.model_dump(mode="json")
    return dumped


def _make_schedule(name: str, options: Mapping[str, Any]) -> Schedule | None:
    try:
        return schedules[name](**options)
    except ValidationError:
        return None


def _stage_count(design: Design, name: str, options: Mapping[str, Any]) -> int | None:
    made = _make_schedule(name, options)
    return made.stage_count(design.ranks) if made else None


def _stage_routes(design: Design, name: str, options: Mapping[str, Any]) -> tuple[tuple[int, ...], ...] | None:
    """The mesh of each stage, for every replica; None where it cannot be said."""
    made = _make_schedule(name, options)
    if made is None or made.stage_count(design.ranks) > design.model.layers or made.refuses(design.pipe):
        return None
    return tuple(tuple(route) for route in made.routes(design.pipe))


def _pipeline_of_variant(design: Design, name: str, options: Mapping[str, Any]) -> Pipeline:
    """The pipeline under another variant: what was set stage by stage stays where the stages lie as before."""
    now = _pipeline_section(design)
    of_schedule = schedules[now["schedule"]].model_fields
    kept = {key: value for key, value in now.items() if key not in of_schedule}
    chosen = {**kept, **options, "schedule": name, "actions": None}
    before = {key: now[key] for key in of_schedule}
    if _stage_routes(design, name, options) != _stage_routes(design, now["schedule"], before):
        chosen |= {"stages": None, "placement": None}
        if isinstance(chosen.get("recompute"), list):
            chosen["recompute"] = "none"
    return chosen


def _refusal(design: Design, name: str, options: Mapping[str, Any]) -> str | None:
    made = _make_schedule(name, options)
    if made is None:
        return f"{schedules[name].title} has no such options"
    if refused := made.refuses(design.pipe):
        return refused
    stages, layers = made.stage_count(design.ranks), design.model.layers
    return f"{stages} stages need {stages} layers; the model has {layers}" if stages > layers else None


def _title(name: str, options: Mapping[str, Any]) -> str:
    """``Hanayo, 2 waves, ungrouped``: options at their defaults are left out, but for what cuts the model."""
    words = []
    for key, field in schedules[name].model_fields.items():
        value, default = options[key], field.get_default()
        if isinstance(value, int) and not isinstance(value, bool) and isinstance(default, int):
            words.append(f"{value} {key.removesuffix('s') if value == 1 else key}")
        elif value != default:
            words.append(
                _OPTION_TITLES.get((key, str(value)), f"{key} {value}" if key not in _SELF_EXPLANATORY else str(value))
            )
    return ", ".join([schedules[name].title, *words])


_SELF_EXPLANATORY = {"grouping", "concatenation", "path"}  # options whose value says it all
_OPTION_TITLES = {("backward", "split"): "split backward", ("backward", "whole"): "whole backward"}


def searched_pipeline(design: Design) -> Pipeline | None:
    """The pipeline with its order searched for, on the very stages and meshes that it has; None where that is no
    question: it is searched already, or of replicas, or on one mesh."""
    now = _pipeline_section(design)
    made = schedules[now["schedule"]]
    routes = [list(route) for route in design.pipeline.routes(design.pipe)]
    if made.weighs or len(routes) > 1 or design.ranks == 1:
        return None
    route = list(now["placement"] or routes[0])
    ways = [{"path": path, "chunks": len(route) // design.ranks} for path in ("loop", "wave")]
    same = (way for way in ways if _stage_routes(design, "auto", way) == (tuple(route),))
    kept = {key: now[key] for key in ("microbatches", "stages", "recompute")}
    return {"schedule": "auto", **kept, **next(same, {"placement": route})}


# ---- what a variant takes ----


def judge_variant(design: Design, variant: Variant) -> Entry | RefusedVariant:
    """Lower, price and simulate the design with the variant in place of its own schedule."""
    if variant.refusal:
        return RefusedVariant(variant, variant.refusal)
    if variant.too_large:
        words = f"{variant.computations:,} computations are more than the gallery simulates ({LARGEST_STEP:,})"
        return RefusedVariant(variant, f"{words}; choose it to see it")
    try:
        return _entry(variant, predict(apply_variant(design, variant)))
    except DesignError as error:
        return RefusedVariant(variant, error.problems[0].message if error.problems else str(error))
    except InputError as error:
        return RefusedVariant(variant, str(error))


def apply_variant(design: Design, variant: Variant) -> Design:
    """The design with another pipeline.

    Raises:
        DesignError: the two do not fit each other.
    """
    return parse_design({**design.model_dump(mode="json"), "pipeline": dict(variant.pipeline)})


def _entry(variant: Variant, prediction: Prediction) -> Entry:
    program, costs, timeline = prediction.program, prediction.costs, prediction.timeline
    sends = program.is_send
    devices = np.array([len(mesh.devices) for mesh in prediction.design.meshes])
    free = np.where(sends, 0.0, costs.seconds)
    share = program.ranks * max(prediction.design.pipe.microbatches, 1)

    def of(*ops: Op) -> float:
        return float(costs.seconds[np.isin(program.op, ops)].sum()) / share

    return Entry(
        variant=variant,
        unit=costs.unit,
        makespan_s=timeline.makespan,
        bubble_ratio=timeline.bubble_ratio,
        span_bubble_ratio=timeline.span_bubble_ratio,
        peak_bytes=float(prediction.memory.total_bytes.max()),
        capacity_bytes=costs.capacity_bytes,
        fits=bool(prediction.memory.fits.all()),
        traffic_bytes=float((costs.bytes * devices[program.rank])[sends].sum()),
        weight_copies=float(prediction.weight_copies.max()),
        free_s=simulate(program, free).makespan,
        forward_s=of(Op.F),
        backward_s=of(Op.B, Op.I, Op.W),
        transfer_s=float(costs.seconds[sends].mean()) if sends.any() else 0.0,
        uneven=_has_uneven_stages(prediction),
        splits=bool((program.op == Op.W).any()),
        digest=program.digest,
        timeline=timeline,
    )


def _has_uneven_stages(prediction: Prediction) -> bool:
    program = prediction.program
    computed = program.is_compute
    seconds = np.bincount(program.stage[computed], prediction.costs.seconds[computed])
    return bool(seconds.max(initial=0.0) > 1.01 * seconds.min(initial=np.inf))
