"""The Memory tab: predicted and measured peak memory of each mesh by category."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import param

from meshwave.designer.kit.assets import module_code, style_sheets
from meshwave.designer.kit.canvas import Canvas, PlainData
from meshwave.designer.kit.memory_labels import memory_label
from meshwave.designer.state.design_session import Session
from meshwave.designer.views._view import FILL, View, views
from meshwave.designer.views.followed_runs import FollowedRuns
from meshwave.designer.views.runs import followed_runs
from meshwave.engine.costs.memory import PeakMemory
from meshwave.engine.runs.accuracy import MeshMemory
from meshwave.engine.units import quantity

MOST_MESHES = 64


class MemoryBars(Canvas):
    """Widget with the peak memory per device as bars by category; the Python side of ``static/panels/memory.js``."""

    bars = param.String(
        default=PlainData([]), doc="A predicted bar per mesh, each followed by the measured bar if there is one."
    )
    capacity = param.Dict(default={}, doc="Memory of a device, in bytes and as text; empty without a prediction.")

    _esm = module_code("panels/memory.js")
    _stylesheets: ClassVar = style_sheets("panels/dock.css", "panels/memory.css")

    def __init__(self, session: Session, followed: FollowedRuns, **params: Any) -> None:
        super().__init__(**params)
        self._session, self._followed = session, followed
        session.param.watch(lambda *_: self._draw(), "prediction")
        followed.param.watch(lambda *_: self._draw(), "memory")
        self._draw()

    def _draw(self) -> None:
        prediction = self._session.prediction
        if prediction is None:
            self.param.update(bars=PlainData([]), capacity={})
            return
        measured = {each.mesh: each for each in self._followed.memory}
        names = [mesh.name for mesh in prediction.design.meshes][:MOST_MESHES]
        bars = [
            bar for rank, name in enumerate(names) for bar in _bars(prediction.memory, rank, name, measured.get(name))
        ]
        size = prediction.memory.capacity_bytes
        self.param.update(bars=PlainData(bars), capacity={"bytes": size, "text": quantity(size, "B")})


def _bars(memory: PeakMemory, rank: int, mesh: str, measured: MeshMemory | None) -> Iterator[dict[str, Any]]:
    """Yield the bar of the predicted memory of a mesh, and the bar of its measured memory if it is known."""
    predicted = {kind: float(sizes[rank]) for kind, sizes in memory.by_category.items()}
    yield _bar(mesh, "predicted", predicted, sum(predicted.values()), memory.capacity_bytes)
    if measured is not None:
        yield _bar(mesh, "measured", measured.measured, measured.measured_bytes, memory.capacity_bytes)


def _bar(mesh: str, kind: str, by_category: Mapping[str, float], total: float, capacity: float) -> dict[str, Any]:
    """Return a bar: its mesh, kind and total, True if it exceeds the capacity, and its parts with their texts."""
    rest = total - sum(by_category.values())  # some of the measured memory has no category
    sizes = {**by_category, **({"other": rest} if rest > 0.005 * total else {})}
    parts = {memory_label(name): [size, quantity(size, "B")] for name, size in sizes.items() if size > 0}
    text = quantity(total, "B")
    return {"mesh": mesh, "kind": kind, "total": total, "text": text, "over": total > capacity, "parts": parts}


@views.register("memory")
class MemoryView(View):
    """Peak memory per device of each mesh by category, predicted and measured."""

    title: ClassVar = "Memory"
    place: ClassVar = "bottom"
    order: ClassVar = 3

    def make_pane(self) -> MemoryBars:
        """Build the bars."""
        return MemoryBars(self.page.session, followed_runs(self.page), **FILL)
