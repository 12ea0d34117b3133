"""Comparison of up to four designs side by side: their numbers and differences."""

from __future__ import annotations

from functools import partial
from typing import Any

import param

from meshwave.designer.kit.canvas import Overlay, widget
from meshwave.designer.state.design_session import PIN_LIMIT, Session
from meshwave.designer.state.file_jobs import SMALL_FILE_BYTES, read_upload
from meshwave.designer.views.numbers import STEP_METRICS, metric_tiles
from meshwave.designer.views.topbar import example_entries
from meshwave.engine.document import Design, load_design
from meshwave.engine.document.differences import describe_differences, distinct_titles
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.units import quantity


@widget("panels/comparison.js", "kit/shell.css")
class Comparison(Overlay):
    """An overlay with a column per design: the pinned designs first, the open design last."""

    columns = param.List(default=[], doc="A column per design, as comparison_columns() returns them.")
    figures = param.List(default=[], doc="Key, label and help of each row.")
    room = param.Integer(default=PIN_LIMIT, doc="Number of designs that can still be pinned.")
    examples = param.List(default=[], doc="Examples that can be pinned without opening them.")
    stale = param.Boolean(default=False, doc="True if the open design's column is of an earlier design.")

    def __init__(self, session: Session, **params: Any) -> None:
        rows = [{"key": metric.key, "label": metric.label, "help": metric.help} for metric in STEP_METRICS]
        super().__init__(figures=[*rows, *MORE], examples=[dict(entry) for entry in example_entries()], **params)
        self._session = session
        session.param.watch(lambda *_: self._update_columns(), ["design", "prediction", "pinned"])

    def open(self) -> None:
        """Show the table."""
        self._open()
        self._update_columns()

    def _update_columns(self) -> None:
        if not self.shown:
            return
        session = self._session
        self.param.update(
            columns=comparison_columns(session.pinned, session.prediction),
            room=PIN_LIMIT - len(session.pinned),
            stale=session.is_stale,
        )

    # ---- gestures ----

    def _on_unpin(self, place: int) -> None:
        self._session.unpin(place)

    def _on_pin(self) -> None:
        self._session.pin()

    def _on_end(self) -> None:
        self._session.end_comparison()
        self._close()

    def _on_example(self, name: str) -> None:
        self._pin_design(load_design(example(name)))

    def _on_file(self, text: Any = None) -> None:
        is_small = isinstance(text, str) and len(text) <= SMALL_FILE_BYTES
        self._session.files.process(
            "Reading the file to compare …", partial(read_upload, text), self._pin_design, at_once=is_small
        )

    def _pin_design(self, design: Design) -> None:
        self._session.pin_design(design)


MORE = (
    {
        "key": "weights",
        "label": "Weights",
        "help": "Copies of the weights that each device holds, relative to its share of one model: 2 if two replicas run in opposite directions.",
    },
    {
        "key": "inflight",
        "label": "Activations in flight",
        "help": "Microbatches whose activations the fullest mesh keeps at the same time. The activations of one microbatch in "
        "half of the layers of a mesh count as 0.5.",
    },
)
"""Metrics that the comparison shows in addition to those of the strip of numbers."""


# ---- functions ----


def comparison_columns(pinned: list[Prediction], prediction: Prediction | None) -> list[dict[str, Any]]:
    """Return a column per design: its name, its metrics with their change from the first design, and its differences."""
    shown = [*pinned, *([] if prediction is None else [prediction])]
    titles = distinct_titles([each.design for each in shown])
    return [
        comparison_column(each, title, shown[0], place, is_open=place == len(pinned))
        for place, (each, title) in enumerate(zip(shown, titles, strict=True))
    ]


def comparison_column(
    prediction: Prediction, title: str, first: Prediction, place: int, is_open: bool
) -> dict[str, Any]:
    """Return the column of one design under its title."""
    metrics = {tile["key"]: tile for tile in metric_tiles(prediction, None if place == 0 else first)}
    numbers = prediction.numbers
    copies, inflight = max(numbers["weight_copies"]), max(numbers["peak_inflight"])
    more = {"weights": (f"{copies:g} ×", "copies"), "inflight": (f"{inflight:.3g}", "microbatches at the peak")}
    cells = {key: {name: tile[name] for name in ("value", "small", "change", "wrong")} for key, tile in metrics.items()}
    cells["memory"]["small"] = f"of {quantity(numbers['capacity_bytes'], 'B')}"
    cells |= {
        key: {"value": value, "small": small, "change": None, "wrong": ""} for key, (value, small) in more.items()
    }
    return {
        "place": place,
        "name": title,
        "open": is_open,
        "first": place == 0,
        "cells": cells,
        "differences": []
        if place == 0
        else describe_differences(first.design, prediction.design) or ["no differences"],
    }
