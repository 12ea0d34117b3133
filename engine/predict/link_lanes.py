"""Timeline lanes of ports: the share of each port that each flow of a prediction uses, over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshwave.engine.predict.link_flows import LinkFlows
from meshwave.engine.predict.link_load import PortLoad, is_device_port
from meshwave.engine.program.link_shares import (
    MAX_SHARES,
    PortUse,
    Share,
    Steps,
    max_concurrent_messages,
    max_shares_per_port,
    stack_shares,
)

LANE_LIMIT = 32
"""Maximum number of lanes; ports of nodes come first, then busier ports."""
BUSY_SHARE = 0.5
"""Load of a device link, as a share of the step, above which it has a lane even if device lanes are hidden."""
ROUNDING = 2e-9
"""Shortest share of a port, relative to the step time, that is not a rounding error."""


class LinkLane(NamedTuple):
    """Port, and the flows that share it."""

    load: PortLoad
    shares: Sequence[Share]  # by flow number
    most_flows: int  # maximum number of flows at one time


class LinkLanes(NamedTuple):
    """Timeline lanes of a prediction."""

    flows: LinkFlows
    lanes: Sequence[LinkLane]
    ports: int  # number of ports that could have a lane


def link_lanes(flows: LinkFlows, loads: Sequence[PortLoad], *, devices: bool = False) -> LinkLanes:
    """Return the lanes of the used ports.

    Ports of nodes always have lanes. Ports of devices have lanes if ``devices`` is True, if they are busy, or if there
    are no other ports. If there are too many, the busiest ports of nodes are kept first, then the busiest ports of
    devices.
    """
    number = {port: place for place, port in enumerate(flows.network.ports)}
    nodes = any(not is_device_port(load.port) for load in loads)
    possible = [
        load for load in loads if devices or not nodes or not is_device_port(load.port) or load.share >= BUSY_SHARE
    ]
    chosen: set[int] = set()
    shown = 0
    first = sorted(range(len(possible)), key=lambda at: (is_device_port(possible[at].port), -possible[at].share))
    for place in first[:LANE_LIMIT]:
        shown += len(flows.port_flows.get(number[possible[place].port], ((),))[0])
        if shown > MAX_SHARES:
            break
        chosen.add(place)
    most = max_shares_per_port(len(chosen))
    shortest = ROUNDING * float(flows.end_s.max(initial=0.0))
    found = []
    for place in sorted(chosen):
        passing = _port_flows(flows, number[possible[place].port])
        shares = [share for share in stack_shares(passing, most) if share.end_s - share.start_s > shortest]
        lasting = [each for each in passing if each.end_s - each.start_s > shortest]
        found.append(LinkLane(possible[place], shares, max_concurrent_messages(lasting)))
    return LinkLanes(flows, found, len(possible))


def _port_flows(flows: LinkFlows, port: int) -> list[PortUse]:
    if port not in flows.port_flows:
        return []
    here, weights = flows.port_flows[port]
    weights = weights / flows.capacity_rates[port]
    classes = flows.network.coupled_network.classes[0][flows.kind[here]]
    parts: dict[tuple[int, float], Steps] = {}
    took = flows.end_s[here] - flows.start_s[here]
    mean = np.minimum(1.0, flows.bytes[here] * weights / np.where(took > 0, took, np.inf))
    found = []
    columns = (here, flows.start_s[here], flows.end_s[here], mean, classes, weights)
    for flow, start, end, part, of, weight in zip(*(column.tolist() for column in columns), strict=True):
        if (of, weight) not in parts:
            steps = flows.rates[of]
            parts[of, weight] = Steps(steps.times, [rate * weight for rate in steps.values])
        found.append(PortUse(flow, start, end, part, parts[of, weight]))
    return found
