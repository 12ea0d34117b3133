"""The wave of stages over the meshes: the Python face of ``static/wave/wave.js``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Literal, get_args, get_origin

import numpy as np
import param
from pydantic import ValidationError

from meshwave.designer.canvases.wave_skips import skips
from meshwave.designer.kit.assets import module, read_static
from meshwave.designer.kit.canvas import Canvas, Edit, PlainData, plain_text, value_of
from meshwave.designer.state import design_edits as edits
from meshwave.designer.state.field_limits import field_limit
from meshwave.engine.costs import Costs
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.exports.pictures.palette import OPS, shades
from meshwave.engine.lowering.transfers import add_transfers
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.simulation import simulate
from meshwave.engine.schedules import Pipe, schedule_names, schedules

THUMBNAIL = Pipe(ranks=4, microbatches=8)


def _op_colours() -> str:
    """The palette's colours of computations as --op-f, --op-b, ... for the small pictures."""
    computations = [op.name for op in Op if op.is_compute]
    colours = [f"--op-{op.lower()}: light-dark({OPS['light'][op]}, {OPS['dark'][op]});" for op in computations]
    return f".mw-wave {{ {' '.join(colours)} }}"


class WaveCanvas(Canvas):
    """The path of stages over the meshes; layers are moved from stage to stage by hand, and the
    schedule is chosen by its picture.

    Give it a design and what was made of it by :meth:`show`; it calls ``on_edit`` with the path
    ``pipeline``, or with one key of it where nothing else has to change.
    """

    picture: Any = param.String(
        default=PlainData({}), doc="The path and what can be changed; see stages() and controls()."
    )
    choices = param.String(default=PlainData([]), doc="Schedules to choose from; see choices().")
    pictures = param.String(default=PlainData({}), doc="The small picture of each schedule by its name; set once.")

    progress = param.Dict(default={}, doc="How far a computation is, and the words for it; empty for none.")

    _esm = module("wave/wave.js")
    _stylesheets: ClassVar = [read_static("kit/canvas.css"), read_static("wave/wave.css"), _op_colours()]
    _gestures = (
        "move_layers", "try_layers", "move_stage", "try_stage", "balance", "dial", "option", "microbatches", "schedule", "compute",
    )  # fmt: skip

    def __init__(
        self,
        on_edit: Edit | None = None,
        on_move_stage: Callable[[int, int, int], None] | None = None,
        on_try_layers: Callable[[Sequence[int] | None], Prediction | None] | None = None,
        on_try_stage: Callable[[tuple[int, int, int] | None], str] | None = None,
        on_compute: Mapping[str, Callable[[], None]] | None = None,
        **params: Any,
    ) -> None:
        """``on_move_stage`` is given a stage, its new mesh and which replica of the model it is of.

        ``on_try_layers`` is given the layers of every stage while they are dragged, to show and to
        return what they would make of the step, and None when they are let go of. ``on_try_stage`` is
        given the same of a stage as ``on_move_stage``, while it is carried, and says it in a few words.
        ``on_compute`` has what to do to ``stop`` a computation, and to compute ``again``.
        """
        super().__init__(on_edit, **{"pictures": PlainData({name: thumbnail(name) for name in schedules}), **params})
        self._on_stage_moved, self._on_layers_tried, self._on_stage_tried = on_move_stage, on_try_layers, on_try_stage
        self._does_to_computation = on_compute or {}
        self._drawn_design: Design | None = None
        self._layers: tuple[int, ...] = ()

    def show(  # type: ignore[override]  # Panel's own serves a page; a canvas shows a design
        self, design: Design, program: Program | None = None, costs: Costs | None = None, *, anew: bool = False
    ) -> None:
        """Draw ``design`` with the program that it was lowered to and its prices.

        A draft that cannot be lowered yet has neither: then its schedule and options are shown,
        and the stages of the last sound design stay, faded; none where it is another document,
        drawn ``anew``.
        """
        self._drawn_design = design
        before = NO_STAGES if anew else self.picture.data
        picture = {**before, **controls(design), "stale": True}
        if program is not None and costs is not None:
            self._layers = costs.layers
            picture.update(stages(design, program, costs), stale=False)
        self.param.update(picture=PlainData(picture), choices=PlainData(choices(design)))

    # one method a gesture

    def _on_move_layers(self, gesture: Mapping[str, Any]) -> None:
        if self.picture.data.get("stale"):
            raise InputError("these are the stages of the last sound design; solve its problems first")
        boundary, count = value_of(gesture, "boundary", int), value_of(gesture, "count", int)
        source, target = (boundary, boundary + 1) if count > 0 else (boundary + 1, boundary)
        noun = "layer" if abs(count) == 1 else "layers"
        try:
            layers = edits.move_layers(self._layers, boundary, count)
            self._edit("pipeline.stages", list(layers), f"move {abs(count)} {noun} from stage {source} to {target}")
        except MeshwaveError:
            self._try_layers(None)  # what was shown while they were dragged will not be
            raise

    def _on_try_layers(self, gesture: Mapping[str, Any]) -> None:
        """Show what the step would be while layers are dragged; nothing is edited."""
        boundary, count = value_of(gesture, "boundary", int), value_of(gesture, "count", int)
        if count and not self.picture.data.get("stale"):
            self._try_layers(edits.move_layers(self._layers, boundary, count))
        else:
            self._try_layers(None)

    def _try_layers(self, layers: Sequence[int] | None) -> None:
        tried = None if self._on_layers_tried is None else self._on_layers_tried(layers)
        if layers is not None and tried is not None:
            shares = stage_shares(tried.program, tried.costs)
            self._send_msg({"type": "tried", "layers": list(layers), "shares": shares})

    def _on_move_stage(self, gesture: Mapping[str, Any]) -> None:
        if self._on_stage_moved is None:
            return
        try:
            self._on_stage_moved(*_carried(gesture))
        except MeshwaveError:
            self._try_stage(None)  # what was shown while it was carried will not be
            raise

    def _on_try_stage(self, gesture: Mapping[str, Any]) -> None:
        """Show what the step would be while a stage is carried over another mesh; nothing is edited."""
        stage, mesh, replica = carried = _carried(gesture)
        routes = self.picture.data["routes"]
        homes = {(r, s): home for r, route in enumerate(routes) for s, home in enumerate(route)}
        try:
            words = self._try_stage(None if homes.get((replica, stage)) == mesh else carried)
        except MeshwaveError:
            self._try_stage(None)
            raise
        self._send_msg({"type": "carried", "mesh": mesh, "words": words})

    def _try_stage(self, carried: tuple[int, int, int] | None) -> str:
        return "" if self._on_stage_tried is None else self._on_stage_tried(carried)

    def _on_compute(self, gesture: Mapping[str, Any]) -> None:
        self._does_to_computation.get(value_of(gesture, "do", plain_text), lambda: None)()

    def _on_balance(self, gesture: Mapping[str, Any]) -> None:
        self._edit("pipeline.stages", None, "balance the stages")

    def _on_dial(self, gesture: Mapping[str, Any]) -> None:
        """More or fewer waves (or chunks): another number of stages."""
        found = dial(self._open)
        if found is None:
            raise InputError("this schedule has no waves or chunks to add")
        key, value = found["key"], value_of(gesture, "value", int)
        self._edit(f"pipeline.{key}", value, f"{value} {found['label']}")

    def _on_option(self, gesture: Mapping[str, Any]) -> None:
        key, value = value_of(gesture, "key", plain_text), value_of(gesture, "value", plain_text)
        self._edit(f"pipeline.{key}", value, f"{key} {value}")

    def _on_microbatches(self, gesture: Mapping[str, Any]) -> None:
        value = value_of(gesture, "value", int)
        self._edit("pipeline.microbatches", value, f"{value} microbatches")

    def _on_schedule(self, gesture: Mapping[str, Any]) -> None:
        name = value_of(gesture, "name", plain_text)
        self._edit("pipeline", edits.choose_schedule(self._open, name), f"schedule {schedules[name].title}")

    @property
    def _open(self) -> Design:
        if self._drawn_design is None:
            raise InputError("no design is open")
        return self._drawn_design


