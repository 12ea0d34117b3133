"""Layout of one timeline as shapes on a sheet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, floor, log10
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.exports.pictures.palette import (
    MESHES,
    OPS,
    SURFACES,
    Theme,
    block_colour,
    mix_colours,
    shades,
    text_colour,
    tints,
)
from meshwave.engine.exports.pictures.rows import Row, Strip, mean_heights, shown_ranks
from meshwave.engine.exports.pictures.shapes import Box, Hatch, Line, Picture, Shape, Shares, Text
from meshwave.engine.program.action import WORDS, Op
from meshwave.engine.program.timeline import Floats, Timeline
from meshwave.engine.units import percent, quantity

MARGIN, GUTTER, TITLE, LEGEND, AXIS = 16, 76, 26, 24, 22  # pixels
TOP = MARGIN + TITLE + LEGEND + AXIS  # pixels above the first row
HALVES_GAP = 2  # pixels between the halves of a lane
STRIP_GUTTER, ROW_TITLE, STRIP = 140, 20, 24  # pixels, in pictures with titles and strips
THIN = 2.5  # mean block width in pixels below which lanes are painted as shares
MAX_TRANSFERS = 600
TALL_ENOUGH = 13  # minimum lane height in pixels for labels and transfers
LOWEST_TEXT = 11  # pixels of a half lane beside which its timeline is named
SOURCES = {"predicted": "predicted", "measured": "measured", "rehearsed": "dry run"}
DIGIT = 0.58  # width of a digit relative to the font size
DrawStrip = Callable[[Row, Floats], Strip]
"""Function that returns the strip of a row in pixel columns with the given edges in seconds."""


class Extent(NamedTuple):
    """Size and axis of a picture."""

    start: float  # seconds
    end: float
    width: int  # pixels
    unit: str = "s"  # of times: ``s``, or ``units`` for unit costs
    theme: Theme = "light"


class Sheet:
    """Positions and texts of all parts of a picture; subclasses for other kinds of timelines override the texts."""

    gutter: ClassVar = GUTTER

    def __init__(
        self,
        timeline: Timeline,
        extent: Extent,
        rows: Sequence[Row],
        draw_strip: DrawStrip | None = None,
        *,
        top: int = TOP,
        gutter: int | None = None,
        half: int | None = None,
    ) -> None:
        self.timeline, self.extent = timeline, extent
        self.start, self.end, self.width, self.unit, self.theme = extent
        self.rows, self.draw_strip, self.half = rows, draw_strip, half
        self.shown = shown_ranks(rows)
        self.right = self.width - MARGIN
        self.left = MARGIN + (self.gutter if gutter is None else gutter)
        self.scale = (self.right - self.left) / (self.end - self.start)
        self.pitch, self.gap = _lane_heights(len(self.shown), is_shared=half is not None)
        self.top = top
        heights = [self._height(row) for row in self.rows]
        self.row_tops = [self.top + sum(heights[:at]) for at in range(len(heights))]
        self.bottom = self.top + sum(heights)
        self.lane_tops = {
            rank: top + at * self.pitch
            for row, top in zip(self.rows, self.row_tops, strict=True)
            for at, rank in enumerate(row.ranks if row.kind == "lanes" else ())
        }
        self.shade = shades(timeline)
        self.tints = tints(self.shade)
        self.colours = SURFACES[self.theme]

    def _height(self, row: Row) -> int:
        if row.kind == "lanes":
            return self.pitch * len(row.ranks)
        return ROW_TITLE if row.kind == "title" else STRIP

    def picture(self, title: str, *, dense: bool) -> Picture:
        """Return the picture with all its shapes.

        ``dense`` draws the time shares of each pixel column instead of blocks if the blocks are too thin to see.
        """
        return Picture(self.width, self.bottom + MARGIN, self.theme, list(self.shapes(title, dense)))

    def x(self, seconds: Floats | float) -> Floats:
        """Return the horizontal position of a time in pixels."""
        return self.left + (np.clip(seconds, self.start, self.end) - self.start) * self.scale

    def y(self, rank: int) -> float:
        """Return the vertical position of a lane, or of the timeline's half of it, in pixels."""
        return self.lane_tops[rank] + (self.lane + HALVES_GAP if self.half else 0)

    @property
    def lane(self) -> float:
        """Height of a lane, or of the timeline's half of it, in pixels."""
        whole = self.pitch - self.gap
        return whole if self.half is None else (whole - HALVES_GAP) / 2

    def time(self, seconds: float) -> str:
        """Return a time as text with its unit."""
        return quantity(seconds, "s") if self.unit == "s" else f"{seconds:.4g}"

    def shapes(self, title: str, dense: bool) -> Iterator[Shape]:
        """Yield all shapes."""
        yield from self.frame_shapes(title, self.heading_figures(), self.legend_entries(), self.bottom)
        yield from self.content_shapes(dense)

    def frame_shapes(self, title: str, figures: str, legend: Mapping[str, str], bottom: int) -> Iterator[Shape]:
        """Yield the shapes around the rows of a picture: the title, the legend and the axis."""
        yield from self._heading_shapes(title, figures)
        yield from self._legend_shapes(legend)
        yield from self._axis_shapes(bottom)

    def content_shapes(self, dense: bool) -> Iterator[Shape]:
        """Yield the shapes of the rows."""
        yield from self._lane_shapes()
        if not self.half:
            yield from self._strip_shapes()
        seen = (self.timeline.end > self.start) & (self.timeline.start < self.end)
        seen &= np.isin(self.timeline.rank, self.shown)
        if dense and self._mean_width(seen) < THIN:
            yield from self._share_shapes(seen)
        else:
            yield from self._block_shapes(seen)
            yield from self._transfer_shapes(seen)
        yield from self._collective_shapes(seen)

    def _mean_width(self, seen: NDArray[np.bool_]) -> float:
        work = seen & self.timeline.is_compute
        if not work.any():
            return THIN
        return float((self.timeline.end[work] - self.timeline.start[work]).mean() * self.scale)

    def _heading_shapes(self, title: str, figures: str) -> Iterator[Shape]:
        y = MARGIN + TITLE / 2 - 3
        yield Text(MARGIN, y, title or "Timeline", self.colours["text"], 15, bold=True)
        yield Text(self.right, y, figures, self.colours["muted"], 12, "end")

    def heading_figures(self) -> str:
        """Return the metrics shown in the heading."""
        timeline = self.timeline
        return f"{SOURCES[timeline.source]}, {self.time(timeline.makespan)}, {percent(timeline.bubble_ratio)} idle"

    def legend_text(self, op: Op) -> str:
        """Return the meaning of an op's colour in the legend."""
        return f"{op.name} {WORDS[op.name]}" if op <= Op.W else WORDS[op.name]

    def legend_entries(self) -> dict[str, str]:
        """Return the words of the legend and their colours."""
        takes_time = self.timeline.end > self.timeline.start
        shown = set(self.timeline.op[takes_time & ~self.timeline.is_transfer].tolist())
        entries = {self.legend_text(op): block_colour(op, theme=self.theme) for op in Op if op in shown}
        if (self.shade & 1).any():
            lighter = mix_colours(block_colour(Op.F, theme=self.theme), "#ffffff", 0.36)
            entries["lighter: upward pass"] = lighter
        return entries

    def _legend_shapes(self, entries: Mapping[str, str]) -> Iterator[Shape]:
        x, y = float(MARGIN), MARGIN + TITLE + LEGEND / 2 - 5
        for words, colour in entries.items():
            yield Box(x, y - 5, 11, 11, colour, 3)
            yield Text(x + 16, y, words, self.colours["muted"])
            x += 16 + 6.2 * len(words) + 20
        yield Hatch(x, y - 5, 11, 11)
        yield Text(x + 16, y, "idle", self.colours["muted"])

    def _axis_shapes(self, bottom: int) -> Iterator[Shape]:
        y = self.top - 6
        step = _round_up((self.end - self.start) / 12)
        for number in range(ceil(self.start / step - 1e-9), floor(self.end / step + 1e-9) + 1):
            x = float(self.x(number * step))
            yield Line(x, y, x, bottom, self.colours["line"])
            yield Text(x, y - 8, self.time(number * step) if number else "0", self.colours["muted"], 10.5, "middle")

    def _lane_shapes(self) -> Iterator[Shape]:
        first, last = float(self.x(0.0)), float(self.x(float(self.timeline.end.max())))
        free = -np.inf
        source = "" if self.half is None else SOURCES[self.timeline.source]
        for rank in self.shown:
            y, height = self.y(rank), self.pitch - self.gap
            middle = self.lane_tops[rank] + height / 2
            yield Hatch(first, y, last - first, self.lane)
            if source and self.lane >= LOWEST_TEXT:
                yield Text(self.left - 12, y + self.lane / 2, source, self.colours["muted"], 10.5, "end")
            if self.half:
                continue
            mesh_colour = MESHES[self.colour_index(rank) % len(MESHES)]
            yield Box(self.left - 8, self.lane_tops[rank], 3, height, mesh_colour)
            if middle >= free:
                free = middle + 12
                name = _shorten(self.timeline.meshes[rank], self.left - MARGIN - 14 - 6 * len(source))
                yield Text(MARGIN, middle, name, self.colours["text"], 11, bold=True)

    def _strip_shapes(self) -> Iterator[Shape]:
        colours, edges = self.colours, self._column_edges()
        for row, y in zip(self.rows, self.row_tops, strict=True):
            middle, height = y + STRIP / 2, STRIP - 3
            if row.kind == "title":
                x = MARGIN + 7.6 * len(row.name) + 8
                yield Text(MARGIN, y + ROW_TITLE / 2, row.name, colours["text"], 11, bold=True)
                yield Text(x, y + ROW_TITLE / 2, _shorten(row.note, self.right - x), colours["muted"], 11)
            elif row.kind != "lanes" and self.draw_strip is not None:
                strip = self.draw_strip(row, edges)
                yield Box(self.left, y, self.right - self.left, height, colours["idle"])
                names = tuple(OPS[self.theme].get(name) or colours[name] for name in strip.parts)
                parts = np.array(list(strip.parts.values())).reshape(len(names), len(edges) - 1)
                yield Shares(self.left, y, self.right - self.left, height, names, parts)
                room = self.left - MARGIN - 20 - 6.6 * len(strip.number)
                yield Text(MARGIN, middle, _shorten(row.name, room), colours["text"], 11, bold=True)
                yield Text(self.left - 12, middle, strip.number, colours["muted"], 11, "end")

    def _column_edges(self) -> Floats:
        return np.linspace(self.start, self.end, round(self.right - self.left) + 1)

    def colour_index(self, rank: int) -> int:
        """Return the index of the mesh colour of a lane."""
        return rank

    def _block_shapes(self, seen: NDArray[np.bool_]) -> Iterator[Shape]:
        timeline = self.timeline
        spans = np.flatnonzero(seen & timeline.is_work)
        left, right = self.x(timeline.start[spans]), self.x(timeline.end[spans])
        words = self.lane >= TALL_ENOUGH
        compute = timeline.is_compute[spans] & (right > left)
        shortest = float((right - left)[compute].min(initial=np.inf))
        for span, a, b in zip(spans.tolist(), left.tolist(), right.tolist(), strict=True):
            rank, stage, op = int(timeline.rank[span]), int(timeline.stage[span]), Op(int(timeline.op[span]))
            shade = int(self.shade[rank, stage]) if stage >= 0 else 0
            colour = block_colour(op, self.tints[shade] if op <= Op.W else 0.0, self.theme)
            size = b - a - (1 if b - a > 4 else 0)
            if size <= 0:
                continue
            y = self.y(rank)
            yield Box(a, y, size, self.lane, colour, min(3, self.lane / 5) if size > 9 else 0, self.tooltip(span))
            if shade & 1 and size > 6 and words:
                yield Box(a + 2, y + 1, size - 4, 1.5, mix_colours(colour, "#000000", 0.28))
            if words and (label := self.label(span, size, shortest)):
                yield Text(a + size / 2, y + self.lane / 2, label, text_colour(colour), 10.5, "middle")

    def tooltip(self, span: int) -> str:
        """Return the tooltip of a block."""
        t = self.timeline
        action, name = t.action(span), t.meshes[t.rank[span]]
        start, took = self.time(float(t.start[span])), self.time(float(t.end[span] - t.start[span]))
        return f"{action} on mesh {name}: starts at {start}, takes {took}"

    def label(self, span: int, room: float, shortest: float) -> str:
        """Return the label of a block: the whole action if it fits into every block, else the microbatch or "".

        All blocks of a picture thus have labels of one kind.
        """
        action = self.timeline.action(span)
        if action.op == Op.STEP:
            return "step" if label_width("step") <= room else ""
        whole, number = str(action), str(action.microbatch)
        return whole if label_width(whole) <= min(room, shortest) else number if label_width(number) <= room else ""

    def _transfer_shapes(self, seen: NDArray[np.bool_]) -> Iterator[Shape]:
        timeline = self.timeline
        spans = np.flatnonzero(seen & timeline.is_transfer & np.isin(timeline.peer, self.shown))
        if self.lane < TALL_ENOUGH or len(spans) > MAX_TRANSFERS:
            return
        for span in spans.tolist():
            sender, receiver = int(timeline.rank[span]), int(timeline.peer[span])
            down = receiver > sender
            colour = mix_colours(OPS[self.theme][Op(int(timeline.op[span])).name], self.colours["text"], 0.4)
            y1 = self.y(sender) + self.lane * (0.8 if down else 0.2)
            y2 = self.y(receiver) + self.lane * (0.2 if down else 0.8)
            x1, x2 = float(self.x(timeline.start[span])), float(self.x(timeline.end[span]))
            yield Line(x1, y1, x2, y2, colour, 1.1, arrow=True)

    def _share_shapes(self, seen: NDArray[np.bool_]) -> Iterator[Shape]:
        timeline, edges = self.timeline, self._column_edges()
        ops = [Op.F, Op.B, Op.I, Op.W, Op.STEP]
        colours = tuple(block_colour(op, theme=self.theme) for op in ops)
        order = np.lexsort((timeline.start, timeline.op, timeline.rank))
        order = order[seen[order] & timeline.is_work[order]]
        lane = timeline.rank[order].astype(np.int64) * 16 + timeline.op[order]
        for rank in self.shown:
            parts = np.zeros((len(ops), len(edges) - 1))
            for place, op in enumerate(ops):
                first, last = np.searchsorted(lane, (rank * 16 + op, rank * 16 + op + 1))
                parts[place] = _column_shares(timeline, order[first:last], edges)
            yield Shares(self.left, self.y(rank), self.right - self.left, self.lane, colours, parts)

    def _collective_shapes(self, seen: NDArray[np.bool_]) -> Iterator[Shape]:
        timeline = self.timeline
        height = min(5.0, self.lane * 0.24)
        for span in np.flatnonzero(seen & timeline.is_collective).tolist():
            colour = block_colour(Op(int(timeline.op[span])), theme=self.theme)
            a, b = float(self.x(timeline.start[span])), float(self.x(timeline.end[span]))
            y = self.y(int(timeline.rank[span])) + self.lane - height
            yield Box(a, y, max(b - a, 1), height, colour, words=self.tooltip(span))


