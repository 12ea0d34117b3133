"""Flows of a prediction: messages and collectives with their ports and times, and the port that limits each flow."""

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
"""Initial size of the rate log, in entries per row of the program; a longer log needs another simulation."""
FULL_SHARE = 1 - 1e-6
"""Fraction of its capacity at which a port counts as full."""
ROUNDING = 1e-9
"""Fraction of the bytes of a flow that may remain due to rounding."""


@dataclass(frozen=True, eq=False)
class LinkFlows:
    """All flows of a step: messages between meshes, reductions, and collectives of computations and optimizer steps."""

    network: Network
    span: Ints  # [flows] span of the timeline
    part: Ints  # [flows] index of the part of a computation to which a collective belongs
    is_beside: NDArray[np.bool_]  # [flows] True for collectives of sharded state, which run beside a computation
    kind: Ints  # [flows] kind of flow in the network
    bytes: Floats  # [flows] bytes; seconds if a port carries one transfer at a time
    start_s: Floats  # [flows] time of the first byte
    end_s: Floats  # [flows] time of the last byte
    rates: Mapping[int, Steps]  # flow class -> bytes/s of one flow over time

    @property
    def is_serial(self) -> bool:
        """True if a port carries one transfer at a time."""
        return bool((self.network.units >= 0).any())

    @property
    def capacity_rates(self) -> Floats:
        """Rate that fills each port, ``[ports]``, in the units of ``rates``."""
        return np.where(self.network.units >= 0, np.maximum(1, self.network.units), self.network.capacity)

    @cached_property
    def port_flows(self) -> Mapping[int, tuple[Ints, Floats]]:
        """Flows on each port, ordered by first byte, and the bytes through the port per byte of each flow."""
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

    def ports_of_kind(self, kind: int) -> list[int]:
        """Return the ports that flows of a kind pass through."""
        ports: list[int] = self.network.use_port[self.network.use_ptr[kind] : self.network.use_ptr[kind + 1]].tolist()
        return ports

    def flow_class(self, flow: int) -> int:
        """Return the simulated class of a flow; flows of one class have the same rate."""
        return int(self.network.coupled_network.classes[0][self.kind[flow]])

    def find_limit(self, span: int, start_s: float, end_s: float) -> Limit | None:
        """Return the port that delayed a message or collective most between ``start_s`` and ``end_s``.

        Delays of earlier messages on the same connection count as delays of this message. Without contention, it is the
        port of which the flow uses the largest share; None if the flow uses no port.
        """
        own = np.flatnonzero(self.span == span)
        if not len(own):
            return None
        kind = int(self.kind[own[0]])
        lost: dict[int, tuple[float, int]] = {}
        for flow, first, last in self._connection_flows(kind, start_s, end_s):
            for port in self.ports_of_kind(int(self.kind[flow])):
                seconds, others = self._flow_delay(flow, port, first, last)
                before = lost.get(port, (0.0, 0))
                lost[port] = before[0] + seconds, max(before[1], others)
        port = max(lost, key=lambda each: lost[each][0], default=-1)
        if port >= 0 and lost[port][0] > ROUNDING * (end_s - start_s):
            return Limit(self.network.ports[port], lost[port][1], self.is_serial)
        return self._most_used_port(kind)

    def _most_used_port(self, kind: int) -> Limit | None:
        network = self.network
        uses = slice(network.use_ptr[kind], network.use_ptr[kind + 1])
        ports = network.use_port[uses]
        if not len(ports):
            return None
        port = int(ports[np.argmax(network.use_weight[uses] / self.capacity_rates[ports])])
        return Limit(network.ports[port], 1, self.is_serial)

    def _connection_flows(self, kind: int, start_s: float, end_s: float) -> Iterator[tuple[int, float, float]]:
        """Yield (flow, start, end) for each flow on the connection of flow kind ``kind`` within a period.

        If a port carries one transfer at a time, the next flow, which waits for the port, is assigned the whole period.
        """
        same = self.network.connection[self.kind] == self.network.connection[kind]
        inside = same & (self.start_s < end_s) & (self.end_s > start_s)
        for flow in np.flatnonzero(inside).tolist():
            yield flow, max(start_s, float(self.start_s[flow])), min(end_s, float(self.end_s[flow]))
        if self.is_serial:
            after = np.flatnonzero(same & (self.start_s >= end_s))
            yield from ((flow, start_s, end_s) for flow in after[:1].tolist())

    def _flow_delay(self, flow: int, port: int, start_s: float, end_s: float) -> tuple[float, int]:
        """Return the seconds by which a full port delayed a flow, and the maximum number of flows on the port."""
        flows, weights = self.port_flows[port]
        inside = (self.start_s[flows] < end_s) & (self.end_s[flows] > start_s)
        flows, weights = flows[inside], weights[inside]
        steps = {of: self.rates[of] for of in set(self.network.coupled_network.classes[0][self.kind[flows]].tolist())}
        times = np.concatenate((self.start_s[flows], self.end_s[flows], *(each.times for each in steps.values())))
        moments = np.unique(np.clip(np.append(times, (start_s, end_s)), start_s, end_s))
        middle, length = (moments[1:] + moments[:-1]) / 2, np.diff(moments)
        rates = {of: np.array([each.value_at(moment) for moment in middle.tolist()]) for of, each in steps.items()}
        level, count = np.zeros(len(middle)), np.zeros(len(middle), np.int64)
        for other, weight in zip(flows.tolist(), weights.tolist(), strict=True):
            on = (middle > self.start_s[other]) & (middle < self.end_s[other])
            level += np.where(on, weight * rates[self.flow_class(other)], 0.0)
            count += on
        full = level >= FULL_SHARE * self.capacity_rates[port]
        alone = float(self.network.rate[self.kind[flow]])
        slower = np.ones(len(middle)) if self.is_serial else 1 - rates[self.flow_class(flow)] / alone
        lost = np.where(full & (slower > FULL_SHARE - 1 + 2e-6), slower * length, 0.0)
        return float(lost.sum()), int(count[lost > 0].max(initial=0))


