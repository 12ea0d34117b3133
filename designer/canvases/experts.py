"""Experts on the devices of a mesh: the Python face of ``static/experts/experts.js``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import param

from meshwave.designer.canvases.expert_controls import LOADS_BY_NAME, NOT_MEASURED, controls
from meshwave.designer.canvases.expert_figures import (
    _placed,
    consequences,
    expert_bytes,
    figures,
    groups,
    level,
    place_names,
    terms,
)
from meshwave.designer.kit.assets import module, read_static
from meshwave.designer.kit.canvas import Canvas, Edit, plain_text, short_message, value_of
from meshwave.designer.state import expert_edits as edits
from meshwave.designer.state.design_edits import fix_edit
from meshwave.designer.state.measured_load import MeasuredLoad
from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import expert_schedule, uses_tensor_parallel_groups
from meshwave.engine.errors import InputError
from meshwave.engine.experts import Homes, Layer, balance_experts, copy_load, device_load, expert_schedules
from meshwave.engine.exports.pictures.palette import LOADS, ink
from meshwave.engine.findings import DesignError
from meshwave.engine.units import quantity

MOST_DRAWN = 20_000
"""Chips; more are no longer told apart."""
MOST_EXTRA = 4
LEAST_SCALE = 2.0
"""Even shares that the bar of a device's load can hold at least, so that a balanced one fills half of it."""


def _load_colours() -> str:
    """The palette of loads as --load-0 ... --load-6, and what is written on them as --on-load-0 ..."""
    colours = [
        f"--load-{level}: light-dark({light}, {dark}); --on-load-{level}: light-dark({ink(light)}, {ink(dark)});"
        for level, (light, dark) in enumerate(zip(LOADS["light"], LOADS["dark"], strict=True))
    ]
    return f".mw-experts {{ {' '.join(colours)} }}"


