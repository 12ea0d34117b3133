"""Up to four designs side by side: their numbers, and what they differ in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import param

from meshwave.designer.kit.assets import module, read_static
from meshwave.designer.kit.canvas import Overlay, plain_text, value_of
from meshwave.designer.state.design_session import PIN_LIMIT, Session
from meshwave.designer.state.file_jobs import SMALL_FILE_BYTES, read_upload
from meshwave.designer.views.numbers import FIGURES, tiles
from meshwave.designer.views.topbar import example_entries
from meshwave.engine.document import Design, load_design
from meshwave.engine.document.differences import differences
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.units import quantity


class Comparison(Overlay):
    """An overlay with a column a design: those that are pinned, and the open one last."""

    columns = param.List(default=[], doc="See columns().")
    figures = param.List(default=[], doc="Key, label and help of each row.")
    room = param.Integer(default=PIN_LIMIT, doc="How many more can be pinned.")
    examples = param.List(default=[], doc="Designs that can be pinned without being opened.")
    stale = param.Boolean(default=False, doc="Whether the open design's column is of an earlier one.")

    _esm = module("panels/comparison.js")
    _stylesheets: ClassVar = [
        read_static("kit/canvas.css"),
        read_static("kit/shell.css"),
        read_static("panels/comparison.css"),
    ]
    _gestures = ("close", "unpin", "pin", "end", "example", "file")

    def __init__(self, session: Session, **params: Any) -> None:
        rows = [{"key": figure.key, "label": figure.label, "help": figure.help} for figure in FIGURES]
        super().__init__(figures=[*rows, *MORE], examples=[dict(entry) for entry in example_entries()], **params)
        self._session = session
        session.param.watch(lambda *_: self._show(), ["design", "prediction", "pinned"])

    def open(self) -> None:
        """Show the table."""
        self._open()
        self._show()

    def _show(self) -> None:
        if not self.shown:
            return
        session = self._session
        self.param.update(
            columns=columns(session.pinned, session.prediction),
            room=PIN_LIMIT - len(session.pinned),
            stale=session.stale,
        )

    # one method a gesture

    def _on_unpin(self, gesture: Mapping[str, Any]) -> None:
        self._session.unpin(value_of(gesture, "place", int))

    def _on_pin(self, gesture: Mapping[str, Any]) -> None:
        self._session.pin()

    def _on_end(self, gesture: Mapping[str, Any]) -> None:
        self._session.end_comparison()
        self._close()

    def _on_example(self, gesture: Mapping[str, Any]) -> None:
        self._add(load_design(example(value_of(gesture, "name", plain_text))))

    def _on_file(self, gesture: Mapping[str, Any]) -> None:
        text = gesture.get("text")
        is_small = isinstance(text, str) and len(text) <= SMALL_FILE_BYTES
        self._session.beside(
            "Reading a file to compare with …", partial(read_upload, text), self._add, at_once=is_small
        )

    def _add(self, design: Design) -> None:
        self._session.pin_design(design)


MORE = (
    {
        "key": "weights",
        "label": "Weights",
        "help": "Copies of a device's share of the model's weights: 2 where two replicas run in opposite directions.",
    },
    {
        "key": "inflight",
        "label": "In flight",
        "help": "The most stage activations alive at once on a mesh, in shares of the model of one device.",
    },
)
"""Rows beyond those of the strip of numbers."""


# ---- plain functions ----


def columns(pinned: list[Prediction], prediction: Prediction | None) -> list[dict[str, Any]]:
    """A column a design: its name, its figures with their change against the first, and what differs, in words."""
    shown = [*pinned, *([] if prediction is None else [prediction])]
    return [column(each, shown[0], place, is_open=place == len(pinned)) for place, each in enumerate(shown)]


def column(prediction: Prediction, first: Prediction, place: int, is_open: bool) -> dict[str, Any]:
    figures = {tile["key"]: tile for tile in tiles(prediction, None if place == 0 else first)}
    numbers = prediction.numbers
    copies, inflight = max(numbers["weight_copies"]), max(numbers["peak_inflight"])
    more = {"weights": (f"{copies:g} ×", "copies"), "inflight": (f"{inflight:.3g}", "shares of the model")}
    cells = {key: {name: tile[name] for name in ("value", "small", "change", "wrong")} for key, tile in figures.items()}
    cells["memory"]["small"] = f"of {quantity(numbers['capacity_bytes'], 'B')}"
    cells |= {
        key: {"value": value, "small": small, "change": None, "wrong": ""} for key, (value, small) in more.items()
    }
    return {
        "place": place,
        "name": prediction.design.name,
        "open": is_open,
        "first": place == 0,
        "cells": cells,
        "differences": [] if place == 0 else differences(first.design, prediction.design) or ["the same document"],
    }
