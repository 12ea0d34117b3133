"""Costs of layers with experts: attention, gate, experts on the devices of a mesh, and their messages.

The times are those of :func:`meshwave.engine.experts.simulate_layer`, which the timeline of the layer shows too. Bytes and
parameters are those of the device that holds the most, or of a given device of the group that shares the experts.

Between forward and backward, the experts keep the rows and both sides of the GELU: ``R (M + 2H / esp)``, with ``R``
rows on a device, hidden size ``M`` and expert hidden size ``H``, sharded by ``esp``, or ``R (M + 3H / esp)`` if they are
gated; in fp8, one byte per element of what the products read. The dispatch buffers are part of
it: ``N_ESP D`` for the baseline and ``N_ESP D / N_MP`` for Parm. Also kept are the slots that the gate's weights
multiply, and the input and probabilities of the gate. The backward makes the gradient of the GELU's input besides that
of its output, and later the gradients of rows and weights before they are accumulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from meshwave.engine.costs import transformer_layers as flops
from meshwave.engine.costs.operators import FLOAT8_BYTES, SCALE_BYTES, Operator, Work, Workload
from meshwave.engine.costs.overlapped_slots import Piece, Pieces, join_pieces
from meshwave.engine.document import Design, Mesh
from meshwave.engine.document.expert_layers import COMMON, device_rates, mesh_links, resolve_expert_layer
from meshwave.engine.document.model import MoE
from meshwave.engine.experts import (
    CostedStep,
    Layer,
    LayerTimeline,
    Links,
    Price,
    Rates,
    StepOp,
    expert_schedules,
    experts_per_device,
    max_experts_per_device,
    price_expert_schedule,
    simulate_layer,
)
from meshwave.engine.program.action import Op

Sent = tuple[tuple[float, ...], tuple[float, ...]]
"""Bytes that each device of a block of experts sends inside its node, and to other nodes; two tuples ``[devices]``."""


@dataclass(frozen=True)
class ExpertBlock:
    """Costs of one layer with experts on one device of a mesh, for one microbatch."""

    operators: tuple[Operator, ...]  # operators of the whole layer; the one named "experts" takes the seconds below
    forward_s: float  # seconds of gate, experts and their messages
    input_gradient_s: float
    weight_gradient_s: float
    hidden_s: float  # seconds of weight gradients that overlap with messages in a full backward
    forward_waits_s: float  # part of forward_s for which the device with the most computation waits for messages
    input_waits_s: float  # the same part of input_gradient_s; a full backward waits ``hidden_s`` less
    gate_parameters: float
    expert_parameters: float  # parameters of all experts on the device
    forward_sent: Sent
    backward_sent: Sent
    pieces: Mapping[Op, Pieces]  # gate, experts and their messages on the device with the most computation


ExpertBlocks = Mapping[int, ExpertBlock]
"""Costs of a layer by its number, for layers with a placement or load of their own, and of all others by ``COMMON``."""
ExpertCounts = Mapping[int, int]
"""Number of layers with experts that have the same costs, by the keys of :data:`ExpertBlocks`."""


def expert_block(
    design: Design, mesh: Mesh, load: Workload, number: int = COMMON, device: int | None = None
) -> ExpertBlock | None:
    """Return the costs of a layer with experts of ``design`` on ``mesh``; None if the model has no experts.

    Bytes and parameters are those of the fullest device, or of a ``device`` of the group that shares the experts.
    """
    if design.model.moe is None:
        return None
    name, layer, _ = resolve_expert_layer(design, mesh, number)
    what = load, design.model.moe, name, layer, mesh_links(design, mesh), device_rates(design)
    block = _price_block(*what)
    return block if device is None else _sizes_of_device(block, *what, device)


def expert_blocks(design: Design, mesh: Mesh, load: Workload, device: int | None = None) -> ExpertBlocks:
    """Return the costs of all layers with experts of ``design`` on ``mesh``; empty if the model has no experts."""
    numbers = (COMMON, *design.experts.own_layers)
    blocks = {number: expert_block(design, mesh, load, number, device) for number in numbers}
    return {number: block for number, block in blocks.items() if block is not None}


def unequal_expert_devices(design: Design, mesh: Mesh) -> list[list[int]]:
    """Return the devices of a mesh by their memory for experts, as indices along ``ordered_devices``.

    The devices of a list hold equally many experts of each layer, and compute equally many rows. There is one list unless
    a placement or a load distinguishes experts.
    """
    numbers = (COMMON, *design.experts.own_layers)
    sections = [design.experts.section_of_layer(number) for number in numbers]
    if design.model.moe is None or all(each.placement is None and each.load is None for each in sections):
        return [list(range(len(mesh.devices)))]
    of_layers = [list(_expert_loads(design, mesh, number)) for number in numbers]
    loads = list(zip(*of_layers, strict=True))
    alike: dict[tuple[tuple[float, ...], ...], list[int]] = {}
    for index in range(len(mesh.devices)):
        alike.setdefault(loads[index % len(loads)], []).append(index)
    return list(alike.values())


def _expert_loads(design: Design, mesh: Mesh, number: int) -> Iterator[tuple[float, ...]]:
    """Yield, for each device of a group: number of experts, the same with each expert divided by its copies, and rows."""
    name, layer, _ = resolve_expert_layer(design, mesh, number)
    schedule = expert_schedules[name]()
    copies = [len(places) for places in layer.holders(layer.size(schedule.places))]
    priced = _price_layer(name, layer, mesh_links(design, mesh), device_rates(design))
    for held, rows in zip(experts_per_device(schedule, layer), priced.rows_per_device.tolist(), strict=True):
        yield len(held), round(sum(1 / copies[expert] for expert in held), 9), round(rows, 6)


def expert_layers_per_stage(design: Design, layers: Sequence[int]) -> tuple[int, ...]:
    """Return the number of layers with experts of each stage, ``[stages]``."""
    return tuple(sum(counts.values()) for counts in expert_counts(design, layers))


def expert_counts(design: Design, layers: Sequence[int]) -> list[ExpertCounts]:
    """Return the number of equal layers with experts of each stage, ``[stages]``."""
    moe, own = design.model.moe, design.experts.own_layers
    numbers = [] if moe is None else moe.blocks(sum(layers))
    return [
        Counter(number if number in own else COMMON for number in numbers if end - count <= number < end)
        for count, end in zip(layers, accumulate(layers), strict=True)
    ]


# ---- devices that share the gradients of experts ----


class Sharing(NamedTuple):
    """Group of devices that hold the same experts, or the same shards of them."""

    devices: tuple[int, ...]
    share: float  # share of the experts of the device that holds the most


def expert_sharing(design: Design, meshes: Sequence[Mesh]) -> tuple[list[Sharing], bool]:
    """Return the groups of devices that reduce gradients of the same experts, for a stage held by ``meshes``.

    Shares are those of all layers. The second value is True if the gates are reduced over all devices of the groups.
    """
    name, layer, _ = resolve_expert_layer(design, meshes[0])
    schedule = expert_schedules[name]()
    shards = layer.esp if schedule.shards_experts else 1
    blocks = [
        mesh.ordered_devices[at : at + layer.devices]
        for mesh in meshes
        for at in range(0, len(mesh.devices), layer.devices)
    ]
    most, together = 0, Counter[tuple[int, ...]]()
    for number, count in expert_counts(design, [design.model.layers])[0].items():
        layer = resolve_expert_layer(design, meshes[0], number).layer
        most += count * max_experts_per_device(schedule, layer)
        for places in layer.holders(layer.size(schedule.places)):
            together[places] += count
    parts = [
        Sharing(tuple(block[place * shards + shard] for block in blocks for place in places), alike / most)
        for places, alike in together.items()
        for shard in range(shards)
    ]
    return parts, schedule.gate_is_partial


# ---- prices ----

EXPERTS = "experts"
"""Name of the operator for gate, experts and their messages."""


_price_layer = lru_cache(maxsize=256)(price_expert_schedule)


def _sizes_of_device(
    block: ExpertBlock, load: Workload, moe: MoE, name: str, layer: Layer, links: Links, rates: Rates, device: int
) -> ExpertBlock:
    """Return a block with the bytes and parameters of one device."""
    priced, schedule = _price_layer(name, layer, links, rates), expert_schedules[name]()
    number = device % layer.devices  # meshes may have smaller groups
    experts = len(experts_per_device(schedule, layer)[number])
    operator = _expert_operator(load, priced, experts, float(priced.rows_per_device[number]))
    operators = tuple(operator if each.name == EXPERTS else each for each in block.operators)
    cut = layer.esp if schedule.shards_experts else 1
    return replace(block, operators=operators, expert_parameters=experts * layer.expert_parameters(cut))


@lru_cache(maxsize=256)  # most consecutive edits price the same layer
def _price_block(load: Workload, moe: MoE, name: str, layer: Layer, links: Links, rates: Rates) -> ExpertBlock:
    priced = _price_layer(name, layer, links, rates)
    before, after = flops.operators_around_mlp(load)
    experts = max_experts_per_device(expert_schedules[name](), layer)
    operator = _expert_operator(load, priced, experts, priced.rows)
    inputs, weights = split_backward(priced)
    steps = {Op.F: priced.forward, Op.I: inputs, Op.B: priced.backward}
    simulated = {op: simulate_layer(priced, its_steps) for op, its_steps in steps.items()}
    forward_s, input_s, whole = (each.makespan for each in simulated.values())
    weight_s = sum(float(costed.compute_s.max()) for costed in weights)
    cut = layer.esp if expert_schedules[name].shards_experts else 1
    return ExpertBlock(
        operators=(
            *flops.attention_operators(load),
            *(each._replace(part="router") for each in before),
            *_token_exchanges(load),
            operator,
            *(each._replace(part="router") for each in flops.shared_expert_operators(load, moe)),
            *after,
        ),
        forward_s=forward_s,
        input_gradient_s=input_s,
        weight_gradient_s=weight_s,
        hidden_s=max(0.0, input_s + weight_s - whole),
        forward_waits_s=max(0.0, forward_s - _compute_seconds(priced.forward)),
        input_waits_s=max(0.0, input_s - _compute_seconds(inputs)),
        gate_parameters=float(layer.gate_parameters),
        expert_parameters=experts * layer.expert_parameters(cut),
        forward_sent=_sent_bytes(priced.forward),
        backward_sent=_sent_bytes(priced.backward),
        pieces={Op.W: (Piece(weight_s),)} | {op: _layer_pieces(steps[op], simulated[op]) for op in steps},
    )


def _layer_pieces(steps: Sequence[CostedStep], simulated: LayerTimeline) -> Pieces:
    """Return the computation and the waits of the device with the most computation.

    A layer whose all-to-all overlaps with a gather does not give up the device, so the layer counts as computation
    only.
    """
    if any(costed.piece_s for costed in steps):
        return (Piece(simulated.makespan),)
    device = int(np.argmax(np.sum([costed.compute_s for costed in steps], axis=0)))
    pieces, free = [], 0.0
    for span in simulated.compute_spans(device).tolist():
        start, end = float(simulated.start[span]), float(simulated.end[span])
        pieces += [Piece(0.0, start - free), Piece(end - start)]
        free = end
    return join_pieces([*pieces, Piece(0.0, simulated.makespan - free)])


def _token_exchanges(load: Workload) -> tuple[Operator, ...]:
    """Return the gather of the tokens that sequence parallelism divides; expert schedules start with all tokens.

    The backward gathers the gradient of the output. The gathered tokens are kept.
    """
    if not load.sequence_parallel:
        return ()
    size = load.hidden_bytes
    return (Operator("token gather", Work(), forward_gathered=(size,), backward_gathered=(size,)),)


def _sent_bytes(steps: Sequence[CostedStep]) -> Sent:
    inside, outside = np.sum([costed.sent for costed in steps], axis=0).tolist()
    return tuple(inside), tuple(outside)


def _compute_seconds(steps: Sequence[CostedStep]) -> float:
    """Return the computing seconds of the device with the most computation."""
    return float(np.sum([costed.compute_s for costed in steps], axis=0).max())


def split_backward(priced: Price) -> tuple[list[CostedStep], list[CostedStep]]:
    """Return the steps of the backward for the input, and those for the weights.

    Each has half of the matrix products of gate and experts.
    """
    inputs, weights = [], []
    for costed in priced.backward:
        if not costed.weights_s.any():
            inputs.append(costed)
            continue
        half = costed.step._replace(flops=costed.step.flops / 2)
        none = np.zeros_like(costed.weights_s)
        inputs.append(replace(costed, step=half, compute_s=costed.compute_s - costed.weights_s, weights_s=none))
        weights.append(replace(costed, step=half, compute_s=costed.weights_s))
    return inputs, weights


def _expert_operator(load: Workload, priced: Price, experts: int, rows: float) -> Operator:
    """Return the operator of a device that holds ``experts`` experts and computes ``rows`` rows."""
    layer, schedule, precision = priced.layer, expert_schedules[priced.name](), load.precision
    item, hidden = precision.item, layer.hidden
    cut = layer.esp if schedule.shards_experts else 1
    wide, inner = layer.ffn_hidden / cut, layer.inner_width / cut
    steps = [costed.step for costed in priced.forward]
    gate = sum(step.flops for step in steps if step.op == StepOp.GATE)
    gated = gate / (2 * hidden * layer.experts)  # tokens
    restored = max(step.bytes for step in steps if step.op == StepOp.RESTORE)
    weights = experts * layer.expert_parameters(cut)
    buffer = max((step.bytes for step in steps if step.collective), default=0.0)
    products = Work(gate + priced.flops)
    wide_rows, inner_rows = rows * wide, rows * inner
    multiplied, scales = item, 0
    if load.kernels.linear == "fp8":  # the inputs of both products
        multiplied = FLOAT8_BYTES
        scales = 2 * SCALE_BYTES * layer.degree * experts
    inputs = rows * (hidden + wide) * multiplied + scales
    of_gate = gated * (hidden * item + layer.experts * precision.statistics)
    return Operator(
        EXPERTS,
        forward=products,
        input_gradient=products,
        weight_gradient=products,
        parameters=weights + layer.gate_parameters,
        copied=weights,
        kept_bytes=of_gate + restored + inner_rows * item + inputs,
        deferred_bytes=of_gate + rows * (hidden + inner) * item + inputs,
        transient_bytes=(wide_rows + max(inner_rows, rows * hidden + weights)) * item + 2 * buffer,
    )
