"""Price of a schedule for a layer: bytes and seconds of every step on every device.

The deterministic model of both papers: a collective among neighbours is a ring, an all-to-all runs pair by pair, first
inside the node, then between nodes. A gather that is hidden under an all-to-all shares the links inside the node with
it, so that it hides behind the part between nodes only; its last piece is always exposed.
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
    _all_to_all,
    _exposed_seconds,
    _ring,
    traffic,
)
from meshwave.engine.experts._layer import Layer
from meshwave.engine.experts._placement import device_rows
from meshwave.engine.experts._steps import Step, StepOp, backward_steps


class Rates(NamedTuple):
    """Compute and memory rates of a device; infinite if only communication is priced."""

    flops: float = np.inf  # FLOP/s of products
    memory: float = np.inf  # bytes/s to and from memory
    weighted_memory: float | None = (
        None  # bytes/s for gate and experts; infinite if the measured FLOP/s include memory time
    )
    tile_rows: float = 0.0  # rows that a product with the matrix of one expert computes in addition, for whole tiles
    kernel_s: float = 0.0  # fixed seconds of a kernel

    @property
    def weighted_rates(self) -> Rates:
        """Rates of the steps that have weights."""
        return self if self.weighted_memory is None else self._replace(memory=self.weighted_memory)

    def seconds(self, flops: Floats, moved: Floats) -> Floats:
        """Return the longer of compute and memory time (Williams, Waterman and Patterson, "Roofline", 2009)."""
        return np.maximum(flops / self.flops, moved / self.memory)


NO_COMPUTE = Rates()


@dataclass(frozen=True, eq=False)
class Price:
    """Costs of the steps of a layer under a schedule, per direction."""

    name: str  # of the schedule, after an automatic choice
    layer: Layer
    choice: Choice | None
    forward: tuple[CostedStep, ...]
    backward: tuple[CostedStep, ...]

    @property
    def expert_weights(self) -> float:
        """Weights of the experts on the device that holds the most: their matrices, without biases."""
        return expert_weights(expert_schedules[self.name](), self.layer)

    @property
    def flops(self) -> float:
        """FLOPs of the experts' forward products on the device with the most rows."""
        return self._expert_seconds.flops * float(share_of_rows(self.layer, self._expert_seconds).max())

    @property
    def rows(self) -> float:
        """Slots and tokens that the experts compute on the device with the most rows."""
        return self._expert_seconds.rows * float(share_of_rows(self.layer, self._expert_seconds).max())

    @property
    def _expert_seconds(self) -> Step:
        return next(costed.step for costed in self.forward if costed.step.op == StepOp.EXPERTS)

    def collectives(self, direction: Sequence[CostedStep]) -> list[Collective]:
        """Return the collectives of ``forward`` or ``backward``, in order."""
        return [_collective(self.layer, direction, at) for at in self._send_indices(direction)]

    def seconds(self, direction: Sequence[CostedStep]) -> float:
        """Return the seconds of a direction with steps in sequence and unchunked messages.

        :func:`play_layer` models chunks.
        """
        return sum(_exposed_seconds(self.layer, direction, at) for at in range(len(direction)))

    def communication_s(self, direction: Sequence[CostedStep]) -> float:
        """Return the seconds that collectives add to a direction."""
        return sum(_exposed_seconds(self.layer, direction, at) for at in self._send_indices(direction))

    def _send_indices(self, direction: Sequence[CostedStep]) -> list[int]:
        """Return the indices of the steps that send messages."""
        steps = (costed.step for costed in direction)
        return [at for at, step in enumerate(steps) if step.collective and self.layer.size(step.group) > 1]

    def sent_bytes(self, direction: Sequence[CostedStep]) -> tuple[float, float]:
        """Return the maximum bytes that a device sends inside its node, and to other nodes."""
        inside, outside = np.sum([costed.sent for costed in direction], axis=0)
        return float(inside.max()), float(outside.max())


