"""Price of a schedule for a layer: bytes and seconds of every step on every device.

Deterministic model of both papers: a collective among neighbours is a ring, an all-to-all consists of pairwise
messages, first within the node, then between nodes. A gather that overlaps an all-to-all shares the links within the
node with it, so it is hidden only during the part between nodes; its last piece is always exposed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwave.engine.experts._base import Choice, Costs, ExpertSchedule, expert_schedules
from meshwave.engine.experts._collectives import (
    MOVES,
    Collective,
    CostedStep,
    Floats,
    Links,
    _cost_all_to_all,
    _cost_ring,
    _exposed_seconds,
    traffic,
)
from meshwave.engine.experts._layer import Layer
from meshwave.engine.experts._placement import device_rows
from meshwave.engine.experts._steps import Step, StepOp, backward_steps


class Rates(NamedTuple):
    """Compute and memory rates of a device; infinite if only communication is priced."""

    flops: float = np.inf  # FLOP/s of matrix products
    memory: float = np.inf  # bytes/s to and from memory
    weighted_memory: float | None = (
        None  # bytes/s for gate and experts; infinite if the measured FLOP/s include memory time
    )
    tile_rows: float = 0.0  # extra rows per expert that a matrix product computes to fill whole tiles
    kernel_s: float = 0.0  # fixed seconds per kernel
    router_kernel_s: float = 0.0  # the same for the kernels of the gate
    eager_memory: float = np.inf  # bytes/s of separate elementwise kernels; infinite if they are not priced
    expert_flops: float | None = None  # FLOP/s of the products of experts; None if they are in the same number format
    cast_bytes: float = 0.0  # bytes per element that casts of their inputs and gradients move

    @property
    def expert_rates(self) -> Rates:
        """Rates of the experts."""
        flops = self.flops if self.expert_flops is None else self.expert_flops
        return self.weighted_rates._replace(flops=flops)

    @property
    def weighted_rates(self) -> Rates:
        """Rates of the steps that have weights (gate and experts)."""
        return self if self.weighted_memory is None else self._replace(memory=self.weighted_memory)

    def seconds(self, flops: Floats, moved: Floats) -> Floats:
        """Return the larger of compute and memory time (Williams, Waterman and Patterson, "Roofline", 2009)."""
        return np.maximum(flops / self.flops, moved / self.memory)


NO_COMPUTE = Rates()


@dataclass(frozen=True, eq=False)
class Price:
    """Costs of the steps of a layer under a schedule, for forward and backward."""

    name: str  # name of the schedule, after an automatic choice
    layer: Layer
    choice: Choice | None
    forward: tuple[CostedStep, ...]
    backward: tuple[CostedStep, ...]

    @property
    def expert_weights(self) -> float:
        """Number of expert weights on the device that holds the most; matrices only, without biases."""
        return expert_weights(expert_schedules[self.name](), self.layer)

    @property
    def flops(self) -> float:
        """FLOPs of the experts' forward on the device with the most rows."""
        return self._expert_seconds.flops * float(share_of_rows(self.layer, self._expert_seconds).max())

    @property
    def rows(self) -> float:
        """Number of rows (slots and tokens) that the experts compute on the device with the most rows."""
        return float(self.rows_per_device.max())

    @property
    def rows_per_device(self) -> Floats:
        """Number of rows that the experts compute on each device, ``[devices]``."""
        return self._expert_seconds.rows * share_of_rows(self.layer, self._expert_seconds)

    @property
    def _expert_seconds(self) -> Step:
        return next(costed.step for costed in self.forward if costed.step.op == StepOp.EXPERTS)

    def collectives(self, direction: Sequence[CostedStep]) -> list[Collective]:
        """Return the collectives of a direction (``forward`` or ``backward``), in order."""
        return [_collective_cost(self.layer, direction, at) for at in self._send_indices(direction)]

    def seconds(self, direction: Sequence[CostedStep]) -> float:
        """Return the time in seconds of one direction if its steps run in sequence and messages are not chunked.

        The direction is ``forward`` or ``backward``. :func:`simulate_layer` simulates chunks.
        """
        return sum(_exposed_seconds(self.layer, direction, at) for at in range(len(direction)))

    def communication_s(self, direction: Sequence[CostedStep]) -> float:
        """Return the seconds that exposed communication adds to a forward or a backward (``direction``)."""
        return sum(_exposed_seconds(self.layer, direction, at) for at in self._send_indices(direction))

    def _send_indices(self, direction: Sequence[CostedStep]) -> list[int]:
        """Return the indices of the steps that send messages."""
        steps = (costed.step for costed in direction)
        return [at for at, step in enumerate(steps) if step.collective and self.layer.size(step.group) > 1]

    def exchanged_bytes(self, direction: Sequence[CostedStep]) -> Floats:
        """Return ``[devices, devices]`` the bytes of all all-to-alls from each device to each, itself included."""
        exchanges = (costed.step for costed in direction if costed.step.collective == "all_to_all")
        return sum((traffic(self.layer, step) for step in exchanges), np.zeros((self.layer.devices,) * 2))

    def sent_bytes(self, direction: Sequence[CostedStep]) -> tuple[float, float]:
        """Return the maximum bytes that a device sends within its node, and to other nodes."""
        inside, outside = np.sum([costed.sent for costed in direction], axis=0)
        return float(inside.max()), float(outside.max())


