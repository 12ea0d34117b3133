"""Picture of predicted and measured step times, with a dot for each design and bands for the accuracy targets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, floor, log10, sqrt

from meshwave.engine.bench.accuracy.cases import Way
from meshwave.engine.bench.accuracy.results import Result
from meshwave.engine.bench.accuracy.summary import MEDIAN_AIM, TAIL_AIM
from meshwave.engine.exports.pictures.palette import OPS, SURFACES, Theme, mix_colours
from meshwave.engine.exports.pictures.shapes import Box, Line, Picture, Shape, Text
from meshwave.engine.exports.svg import theme_aware_svg
from meshwave.engine.findings import Refusal
from meshwave.engine.units import quantity

WIDTH, MARGIN, HEAD, FOOT = 1080, 24, 96, 44  # pixels
SQUARE, NAMES, BEYOND, ROW = 360, 190, 44, 23
DOT = 7
WIDEST = 0.12
"""Error at the edges of the right-hand chart; a larger error is drawn at the edge, with its value."""
TITLE = "Predicted and measured step times"
WAYS: Mapping[Way, str] = {"rehearsed": "dry runs: stages wait, messages are real", "measured": "measured runs"}
_KINDS: Mapping[Way, str] = {"rehearsed": "dry run", "measured": "measured"}
BANDS = ((TAIL_AIM, 0.12), (MEDIAN_AIM, 0.26))
"""Relative half width and colour opacity of each band."""


def draw_svg(results: Sequence[Result]) -> str:
    """Return a picture of results in a light and a dark theme, as SVG.

    Raises:
        InputError: there are no results.
    """
    if not results:
        raise Refusal("no_accuracy_results")
    return theme_aware_svg(_make_picture(results, "light"), _make_picture(results, "dark"), TITLE) + "\n"


def _make_picture(results: Sequence[Result], theme: Theme) -> Picture:
    sheet = _Sheet(results, theme)
    return Picture(WIDTH, sheet.height, theme, list(sheet.shapes()))


class _Sheet:
    """Chart of measured against predicted wall time on the left, and of errors by group on the right."""

    def __init__(self, results: Sequence[Result], theme: Theme) -> None:
        self.results, self.colours = results, SURFACES[theme]
        self.dot: Mapping[Way, str] = {"rehearsed": OPS[theme]["F"], "measured": OPS[theme]["B"]}
        self.band = OPS[theme]["W"]
        self.groups = list(dict.fromkeys(result.group for result in results))
        self.top = HEAD
        self.row = max(ROW, SQUARE / len(self.groups))
        self.bottom = self.top + round(self.row * len(self.groups))
        self.height = self.bottom + FOOT
        self.left, self.right = MARGIN + 48, WIDTH - MARGIN - BEYOND
        self.strip = self.left + SQUARE + NAMES + BEYOND
        times = [seconds for result in results for seconds in _wall_seconds(result)]
        self.low, self.high = log10(min(times)) - 0.06, log10(max(times)) + 0.06

    def shapes(self) -> Iterator[Shape]:
        yield from self._heading()
        yield from self._scatter_chart()
        yield from self._error_chart()

    def _heading(self) -> Iterator[Shape]:
        yield Text(MARGIN, MARGIN + 4, TITLE, self.colours["text"], 16, bold=True)
        count = {way: sum(result.way == way for result in self.results) for way in WAYS}
        entries = [
            *((self.dot[way], f"{count[way]} {words}", DOT / 2) for way, words in WAYS.items() if count[way]),
            *(
                (mix_colours(self.colours["background"], self.band, part), f"within {aim:.0%}", 2)
                for aim, part in reversed(BANDS)
            ),
        ]
        x, y = float(MARGIN), MARGIN + 32
        for colour, words, radius in entries:
            yield Box(x, y - DOT / 2, DOT, DOT, colour, radius)
            yield Text(x + DOT + 6, y, words, self.colours["muted"], 12)
            x += DOT + 6 + 6.6 * len(words) + 22

    # ---- measured over predicted ----

    def _offset(self, seconds: float) -> float:
        """Return the distance of a wall time from the corner of the square, in pixels."""
        return (log10(seconds) - self.low) / (self.high - self.low) * SQUARE

    def _scatter_chart(self) -> Iterator[Shape]:
        left, base = self.left, self.top + SQUARE
        per_decade = SQUARE / (self.high - self.low)
        for aim, part in BANDS:
            wide = sqrt(2) * log10(1 + aim) * per_decade
            yield Line(
                left, base, left + SQUARE, self.top, mix_colours(self.colours["background"], self.band, part), wide
            )
        yield Line(left, base, left + SQUARE, self.top, self.colours["muted"], 0.8)
        for seconds in _tick_values(self.low, self.high):
            at, words = self._offset(seconds), quantity(seconds, "s", 1)
            yield Line(left + at, self.top, left + at, base, self.colours["line"], 0.6)
            yield Line(left, base - at, left + SQUARE, base - at, self.colours["line"], 0.6)
            yield Text(left + at, base + 14, words, self.colours["muted"], 10.5, "middle")
            yield Text(left - 8, base - at, words, self.colours["muted"], 10.5, "end")
        yield Text(left + SQUARE, base + 32, "predicted (wall time)", self.colours["muted"], 12, "end")
        yield Text(left + 6, self.top - 12, "measured", self.colours["muted"], 12)
        for result in self.results:
            predicted, measured = _wall_seconds(result)
            yield self._result_box(result, left + self._offset(predicted), base - self._offset(measured))

    # ---- errors by group ----

    def _error_chart(self) -> Iterator[Shape]:
        middle, half = (self.strip + self.right) / 2, (self.right - self.strip) / 2
        base = self.bottom
        for aim, part in BANDS:
            wide = aim / WIDEST * half
            yield Box(
                middle - wide,
                self.top,
                2 * wide,
                base - self.top,
                mix_colours(self.colours["background"], self.band, part),
            )
        for percent in (-8, -3, 0, 3, 8):
            x = middle + percent / 100 / WIDEST * half
            yield Line(x, self.top, x, base, self.colours["muted" if percent == 0 else "line"], 0.8)
            words = f"{percent:+d}%" if percent else "0"
            yield Text(x, self.top - 12, words, self.colours["muted"], 10.5, "middle")
        for row, group in enumerate(self.groups):
            y = self.top + self.row * (row + 0.5)
            yield Text(self.strip - BEYOND, y, group, self.colours["text"], 12, "end")
            yield Line(self.strip, y, self.right, y, self.colours["line"], 0.6)
            yield from self._result_row_shapes(
                [result for result in self.results if result.group == group], y, middle, half
            )
        yield Text(self.right, base + 14, "longer than predicted", self.colours["muted"], 12, "end")
        yield Text(self.strip, base + 14, "shorter", self.colours["muted"], 12)

    def _result_row_shapes(self, results: Iterable[Result], y: float, middle: float, half: float) -> Iterator[Shape]:
        for result in sorted(results, key=lambda result: result.error):
            x = middle + max(-1.0, min(1.0, result.error / WIDEST)) * half
            yield self._result_box(result, x, y)
        beyond = [result.error for result in results if abs(result.error) > WIDEST]
        for side, anchor in ((1, "start"), (-1, "end")):
            far = [error for error in beyond if error * side > 0]
            if far:
                worst = max(far, key=abs)
                yield Text(middle + side * (half + 8), y, f"{worst:+.0%}", self.colours["text"], 10.5, anchor)

    def _result_box(self, result: Result, x: float, y: float) -> Box:
        predicted, measured = (quantity(seconds, "s") for seconds in _wall_seconds(result))
        label = f"{result.case}: predicted {predicted}, {_KINDS[result.way]} {measured}, {result.error:+.1%}"
        return Box(x - DOT / 2, y - DOT / 2, DOT, DOT, self.dot[result.way], DOT / 2, label)


def _wall_seconds(result: Result) -> tuple[float, float]:
    """Return the predicted and the measured wall time of a step in seconds."""
    scale = result.scale or 1.0
    return result.predicted * scale, result.measured * scale


def _tick_values(low: float, high: float) -> Iterator[float]:
    """Yield 1, 2 and 5 times each power of ten between two base-10 logarithms."""
    for power in range(floor(low), ceil(high) + 1):
        for digit in (1, 2, 5):
            if low <= log10(digit) + power <= high:
                yield digit * 10.0**power