def price(name: str, layer: Layer, links: Links, rates: Rates = NO_COMPUTE) -> Price:
    """Price the schedule called ``name``; for an automatic one, price the schedule that it chooses.

    Raises:
        InputError: there is no such schedule.
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
    """Return the choice of an automatic schedule; None for a schedule with steps.

    ``whole`` returns the seconds of a forward and a backward under a schedule; by default steps run in sequence.
    """

    def message_seconds(of: str) -> float:
        steps = expert_schedules[of]().steps(layer)
        forward = [_cost_step(layer, links, step, _compute_seconds(layer, NO_COMPUTE, step)) for step in steps]
        return sum(_exposed_seconds(layer, forward, at) for at in range(len(forward)))

    def sequential_seconds(of: str) -> float:
        priced = price(of, layer, links, rates)
        return priced.seconds(priced.forward) + priced.seconds(priced.backward)

    return expert_schedules[name]().choose(layer, Costs(message_seconds, whole or sequential_seconds))


def expert_weights(schedule: ExpertSchedule, layer: Layer) -> float:
    """Return the weights of the experts on the device with the most: ``2 M H`` or ``3 M H`` each, divided by ``esp`` if sharded."""
    cut = layer.esp if schedule.shards_experts else 1
    return float(layer.matrices) * layer.hidden * layer.ffn_hidden * max_experts_per_device(schedule, layer) / cut


def max_experts_per_device(schedule: ExpertSchedule, layer: Layer) -> int:
    """Return the maximum number of experts, or shards of experts, on a device."""
    return max(map(len, layer.expert_homes(layer.size(schedule.places))))


# ---- one step ----


def _cost_step(layer: Layer, links: Links, step: Step, computed: tuple[Floats, Floats]) -> CostedStep:
    none, both = np.zeros(layer.devices), np.zeros((2, layer.devices))
    tensor_s, weights_s = computed
    costed = CostedStep(step, tensor_s + weights_s, weights_s, none, none, both, both)
    if step.collective is None or layer.size(step.group) == 1:
        return costed
    if step.collective == "all_to_all":
        return _all_to_all(layer, links, costed)
    return _ring(layer, links, costed)


def _compute_seconds(layer: Layer, rates: Rates, step: Step, *, backwards: bool = False) -> tuple[Floats, Floats]:
    """Return ``[devices]`` seconds of a step's tensor, or of its gradient, and of the gradients of weights."""
    seconds, weights_s = _work_seconds(layer, rates, step, backwards)
    return seconds + KERNELS.get(step.op, 0) * rates.kernel_s, weights_s


KERNELS = {StepOp.GATE: 16, StepOp.ORDER: 4, StepOp.EXPERTS: 4, StepOp.RESTORE: 4}
"""Kernels of a step: scores, top-k, masks, counts and losses of the gate; sorting and permutation; and the products."""


def _work_seconds(layer: Layer, rates: Rates, step: Step, backwards: bool) -> tuple[Floats, Floats]:
    if step.op == StepOp.EXPERTS:
        return _expert_seconds(layer, rates.weighted_rates, step, backwards)
    if step.op == StepOp.GATE:
        return _gate_seconds(layer, rates.weighted_rates, step, backwards)
    alone = bool(step.group) and layer.size(step.group) == 1  # a single copy is the tensor itself
    moved = 2 * step.bytes if step.op in MOVES and not alone else 0.0
    return np.full(layer.devices, moved / rates.memory), np.zeros(layer.devices)


