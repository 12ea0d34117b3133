"""The Memory tab: predicted and measured peak memory of each mesh by category."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import param

from meshwave.designer.kit.assets import module, style_sheets
from meshwave.designer.kit.canvas import Canvas, PlainData
from meshwave.designer.state.design_session import Session
from meshwave.designer.views._view import FILL, View, views
from meshwave.designer.views.followed_runs import FollowedRuns
from meshwave.designer.views.runs import followed_runs
from meshwave.engine.runs.accuracy import MeshMemory
from meshwave.engine.units import quantity

MOST_MESHES = 64


class MemoryBars(Canvas):
    """Peak memory per device as bars of its categories; the Python side of ``static/panels/memory.js``."""

    bars = param.String(default=PlainData([]), doc="See _bar().")
    capacity = param.Dict(default={}, doc="Memory of a device, in bytes and as text; empty if it is not known.")

    _esm = module("panels/memory.js")
    _stylesheets: ClassVar = style_sheets("panels/dock.css", "panels/memory.css")

    def __init__(self, session: Session, followed: FollowedRuns, **params: Any) -> None:
        super().__init__(**params)
        self._session, self._followed = session, followed
        session.param.watch(lambda *_: self._draw(), "prediction")
        followed.param.watch(lambda *_: self._draw(), "memory")
        self._draw()

    def _draw(self) -> None:
        prediction = self._session.prediction
        memory = prediction.memory if prediction is not None else None
        if prediction is None or memory is None:
            self.param.update(bars=PlainData([]), capacity={})
            return
        names = [mesh.name for mesh in prediction.design.meshes][:MOST_MESHES]
        measured = {each.mesh: each for each in self._followed.memory}
        bars = [bar for rank, name in enumerate(names) for bar in self._mesh_bars(name, rank, measured.get(name))]
        size = memory.capacity_bytes
        known = {"bytes": size, "text": quantity(size, "B")} if size else {}
        self.param.update(bars=PlainData(bars), capacity=known)

    def _mesh_bars(self, mesh: str, rank: int, measured: MeshMemory | None) -> Iterator[dict[str, Any]]:
        memory = self._session.prediction.memory
        assert memory is not None
        predicted = {kind: float(sizes[rank]) for kind, sizes in memory.by_category.items()}
        yield _bar(mesh, "predicted", predicted, sum(predicted.values()))
        if measured is not None:
            yield _bar(mesh, "measured", measured.measured, measured.measured_bytes)


def _bar(mesh: str, kind: str, by_category: Mapping[str, float], total: float) -> dict[str, Any]:
    """Return a bar: its mesh, whether it is predicted or measured, its total, and its parts with their texts."""
    rest = total - sum(by_category.values())  # of what was measured, not all has a category
    sizes = {**by_category, **({"other": rest} if rest > 0.005 * total else {})}
    parts = {name: [size, quantity(size, "B")] for name, size in sizes.items() if size > 0}
    return {"mesh": mesh, "kind": kind, "total": total, "text": quantity(total, "B"), "parts": parts}


@views.register("memory")
class MemoryView(View):
    """Peak memory per device of each mesh by category, predicted and measured."""

    title: ClassVar = "Memory"
    place: ClassVar = "bottom"
    order: ClassVar = 3

    def make_pane(self) -> MemoryBars:
        """Build the bars."""
        return MemoryBars(self.page.session, followed_runs(self.page), **FILL)
