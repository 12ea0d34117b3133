"""Timelines of a step; the Python side of ``static/timeline/timeline.js``."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import param
from panel.custom import JSComponent

from meshwave.designer.kit.assets import module_code, style_sheets
from meshwave.designer.kit.canvas import parse_integers, plain_text, read_value
from meshwave.designer.kit.defects import defect_text
from meshwave.designer.views.timeline_columns import Layer, pack_layers
from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.exports.pictures.palette import as_data
from meshwave.engine.findings import Refusal
from meshwave.engine.predict.questions import Inspector, rank_changes
from meshwave.engine.program.action import Action, Op

LARGE_PROGRAM_ROWS = 200_000  # rows from which a simulation takes a noticeable time


@dataclass(frozen=True)
class Pin:
    """The pinned span: index of the layer, rank and action."""

    layer: int
    rank: int
    action: Action


class TimelineChart(JSComponent):
    """Widget with timelines on a common axis, a lane per mesh, and the memory below.

    Columns are sent as bytes in one parameter; pins are received as messages.
    """

    packed = param.Bytes(default=b"", doc="Packed columns of the timeline; if empty, the placeholder text is shown.")
    stale = param.String(default="", doc="Reason why the timeline is not of the current design; empty if it is.")
    empty = param.String(default="Draw a mesh to see its timeline")
    show_memory = param.Boolean(default=True)
    show_critical = param.Boolean(default=False)
    show_transfers = param.Boolean(default=True)
    show_links = param.Boolean(default=False, doc="Show lanes of NICs and links with the share of each message.")
    show_device_links = param.Boolean(default=False, doc="Show the lanes of each device in addition to those of nodes.")
    flags = param.List(default=[], doc="Rank, op, stage and microbatch of marked blocks, with a colour and a text.")
    notes = param.List(default=[], doc="Notes on times and areas; see ``timeline_notes``.")
    can_note = param.Boolean(default=False, doc="True if notes can be added on this page.")
    opened = param.Integer(
        default=0, doc="Counter of opened documents; when it changes, all lanes are shown and unpinned."
    )
    can_edit = param.Boolean(default=False, doc="True if the order of the open design can be edited by hand.")
    slow_lanes = param.Dict(default={}, doc="By mesh, why a run is slow there; its measured lanes are marked.")
    shown_rows = param.List(default=[], doc="Layers and rows that the page shows; see ``read_shown_timelines``.")
    palette = param.Dict(default=as_data(), constant=True)

    _esm = module_code("timeline/timeline.js")
    _stylesheets: ClassVar = style_sheets(
        "kit/shell.css", "timeline/timeline.css", "timeline/edit.css", "timeline/depth.css"
    )

    def __init__(
        self,
        on_pin: Callable[[Pin | None], None] | None = None,
        on_open: Callable[[Pin | None], None] | None = None,
        **params: Any,
    ) -> None:
        """Create the chart.

        Args:
            on_pin: called with the pinned span, and with None when it is unpinned.
            on_open: called with the block whose inside should be shown, and with None to go back.
            **params: parameters of the widget.
        """
        super().__init__(**params)  # type: ignore[no-untyped-call]
        self._on_pin, self._on_open = on_pin, on_open
        self.on_order: Callable[[Mapping[str, Any]], None] | None = None  # handles requests of the edit mode
        self.on_note: Callable[[Mapping[str, Any]], str] | None = None  # adds a note; returns why it is refused
        self._inspectors: list[tuple[Layer, Inspector]] = []

    def show(self, layers: Sequence[Layer], stale: str = "", crumbs: Sequence[str] = ()) -> None:  # type: ignore[override]
        """Draw layers; the visible range stays the same if possible.

        ``stale`` is the reason why the layers are not of the current design, ``crumbs`` is the navigation path from
        the iteration to the inside of a block.
        """
        self._inspectors = [
            (layer, Inspector(layer.timeline, layer.bytes, layer.unit, layer.find_flows)) for layer in layers
        ]
        self.param.update(packed=pack_layers(layers, crumbs), stale=stale)

    @property
    def layers(self) -> list[Layer]:
        """The layers that are drawn."""
        return [layer for layer, _ in self._inspectors]

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message to the page."""
        self._send_msg(dict(message))

    def _handle_msg(self, message: Mapping[str, Any]) -> None:
        kind = message.get("type")
        if kind == "ask":
            self._send_msg({"type": "told", "ask": message.get("ask"), **self._answer(message)})
        elif kind == "unpin" and self._on_pin is not None:
            self._on_pin(None)
        elif kind == "pin" and self._on_pin is not None:
            self._on_pin(_read_pin(message))
        elif kind == "order" and self.on_order is not None:
            self.on_order(message)
        elif kind in ("open", "back") and self._on_open is not None:
            self._open_block(message)
        elif kind == "note" and self.on_note is not None:
            self.send({"type": "noted", "refused": self.on_note(message)})

    def _open_block(self, message: Mapping[str, Any]) -> None:
        """Show the inside of a block, or the step again; a refusal is sent to the page."""
        assert self._on_open is not None
        try:
            self._on_open(_read_pin(message) if message["type"] == "open" else None)
        except MeshwaveError as error:
            self.send({"type": "not-opened", "words": str(error)})

    def _answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a question of the page, or the reason why there is none."""
        try:
            number = read_value(question, "layer", int)
            if not 0 <= number < len(self._inspectors):
                return {"refused": "that timeline is no longer shown"}
            return {"found": read_value(question, "what", QUESTIONS.__getitem__)(*self._inspectors[number], question)}
        except InputError as error:
            return {"refused": str(error)}
        except Exception as error:  # an internal error must not leave the page waiting
            traceback.print_exc()
            return {"refused": defect_text(error)}


def _selection_answer(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> dict[str, Any]:
    ranks = read_value(question, "ranks", parse_integers)
    return ask.summarize_area(read_value(question, "start", float), read_value(question, "end", float), ranks).as_data()


def _idle_answer(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> dict[str, Any] | None:
    rank = read_value(question, "rank", int)
    found = ask.explain_idle(rank, read_value(question, "at", float)) if 0 <= rank < layer.timeline.ranks else None
    return found.as_data() if found else None


def _path_answer(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> dict[str, Any]:
    timeline = layer.timeline
    bubbles = {"bubble_ratio": timeline.bubble_ratio, "span_bubble_ratio": timeline.span_bubble_ratio}
    return {**ask.path.as_data(), **bubbles, "by_port_s": ask.seconds_by_port(), "can_change": layer.priced is not None}


def _what_if_answer(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> list[dict[str, Any]]:
    if layer.priced is None:
        raise Refusal("measured_what_if")
    program, costs = layer.priced
    faster = read_value(question, "faster", float)
    if not 0 < faster < 1:
        raise Refusal("saved_share_out_of_range", {"share": faster})
    most = 8 if len(program) < LARGE_PROGRAM_ROWS else 4
    return [answer.as_data() for answer in rank_changes(program, costs, ask.path, faster, most)]


def _search_answer(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> dict[str, Any]:
    return ask.parse_query(read_value(question, "text", plain_text)).as_data()


def _limit_answer(layer: Layer, ask: Inspector, question: Mapping[str, Any]) -> str:
    """Return a description of the port that limits a message or an exchange; empty if unknown."""
    timeline = layer.timeline
    names = ("rank", "op", "stage", "microbatch", "other")
    columns = (timeline.rank, timeline.op, timeline.stage, timeline.microbatch, timeline.other)
    same = np.all(
        [column == read_value(question, name, int) for name, column in zip(names, columns, strict=True)], axis=0
    )
    found = [
        ask.find_limit(span, read_value(question, "start", float), read_value(question, "end", float))
        for span in np.flatnonzero(same)[:1].tolist()
    ]
    words = (
        f"it is {limit.description}" if limit.is_delayed else "no other message slows it down"
        for limit in found
        if limit
    )
    return next(words, "")


Question = Callable[[Layer, Inspector, Mapping[str, Any]], Any]

QUESTIONS: Mapping[str, Question] = {
    "area": _selection_answer, "idle": _idle_answer, "path": _path_answer, "what_if": _what_if_answer, "find": _search_answer, "limit": _limit_answer,
}  # fmt: skip
"""Questions that the page can ask about a layer; the answers are plain data, computed in Python."""


def _read_pin(message: Mapping[str, Any]) -> Pin:
    stage, microbatch, layer, rank = (read_value(message, key, int) for key in ("stage", "microbatch", "layer", "rank"))
    other = read_value({"other": -1, **message}, "other", int)  # the target stage of a message that skips stages
    return Pin(layer, rank, Action(read_value(message, "op", Op.__getitem__), stage, microbatch, other=other))
