"""Timelines and rows that the page shows, so that exported pictures have the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from meshwave.designer.views.timeline import TimelineChart
from meshwave.engine.exports.pictures.rows import Row, ShownTimeline, whole_step
from meshwave.engine.findings import Refusal
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.timeline import Timeline


class _Shown(NamedTuple):
    """A layer as the page reports it; one without rows is hidden, unless it is drawn over the one before."""

    digest: str
    over: bool = False
    rows: tuple[Row, ...] = ()


_SHOWN = TypeAdapter(tuple[_Shown, ...])
_NEEDED = {"summary": "ranks", "memory": "ranks", "links": "ports"}


def read_shown_timelines(chart: TimelineChart, prediction: Prediction) -> tuple[ShownTimeline, ...]:
    """Return the timelines that a chart shows, or all lanes of the exported prediction if it shows others.

    Raises:
        Refusal: the report is invalid, for example because the page is of another version.
    """
    try:
        shown = _SHOWN.validate_python(chart.shown_rows)
    except ValidationError as error:
        raise Refusal("invalid_gesture", {"key": "rows"}) from error
    layers = chart.layers
    is_current = [each.digest for each in shown] == [layer.timeline.digest for layer in layers]
    if not is_current or all(layer.timeline is not prediction.timeline for layer in layers):
        return whole_step(prediction)
    for each, layer in zip(shown, layers, strict=True):
        _check_rows(each.rows, layer.timeline)
    return tuple(
        ShownTimeline(layer.timeline, layer.label, each.rows, layer.prediction, each.over)
        for each, layer in zip(shown, layers, strict=True)
        if each.over or each.rows
    )


def _check_rows(rows: Sequence[Row], timeline: Timeline) -> None:
    if not all(map(_is_complete, rows)) or not all(0 <= rank < timeline.ranks for row in rows for rank in row.ranks):
        raise Refusal("invalid_gesture", {"key": "rows"})


def _is_complete(row: Row) -> bool:
    return row.kind not in _NEEDED or bool(getattr(row, _NEEDED[row.kind]))
