"""What a schedule costs a layer: bytes and seconds of every step, on every device.

The deterministic model of both sheets: a collective among neighbours is a ring, an all-to-all goes
pair by pair, first inside the node, then between nodes. A gather that is hidden under an all-to-all
shares the links inside the node with it, so that it hides behind the part between nodes only; its
last piece is always exposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.moe._layer import Layer
from engine.moe._links import Line, Links
from engine.moe._schedule import Choice, ExpertSchedule, expert_schedules
from engine.moe._steps import Step, StepOp, backward

Floats = NDArray[np.float64]


class Rates(NamedTuple):
    """How fast a device computes; infinite where only communication is asked for."""

    flops: float = np.inf  # FLOP/s that products reach
    memory: float = np.inf  # bytes/s to and from its memory


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
    compute_s: Floats  # [devices]
    intra_s: Floats  # [devices] on the links inside the node
    inter_s: Floats  # [devices] on those between nodes
    sent: Floats  # [2, devices] bytes that leave the device, inside the node and to others
    startup: Floats  # [2, devices] of intra_s and inter_s what no chunk can share
    piece_s: float = 0.0  # of a hidden gather: one of its pieces
    overlap: Line | None = None  # of a hidden gather: measured, with the all-to-all that it hides under


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
        """Of the experts' products on one device, forwards."""
        return sum(costed.step.flops for costed in self.forward if costed.step.op == StepOp.EXPERTS)

    def collectives(self, direction: Sequence[Costed]) -> list[Collective]:
        """The collectives of ``forward`` or ``backward``, in order."""
        taking_part = [
            at
            for at, costed in enumerate(direction)
            if costed.step.collective and self.layer.size(costed.step.group) > 1
        ]
        return [_collective(self.layer, direction, at) for at in taking_part]

    def communication_s(self, direction: Sequence[Costed]) -> float:
        return sum(collective.time_s for collective in self.collectives(direction))

    def sent_bytes(self, direction: Sequence[Costed]) -> tuple[float, float]:
        """What the busiest device sends inside its node and to others."""
        inside, outside = np.sum([costed.sent for costed in direction], axis=0)
        return float(inside.max()), float(outside.max())


def price(name: str, layer: Layer, links: Links, rates: Rates = NO_COMPUTE) -> Price:
    """Price the schedule called ``name``; an automatic one is priced as what it chooses.

    Raises:
        InputError: there is no such schedule.
    """

    def seconds(of: ExpertSchedule) -> float:
        forward = [_costed(layer, links, rates, step) for step in of.steps(layer)]
        return sum(_exposed(layer, forward, at) for at in range(len(forward)))

    schedule = expert_schedules[name]()
    choice = schedule.choose(layer, seconds)
    name = choice.name if choice else name
    steps = expert_schedules[name]().steps(layer)
    forward, back = ([_costed(layer, links, rates, step) for step in way] for way in (steps, backward(steps)))
    return Price(name, layer, choice, tuple(forward), tuple(back))


def parameters(schedule: ExpertSchedule, layer: Layer) -> float:
    """Of the experts that the fullest device holds: ``2 M H`` each, cut in ``esp`` where experts are cut."""
    places = layer.size(schedule.places)
    cut = layer.esp if schedule.places == "ep" else 1
    held = max(map(len, layer.placed(places))) if layer.homes else layer.experts / places
    return 2.0 * layer.hidden * layer.ffn_hidden * held / cut


# ---- one step ----


def _costed(layer: Layer, links: Links, rates: Rates, step: Step) -> Costed:
    none = np.zeros(layer.devices)
    both = np.zeros((2, layer.devices))
    costed = Costed(step, _compute(layer, rates, step), none, none, both, both)
    if step.collective is None or layer.size(step.group) == 1:
        return costed
    if step.collective == "all_to_all":
        return _all_to_all(layer, links, costed)
    return _ring(layer, links, costed)


def _compute(layer: Layer, rates: Rates, step: Step) -> Floats:
    """[devices] the longer of the products and of what is moved in memory."""
    moved = 2 * step.bytes if step.op in MOVES else 0.0
    if step.op != StepOp.EXPERTS or layer.homes is None:
        return np.full(layer.devices, max(step.flops / rates.flops, moved / rates.memory))
    return step.flops * _share_of_rows(layer, step.group) / rates.flops


def _share_of_rows(layer: Layer, places: str) -> Floats:
    """[devices] how many rows each computes, as a multiple of the rows of the step: of an even share,
    or where experts are folded into the tensor-parallel group of what the fullest device has."""
    if places == "mp":
        held = np.array([len(home) for home in layer.placed(layer.mp)], float)
        return np.resize(held / max(held.max(), 1), layer.devices)
    rows = layer.served.sum(axis=0)
    return np.repeat(rows / layer.experts, layer.esp)


