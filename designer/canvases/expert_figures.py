"""Experts on the devices of a mesh: the Python face of ``static/experts/experts.js``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.designer.canvases.expert_controls import HELP
from meshwave.engine.costs.flops import optimizer_state_bytes
from meshwave.engine.costs.operators import PRECISIONS
from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import device_rates, expert_schedule, mesh_links, resolve_expert_layer
from meshwave.engine.experts import (
    Homes,
    Layer,
    Price,
    device_load,
    dropped_shares,
    expert_schedules,
    play_layer,
    price,
)
from meshwave.engine.exports.pictures.palette import LOAD_BOUNDS
from meshwave.engine.units import percent, quantity

Floats = NDArray[np.float64]


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
        "reason": known.price.choice.titled_reason if known.price.choice else "",
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
        self.dropped = percent(dropped_shares(priced.name, priced.layer)).replace("%", " %") if has_room else ""
        self.forward_s = play_layer(priced, priced.forward).makespan
        self.backward_s = play_layer(priced, priced.backward).makespan
        self.memory = expert_bytes(design, layer) * max(map(len, _placed(layer)))

    @classmethod
    def of(cls, design: Design, rank: int, layer: Layer) -> Known:
        return cls(design, layer, priced(design, rank, layer))


def priced(design: Design, rank: int, layer: Layer) -> Price:
    """The layer on a mesh under its schedule, with as many chunks as the model of cost chooses where that is open."""
    mesh = design.meshes[rank]
    layer = replace(layer, degree=resolve_expert_layer(design, mesh).layer.degree)
    return price(design.experts.member, layer, mesh_links(design, mesh), device_rates(design))


def expert_bytes(design: Design, layer: Layer) -> float:
    """Weights, gradients and optimizer states of one expert on one of the devices that share it."""
    size, training = PRECISIONS[design.training.precision], design.training
    states = optimizer_state_bytes(training.optimizer, training.precision)
    cut = layer.esp if expert_schedule(design).shards_experts else 1
    return layer.expert_parameters(cut) * (size.weights + size.copy + size.gradients + states)


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


# ---- small things ----


def _placed(layer: Layer) -> Homes:
    return layer.expert_homes(layer.ep)


def _busiest(sent: Floats) -> str:
    return f"≤ {quantity(sent.max(), 'B')} each" if sent.any() else ""