class ExpertsCanvas(Canvas):
    """The experts of a layer as chips on the devices that hold them, to be moved, replicated and balanced.

    Give it the design by :meth:`show`; it calls ``on_edit`` with ``experts``, a key of it, or the
    empty path where the model gets experts. ``on_pane`` is told the pane that a person wants to see,
    ``on_compare`` that they want the schedules side by side. ``routed`` knows what runs of a design
    measured of their experts' load.
    """

    picture = param.Dict(default={"state": "none"}, doc="What is drawn; see picture_of().")

    _esm = module("experts/experts.js")
    _stylesheets: ClassVar = [
        read_static("kit/canvas.css"), read_static("kit/shell.css"), read_static("experts/experts.css"), _load_colours(),
    ]  # fmt: skip
    _gestures = (
        "add", "mesh", "setting", "move", "replicate", "remove", "balance", "blocks", "heat", "try", "compare", "pane", "fix",
    )  # fmt: skip

    def __init__(
        self,
        on_edit: Edit | None = None,
        on_pane: Callable[[str], None] | None = None,
        on_compare: Callable[[], None] | None = None,
        routed: Callable[[Design], Sequence[MeasuredLoad]] = lambda design: (),
        **params: Any,
    ) -> None:
        super().__init__(on_edit, **params)
        self._to_pane, self._compare, self._ask_routed = on_pane, on_compare, routed
        self._routed: Sequence[MeasuredLoad] = ()
        self._drawn_design: Design | None = None
        self.rank = 0

    def show(self, design: Design) -> None:  # type: ignore[override]  # Panel's own serves a page
        """Draw the experts of ``design`` on the mesh that was chosen last."""
        self._drawn_design = design
        self.rank = min(self.rank, design.ranks - 1)
        self._routed = self._ask_routed(design)
        self.picture = picture_of(design, self.rank, self._routed)

    def look(self) -> None:
        """Offer what a run has measured that is just over."""
        if self.visible and self._drawn_design is not None and self._ask_routed(self._drawn_design) != self._routed:
            self.show(self._drawn_design)

    # one method a gesture

    def _on_pane(self, gesture: Mapping[str, Any]) -> None:
        if self._to_pane is not None:
            self._to_pane(value_of(gesture, "pane", plain_text))

    def _on_compare(self, gesture: Mapping[str, Any]) -> None:
        if self._compare is not None:
            self._compare()

    def _on_add(self, gesture: Mapping[str, Any]) -> None:
        self._edit("", edits.add_experts(self._open), "add experts to the model")

    def _on_mesh(self, gesture: Mapping[str, Any]) -> None:
        """Look at another mesh; nothing is edited."""
        self.rank = value_of(gesture, "mesh", int)
        self.show(self._open)

    def _on_setting(self, gesture: Mapping[str, Any]) -> None:
        key, value = value_of(gesture, "key", plain_text), gesture.get("value")
        if key == "load" and value not in LOADS_BY_NAME:
            self._load_as_measured(str(value))
            return
        section = edits.with_setting(self._open, key, value)
        title = expert_schedules[str(value)].title if key == "schedule" else "automatic" if value is None else value
        self._edit("experts", section, f"experts: {key} {title}")

    def _load_as_measured(self, run: str) -> None:
        """Take the load that a run measured; a load by hand stays as it is."""
        found = next((routed for routed in self._routed if routed.run == run), None)
        if found is not None:
            self._edit("experts.load", list(found.load), f"experts: load as {found.words}")
        elif run == NOT_MEASURED:
            raise InputError(
                "no run of this model has ended with its routing known; launch one, and how its gates chose is offered here"
            )

    def _on_move(self, gesture: Mapping[str, Any]) -> None:
        chips, to = _chips(gesture), value_of(gesture, "to", int)
        layer, names = self._layer, self._names
        homes = edits.move(_placed(layer), chips, to, names)
        self._place(homes, f"move {_said([expert for expert, _ in chips])} to {names[to]}")

    def _on_replicate(self, gesture: Mapping[str, Any]) -> None:
        """To the place that is given, or each to where it serves best."""
        experts = [expert for expert, _ in _chips(gesture)]
        to = None if gesture.get("to") is None else value_of(gesture, "to", int)
        homes = self._replicated(experts, to)
        where = "" if to is None else f" on {self._names[to]}"
        self._place(homes, f"replicate {_said(experts)}{where}")

    def _replicated(self, experts: Sequence[int], to: int | None) -> Homes:
        layer = self._layer
        if to is not None:
            return edits.replicate(_placed(layer), experts, to, self._names)
        firsts = range(0, layer.devices, layer.esp)
        load, nodes = device_load(layer, expert_schedule(self._open).places), [layer.node(device) for device in firsts]
        return edits.replicate_hot(_placed(layer), experts, [float(load[device]) for device in firsts], nodes)

    def _on_remove(self, gesture: Mapping[str, Any]) -> None:
        chips = _chips(gesture)
        homes = edits.remove(_placed(self._layer), chips, self._names)
        self._place(homes, f"remove a replica of {_said([expert for expert, _ in chips])}")

    def _on_balance(self, gesture: Mapping[str, Any]) -> None:
        extra = value_of(gesture, "extra", int)
        layer = self._layer
        homes = balance_experts(layer, extra, expert_schedule(self._open).places)
        if homes == _placed(layer) and self.picture["problem"] == "":  # else it is what makes them placed at all
            raise InputError("these experts are as balanced as this can make them; replicas give it more room")
        room = f", up to {extra} replica{'s' * (extra != 1)} a device" if extra else ""
        self._place(homes, f"balance the experts{room}")

    def _on_blocks(self, gesture: Mapping[str, Any]) -> None:
        self._edit("experts.placement", None, "experts in equal blocks")

    def _on_fix(self, gesture: Mapping[str, Any]) -> None:
        """Apply a fix of the problem because of which the layer cannot be drawn."""
        problem = edits.layer_problem(self._open, self.rank)
        self._edit(*fix_edit(self._open, problem, value_of(gesture, "fix", plain_text)))

    def _on_heat(self, gesture: Mapping[str, Any]) -> None:
        """Make experts more or less often chosen, to see what that would do."""
        experts, factor = [expert for expert, _ in _chips(gesture)], value_of(gesture, "factor", float)
        loads = edits.heat(self._layer.shares, experts, factor)
        self._edit("experts.load", loads, f"{_said(experts)} {'hotter' if factor > 1 else 'cooler'}")

    def _on_try(self, gesture: Mapping[str, Any]) -> None:
        """Say what a drop would do while the hand is over a place; nothing is edited."""
        told: dict[str, Any] = {"type": "tried", "number": gesture.get("number"), "refused": None, "words": ""}
        try:
            layer, chips, to = self._layer, _chips(gesture), value_of(gesture, "to", int)
            if gesture.get("copy"):
                homes = self._replicated([expert for expert, _ in chips], to)
            else:
                homes = edits.move(_placed(layer), chips, to, self._names)
            after = edits.refuse_unfit(self._open, self.rank, homes)
            told["words"] = consequences(self._open, self.rank, layer, after)
        except InputError as error:
            told["refused"] = short_message(error)
        self._send_msg(told)

    # what they share

    def _place(self, homes: Homes, label: str) -> None:
        layer = edits.refuse_unfit(self._open, self.rank, homes)
        self._edit("experts.placement", edits.placement(layer, homes), label)

    @property
    def _layer(self) -> Layer:
        return edits.drawn_layer(self._open, self.rank)

    @property
    def _names(self) -> list[str]:
        layer = self._layer
        return place_names(layer, edits.block_of(self._open, self.rank, layer)[0])

    @property
    def _open(self) -> Design:
        if self._drawn_design is None:
            raise InputError("no design is open")
        return self._drawn_design


# ---- what the widget is given ----


