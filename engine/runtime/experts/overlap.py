"""An all-to-all and an all-gather in flight at once (Parm's SAA, arXiv:2407.00599), block by block.

The all-to-all goes place by place: at every step a device sends to the devices at one place and
receives from those at another, first inside its node, then from node to node. As soon as a step is
there, what has come is added up and gathered among the ``mp`` devices beside it, on a communicator
of their own. The bits are those of the whole all-to-all, then the sum, then the whole all-gather.

Only some steps are on their way at a time. Were all of them, they would share the links between
nodes and arrive together at the end, with every gather still to come; with one alone those links
would lie idle while it is inside the node, and from the arrival of each step to the next one's start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import groupby, islice
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.experts import Layer, Step
from meshwave.engine.runtime.device.accelerator import is_accelerator
from meshwave.engine.runtime.experts.step_times import At, nothing
from meshwave.engine.runtime.experts.steps import OUTSIDE, SLOTS, Arrives, Steps


class Turns(NamedTuple):
    """The order in which places exchange, the same for all: at step ``number`` each sends so many nodes
    on, and so many places on there."""

    nodes: int
    places: int  # of a node

    def partner(self, place: int, number: int, way: int) -> int:
        """Whom ``place`` sends to at a step, or with ``way`` -1 receives from."""
        over, beside = divmod(number, self.places)
        node, within = divmod(place, self.places)
        return (node + way * over) % self.nodes * self.places + (within + way * beside) % self.places

    @property
    def at_once(self) -> int:
        """Steps on their way at a time: those inside the node, and one more."""
        return self.places + 1


def turns(layer: Layer) -> Turns:
    """Node by node where all have as many places; else as on one node."""
    nodes = [{layer.node(place * layer.esp + shard) for shard in range(layer.esp)} for place in range(layer.ep)]
    neighbours = [len(list(places)) for _, places in groupby(nodes)]
    return Turns(len(neighbours), neighbours[0]) if len({*neighbours}) == 1 else Turns(1, layer.ep)


class Piece(NamedTuple):
    """One step of the exchange: with whom, and which blocks."""

    to: list[int]  # members of the group
    source: list[int]
    gathered: list[list[int]]  # the experts of which each mp peer has got results


class Overlap:
    """A COMBINE, the steps on the device behind it, and the gather that is hidden under it."""

    def __init__(self, combine: Step, between: Sequence[Step], gather: Step, steps: Steps) -> None:
        self._combine, self._between, self._gather, self._steps = combine, between, gather, steps
        self._group, self._peers = steps.groups[combine.group], steps.groups[gather.group]
        self._turns = turns(steps.layer)
        self._pieces = [self._piece(number) for number in range(steps.layer.ep)]

    def start(self, x: Tensor, *, beside: bool, at: At = OUTSIDE) -> Arrives:
        """Results ``x [1, blocks, slots, hidden]`` back to ``[1, experts, slots of all peers, hidden]``.

        It goes on by itself, ``beside`` what the caller does next, where that does not keep it waiting:
        of NCCL's messages only the GPU waits.
        """
        if not beside or is_accelerator(x.device):
            done = self._run(x, at)
            return lambda: done
        return _thread().submit(self._run, x, at).result

    @torch.no_grad()
    def _run(self, x: Tensor, at: At) -> Tensor:
        buffer = self._steps.on_wire(x[0], self._combine)
        plan = self._steps.exchange(self._combine.group, self._steps.copies(self._combine))
        self._steps.note_exchange(self._combine, buffer, plan.received)
        parts = torch.split(buffer, plan.received)  # the plan is that of the way there
        arriving = [buffer.new_empty(blocks, *buffer.shape[1:]) for blocks in plan.sent]
        gathers: list[Callable[[], Sequence[Tensor] | Tensor]] = []
        exchanged, ends = self._steps.begins(self._combine.op, at), nothing
        ahead = iter(self._pieces)
        coming = deque(self._post(piece, parts, arriving) for piece in islice(ahead, self._turns.at_once))
        for piece in self._pieces:
            for work in coming.popleft():
                work.wait()
            coming.extend(self._post(later, parts, arriving) for later in islice(ahead, 1))
            if not coming:
                exchanged()
            ends = ends if gathers else self._steps.begins(self._gather.op, at)
            gathers.append(self._gathered(piece, self._summed([arriving[member] for member in piece.source], at)))
        found = [gather() for gather in gathers]
        ends()
        return self._laid(found, x)

    def _post(self, piece: Piece, parts: Sequence[Tensor], arriving: Sequence[Tensor]) -> list[Any]:
        """Start one step; receives come first, so that both directions of a pair flow at once."""
        group = self._group
        messages = []
        for mine, kind, tensors in ((piece.source, dist.irecv, arriving), (piece.to, dist.isend, parts)):
            for member in mine:
                if member != group.index and tensors[member].numel():
                    peer = group.members[member]
                    messages.append(dist.P2POp(kind, tensors[member], peer, group.handle))
        if group.index in piece.to:
            arriving[group.index].copy_(parts[group.index])
        return dist.batch_isend_irecv(messages) if messages else []

    def _summed(self, arrived: Sequence[Tensor], at: At) -> Tensor:
        """``[1, experts, slots, hidden]`` of what the devices at one place have sent."""
        copies, blocks = self._steps.copies(self._combine), torch.cat(list(arrived))
        x = blocks.view(copies, len(blocks) // copies, *blocks.shape[1:])
        for step in self._between:
            x = self._steps.start(step, x, at)()
        return x

    def _gathered(self, piece: Piece, part: Tensor) -> Callable[[], Sequence[Tensor] | Tensor]:
        """Start to gather the results of one place: peers at other places get theirs from others."""
        blocks = [len(experts) for experts in piece.gathered]
        if not any(blocks):
            return lambda: [part] * len(blocks)
        if len(set(blocks)) == 1:
            return self._steps.gather(self._gather, part)
        return self._steps.gather_uneven(self._gather, part, blocks)

    def _laid(self, gathered: Sequence[Tensor | Sequence[Tensor]], x: Tensor) -> Tensor:
        """Every piece of every peer to its experts and slots."""
        slots = x.shape[SLOTS]
        whole = x.new_empty(1, self._steps.layer.experts, self._peers.size * slots, *x.shape[SLOTS + 1 :])
        for piece, parts in zip(self._pieces, gathered, strict=True):
            for peer, (experts, part) in enumerate(zip(piece.gathered, parts, strict=True)):
                whole[:, _together(experts), peer * slots : (peer + 1) * slots] = part
        return whole

    def _piece(self, number: int) -> Piece:
        steps = self._steps
        layer, here = steps.layer, steps.me // steps.layer.esp
        kind = self._combine.group
        to, source = (self._at(kind, self._turns.partner(here, number, way)) for way in (1, -1))
        peers = [member // layer.esp for member in layer.members("mp", steps.me)]
        gathered = [steps.visited(place, self._turns.partner(place, number, -1)) for place in peers]
        return Piece(to, source, gathered)

    def _at(self, kind: str, place: int) -> list[int]:
        """The members of the group that stand at a place."""
        return [member for member in range(self._group.size) if self._steps.place(kind, member) == place]


def _together(experts: list[int]) -> slice | list[int]:
    """Neighbours as a slice, which is copied to faster than a list."""
    if experts and experts[-1] - experts[0] == len(experts) - 1:
        return slice(experts[0], experts[-1] + 1)
    return experts


@lru_cache(maxsize=1)
def _thread() -> ThreadPoolExecutor:
    """One for all layers: what is exchanged beside something else keeps the order in which it was begun."""
    return ThreadPoolExecutor(1, "expert-exchange")
