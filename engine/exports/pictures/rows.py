"""Rows of a picture of a predicted step: lanes, titles, and strips of shares, memory and links, as the page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.predict.link_lanes import link_lanes
from meshwave.engine.predict.link_load import port_label
from meshwave.engine.program.action import Op
from meshwave.engine.program.timeline import Floats, Timeline
from meshwave.engine.units import percent, quantity

if TYPE_CHECKING:
    from meshwave.engine.predict.prediction import Prediction

Curve = tuple[Floats, Floats]
NEAR_SHARE = 0.7  # share of the capacity; strips of memory are scaled to a peak below it


class Row(NamedTuple):
    """Lanes below each other, a title, or a strip.

    A ``summary`` is the share of some ranks that compute, ``memory`` the memory of the fullest of some ranks, and
    ``links`` the mean use of some ports by their labels.
    """

    kind: Literal["lanes", "title", "summary", "memory", "links"]
    name: str = ""
    note: str = ""  # of a title
    ranks: tuple[int, ...] = ()
    ports: tuple[str, ...] = ()


class ShownTimeline(NamedTuple):
    """Timeline of a picture, which may have several above each other: pinned designs, the open one, and its run."""

    timeline: Timeline
    label: str = ""  # above its rows, in a picture with several timelines
    rows: tuple[Row, ...] = ()  # from top to bottom; empty for all lanes
    prediction: Prediction | None = None  # whose strips of memory and links are drawn
    over: bool = False  # drawn in the lower halves of the lanes of the timeline before

    @property
    def drawn_rows(self) -> tuple[Row, ...]:
        """The rows, or all lanes if none are given."""
        return self.rows or (Row("lanes", ranks=tuple(range(self.timeline.ranks))),)


class Strip(NamedTuple):
    """Stacked shares of the height of a strip, and the number beside its name."""

    parts: Mapping[str, Floats]  # by op or name of a surface colour, [columns] each 0 to 1
    number: str


class Strips:
    """Strips of a prediction."""

    def __init__(self, prediction: Prediction) -> None:
        self._prediction = prediction

    def draw(self, row: Row, edges: Floats) -> Strip:
        """Return the strip of a row in pixel columns whose edges are times in seconds."""
        make = {"summary": self._summary, "memory": self._memory, "links": self._links}[row.kind]
        return make(row, edges)

    def _summary(self, row: Row, edges: Floats) -> Strip:
        timeline = self._prediction.timeline
        spans = np.flatnonzero(timeline.is_work & np.isin(timeline.rank, row.ranks))
        start, end = timeline.start[spans], timeline.end[spans]
        height = np.full(len(spans), 1 / len(row.ranks))
        busy = float((end - start).sum()) / len(row.ranks) / (timeline.makespan or 1)
        return Strip({"muted": mean_heights(start, end, height, edges)}, percent(busy))

    def _memory(self, row: Row, edges: Floats) -> Strip:
        curves, capacity = self._prediction.memory_curves, self._prediction.costs.capacity_bytes
        peak = max((float(held.max(initial=0)) for _, held in curves), default=0.0)
        limit = capacity if capacity and peak > NEAR_SHARE * capacity else np.inf
        top = 1.08 * max(peak, limit if np.isfinite(limit) else 0.0, 1.0)
        held = np.max([column_peaks(curves[rank], edges) for rank in row.ranks], axis=0)
        parts = {"memory": np.minimum(held, limit) / top, "warning": np.maximum(held - limit, 0) / top}
        return Strip(parts, quantity(max(float(curves[rank][1].max(initial=0)) for rank in row.ranks), "B"))

    def _links(self, row: Row, edges: Floats) -> Strip:
        prediction = self._prediction
        flows = prediction.link_flows
        found = link_lanes(flows, prediction.port_loads, devices=True).lanes if flows is not None else ()
        lanes = [lane for lane in found if port_label(lane.load.port) in row.ports]
        if flows is None or not lanes:
            return Strip({}, "")
        table = np.array([share for lane in lanes for share in lane.shares], np.float64).reshape(-1, 5)
        flow, start, end, low, high = table.T
        op, height = prediction.timeline.op[flows.span[flow.astype(np.int64)]], (high - low) / len(lanes)
        parts = {
            Op(each).name: mean_heights(start[op == each], end[op == each], height[op == each], edges)
            for each in np.unique(op).tolist()
        }
        return Strip(parts, percent(sum(lane.load.share for lane in lanes) / len(lanes)))


def whole_step(prediction: Prediction) -> tuple[ShownTimeline, ...]:
    """Return the default content of a picture of a prediction: its timeline with all lanes."""
    return (ShownTimeline(prediction.timeline, prediction.design.name, prediction=prediction),)


def shown_ranks(rows: Sequence[Row]) -> list[int]:
    """Return the ranks of the lanes of rows."""
    return [rank for row in rows if row.kind == "lanes" for rank in row.ranks]


def count_blocks(shown: Sequence[ShownTimeline]) -> int:
    """Return the number of blocks in the lanes of a picture."""
    rows: Sequence[Row] = ()
    total = 0
    for each in shown:
        rows = rows if each.over else each.drawn_rows
        total += int((each.timeline.is_work & np.isin(each.timeline.rank, shown_ranks(rows))).sum())
    return total


def mean_heights(start: Floats, end: Floats, height: Floats, edges: Floats) -> Floats:
    """Return the mean height of spans in each column, ``[columns]``; heights of concurrent spans add up."""
    if not len(start):
        return np.zeros(len(edges) - 1)
    times, changes = np.concatenate((start, end)), np.concatenate((height, -height))
    order = np.argsort(times, kind="stable")
    times, level = times[order], np.cumsum(changes[order])
    area = np.concatenate(([0.0], np.cumsum(level[:-1] * np.diff(times))))
    means: Floats = np.diff(np.interp(edges, times, area)) / np.diff(edges)
    return np.clip(means, 0, 1)


def column_peaks(curve: Curve, edges: Floats) -> Floats:
    """Return the largest value of a step curve in each column, ``[columns]``."""
    times, values = curve
    if not len(times):
        return np.zeros(len(edges) - 1)
    first = np.maximum(np.searchsorted(times, edges[:-1], "right") - 1, 0)
    last = np.maximum(np.searchsorted(times, edges[1:], "left"), first + 1)
    bounds: NDArray[np.intp] = np.column_stack((first, last)).ravel()
    peaks: Floats = np.maximum.reduceat(np.append(values, 0.0), bounds)[::2]
    return peaks
