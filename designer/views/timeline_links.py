"""Lanes of the links in the timeline, as columns: ports of nodes and devices with stacked shares of messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs import Costs
from meshwave.engine.predict.link_lanes import LinkLane, LinkLanes, link_lanes
from meshwave.engine.predict.link_load import port_label, port_name
from meshwave.engine.predict.prediction import Prediction

Add = Callable[[NDArray[Any], str], list[Any]]
"""Function that appends a column and returns the column's entry in the header."""


def find_link_lanes(prediction: Prediction, *, devices: bool) -> LinkLanes | str:
    """Return the lanes of a prediction's links, or the reason why there are none."""
    flows = prediction.link_flows
    if flows is None or not prediction.port_loads:
        return _no_lanes_reason(prediction.costs)
    return link_lanes(flows, prediction.port_loads, devices=devices)


def _no_lanes_reason(costs: Costs) -> str:
    if costs.unit != "s":
        return "unit costs do not model bytes; select roofline costs to see the links"
    if costs.network is None and costs.transfer_model not in ("shared-links", "link-serial"):
        return f"with transfer model {costs.transfer_model}, transfers do not share links; select shared-links to see link use"
    return "this design sends nothing over a link"


def pack_links(
    found: LinkLanes | str, place: NDArray[np.int32], ticks: float, add: Add
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the columns of the links.

    ``place`` is the packed row of each span, ``ticks`` the number of ticks per second.
    """
    if isinstance(found, str):
        return {"lanes": [], "words": found}, {}
    flows = found.flows
    shares = [share for lane in found.lanes for share in lane.shares]
    table = np.array(shares, np.float64).reshape(-1, 5)
    used, number = np.unique(table[:, 0].astype(np.int64), return_inverse=True)
    rates, sizes = _rates_and_bytes(found, table)
    columns = {
        "link_bounds": add(np.cumsum([0, *(len(lane.shares) for lane in found.lanes)]), "int32"),
        "link_flow": add(number.reshape(-1), "int32"),
        "link_start": add(_to_ticks(table[:, 1], ticks), "uint32"),
        "link_end": add(_to_ticks(table[:, 2], ticks), "uint32"),
        "link_low": add(table[:, 3], "float32"),
        "link_high": add(table[:, 4], "float32"),
        "link_rate": add(rates, "float32"),
        "link_bytes": add(sizes, "float32"),
        "flow_span": add(place[flows.span[used]], "int32"),
        "flow_part": add(flows.part[used], "int32"),
        "flow_is_beside": add(flows.is_beside[used], "uint8"),
    }
    header = {
        "lanes": [_lane_data(lane) for lane in found.lanes],
        "words": _lanes_note(found),
        "serial": flows.is_serial,
    }
    return header, columns


def _lane_data(lane: LinkLane) -> dict[str, Any]:
    port = lane.load.port
    return {
        "name": port_name(port),
        "label": port_label(port),
        "share": lane.load.share,
        "busy_s": lane.load.busy_s,
        "bytes": lane.load.bytes,
        "rows": lane.most_flows,
    }


def _lanes_note(found: LinkLanes) -> str:
    shown = len(found.lanes)
    if not shown:
        return f"each of the {found.ports} ports has too many messages to draw"
    return "" if shown == found.ports else f"{shown} of {found.ports} ports, the busiest first"


def _rates_and_bytes(found: LinkLanes, table: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the bytes/s on the port and the bytes of the flow of each share; 0 if transfers use the port in turn."""
    rates, sizes = np.zeros(len(table)), np.zeros(len(table))
    flows, at = found.flows, 0
    if flows.is_serial:
        return rates, sizes
    weight = np.zeros(len(flows.span))
    number = {port: place for place, port in enumerate(flows.network.ports)}
    for lane in found.lanes:
        port, here = number[lane.load.port], slice(at, at + len(lane.shares))
        passing, weights = flows.port_flows[port]
        weight[passing] = weights
        flow = table[here, 0].astype(np.int64)
        rates[here] = (table[here, 4] - table[here, 3]) * flows.network.capacity[port]
        sizes[here] = flows.bytes[flow] * weight[flow]
        at += len(lane.shares)
    return rates, sizes


def _to_ticks(seconds: NDArray[np.float64], ticks: float) -> NDArray[np.uint32]:
    return np.clip(seconds * ticks, 0, 2**32 - 1).astype(np.uint32)
