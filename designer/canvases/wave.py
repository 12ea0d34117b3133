"""The wave of stages over the meshes: the Python face of ``static/wave.js``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal, get_args, get_origin

import numpy as np
import param
from pydantic import ValidationError

from designer import edits
from designer.canvases._canvas import Canvas, Edit, read_static, shared_modules
from engine.cost import Costs
from engine.design import Design
from engine.errors import InputError
from engine.lowering.transfers import add_transfers
from engine.program.action import Op
from engine.program.program import Program
from engine.schedules import Pipe, Schedule, schedules
from engine.simulate import simulate

THUMBNAIL = Pipe(ranks=4, microbatches=4)
MICROBATCHES = 1_000_000


class WaveCanvas(Canvas):
    """The path of stages over the meshes; layers are moved from stage to stage by hand, and the
    schedule is chosen by its picture.

    Give it a design and what was made of it by :meth:`show`; it calls ``on_edit`` with the path
    ``pipeline``, or with one key of it where nothing else has to change.
    """

    picture = param.Dict(default={}, doc="Stages, their meshes and what can be changed; see describe().")
    thumbnails = param.List(default=[], doc="Schedules to choose from; see choices().")

    _esm = read_static("wave.js")
    _importmap: ClassVar = shared_modules("canvas.js", "schedules.js")
    _stylesheets: ClassVar = [read_static("canvas.css"), read_static("wave.css")]
    _gestures = ("move_layers", "balance", "dial", "option", "microbatches", "schedule")

    def __init__(self, on_edit: Edit | None = None, **params: Any) -> None:
        super().__init__(on_edit, **params)
        self._drawn_design: Design | None = None
        self._layers: tuple[int, ...] = ()

    def show(self, design: Design, program: Program, costs: Costs) -> None:
        """Draw ``design`` with the program that it was lowered to and its prices."""
        self._drawn_design, self._layers = design, costs.layers
        self.param.update(picture=describe(design, program, costs), thumbnails=choices(design))

    # one method a gesture

    def _on_move_layers(self, gesture: Mapping[str, Any]) -> None:
        boundary, count = int(gesture["boundary"]), int(gesture["count"])
        layers = edits.move_layers(self._layers, boundary, count)
        source, target = (boundary, boundary + 1) if count > 0 else (boundary + 1, boundary)
        noun = "layer" if abs(count) == 1 else "layers"
        self._edit("pipeline.stages", list(layers), f"move {abs(count)} {noun} from stage {source} to {target}")

    def _on_balance(self, gesture: Mapping[str, Any]) -> None:
        self._edit("pipeline.stages", None, "balance the stages")

    def _on_dial(self, gesture: Mapping[str, Any]) -> None:
        """More or fewer waves (or chunks): another number of stages."""
        found = dial(self._open)
        if found is None:
            raise InputError("this schedule has no waves or chunks to add")
        key, value = found["key"], int(gesture["value"])
        self._set({key: value}, f"{value} {found['label']}", same_stages=False)

    def _on_option(self, gesture: Mapping[str, Any]) -> None:
        key, value = str(gesture["key"]), str(gesture["value"])
        self._set({key: value}, f"{key} {value}", same_stages=True)

    def _on_microbatches(self, gesture: Mapping[str, Any]) -> None:
        value = int(gesture["value"])
        self._set({"microbatches": value}, f"{value} microbatches", same_stages=True)

    def _on_schedule(self, gesture: Mapping[str, Any]) -> None:
        name = str(gesture["name"])
        design, old = self._open, self._pipeline
        if name == old["schedule"]:
            return
        reason = _refusal(name, design)
        if reason:
            raise InputError(reason)
        new = _made(name, old)
        pipe = design.pipe
        same_path = np.array_equal(np.array(new.routes(pipe)), np.array(design.pipeline.routes(pipe)))
        pipeline = edits.choose_schedule(old, name, _options(name), same_path=same_path)
        self._edit("pipeline", pipeline, f"schedule {schedules[name].title}")

    def _set(self, changes: Mapping[str, Any], label: str, *, same_stages: bool) -> None:
        if not same_stages and edits.set_by_hand(self._pipeline):
            self._edit("pipeline", edits.automatic(self._pipeline, **changes), f"{label}, stages balanced anew")
            return
        ((key, value),) = changes.items()
        self._edit(f"pipeline.{key}", value, label)

    @property
    def _open(self) -> Design:
        if self._drawn_design is None:
            raise InputError("no design is open")
        return self._drawn_design

    @property
    def _pipeline(self) -> dict[str, Any]:
        pipeline: dict[str, Any] = self._open.pipeline.model_dump(mode="json")
        return pipeline


# ── what the widget is given ────────────────────────────────────────────────────────────────


def describe(design: Design, program: Program, costs: Costs) -> dict[str, Any]:
    """All that the wave draws: ``routes[replica][stage]`` are meshes, ``shares[stage]`` parts of the
    step's compute time that add up to 1."""
    pipeline = design.pipeline.model_dump(mode="json")
    found = dial(design)
    return {
        "meshes": [
            {"name": mesh.name, "node": design.cluster.node_of(min(mesh.devices))} for mesh in design.meshes
        ],
        "routes": program.placement.tolist(),
        "layers": list(costs.layers),
        "shares": stage_shares(program, costs),
        "balanced": pipeline["stages"] is None,
        "schedule": pipeline["schedule"],
        "title": schedules[pipeline["schedule"]].title,
        "microbatches": design.pipeline.microbatches,
        "most_microbatches": MICROBATCHES,
        "dial": found,
        "groups": _groups(found, program.stages),
        "toggles": _toggles(design),
    }


