"""Time of an expert layer's messages: ``alpha + beta * bytes`` on links within and between nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.experts._layer import Layer
from meshwave.engine.experts._steps import Step, StepOp


class Line(NamedTuple):
    """Time of a message of ``n`` bytes in seconds: ``alpha + n * beta``."""

    alpha: float = 0.0
    beta: float = 0.0

    def seconds(self, size: float) -> float:
        """Return the time of a message of ``size`` bytes in seconds."""
        return self.alpha + size * self.beta


Fit = Mapping[str, Line]
"""Measured lines of whole collectives: ``all_gather``, ``reduce_scatter``, ``all_reduce`` and ``all_to_all``, each for
all kinds of groups or for one kind (such as ``all_to_all@ep``); and ``overlap``, an all-to-all overlapped with an
all-gather, by the buffer of the all-to-all. Sizes are buffer bytes; for an all-gather, all gathered bytes (Parm's
performance model)."""


@dataclass(frozen=True)
class Links:
    """Links of a device within and between nodes; devices that share a NIC each get a share of its bandwidth."""

    intra: Line
    inter: Line
    fit: Fit | None = None
    is_grouped: bool = False
    """True if the messages of an all-to-all start together, and a token is sent to another node once, however many of
    its experts are there (DeepEP)."""

    def fitted_line(self, collective: str, group: str) -> Line | None:
        """Return the measured line of a collective; None if it was not measured."""
        fit = self.fit or {}
        return fit.get(f"{collective}@{group}", fit.get(collective))


Floats = NDArray[np.float64]
MOVES = (StepOp.ORDER, StepOp.RESTORE, StepOp.DUMP, StepOp.SUM)
"""Steps that read and write their tensor; steps that split or keep only select a view of it."""


class Collective(NamedTuple):
    """Cost of a collective on the device that spends the most time in it."""

    name: str
    group: str
    group_size: int
    buffer_bytes: float  # size of the whole buffer; for an all-gather, of the own part
    sent_bytes: float  # bytes that leave the device
    intra_bytes: float  # sent within the node
    inter_bytes: float  # sent to other nodes
    time_s: float  # exposed time: less than the duration if it overlaps another collective
    hidden: bool = False


@dataclass(frozen=True, eq=False)
class CostedStep:
    """Step with its costs on every device."""

    step: Step
    compute_s: Floats  # [devices] compute time of all chunks in sequence
    weights_s: Floats  # [devices] part of compute_s for weight gradients
    intra_s: Floats  # [devices] time on the links within the node
    inter_s: Floats  # [devices] time on the links between nodes
    sent: Floats  # [2, devices] bytes sent within the node and to other nodes
    startup: Floats  # [2, devices] part of intra_s and inter_s that every chunk repeats
    piece_s: float = 0.0  # time of one piece of a hidden gather; 0 if not hidden
    overlap: Line | None = None  # measured line of a hidden gather together with its all-to-all

    @property
    def links_s(self) -> tuple[Floats, Floats]:
        """Seconds on links within the node and between nodes, each ``[devices]``."""
        return self.intra_s, self.inter_s

    def piece_seconds(self, chunks: int) -> float:
        """Return the seconds of a piece of a hidden gather for one of ``chunks`` chunks, including the startup."""
        startup = float(self.startup.max())
        return startup + (self.piece_s - startup) / chunks


def _cost_ring(layer: Layer, links: Links, costed: CostedStep) -> CostedStep:
    """Add the cost of a ring: ``n - 1`` steps of one part each, twice for an all-reduce."""
    step, n = costed.step, layer.size(costed.step.group)
    name = step.collective
    part = step.bytes / n if name == "all_reduce" else step.bytes
    rounds = (n - 1) * (2 if name == "all_reduce" else 1)
    fitted = links.fitted_line(str(name), step.group)
    buffer = step.bytes * (1 if name == "all_reduce" else n)
    members = layer.group_table(step.group)
    nodes = layer.node_of[members]
    across = np.empty(layer.devices, np.int64)  # index of the link: 0 within the node, 1 between nodes
    across[members] = (nodes != nodes[:, :1]).any(axis=1, keepdims=True)

    def lane_values(of: Callable[[Line], float], measured: float) -> Floats:
        return np.array([measured if fitted else of(line) for line in (links.intra, links.inter)])

    whole = lane_values(lambda line: rounds * line.seconds(part), fitted.seconds(buffer) if fitted else 0.0)
    alone = lane_values(lambda line: rounds * line.alpha, fitted.alpha if fitted else 0.0)
    pieces = lane_values(
        lambda line: rounds * line.seconds(part / layer.ep), fitted.seconds(buffer / layer.ep) if fitted else 0.0
    )
    each, (took, startup, sent) = np.arange(layer.devices), np.zeros((3, 2, layer.devices))
    took[across, each], startup[across, each], sent[across, each] = whole[across], alone[across], rounds * part
    piece = float(pieces[across].max())
    costed = replace(costed, intra_s=took[0], inter_s=took[1], sent=sent, startup=startup)
    if not step.hidden or (fitted and not links.fitted_line("overlap", "ep_esp")):
        return costed  # a line measured without overlap does not predict the hidden part
    return replace(costed, piece_s=piece, overlap=links.fitted_line("overlap", "ep_esp"))


def _cost_all_to_all(layer: Layer, links: Links, costed: CostedStep) -> CostedStep:
    """Add the cost of an all-to-all, in which each device waits for the larger of its sent and received bytes."""
    step = costed.step
    pairs = traffic(layer, step)
    busy = np.maximum(pairs, pairs.T)
    node = layer.node_of
    near = node[:, None] == node[None, :]
    np.fill_diagonal(busy, 0)
    np.fill_diagonal(pairs, 0)
    sides, startup = np.zeros((2, 2, layer.devices))
    for lane, (line, those) in enumerate(((links.intra, near), (links.inter, ~near))):
        messages = ((busy > 0) & those).sum(axis=1)
        startup[lane] = np.minimum(messages, 1 if links.is_grouped else messages) * line.alpha
        crossing = _crossing_share(layer) if links.is_grouped and lane else 1.0
        sides[lane] = startup[lane] + (busy * those).sum(axis=1) * line.beta * crossing
    sent = np.stack([(pairs * near).sum(axis=1), (pairs * ~near).sum(axis=1)])
    fitted = links.fitted_line("all_to_all", step.group)
    if fitted:
        lane = int(not near.all())
        sides[1 - lane], startup[1 - lane] = 0.0, 0.0
        sides[lane], startup[lane] = fitted.seconds(step.bytes), fitted.alpha
    return replace(costed, intra_s=sides[0], inter_s=sides[1], sent=sent, startup=startup)


def _crossing_share(layer: Layer) -> float:
    """Return the bytes between nodes if a token is sent once per node, relative to once per expert.

    Of ``k`` experts, chosen uniformly over ``n`` nodes, ``k (n - 1) / n`` are on other nodes, and ``(n - 1) (1 - (1 -
    1/n)^k)`` other nodes have at least one of them.
    """
    nodes = len(np.unique(layer.node_of))
    return nodes * (1 - (1 - 1 / nodes) ** layer.top_k) / layer.top_k


def traffic(layer: Layer, step: Step) -> Floats:
    """Return the bytes that each device sends to each device in an all-to-all, itself included, ``[devices, devices]``."""
    n, devices = layer.size(step.group), layer.devices
    pairs: Floats = np.zeros((devices, devices))
    if layer.placement is None:
        members = layer.group_table(step.group)
        pairs[members[:, :, None], members[:, None, :]] = step.bytes / n
        return pairs
    slots = step.bytes / layer.experts  # bytes for one expert from one source to all receivers
    if step.group == "ep_esp":  # every shard of the expert's place gets a copy
        pairs[:] = np.kron(layer.visit_counts, np.ones((layer.esp, layer.esp))) * slots / layer.esp
    else:
        pairs[:] = np.kron(layer.visit_counts, np.eye(layer.esp)) * slots
    forwards = step.op == StepOp.DISPATCH
    return pairs if forwards else pairs.T.copy()


# ---- exposed time ----


def _exposed_seconds(layer: Layer, direction: Sequence[CostedStep], at: int) -> float:
    """Return the seconds that step ``at`` adds to the layer, with steps in sequence and hidden gathers overlapped."""
    costed = direction[at]
    if costed.piece_s:
        return max(hidden_gather_seconds(layer, costed, _hiding_exchange(direction, at)), 0.0)
    took = float((costed.compute_s + costed.intra_s + costed.inter_s).max())
    above = _hidden_gather(direction, at)
    return took + min(hidden_gather_seconds(layer, above, costed), 0.0) if above else took


def hidden_gather_seconds(layer: Layer, gather: CostedStep, exchange: CostedStep, chunks: int = 1) -> float:
    """Return the seconds that a hidden gather of ``ep`` pieces adds to its all-to-all, for one of ``chunks`` chunks.

    All pieces except the last run during the part between nodes, the last piece after it. A gather between nodes is not
    hidden. A measured overlap covers both collectives, and can be less than the measured all-to-all alone, so the
    result can be negative.
    """
    if gather.overlap:
        alone = sum(part_seconds(took, chunks, exchange.startup[lane]) for lane, took in enumerate(exchange.links_s))
        return gather.overlap.seconds(exchange.step.bytes / chunks) - float(np.max(alone))
    piece = gather.piece_seconds(chunks)
    if gather.inter_s.any():
        return layer.ep * piece
    inter_s = float(part_seconds(exchange.inter_s, chunks, exchange.startup[1]).max())
    return max(inter_s, (layer.ep - 1) * piece) + piece - inter_s


def part_seconds(took: Floats, parts: int, startup: Floats) -> Floats:
    """Return the seconds of one of the ``parts`` of a split message, ``[devices]``, each including the startup."""
    return np.where(took > 0, startup + (took - startup) / parts, 0.0)


def _hiding_exchange(direction: Sequence[CostedStep], at: int) -> CostedStep:
    """Return the all-to-all that overlaps the hidden gather ``at``: the last all-to-all before it."""
    return next(costed for costed in reversed(direction[:at]) if costed.step.collective == "all_to_all")


def _hidden_gather(direction: Sequence[CostedStep], at: int) -> CostedStep | None:
    """Return the gather that overlaps the all-to-all ``at``; None if there is none."""
    if direction[at].step.collective != "all_to_all":
        return None
    following = next((costed for costed in direction[at + 1 :] if costed.step.collective), None)
    return following if following and following.piece_s else None