def picture_of(design: Design, rank: int, routed: Sequence[MeasuredLoad] = ()) -> dict[str, Any]:
    """All that is drawn: ``none`` without experts, ``unfit`` with the reason where their layer cannot
    be laid out, else ``ready``. ``routed`` are the loads that runs of the design measured."""
    if design.model.moe is None:
        return {"state": "none", "offer": offer(design)}
    common = {"meshes": [mesh.name for mesh in design.meshes], "mesh": rank, "controls": controls(design, routed)}
    try:
        layer = edits.drawn_layer(design, rank)
    except DesignError as error:
        (problem,) = error.problems
        return {**common, "state": "unfit", "reason": problem.message, "fixes": [fix.label for fix in problem.fixes]}
    if sum(map(len, _placed(layer))) + layer.devices > MOST_DRAWN:
        reason = (
            f"{layer.experts:,} experts on {layer.devices:,} devices are more than can be drawn; the form has them all"
        )
        return {**common, "state": "unfit", "reason": reason}
    devices, alike = edits.block_of(design, rank, layer)
    found = next(iter(expert_schedule(design).problems(edits.as_given(design, layer))), None)
    return {
        **common,
        **_drawn(design, layer, devices),
        "state": "ready",
        "about": [*([f"One of {alike} groups, all alike."] if alike > 1 else []), *slots(design, layer)],
        "problem": found.message if found else "",
        "equal": design.experts.placement is None and not found,
        "most_extra": min(MOST_EXTRA, layer.experts),
        **figures(design, rank, layer if found is None else None),
    }


def slots(design: Design, layer: Layer) -> list[str]:
    """What a load that is not even changes, and what it does not: with a capacity slots are computed filled or not."""
    if layer.load is None or (uses_tensor_parallel_groups(design) and layer.capacity_factor is None):
        return []
    if layer.capacity_factor is None:
        return [
            "Experts compute the tokens that they get, so the fullest device sets the pace; what is exchanged is padded "
            "to the hottest expert."
        ]
    return [
        f"Every expert has {layer.capacity:,} slots, filled or not: its load decides what is dropped, not how long it takes."
    ]


def offer(design: Design) -> str:
    """What the button of the empty state would add, in words."""
    section = edits.add_experts(design)
    moe, ep = section["model"]["moe"], section["experts"]["ep"]
    where = f"spread over {ep} devices of each mesh" if ep > 1 else "all on each device"
    return f"{moe['experts']} experts in {'every second block' if moe['every'] == 2 else 'the block'}, {where}"


def _drawn(design: Design, layer: Layer, devices: Sequence[int]) -> dict[str, Any]:
    """Places with what they carry, and the chips that they hold: each as hot as what it serves."""
    served = copy_load(layer, expert_schedule(design).places)  # [places, experts] parts of all visits
    load = len(served) * served.sum(axis=1)  # of each place, in even shares
    homes, copies, hottest = _placed(layer), layer.holders(layer.ep), float(served.max(initial=0.0))
    names = place_names(layer, devices)
    each = expert_bytes(design, layer)
    longest = max(LEAST_SCALE, float(load.max()))
    places = [
        {
            "name": names[place],
            "devices": [int(device) for device in devices[place * layer.esp : (place + 1) * layer.esp]],
            "node": layer.node(place * layer.esp),
            "held": list(held),
            "chips": [
                _chip(layer, expert, float(served[place, expert]), hottest, len(copies[expert])) for expert in held
            ],
            "level": level(float(load[place])),
            "load": f"{load[place]:.3g}×",
            "share": f"{100 * load[place] / layer.ep:.3g} %",
            "bar": float(load[place]) / longest,
            "memory": quantity(each * len(held), "B"),
        }
        for place, held in enumerate(homes)
    ]
    return {
        "places": places,
        "groups": groups(layer, devices),
        "esp": layer.esp,
        "even": 1 / longest,
        "terms": terms(design, layer),
    }


def _chip(layer: Layer, expert: int, served: float, hottest: float, copies: int) -> dict[str, Any]:
    """A copy of an expert, as hot and as large as the part of all visits that it serves itself."""
    whole = layer.shares[expert]
    words = f"expert {expert}: {100 * served:.3g} % of visits, {served * layer.experts:.3g}× an even share"
    if copies > 1:
        words = f"a copy of {words}; its {copies} copies together {100 * whole:.3g} %, {whole * layer.experts:.3g}×"
    return {
        "level": level(served * layer.experts),
        "size": (served / hottest) ** 0.5 if hottest else 1.0,
        "share": f"{100 * served:.3g} %",
        "words": words,
        "copies": copies,
    }


def _chips(gesture: Mapping[str, Any]) -> list[edits.Chip]:
    return value_of(gesture, "chips", lambda chips: [(int(expert), int(place)) for expert, place in chips])


def _said(experts: Sequence[int]) -> str:
    """Experts by number: all of a few, else how many."""
    numbers = list(dict.fromkeys(experts))
    if len(numbers) == 1:
        return f"expert {numbers[0]}"
    return f"experts {', '.join(map(str, numbers))}" if len(numbers) <= 4 else f"{len(numbers)} experts"
