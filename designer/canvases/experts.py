"""Experts on the devices of a mesh: the Python face of ``static/experts.js``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import Any, ClassVar

import numpy as np
import param
from numpy.typing import NDArray

from designer import expert_edits as edits
from designer.assets import module, read_static
from designer.canvases._canvas import Canvas, Edit
from designer.routed import Routed
from engine.cost.expert_blocks import expert_parameters
from engine.cost.flops import PRECISIONS, optimizer_state_bytes
from engine.design import Design
from engine.design.expert_layers import DEGREES, expert_schedule, folded, mesh_links, rates, resolved
from engine.errors import InputError
from engine.moe import (
    Homes,
    Layer,
    Price,
    balance,
    by_age,
    copy_load,
    device_load,
    dropped,
    expert_schedules,
    in_titles,
    play,
    price,
)
from engine.palette import LOAD_BOUNDS, LOADS, ink
from engine.units import percent, quantity

Floats = NDArray[np.float64]
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

    _esm = module("experts.js")
    _stylesheets: ClassVar = [
        read_static("canvas.css"), read_static("shell.css"), read_static("experts.css"), _load_colours(),
    ]  # fmt: skip
    _gestures = (
        "add", "mesh", "setting", "move", "replicate", "remove", "balance", "blocks", "heat", "try", "compare", "pane",
    )  # fmt: skip

    def __init__(
        self,
        on_edit: Edit | None = None,
        on_pane: Callable[[str], None] | None = None,
        on_compare: Callable[[], None] | None = None,
        routed: Callable[[Design], Sequence[Routed]] = lambda design: (),
        **params: Any,
    ) -> None:
        super().__init__(on_edit, **params)
        self._to_pane, self._compare, self._ask_routed = on_pane, on_compare, routed
        self._routed: Sequence[Routed] = ()
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
            self._to_pane(str(gesture["pane"]))

    def _on_compare(self, gesture: Mapping[str, Any]) -> None:
        if self._compare is not None:
            self._compare()

    def _on_add(self, gesture: Mapping[str, Any]) -> None:
        self._edit("", edits.add_experts(self._open), "add experts to the model")

    def _on_mesh(self, gesture: Mapping[str, Any]) -> None:
        """Look at another mesh; nothing is edited."""
        self.rank = int(gesture["mesh"])
        self.show(self._open)

    def _on_setting(self, gesture: Mapping[str, Any]) -> None:
        key, value = str(gesture["key"]), gesture["value"]
        if key == "load" and value not in LOADS_BY_NAME:
            self._load_as_measured(str(value))
            return
        section = edits.with_setting(self._open, key, value)
        title = expert_schedules[value].title if key == "schedule" else "automatic" if value is None else value
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
        chips, to = _chips(gesture), int(gesture["to"])
        layer, names = self._layer, self._names
        homes = edits.move(_placed(layer), chips, to, names)
        self._place(homes, f"move {_said([expert for expert, _ in chips])} to {names[to]}")

    def _on_replicate(self, gesture: Mapping[str, Any]) -> None:
        """To the place that is given, or each to where it serves best."""
        experts = [expert for expert, _ in _chips(gesture)]
        homes = self._replicated(experts, gesture.get("to"))
        where = "" if gesture.get("to") is None else f" on {self._names[int(gesture['to'])]}"
        self._place(homes, f"replicate {_said(experts)}{where}")

    def _replicated(self, experts: Sequence[int], to: int | None) -> Homes:
        layer = self._layer
        if to is not None:
            return edits.replicate(_placed(layer), experts, int(to), self._names)
        firsts = range(0, layer.devices, layer.esp)
        load, nodes = device_load(layer, expert_schedule(self._open).places), [layer.node(device) for device in firsts]
        return edits.replicate_hot(_placed(layer), experts, [float(load[device]) for device in firsts], nodes)

    def _on_remove(self, gesture: Mapping[str, Any]) -> None:
        chips = _chips(gesture)
        homes = edits.remove(_placed(self._layer), chips, self._names)
        self._place(homes, f"remove a replica of {_said([expert for expert, _ in chips])}")

    def _on_balance(self, gesture: Mapping[str, Any]) -> None:
        extra = int(gesture["extra"])
        layer = self._layer
        homes = balance(layer, extra, expert_schedule(self._open).places)
        if homes == _placed(layer) and self.picture["problem"] == "":  # else it is what makes them placed at all
            raise InputError("these experts are as balanced as this can make them; replicas give it more room")
        room = f", up to {extra} replica{'s' * (extra != 1)} a device" if extra else ""
        self._place(homes, f"balance the experts{room}")

    def _on_blocks(self, gesture: Mapping[str, Any]) -> None:
        self._edit("experts.placement", None, "experts in equal blocks")

    def _on_heat(self, gesture: Mapping[str, Any]) -> None:
        """Make experts more or less often chosen, to see what that would do."""
        experts, factor = [expert for expert, _ in _chips(gesture)], float(gesture["factor"])
        loads = edits.heat(self._layer.shares, experts, factor)
        self._edit("experts.load", loads, f"{_said(experts)} {'hotter' if factor > 1 else 'cooler'}")

    def _on_try(self, gesture: Mapping[str, Any]) -> None:
        """Say what a drop would do while the hand is over a place; nothing is edited."""
        told: dict[str, Any] = {"type": "tried", "number": gesture.get("number"), "refused": None, "words": ""}
        try:
            layer, chips, to = self._layer, _chips(gesture), int(gesture["to"])
            if gesture.get("copy"):
                homes = self._replicated([expert for expert, _ in chips], to)
            else:
                homes = edits.move(_placed(layer), chips, to, self._names)
            after = edits.refuse_unfit(self._open, self.rank, homes)
            told["words"] = consequences(self._open, self.rank, layer, after)
        except InputError as error:
            told["refused"] = str(error)
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


def picture_of(design: Design, rank: int, routed: Sequence[Routed] = ()) -> dict[str, Any]:
    """All that is drawn: ``none`` without experts, ``unfit`` with the reason where their layer cannot
    be laid out, else ``ready``. ``routed`` are the loads that runs of the design measured."""
    if design.model.moe is None:
        return {"state": "none", "offer": offer(design)}
    common = {"meshes": [mesh.name for mesh in design.meshes], "mesh": rank, "controls": controls(design, routed)}
    try:
        layer = edits.drawn_layer(design, rank)
    except InputError as error:
        return {**common, "state": "unfit", "reason": str(error)}
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
        "problem": in_titles(found.message) if found else "",
        "equal": design.experts.placement is None and not found,
        "most_extra": min(MOST_EXTRA, layer.experts),
        **figures(design, rank, layer if found is None else None),
    }


def slots(design: Design, layer: Layer) -> list[str]:
    """What a load that is not even changes, and what it does not: with a capacity slots are computed filled or not."""
    if layer.load is None or (folded(design) and layer.capacity_factor is None):
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


def groups(layer: Layer, devices: Sequence[int]) -> dict[str, list[list[int]]]:
    """The mp, esp and ep groups by the cluster's devices; those of one device alone are left out."""
    kinds = [kind for kind in ("mp", "esp", "ep") if layer.size(kind) > 1]
    return {kind: [[int(devices[member]) for member in group] for group in layer.groups(kind)] for kind in kinds}


