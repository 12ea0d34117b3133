"""Experts on the devices of a mesh; the Python side of ``static/experts/experts.js``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import param

from meshwave.designer.canvases.difference_marks import MarkedCanvas
from meshwave.designer.canvases.expert_controls import LOADS_BY_NAME, NOT_MEASURED, expert_settings
from meshwave.designer.canvases.expert_metrics import (
    describe_change,
    device_groups,
    expert_bytes,
    explain_terms,
    explicit_placement,
    layer_metrics,
    load_level,
    place_devices,
    place_name,
    price_layer,
)
from meshwave.designer.kit.canvas import Edit, read_value, short_message, widget
from meshwave.designer.kit.shortcuts import canvas_commands
from meshwave.designer.kit.traffic import traffic_data
from meshwave.designer.state import expert_edits as edits
from meshwave.designer.state.design_edits import fix_edit
from meshwave.designer.state.measured_load import MeasuredLoad
from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import COMMON, expert_schedule, uses_tensor_parallel_groups
from meshwave.engine.errors import InputError
from meshwave.engine.experts import (
    Layer,
    Placement,
    balance_experts,
    device_load,
    equal_blocks,
    expert_schedules,
    load_per_replica,
)
from meshwave.engine.exports.pictures.palette import LOADS, text_colour
from meshwave.engine.findings import DesignError, Refusal
from meshwave.engine.predict.expert_comparison import exchange_traffic
from meshwave.engine.units import format_count, percent, quantity

MOST_DRAWN = 20_000
"""Largest number of chips; more cannot be distinguished."""
MOST_EXTRA = 4
LEAST_SCALE = 2.0
"""Smallest range of the load bars, relative to an even load: a balanced device fills half of its bar."""


def _load_colours() -> str:
    """Return the CSS rule with the colours of loads, ``--load-0`` ..., and of text on them, ``--on-load-0`` ..."""
    colours = [
        f"--load-{level}: light-dark({light}, {dark}); --on-load-{level}: light-dark({text_colour(light)}, {text_colour(dark)});"
        for level, (light, dark) in enumerate(zip(LOADS["light"], LOADS["dark"], strict=True))
    ]
    return f".mw-experts {{ {' '.join(colours)} }}"


Chips = Annotated[list[edits.Chip], lambda chips: [(int(expert), int(place)) for expert, place in chips]]
"""Chips in a gesture: pairs of an expert and a place."""


@widget("experts/experts.js", "kit/shell.css", "kit/traffic.css", "kit/differences.css", rules=_load_colours())
class ExpertsCanvas(MarkedCanvas):
    """Widget that shows the experts of a layer as chips on their devices, to be moved, replicated and balanced.

    :meth:`show` draws a design. ``on_edit`` is called with ``experts``, one of its keys, or the empty path when the
    model gets experts; ``on_pane`` with the name of the pane to show instead; ``on_compare`` to compare the schedules.
    ``find_loads`` returns the loads that runs of a design measured.
    """

    picture = param.Dict(default={"state": "none"}, doc="Data that is drawn, as experts_picture() returns it.")

    commands = param.List(default=canvas_commands("Experts"), constant=True, doc="Entries of the context menu.")

    def __init__(
        self,
        on_edit: Edit | None = None,
        on_pane: Callable[[str], None] | None = None,
        on_compare: Callable[[], None] | None = None,
        find_loads: Callable[[Design], Sequence[MeasuredLoad]] = lambda design: (),
        **params: Any,
    ) -> None:
        super().__init__(on_edit, **params)
        self._on_pane_chosen, self._on_comparison, self._find_loads = on_pane, on_compare, find_loads
        self._measured_loads: Sequence[MeasuredLoad] = ()
        self._shown_design: Design | None = None
        self.rank, self.layer = 0, COMMON

    def show(self, design: Design) -> None:  # type: ignore[override]  # Panel's own serves a page
        """Draw the experts of ``design`` on the mesh and of the layer that were chosen last."""
        self._shown_design = design
        self.rank = min(self.rank, design.ranks - 1)
        self.layer = self.layer if self.layer in design.model.expert_blocks else COMMON
        self._measured_loads = self._find_loads(design)
        self.picture = experts_picture(design, self.rank, self._measured_loads, self.layer)

    def refresh_loads(self) -> None:
        """Update the list of measured loads after a run has ended."""
        if (
            self.visible
            and self._shown_design is not None
            and self._find_loads(self._shown_design) != self._measured_loads
        ):
            self.show(self._shown_design)

    # ---- gestures ----

    def _on_pane(self, pane: str) -> None:
        if self._on_pane_chosen is not None:
            self._on_pane_chosen(pane)

    def _on_compare(self) -> None:
        if self._on_comparison is not None:
            self._on_comparison()

    def _on_traffic(self) -> None:
        """Send the bytes that devices exchange in the forward of the layer."""
        design, layer = self._open_design, self._layer
        priced = price_layer(design, self.rank, layer)
        devices, _ = edits.find_block(design, self.rank, layer)
        found = exchange_traffic(priced, priced.forward, devices)
        title = f"All-to-all traffic of {expert_schedules[priced.name].title}, forward of a layer"
        self.send({"type": "traffic", **traffic_data(found, title, "device")})

    def _on_add(self) -> None:
        self._edit("", edits.add_experts(self._whole_design), "add experts to the model")

    def _on_mesh(self, mesh: int) -> None:
        """Show another mesh; nothing is edited."""
        self.rank = mesh
        self.show(self._whole_design)

    def _on_setting(self, key: str, value: Any = None) -> None:
        if key == "layer":
            self.layer = read_value({"value": value}, "value", int)
            self.show(self._whole_design)
            return
        if key == "load":
            if value in LOADS_BY_NAME:
                self._edit_layer("load", value, f"experts: load {value}")
            else:
                self._use_measured_load(str(value))
            return
        section = read_value({"value": value}, "value", partial(edits.change_setting, self._whole_design, key))
        title = expert_schedules[str(value)].title if key == "schedule" else "automatic" if value is None else value
        self._edit("experts", section, f"experts: {key} {title}")

    def _use_measured_load(self, run: str) -> None:
        """Set the load that a run measured; a manual load stays unchanged."""
        found = next((load for load in self._measured_loads if load.run == run), None)
        if found is not None:
            self._edit_layer("load", list(found.load), f"set the expert load to {found.label}")
        elif run == NOT_MEASURED:
            raise Refusal("load_not_measured")

    def _on_move(self, chips: Chips, to: int) -> None:
        layer, places = self._layer, self._places
        placement = edits.move_experts(explicit_placement(layer), chips, to, places)
        self._apply_placement(
            placement, f"move {_name_experts([expert for expert, _ in chips])} to {place_name(places[to])}"
        )

    def _on_replicate(self, chips: Chips, to: int | None = None) -> None:
        """Add a replica of each expert on the given place, or on the best place for the expert."""
        experts = [expert for expert, _ in chips]
        placement = self._replicate(experts, to)
        where = "" if to is None else f" on {place_name(self._places[to])}"
        self._apply_placement(placement, f"replicate {_name_experts(experts)}{where}")

    def _replicate(self, experts: Sequence[int], to: int | None) -> Placement:
        layer = self._layer
        if to is not None:
            return edits.replicate_experts(explicit_placement(layer), experts, to, self._places)
        firsts = range(0, layer.devices, layer.esp)
        load, nodes = (
            device_load(layer, expert_schedule(self._open_design).places),
            [layer.node(device) for device in firsts],
        )
        return edits.place_replicas(
            explicit_placement(layer), experts, [float(load[device]) for device in firsts], nodes
        )

    def _on_remove(self, chips: Chips) -> None:
        placement = edits.remove_replicas(explicit_placement(self._layer), chips, self._places)
        self._apply_placement(placement, f"remove a replica of {_name_experts([expert for expert, _ in chips])}")

    def _on_balance(self, extra: int) -> None:
        layer = self._layer
        placement = balance_experts(layer, extra, expert_schedule(self._open_design).places)
        if (
            placement == explicit_placement(layer) and self.picture["problem"] == ""
        ):  # with a problem, an equal placement fixes it
            raise Refusal("no_better_balance")
        replicas = f", up to {format_count(extra, 'replica')} per device" if extra else ""
        self._apply_placement(placement, f"balance experts{replicas}")

    def _on_blocks(self) -> None:
        layer = self._layer
        self._edit_placement(equal_blocks(layer.experts, layer.ep), "place the experts in equal blocks")

    def _on_fix(self, fix: str) -> None:
        """Apply a fix of the problem that prevents drawing the layer."""
        problem = edits.layer_problem(self._whole_design, self.rank)
        self._edit(*fix_edit(self._whole_design, problem, fix))

    def _on_heat(self, chips: Chips, factor: float) -> None:
        """Scale the load of experts."""
        experts = [expert for expert, _ in chips]
        loads = edits.scale_loads(self._layer.shares, experts, factor)
        self._edit_layer(
            "load", loads, f"{'increase' if factor > 1 else 'decrease'} the load of {_name_experts(experts)}"
        )

    def _on_try(self, chips: Chips, to: int, number: Any = None, copy: bool = False) -> None:
        """Describe the effect of a drop while chips are dragged over a place; nothing is edited."""
        answer: dict[str, Any] = {"type": "tried", "number": number, "refused": None, "words": ""}
        try:
            layer = self._layer
            if copy:
                placement = self._replicate([expert for expert, _ in chips], to)
            else:
                placement = edits.move_experts(explicit_placement(layer), chips, to, self._places)
            after = edits.check_placement(self._open_design, self.rank, placement)
            answer["words"] = describe_change(self._open_design, self.rank, layer, after)
        except InputError as error:
            answer["refused"] = short_message(error)
        self._send_msg(answer)

    # ---- helpers of the gestures ----

    def _apply_placement(self, placement: Placement, label: str) -> None:
        edits.check_placement(self._open_design, self.rank, placement)
        self._edit_placement(placement, label)

    def _edit_placement(self, placement: Placement, label: str) -> None:
        setting = edits.placement_setting(self._layer, placement)
        if setting is None and self.layer != COMMON and self._whole_design.experts.placement is not None:
            setting = [list(held) for held in placement for _ in range(self._layer.esp)]
        self._edit_layer("placement", setting, label)

    def _edit_layer(self, key: str, value: Any, label: str) -> None:
        """Set the placement or the load of the layer shown."""
        where = "" if self.layer == COMMON else f" in layer {self.layer}"
        self._edit(*edits.layer_setting_edit(self._whole_design, self.layer, key, value), f"{label}{where}")

    @property
    def _layer(self) -> Layer:
        return edits.drawn_layer(self._open_design, self.rank)

    @property
    def _places(self) -> list[list[int]]:
        layer = self._layer
        return place_devices(layer, edits.find_block(self._open_design, self.rank, layer)[0])

    @property
    def _open_design(self) -> Design:
        """Design with the placement and load of the layer shown."""
        return edits.design_of_layer(self._whole_design, self.layer)

    @property
    def _whole_design(self) -> Design:
        if self._shown_design is None:
            raise Refusal("no_open_design")
        return self._shown_design


# ---- data of the widget ----


def experts_picture(
    design: Design, rank: int, measured: Sequence[MeasuredLoad] = (), number: int = COMMON
) -> dict[str, Any]:
    """Return the data that the canvas draws for layer ``number`` on a mesh.

    ``state`` is ``none`` without experts, ``unfit`` with a reason if the layer cannot be drawn, else ``ready``.
    ``measured`` are the loads that runs of the design measured.
    """
    if design.model.moe is None:
        return {"state": "none", "offer": added_experts_text(design)}
    common = {
        "meshes": [mesh.name for mesh in design.meshes],
        "mesh": rank,
        "controls": expert_settings(design, measured, number),
    }
    design = edits.design_of_layer(design, number)
    try:
        layer = edits.drawn_layer(design, rank)
    except DesignError as error:
        (problem,) = error.problems
        return {**common, "state": "unfit", "reason": problem.message, "fixes": [fix.label for fix in problem.fixes]}
    if sum(map(len, explicit_placement(layer))) + layer.devices > MOST_DRAWN:
        reason = f"{layer.experts:,} experts on {layer.devices:,} devices are too many to draw; use the form"
        return {**common, "state": "unfit", "reason": reason}
    devices, alike = edits.find_block(design, rank, layer)
    found = next(iter(expert_schedule(design).problems(edits.restore_implicit_placement(design, layer))), None)
    return {
        **common,
        **_placement_data(design, layer, devices),
        "state": "ready",
        "about": [*([f"One of {alike} identical groups."] if alike > 1 else []), *load_notes(design, layer)],
        "problem": found.message if found else "",
        "equal": design.experts.placement is None and not found,
        "most_extra": min(MOST_EXTRA, layer.experts),
        **layer_metrics(design, rank, layer if found is None else None),
    }


def load_notes(design: Design, layer: Layer) -> list[str]:
    """Return notes on the effects of an uneven load."""
    if layer.load is None or (uses_tensor_parallel_groups(design) and layer.capacity_factor is None):
        return []
    if layer.capacity_factor is None:
        return [
            "Experts compute only the tokens that they receive, so the most loaded device determines the time; exchanged "
            "buffers are padded to the most loaded expert."
        ]
    return [
        f"Every expert computes {layer.capacity:,} slots, including empty ones: the load changes the dropped tokens, not "
        "the time."
    ]


def added_experts_text(design: Design) -> str:
    """Describe the experts that a click adds to a model without experts."""
    section = edits.add_experts(design)
    moe, ep = section["model"]["moe"], section["experts"]["ep"]
    where = f"distributed over {ep} devices of each mesh" if ep > 1 else "every device holds all of them"
    return f"{moe['experts']} experts in {'every second block' if moe['every'] == 2 else 'the block'}, {where}"


def _placement_data(design: Design, layer: Layer, devices: Sequence[int]) -> dict[str, Any]:
    """Return the load and the chips of each place; a place is a device or a group of devices that share experts."""
    served = load_per_replica(layer, expert_schedule(design).places)  # [places, experts]
    load = len(served) * served.sum(axis=1)  # [places] in even shares
    placement, copies, hottest = explicit_placement(layer), layer.holders(layer.ep), float(served.max(initial=0.0))
    each = expert_bytes(design, layer)
    longest = max(LEAST_SCALE, float(load.max()))
    places = [
        {
            "name": place_name(own),
            "devices": own,
            "node": layer.node(place * layer.esp),
            "held": list(held),
            "chips": [
                _chip(layer, expert, float(served[place, expert]), hottest, len(copies[expert])) for expert in held
            ],
            "level": load_level(float(load[place])),
            "load": f"{load[place]:.3g}×",
            "share": percent(load[place] / layer.ep),
            "bar": float(load[place]) / longest,
            "memory": quantity(each * len(held), "B"),
        }
        for place, (own, held) in enumerate(zip(place_devices(layer, devices), placement, strict=True))
    ]
    return {
        "places": places,
        "groups": device_groups(layer, devices),
        "esp": layer.esp,
        "even": 1 / longest,
        "terms": explain_terms(layer),
    }


def _chip(layer: Layer, expert: int, served: float, hottest: float, copies: int) -> dict[str, Any]:
    """Return the chip of a replica; its colour and size show the share of token assignments that it serves."""
    whole = layer.shares[expert]
    words = f"expert {expert}: {percent(served)} of token assignments, {served * layer.experts:.3g}× an even share"
    if copies > 1:
        words = (
            f"replica of {words}; its {copies} replicas together receive {percent(whole)} "
            f"({whole * layer.experts:.3g}× an even share)"
        )
    return {
        "level": load_level(served * layer.experts),
        "size": (served / hottest) ** 0.5 if hottest else 1.0,
        "share": percent(served),
        "words": words,
        "copies": copies,
    }


def _name_experts(experts: Sequence[int]) -> str:
    """Name up to four experts by number; for more, return their count."""
    numbers = list(dict.fromkeys(experts))
    if len(numbers) == 1:
        return f"expert {numbers[0]}"
    return f"experts {', '.join(map(str, numbers))}" if len(numbers) <= 4 else f"{len(numbers)} experts"
