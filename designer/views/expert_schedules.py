"""The schedules of the expert layer side by side."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import param

from meshwave.designer.canvases.expert_metrics import METRIC_HELP, LayerCosts, explain_terms
from meshwave.designer.kit.assets import colour_rule
from meshwave.designer.kit.canvas import Overlay, short_message, widget
from meshwave.designer.state import expert_edits as edits
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.expert_map import LINKS, make_expert_map
from meshwave.designer.state.job_processes import Done, Failed, JobUpdate
from meshwave.designer.state.jobs import Job, Listener, run_now
from meshwave.engine.document import Design
from meshwave.engine.document.experts import Experts
from meshwave.engine.errors import InputError
from meshwave.engine.experts import (
    LAYER_OPS,
    Layer,
    LayerTimeline,
    Price,
    StepOp,
    expert_schedule_names,
    expert_schedules,
    simulate_layer,
)
from meshwave.engine.findings import Refusal
from meshwave.engine.predict.expert_map import GridCluster, find_cluster
from meshwave.engine.units import percent_change, quantity

KINDS = {
    "experts": (StepOp.EXPERTS,),
    "dispatch": (StepOp.DISPATCH,),
    "combine": (StepOp.COMBINE,),
    "gather": tuple(op for op in StepOp if op.name.startswith(("GATHER", "SCATTER", "REDUCE"))),
}
WORDS = {
    "experts": "experts",
    "dispatch": "dispatch",
    "combine": "combine",
    "gather": "gather and reduce",
    "other": "gate and sorting",
}
COLOURS = {
    "step-experts": "F", "step-dispatch": "B", "step-combine": "I", "step-gather": "W", "step-other": "STEP",
    "schedule-deepspeed": "STEP", "schedule-a2a-allgather": "B", "schedule-parm-s1": "F", "schedule-parm-s2": "W",
    "schedule-ppmoe": "I", "schedule-expert-parallel": "REDUCE_GRAD",
}  # fmt: skip
"""Operations of the palette whose colours are used for steps and schedules."""
LANES = ("compute", "inside the node", "between nodes")
HELP = {
    "experts": "Feed-forward networks of the experts on the device",
    "dispatch": "Sending tokens to the devices that hold their experts",
    "combine": "Returning the results to the devices of the tokens",
    "gather": "Collectives of devices that share tokens or an expert: all-gather, reduce-scatter, all-reduce",
    "other": "Choosing experts in the gate, and sorting tokens by expert",
    "lanes": "Timeline of the slowest device: its compute lane, and its links inside the node and between nodes. The dotted line "
    "separates forward and backward. All cards have the same time scale.",
    "time": "Time of a forward and a backward of the layer on the slowest device",
    "inter": "Maximum bytes that one device sends to other nodes in the forward of one layer",
    "intra": "Maximum bytes that one device sends inside its node in the forward of one layer",
    "memory": f"{METRIC_HELP['memory']}; buffers hold the tokens that are sent and received",
}


@widget("experts/schedules.js", "kit/shell.css", rules=colour_rule(".mw-expert-schedules", COLOURS))
class ExpertSchedules(Overlay):
    """An overlay with a card per expert schedule: its timeline on the slowest device, time, bytes sent and memory.

    Clicking a card selects the schedule, as one edit.
    """

    about = param.String(default="", doc="Description of the layer.")
    cards = param.List(default=[], doc="A card per schedule, as schedule_cards() returns them.")
    words = param.Dict(default=WORDS, constant=True, doc="Title of each kind of step.")
    help = param.Dict(default=HELP, constant=True, doc="Help text of each kind of step, lane and metric.")
    lanes = param.List(default=list(LANES), constant=True)
    map = param.Dict(
        default={}, doc="Data of the expert map; empty until it is computed. If it cannot be computed, the problem."
    )
    links = param.List(default=LINKS, constant=True, doc="Clusters whose links the map can use.")

    def __init__(self, session: Session, **params: Any) -> None:
        super().__init__(**params)
        self._session = session
        self._rank = 0
        self._later = session.later or run_now
        self._job: Listener | None = None
        self._mapped: GridCluster | None = None  # cluster of the map that is shown or being computed
        session.param.watch(lambda *_: self._draw_if_shown(), "design")

    def stop_jobs(self) -> None:
        """Stop the background job that computes the map."""
        if self._job is not None:
            self._job.stop()

    def open(self, rank: int = 0) -> None:
        """Show the schedules of the open design's layer on a mesh."""
        self._rank = rank
        self._draw()  # before opening, since drawing later would move the focus away from the card
        self._open()

    def _draw_if_shown(self) -> None:
        if self.shown:
            self._draw()

    def _draw(self) -> None:
        design = self._session.design
        rank = min(self._rank, design.ranks - 1)
        self.param.update(about=describe_layer(design, rank), cards=schedule_cards(design, rank))

    # ---- gestures ----

    def _on_choose(self, name: str) -> None:
        section = edits.change_setting(self._session.design, "schedule", name)
        self._close()
        self._session.edit("experts", section, f"experts: schedule {expert_schedules[name].title}")

    def _on_map(self, links: str) -> None:
        """Compute the map for the selected links by a job; a running job for other links is stopped."""
        cluster = find_cluster(links, self._session.design)
        if cluster == self._mapped:
            return
        self.stop_jobs()
        self._mapped, self.map = cluster, _maps.get(cluster, {})
        if not self.map:
            self._job = Job(partial(make_expert_map, cluster), "map of expert schedules").add_listener(
                self._later, partial(self._receive_map, cluster)
            )

    def _receive_map(self, cluster: GridCluster, update: JobUpdate) -> None:
        if isinstance(update, Done):
            if len(_maps) >= MOST_MAPS:
                _maps.clear()
            self.map = _maps[cluster] = update.value
        elif isinstance(update, Failed):
            self._mapped, self.map = None, {"problem": f"The map could not be computed: {update.reason}."}


