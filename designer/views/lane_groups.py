"""Groups of the lanes of a timeline: the group of each lane by node, rank, stages or kind of lane."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshwave.engine.document import Design
from meshwave.engine.predict.link_load import is_device_port
from meshwave.engine.program.shared_links import Port
from meshwave.engine.program.timeline import Timeline

RANKS = 8  # consecutive ranks in a group

LABELS: Mapping[str, str] = {
    "node": "Node",
    "device": "Device",
    "rank": f"{RANKS} ranks each",
    "stages": "Stages",
    "kind": "Kind",
}
"""Criteria for groups in the order of the menu. ``kind`` also separates measured from predicted timelines."""


class LaneGroups(NamedTuple):
    """Groups of lanes by one criterion."""

    by: str  # a key of LABELS
    names: Sequence[str]
    of: Sequence[int]  # [lanes] index into the names


def group_lanes(timeline: Timeline, design: Design | None = None) -> tuple[LaneGroups, ...]:
    """Return the groups of the lanes of a step: by node if its design is given, by rank, and by stages."""
    ranks = range(timeline.ranks)
    found = []
    if design is not None:
        nodes = ({design.cluster.node_of(device) for device in mesh.devices} for mesh in design.meshes)
        found.append(_group("node", (_numbers_text("node", each) for each in nodes)))
    blocks = (range(rank - rank % RANKS, min(rank - rank % RANKS + RANKS, timeline.ranks)) for rank in ranks)
    found.append(_group("rank", (_numbers_text("rank", each) for each in blocks)))
    held = np.zeros((timeline.ranks, int(timeline.stage.max(initial=-1)) + 1), np.bool_)
    held[timeline.rank[timeline.is_compute], timeline.stage[timeline.is_compute]] = True
    found.append(_group("stages", (_numbers_text("stage", np.flatnonzero(row).tolist()) for row in held)))
    return tuple(_useful(found))


def group_block_lanes(timeline: Timeline, devices: Sequence[Hashable]) -> tuple[LaneGroups, ...]:
    """Return the groups of the lanes inside a block, whose names are a device and a kind: ``3 compute``."""
    kinds = (name.partition(" ")[2] for name in timeline.meshes)
    return tuple(_useful([_group("device", (f"device {each}" for each in devices)), _group("kind", kinds)]))


def group_ports(ports: Sequence[Port], layer: Sequence[LaneGroups], design: Design) -> dict[str, list[int]]:
    """Return the group of each port by criterion: the only group of meshes with a device that uses the port, or -1."""
    found = {}
    for groups in layer:
        members: list[set[int]] = [set() for _ in groups.names]
        for mesh, group in zip(design.meshes, groups.of, strict=True):
            members[group].update(mesh.devices)
        using = ([at for at, devices in enumerate(members) if devices & _port_devices(port, design)] for port in ports)
        found[groups.by] = [at[0] if len(at) == 1 else -1 for at in using]
    return found


def _port_devices(port: Port, design: Design) -> set[int]:
    """Return the devices of a port of a device or of a node; an uplink has none."""
    if is_device_port(port):
        return {port.number}
    per_node = design.cluster.devices_per_node
    nodes = [] if port.kind.startswith("uplink") else [port.number]
    return {device for node in nodes for device in range(node * per_node, (node + 1) * per_node)}


def group_choices(layers: Iterable[Sequence[LaneGroups]], *, is_compared: bool) -> list[dict[str, str]]:
    """Return the key and the label of each criterion that timelines have; overlaid timelines can also be grouped by kind."""
    found = {groups.by for layer in layers for groups in layer} | ({"kind"} if is_compared else set())
    return [{"by": by, "label": label} for by, label in LABELS.items() if by in found]


def group_columns(layer: Sequence[LaneGroups]) -> dict[str, Any]:
    """Return the groups of a timeline by their criterion."""
    return {groups.by: {"names": list(groups.names), "of": list(groups.of)} for groups in layer}


def _group(by: str, lanes: Iterable[str]) -> LaneGroups:
    numbers: dict[str, int] = {}
    of = [numbers.setdefault(name, len(numbers)) for name in lanes]
    return LaneGroups(by, [*numbers], of)


def _useful(found: Iterable[LaneGroups]) -> Iterator[LaneGroups]:
    """Leave out groups that hold one lane each, or all lanes together."""
    return (groups for groups in found if 1 < len(groups.names) < len(groups.of))


def _numbers_text(word: str, numbers: Iterable[int]) -> str:
    """Return numbers as text, such as ``node 3``, ``node 4-7`` or ``stages 0, 7``."""
    found = sorted(numbers)
    if not found:
        return f"no {word}"
    if len(found) == 1:
        return f"{word} {found[0]}"
    is_range = len(found) > 2 and found[-1] - found[0] == len(found) - 1
    return f"{word} {found[0]}-{found[-1]}" if is_range else f"{word}s {', '.join(map(str, found))}"