def _carried(gesture: Mapping[str, Any]) -> tuple[int, int, int]:
    """A stage, the mesh that it is carried to, and which replica of the model it is of."""
    return value_of(gesture, "stage", int), value_of(gesture, "mesh", int), value_of(gesture, "replica", int)


# what the widget is given


def controls(design: Design) -> dict[str, Any]:
    """What the pipeline is set to, and what it can be set to; of drafts too."""
    name = design.pipeline.schedule
    return {
        "schedule": name,
        "title": schedules[name].title,
        "microbatches": design.pipeline.microbatches,
        "most_microbatches": field_limit(type(design.pipeline), "microbatches"),
        "balanced": design.pipeline.stages is None,
        "dial": dial(design),
        "toggles": _toggles(design),
    }


def stages(design: Design, program: Program, costs: Costs) -> dict[str, Any]:
    """The path: ``routes[replica][stage]`` are meshes, ``shares[stage]`` parts of the compute time
    of a step that add up to 1, ``skips`` the arcs over it."""
    meshes = [{"name": mesh.name, "node": design.cluster.node_of(min(mesh.devices))} for mesh in design.meshes]
    return {
        "meshes": meshes,
        "routes": program.placement.tolist(),
        "layers": list(costs.layers),
        "shares": stage_shares(program, costs),
        "equal": _is_priced_equal(design, costs),
        "groups": _groups(dial(design), program.stages),
        "skips": skips(design, program, costs),
    }