MOST_MAPS = 8
_maps: dict[GridCluster, dict[str, Any]] = {}
"""Computed maps by cluster, shared by all tabs."""


# ---- functions ----


def describe_layer(design: Design, rank: int) -> str:
    """Describe the expert layer of a mesh."""
    moe, mesh = design.model.moe, design.meshes[rank]
    if moe is None:
        return "This model has no experts."
    tokens = design.training.micro_batch_size * design.model.sequence
    capacity = "no dropped tokens" if moe.capacity_factor is None else f"capacity factor {moe.capacity_factor:g}"
    size = f"{moe.experts} experts of {design.model.hidden} x {design.model.ffn_hidden}, top {moe.top_k}, {capacity}"
    return f"{size}; {tokens} tokens per microbatch on mesh {mesh.name}, dp {mesh.dp} x tp {mesh.tp}"


def schedule_cards(design: Design, rank: int) -> list[dict[str, Any]]:
    """Return a card per schedule, the fastest first; schedules that cannot run come last."""
    if design.model.moe is None:
        return []
    found = [schedule_card(design, rank, name) for name in expert_schedule_names()]
    fastest = min((entry["total"] for entry in found if not entry["reason"]), default=0.0)
    longest = max((entry["total"] for entry in found if not entry["reason"]), default=0.0)
    present = next((entry["total"] for entry in found if entry["present"] and not entry["reason"]), None)
    for entry in found:
        entry["axis"] = longest
        if not entry["reason"]:
            entry["best"] = entry["total"] <= fastest * (1 + 1e-9)
            entry["change"] = _describe_change(entry["total"], present) if not entry["present"] else ""
    return sorted(found, key=lambda entry: (bool(entry["reason"]), entry["total"]))


def schedule_card(design: Design, rank: int, name: str) -> dict[str, Any]:
    """Return the card of one schedule, or the reason why it cannot run the layer."""
    present = name == design.experts.schedule
    schedule = expert_schedules[name]
    common = {"name": name, "title": schedule.title, "help": _first_paragraph(schedule.help()), "present": present}
    section = edits.change_setting(design, "schedule", name) if not present else design.experts.model_dump(mode="json")
    try:
        changed = design.model_copy(update={"experts": Experts.model_validate(section, strict=False)})
        layer = edits.drawn_layer(changed, rank)
        for problem in expert_schedules[changed.experts.member]().problems(
            edits.restore_implicit_placement(changed, layer)
        ):
            raise Refusal(problem.code, problem.params)
        known = LayerCosts.compute(changed, rank, layer)
    except InputError as error:
        return {**common, "reason": f"{short_message(error)}.", "total": 0.0}
    price = known.price
    inside, outside = price.sent_bytes(price.forward)
    total = known.forward_s + known.backward_s
    return {
        **common,
        "reason": "",
        "total": total,
        "time": quantity(total, "s"),
        "parts": f"{quantity(known.forward_s, 's')} + {quantity(known.backward_s, 's')}",
        "inter": quantity(outside, "B"),
        "intra": quantity(inside, "B"),
        "memory": quantity(known.memory, "B"),
        "buffers": quantity(_buffer_bytes(price), "B"),
        "choice": price.choice.titled_reason if price.choice else "",
        "terms": explain_terms(layer),
        "layout": _changed_layout_text(design, changed, layer),
        "picture": slowest_device_picture(price),
    }


def slowest_device_picture(price: Price) -> dict[str, Any]:
    """Return the lanes of the slowest device as columns, first the forward and then the backward."""
    parts, offset = [], 0.0
    for direction in (price.forward, price.backward):
        simulated = simulate_layer(price, direction)
        parts.append((simulated, offset))
        offset += simulated.makespan
    device = int(parts[0][0].device[np.argmax(parts[0][0].end)])
    columns: dict[str, list[Any]] = {"lane": [], "kind": [], "start": [], "end": []}
    for simulated, begun in parts:
        mine = np.flatnonzero(simulated.device == device)
        columns["lane"] += simulated.lane[mine].tolist()
        columns["kind"] += [_palette_kind(simulated, span) for span in mine.tolist()]
        columns["start"] += (simulated.start[mine] + begun).tolist()
        columns["end"] += (simulated.end[mine] + begun).tolist()
    return {**columns, "turn": parts[1][1]}


def _palette_kind(simulated: LayerTimeline, span: int) -> str:
    op = LAYER_OPS[int(simulated.op[span])]
    return next((kind for kind, ops in KINDS.items() if op in ops), "other")


def _buffer_bytes(price: Price) -> float:
    """Return the sum of sent and received bytes in the largest exchange of a device."""
    return 2 * max((each.buffer_bytes for each in price.collectives(price.forward)), default=0.0)


def _changed_layout_text(design: Design, changed: Design, layer: Layer) -> str:
    """Return the devices over which the schedule distributes the experts, if they differ from the current ones."""
    now, then = design.experts, changed.experts
    if expert_schedules[then.member].places == "mp":
        return f"experts distributed over tp={layer.mp}"
    return f"ep {then.ep}, esp {then.esp}" if (now.ep, now.esp) != (then.ep, then.esp) else ""


def _describe_change(total: float, present: float | None) -> str:
    if not present or abs(total / present - 1) < 0.005:
        return ""
    ratio = total / present
    return percent_change(ratio - 1) if ratio < 2 else f"{ratio:.3g}×"


def _first_paragraph(help: str) -> str:
    return " ".join(help.split("\n\n")[0].split())
