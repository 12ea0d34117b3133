"""The gallery: every schedule for the open design side by side, to look at and to choose from.

Judging them takes from milliseconds to many seconds, so that it goes on in a thread of its own; the
page gets each as it is found.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import panel as pn
import param

from meshwave.designer.kit.assets import module, read_static
from meshwave.designer.kit.canvas import Overlay, plain_text, value_of
from meshwave.designer.state.background_search import Stopped
from meshwave.designer.state.design_session import Session
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError
from meshwave.engine.exports.pictures.palette import OPS, shades
from meshwave.engine.predict.gallery import Entry, Refused, Variant, gallery, with_variant
from meshwave.engine.predict.gallery_notes import notes
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import WORDS, Op
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.schedules import watched
from meshwave.engine.units import duration, quantity

EXACT = 1_500
"""Computations of a picture that is drawn block by block; of a larger one columns and lanes are drawn."""
COLUMNS, LANES = 160, 16
SENT_EVERY_S = 0.15
LONGEST = 1.8
"""The pictures' common axis ends here, in steps of the fastest: the slowest would make all others small."""
KINDS = {op.name: WORDS[op.name] for op in Op if op.is_compute}


def _op_colours() -> str:
    colours = [f"--op-{op.lower()}: light-dark({OPS['light'][op]}, {OPS['dark'][op]});" for op in KINDS]
    return f".mw-gallery {{ {' '.join(colours)} }}"


class Gallery(Overlay):
    """An overlay that shows every variant of every schedule for the open design.

    What is found travels as messages, since a picture is sent once: ``reset`` with what the design
    is, then ``found`` with cards and what is to be said of all so far, and ``done``.
    """

    pinned = param.List(default=[], item_type=str, doc="Keys of the cards that are pinned, to compare with.")
    words = param.Dict(default=KINDS, constant=True, doc="What each kind of computation is called.")

    _esm = module("gallery.js")
    _stylesheets: ClassVar = [
        read_static("canvas.css"), read_static("shell.css"), read_static("gallery.css"), _op_colours(),
    ]  # fmt: skip
    _gestures = ("close", "choose", "pin")

    def __init__(self, session: Session, **params: Any) -> None:
        super().__init__(**params)
        self._session = session
        self._search: _Search | None = None
        self._pins: dict[str, Design] = {}  # by the key of the card
        self._document = pn.state.curdoc
        session.param.watch(lambda *_: self._follow(), "design")
        session.param.watch(lambda *_: self._mark_pins(), "pinned")

    def open(self) -> None:
        """Show the gallery of the design as it stands."""
        self._open()
        self._follow()

    def stop(self) -> None:
        """End a search that goes on, as when the tab is gone."""
        if self._search is not None:
            self._search.stop()

    def _follow(self) -> None:
        """Search anew where the open design is not what was searched."""
        design = self._session.design
        if not self.shown or (self._search is not None and self._search.design is design):
            return
        self.stop()
        self._pins = {}
        self._mark_pins()
        self._send_msg({"type": "reset", "about": about(design)})
        self._search = _Search(design, tell=self._tell)
        self._search.start()

    def _tell(self, search: _Search, message: Mapping[str, Any]) -> None:
        """Called from the thread of a search: hand a message to the page's own."""

        def send() -> None:
            if search is self._search:
                self._send_msg(dict(message))

        if self._document is None:
            send()
        else:
            self._document.add_next_tick_callback(send)

    # one method a gesture

    def _close(self) -> None:
        """A search that has not come to its end is given up: the page needs the time for edits."""
        super()._close()
        if self._search is not None and not self._search.done:
            self.stop()
            self._search = None

    def _on_choose(self, gesture: Mapping[str, Any]) -> None:
        variant = self._variant(gesture)
        self._close()  # first: what is open follows every edit
        if variant.present:
            return
        try:
            self._session.edit("pipeline", dict(variant.pipeline), f"schedule {variant.title}")
        except InputError:
            self.open()
            raise

    def _on_pin(self, gesture: Mapping[str, Any]) -> None:
        variant = self._variant(gesture)
        prediction = predict(with_variant(self._session.design, variant))
        named = prediction.design.model_copy(update={"name": variant.title})
        self._pins[variant.key] = named
        self._session.pin(replace(prediction, design=named))

    def _mark_pins(self) -> None:
        pinned = [prediction.design for prediction in self._session.pinned]
        self.pinned = [key for key, design in self._pins.items() if design in pinned]

    def _variant(self, gesture: Mapping[str, Any]) -> Variant:
        found = self._search.variants.get(value_of(gesture, "key", plain_text)) if self._search is not None else None
        if found is None:
            raise InputError("this card is of an earlier design; choose again")
        return found