NO_STAGES: Mapping[str, Any] = {
    "meshes": [], "routes": [], "layers": [], "shares": [], "equal": False, "groups": [], "skips": [],
}  # fmt: skip


def _is_priced_equal(design: Design, costs: Costs) -> bool:
    """Whether stages cost the same although their layers differ: unit costs cut the model evenly."""
    return costs.unit != "s" and design.pipeline.stages is None and len(set(costs.layers)) > 1


def stage_shares(program: Program, costs: Costs) -> list[float]:
    """[stages] the part of all computation that each stage takes."""
    computed = program.is_compute
    seconds = np.bincount(program.stage[computed], costs.seconds[computed], minlength=program.stages)
    shares: list[float] = (seconds / max(seconds.sum(), np.finfo(float).tiny)).tolist()
    return shares


def dial(design: Design) -> dict[str, Any] | None:
    """The option by which a schedule cuts the model finer (waves, chunks), if it has one."""
    name, pipeline = design.pipeline.schedule, design.pipeline.model_dump(mode="json")
    for key, now in edits.schedule_options(name, pipeline).items():
        if not isinstance(now, int) or isinstance(now, bool):
            continue
        stages_now, more = (_stages_with(name, pipeline, {key: number}, design.ranks) for number in (now, now + 1))
        if more is None or more == stages_now:
            continue
        layers = design.model.layers
        reason = f"{more} stages need {more} layers; the model has {layers}" if more > layers else None
        most = now if reason else min(now + 64, field_limit(schedules[name], key))
        return {"key": key, "label": key, "value": now, "most": most, "reason": reason}
    return None


def choices(design: Design) -> list[dict[str, Any]]:
    """Every schedule, and why it cannot be chosen where it cannot; the custom one comes last."""
    found = [
        {
            "name": name,
            "title": schedules[name].title,
            "blurb": " ".join(schedules[name].help().split()),
            "reason": refusal.message if (refusal := edits.choice_refusal(design, name)) else None,
        }
        for name in schedule_names()
    ]
    return sorted(found, key=lambda choice: thumbnail(choice["name"]) is None)


@lru_cache(maxsize=64)
def thumbnail(name: str) -> dict[str, Any] | None:
    """The computations of a schedule at its default options on four meshes, as columns; None for
    one that has no order of its own."""
    schedule = schedules[name]()
    if not schedule.stage_count(THUMBNAIL.ranks) or schedule.refusal(THUMBNAIL):
        return None
    program = add_transfers(schedule.program(THUMBNAIL))
    seconds = np.where(program.op == Op.F, 1.0, np.where(program.op == Op.B, 2.0, 1.0)) * program.is_compute
    timeline = simulate(program, seconds)
    shown = timeline.is_compute
    passes = shades(timeline)[timeline.rank[shown], timeline.stage[shown]]
    columns = {column: getattr(timeline, column)[shown].tolist() for column in ("rank", "op", "start", "end")}
    alternating = (passes ^ (passes >> 1)) & 1  # neighbouring passes differ: down and up, chunk and chunk
    return {**columns, "shade": alternating.tolist(), "ranks": THUMBNAIL.ranks, "makespan": float(timeline.end.max())}


# schedules and their options


def _stages_with(name: str, pipeline: Mapping[str, Any], changes: Mapping[str, Any], ranks: int) -> int | None:
    try:
        return edits.schedule_with(name, pipeline, **changes).stage_count(ranks)
    except (ValidationError, InputError):
        return None


def _groups(found: Mapping[str, Any] | None, stages: int) -> list[dict[str, Any]]:
    """Runs of stages with a name: ``wave 1``, ``wave 2``."""
    if found is None or found["value"] < 2:
        return []
    size = stages // found["value"]
    one = str(found["label"]).removesuffix("s")
    return [
        {"label": f"{one} {group + 1}", "first": group * size, "end": (group + 1) * size}
        for group in range(found["value"])
    ]


def _toggles(design: Design) -> list[dict[str, Any]]:
    """The options of a schedule that are one word of several."""
    name, pipeline = design.pipeline.schedule, design.pipeline.model_dump(mode="json")
    toggles = []
    for key, field in schedules[name].model_fields.items():
        words = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        if len(words) > 1 and all(isinstance(word, str) for word in words):
            toggles.append(
                {
                    "key": key,
                    "value": pipeline.get(key),
                    "words": list(words),
                    "help": " ".join((field.description or key).split()),
                    "reason": _idle(key, design),
                }
            )
    return toggles


def _idle(key: str, design: Design) -> str | None:
    if key == "grouping" and design.pipeline.microbatches <= design.ranks:
        return f"grouping matters with more microbatches than the {design.ranks} meshes"
    return None
