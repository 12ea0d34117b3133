"""The Memory tab: predicted peak memory of every device by category, and the measured memory of each mesh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import param

from meshwave.designer.kit.canvas import Canvas, PlainData, widget
from meshwave.designer.kit.memory_labels import memory_label
from meshwave.designer.state.design_session import Session
from meshwave.designer.views._view import FILL, View, views
from meshwave.designer.views.followed_runs import FollowedRuns
from meshwave.designer.views.runs import followed_runs
from meshwave.engine.costs import DeviceMemory, join_equal_devices
from meshwave.engine.runs.accuracy import MeshMemory
from meshwave.engine.units import format_ranges, quantity

MOST_GROUPS = 256
"""Number of groups of equal devices that are drawn."""


@widget("panels/memory.js", "panels/dock.css")
class MemoryBars(Canvas):
    """Widget with the peak memory per device as bars by category; the Python side of ``static/panels/memory.js``."""

    bars = param.String(
        default=PlainData([]),
        doc="A predicted bar for each group of equal devices, and the measured bar of a mesh below those of its devices.",
    )
    hidden_groups = param.Integer(default=0, doc="Number of groups that are too many to be drawn.")
    capacity = param.Dict(default={}, doc="Memory of a device, in bytes and as text; empty without a prediction.")

    def __init__(self, session: Session, followed: FollowedRuns, **params: Any) -> None:
        super().__init__(**params)
        self._session, self._followed = session, followed
        session.param.watch(lambda *_: self._draw(), "prediction")
        followed.param.watch(lambda *_: self._draw(), "memory")
        self.param.watch(lambda *_: self._draw(), "styles")  # the tab is shown or hidden
        self._draw()

    def _draw(self) -> None:
        if self.styles.get("visibility") == "hidden":
            return
        prediction = self._session.prediction
        if prediction is None:
            self.param.update(bars=PlainData([]), hidden_groups=0, capacity={})
            return
        measured = {each.mesh: each for each in self._followed.memory}
        groups = _group_devices(prediction.device_memory, measured)
        size = prediction.memory.capacity_bytes
        self.param.update(
            bars=PlainData(list(_bars(groups[:MOST_GROUPS], measured, size))),
            hidden_groups=max(0, len(groups) - MOST_GROUPS),
            capacity={"bytes": size, "text": quantity(size, "B")},
        )


def _group_devices(groups: Sequence[DeviceMemory], measured: Mapping[str, MeshMemory]) -> list[DeviceMemory]:
    """Return the groups with equal ones of different meshes joined, unless the meshes were measured."""
    return list(groups) if measured else join_equal_devices(groups)


def _bars(
    groups: Sequence[DeviceMemory], measured: Mapping[str, MeshMemory], capacity: float
) -> Iterator[dict[str, Any]]:
    """Yield the bars of groups of devices, and the measured bar of a mesh after those of its devices."""
    for place, group in enumerate(groups):
        devices = format_ranges(group.devices)
        yield _bar(group.meshes, devices, "predicted", group.by_category, group.total_bytes, capacity)
        mesh = group.meshes[0]
        is_last = place + 1 == len(groups) or groups[place + 1].meshes != group.meshes
        if is_last and mesh in measured:
            found = measured[mesh]
            yield _bar(group.meshes, "", "measured", found.measured, found.measured_bytes, capacity)


def _bar(
    meshes: Sequence[str], devices: str, kind: str, by_category: Mapping[str, float], total: float, capacity: float
) -> dict[str, Any]:
    """Return a bar: its devices, kind and total, True if it exceeds the capacity, and its parts with their texts."""
    rest = total - sum(by_category.values())  # some of the measured memory has no category
    sizes = {**by_category, **({"other": rest} if rest > 0.005 * total else {})}
    parts = {memory_label(name): [size, quantity(size, "B")] for name, size in sizes.items() if size > 0}
    text = quantity(total, "B")
    named = {"mesh": ", ".join(meshes), "devices": devices}
    return {**named, "kind": kind, "total": total, "text": text, "over": total > capacity, "parts": parts}


@views.register("memory")
class MemoryView(View):
    """Peak memory of every device by category, predicted and measured. Devices that hold the same share a bar."""

    title: ClassVar = "Memory"
    place: ClassVar = "bottom"
    order: ClassVar = 3

    def make_pane(self) -> MemoryBars:
        """Build the bars."""
        return MemoryBars(self.page.session, followed_runs(self.page), **FILL)