def stage_shares(program: Program, costs: Costs) -> list[float]:
    """[stages] the part of all computation that each stage takes."""
    computed = program.is_compute
    seconds = np.bincount(program.stage[computed], costs.seconds[computed], minlength=program.stages)
    return (seconds / max(seconds.sum(), np.finfo(float).tiny)).tolist()


def dial(design: Design) -> dict[str, Any] | None:
    """The option by which a schedule cuts the model finer (waves, chunks), if it has one."""
    name, pipeline = _name(design), design.pipeline.model_dump(mode="json")
    for key, value in _options(name).items():
        now = pipeline.get(key, value)
        if not isinstance(now, int) or isinstance(now, bool):
            continue
        more = _stages_with(name, pipeline, {key: now + 1}, design.ranks)
        if more is None or more == design.stages:
            continue
        layers = design.model.layers
        reason = f"{more} stages need {more} layers; the model has {layers}" if more > layers else None
        return {"key": key, "label": key, "value": now, "most": now if reason else now + 64, "reason": reason}
    return None


def choices(design: Design) -> list[dict[str, Any]]:
    """Every schedule with its small picture, and why it cannot be chosen where it cannot."""
    return [
        {
            "name": name,
            "title": schedule.title,
            "blurb": " ".join(schedule.help().split()),
            "reason": None if name == _name(design) else _refusal(name, design),
            "spans": thumbnail(name),
        }
        for name, schedule in schedules.items()
    ]


@lru_cache(maxsize=64)
def thumbnail(name: str) -> dict[str, Any] | None:
    """The computations of a schedule at its default options on four meshes, as columns; None for
    one that has no order of its own."""
    schedule = schedules[name]()
    if not schedule.stage_count(THUMBNAIL.ranks) or schedule.refuses(THUMBNAIL):
        return None
    program = add_transfers(schedule.program(THUMBNAIL))
    seconds = np.where(program.op == Op.F, 1.0, np.where(program.op == Op.B, 2.0, 1.0)) * program.is_compute
    timeline = simulate(program, seconds)
    shown = timeline.is_compute
    columns = ("rank", "op", "stage", "start", "end")
    spans: dict[str, Any] = {column: getattr(timeline, column)[shown].tolist() for column in columns}
    return {**spans, "ranks": THUMBNAIL.ranks, "stages": program.stages, "makespan": float(timeline.end.max())}


# ── schedules and their options ─────────────────────────────────────────────────────────────


def _name(design: Design) -> str:
    return str(design.pipeline.model_dump()["schedule"])


def _options(name: str) -> dict[str, Any]:
    """The options that a schedule adds, at their defaults."""
    return {key: field.get_default() for key, field in schedules[name].model_fields.items()}


def _made(name: str, pipeline: Mapping[str, Any], **changes: Any) -> Schedule:
    """A schedule with the values that a pipeline has for its options."""
    options = {key: pipeline.get(key, value) for key, value in _options(name).items()}
    return schedules[name](**{**options, **changes})


def _stages_with(name: str, pipeline: Mapping[str, Any], changes: Mapping[str, Any], ranks: int) -> int | None:
    try:
        return _made(name, pipeline, **changes).stage_count(ranks)
    except ValidationError:
        return None


def _refusal(name: str, design: Design) -> str | None:
    """Why a schedule cannot be chosen for these meshes, microbatches and layers, in a sentence."""
    if name not in schedules:
        schedules[name]  # says which there are
    pipeline = design.pipeline.model_dump(mode="json")
    if name == "custom" and not pipeline.get("actions"):
        return "Custom plays orders of your own; open a design that has pipeline.actions"
    schedule = _made(name, pipeline)
    stages, layers = schedule.stage_count(design.ranks), design.model.layers
    if stages > layers:
        return f"{schedule.title} cuts {stages} stages here, and the model has {layers} layers; use fewer meshes or more layers"
    return schedule.refuses(design.pipe)


def _groups(found: Mapping[str, Any] | None, stages: int) -> list[dict[str, Any]]:
    """Runs of stages with a name: ``wave 1``, ``wave 2``."""
    if found is None or found["value"] < 2:
        return []
    size = stages // found["value"]
    one = str(found["label"]).removesuffix("s")
    return [{"label": f"{one} {group + 1}", "first": group * size, "end": (group + 1) * size} for group in range(found["value"])]


def _toggles(design: Design) -> list[dict[str, Any]]:
    """The options of a schedule that are one word of several."""
    name, pipeline = _name(design), design.pipeline.model_dump(mode="json")
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