class _Search:
    """A thread that judges the variants of a design, one after the other, and tells of them."""

    def __init__(self, design: Design, tell: Callable[[_Search, Mapping[str, Any]], None]) -> None:
        self.design = design
        self.variants: dict[str, Variant] = {}
        self.done = False
        self._tell = tell
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gallery", daemon=True)

    def start(self) -> None:
        """Begin, once whoever is told knows this search: one that fails at once is heard, too."""
        self._thread.start()

    def stop(self) -> None:
        """Tell no more; what is being judged is finished unheard, but for an order that is searched."""
        self._over.set()

    def wait(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            with watched(self._watch):
                self._judge_all()
        except Stopped:
            return
        except Exception as error:  # a defect of ours: the page must not wait for ever
            traceback.print_exc()
            words = f"The search ended early inside Meshwave ({error!r}). The terminal says more."
            self._tell(self, {"type": "answered", "gesture": "search", "refused": words})
            self._tell(self, {"type": "done"})

    def _watch(self, done: float | None, words: str) -> None:
        if self._over.is_set():
            raise Stopped

    def _judge_all(self) -> None:
        entries: list[Entry] = []
        cards: list[dict[str, Any]] = []
        sent = time.monotonic()
        present: Entry | None = None
        for judged in gallery(self.design):
            if self._over.is_set():
                return
            self.variants[judged.variant.key] = judged.variant
            if isinstance(judged, Entry):
                present = judged if judged.variant.present else present
                cards.append(card(judged, present))
                entries.append(replace(judged, timeline=None))
            else:
                cards.append(refused_card(judged))
            if time.monotonic() - sent > SENT_EVERY_S:
                self._found(cards, entries)
                cards, sent = [], time.monotonic()
        self._found(cards, entries)
        self.done = True
        self._tell(self, {"type": "done"})

    def _found(self, cards: list[dict[str, Any]], entries: list[Entry]) -> None:
        told = [note._asdict() for note in notes(entries)]
        self._tell(self, {"type": "found", "cards": cards, "axis": axis(entries), "notes": told})


# ---- plain functions ----


def about(design: Design) -> str:
    """What the gallery is of, in a few words."""
    meshes = f"{design.ranks} mesh{'' if design.ranks == 1 else 'es'}"
    words = f"{meshes}, {design.pipe.microbatches} microbatches, {design.model.layers} layers, your links and devices"
    return f"{words}; pictures of large steps show {LANES} of the meshes" if design.ranks > LANES else words


def axis(entries: list[Entry]) -> float:
    """The end of the time axis that all pictures have in common."""
    lengths = [entry.makespan_s for entry in entries]
    return min(max(lengths), LONGEST * max(min(lengths), np.finfo(float).tiny)) if lengths else 1.0


def refused_card(refused: Refused) -> dict[str, Any]:
    """A variant that has no numbers."""
    variant = refused.variant
    shown = {"key": variant.key, "schedule": variant.schedule, "title": variant.title, "present": variant.present}
    return {**shown, "reason": refused.reason, "choosable": variant.refusal is None and not variant.present}


def card(entry: Entry, present: Entry | None) -> dict[str, Any]:
    """What is shown of a variant: texts for people, numbers to sort by, and its picture."""
    variant = entry.variant
    return {
        "key": variant.key,
        "schedule": variant.schedule,
        "title": variant.title,
        "present": variant.present,
        "reason": "",
        "choosable": True,
        "fits": entry.fits,
        "iteration": _time(entry.makespan_s, entry.unit),
        "change": _change(entry, present),
        "better": _change(entry, present).startswith("−"),
        "bubble": f"{100 * entry.bubble_ratio:.1f} %",
        "span": f"{100 * entry.span_bubble_ratio:.1f} %",
        "memory": quantity(entry.peak_bytes, "B"),
        "capacity": quantity(entry.capacity_bytes, "B"),
        "filled": entry.peak_bytes / entry.capacity_bytes,
        "traffic": quantity(entry.traffic_bytes, "B"),
        "copies": f"{entry.weight_copies:g} ×",
        "makespan": entry.makespan_s,
        "by": {
            "iteration": entry.makespan_s,
            "bubble": entry.bubble_ratio,
            "memory": entry.peak_bytes,
            "traffic": entry.traffic_bytes,
            "weights": entry.weight_copies,
        },
        "picture": picture(entry.timeline) if entry.timeline is not None else None,
    }


def _time(seconds: float, unit: str) -> str:
    return duration(seconds, unit)


def _change(entry: Entry, present: Entry | None) -> str:
    """Against the present variant; a real minus sign, as beside a number."""
    if present is None or entry is present or not present.makespan_s:
        return ""
    change = entry.makespan_s / present.makespan_s - 1
    if abs(change) < 5e-4:
        return "the same"
    if change > 1:
        return f"{change + 1:.2g} times"
    return f"{'+' if change > 0 else '−'}{100 * abs(change):.1f} %"


# ---- pictures ----


def picture(timeline: Timeline) -> dict[str, Any]:
    """The computations of a step as the columns that ``static/schedules.js`` draws."""
    shown = np.flatnonzero(timeline.is_compute)
    shade = shades(timeline)[timeline.rank[shown], timeline.stage[shown]]
    passes = (shade ^ (shade >> 1)) & 1  # neighbouring passes differ: down and up, chunk and chunk
    if len(shown) > EXACT:
        return _columns(timeline, shown, passes)
    fused = timeline.fused[shown]
    columns = {name: getattr(timeline, name)[shown].tolist() for name in ("rank", "op", "start", "end")}
    halves = 2 * fused.astype(int) + np.append(fused[1:], False)
    drawn = {"shade": passes.tolist(), "half": halves.tolist(), "ranks": timeline.ranks, "makespan": timeline.makespan}
    return {**columns, **drawn}


def _columns(timeline: Timeline, shown: np.ndarray[Any, Any], passes: np.ndarray[Any, Any]) -> dict[str, Any]:
    """What is computed at so many moments on so many of the lanes, runs of the same joined."""
    lanes = np.unique(np.linspace(0, timeline.ranks - 1, min(LANES, timeline.ranks)).round().astype(int))
    width = timeline.makespan / COLUMNS
    runs = [
        (number, *run)
        for number, rank in enumerate(lanes)
        for run in _runs(timeline, shown[timeline.rank[shown] == rank], passes[timeline.rank[shown] == rank], width)
    ]
    rank, op, shade, first, end = zip(*runs, strict=True) if runs else ((),) * 5
    columns = {"rank": list(rank), "op": list(op), "shade": list(shade)}
    times = {"start": [place * width for place in first], "end": [place * width for place in end]}
    return {**columns, **times, "ranks": len(lanes), "makespan": timeline.makespan}


def _runs(
    timeline: Timeline, spans: np.ndarray[Any, Any], passes: np.ndarray[Any, Any], width: float
) -> Iterator[tuple[int, int, int, int]]:
    """Per run of columns alike: op, shade, first column, the one after the last."""
    order = np.argsort(timeline.start[spans], kind="stable")
    spans, passes = spans[order], passes[order]
    moment = (np.arange(COLUMNS) + 0.5) * width
    place = np.searchsorted(timeline.start[spans], moment, side="right") - 1
    busy = (place >= 0) & (timeline.end[spans[place]] > moment)
    kind = np.where(busy, 2 * timeline.op[spans[place]].astype(int) + passes[place], -1)
    edges = [0, *(np.flatnonzero(np.diff(kind)) + 1).tolist(), COLUMNS]
    for first, end in pairwise(edges):
        if kind[first] >= 0:
            yield int(kind[first] >> 1), int(kind[first] & 1), first, end