def figures(design: Design, rank: int, layer: Layer | None) -> dict[str, Any]:
    """What the layer costs, in words; nothing where its schedule cannot run it."""
    if layer is None:
        return {"figures": [], "reason": ""}
    known = Known.of(design, rank, layer)
    inside, outside = known.sent
    most, mean = known.imbalance
    rows = [
        ("load", "Imbalance", f"{most / mean:.3g}×", "fullest over mean"),
        *([("dropped", "Dropped", known.dropped, "of visits at this load")] if known.dropped else []),
        ("inter", "Between nodes", quantity(outside.sum(), "B"), _busiest(outside)),
        ("intra", "Inside nodes", quantity(inside.sum(), "B"), _busiest(inside)),
        ("memory", "Memory", quantity(known.memory, "B"), "on the fullest"),
        ("time", "Time", quantity(known.forward_s, "s"), f"+ {quantity(known.backward_s, 's')} backward"),
    ]
    return {
        "figures": [
            {"key": key, "label": label, "value": value, "small": small, "help": FIGURE_HELP[key]}
            for key, label, value, small in rows
        ],
        "reason": in_titles(known.price.choice.reason) if known.price.choice else "",
    }


FIGURE_HELP = {
    "load": "Tokens that go to the fullest device, over the mean of all: 1× is balanced",
    "dropped": "Visits of tokens to experts that find no free slot and pass them by: so many are to be expected where "
    "tokens choose apart from each other. A larger capacity factor drops less, and none drops nothing",
    "inter": "Bytes that all devices together send to other nodes in the forward of one layer; ≤ is the most of any",
    "intra": "Bytes that all devices together send inside their nodes in the forward of one layer; ≤ is the most of any",
    "memory": "Weights, gradients and optimizer states of the experts of one layer, on the device that holds most",
    "time": "From the first step of the layer to its last one on the slowest device, for one microbatch",
}