def _lane_heights(lanes: int, *, is_shared: bool) -> tuple[int, int]:
    """Return the pitch of lanes and the gap between them in pixels; shared lanes have two timelines."""
    pitch = 34 if lanes <= 8 else 24 if lanes <= 24 else 16 if lanes <= 64 else 9
    pitch = round(1.7 * pitch) if is_shared else pitch
    return pitch, 6 if pitch > 20 else 3 if pitch > 12 else 1


def _column_shares(timeline: Timeline, spans: NDArray[np.int64], edges: Floats) -> Floats:
    """Return the fraction of each pixel column that consecutive spans cover, ``[columns]``."""
    start, end = timeline.start[spans], timeline.end[spans]
    covered = mean_heights(start, end, np.ones(len(spans)), edges)
    return np.convolve(
        np.pad(covered, 1, "edge"), np.full(3, 1 / 3), "valid"
    )  # smoothing avoids a moire of blocks and columns


def label_width(label: str) -> float:
    """Return the width in pixels of a label in a block."""
    return len(label) * DIGIT * 10.5 + 5


def _round_up(value: float) -> float:
    """Return the smallest value of the form 1, 2 or 5 times a power of ten that is at least ``value``."""
    power = 10.0 ** floor(log10(value))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= value * 0.9999)


def _shorten(text: str, room: float) -> str:
    most = int(room / 6.6)
    return text if len(text) <= most else text[: most - 1] + "…"
