"""Flows of a prediction: messages and collectives with the ports they pass, their times, and the port that limits each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs import Costs
from meshwave.engine.predict.link_load import port_name
from meshwave.engine.program.link_shares import Steps
from meshwave.engine.program.program import Program
from meshwave.engine.program.shared_links import Network, Port
from meshwave.engine.program.shared_links_simulation import RateLog
from meshwave.engine.program.simulation import computing_seconds, flow_bytes, is_shared, link_rates
from meshwave.engine.program.timeline import Timeline

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ENTRIES_PER_ROW = 4
"""Changes of rates that are noted at first, for each row of the program; where there are more, all are played again."""
FULL_SHARE = 1 - 1e-6
"""A port of which so much is used is full."""
ROUNDING = 1e-9
"""Relative: bytes that are left by rounding."""


@dataclass(frozen=True, eq=False)
class LinkFlows:
    """All flows of a step: messages between meshes, gradient reductions, and the exchanges inside computations."""

    network: Network
    span: Ints  # [flows] of the timeline
    part: Ints  # [flows] of the exchanges inside a computation, from 0
    kind: Ints  # [flows]
    bytes: Floats  # [flows] by the network's rates; seconds where one transfer passes at a time
    start_s: Floats  # [flows] its first byte
    end_s: Floats
    rates: Mapping[int, Steps]  # by class of kinds, bytes/s of each flow

    @property
    def is_serial(self) -> bool:
        """True where a port carries one transfer at a time."""
        return bool((self.network.units >= 0).any())

    @property
    def at_capacity(self) -> Floats:
        """``[ports]`` what fills each port, in the units of rates."""
        return np.where(self.network.units >= 0, np.maximum(1, self.network.units), self.network.capacity)

    @cached_property
    def passing(self) -> Mapping[int, tuple[Ints, Floats]]:
        """The flows that pass each port by their first byte, and the bytes there for each byte of the flow."""
        network = self.network
        counts = np.diff(network.use_ptr)[self.kind]
        flow = np.repeat(np.arange(len(self.kind)), counts)
        use = np.repeat(network.use_ptr[self.kind] - np.cumsum(counts) + counts, counts) + np.arange(len(flow))
        order = np.lexsort((self.start_s[flow], network.use_port[use]))
        flow, use = flow[order], use[order]
        bounds = np.searchsorted(network.use_port[use], np.arange(len(network.ports) + 1))
        return {
            port: (flow[first:last], network.use_weight[use[first:last]])
            for port, (first, last) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
            if last > first
        }

    def ports_of(self, kind: int) -> list[int]:
        """The ports that a kind of flows passes."""
        ports: list[int] = self.network.use_port[self.network.use_ptr[kind] : self.network.use_ptr[kind + 1]].tolist()
        return ports

    def class_of(self, flow: int) -> int:
        """Return the class of a flow in the play: flows of one class have the same rate."""
        return int(self.network.coupling.classes[0][self.kind[flow]])

    def limit(self, span: int, start_s: float, end_s: float) -> Limit | None:
        """Return the port that held a message or collective up most from ``start_s`` to ``end_s``.

        Messages that go before it on the same connection are held up for it. Where nothing is shared, that is the
        port of which it takes most. None where it passes no port.
        """
        own = np.flatnonzero(self.span == span)
        if not len(own):
            return None
        kind = int(self.kind[own[0]])
        lost: dict[int, tuple[float, int]] = {}
        for flow, first, last in self._before(kind, start_s, end_s):
            for port in self.ports_of(int(self.kind[flow])):
                seconds, others = self._held_up(flow, port, first, last)
                before = lost.get(port, (0.0, 0))
                lost[port] = before[0] + seconds, max(before[1], others)
        port = max(lost, key=lambda each: lost[each][0], default=-1)
        if port >= 0 and lost[port][0] > ROUNDING * (end_s - start_s):
            return Limit(self.network.ports[port], lost[port][1], self.is_serial)
        return self._widest(kind)

    def _widest(self, kind: int) -> Limit | None:
        network = self.network
        uses = slice(network.use_ptr[kind], network.use_ptr[kind + 1])
        ports = network.use_port[uses]
        if not len(ports):
            return None
        port = int(ports[np.argmax(network.use_weight[uses] / self.at_capacity[ports])])
        return Limit(network.ports[port], 1, self.is_serial)

    def _before(self, kind: int, start_s: float, end_s: float) -> Iterator[tuple[int, float, float]]:
        """The flows of a connection in some time, or where one transfer passes at a time the wait for the next one."""
        same = self.network.connection[self.kind] == self.network.connection[kind]
        inside = same & (self.start_s < end_s) & (self.end_s > start_s)
        for flow in np.flatnonzero(inside).tolist():
            yield flow, max(start_s, float(self.start_s[flow])), min(end_s, float(self.end_s[flow]))
        if self.is_serial:
            after = np.flatnonzero(same & (self.start_s >= end_s))
            yield from ((flow, start_s, end_s) for flow in after[:1].tolist())

    def _held_up(self, flow: int, port: int, start_s: float, end_s: float) -> tuple[float, int]:
        """Return the seconds by which a full port delayed a flow, and the largest number of flows there meanwhile."""
        flows, weights = self.passing[port]
        inside = (self.start_s[flows] < end_s) & (self.end_s[flows] > start_s)
        flows, weights = flows[inside], weights[inside]
        steps = {of: self.rates[of] for of in set(self.network.coupling.classes[0][self.kind[flows]].tolist())}
        times = np.concatenate((self.start_s[flows], self.end_s[flows], *(each.times for each in steps.values())))
        moments = np.unique(np.clip(np.append(times, (start_s, end_s)), start_s, end_s))
        middle, length = (moments[1:] + moments[:-1]) / 2, np.diff(moments)
        rates = {of: np.array([each.at(moment) for moment in middle.tolist()]) for of, each in steps.items()}
        level, count = np.zeros(len(middle)), np.zeros(len(middle), np.int64)
        for other, weight in zip(flows.tolist(), weights.tolist(), strict=True):
            on = (middle > self.start_s[other]) & (middle < self.end_s[other])
            level += np.where(on, weight * rates[self.class_of(other)], 0.0)
            count += on
        full = level >= FULL_SHARE * self.at_capacity[port]
        alone = float(self.network.rate[self.kind[flow]])
        slower = np.ones(len(middle)) if self.is_serial else 1 - rates[self.class_of(flow)] / alone
        lost = np.where(full & (slower > FULL_SHARE - 1 + 2e-6), slower * length, 0.0)
        return float(lost.sum()), int(count[lost > 0].max(initial=0))


class Limit(NamedTuple):
    """The port that limits a flow."""

    port: Port
    flows: int  # how many share it, at most
    is_serial: bool

    @property
    def is_held_up(self) -> bool:
        """True where other flows make this one wait, or slower than it is alone."""
        return self.is_serial or self.flows > 1

    @property
    def words(self) -> str:
        """``held up by the NIC of node 0, outgoing, shared by 3 flows``"""
        name = f"the {port_name(self.port)}"
        if self.is_serial:
            return f"held up by {name}, which carries one transfer at a time"
        if not self.is_held_up:
            return f"through {name}"
        return f"held up by {name}, shared by {self.flows} flows"


# ---- flows of a prediction ----


def find_flows(program: Program, costs: Costs, timeline: Timeline) -> LinkFlows | None:
    """Return the flows of a prediction; None where no links are shared, or costs are no seconds."""
    network = costs.network
    if network is None or costs.unit != "s":
        return None
    sizes = flow_bytes(program, costs.seconds, network)
    rates = _class_rates(program, costs.seconds, network)
    is_exchange = program.is_compute
    rows = np.flatnonzero((network.row_kind >= 0) & (sizes > 0))
    messages, exchanges = rows[~is_exchange[rows]], rows[is_exchange[rows]]
    columns = [
        _messages(program, network, timeline, messages, sizes),
        *_exchanges(program, computing_seconds(program, costs.seconds, network), network, timeline, exchanges, sizes, rates),
    ]  # fmt: skip
    row, part, size, start, end = (np.concatenate(column) for column in zip(*columns, strict=True))
    return LinkFlows(network, program.span_of_row[row], part, network.row_kind[row], size, start, end, rates)


Columns = tuple[Ints, Ints, Floats, Floats, Floats]
"""Rows, parts, bytes, starts and ends of some flows."""


def _messages(program: Program, network: Network, timeline: Timeline, rows: Ints, sizes: Floats) -> Columns:
    """Messages and reductions: those of one connection follow one another, and wait for their latency meanwhile."""
    spans, kind = program.span_of_row[rows], network.row_kind[rows]
    end = timeline.end[spans]
    ready = timeline.start[spans].copy()
    if not (network.units >= 0).any():
        made = np.full(len(program), -1)
        sends, makers = program.senders
        made[sends] = program.slot[makers]
        sent = made[rows] >= 0
        ready[sent] = timeline.end[program.span_of_row[made[rows[sent]]]]
        ready += network.latency_s[kind]
    line = network.connection[kind]
    order = np.lexsort((end, line))
    before = np.concatenate(([0.0], end[order][:-1]))
    before[np.concatenate(([True], np.diff(line[order]) != 0))[: len(order)]] = 0.0
    ready[order] = np.maximum(ready[order], before[: len(order)])
    return rows, np.zeros(len(rows), np.int64), sizes[rows], np.minimum(ready, end), end


def _exchanges(
    program: Program,
    computing: Floats,
    network: Network,
    timeline: Timeline,
    rows: Ints,
    sizes: Floats,
    rates: Mapping[int, Steps],
) -> Iterator[Columns]:
    """The exchanges inside computations, part by part: each follows a part that is computed."""
    spans, parts = program.span_of_row[rows], network.parts[rows]
    each, size = computing[rows] / parts, sizes[rows] / parts
    at = timeline.start[spans]
    for part in range(int(parts.max(initial=1)) if len(rows) else 0):
        here = np.flatnonzero(parts > part)
        kind = network.row_kind[rows[here]]
        begin = at[here] + each[here] + network.latency_s[kind]
        end = np.empty(len(here))
        of_class = network.coupling.classes[0][kind]
        for of in np.unique(of_class).tolist():
            alike = of_class == of
            end[alike] = _flow_ends(rates[of], begin[alike], size[here[alike]])
        end = np.where(parts[here] == part + 1, timeline.end[spans[here]], end)
        at[here] = end
        yield rows[here], np.full(len(here), part), size[here], np.minimum(begin, end), end


def _flow_ends(rates: Steps, begin: Floats, size: Floats) -> Floats:
    """Return the moments at which flows of one class have moved their bytes."""
    times, values = np.array(rates.times), np.array(rates.values)
    served = np.concatenate(([0.0], np.cumsum(np.diff(times) * values[:-1])))
    first = np.maximum(0, np.searchsorted(times, begin, "right") - 1)
    target = served[first] + (begin - times[first]) * values[first] + size * (1 - ROUNDING)
    last = np.maximum(0, np.searchsorted(served, target, "left") - 1)
    rate = np.where(values[last] > 0, values[last], np.inf)
    return np.asarray(times[last] + (target - served[last]) / rate, np.float64)


def _class_rates(program: Program, seconds: Floats, network: Network) -> Mapping[int, Steps]:
    """The rate of each class over time: as it is alone where nothing is ever shared."""
    of_kind, first = network.coupling.classes
    if (network.units >= 0).any() or not is_shared(program, seconds, network):
        return {of: Steps((0.0,), (float(network.rate[kind]),)) for of, kind in enumerate(first.tolist())}
    log = _whole_log(program, seconds, network)
    order = np.argsort(of_kind[log.kind], kind="stable")
    bounds = np.searchsorted(of_kind[log.kind[order]], np.arange(len(first) + 1)).tolist()
    time_s, rate = log.time_s[order].tolist(), log.rate[order].tolist()
    return {
        of: Steps(time_s[begin:end], rate[begin:end])
        for of, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False))
        if end > begin
    }


def _whole_log(program: Program, seconds: Floats, network: Network) -> RateLog:
    entries = ENTRIES_PER_ROW * len(program) + 64
    while len((log := link_rates(program, seconds, network, entries)[1]).time_s) == entries:
        entries *= 4
    return log
