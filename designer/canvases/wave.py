"""The wave canvas: the stages on the meshes; the Python side of ``static/wave/wave.js``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin

import numpy as np
import param
from pydantic import ValidationError

from meshwave.designer.canvases.difference_marks import MarkedCanvas
from meshwave.designer.canvases.wave_skips import skip_arcs
from meshwave.designer.kit.assets import colour_rule
from meshwave.designer.kit.canvas import Edit, PlainData, widget
from meshwave.designer.kit.shortcuts import canvas_commands
from meshwave.designer.state import design_edits as edits
from meshwave.designer.state.field_limits import field_limit
from meshwave.engine.costs import Costs
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.exports.pictures.palette import shades
from meshwave.engine.findings import Refusal
from meshwave.engine.frozen import field_docstrings, label_words, read_option_labels
from meshwave.engine.lowering.transfers import add_transfers
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.simulation import simulate
from meshwave.engine.schedules import Pipe, schedule_names, schedules

THUMBNAIL = Pipe(ranks=4, microbatches=8)


@widget(
    "wave/wave.js",
    "kit/shell.css",
    "kit/differences.css",
    rules=colour_rule(".mw-wave", {f"op-{op.name.lower()}": op.name for op in Op if op.is_compute}),
)
class WaveCanvas(MarkedCanvas):
    """Widget that shows the path of the stages over the meshes, moves layers and stages, and selects the schedule.

    :meth:`show` draws a design and its program. ``on_edit`` is called with the path ``pipeline``, or with one of its
    keys if nothing else changes.
    """

    picture: Any = param.String(
        default=PlainData({}), doc="Stages, their routes over the meshes, and the values of the controls."
    )
    choices = param.String(default=PlainData([]), doc="Schedules for selection, as schedule_choices() returns them.")
    pictures = param.String(default=PlainData({}), doc="Thumbnails of the schedules by name; set once.")

    progress = param.Dict(
        default={}, doc="Completed fraction and status text of the running computation; empty if none runs."
    )

    commands = param.List(default=canvas_commands("Wave"), constant=True, doc="Entries of the context menu.")

    def __init__(
        self,
        on_edit: Edit | None = None,
        on_move_stage: Callable[[int, int, int], None] | None = None,
        on_try_layers: Callable[[Sequence[int] | None], Prediction | None] | None = None,
        on_try_stage: Callable[[tuple[int, int, int] | None], str] | None = None,
        on_compute: Mapping[str, Callable[[], None]] | None = None,
        **params: Any,
    ) -> None:
        """Create the canvas.

        Args:
            on_edit: applies an edit.
            on_move_stage: moves a stage to a mesh, in a replica of the model.
            on_try_layers: predicts the step with these layers per stage while they are dragged; None ends the trial.
            on_try_stage: like ``on_move_stage`` while a stage is dragged, returns a description; None ends the trial.
            on_compute: functions that ``stop`` a computation and compute ``again``.
            **params: parameters of the widget.
        """
        super().__init__(
            on_edit, **{"pictures": PlainData({name: schedule_thumbnail(name) for name in schedules}), **params}
        )
        self._on_stage_moved, self._on_layers_tried, self._on_stage_tried = on_move_stage, on_try_layers, on_try_stage
        self._computation_actions = on_compute or {}
        self._shown_design: Design | None = None
        self._layers: tuple[int, ...] = ()

    def show(  # type: ignore[override]  # Panel's own serves a page; a canvas shows a design
        self, design: Design, program: Program | None = None, costs: Costs | None = None, *, is_new: bool = False
    ) -> None:
        """Draw a design with its program and costs.

        A draft that cannot be lowered has neither: its schedule and options are shown with the faded stages of the
        last valid design, or without stages if it is another document (``is_new``).
        """
        self._shown_design = design
        before = NO_STAGES if is_new else self.picture.data
        picture = {**before, **pipeline_controls(design), "stale": True}
        if program is not None and costs is not None:
            self._layers = costs.layers
            picture.update(stage_routes(design, program, costs), stale=False)
        self.param.update(picture=PlainData(picture), choices=PlainData(schedule_choices(design)))

    # ---- gestures ----

    def _on_move_layers(self, boundary: int, count: int) -> None:
        if self.picture.data.get("stale"):
            raise Refusal("outdated_stages")
        source, target = (boundary, boundary + 1) if count > 0 else (boundary + 1, boundary)
        noun = "layer" if abs(count) == 1 else "layers"
        try:
            layers = edits.move_layers(self._layers, boundary, count)
            self._edit("pipeline.stages", list(layers), f"move {abs(count)} {noun} from stage {source} to {target}")
        except MeshwaveError:
            self._try_layers(None)  # end the trial that was shown while they were dragged
            raise

    def _on_try_layers(self, boundary: int, count: int) -> None:
        """Show the step with other layers per stage while they are dragged; nothing is edited."""
        if count and not self.picture.data.get("stale"):
            self._try_layers(edits.move_layers(self._layers, boundary, count))
        else:
            self._try_layers(None)

    def _try_layers(self, layers: Sequence[int] | None) -> None:
        tried = None if self._on_layers_tried is None else self._on_layers_tried(layers)
        if layers is not None and tried is not None:
            shares = stage_time_shares(tried.program, tried.costs)
            self._send_msg({"type": "tried", "layers": list(layers), "shares": shares})

    def _on_move_stage(self, stage: int, mesh: int, replica: int) -> None:
        if self._on_stage_moved is None:
            return
        try:
            self._on_stage_moved(stage, mesh, replica)
        except MeshwaveError:
            self._try_stage(None)  # end the trial that was shown while it was dragged
            raise

    def _on_try_stage(self, stage: int, mesh: int, replica: int) -> None:
        """Show the step with a stage on another mesh while it is dragged; nothing is edited."""
        routes = self.picture.data["routes"]
        homes = {(r, s): home for r, route in enumerate(routes) for s, home in enumerate(route)}
        try:
            words = self._try_stage(None if homes.get((replica, stage)) == mesh else (stage, mesh, replica))
        except MeshwaveError:
            self._try_stage(None)
            raise
        self._send_msg({"type": "carried", "mesh": mesh, "words": words})

    def _try_stage(self, carried: tuple[int, int, int] | None) -> str:
        return "" if self._on_stage_tried is None else self._on_stage_tried(carried)

    def _on_compute(self, do: str) -> None:
        self._computation_actions.get(do, lambda: None)()

    def _on_balance(self) -> None:
        self._edit("pipeline.stages", None, "balance stages")

    def _on_dial(self, value: int) -> None:
        """Set the number of waves or chunks, and so the number of stages."""
        found = stage_dial(self._open_design)
        if found is None:
            raise Refusal("schedule_without_dial")
        self._edit(f"pipeline.{found['key']}", value, f"{value} {found['label']}")

    def _on_option(self, key: str, value: str) -> None:
        self._edit(f"pipeline.{key}", value, f"{key} {value}")

    def _on_microbatches(self, value: int) -> None:
        self._edit("pipeline.microbatches", value, f"{value} microbatches")

    def _on_schedule(self, name: str) -> None:
        self._edit("pipeline", edits.choose_schedule(self._open_design, name), f"schedule {schedules[name].title}")

    @property
    def _open_design(self) -> Design:
        if self._shown_design is None:
            raise Refusal("no_open_design")
        return self._shown_design


# ---- data of the widget ----


def pipeline_controls(design: Design) -> dict[str, Any]:
    """Return the settings of the pipeline and their ranges; the design may be an invalid draft."""
    name = design.pipeline.schedule
    return {
        "schedule": name,
        "title": schedules[name].title,
        "microbatches": design.pipeline.microbatches,
        "most_microbatches": field_limit(type(design.pipeline), "microbatches"),
        "balanced": design.pipeline.stages is None,
        "dial": stage_dial(design),
        "toggles": _toggle_options(design),
    }


def stage_routes(design: Design, program: Program, costs: Costs) -> dict[str, Any]:
    """Return the routes of the stages over the meshes.

    ``routes[replica][stage]`` are meshes, ``shares[stage]`` are shares of the compute time of a step, and ``skips``
    are arcs of skip connections.
    """
    meshes = [{"name": mesh.name, "node": design.cluster.node_of(min(mesh.devices))} for mesh in design.meshes]
    return {
        "meshes": meshes,
        "routes": program.placement.tolist(),
        "layers": list(costs.layers),
        "shares": stage_time_shares(program, costs),
        "equal": _is_priced_equal(design, costs),
        "groups": _stage_groups(stage_dial(design), program.stages),
        "skips": skip_arcs(design, program, costs),
    }


NO_STAGES: Mapping[str, Any] = {
    "meshes": [], "routes": [], "layers": [], "shares": [], "equal": False, "groups": [], "skips": [],
}  # fmt: skip


def _is_priced_equal(design: Design, costs: Costs) -> bool:
    """Return whether stages with different layers cost the same, because the costs are in units."""
    return costs.unit != "s" and design.pipeline.stages is None and len(set(costs.layers)) > 1


def stage_time_shares(program: Program, costs: Costs) -> list[float]:
    """Return the share of each stage in the compute time of a step; the shares add up to 1."""
    computed = program.is_compute
    seconds = np.bincount(program.stage[computed], costs.seconds[computed], minlength=program.stages)
    shares: list[float] = (seconds / max(seconds.sum(), np.finfo(float).tiny)).tolist()
    return shares


def stage_dial(design: Design) -> dict[str, Any] | None:
    """Return the option of the schedule that sets the number of stages (waves, chunks), if it has one."""
    name, pipeline = design.pipeline.schedule, design.pipeline.model_dump(mode="json")
    for key, now in edits.schedule_options(name, pipeline).items():
        if not isinstance(now, int) or isinstance(now, bool):
            continue
        stages_now, more = (_stage_count(name, pipeline, {key: number}, design.ranks) for number in (now, now + 1))
        if more is None or more == stages_now:
            continue
        layers = design.model.layers
        reason = f"{more} stages need {more} layers; the model has {layers}" if more > layers else None
        most = now if reason else min(now + 64, field_limit(schedules[name], key))
        return {"key": key, "label": key, "value": now, "most": most, "reason": reason}
    return None


def schedule_choices(design: Design) -> list[dict[str, Any]]:
    """Return an entry per schedule, with the reason if it cannot be selected; ``custom`` is the last one."""
    found = [
        {
            "name": name,
            "title": schedules[name].title,
            "blurb": " ".join(schedules[name].help().split()),
            "reason": refusal.message if (refusal := edits.choice_refusal(design, name)) else None,
        }
        for name in schedule_names()
    ]
    return sorted(found, key=lambda choice: schedule_thumbnail(choice["name"]) is None)


@lru_cache(maxsize=64)
def schedule_thumbnail(name: str) -> dict[str, Any] | None:
    """Return the computations of a schedule with default options on four meshes, as columns.

    Returns None for a schedule without an order of its own.
    """
    schedule = schedules[name]()
    if not schedule.stage_count(THUMBNAIL.ranks) or schedule.refusal(THUMBNAIL):
        return None
    program = add_transfers(schedule.program(THUMBNAIL))
    seconds = np.where(program.op == Op.F, 1.0, np.where(program.op == Op.B, 2.0, 1.0)) * program.is_compute
    timeline = simulate(program, seconds)
    shown = timeline.is_compute
    passes = shades(timeline)[timeline.rank[shown], timeline.stage[shown]]
    columns = {column: getattr(timeline, column)[shown].tolist() for column in ("rank", "op", "start", "end")}
    alternating = (passes ^ (passes >> 1)) & 1  # neighbouring passes alternate between two shades
    return {**columns, "shade": alternating.tolist(), "ranks": THUMBNAIL.ranks, "makespan": float(timeline.end.max())}


# ---- schedules and their options ----


def _stage_count(name: str, pipeline: Mapping[str, Any], changes: Mapping[str, Any], ranks: int) -> int | None:
    try:
        return edits.schedule_with(name, pipeline, **changes).stage_count(ranks)
    except (ValidationError, InputError):
        return None


def _stage_groups(found: Mapping[str, Any] | None, stages: int) -> list[dict[str, Any]]:
    """Return groups of consecutive stages with their labels: ``wave 1``, ``wave 2``."""
    if found is None or found["value"] < 2:
        return []
    size = stages // found["value"]
    one = str(found["label"]).removesuffix("s")
    return [
        {"label": f"{one} {group + 1}", "first": group * size, "end": (group + 1) * size}
        for group in range(found["value"])
    ]


def _toggle_options(design: Design) -> list[dict[str, Any]]:
    """Return the options of the schedule that select one of several named values."""
    name, pipeline = design.pipeline.schedule, design.pipeline.model_dump(mode="json")
    toggles, docstrings = [], field_docstrings(schedules[name])
    for key, field in schedules[name].model_fields.items():
        words = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        labels = read_option_labels(field)
        if len(words) > 1 and all(isinstance(word, str) for word in words):
            toggles.append(
                {
                    "key": key,
                    "value": pipeline.get(key),
                    "words": list(words),
                    "labels": [labels.get(word, word) for word in words],
                    "help": label_words(" ".join((field.description or docstrings.get(key, key)).split()), labels),
                    "reason": _disabled_reason(key, design),
                }
            )
    return toggles


def _disabled_reason(key: str, design: Design) -> str | None:
    if key == "grouping" and design.pipeline.microbatches <= design.ranks:
        return f"grouping has an effect only with more microbatches than meshes ({design.ranks})"
    return None
