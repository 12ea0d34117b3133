"""The page: its pieces, where they lie, and how they hear of each other."""

from __future__ import annotations

import re
import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np
import panel as pn

from designer.canvases._canvas import read_static
from designer.canvases.cluster import ClusterCanvas
from designer.canvases.wave import WaveCanvas
from designer.forms import Form
from designer.session import Session
from designer.views.numbers import Numbers
from designer.views.problems import Problems
from designer.views.runs import LOOK_EVERY_S, RunsPanel
from designer.views.timeline import Layer, TimelineChart
from designer.views.topbar import TopBar
from engine.design import Design, parse_design, save_design
from engine.errors import MeshwaveError
from engine.launch import Record, launchers, reconcile
from engine.predict import Prediction
from engine.resources import home
from engine.timeline import Timeline

_DRAFT = re.compile(r"[0-9a-f]{12}")


class Studio:
    """What all tabs of one designer share: the launcher, the record of runs, and drafts on disk."""

    def __init__(self, first: Design) -> None:
        self._first = first
        self._drafts = home() / "drafts"
        self._drafts.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.record = Record()
        reconcile(self.record)
        self.launcher = launchers["local"](self.record)
        self.launcher.warm()

    def open(self, draft: str) -> Design:
        """The design that a tab had open before it was reloaded, else the first one."""
        path = self._path(draft)
        try:
            return parse_design(path.read_bytes(), draft=True) if path.exists() else self._first
        except (MeshwaveError, OSError):
            return self._first

    def keep(self, draft: str, design: Design) -> None:
        """Write a draft, so that neither a reload nor a crash loses it."""
        save_design(design, self._path(draft))

    def _path(self, draft: str) -> Path:
        return self._drafts / f"{draft}.json"

    def close(self) -> None:
        self.launcher.close()
        self.record.close()


def page(studio: Studio) -> pn.viewable.Viewable:
    """One tab."""
    pn.config.raw_css = [read_static("app.css")]
    draft = _draft_id()
    session = Session(studio.open(draft))
    widgets = Widgets(session, studio)
    session.param.watch(lambda event: studio.keep(draft, event.new), "design")
    pn.state.add_periodic_callback(widgets.runs.look, period=int(LOOK_EVERY_S * 1000))
    return widgets.layout()


def _draft_id() -> str:
    """The tab's draft by its link; a new tab gets a new one, and with it a link without the token."""
    given = pn.state.session_args.get("draft", [b""])[0].decode("ascii", "ignore")
    if _DRAFT.fullmatch(given):
        return given
    fresh = secrets.token_hex(6)
    pn.state.onload(lambda: _put_in_link(fresh))  # the page takes no link before it stands
    return fresh


def _put_in_link(draft: str) -> None:
    if pn.state.location is not None:
        pn.state.location.search = f"?draft={draft}"


