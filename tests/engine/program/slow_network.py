"""Reference simulation of a network: every rate is recomputed at every event, with plain dictionaries.

It shares no code with :mod:`meshwave.engine.program.shared_links` except the description of the network.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.shared_links import Network
from tests.engine.program.test_simulation import Task, tasks_of, waits_of

EVEN = 1e-9


@dataclass
class Flow:
    name: object  # a task: a message, or the node that exchanges
    kind: int
    left: float  # bytes
    asked: int = 0
    latency: float = 0.0


@dataclass
class SlowNetwork:
    """Simulation of a program whose slots have one action each."""

    program: Program
    seconds: NDArray[np.float64]
    network: Network
    now: float = 0.0
    spans: dict[Task, tuple[float, float]] = field(default_factory=dict)

    def play(self) -> dict[Task, tuple[float, float]]:
        self.rows = {task: row for task, row, _ in tasks_of(self.program)}
        self.waiting = {task: set(needed) for task, needed in waits_of(self.program, "latency").items()}
        self.computing: dict[Task, float] = {}  # when a part ends
        self.parts: dict[Task, int] = {}  # that have not ended, of each computation
        self.unfinished: dict[Task, int] = {}  # of the current part: its computation with exchange, and the flow beside
        self.late: list[Flow] = []  # whose latency is not over
        self.queues: defaultdict[int, list[Flow]] = defaultdict(list)
        self.moving: list[Flow] = []
        self.asked = 0
        self._start_ready()
        while self.computing or self.late or self.moving:
            self._step()
        return self.spans

    def _step(self) -> None:
        rates = fair_rates(self.network, [flow.kind for flow in self.moving])
        moments = [*self.computing.values(), *(flow.latency for flow in self.late)]
        moments += [self.now + flow.left / rate for flow, rate in zip(self.moving, rates, strict=True)]
        soonest = min(moments)
        for flow, rate in zip(self.moving, rates, strict=True):
            flow.left -= rate * (soonest - self.now)
        ended = [
            flow
            for flow, rate in zip(self.moving, rates, strict=True)
            if flow.left <= rate * 1e-12 * max(1.0, soonest) + 1e-300
        ]
        self.now = soonest
        self.moving = [flow for flow in self.moving if flow not in ended]
        for task in [task for task, end in self.computing.items() if end <= self.now]:
            del self.computing[task]
            self._finish_computation(task)
        for flow in [flow for flow in self.late if flow.latency <= self.now]:
            self.late.remove(flow)
            self.asked += 1
            flow.asked = self.asked
            self.queues[int(self.network.connection[flow.kind])].append(flow)
        for flow in ended:
            self.queues[int(self.network.connection[flow.kind])].remove(flow)
            self._finish_flow(flow)
        self._begin(after_end=bool(ended))

    def _begin(self, *, after_end: bool) -> None:
        heads = sorted((queue[0] for queue in self.queues.values() if queue), key=lambda flow: flow.asked)
        for flow in heads:
            if flow not in self.moving and self._has_units(flow.kind):
                self.moving.append(flow)
                if after_end and isinstance(flow.name, tuple) and flow.name[1].op in (Op.SEND_F, Op.SEND_B):
                    self.spans[flow.name] = self.now, self.now

    def _has_units(self, kind: int) -> bool:
        network = self.network
        taken: defaultdict[int, int] = defaultdict(int)
        for flow in self.moving:
            for use in range(network.use_ptr[flow.kind], network.use_ptr[flow.kind + 1]):
                taken[int(network.use_port[use])] += 1
        ports = network.use_port[network.use_ptr[kind] : network.use_ptr[kind + 1]].tolist()
        return all(network.units[port] < 0 or taken[port] < network.units[port] for port in ports)

    def _start_ready(self) -> None:
        for task in [task for task, needed in self.waiting.items() if not needed]:
            del self.waiting[task]
            row, op = self.rows[task], task[1].op
            self.spans[task] = self.now, self.now
            kind = int(self.network.row_kind[row])
            if op in (Op.SEND_F, Op.SEND_B) or op == Op.REDUCE_GRAD:
                if kind >= 0:
                    self._set_out(task, kind, self.seconds[row])
                else:
                    self.computing[task] = self.now + self.seconds[row]
                continue
            has_parts = kind >= 0 or self.network.beside_kind[row] >= 0
            self.parts[task] = int(self.network.parts[row]) if has_parts else 1
            self._compute(task)

    def _compute(self, task: Task) -> None:
        row = self.rows[task]
        exchange = self.network.exchange_s[row] if self.network.row_kind[row] >= 0 else 0.0
        beside = int(self.network.beside_kind[row])
        pieces = int(self.network.parts[row]) if self.network.row_kind[row] >= 0 or beside >= 0 else 1
        self.computing[task] = self.now + max(0.0, self.seconds[row] - exchange) / pieces
        self.unfinished[task] = 1
        if beside >= 0:
            self.unfinished[task] = 2
            self._set_out(task, beside, self.network.beside_s[row] / pieces)

    def _finish_computation(self, task: Task) -> None:
        row = self.rows[task]
        if task not in self.parts:
            self._finish_task(task)
        elif self.network.row_kind[row] >= 0:
            self._set_out(task, int(self.network.row_kind[row]), self.network.exchange_s[row] / self.network.parts[row])
        else:
            self._finish_part(task)

    def _set_out(self, task: Task, kind: int, alone: float) -> None:
        latency, rate = self.network.latency_s[kind], self.network.rate[kind]
        self.late.append(Flow(task, kind, max(0.0, alone - latency) * rate, latency=self.now + latency))

    def _finish_flow(self, flow: Flow) -> None:
        task = flow.name
        assert isinstance(task, tuple)
        if task in self.parts:
            self._finish_part(task)
        else:
            self._finish_task(task)

    def _finish_part(self, task: Task) -> None:
        """Finish the part if both its computation and the flow beside it have ended."""
        self.unfinished[task] -= 1
        if self.unfinished[task]:
            return
        self.parts[task] -= 1
        if self.parts[task]:
            self._compute(task)
        else:
            self._finish_task(task)

    def _finish_task(self, task: Task) -> None:
        self.spans[task] = self.spans[task][0], self.now
        for needed in self.waiting.values():
            needed.discard(task)
        self._start_ready()


def fair_rates(network: Network, kinds: list[int]) -> list[float]:
    """Return max-min fair rates: all rates grow together until they fill a port or reach their maximum."""
    rates = [0.0] * len(kinds)
    rising = set(range(len(kinds)))
    weight = np.zeros((len(kinds), len(network.ports)))
    for flow, kind in enumerate(kinds):
        for use in range(network.use_ptr[kind], network.use_ptr[kind + 1]):
            weight[flow, network.use_port[use]] = network.use_weight[use]
    while rising:
        used = np.array(rates) @ weight
        slope = sum((weight[flow] for flow in rising), np.zeros(len(network.ports)))
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(slope > 0, (network.capacity - used) / slope, np.inf)
        step = min([*room.tolist(), *(network.rate[kinds[flow]] - rates[flow] for flow in rising)])
        for flow in rising:
            rates[flow] += max(0.0, step)
        full = room <= step * (1 + EVEN) + 1e-15
        rising = {
            flow
            for flow in rising
            if rates[flow] < network.rate[kinds[flow]] * (1 - EVEN) and not (full & (weight[flow] > 0)).any()
        }
    return rates
