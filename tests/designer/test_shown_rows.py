"""Timelines and rows that a page reports are read only if they are those of the chart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwave.designer.pages.timeline_layers import timeline_layers
from meshwave.designer.state.design_session import Session
from meshwave.designer.views.shown_rows import read_shown_timelines
from meshwave.designer.views.timeline import TimelineChart
from meshwave.engine.document import load_design
from meshwave.engine.errors import InputError
from meshwave.engine.exports.pictures.rows import Row, ShownTimeline, whole_step
from meshwave.engine.files import example

LANES = {"kind": "lanes", "ranks": [3, 0]}


@pytest.fixture
def session() -> Session:
    session = Session(load_design(example("03-gpt-on-two-cores")))
    session.pin()
    session.measured = replace(session.prediction.timeline, source="measured")
    return session


@pytest.fixture
def chart(session: Session) -> TimelineChart:
    """The chart of a pinned design, the open one, and a run of it."""
    chart = TimelineChart()
    chart.show(timeline_layers(session))
    chart.shown_rows = report(chart, [LANES], [LANES], [])
    return chart


def report(chart: TimelineChart, *rows: list[Any]) -> list[dict[str, Any]]:
    """Return the layers as a page reports them, the last one over the one before."""
    digests = [layer.timeline.digest for layer in chart.layers]
    over = [at == len(rows) - 1 for at in range(len(rows))]
    return [{"digest": each, "over": on, "rows": of} for each, on, of in zip(digests, over, rows, strict=True)]


def test_the_timelines_of_the_chart_are_read_with_their_rows(session: Session, chart: TimelineChart) -> None:
    name, rows = session.design.name, (Row("lanes", ranks=(3, 0)),)

    assert read_shown_timelines(chart, session.prediction) == (
        ShownTimeline(session.prediction.timeline, f"Pinned: {name}", rows, session.prediction),
        ShownTimeline(session.prediction.timeline, name, rows, session.prediction),
        ShownTimeline(session.measured, "Measured", (), None, over=True),
    )


def test_timelines_that_the_page_hides_are_left_out(session: Session, chart: TimelineChart) -> None:
    hidden = report(chart, [], [LANES], [])
    chart.shown_rows = [each | {"over": False} for each in hidden]

    assert [each.label for each in read_shown_timelines(chart, session.prediction)] == [session.design.name]


def test_rows_of_other_timelines_are_not_used(session: Session, chart: TimelineChart) -> None:
    whole = whole_step(session.prediction)
    chart.shown_rows = chart.shown_rows[1:]
    assert read_shown_timelines(chart, session.prediction) == whole

    chart.show(timeline_layers(Session(load_design(example("04-chimera")))))
    chart.shown_rows = report(chart, [LANES])
    assert read_shown_timelines(chart, session.prediction) == whole


@pytest.mark.parametrize(
    "row", [{"kind": "lanes", "ranks": [4]}, {"kind": "memory"}, {"kind": "links", "ports": []}, {"kind": "x"}, None]
)
def test_invalid_rows_are_refused(session: Session, chart: TimelineChart, row: Any) -> None:
    chart.shown_rows = report(chart, [LANES], [row], [])

    with pytest.raises(InputError, match="rows"):
        read_shown_timelines(chart, session.prediction)
