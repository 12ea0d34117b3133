"""Drawing of one plan of a transfer: the tensor and its slices, both meshes, and the timeline of the links."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.document.transfer_document import TransferSide, TransferSpec
from meshwave.engine.findings import Refusal
from meshwave.engine.program.link_shares import Share, max_concurrent_messages
from meshwave.engine.resharding import (
    Box,
    Hops,
    Lane,
    LaneUse,
    Plan,
    PlanSimulation,
    Port,
    SimulatedMessage,
    UnitTask,
    candidate_transfers,
    is_empty,
    nic_sides,
    plan_lanes,
    port_shares,
    rank_boxes,
    simulate_plan,
    task_hops,
    unit_tasks,
    volume,
)

MOST_DRAWN_TASKS = 5_000
MOST_DRAWN_HOPS = 6_000
"""Largest number of messages of a unit task that are drawn; for more, consecutive chunks are merged."""
LEAST_SHARE = 0.35
"""Smallest width of a piece relative to equal widths, so that a short last shard remains visible."""

Rect = tuple[float, float, float, float]
"""Left, top, right and bottom as shares of the picture."""


@dataclass(frozen=True)
class TensorLayout:
    """Layout of a tensor with any number of dims on two axes.

    The sharded dims are assigned in turn to the rows and the columns, later ones nested inside earlier ones.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    cuts: Mapping[int, Sequence[int]]  # bounds of all boxes by tensor dim, ascending
    at: Mapping[int, Sequence[float]]  # positions of the cuts by tensor dim, from 0 to 1

    @classmethod
    def arrange(cls, shape: Sequence[int], found: Iterable[Box]) -> Self:
        """Return the layout of a tensor that shows the bounds of all given boxes."""
        ends: list[set[int]] = [{0, size} for size in shape]
        for box in found:
            for dim, (start, stop) in enumerate(box):
                ends[dim] |= {start, stop}
        shown = [dim for dim, each in enumerate(ends) if len(each) > 2]
        shown = sorted({*shown, *[dim for dim in range(len(shape)) if dim not in shown][: max(0, 2 - len(shown))]})
        cuts = {dim: sorted(ends[dim]) for dim in shown}
        rows = () if len(shown) == 1 else tuple(shown[::2])
        columns = tuple(shown) if len(shown) == 1 else tuple(shown[1::2])
        return cls(rows, columns, cuts, {dim: _cut_positions(each) for dim, each in cuts.items()})

    def rects(self, box: Box) -> list[Rect]:
        """Return the rectangles of a box: one, or several where dims are nested."""
        across, down = (self._extents(dims, box) for dims in (self.columns, self.rows))
        return [(left, top, right, bottom) for top, bottom in down for left, right in across]

    def _extents(self, dims: Sequence[int], box: Box) -> list[tuple[float, float]]:
        if not dims:
            return [(0.0, 1.0)]
        dim, *inner = dims
        start, stop = (bisect_left(self.cuts[dim], end) for end in box[dim])
        inside = self._extents(inner, box)
        at = self.at[dim]
        if inside == [(0.0, 1.0)]:
            return [(at[start], at[stop])]
        return [
            (at[piece] + low * (at[piece + 1] - at[piece]), at[piece] + high * (at[piece + 1] - at[piece]))
            for piece in range(start, stop)
            for low, high in inside
        ]


def _cut_positions(cuts: Sequence[int]) -> list[float]:
    """Return the positions of cuts from 0 to 1. They are to scale, except that narrow pieces are widened."""
    least = LEAST_SHARE / (len(cuts) - 1)
    widths = [max((stop - start) / cuts[-1], least) for start, stop in pairwise(cuts)]
    return [0.0, *(width / sum(widths) for width in accumulate(widths))]