def terms(design: Design, layer: Layer) -> dict[str, str]:
    """Words of the papers that sentences about this layer use, explained with its own numbers."""
    item = f"{layer.hidden:,} numbers of {layer.item_bytes} B"
    room = (
        "No token is dropped, so that it is what the hottest one needs"
        if layer.capacity_factor is None
        else f"Capacity factor {layer.capacity_factor:g} × top {layer.top_k} × tokens ÷ experts; "
        "a token that finds none free is dropped there"
    )
    return {
        "D": f"D: the slots of all experts, {layer.experts} × {layer.capacity:,} slots of {item}: "
        f"{quantity(layer.slots_bytes, 'B')}, whether they are filled or not",
        "X": f"X: the tokens that come into the layer, {layer.tokens:,} of {item}: {quantity(layer.input_bytes, 'B')}",
        "slots": f"Slot: room for one token at one expert; an expert has {layer.capacity:,}. {room}",
        "S1": "S1: each tensor-parallel device takes its part of the tokens, before the gate, and gathers them at the end",
        "S2": "S2: each tensor-parallel device takes its part of the slots, behind the gate, and gathers them as they come back",
        "gather": "Gather: the tensor-parallel devices bring their parts together again, inside their node",
        "exchange": "Exchange: every device sends tokens to those that hold their experts, and gets results back",
        "gate": "Gate: the small network that chooses the experts of each token",
        **{key: f"{key}: {HELP[key]}" for key in ("ep", "esp")},
        "dropped": "Dropped: a token that finds no free slot passes its expert by",
    }


def consequences(design: Design, rank: int, before: Layer, after: Layer) -> str:
    """What a change of homes does, in words: only what changes."""
    old, new = Known.of(design, rank, before), Known.of(design, rank, after)
    pairs = [
        ("load", *(f"{known.imbalance[0] / known.imbalance[1]:.3g}×" for known in (old, new))),
        ("between nodes", *(quantity(known.sent[1].sum(), "B") for known in (old, new))),
        ("inside", *(quantity(known.sent[0].sum(), "B") for known in (old, new))),
        ("memory", *(quantity(known.memory, "B") for known in (old, new))),
        ("forward", *(quantity(known.forward_s, "s") for known in (old, new))),
    ]
    return " · ".join(f"{name} {was} → {now}" for name, was, now in pairs if was != now) or "no figure changes"


class Known:
    """A layer priced: a forward's bytes, both directions' time, memory."""

    def __init__(self, design: Design, layer: Layer, priced: Price) -> None:
        self.price = priced
        self.sent = np.sum([costed.sent for costed in priced.forward], axis=0)  # [2, devices] inside, between
        load = device_load(layer, expert_schedules[priced.name].places)
        self.imbalance = float(load.max()), float(load.mean())
        has_room = layer.capacity_factor is not None
        self.dropped = percent(dropped(priced.name, priced.layer)).replace("%", " %") if has_room else ""
        self.forward_s = play(priced, priced.forward).makespan
        self.backward_s = play(priced, priced.backward).makespan
        self.memory = expert_bytes(design, layer) * max(map(len, _placed(layer)))

    @classmethod
    def of(cls, design: Design, rank: int, layer: Layer) -> Known:
        return cls(design, layer, priced(design, rank, layer))


def priced(design: Design, rank: int, layer: Layer) -> Price:
    """The layer on a mesh under its schedule, with as many chunks as the model of cost chooses where that is open."""
    mesh = design.meshes[rank]
    layer = replace(layer, degree=resolved(design, mesh).layer.degree)
    return price(design.experts.member, layer, mesh_links(design, mesh), rates(design))


def expert_bytes(design: Design, layer: Layer) -> float:
    """Weights, gradients and optimizer states of one expert on one of the devices that share it."""
    size, training = PRECISIONS[design.training.precision], design.training
    states = optimizer_state_bytes(training.optimizer, training.precision)
    cut = layer.esp if expert_schedule(design).cuts else 1
    return expert_parameters(layer, cut) * (size.weights + size.copy + size.gradients + states)