class Limit(NamedTuple):
    """Port that limits a flow."""

    port: Port
    flows: int  # largest number of flows that share the port
    is_serial: bool

    @property
    def is_delayed(self) -> bool:
        """True if other flows delay or slow down this one."""
        return self.is_serial or self.flows > 1

    @property
    def description(self) -> str:
        """Phrase such as ``delayed by the NIC of node 0, outgoing, shared by 3 flows``."""
        name = port_name(self.port)
        if self.is_serial:
            return f"delayed by the {name}, which carries one transfer at a time"
        if not self.is_delayed:
            return f"through the {name}"
        return f"delayed by the {name}, shared by {self.flows} flows"


def find_flows(program: Program, costs: Costs, timeline: Timeline) -> LinkFlows | None:
    """Return the flows of a prediction; None if no links are shared, or if the costs are in units."""
    network = costs.network
    if network is None or costs.unit != "s":
        return None
    sizes = flow_bytes(program, costs.seconds, network)
    rates = _class_rates(program, costs.seconds, network, costs.lead)
    sent = np.flatnonzero((network.row_kind >= 0) & (sizes > 0) & ~program.is_work)
    computing = computing_seconds(program, costs.seconds, network)
    found = [
        _message_columns(program, network, timeline, sent, sizes),
        *_collective_columns(program, computing, network, timeline, sizes, rates),
    ]
    columns = Columns(*(np.concatenate(column) for column in zip(*found, strict=True)))
    return LinkFlows(network, *columns, rates)


class Columns(NamedTuple):
    """Columns of :class:`LinkFlows`, for some of its flows."""

    span: Ints
    part: Ints
    is_beside: NDArray[np.bool_]
    kind: Ints
    bytes: Floats
    start_s: Floats
    end_s: Floats


def _message_columns(program: Program, network: Network, timeline: Timeline, rows: Ints, sizes: Floats) -> Columns:
    """Return the messages and reductions.

    Those of one connection follow one another, but their latencies overlap.
    """
    spans, kind = program.span_of_row[rows], network.row_kind[rows]
    end = timeline.end[spans]
    ready = timeline.start[spans].copy()
    if not (network.units >= 0).any():
        made = np.full(len(program), -1)
        sends, makers = program.send_rows
        made[sends] = program.slot[makers]
        sent = made[rows] >= 0
        ready[sent] = timeline.end[program.span_of_row[made[rows[sent]]]]
        ready += network.latency_s[kind]
    line = network.connection[kind]
    order = np.lexsort((end, line))
    before = np.concatenate(([0.0], end[order][:-1]))
    before[np.concatenate(([True], np.diff(line[order]) != 0))[: len(order)]] = 0.0
    ready[order] = np.maximum(ready[order], before[: len(order)])
    part, is_beside = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    return Columns(spans, part, is_beside, kind, sizes[rows], np.minimum(ready, end), end)


