"""What a schedule costs a layer: bytes and seconds of every step, on every device.

The deterministic model of both sheets: a collective among neighbours is a ring, an all-to-all goes
pair by pair, first inside the node, then between nodes. A gather that is hidden under an all-to-all
shares the links inside the node with it, so that it hides behind the part between nodes only; its
last piece is always exposed.
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
    Costed,
    Floats,
    Links,
    _all_to_all,
    _exposed,
    _ring,
    traffic,
)
from meshwave.engine.experts._layer import Layer
from meshwave.engine.experts._placement import device_rows
from meshwave.engine.experts._steps import Step, StepOp, backward


class Rates(NamedTuple):
    """How fast a device computes; infinite where only communication is asked for."""

    flops: float = np.inf  # FLOP/s that products reach
    memory: float = np.inf  # bytes/s to and from its memory
    weighed: float | None = None  # the same of gate and experts; infinite where flops were measured with all they move

    @property
    def of_weights(self) -> Rates:
        """Those of the steps that have weights."""
        return self if self.weighed is None else Rates(self.flops, self.weighed)

    def seconds(self, flops: Floats, moved: Floats) -> Floats:
        """The longer of computing and moving bytes (Williams, Waterman and Patterson, "Roofline", 2009)."""
        return np.maximum(flops / self.flops, moved / self.memory)


NO_COMPUTE = Rates()


@dataclass(frozen=True, eq=False)
class Price:
    """A schedule of a layer, priced; the two directions apart."""

    name: str  # of the schedule that it came to
    layer: Layer
    choice: Choice | None
    forward: tuple[Costed, ...]
    backward: tuple[Costed, ...]

    @property
    def parameters(self) -> float:
        """Of the experts on one device, the fullest: two matrices each, no biases."""
        return parameters(expert_schedules[self.name](), self.layer)

    @property
    def flops(self) -> float:
        """Of the experts' products on one device, the fullest, forwards."""
        return self._experts.flops * float(share_of_rows(self.layer, self._experts).max())

    @property
    def rows(self) -> float:
        """Slots and tokens that the experts of one device compute, the fullest."""
        return self._experts.rows * float(share_of_rows(self.layer, self._experts).max())

    @property
    def _experts(self) -> Step:
        return next(costed.step for costed in self.forward if costed.step.op == StepOp.EXPERTS)

    def collectives(self, direction: Sequence[Costed]) -> list[Collective]:
        """The collectives of ``forward`` or ``backward``, in order."""
        return [_collective(self.layer, direction, at) for at in self._sends(direction)]

    def seconds(self, direction: Sequence[Costed]) -> float:
        """Of a direction, one step after the other and messages in one chunk; :func:`play` knows of chunks."""
        return sum(_exposed(self.layer, direction, at) for at in range(len(direction)))

    def communication_s(self, direction: Sequence[Costed]) -> float:
        """What its collectives add to a direction."""
        return sum(_exposed(self.layer, direction, at) for at in self._sends(direction))

    def _sends(self, direction: Sequence[Costed]) -> list[int]:
        """The numbers of the steps in which something is sent."""
        steps = (costed.step for costed in direction)
        return [at for at, step in enumerate(steps) if step.collective and self.layer.size(step.group) > 1]

    def sent_bytes(self, direction: Sequence[Costed]) -> tuple[float, float]:
        """What the busiest device sends inside its node and to others."""
        inside, outside = np.sum([costed.sent for costed in direction], axis=0)
        return float(inside.max()), float(outside.max())


def price(name: str, layer: Layer, links: Links, rates: Rates = NO_COMPUTE) -> Price:
    """Price the schedule called ``name``; an automatic one is priced as what it chooses.

    Raises:
        InputError: there is no such schedule.
    """

    choice = resolve_choice(name, layer, links, rates)
    name = choice.name if choice else name
    steps = expert_schedules[name]().steps(layer)
    forward = [_costed(layer, links, step, _compute(layer, rates, step)) for step in steps]
    back = [_costed(layer, links, step, _compute(layer, rates, step, backwards=True)) for step in backward(steps)]
    return Price(name, layer, choice, tuple(forward), tuple(back))


def resolve_choice(
    name: str, layer: Layer, links: Links, rates: Rates = NO_COMPUTE, whole: Callable[[str], float] | None = None
) -> Choice | None:
    """What an automatic schedule comes to; none of one that has steps.

    ``whole`` are the seconds of a forward and a backward under a schedule, where it is not one step after the other.
    """

    def sent(of: str) -> float:
        steps = expert_schedules[of]().steps(layer)
        forward = [_costed(layer, links, step, _compute(layer, NO_COMPUTE, step)) for step in steps]
        return sum(_exposed(layer, forward, at) for at in range(len(forward)))

    def in_turn(of: str) -> float:
        priced = price(of, layer, links, rates)
        return priced.seconds(priced.forward) + priced.seconds(priced.backward)

    return expert_schedules[name]().choose(layer, Costs(sent, whole or in_turn))


def parameters(schedule: ExpertSchedule, layer: Layer) -> float:
    """Of the experts that the fullest device holds: ``2 M H`` each, cut in ``esp`` where experts are cut."""
    cut = layer.esp if schedule.cuts else 1
    return 2.0 * layer.hidden * layer.ffn_hidden * expert_weight_bytes(schedule, layer) / cut