class _Product(NamedTuple):
    """Product of ``m`` rows of ``k`` numbers with matrices of ``k`` by ``n``; it reads two of the three tensors."""

    m: Floats  # [devices]
    k: float
    n: float
    matrices: Floats  # [devices] number of matrices, each of which is read
    item: int  # bytes of a number of the rows
    result: int  # bytes of a number of the results and of the matrices

    def seconds(self, rates: Rates) -> Floats:
        """Return the seconds of the forward, which equal those of the gradient of the rows."""
        m, k, n = self.m, self.k, self.n
        computed = m + self.matrices * rates.tile_rows
        return rates.seconds(2 * computed * k * n, self.item * m * k + self.result * (m * n + self.matrices * k * n))

    def weights_s(self, rates: Rates) -> Floats:
        """Return the seconds of the matrices' gradient, which is written and then accumulated in at least 32 bits."""
        m, k, n = self.m, self.k, self.n
        added = self.matrices * k * n * 2 * (self.result + max(self.result, MIN_ITEM_BYTES))
        computed = m + self.matrices * rates.tile_rows
        return rates.seconds(2 * computed * k * n, self.item * m * k + self.result * m * n + added)


MIN_ITEM_BYTES = 4
"""Minimum bytes of a number in gradients and in the gate, whatever the precision of the layer."""


def _expert_seconds(layer: Layer, rates: Rates, step: Step, backwards: bool) -> tuple[Floats, Floats]:
    """Price product, GELU, product, each by its own roofline, for every chunk.

    Each chunk reads the weights of all experts of the device.
    """
    chunks = 1 if step.group == "mp" else layer.degree  # without an exchange there are no chunks
    wide, item = layer.ffn_hidden / step.cut, layer.item_bytes
    inner = layer.inner / step.cut
    rows = step.rows * share_of_rows(layer, step) / chunks
    held = _held_experts(layer, step)
    products = (
        _Product(rows, layer.hidden, inner, held, item, item),
        _Product(rows, wide, layer.hidden, held, item, item),
    )
    touched = ACTIVATION_TENSORS[layer.matrices][backwards]
    tensor_s = rates.seconds(0 * rows, touched * rows * wide * item) + sum(each.seconds(rates) for each in products)
    weights_s = np.sum([each.weights_s(rates) for each in products], axis=0) if backwards else 0 * rows
    return chunks * tensor_s, chunks * weights_s


ACTIVATION_TENSORS = {2: (2, 3), 3: (5, 9)}
"""Tensors that the activation of an expert of so many matrices reads and writes, in its forward and its backward."""


def _held_experts(layer: Layer, step: Step) -> Floats:
    """Return ``[devices]`` the number of experts, or shards of experts, that each device holds."""
    places = layer.size(step.group)
    each = np.array([len(held) for held in layer.expert_homes(places)], np.float64)
    return np.resize(each, layer.devices) if step.group == "mp" else np.repeat(each, layer.devices // places)


def _gate_seconds(layer: Layer, rates: Rates, step: Step, backwards: bool) -> tuple[Floats, Floats]:
    """Price the scores of the tokens and their softmax, in at least 32 bits."""
    once = 2.0 * layer.hidden * layer.experts * (2 if backwards else 1)
    tokens, one = np.full(layer.devices, step.flops / once), np.ones(layer.devices)
    wide = max(layer.item_bytes, MIN_ITEM_BYTES)
    product = _Product(tokens, layer.hidden, layer.experts, one, layer.item_bytes, wide)
    touched = 3 if backwards else 2
    softmax_s = rates.seconds(0 * tokens, touched * tokens * layer.experts * wide)
    return product.seconds(rates) + softmax_s, product.weights_s(rates) if backwards else 0 * tokens


def share_of_rows(layer: Layer, experts: Step) -> Floats:
    """Return the token rows that each device computes, relative to the rows that the steps are priced for; ``[devices]``.

    Steps are priced for an even share of the rows, or for the maximum of a device if experts are distributed over the
    tensor-parallel group. Without a capacity, devices know the number of arriving tokens and skip empty slots.
    """
    if experts.group == "mp":
        return np.resize(layer.folded_rows / max(layer.folded_rows.max(), 1e-300), layer.devices)
    if layer.capacity_factor is None:
        filled = layer.top_k * layer.tokens / (layer.experts * layer.capacity)  # share of filled slots
        return filled * device_rows(layer)
    return np.ones(layer.devices) if layer.homes is None else device_rows(layer)


def _collective(layer: Layer, direction: Sequence[CostedStep], at: int) -> Collective:
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