def _collective_columns(
    program: Program,
    computing: Floats,
    network: Network,
    timeline: Timeline,
    sizes: Floats,
    rates: Mapping[int, Steps],
) -> Iterator[Columns]:
    """Yield the collectives of computations, part by part.

    An exchange follows each computed part, and other collectives run beside both.
    """
    rows = network.flow_rows[program.is_work[network.flow_rows] & ~program.fused[network.flow_rows]]
    spans, parts = program.span_of_row[rows], network.parts[rows]
    each, at, last = computing[rows] / parts, timeline.start[spans], timeline.end[spans]
    ways = (
        (False, network.row_kind[rows], sizes[rows] / parts, each),
        (True, network.beside_kind[rows], network.beside_bytes[rows] / parts, np.zeros(len(rows))),
    )
    for part in range(int(parts.max(initial=1)) if len(rows) else 0):
        done = at + each
        for is_beside, kinds, size, wait in ways:
            here = np.flatnonzero((parts > part) & (kinds >= 0) & (size > 0))
            kind = kinds[here]
            begin = at[here] + wait[here] + network.latency_s[kind]
            end = np.minimum(_ends_by_class(network, rates, kind, begin, size[here]), last[here])
            done[here] = np.maximum(done[here], end)
            columns = np.full(len(here), part), np.full(len(here), is_beside), kind, size[here]
            yield Columns(spans[here], *columns, np.minimum(begin, end), end)
        at = done


def _ends_by_class(network: Network, rates: Mapping[int, Steps], kind: Ints, begin: Floats, size: Floats) -> Floats:
    """Return the times at which flows of several kinds have transferred all their bytes."""
    end, of_class = np.empty(len(kind)), network.coupled_network.classes[0][kind]
    for of in np.unique(of_class).tolist():
        alike = of_class == of
        end[alike] = _flow_ends(rates[of], begin[alike], size[alike])
    return end


def _flow_ends(rates: Steps, begin: Floats, size: Floats) -> Floats:
    """Return the times at which flows of one class have transferred all their bytes."""
    times, values = np.array(rates.times), np.array(rates.values)
    served = np.concatenate(([0.0], np.cumsum(np.diff(times) * values[:-1])))
    first = np.maximum(0, np.searchsorted(times, begin, "right") - 1)
    target = served[first] + (begin - times[first]) * values[first] + size * (1 - ROUNDING)
    last = np.maximum(0, np.searchsorted(served, target, "left") - 1)
    rate = np.where(values[last] > 0, values[last], np.inf)
    return np.asarray(times[last] + (target - served[last]) / rate, np.float64)


def _class_rates(program: Program, seconds: Floats, network: Network, lead: Floats | None) -> Mapping[int, Steps]:
    """Return the rate of each flow class over time; the rate without contention if no ports are shared."""
    of_kind, first = network.coupled_network.classes
    if (network.units >= 0).any() or not is_shared(program, seconds, network, lead):
        return {of: Steps((0.0,), (float(network.rate[kind]),)) for of, kind in enumerate(first.tolist())}
    log = _complete_rate_log(program, seconds, network, lead)
    order = np.argsort(of_kind[log.kind], kind="stable")
    bounds = np.searchsorted(of_kind[log.kind[order]], np.arange(len(first) + 1)).tolist()
    time_s, rate = log.time_s[order].tolist(), log.rate[order].tolist()
    return {
        of: Steps(time_s[begin:end], rate[begin:end])
        for of, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False))
        if end > begin
    }


def _complete_rate_log(program: Program, seconds: Floats, network: Network, lead: Floats | None) -> RateLog:
    entries = ENTRIES_PER_ROW * len(program) + 64
    while len((log := link_rates(program, seconds, network, entries, lead)[1]).time_s) == entries:
        entries *= 4
    return log
