"""What a schedule costs a layer: bytes and seconds of every step, on every device.

The deterministic model of both sheets: a collective among neighbours is a ring, an all-to-all goes
pair by pair, first inside the node, then between nodes. A gather that is hidden under an all-to-all
shares the links inside the node with it, so that it hides behind the part between nodes only; its
last piece is always exposed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.moe._balance import device_rows
from engine.moe._layer import Layer
from engine.moe._links import Line, Links
from engine.moe._schedule import Choice, Costs, ExpertSchedule, expert_schedules
from engine.moe._steps import Step, StepOp, backward

Floats = NDArray[np.float64]


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
MOVES = (StepOp.ORDER, StepOp.RESTORE, StepOp.DUMP, StepOp.SUM)
"""Steps that read and write their tensor; to split and to keep is to look at a part of it."""


class Collective(NamedTuple):
    """A collective of one device: of the one that is busy with it the longest."""

    name: str
    group: str
    group_size: int
    buffer_bytes: float  # all-to-all, reduce-scatter, all-reduce: the whole buffer; all-gather: its own part
    sent_bytes: float  # what leaves the device
    intra_bytes: float  # of it, inside the node
    inter_bytes: float  # and to other nodes
    time_s: float  # what it adds to the layer's time: less than it takes where it hides
    hidden: bool = False


@dataclass(frozen=True, eq=False)
class Costed:
    """A step with what it costs every device."""

    step: Step
    compute_s: Floats  # [devices] of all chunks, one after the other
    weights_s: Floats  # [devices] of it the gradients of weights
    intra_s: Floats  # [devices] on the links inside the node
    inter_s: Floats  # [devices] on those between nodes
    sent: Floats  # [2, devices] bytes that leave the device, inside the node and to others
    startup: Floats  # [2, devices] of intra_s and inter_s what no chunk can share
    piece_s: float = 0.0  # of a hidden gather: one of its pieces
    overlap: Line | None = None  # of a hidden gather: measured, with the all-to-all that it hides under

    @property
    def links_s(self) -> tuple[Floats, Floats]:
        """Inside the node, between nodes."""
        return self.intra_s, self.inter_s

    def piece(self, chunks: int) -> float:
        """Seconds of a piece of a hidden gather, of one of ``chunks``: each pays the startup."""
        startup = float(self.startup.max())
        return startup + (self.piece_s - startup) / chunks


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

    choice = chosen(name, layer, links, rates)
    name = choice.name if choice else name
    steps = expert_schedules[name]().steps(layer)
    forward = [_costed(layer, links, step, _compute(layer, rates, step)) for step in steps]
    back = [_costed(layer, links, step, _compute(layer, rates, step, backwards=True)) for step in backward(steps)]
    return Price(name, layer, choice, tuple(forward), tuple(back))


def chosen(
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
    return 2.0 * layer.hidden * layer.ffn_hidden * held(schedule, layer) / cut


def held(schedule: ExpertSchedule, layer: Layer) -> int:
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


def _ring(layer: Layer, links: Links, costed: Costed) -> Costed:
    """A ring among neighbours: ``n - 1`` steps of a part each, twice for an all-reduce."""
    step, n = costed.step, layer.size(costed.step.group)
    name = step.collective
    part = step.bytes / n if name == "all_reduce" else step.bytes
    rounds = (n - 1) * (2 if name == "all_reduce" else 1)
    fitted = links.fitted(str(name), step.group)
    buffer = step.bytes * (1 if name == "all_reduce" else n)
    members = layer.group_table(step.group)
    nodes = layer.node_of[members]
    across = np.empty(layer.devices, np.int64)  # which lane: 0 inside the node, 1 between nodes
    across[members] = (nodes != nodes[:, :1]).any(axis=1, keepdims=True)

    def of_lanes(of: Callable[[Line], float], measured: float) -> Floats:
        return np.array([measured if fitted else of(line) for line in (links.intra, links.inter)])

    whole = of_lanes(lambda line: rounds * line.seconds(part), fitted.seconds(buffer) if fitted else 0.0)
    alone = of_lanes(lambda line: rounds * line.alpha, fitted.alpha if fitted else 0.0)
    pieces = of_lanes(
        lambda line: rounds * line.seconds(part / layer.ep), fitted.seconds(buffer / layer.ep) if fitted else 0.0
    )
    each, (took, startup, sent) = np.arange(layer.devices), np.zeros((3, 2, layer.devices))
    took[across, each], startup[across, each], sent[across, each] = whole[across], alone[across], rounds * part
    piece = float(pieces[across].max())
    costed = replace(costed, intra_s=took[0], inter_s=took[1], sent=sent, startup=startup)
    if not step.hidden or (fitted and not links.fitted("overlap", "ep_esp")):
        return costed  # what was measured without its overlap says nothing of what hides
    return replace(costed, piece_s=piece, overlap=links.fitted("overlap", "ep_esp"))


def _all_to_all(layer: Layer, links: Links, costed: Costed) -> Costed:
    """Pair by pair; each device waits for the larger of what it sends and what it gets."""
    step = costed.step
    pairs = traffic(layer, step)
    busy = np.maximum(pairs, pairs.T)
    node = layer.node_of
    near = node[:, None] == node[None, :]
    np.fill_diagonal(busy, 0)
    np.fill_diagonal(pairs, 0)
    sides, startup = np.zeros((2, 2, layer.devices))
    for lane, (line, those) in enumerate(((links.intra, near), (links.inter, ~near))):
        startup[lane] = ((busy > 0) & those).sum(axis=1) * line.alpha
        sides[lane] = startup[lane] + (busy * those).sum(axis=1) * line.beta
    sent = np.stack([(pairs * near).sum(axis=1), (pairs * ~near).sum(axis=1)])
    fitted = links.fitted("all_to_all", step.group)
    if fitted:
        lane = int(not near.all())
        sides[1 - lane], startup[1 - lane] = 0.0, 0.0
        sides[lane], startup[lane] = fitted.seconds(step.bytes), fitted.alpha
    return replace(costed, intra_s=sides[0], inter_s=sides[1], sent=sent, startup=startup)


def traffic(layer: Layer, step: Step) -> Floats:
    """[devices, devices] bytes of an all-to-all from each device to each, itself included."""
    n, devices = layer.size(step.group), layer.devices
    pairs: Floats = np.zeros((devices, devices))
    if layer.homes is None:
        members = layer.group_table(step.group)
        pairs[members[:, :, None], members[:, None, :]] = step.bytes / n
        return pairs
    slots = step.bytes / layer.experts  # of one expert, from one source, to all who need it
    if step.group == "ep_esp":  # every shard of the expert's place gets a copy
        pairs[:] = np.kron(layer.served, np.ones((layer.esp, layer.esp))) * slots / layer.esp
    else:
        pairs[:] = np.kron(layer.served, np.eye(layer.esp)) * slots
    forwards = step.op == StepOp.DISPATCH
    return pairs if forwards else pairs.T.copy()


# ---- what each adds ----


def _exposed(layer: Layer, direction: Sequence[Costed], at: int) -> float:
    """Seconds that a step adds to the layer, all steps one after the other but for what hides."""
    costed = direction[at]
    if costed.piece_s:
        return max(gather_under(layer, costed, _under(direction, at)), 0.0)
    took = float((costed.compute_s + costed.intra_s + costed.inter_s).max())
    above = _above(direction, at)
    return took + min(gather_under(layer, above, costed), 0.0) if above else took


def gather_under(layer: Layer, gather: Costed, exchange: Costed, chunks: int = 1) -> float:
    """What a hidden gather of ``ep`` pieces adds to the all-to-all that it hides under: its pieces but
    the last run beside the part between nodes, the last one after it. A gather that itself goes
    between nodes has nothing to hide behind. Both are of one of ``chunks``.

    A measured overlap is of both together, and can be less than what was measured of the all-to-all alone.
    """
    if gather.overlap:
        alone = sum(in_parts(took, chunks, exchange.startup[lane]) for lane, took in enumerate(exchange.links_s))
        return gather.overlap.seconds(exchange.step.bytes / chunks) - float(np.max(alone))
    piece = gather.piece(chunks)
    if gather.inter_s.any():
        return layer.ep * piece
    inter_s = float(in_parts(exchange.inter_s, chunks, exchange.startup[1]).max())
    return max(inter_s, (layer.ep - 1) * piece) + piece - inter_s


def in_parts(took: Floats, parts: int, startup: Floats) -> Floats:
    """[devices] seconds of one of the parts that a message is cut into: each pays the startup."""
    return np.where(took > 0, startup + (took - startup) / parts, 0.0)


def _under(direction: Sequence[Costed], at: int) -> Costed:
    """The all-to-all that a hidden gather runs under: the last one before it."""
    return next(costed for costed in reversed(direction[:at]) if costed.step.collective == "all_to_all")


def _above(direction: Sequence[Costed], at: int) -> Costed | None:
    """The gather that hides under an all-to-all, where there is one."""
    if direction[at].step.collective != "all_to_all":
        return None
    following = next((costed for costed in direction[at + 1 :] if costed.step.collective), None)
    return following if following and following.piece_s else None


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