def price_expert_schedule(name: str, layer: Layer, links: Links, rates: Rates = NO_COMPUTE) -> Price:
    """Return the price of the schedule ``name``; for an automatic schedule, of the schedule that it chooses.

    Raises:
        InputError: the schedule does not exist.
    """
    choice = resolve_choice(name, layer, links, rates)
    name = choice.name if choice else name
    steps = expert_schedules[name]().steps(layer)
    forward = [_cost_step(layer, links, step, _compute_seconds(layer, rates, step)) for step in steps]
    back = [
        _cost_step(layer, links, step, _compute_seconds(layer, rates, step, backwards=True))
        for step in backward_steps(steps)
    ]
    return Price(name, layer, choice, tuple(forward), tuple(back))


def resolve_choice(
    name: str, layer: Layer, links: Links, rates: Rates = NO_COMPUTE, whole: Callable[[str], float] | None = None
) -> Choice | None:
    """Return the choice of an automatic schedule; None if the schedule is not automatic.

    ``whole`` returns the seconds of a forward and a backward under a schedule; None for the sum of all steps.
    """

    def message_seconds(of: str) -> float:
        steps = expert_schedules[of]().steps(layer)
        forward = [_cost_step(layer, links, step, _compute_seconds(layer, NO_COMPUTE, step)) for step in steps]
        return sum(_exposed_seconds(layer, forward, at) for at in range(len(forward)))

    def sequential_seconds(of: str) -> float:
        priced = price_expert_schedule(of, layer, links, rates)
        return priced.seconds(priced.forward) + priced.seconds(priced.backward)

    return expert_schedules[name]().choose(layer, Costs(message_seconds, whole or sequential_seconds))


def expert_weights(schedule: ExpertSchedule, layer: Layer) -> float:
    """Return the number of expert weights on the device that holds the most; matrices only, without biases.

    An expert has ``2 M H`` weights, or ``3 M H`` if it is gated, divided by ``esp`` if it is sharded.
    """
    cut = layer.esp if schedule.shards_experts else 1
    return float(layer.matrices) * layer.hidden * layer.ffn_hidden * max_experts_per_device(schedule, layer) / cut


def max_experts_per_device(schedule: ExpertSchedule, layer: Layer) -> int:
    """Return the maximum number of experts, or of expert shards, on a device."""
    return max(map(len, experts_per_device(schedule, layer)))


