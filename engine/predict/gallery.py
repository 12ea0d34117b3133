"""Gallery of schedules: every schedule variant for one design, simulated and evaluated in the same way.

A variant is a schedule with values for its options. It is lowered, priced and simulated like any design, with the
design's own meshes, model, links and microbatches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args, get_origin

import numpy as np
from pydantic import ValidationError

from meshwave.engine import messages
from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.pipeline_problems import schedule_refusal
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.program.action import Op
from meshwave.engine.program.simulation import simulate
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.schedules import Schedule, schedules

LARGEST_STEP = 400_000
"""Maximum number of computations per step that the gallery simulates, which takes 1 to 2 s and some hundred MB."""
CUTS = (1, 2, 4, 8, 16)
"""Numbers of waves, chunks and replicas to try if the model has enough layers for their stages."""
SEARCHED_CUTS = (1, 2)
"""Numbers to try for schedules that search their order, which takes a second or more each."""
EQUAL_WITHIN = 0.005
"""Relative difference up to which times are reported as equal."""
UNCHANGED_WITHIN = 5e-4
"""Largest relative change that is printed as 0.0 %."""

Pipeline = Mapping[str, Any]


@dataclass(frozen=True)
class Variant:
    """Schedule with its options, as an alternative for a design."""

    schedule: str
    options: Mapping[str, Any]
    title: str
    pipeline: Pipeline  # section of the document that selects the variant
    stages: int
    microbatches: int
    refusal: Problem | None  # reason why the variant cannot be selected
    is_present: bool  # True for the design's own variant

    @property
    def key(self) -> str:
        """Identifier of the variant within its design."""
        return " ".join([self.schedule, *(f"{name}={value}" for name, value in self.options.items())])

    @property
    def computations(self) -> int:
        """Number of computations of a step; each backward counts as one."""
        return 2 * self.stages * self.microbatches

    @property
    def is_too_large(self) -> bool:
        """True if the variant can be selected, but is too large for the gallery to simulate."""
        return self.refusal is None and self.computations > LARGEST_STEP


@dataclass(frozen=True, eq=False)
class Entry:
    """Simulated time, memory and traffic of a variant."""

    variant: Variant
    unit: Literal["s", "units"]
    makespan_s: float
    bubble_ratio: float
    span_bubble_ratio: float
    peak_bytes: float  # bytes of the device with the highest peak
    capacity_bytes: float
    fits: bool
    traffic_bytes: float  # bytes that all devices send between meshes in a step
    weight_copies: float  # largest number of copies of a device's share of the model
    free_s: float  # makespan with free transfers
    forward_s: float  # T_F: one microbatch through a mesh's share of the model
    backward_s: float  # T_B
    transfer_s: float  # T_C: mean of all transfers
    has_uneven_stages: bool
    splits_backward: bool
    digest: str
    timeline: Timeline | None  # None after it has been drawn


@dataclass(frozen=True)
class RefusedVariant:
    """Variant that is not simulated, with the reason as a sentence."""

    variant: Variant
    reason: str


def simulate_variants(design: Design) -> Iterator[Entry | RefusedVariant]:
    """Simulate every variant, smallest step first.

    If several variants have equal programs, only the first is kept; every search result is kept.
    """
    seen: set[str] = set()
    for variant in list_variants(design):
        judged = simulate_variant(design, variant)
        if isinstance(judged, Entry):
            if judged.digest in seen and not schedules[variant.schedule].depends_on_costs:
                continue
            seen.add(judged.digest)
        yield judged


# ---- list the variants ----


def list_variants(design: Design) -> list[Variant]:
    """Return the variants of every schedule: the design's own, others by computations, then searched ones.

    Refused variants are omitted if the schedule has other variants, except the first that needs more stages than the
    model has layers.
    """
    found: list[Variant] = []
    for name in schedules:
        if name != "custom":
            found += _drop_refused(
                design, [_make_variant(design, name, options) for options in _option_combinations(design, name)]
            )
    if not any(variant.is_present for variant in found):
        found.append(_current_variant(design))
    return sorted(
        found, key=lambda each: (not each.is_present, schedules[each.schedule].depends_on_costs, each.computations)
    )


def _drop_refused(design: Design, of_schedule: list[Variant]) -> list[Variant]:
    """Return the variants of a schedule without refused ones, except those that :func:`list_variants` keeps."""
    kept = [variant for variant in of_schedule if variant.refusal is None]
    too_many = [variant for variant in of_schedule if variant.refusal and variant.stages > design.model.layers]
    return kept + too_many[:1] if kept else of_schedule[:1]


def _option_combinations(design: Design, name: str) -> list[dict[str, Any]]:
    """Return the combinations of a schedule's options to try, including the design's own."""
    schedule, now = schedules[name], _pipeline_section(design)
    default = {key: field.get_default() for key, field in schedule.model_fields.items()}
    own = {key: now[key] for key in default} if now["schedule"] == name else None
    values = {key: _option_values(design, name, key, default) for key in default}
    combined = [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
    if schedule.depends_on_costs:  # one combination for each route of the stages
        combined = list({_stage_routes(design, name, options): options for options in reversed(combined)}.values())[
            ::-1
        ]
    return combined if own is None or own in combined else [*combined, own]


def _option_values(design: Design, name: str, key: str, default: Mapping[str, Any]) -> Sequence[Any]:
    """Return the values of one option to try.

    For a schedule that searches its order, these are only the values that change the path of the stages.
    """
    schedule = schedules[name]
    annotation, value = schedule.model_fields[key].annotation, default[key]
    words = get_args(annotation) if get_origin(annotation) is Literal else ()
    if words:
        moved = {_stage_routes(design, name, {**default, key: word}) for word in words}
        return words if len(moved) > 1 or not schedule.depends_on_costs else [value]
    if isinstance(value, bool) or not isinstance(value, int):
        return [value]
    cuts = [count for count in (SEARCHED_CUTS if schedule.depends_on_costs else CUTS) if count >= value]
    stages = [_stage_count(design, name, {**default, key: count}) for count in cuts]
    if len(set(stages)) == 1:
        return [count for count in cuts if count <= design.ranks]
    tried = sum(count is not None and count <= design.model.layers for count in stages)
    return cuts[: tried + 1]


def _make_variant(design: Design, name: str, options: Mapping[str, Any]) -> Variant:
    now = _pipeline_section(design)
    present = now["schedule"] == name and all(now[key] == value for key, value in options.items())
    if present:
        return _current_variant(design)
    return Variant(
        schedule=name,
        options=options,
        title=_variant_title(name, options),
        pipeline=_pipeline_of_variant(design, name, options),
        stages=_stage_count(design, name, options) or 0,
        microbatches=design.pipe.microbatches,
        refusal=_variant_refusal(design, name, options),
        is_present=False,
    )


def _current_variant(design: Design) -> Variant:
    """Return the design's own variant, with all its settings."""
    now = _pipeline_section(design)
    name = now["schedule"]
    options = {key: now[key] for key in schedules[name].model_fields}
    try:
        stages = design.stages
    except InputError:  # a custom schedule without actions yet
        stages = 0
    return Variant(name, options, _variant_title(name, options), now, stages, design.pipe.microbatches, None, True)


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
    """Return the rank of each stage for every replica; None if the schedule cannot run."""
    made = _make_schedule(name, options)
    if made is None or made.stage_count(design.ranks) > design.model.layers or made.refusal(design.pipe):
        return None
    return tuple(tuple(route) for route in made.routes(design.pipe))


