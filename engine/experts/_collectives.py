"""Seconds of the messages of an expert layer: ``alpha + beta * bytes`` on two classes of link."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.experts._layer import Layer
from meshwave.engine.experts._steps import Step, StepOp


class Line(NamedTuple):
    """A message of ``n`` bytes takes ``alpha + n * beta`` seconds."""

    alpha: float = 0.0
    beta: float = 0.0

    def seconds(self, size: float) -> float:
        return self.alpha + size * self.beta


Fit = Mapping[str, Line]
"""Measured lines of whole collectives: ``all_gather``, ``reduce_scatter``, ``all_reduce`` and
``all_to_all``, each for all groups or, as ``all_to_all@ep``, for one kind of group; and ``overlap``, an
all-to-all with the all-gather that hides under it, by the buffer of the all-to-all. Bytes are
buffers, of an all-gather all that was gathered (Parm's performance model)."""


@dataclass(frozen=True)
class Links:
    """What one device gets of the links: where several share a NIC, its part of it."""

    intra: Line
    inter: Line
    fit: Fit | None = None

    def fitted(self, collective: str, group: str) -> Line | None:
        """The measured line of a collective, where there is one."""
        fit = self.fit or {}
        return fit.get(f"{collective}@{group}", fit.get(collective))


Floats = NDArray[np.float64]
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