def experts_per_device(schedule: ExpertSchedule, layer: Layer) -> list[tuple[int, ...]]:
    """Return the experts, or the experts of the shards, on each device, ``[devices]``."""
    places = layer.experts_by_place(layer.size(schedule.places))
    if schedule.places == "mp":
        return [places[device % len(places)] for device in range(layer.devices)]
    return [places[device // layer.esp] for device in range(layer.devices)]


# ---- one step ----


def _cost_step(layer: Layer, links: Links, step: Step, computed: tuple[Floats, Floats]) -> CostedStep:
    none, both = np.zeros(layer.devices), np.zeros((2, layer.devices))
    tensor_s, weight_gradient_s = computed
    costed = CostedStep(step, tensor_s + weight_gradient_s, weight_gradient_s, none, none, both, both)
    if step.collective is None or layer.size(step.group) == 1:
        return costed
    if step.collective == "all_to_all":
        return _cost_all_to_all(layer, links, costed)
    return _cost_ring(layer, links, costed)


def _compute_seconds(layer: Layer, rates: Rates, step: Step, *, backwards: bool = False) -> tuple[Floats, Floats]:
    """Return the seconds of a step's tensor (or its gradient) and of its weight gradients, each ``[devices]``."""
    seconds, weight_gradient_s = _step_seconds(layer, rates, step, backwards)
    kernel_s = rates.router_kernel_s if step.op == StepOp.GATE else rates.kernel_s
    return seconds + KERNELS.get(step.op, 0) * kernel_s, weight_gradient_s


KERNELS = {StepOp.GATE: 16, StepOp.ORDER: 4, StepOp.EXPERTS: 4, StepOp.RESTORE: 4}
"""Number of kernels per step: scores, top-k, masks, counts and losses of the gate; sorting and permutation; and the
matrix products."""


def _step_seconds(layer: Layer, rates: Rates, step: Step, backwards: bool) -> tuple[Floats, Floats]:
    if step.op == StepOp.EXPERTS:
        return _expert_seconds(layer, rates.expert_rates, step, backwards)
    if step.op == StepOp.GATE:
        return _gate_seconds(layer, rates.weighted_rates, step, backwards)
    alone = bool(step.group) and layer.size(step.group) == 1  # a single copy is the tensor itself
    moved = 2 * step.bytes if step.op in MOVES and not alone else 0.0
    return np.full(layer.devices, moved / rates.memory), np.zeros(layer.devices)


class _Product(NamedTuple):
    """Matrix product of ``m`` rows of ``k`` elements with ``k`` by ``n`` matrices; each pass reads two tensors."""

    m: Floats  # [devices]
    k: float
    n: float
    matrices: Floats  # [devices] number of matrices that are read
    item: int  # bytes per element of the rows
    result: int  # bytes per element of the results and of the matrices

    def seconds(self, rates: Rates) -> Floats:
        """Return the seconds of the forward, which equal those of the input gradient."""
        m, k, n = self.m, self.k, self.n
        computed = m + self.matrices * rates.tile_rows
        return rates.seconds(2 * computed * k * n, self.item * m * k + self.result * (m * n + self.matrices * k * n))

    def weight_gradient_s(self, rates: Rates) -> Floats:
        """Return the seconds of the weight gradient, which is written and then accumulated in 32 bits or more."""
        m, k, n = self.m, self.k, self.n
        added = self.matrices * k * n * 2 * (self.result + max(self.result, MIN_ITEM_BYTES))
        computed = m + self.matrices * rates.tile_rows
        return rates.seconds(2 * computed * k * n, self.item * m * k + self.result * m * n + added)


MIN_ITEM_BYTES = 4
"""Minimum bytes per element in gradients and in the gate, whatever the precision of the layer."""


def _expert_seconds(layer: Layer, rates: Rates, step: Step, backwards: bool) -> tuple[Floats, Floats]:
    """Return the seconds of the experts' two matrix products and activation, each by its own roofline, for all chunks.

    Each chunk reads the weights of all experts of the device.
    """
    chunks = 1 if step.group == "mp" else layer.degree  # without an exchange there are no chunks
    wide, item = layer.ffn_hidden / step.cut, layer.item_bytes
    inner = layer.inner_width / step.cut
    rows = step.rows * share_of_rows(layer, step) / chunks
    held = _held_experts(layer, step)
    products = (
        _Product(rows, layer.hidden, inner, held, item, item),
        _Product(rows, wide, layer.hidden, held, item, item),
    )
    touched = ACTIVATION_TENSORS[layer.matrices][backwards]
    tensor_s = rates.seconds(0 * rows, touched * rows * wide * item) + sum(each.seconds(rates) for each in products)
    tensor_s = tensor_s + _separate_elements(layer, step, backwards) * rows * item / rates.eager_memory
    cast = inner + layer.hidden if backwards else layer.hidden + wide
    tensor_s = tensor_s + rows * cast * rates.cast_bytes / rates.memory
    weight_gradient_s = np.sum([each.weight_gradient_s(rates) for each in products], axis=0) if backwards else 0 * rows
    return chunks * tensor_s, chunks * weight_gradient_s


def _separate_elements(layer: Layer, step: Step, backwards: bool) -> float:
    """Return the elements per row that kernels besides the products and the fused activation read and write.

    As in Megatron-Core: both halves of a clamped activation are clamped and joined again; the output bias of each expert is
    multiplied by the gate's weights and added to the rows of the expert, which are then joined.
    """
    clamped = CLAMPED_TENSORS[backwards] * layer.ffn_hidden / step.cut if layer.clamps_activation else 0.0
    return clamped + (BIAS_TENSORS[backwards] * layer.hidden if layer.has_biases else 0.0)


CLAMPED_TENSORS = (8, 10)
"""Number of tensors of half the width that clamping a gated activation reads and writes in its forward and backward."""
BIAS_TENSORS = (6, 8)
"""Number of output tensors that the bias of experts reads and writes in its forward and backward."""


ACTIVATION_TENSORS = {2: (2, 3), 3: (5, 9)}
"""Number of tensors that the activation of an expert reads and writes in its forward and its backward, by number of
matrices of the expert."""


def _held_experts(layer: Layer, step: Step) -> Floats:
    """Return the number of experts, or of expert shards, that each device holds, ``[devices]``."""
    places = layer.size(step.group)
    each = np.array([len(held) for held in layer.experts_by_place(places)], np.float64)
    return np.resize(each, layer.devices) if step.group == "mp" else np.repeat(each, layer.devices // places)


def _gate_seconds(layer: Layer, rates: Rates, step: Step, backwards: bool) -> tuple[Floats, Floats]:
    """Return the seconds of the token scores and their softmax, in 32 bits or more."""
    once = 2.0 * layer.hidden * layer.experts * (2 if backwards else 1)
    tokens, one = np.full(layer.devices, step.flops / once), np.ones(layer.devices)
    wide = max(layer.item_bytes, MIN_ITEM_BYTES)
    product = _Product(tokens, layer.hidden, layer.experts, one, layer.item_bytes, wide)
    touched = 3 if backwards else 2
    softmax_s = rates.seconds(0 * tokens, touched * tokens * layer.experts * wide)
    return product.seconds(rates) + softmax_s, product.weight_gradient_s(rates) if backwards else 0 * tokens


def share_of_rows(layer: Layer, experts: Step) -> Floats:
    """Return the rows that each device computes, relative to the rows for which the steps are priced, ``[devices]``.

    Steps are priced for an even share of the rows, or for the maximum of a device if experts are distributed over the
    tensor-parallel group. Without a capacity, devices know the number of arriving tokens and skip empty slots.
    """
    if experts.group == "mp":
        return np.resize(layer.folded_rows / max(layer.folded_rows.max(), 1e-300), layer.devices)
    if layer.capacity_factor is None:
        filled = layer.top_k * layer.tokens / (layer.experts * layer.capacity)  # fraction of occupied slots
        return filled * device_rows(layer)
    return np.ones(layer.devices) if layer.placement is None else device_rows(layer)


def _collective_cost(layer: Layer, direction: Sequence[CostedStep], at: int) -> Collective:
    costed = direction[at]
    step = costed.step
    n = layer.size(step.group)
    scatters = step.collective == "reduce_scatter"
    inside, outside = costed.sent
    busiest = int(np.argmax(inside + outside))
    buffer = step.bytes * (n if scatters else 1)
    if step.collective == "all_to_all":
        buffer = float(traffic(layer, step).sum(axis=1).max())
    return Collective(
        name=str(step.collective),
        group=step.group,
        group_size=n,
        buffer_bytes=buffer,
        sent_bytes=float(inside[busiest] + outside[busiest]),
        intra_bytes=float(inside[busiest]),
        inter_bytes=float(outside[busiest]),
        time_s=_exposed_seconds(layer, direction, at),
        hidden=step.hidden,
    )