def _pipeline_of_variant(design: Design, name: str, options: Mapping[str, Any]) -> Pipeline:
    """Return the pipeline section of another variant; settings per stage are kept if the routes stay the same."""
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


def _variant_refusal(design: Design, name: str, options: Mapping[str, Any]) -> Problem | None:
    made = _make_schedule(name, options)
    if made is None:
        return Problem("pipeline", "unknown_schedule_options", {"title": schedules[name].title})
    return schedule_refusal(design, made)


messages.add_messages(
    unknown_schedule_options="{title} does not support these options; choose other options",
    large_variant=(
        "{computations:,} computations exceed the limit of the gallery ({maximum:,}); select the variant to see its timeline"
    ),
)


def _variant_title(name: str, options: Mapping[str, Any]) -> str:
    """Return a title such as ``Hanayo, 2 waves, ungrouped``; default values are named only if they are counts."""
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


_SELF_EXPLANATORY = {"grouping", "concatenation", "path"}  # options whose value alone identifies them in a title
_OPTION_TITLES = {
    ("concatenation", "forward-doubling"): "forward doubling",
    ("concatenation", "backward-halving"): "backward halving",
    ("grouping", "ungrouped"): "ungrouped",
    ("path", "loop"): "loop",
    ("slots", "fused"): "fused slots",
    ("backward", "split"): "split backward",
    ("backward", "whole"): "full backward",
}