class Widgets:
    """The pieces of one tab, bound to its session."""

    def __init__(self, session: Session, studio: Studio) -> None:
        self.session = session
        fill = {"sizing_mode": "stretch_both"}
        # Those who listen first are drawn first: an edit is answered by the timeline and the numbers.
        self.timeline = TimelineChart(**fill)
        session.param.watch(lambda *_: self._show_timeline(), ["prediction", "problems", "pinned", "measured"])
        self.numbers = Numbers(session, **fill)
        self.cluster = ClusterCanvas(on_edit=session.edit, **fill)
        self.wave = WaveCanvas(on_edit=session.edit, **fill)
        session.param.watch(lambda *_: self._show_design(), ["design", "prediction", "problems"])
        self.topbar = TopBar(session, on_launch=lambda: self.runs.bar.focus_button(), **fill)
        self.form = Form(session, **fill)
        self.problems = Problems(session, on_focus=self._focus, **fill)
        self.runs = RunsPanel(session, studio.launcher, studio.record, on_launch=lambda: self._turn_to(RUN), **fill)
        self.side = pn.Tabs(
            ("Design", self.form), ("Run", self.runs), ("Problems", self.problems),
            stylesheets=[read_static("side.css")], **fill,
        )  # fmt: skip
        self.problems.param.watch(lambda *_: self._show_badge(), "badge")
        self._show_badge()
        self._show_design()
        self._show_timeline()

    def _show_design(self) -> None:
        session = self.session
        self.cluster.show(session.design.model_dump(mode="json"))
        if session.stale:
            self.wave.show(session.design)  # the last sound stages stay; another schedule can be chosen
        else:
            self.wave.show(session.design, session.prediction.program, session.prediction.costs)

    def _show_timeline(self) -> None:
        session = self.session
        stale = str(session.errors[0]) if session.errors and session.stale else ""
        self.timeline.show(layers(session), stale)

    def _focus(self, path: str) -> None:
        """Bring the field of a problem to the front."""
        if self.form.focus_field(path):
            self._turn_to(DESIGN)

    def _turn_to(self, tab: int) -> None:
        self.side.active = tab

    def _show_badge(self) -> None:
        badge = self.problems.badge
        self.side[PROBLEMS] = (f"Problems ({badge})" if badge else "Problems", self.problems)

    def layout(self) -> pn.viewable.Viewable:
        """All on one screen."""
        areas = {
            "top": self.topbar, "numbers": self.numbers, "launch": self.runs.bar, "cluster": self.cluster,
            "wave": self.wave, "timeline": self.timeline, "side": self.side,
        }  # fmt: skip
        for area, view in areas.items():
            view.styles = {**view.styles, "grid-area": area, "min-width": "0", "min-height": "0"}
        return pn.Column(*areas.values(), sizing_mode="stretch_both", styles=GRID)


DESIGN, RUN, PROBLEMS = range(3)  # the tabs of the side panel

GRID = {
    "display": "grid",
    "height": "100vh",
    "width": "100vw",
    "box-sizing": "border-box",
    "gap": "1px",
    "grid-template-columns": "minmax(0, 2fr) minmax(0, 3fr) 320px",
    "grid-template-rows": "44px 66px minmax(0, 300px) minmax(0, 1fr)",
    "grid-template-areas": '"top top top" "numbers numbers launch" "cluster wave side" "timeline timeline side"',
    "background": "var(--mw-line)",
}


def layers(session: Session) -> list[Layer]:
    """What the timeline shows: the pinned design above the open one, and a run laid over that."""
    shown = []
    if session.pinned is not None and _same_axis(session):
        shown.append(_layer(session.pinned, f"Pinned: {session.pinned.design.name}"))
    if session.prediction is not None:
        shown.append(_layer(session.prediction, session.prediction.design.name))
        if session.measured is not None:
            shown.append(_measured(session.measured, session.prediction))
    return shown


def _same_axis(session: Session) -> bool:
    """Units and seconds have no axis in common; the numbers still tell what changed."""
    return session.prediction is None or session.pinned.costs.unit == session.prediction.costs.unit


def _measured(timeline: Timeline, prediction: Prediction) -> Layer:
    """A run over the prediction; unit costs are no seconds, so there it is stretched to the same length."""
    unit = prediction.costs.unit
    if unit == "s" or not timeline.makespan:
        return Layer(timeline, "Measured", unit=unit, over=True)
    stretch = prediction.timeline.makespan / timeline.makespan
    stretched = replace(timeline, start=timeline.start * stretch, end=timeline.end * stretch)
    return Layer(stretched, "Measured, stretched to the predicted length", unit=unit, over=True)


def _layer(prediction: Prediction, label: str) -> Layer:
    timeline = prediction.timeline
    critical = np.zeros(len(timeline), np.bool_)
    critical[timeline.critical_path] = True
    return Layer(
        timeline,
        label,
        memory=prediction.memory_curves,
        capacity=prediction.costs.capacity_bytes,
        critical=critical,
        stages_layers=prediction.costs.layers,
        unit=prediction.costs.unit,
        bytes=prediction.costs.bytes[prediction.program.spans],
    )