def expert_weight_bytes(schedule: ExpertSchedule, layer: Layer) -> int:
    """Experts, or parts of experts, that the fullest device holds."""
    return max(map(len, layer.placed(layer.size(schedule.places))))


# ---- one step ----


def _costed(layer: Layer, links: Links, step: Step, computed: tuple[Floats, Floats]) -> Costed:
    none, both = np.zeros(layer.devices), np.zeros((2, layer.devices))
    tensor_s, weights_s = computed
    costed = Costed(step, tensor_s + weights_s, weights_s, none, none, both, both)
    if step.collective is None or layer.size(step.group) == 1:
        return costed
    if step.collective == "all_to_all":
        return _all_to_all(layer, links, costed)
    return _ring(layer, links, costed)


def _compute(layer: Layer, rates: Rates, step: Step, *, backwards: bool = False) -> tuple[Floats, Floats]:
    """[devices] seconds of the step's tensor, or of its gradient, and of the gradients of weights."""
    if step.op == StepOp.EXPERTS:
        return _experts(layer, rates.of_weights, step, backwards)
    if step.op == StepOp.GATE:
        return _gate(layer, rates.of_weights, step, backwards)
    alone = bool(step.group) and layer.size(step.group) == 1  # one copy is the tensor itself
    moved = 2 * step.bytes if step.op in MOVES and not alone else 0.0
    return np.full(layer.devices, moved / rates.memory), np.zeros(layer.devices)


class _Product(NamedTuple):
    """``m`` rows of ``k`` numbers times matrices of ``k`` by ``n``: reads two of the three and writes the third."""

    m: Floats  # [devices]
    k: float
    n: float
    matrices: Floats  # [devices] of which each is read
    item: int  # bytes of a number of the rows
    result: int  # of the results and of the matrices

    def seconds(self, rates: Rates) -> Floats:
        """Of the forward, and as much of the gradient of the rows."""
        m, k, n = self.m, self.k, self.n
        return rates.seconds(2 * m * k * n, self.item * m * k + self.result * (m * n + self.matrices * k * n))

    def weights_s(self, rates: Rates) -> Floats:
        """Of the matrices' gradient, which is written and added to the one that is held, in 32 bits at least."""
        m, k, n = self.m, self.k, self.n
        added = self.matrices * k * n * 2 * (self.result + max(self.result, LEAST))
        return rates.seconds(2 * m * k * n, self.item * m * k + self.result * m * n + added)


LEAST = 4
"""Bytes of a gradient, and of the gate's numbers, in whatever precision the layer is."""


def _experts(layer: Layer, rates: Rates, step: Step, backwards: bool) -> tuple[Floats, Floats]:
    """Product, GELU, product, each bound by its own roof as in any feed-forward block, of every chunk; each
    chunk reads the weights of all experts of the device."""
    chunks = 1 if step.group == "mp" else layer.degree  # where nothing is exchanged, nothing is cut in chunks
    wide, item = layer.ffn_hidden / step.cut, layer.item_bytes
    rows = step.rows * share_of_rows(layer, step) / chunks
    held = _held(layer, step)
    products = (
        _Product(rows, layer.hidden, wide, held, item, item),
        _Product(rows, wide, layer.hidden, held, item, item),
    )
    touched = 3 if backwards else 2  # of the GELU: what it reads and writes
    tensor_s = rates.seconds(0 * rows, touched * rows * wide * item) + sum(each.seconds(rates) for each in products)
    weights_s = np.sum([each.weights_s(rates) for each in products], axis=0) if backwards else 0 * rows
    return chunks * tensor_s, chunks * weights_s


def _held(layer: Layer, step: Step) -> Floats:
    """[devices] the experts, or shards of experts, that each device holds."""
    places = layer.size(step.group)
    each = np.array([len(held) for held in layer.placed(places)], np.float64)
    return np.resize(each, layer.devices) if step.group == "mp" else np.repeat(each, layer.devices // places)


def _gate(layer: Layer, rates: Rates, step: Step, backwards: bool) -> tuple[Floats, Floats]:
    """Scores of the tokens and their softmax, in 32 bits at least."""
    once = 2.0 * layer.hidden * layer.experts * (2 if backwards else 1)
    tokens, one = np.full(layer.devices, step.flops / once), np.ones(layer.devices)
    wide = max(layer.item_bytes, LEAST)
    product = _Product(tokens, layer.hidden, layer.experts, one, layer.item_bytes, wide)
    touched = 3 if backwards else 2
    softmax_s = rates.seconds(0 * tokens, touched * tokens * layer.experts * wide)
    return product.seconds(rates) + softmax_s, product.weights_s(rates) if backwards else 0 * tokens


def share_of_rows(layer: Layer, experts: Step) -> Floats:
    """[devices] how many rows each computes, as a multiple of the rows of the step: of an even share,
    or where experts are folded into the tensor-parallel group of what the fullest device has. Where no token
    is dropped all devices know how many tokens are on their way, and leave empty slots out."""
    if experts.group == "mp":
        return np.resize(layer.folded_rows / max(layer.folded_rows.max(), 1e-300), layer.devices)
    if layer.capacity_factor is None:
        filled = layer.top_k * layer.tokens / (layer.experts * layer.capacity)  # of all slots
        return filled * device_rows(layer)
    return np.ones(layer.devices) if layer.homes is None else device_rows(layer)


def _collective(layer: Layer, direction: Sequence[Costed], at: int) -> Collective:
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
        time_s=_exposed(layer, direction, at),
        hidden=step.hidden,
    )