@dataclass(frozen=True)
class TransferDrawing:
    """A plan of a transfer and the data for drawing it."""

    spec: TransferSpec
    tasks: Sequence[UnitTask]
    plan: Plan
    lanes: Sequence[Lane]
    held: Sequence[LaneUse]

    @classmethod
    def from_spec(cls, spec: TransferSpec, strategy: str, ordering: str) -> Self:
        """Plan a transfer.

        Raises:
            Refusal: the strategy or ordering is unknown, or there are more unit tasks than can be drawn.
        """
        count = len(unit_tasks(spec.planned_tensor, *spec.load.source, *spec.load.destination))
        if count > MOST_DRAWN_TASKS:
            raise Refusal("too_many_tasks_to_draw", {"tasks": count, "maximum": MOST_DRAWN_TASKS})
        (made,) = candidate_transfers([spec.load], spec.lines, spec.chunks, [strategy], [ordering])
        return cls(spec, made.tasks, made.plan, *plan_lanes(made.plan, made.tasks, spec.lines))

    @cached_property
    def simulation(self) -> PlanSimulation:
        """Simulation of the plan with shared links."""
        return simulate_plan(self.plan, self.tasks, self.spec.lines)

    def to_data(self) -> dict[str, Any]:
        """Return the data of the drawing without the chunks; positions and sizes are shares of the picture."""
        spec, plan = self.spec, self.plan
        sides = {"source": spec.source, "destination": spec.destination}
        owned = {name: rank_boxes(side.mesh, side.entries, spec.tensor.shape) for name, side in sides.items()}
        filled = [box for each in owned.values() for box in each if not is_empty(box)]
        layout = TensorLayout.arrange(spec.tensor.shape, filled)
        return {
            "shape": list(spec.tensor.shape),
            "bytes": spec.planned_tensor.bytes,
            "rows": [_dim_data(layout, dim) for dim in layout.rows],
            "columns": [_dim_data(layout, dim) for dim in layout.columns],
            **{name: _side_data(side, owned[name], layout) for name, side in sides.items()},
            "tasks": self._task_data(layout),
            "hosts": sorted(set(spec.lines.host.values())),
            "lanes": [lane._asdict() for lane in self.lanes],
            "held": {name: [getattr(each, name) for each in self.held] for name in LaneUse._fields},
            "strategy": plan.strategy,
            "ordering": plan.ordering,
            "makespan_s": plan.makespan_s,
            "simulated_s": self.simulation.seconds,
            "reduce_s": plan.reduce_s,
            "gather_s": plan.gather_s,
            "bound_s": plan.bound_s,
            "optimal": plan.is_optimal,
        }

    def simulation_data(self) -> dict[str, Any]:
        """Return the simulated messages as columns, and a lane per port with a bar for each message.

        A bar has a start, an end, and a lower and upper bound as shares of the port's capacity. A lane has a rank
        inside its host. ``share`` is the average rate of a message as a share of its link's bandwidth, null where the
        link is free.
        """
        sent, host = self.simulation.messages or (), self.spec.lines.host
        found = sorted(
            port_shares(self.simulation, self.spec.lines).items(), key=lambda each: _lane_place(each[0], host)
        )
        bars = [(lane, *bar) for lane, (_, of_port) in enumerate(found) for bar in of_port]
        return {
            "lanes": [{**_lane_data(port, host), "rows": max_concurrent_messages(of_port)} for port, of_port in found],
            "messages": {
                "task": [each.move.task for each in sent],
                "chunk": [each.chunk for each in sent],
                "source": [each.move.source for each in sent],
                "target": [each.move.target for each in sent],
                **{name: [getattr(each, name) for each in sent] for name in ("bytes", "set_out_s", "start_s", "end_s")},
                "share": [self._link_share(each) for each in sent],
            },
            "bars": {name: [bar[place] for bar in bars] for place, name in enumerate(BAR_COLUMNS)},
        }

    def _link_share(self, sent: SimulatedMessage) -> float | None:
        rate = self.spec.lines.link_between(sent.move.source, sent.move.target).bandwidth
        took = sent.end_s - sent.start_s
        return round(sent.bytes / took / rate, 4) if rate and took else None

    def _task_data(self, layout: TensorLayout) -> list[dict[str, Any]]:
        planned = {each.task: (place, each) for place, each in enumerate(self.plan.tasks)}
        host = self.spec.lines.host
        found = []
        for number, task in enumerate(self.tasks):
            place, each = planned[number]
            found.append(
                {
                    "rects": layout.rects(task.box),
                    "box": _box_text(task.box),
                    "bytes": task.bytes,
                    "senders": list(task.senders),
                    "receivers": list(task.receivers),
                    "keepers": list(task.keepers),
                    "addends": list(task.ranks_summed_by(each.sender)),
                    "place": place,
                    "sender": each.sender,
                    "host": host[each.sender],
                    "start_s": each.start_s,
                    "end_s": each.end_s,
                    "chunks": each.chunks,
                }
            )
        return found

    def hops(self, task: int) -> dict[str, list[Any]]:
        """Return the messages of a unit task as columns, with a row for each lane that a message occupies.

        ``first`` and ``last`` are chunks; in a task with very many messages a row merges consecutive chunks.

        Raises:
            InputError: there are too many messages to list.
        """
        each = next(each for each in self.plan.tasks if each.task == task)
        lines = self.spec.lines
        found = task_hops(self.plan.strategy, self.tasks[task], each.sender, lines, each.chunks)
        bundle = -(-len(found.chunk) // MOST_DRAWN_HOPS)
        place = {lane: number for number, lane in enumerate(self.lanes)}
        held = {self.lanes[row.lane][:2]: row.lane for row in self.held if row.task == task}
        columns: dict[str, list[Any]] = {name: [] for name in HOP_COLUMNS}
        for rows in _message_bundles(found, bundle):
            source, target = int(found.source[rows[0]]), int(found.target[rows[0]])
            for side in nic_sides(source, target, lines):
                if side is None:
                    continue
                entry = {
                    "lane": held.get(side, place.get(Lane(*side), -1)),
                    "source": source,
                    "target": target,
                    "first": int(found.chunk[rows[0]]),
                    "last": int(found.chunk[rows[-1]]),
                    "bytes": float(found.bytes[rows].sum()),
                    "start_s": each.start_s + float(found.start_s[rows[0]]),
                    "end_s": each.start_s + float(found.end_s[rows[-1]]),
                }
                for name, value in entry.items():
                    columns[name].append(value)
        return columns


HOP_COLUMNS = ("lane", "source", "target", "first", "last", "bytes", "start_s", "end_s")


BAR_COLUMNS = ("lane", *Share._fields)


def _lane_data(port: Port, host: Mapping[int, int]) -> dict[str, Any]:
    way, number = port
    is_outside = way in ("tx", "rx")
    return {"host": number if is_outside else host[number], "rank": None if is_outside else number, "way": way}


def _lane_place(port: Port, host: Mapping[int, int]) -> tuple[int, int, bool]:
    """Return the sort key of a lane: by host, its outgoing and incoming port first, then its ranks."""
    way, number = port
    return (number, -1, way == "rx") if way in ("tx", "rx") else (host[number], number, way == "into")


def _message_bundles(found: Hops, size: int) -> Iterator[NDArray[np.intp]]:
    """Yield rows of one message each, or of ``size`` consecutive messages on one edge."""
    edge = found.source * (int(found.target.max(initial=0)) + 1) + found.target
    order = np.argsort(edge, kind="stable") if size > 1 else np.arange(len(edge))
    breaks = np.flatnonzero(np.diff(edge[order]) != 0) + 1 if size > 1 else order[1:]
    for rows in np.split(order, breaks) if len(edge) else []:
        yield from (rows[start : start + size] for start in range(0, len(rows), size))


def _side_data(side: TransferSide, owned: Sequence[Box], layout: TensorLayout) -> dict[str, Any]:
    """Return a mesh and its distinct boxes, each with all ranks that hold it."""
    distinct: dict[Box, list[int]] = {}
    for place, box in enumerate(owned):
        if not is_empty(box):
            distinct.setdefault(box, []).append(place)
    return {
        "shape": list(side.shape),
        "ranks": list(side.ranks),
        "hosts": list(side.hosts),
        "spec": list(side.spec),
        "partial": list(side.partial),
        "cuts": [[int(axis) for axis in entry[1:]] for entry in side.spec],
        "ends": {str(dim): sorted({end for box in distinct for end in box[dim]}) for dim in layout.cuts},
        "boxes": [
            {"rects": layout.rects(box), "box": _box_text(box), "elements": volume(box), "places": places}
            for box, places in sorted(distinct.items())
        ],
    }


def _dim_data(layout: TensorLayout, dim: int) -> dict[str, Any]:
    return {"dim": dim, "cuts": list(layout.cuts[dim]), "at": list(layout.at[dim])}


def _box_text(box: Box) -> str:
    return ", ".join(f"{start}:{stop}" for start, stop in box) or "all"