def searched_pipeline(design: Design) -> Pipeline | None:
    """Return the pipeline section that searches the order for the design's own stages and meshes.

    Return None if a search does not apply: the order is already searched, the schedule has replicas, or there is one
    mesh.
    """
    now = _pipeline_section(design)
    made = schedules[now["schedule"]]
    routes = [list(route) for route in design.pipeline.routes(design.pipe)]
    if made.depends_on_costs or len(routes) > 1 or design.ranks == 1:
        return None
    route = list(now["placement"] or routes[0])
    ways = [{"path": path, "chunks": len(route) // design.ranks} for path in ("loop", "wave")]
    same = (way for way in ways if _stage_routes(design, "auto", way) == (tuple(route),))
    kept = {key: now[key] for key in ("microbatches", "stages", "recompute")}
    return {"schedule": "auto", **kept, **next(same, {"placement": route})}


# ---- simulate a variant ----


def simulate_variant(design: Design, variant: Variant) -> Entry | RefusedVariant:
    """Lower, price and simulate the design with the variant in place of its own schedule."""
    if variant.refusal:
        return RefusedVariant(variant, variant.refusal.message)
    if variant.is_too_large:
        params = {"computations": variant.computations, "maximum": LARGEST_STEP}
        return RefusedVariant(variant, messages.render("large_variant", params))
    try:
        return _make_entry(variant, predict(apply_variant(design, variant)))
    except DesignError as error:
        return RefusedVariant(variant, error.problems[0].message if error.problems else str(error))
    except InputError as error:
        return RefusedVariant(variant, str(error))


def apply_variant(design: Design, variant: Variant) -> Design:
    """Return the design with the variant's pipeline; costs per stage are spread over its stages.

    Raises:
        DesignError: the pipeline does not fit the design.
    """
    cost = design.cost.redistribute_costs(variant.stages).model_dump(mode="json")
    return parse_design({**design.model_dump(mode="json"), "pipeline": dict(variant.pipeline), "cost": cost})


def _make_entry(variant: Variant, prediction: Prediction) -> Entry:
    program, costs, timeline = prediction.program, prediction.costs, prediction.timeline
    sends = program.is_send
    devices = np.array([len(mesh.devices) for mesh in prediction.design.meshes])
    free = np.where(sends, 0.0, costs.seconds)
    share = program.ranks * max(prediction.design.pipe.microbatches, 1)

    def mean_seconds(*ops: Op) -> float:
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
        forward_s=mean_seconds(Op.F),
        backward_s=mean_seconds(Op.B, Op.I, Op.W),
        transfer_s=float(costs.seconds[sends].mean()) if sends.any() else 0.0,
        has_uneven_stages=_has_uneven_stages(prediction),
        splits_backward=bool((program.op == Op.W).any()),
        digest=program.digest,
        timeline=timeline,
    )


def _has_uneven_stages(prediction: Prediction) -> bool:
    program = prediction.program
    computed = program.is_compute
    seconds = np.bincount(program.stage[computed], prediction.costs.seconds[computed])
    return bool(seconds.max(initial=0.0) > 1.01 * seconds.min(initial=np.inf))