def _ring(layer: Layer, links: Links, costed: Costed) -> Costed:
    """A ring among neighbours: ``n - 1`` steps of a part each, twice for an all-reduce."""
    step, n = costed.step, layer.size(costed.step.group)
    name = step.collective
    part = step.bytes / n if name == "all_reduce" else step.bytes
    rounds = (n - 1) * (2 if name == "all_reduce" else 1)
    fitted = links.fitted(str(name), step.group)
    intra_s, inter_s = costed.intra_s.copy(), costed.inter_s.copy()
    sent, startup = costed.sent.copy(), costed.startup.copy()
    piece = 0.0
    for group in layer.groups(step.group):
        across = len({layer.node(device) for device in group}) > 1
        line = links.inter if across else links.intra
        took = (
            fitted.seconds(step.bytes * (1 if name == "all_reduce" else n)) if fitted else rounds * line.seconds(part)
        )
        members = list(group)
        (inter_s if across else intra_s)[members] = took
        sent[int(across), members] = rounds * part
        startup[int(across), members] = fitted.alpha if fitted else rounds * line.alpha
        pieces = layer.ep
        alone = took / pieces if fitted else (n - 1) * line.seconds(part / pieces)
        piece = max(piece, alone)
    costed = replace(costed, intra_s=intra_s, inter_s=inter_s, sent=sent, startup=startup)
    if not step.hidden or (fitted and not links.fitted("overlap", "ep_esp")):
        return costed  # what was measured without its overlap says nothing of what hides
    return replace(costed, piece_s=piece, overlap=links.fitted("overlap", "ep_esp"))


def _all_to_all(layer: Layer, links: Links, costed: Costed) -> Costed:
    """Pair by pair; each device waits for the larger of what it sends and what it gets."""
    step = costed.step
    pairs = traffic(layer, step)
    busy = np.maximum(pairs, pairs.T)
    node = np.array([layer.node(device) for device in range(layer.devices)])
    near = node[:, None] == node[None, :]
    np.fill_diagonal(busy, 0)
    np.fill_diagonal(pairs, 0)
    sides, startup = [], []
    for line, those in ((links.intra, near), (links.inter, ~near)):
        met = (busy > 0) & those
        startup.append(met.sum(axis=1) * line.alpha)
        sides.append(startup[-1] + (busy * those).sum(axis=1) * line.beta)
    sent = np.stack([(pairs * near).sum(axis=1), (pairs * ~near).sum(axis=1)])
    fitted = links.fitted("all_to_all", step.group)
    if fitted:
        lane = int(not near.all())
        sides, startup = np.zeros((2, 2, layer.devices))
        sides[lane], startup[lane] = fitted.seconds(step.bytes), fitted.alpha
    return replace(costed, intra_s=sides[0], inter_s=sides[1], sent=sent, startup=np.stack(startup))


def traffic(layer: Layer, step: Step) -> Floats:
    """[devices, devices] bytes of an all-to-all from each device to each, itself included."""
    n, devices = layer.size(step.group), layer.devices
    if layer.homes is None or len(layer.homes) != layer.ep:
        pairs = np.zeros((devices, devices))
        for group in layer.groups(step.group):
            pairs[np.ix_(group, group)] = step.bytes / n
        return pairs
    slots = step.bytes / layer.experts  # of one expert, from one source, to all who need it
    if step.group == "ep_esp":  # every shard of the expert's place gets a copy
        pairs = np.kron(layer.served, np.ones((layer.esp, layer.esp))) * slots / layer.esp
    else:
        pairs = np.kron(layer.served, np.eye(layer.esp)) * slots
    forwards = step.op == StepOp.DISPATCH
    return pairs if forwards else pairs.T.copy()


# ---- what each adds ----


def _exposed(layer: Layer, direction: Sequence[Costed], at: int) -> float:
    """Seconds that a step adds to the layer, all steps one after the other but for what hides."""
    costed = direction[at]
    if not costed.piece_s:
        return float((costed.compute_s + costed.intra_s + costed.inter_s).max())
    return gather_under(layer, costed, _under(direction, at))


def gather_under(layer: Layer, gather: Costed, exchange: Costed) -> float:
    """What a hidden gather of ``ep`` pieces adds to the all-to-all that it hides under: its pieces but
    the last run beside the part between nodes, the last one after it."""
    inter_s = float(exchange.inter_s.max())
    if gather.overlap:
        return gather.overlap.seconds(exchange.step.bytes) - float((exchange.intra_s + exchange.inter_s).max())
    return max(inter_s, (layer.ep - 1) * gather.piece_s) + gather.piece_s - inter_s


def _under(direction: Sequence[Costed], at: int) -> Costed:
    """The all-to-all that a hidden gather runs under: the last one before it."""
    return next(costed for costed in reversed(direction[:at]) if costed.step.collective == "all_to_all")


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
