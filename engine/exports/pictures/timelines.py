"""Pictures of timelines: one, or several above each other on one axis."""

from __future__ import annotations

from collections.abc import Sequence

from meshwave.engine.exports.pictures.palette import Theme
from meshwave.engine.exports.pictures.rows import Row, ShownTimeline, Strips
from meshwave.engine.exports.pictures.shapes import Picture
from meshwave.engine.exports.pictures.sheet import MARGIN, STRIP_GUTTER, TOP, Extent, Sheet
from meshwave.engine.findings import Refusal

GAP = 8  # pixels between timelines


def lay_out_timelines(
    shown: Sequence[ShownTimeline],
    *,
    title: str = "",
    unit: str = "s",
    window: tuple[float, float] | None = None,
    width: int = 1440,
    theme: Theme = "light",
    dense: bool = True,
) -> Picture:
    """Return the picture of timelines.

    Args:
        shown: the timelines from top to bottom.
        title: title of the picture.
        unit: unit of its times: ``s``, or ``units`` for unit costs.
        window: start and end in seconds; None for all spans.
        width: width of the whole sheet in pixels; its height follows from the number of lanes.
        theme: colour theme.
        dense: True to paint blocks that are too thin as shares of pixel columns.

    Raises:
        InputError: a timeline or the window is empty.
    """
    if not all(len(each.timeline) for each in shown):
        raise Refusal("empty_timeline")
    starts, ends = ([float(bound) for bound in bounds] for bounds in zip(*map(_bounds, shown), strict=True))
    start, end = window or (min(0.0, *starts), max(ends))
    if not end > start:
        raise Refusal("empty_window", {"start": start, "end": end})
    sheets = _sheets(shown, Extent(start, end, width, unit, theme))
    first, bottom = sheets[0], sheets[-1].bottom
    legend = {words: colour for sheet in sheets for words, colour in sheet.legend_entries().items()}
    figures = first.heading_figures() if len(sheets) == 1 else ""
    shapes = [*first.frame_shapes(title, figures, legend, bottom)]
    for sheet in sheets:
        shapes += sheet.content_shapes(dense)
    return Picture(width, bottom + MARGIN, theme, shapes)


def _bounds(each: ShownTimeline) -> tuple[float, float]:
    return each.timeline.start.min(), each.timeline.end.max()


def _sheets(shown: Sequence[ShownTimeline], extent: Extent) -> list[Sheet]:
    """Return a sheet per timeline, each below the one before or in the lower halves of its lanes."""
    has_titles = len(shown) > 1
    is_wide = has_titles or any(row.kind != "lanes" for each in shown for row in each.drawn_rows)
    gutter = STRIP_GUTTER if is_wide else None
    sheets: list[Sheet] = []
    top = TOP
    for each, below in zip(shown, [*shown[1:], None], strict=True):
        if each.over:
            upper = sheets[-1]
            sheets.append(Sheet(each.timeline, extent, upper.rows, top=upper.top, gutter=gutter, half=1))
            continue
        half = 0 if below is not None and below.over else None
        draw_strip = None if each.prediction is None else Strips(each.prediction).draw
        rows = (_title(each, below if half == 0 else None, extent), *each.drawn_rows) if has_titles else each.drawn_rows
        sheets.append(Sheet(each.timeline, extent, rows, draw_strip, top=top, gutter=gutter, half=half))
        top = sheets[-1].bottom + GAP
    return sheets


def _title(each: ShownTimeline, over: ShownTimeline | None, extent: Extent) -> Row:
    """Return the row above a timeline: its name and figures, and those of the timeline over it."""
    both = [each, *([over] if over else [])]
    figures = [Sheet(one.timeline, extent, ()).heading_figures() for one in both]
    note = figures[0] if over is None else f"{figures[0]} (upper half); {over.label}: {figures[1]} (lower half)"
    return Row("title", each.label, note)
