"""All-to-all and all-gather in flight at once (SAA of Parm, arXiv:2407.00599), block by block.

The all-to-all proceeds place by place: in every step a device sends to the devices at one place and receives from the
devices at another place, first within its node, then between nodes. When a step has arrived, its blocks are summed and
gathered among the adjacent ``mp`` devices, on a communicator of their own. The results are bitwise equal to those of
the whole all-to-all, then the sum, then the whole all-gather.

Only some steps are in flight at a time. If all were, they would share the links between nodes and arrive together at
the end, before any gather could start. With one step in flight those links would be idle during steps within the node,
and between the arrival of one step and the start of the next.
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
from meshwave.engine.runtime.experts.step_times import StepPosition, do_nothing
from meshwave.engine.runtime.experts.steps import SLOTS, UNCHUNKED, PendingTensor, StepRunner


class ExchangeOrder(NamedTuple):
    """Order in which places exchange blocks, the same on all devices.

    In step ``n`` each place sends to the place that is ``n // places`` nodes and ``n % places`` places ahead.
    """

    nodes: int
    places: int  # places of a node

    def receiving_place(self, place: int, step: int, direction: int = 1) -> int:
        """Return the place to which ``place`` sends in a step; with ``direction`` -1 the place from which it receives."""
        nodes_ahead, places_ahead = divmod(step, self.places)
        node, within = divmod(place, self.places)
        target_node = (node + direction * nodes_ahead) % self.nodes
        return target_node * self.places + (within + direction * places_ahead) % self.places

    def sending_place(self, place: int, step: int) -> int:
        """Return the place from which ``place`` receives in a step."""
        return self.receiving_place(place, step, -1)

    @property
    def steps_in_flight(self) -> int:
        """Number of steps in flight at a time: the steps within a node, and one more."""
        return self.places + 1


def exchange_order(layer: Layer) -> ExchangeOrder:
    """Return the exchange order: by node if all nodes have equally many places, otherwise as on one node."""
    nodes = [{layer.node(place * layer.esp + shard) for shard in range(layer.esp)} for place in range(layer.ep)]
    places = [len(list(group)) for _, group in groupby(nodes)]
    return ExchangeOrder(len(places), places[0]) if len({*places}) == 1 else ExchangeOrder(1, layer.ep)


class ExchangeStep(NamedTuple):
    """One step of the exchange: the members that send and receive, and the experts whose results arrive."""

    targets: list[int]  # members of the group
    sources: list[int]
    gathered: list[list[int]]  # experts whose results each peer has received [mp peers]


class OverlappedCombine:
    """Combine step of an expert layer, overlapped with the all-gather that follows it."""

    def __init__(self, combine: Step, between: Sequence[Step], gather: Step, runner: StepRunner) -> None:
        self._combine, self._between, self._gather, self._runner = combine, between, gather, runner
        self._group, self._peers = runner.groups[combine.group], runner.groups[gather.group]
        self._order = exchange_order(runner.layer)
        self.steps = [self._exchange_step(number) for number in range(runner.layer.ep)]

    def start(self, x: Tensor, *, in_thread: bool, position: StepPosition = UNCHUNKED) -> PendingTensor:
        """Start to turn results ``[1, blocks, slots, hidden]`` into ``[1, experts, slots of all peers, hidden]``.

        ``in_thread`` runs it concurrently with the caller. It has no effect on an accelerator, where only streams wait
        for messages.
        """
        if not in_thread or is_accelerator(x.device):
            result = self._run(x, position)
            return lambda: result
        return _exchange_thread().submit(self._run, x, position).result

    @torch.no_grad()
    def _run(self, x: Tensor, position: StepPosition) -> Tensor:
        runner = self._runner
        buffer = runner.to_send_buffer(x[0], self._combine)
        plan = runner.exchange_plan(self._combine.group, runner.copy_count(self._combine))
        runner.record_exchange(self._combine, buffer, plan.received)
        parts = torch.split(buffer, plan.received)  # same plan as for the dispatch
        arriving = [buffer.new_empty(blocks, *buffer.shape[1:]) for blocks in plan.sent]
        gathers: list[Callable[[], Sequence[Tensor] | Tensor]] = []
        end_exchange, end_gather = runner.begin_step(self._combine.op, position), do_nothing
        remaining = iter(self.steps)
        in_flight = deque(
            self._start_messages(step, parts, arriving) for step in islice(remaining, self._order.steps_in_flight)
        )
        for step in self.steps:
            for work in in_flight.popleft():
                work.wait()
            in_flight.extend(self._start_messages(later, parts, arriving) for later in islice(remaining, 1))
            if not in_flight:
                end_exchange()
            end_gather = end_gather if gathers else runner.begin_step(self._gather.op, position)
            summed = self._sum_copies([arriving[member] for member in step.sources], position)
            gathers.append(self._start_gather(step, summed))
        gathered = [gather() for gather in gathers]
        end_gather()
        return self._assemble(gathered, x)

    def _start_messages(self, step: ExchangeStep, parts: Sequence[Tensor], arriving: Sequence[Tensor]) -> list[Any]:
        """Start the messages of one step; receives come first, so that both directions of a pair carry data at once."""
        group = self._group
        messages = []
        for members, kind, tensors in ((step.sources, dist.irecv, arriving), (step.targets, dist.isend, parts)):
            for member in members:
                if member != group.index and tensors[member].numel():
                    peer = group.members[member]
                    messages.append(dist.P2POp(kind, tensors[member], peer, group.handle))
        if group.index in step.targets:
            arriving[group.index].copy_(parts[group.index])
        return dist.batch_isend_irecv(messages) if messages else []

    def _sum_copies(self, arrived: Sequence[Tensor], position: StepPosition) -> Tensor:
        """Return ``[1, experts, slots, hidden]``, the sum of the results from the devices at one place."""
        copies, blocks = self._runner.copy_count(self._combine), torch.cat(list(arrived))
        x = blocks.view(copies, len(blocks) // copies, *blocks.shape[1:])
        for step in self._between:
            x = self._runner.start(step, x, position)()
        return x

    def _start_gather(self, step: ExchangeStep, part: Tensor) -> Callable[[], Sequence[Tensor] | Tensor]:
        """Start to gather the results of one step; peers at other places receive theirs from other places."""
        blocks = [len(experts) for experts in step.gathered]
        if not any(blocks):
            return lambda: [part] * len(blocks)
        if len(set(blocks)) == 1:
            return self._runner.gather(self._gather, part)
        return self._runner.gather_uneven(self._gather, part, blocks)

    def _assemble(self, gathered: Sequence[Tensor | Sequence[Tensor]], x: Tensor) -> Tensor:
        """Return the gathered results of all steps and peers, in the order of experts and slots."""
        slots = x.shape[SLOTS]
        whole = x.new_empty(1, self._runner.layer.experts, self._peers.size * slots, *x.shape[SLOTS + 1 :])
        for step, parts in zip(self.steps, gathered, strict=True):
            for peer, (experts, part) in enumerate(zip(step.gathered, parts, strict=True)):
                whole[:, _as_slice(experts), peer * slots : (peer + 1) * slots] = part
        return whole

    def _exchange_step(self, number: int) -> ExchangeStep:
        runner, order = self._runner, self._order
        layer, here = runner.layer, runner.index // runner.layer.esp
        targets, sources = (self._members_at(end(here, number)) for end in (order.receiving_place, order.sending_place))
        peers = [member // layer.esp for member in layer.members("mp", runner.index)]
        gathered = [runner.serving_experts(place, order.sending_place(place, number)) for place in peers]
        return ExchangeStep(targets, sources, gathered)

    def _members_at(self, place: int) -> list[int]:
        """Return the members of the group that are at a place."""
        kind = self._combine.group
        return [member for member in range(self._group.size) if self._runner.member_place(kind, member) == place]


def _as_slice(experts: list[int]) -> slice | list[int]:
    """Return consecutive indices as a slice, which copies faster than a list; other indices unchanged."""
    if experts and experts[-1] - experts[0] == len(experts) - 1:
        return slice(experts[0], experts[-1] + 1)
    return experts


@lru_cache(maxsize=1)
def _exchange_thread() -> ThreadPoolExecutor:
    """Return the executor with the single thread of all layers, which keeps exchanges in their start order."""
    return ThreadPoolExecutor(1, "expert-exchange")
