"""Metrics that the expert canvas shows for a layer: load, bytes sent, memory and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.designer.canvases.expert_controls import HELP
from meshwave.engine.costs.flops import optimizer_state_bytes
from meshwave.engine.costs.operators import element_sizes
from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import device_rates, expert_schedule, mesh_links, resolve_expert_layer
from meshwave.engine.experts import (
    Layer,
    Placement,
    Price,
    device_load,
    dropped_token_share,
    expert_schedules,
    price_expert_schedule,
    simulate_layer,
)
from meshwave.engine.exports.pictures.palette import LOAD_BOUNDS
from meshwave.engine.units import percent, quantity

Floats = NDArray[np.float64]


def device_groups(layer: Layer, devices: Sequence[int]) -> dict[str, list[list[int]]]:
    """Return the mp, esp and ep groups as devices of the cluster, without groups of one device."""
    kinds = [kind for kind in ("mp", "esp", "ep") if layer.size(kind) > 1]
    return {kind: [[int(devices[member]) for member in group] for group in layer.groups(kind)] for kind in kinds}


def layer_metrics(design: Design, rank: int, layer: Layer | None) -> dict[str, Any]:
    """Return the costs of the layer as texts; empty if its schedule cannot run it."""
    if layer is None:
        return {"figures": [], "reason": ""}
    known = LayerCosts.compute(design, rank, layer)
    inside, outside = known.sent
    most, mean = known.imbalance
    rows = [
        ("load", "Imbalance", f"{most / mean:.3g}×", "maximum / mean"),
        *([("dropped", "Dropped", known.dropped, "of token assignments")] if known.dropped else []),
        ("inter", "Between nodes", quantity(outside.sum(), "B"), _largest_message_text(outside)),
        ("intra", "Inside nodes", quantity(inside.sum(), "B"), _largest_message_text(inside)),
        ("memory", "Memory", quantity(known.memory, "B"), "on the device with the most"),
        ("time", "Time", quantity(known.forward_s, "s"), f"+ {quantity(known.backward_s, 's')} backward"),
    ]
    return {
        "figures": [
            {"key": key, "label": label, "value": value, "small": small, "help": METRIC_HELP[key]}
            for key, label, value, small in rows
        ],
        "reason": known.price.choice.titled_reason if known.price.choice else "",
    }


METRIC_HELP = {
    "load": "Tokens of the most loaded device divided by the mean over all devices: 1× is balanced",
    "dropped": "Expected share of token assignments that find no free slot, if tokens choose experts independently. "
    "A larger capacity factor drops fewer tokens; without a capacity factor, no token is dropped",
    "inter": "Bytes that all devices send to other nodes in the forward of one layer; ≤ marks the maximum per device",
    "intra": "Bytes that all devices send inside their nodes in the forward of one layer; ≤ marks the maximum per device",
    "memory": "Weights, gradients and optimizer states of the experts of one layer, on the device with the most of them",
    "time": "Time of the layer on the slowest device, for one microbatch",
}


def explain_terms(layer: Layer) -> dict[str, str]:
    """Return explanations of the terms of the papers, with the numbers of a layer, by term."""
    item = f"{layer.hidden:,} values of {layer.item_bytes} B"
    capacity = (
        "No token is dropped, so the most loaded expert determines the number of slots"
        if layer.capacity_factor is None
        else f"Capacity factor {layer.capacity_factor:g} × top {layer.top_k} × tokens ÷ experts; "
        "a token that finds no free slot is dropped"
    )
    return {
        "D": f"D: the slots of all experts, including empty ones: {layer.experts} experts × {layer.capacity:,} slots × "
        f"{item} = {quantity(layer.slots_bytes, 'B')}",
        "X": f"X: the input of the layer: {layer.tokens:,} tokens × {item} = {quantity(layer.input_bytes, 'B')}",
        "slots": f"Slot: capacity for one token at one expert; an expert has {layer.capacity:,} slots. {capacity}",
        "S1": "S1: tensor-parallel devices split the tokens before the gate, and gather them at the end",
        "S2": "S2: tensor-parallel devices split the slots after the gate, and gather them when they return",
        "gather": "Gather: all-gather of the shards of the tensor-parallel devices, within their node",
        "exchange": "Exchange: each device sends tokens to the devices that hold their experts, and receives the results",
        "gate": "Gate: the network that chooses the experts of each token",
        **{key: f"{key}: {HELP[key]}" for key in ("ep", "esp")},
        "dropped": "Dropped: a token that finds no free slot skips its expert",
    }


def describe_change(design: Design, rank: int, before: Layer, after: Layer) -> str:
    """Describe the metrics that a change of placement changes."""
    old, new = LayerCosts.compute(design, rank, before), LayerCosts.compute(design, rank, after)
    pairs = [
        ("load", *(f"{known.imbalance[0] / known.imbalance[1]:.3g}×" for known in (old, new))),
        ("between nodes", *(quantity(known.sent[1].sum(), "B") for known in (old, new))),
        ("inside", *(quantity(known.sent[0].sum(), "B") for known in (old, new))),
        ("memory", *(quantity(known.memory, "B") for known in (old, new))),
        ("forward", *(quantity(known.forward_s, "s") for known in (old, new))),
    ]
    return " · ".join(f"{name} {was} → {now}" for name, was, now in pairs if was != now) or "no change"


class LayerCosts:
    """Costs of an expert layer: bytes sent in the forward, times of forward and backward, memory and load."""

    def __init__(self, design: Design, layer: Layer, price: Price) -> None:
        self.price = price
        self.sent = np.sum([costed.sent for costed in price.forward], axis=0)  # [2, devices] inside, between
        load = device_load(layer, expert_schedules[price.name].places)
        self.imbalance = float(load.max()), float(load.mean())
        has_room = layer.capacity_factor is not None
        self.dropped = percent(dropped_token_share(price.name, price.layer)) if has_room else ""
        self.forward_s = simulate_layer(price, price.forward).makespan
        self.backward_s = simulate_layer(price, price.backward).makespan
        self.memory = expert_bytes(design, layer) * max(map(len, explicit_placement(layer)))

    @classmethod
    def compute(cls, design: Design, rank: int, layer: Layer) -> LayerCosts:
        """Compute the costs of a layer on a mesh."""
        return cls(design, layer, price_layer(design, rank, layer))


def price_layer(design: Design, rank: int, layer: Layer) -> Price:
    """Return the price of a layer on a mesh; if the number of chunks is automatic, the cost model chooses it."""
    mesh = design.meshes[rank]
    layer = replace(layer, degree=resolve_expert_layer(design, mesh).layer.degree)
    return price_expert_schedule(design.experts.member, layer, mesh_links(design, mesh), device_rates(design))


def expert_bytes(design: Design, layer: Layer) -> float:
    """Return the bytes of weights, gradients and optimizer states of one expert on one of its devices."""
    size, training = element_sizes(design.training), design.training
    states = optimizer_state_bytes(training)
    cut = layer.esp if expert_schedule(design).shards_experts else 1
    return layer.expert_parameters(cut) * (size.weights + size.copy + size.gradients + states)


def load_level(shares: float) -> int:
    """Return the colour index of a load, given relative to an even load; 3 is balanced."""
    return int(np.searchsorted(LOAD_BOUNDS, shares, side="right"))


def place_devices(layer: Layer, devices: Sequence[int]) -> list[list[int]]:
    """Return the devices of each place, which share their experts."""
    return [
        [int(device) for device in devices[first : first + layer.esp]] for first in range(0, layer.devices, layer.esp)
    ]


def place_name(devices: Sequence[int]) -> str:
    """Return the name of a place, such as ``device 3`` or ``devices 4-5``."""
    return f"device {devices[0]}" if len(devices) == 1 else f"devices {devices[0]}-{devices[-1]}"


# ---- helpers ----


def explicit_placement(layer: Layer) -> Placement:
    """Return the experts of each place."""
    return layer.experts_by_place(layer.ep)


def _largest_message_text(sent: Floats) -> str:
    return f"≤ {quantity(sent.max(), 'B')} each" if sent.any() else ""