def level(shares: float) -> int:
    """The colour of a load in even shares: 3 is balanced."""
    return int(np.searchsorted(LOAD_BOUNDS, shares, side="right"))


def place_names(layer: Layer, devices: Sequence[int]) -> list[str]:
    """``device 3``, or ``devices 4-5`` where two share their experts."""
    names = []
    for place in range(layer.ep):
        own = devices[place * layer.esp : (place + 1) * layer.esp]
        names.append(f"device {own[0]}" if len(own) == 1 else f"devices {own[0]}-{own[-1]}")
    return names


# ---- what can be set ----


def controls(design: Design, routed: Sequence[Routed] = ()) -> list[dict[str, Any]]:
    """The settings of the experts: each with its words, its value and what it can be set to."""
    experts = design.experts
    idle = edits.idle(design)
    return [
        _control("schedule", "schedule", experts.schedule, _schedules()),
        _control("ep", "ep", experts.ep, [] if idle else _sizes(design, "ep"), idle),
        _control("esp", "esp", experts.esp, [] if idle else _sizes(design, "esp"), idle),
        _control(
            "degree", "chunks", experts.degree, [_option(None, "automatic"), *(_option(n, str(n)) for n in DEGREES)]
        ),
        _control("load", "load", *_loads(design, routed)),
    ]


LOADS_BY_NAME = ("uniform", "zipf")
BY_HAND, NOT_MEASURED = "by hand", "not measured"


def _loads(design: Design, routed: Sequence[Routed]) -> tuple[str, list[dict[str, Any]]]:
    """The load that is set, and those that can be: by name, by hand, and as runs of this model measured it."""
    given = design.experts.load
    options = [_option("uniform", "uniform"), _option("zipf", "Zipf")]
    options += [_option(each.run, each.words) for each in routed]
    if not routed:
        options.append(_option(NOT_MEASURED, "measured: no run yet"))
    if not isinstance(given, tuple):
        return given or "uniform", options
    same = next((each.run for each in routed if each.load == given), None)
    return same or BY_HAND, options if same else [*options, _option(BY_HAND, "by hand")]


HELP = {
    "schedule": "The order of communication and compute inside an expert layer",
    "ep": "Expert parallel: places that hold different experts",
    "esp": "Expert sharding: devices that share one expert, each a part of its width",
    "degree": "Chunks in which tokens are exchanged and computed, so that one hides behind another",
    "load": "How tokens spread over the experts: by name, as a run measured it, or by hand with + and - on a chip",
}


def _control(key: str, label: str, value: Any, options: list[dict[str, Any]], reason: str = "") -> dict[str, Any]:
    words = {option["value"]: option["text"] for option in options} if isinstance(value, str) else {}
    text = words.get(value, "automatic" if value is None else str(value))
    return {
        "key": key, "label": label, "value": value, "text": text, "options": options, "help": HELP[key], "reason": reason,
    }  # fmt: skip


def _option(value: Any, text: str) -> dict[str, Any]:
    return {"value": value, "text": text}


def _schedules() -> list[dict[str, Any]]:
    """Every schedule that is offered; one that cannot run the layer can be chosen, and then says why."""
    return [_option(name, expert_schedules[name].title) for name in by_age()]


def _sizes(design: Design, key: str) -> list[dict[str, Any]]:
    """Sizes whose groups divide every mesh, with what the other size becomes."""
    other = "esp" if key == "ep" else "ep"
    options = []
    for size in edits.divisors(gcd(*edits.sizes(design))):
        became = edits.with_setting(design, key, size)[other]
        follows = f"{size} ({other} {became})" if became != getattr(design.experts, other) else str(size)
        options.append(_option(size, follows))
    return options


# ---- small things ----


def _placed(layer: Layer) -> Homes:
    return layer.placed(layer.ep)


def _busiest(sent: Floats) -> str:
    return f"≤ {quantity(sent.max(), 'B')} each" if sent.any() else ""


def _chips(gesture: Mapping[str, Any]) -> list[edits.Chip]:
    return [(int(expert), int(place)) for expert, place in gesture["chips"]]


def _said(experts: Sequence[int]) -> str:
    """Experts by number: all of a few, else how many."""
    numbers = list(dict.fromkeys(experts))
    if len(numbers) == 1:
        return f"expert {numbers[0]}"
    return f"experts {', '.join(map(str, numbers))}" if len(numbers) <= 4 else f"{len(numbers)} experts"
