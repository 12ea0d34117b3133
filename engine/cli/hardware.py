"""``meshwave hardware``: known devices and clusters, with the sources of their numbers."""

from __future__ import annotations

import argparse
from typing import Any

from meshwave.engine.cli.output import print_json, print_note, print_result
from meshwave.engine.costs.hardware import DataSheet, data_sheets
from meshwave.engine.costs.presets import preset, presets
from meshwave.engine.units import quantity


def list_hardware(options: argparse.Namespace) -> int:
    """List devices and clusters, or print the ``cluster`` section of one cluster."""
    if options.name:
        chosen = preset(options.name)
        print_json(chosen.cluster.model_dump(mode="json"))
        print_note(chosen.source)
        return 0
    return print_result(options, _hardware_json(), lambda _: _to_lines())


def _hardware_json() -> dict[str, Any]:
    devices = [sheet.model_dump(mode="json") for sheet in data_sheets().values()]
    return {"devices": devices, "clusters": [each.model_dump(mode="json") for each in presets().values()]}


def _to_lines() -> list[str]:
    lines = [f"{'device':<20}{'16-bit peak':>16}{'memory':>10}{'bandwidth':>13}{'link':>12}"]
    lines += [_device_line(sheet) for sheet in data_sheets().values()]
    lines += ["", f"{'cluster':<20}{'a node':<26}{'between devices':>16}{'each NIC':>14}"]
    for name, each in presets().items():
        cluster = each.cluster
        node = f"{cluster.devices_per_node} x {cluster.device.name}"
        links = (quantity(link.bandwidth, "B/s") for link in (cluster.intra_node, cluster.inter_node))
        lines.append(f"{name:<20}{node:<26}{next(links):>16}{next(links):>14}")
    return lines


def _device_line(sheet: DataSheet) -> str:
    memory, bandwidth = quantity(sheet.memory_bytes, "B"), quantity(sheet.memory_bandwidth, "B/s")
    peak, link = quantity(sheet.peak_flops, "FLOP/s"), quantity(sheet.link_bandwidth, "B/s")
    return f"{sheet.name:<20}{peak:>16}{memory:>10}{bandwidth:>13}{link:>12}"
