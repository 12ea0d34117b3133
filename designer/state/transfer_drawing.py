"""One plan of a transfer as a picture: the tensor and its slices, both meshes, what passes the links when."""

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
from meshwave.engine.errors import InputError
from meshwave.engine.program.link_shares import Share, max_concurrent_messages
from meshwave.engine.resharding import (
    Box,
    Hops,
    Lane,
    LaneUse,
    Plan,
    Playback,
    PlayedMessage,
    Port,
    UnitTask,
    boxes,
    candidate_transfers,
    hops,
    is_empty,
    lanes,
    nic_sides,
    play_plan,
    port_shares,
    unit_tasks,
    volume,
)

MOST_DRAWN_TASKS = 5_000
MOST_DRAWN_HOPS = 6_000
"""Of one task; of more, chunks that follow one another are drawn as one."""
LEAST_SHARE = 0.35
"""Of an even share: no piece is drawn narrower, so that a short last shard is still seen."""

Rect = tuple[float, float, float, float]
"""Left, top, right and bottom, each a part of the picture."""


@dataclass(frozen=True)
class Face:
    """How a tensor of any number of dims is laid on a page: dims that are cut lie in turn along the rows
    and the columns, the later ones inside the earlier ones."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    cuts: Mapping[int, Sequence[int]]  # of each dim of the two: all ends of boxes, ascending
    at: Mapping[int, Sequence[float]]  # where these are drawn, from 0 to 1

    @classmethod
    def of(cls, shape: Sequence[int], found: Iterable[Box]) -> Self:
        """The face that tells ``found`` boxes of a tensor apart."""
        ends: list[set[int]] = [{0, size} for size in shape]
        for box in found:
            for dim, (start, stop) in enumerate(box):
                ends[dim] |= {start, stop}
        shown = [dim for dim, each in enumerate(ends) if len(each) > 2]
        shown = sorted({*shown, *[dim for dim in range(len(shape)) if dim not in shown][: max(0, 2 - len(shown))]})
        cuts = {dim: sorted(ends[dim]) for dim in shown}
        rows = () if len(shown) == 1 else tuple(shown[::2])
        columns = tuple(shown) if len(shown) == 1 else tuple(shown[1::2])
        return cls(rows, columns, cuts, {dim: _drawn_at(each) for dim, each in cuts.items()})

    def rects(self, box: Box) -> list[Rect]:
        """A box on the page: one rectangle, or several where dims lie inside one another."""
        across, down = (self._along(dims, box) for dims in (self.columns, self.rows))
        return [(left, top, right, bottom) for top, bottom in down for left, right in across]

    def _along(self, dims: Sequence[int], box: Box) -> list[tuple[float, float]]:
        if not dims:
            return [(0.0, 1.0)]
        dim, *inner = dims
        start, stop = (bisect_left(self.cuts[dim], end) for end in box[dim])
        inside = self._along(inner, box)
        at = self.at[dim]
        if inside == [(0.0, 1.0)]:
            return [(at[start], at[stop])]
        return [
            (at[piece] + low * (at[piece + 1] - at[piece]), at[piece] + high * (at[piece + 1] - at[piece]))
            for piece in range(start, stop)
            for low, high in inside
        ]


def _drawn_at(cuts: Sequence[int]) -> list[float]:
    """Where the ends of pieces stand: to scale, as long as none gets too narrow."""
    least = LEAST_SHARE / (len(cuts) - 1)
    widths = [max((stop - start) / cuts[-1], least) for start, stop in pairwise(cuts)]
    return [0.0, *(width / sum(widths) for width in accumulate(widths))]


@dataclass(frozen=True)
class Drawing:
    """One plan of a transfer and all that is drawn of it."""

    spec: TransferSpec
    tasks: Sequence[UnitTask]
    plan: Plan
    lanes: Sequence[Lane]
    held: Sequence[LaneUse]

    @classmethod
    def of(cls, spec: TransferSpec, strategy: str, ordering: str) -> Self:
        """
        Raises:
            InputError: there is no such strategy or ordering, or there are more unit tasks than can be drawn.
        """
        count = len(unit_tasks(spec.planned_tensor, *spec.load.source, *spec.load.destination))
        if count > MOST_DRAWN_TASKS:
            raise InputError(
                f"these are {count:,} unit tasks, and up to {MOST_DRAWN_TASKS:,} can be drawn; cut the tensor "
                "into fewer pieces, or plan it by meshwave reshard"
            )
        (made,) = candidate_transfers([spec.load], spec.lines, spec.chunks, [strategy], [ordering])
        return cls(spec, made.tasks, made.plan, *lanes(made.plan, made.tasks, spec.lines))

    @cached_property
    def played(self) -> Playback:
        """The plan as it is played."""
        return play_plan(self.plan, self.tasks, self.spec.lines)

    def as_data(self) -> dict[str, Any]:
        """All that the page draws, chunks left out; lengths and places of rectangles are parts of the whole."""
        spec, plan = self.spec, self.plan
        sides = {"source": spec.source, "destination": spec.destination}
        owned = {name: boxes(side.mesh, side.entries, spec.tensor.shape) for name, side in sides.items()}
        face = Face.of(spec.tensor.shape, [box for each in owned.values() for box in each if not is_empty(box)])
        return {
            "shape": list(spec.tensor.shape),
            "bytes": spec.planned_tensor.bytes,
            "rows": [_dim(face, dim) for dim in face.rows],
            "columns": [_dim(face, dim) for dim in face.columns],
            **{name: _side_data(side, owned[name], face) for name, side in sides.items()},
            "tasks": self._tasks(face),
            "hosts": sorted(set(spec.lines.host.values())),
            "lanes": [lane._asdict() for lane in self.lanes],
            "held": {name: [getattr(each, name) for each in self.held] for name in LaneUse._fields},
            "strategy": plan.strategy,
            "ordering": plan.ordering,
            "makespan_s": plan.makespan_s,
            "played_s": self.played.seconds,
            "reduce_s": plan.reduce_s,
            "gather_s": plan.gather_s,
            "bound_s": plan.bound_s,
            "optimal": plan.is_optimal,
        }

    def play_as_data(self) -> dict[str, Any]:
        """The messages as they are played, as columns, and on a lane for each port the bars that they are there: from
        when to when, and of the lane's height, which is all that the port can carry, from where to where.

        A lane has a rank inside its host. A message has on average a ``share`` of its link's rate, none where the link
        is free.
        """
        sent, host = self.played.messages or (), self.spec.lines.host
        found = sorted(port_shares(self.played, self.spec.lines).items(), key=lambda each: _lane_place(each[0], host))
        bars = [(lane, *bar) for lane, (_, of_port) in enumerate(found) for bar in of_port]
        return {
            "lanes": [{**_lane_of(port, host), "rows": max_concurrent_messages(of_port)} for port, of_port in found],
            "messages": {
                "task": [each.move.task for each in sent],
                "chunk": [each.chunk for each in sent],
                "source": [each.move.source for each in sent],
                "target": [each.move.target for each in sent],
                **{name: [getattr(each, name) for each in sent] for name in ("bytes", "set_out_s", "start_s", "end_s")},
                "share": [self._share(each) for each in sent],
            },
            "bars": {name: [bar[place] for bar in bars] for place, name in enumerate(BAR_COLUMNS)},
        }

    def _share(self, sent: PlayedMessage) -> float | None:
        rate = self.spec.lines.link_between(sent.move.source, sent.move.target).bandwidth
        took = sent.end_s - sent.start_s
        return round(sent.bytes / took / rate, 4) if rate and took else None

    def _tasks(self, face: Face) -> list[dict[str, Any]]:
        planned = {each.task: (place, each) for place, each in enumerate(self.plan.tasks)}
        host = self.spec.lines.host
        found = []
        for number, task in enumerate(self.tasks):
            place, each = planned[number]
            found.append(
                {
                    "rects": face.rects(task.box),
                    "box": _box_words(task.box),
                    "bytes": task.bytes,
                    "senders": list(task.senders),
                    "receivers": list(task.receivers),
                    "keepers": list(task.keepers),
                    "addends": list(task.addends_of(each.sender)),
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
        """The messages of a unit task on the lanes, as columns: one entry for each lane that a message passes.

        ``first`` and ``last`` are chunks: where there are very many, some that follow one another are one entry.

        Raises:
            InputError: there are more than can be told.
        """
        each = next(each for each in self.plan.tasks if each.task == task)
        lines = self.spec.lines
        found = hops(self.plan.strategy, self.tasks[task], each.sender, lines, each.chunks)
        bundle = -(-len(found.chunk) // MOST_DRAWN_HOPS)
        place = {lane: number for number, lane in enumerate(self.lanes)}
        held = {self.lanes[row.lane][:2]: row.lane for row in self.held if row.task == task}
        columns: dict[str, list[Any]] = {name: [] for name in HOP_COLUMNS}
        for rows in _bundles(found, bundle):
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


def _lane_of(port: Port, host: Mapping[int, int]) -> dict[str, Any]:
    way, number = port
    is_outside = way in ("tx", "rx")
    return {"host": number if is_outside else host[number], "rank": None if is_outside else number, "way": way}


def _lane_place(port: Port, host: Mapping[int, int]) -> tuple[int, int, bool]:
    """Host by host: what leaves it and comes to it, then its ranks."""
    way, number = port
    return (number, -1, way == "rx") if way in ("tx", "rx") else (host[number], number, way == "into")


def _bundles(found: Hops, size: int) -> Iterator[NDArray[np.intp]]:
    """Rows of one message each, or of ``size`` that follow one another on one edge."""
    edge = found.source * (int(found.target.max(initial=0)) + 1) + found.target
    order = np.argsort(edge, kind="stable") if size > 1 else np.arange(len(edge))
    breaks = np.flatnonzero(np.diff(edge[order]) != 0) + 1 if size > 1 else order[1:]
    for rows in np.split(order, breaks) if len(edge) else []:
        yield from (rows[start : start + size] for start in range(0, len(rows), size))


def _side_data(side: TransferSide, owned: Sequence[Box], face: Face) -> dict[str, Any]:
    """A mesh and what lies on it: a box for each that is distinct, with all ranks that hold it."""
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
        "ends": {str(dim): sorted({end for box in distinct for end in box[dim]}) for dim in face.cuts},
        "boxes": [
            {"rects": face.rects(box), "box": _box_words(box), "elements": volume(box), "places": places}
            for box, places in sorted(distinct.items())
        ],
    }


def _dim(face: Face, dim: int) -> dict[str, Any]:
    return {"dim": dim, "cuts": list(face.cuts[dim]), "at": list(face.at[dim])}


def _box_words(box: Box) -> str:
    return ", ".join(f"{start}:{stop}" for start, stop in box) or "all"
