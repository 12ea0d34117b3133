"""The ports of a prediction as lanes: which flow has which part of each port, from when to when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshwave.engine.predict.link_flows import LinkFlows
from meshwave.engine.predict.link_load import PortLoad, is_device_port
from meshwave.engine.program.link_shares import (
    MOST_SHARES,
    Passing,
    Share,
    Steps,
    most_at_once,
    most_per_port,
    stack_shares,
)

LANE_LIMIT = 32
"""Largest number of lanes. Ports of nodes come before those of devices, and busy ones before idle ones."""
BUSY_SHARE = 0.5
"""A link of a device that is busy for so much of the step has a lane, though nobody asked for those of devices."""


ROUNDING = 2e-9
"""Relative to the step. Shorter shares are artefacts of rounding."""


class LinkLane(NamedTuple):
    """A port and what it carries."""

    load: PortLoad
    shares: Sequence[Share]  # of the flows, by their number
    at_once: int  # the most flows


class LinkLanes(NamedTuple):
    """Lanes of a prediction."""

    flows: LinkFlows
    lanes: Sequence[LinkLane]
    ports: int  # how many could be shown


def link_lanes(flows: LinkFlows, loads: Sequence[PortLoad], *, devices: bool = False) -> LinkLanes:
    """Return the lanes of the ports that are used: those of nodes first, those of devices where ``devices`` asks for
    them, where they are busy, or where there are no others. Of too many, the busiest of nodes, then of devices."""
    number = {port: place for place, port in enumerate(flows.network.ports)}
    nodes = any(not is_device_port(load.port) for load in loads)
    possible = [
        load for load in loads if devices or not nodes or not is_device_port(load.port) or load.share >= BUSY_SHARE
    ]
    chosen: set[int] = set()
    drawn = 0
    first = sorted(range(len(possible)), key=lambda at: (is_device_port(possible[at].port), -possible[at].share))
    for place in first[:LANE_LIMIT]:
        drawn += len(flows.passing.get(number[possible[place].port], ((),))[0])
        if drawn > MOST_SHARES:
            break
        chosen.add(place)
    most = most_per_port(len(chosen))
    shortest = ROUNDING * float(flows.end_s.max(initial=0.0))
    found = []
    for place in sorted(chosen):
        stacked = stack_shares(_port_flows(flows, number[possible[place].port]), most)
        shares = [share for share in stacked if share.end_s - share.start_s > shortest]
        found.append(LinkLane(possible[place], shares, most_at_once(shares)))
    return LinkLanes(flows, found, len(possible))


def _port_flows(flows: LinkFlows, port: int) -> list[Passing]:
    """The flows of a port."""
    if port not in flows.passing:
        return []
    here, weights = flows.passing[port]
    weights = weights / flows.at_capacity[port]
    classes = flows.network.coupling.classes[0][flows.kind[here]]
    parts: dict[tuple[int, float], Steps] = {}
    took = flows.end_s[here] - flows.start_s[here]
    mean = np.minimum(1.0, flows.bytes[here] * weights / np.where(took > 0, took, np.inf))
    found = []
    columns = (here, flows.start_s[here], flows.end_s[here], mean, classes, weights)
    for flow, start, end, part, of, weight in zip(*(column.tolist() for column in columns), strict=True):
        if (of, weight) not in parts:
            steps = flows.rates[of]
            parts[of, weight] = Steps(steps.times, [rate * weight for rate in steps.values])
        found.append(Passing(flow, start, end, part, parts[of, weight]))
    return found
