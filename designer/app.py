"""The page: its pieces, where they lie, and how they hear of each other."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import panel as pn
from bokeh.document import Document

from designer.assets import HEAD, read_static
from designer.calibrating import Calibrating
from designer.canvases.cluster import ClusterCanvas
from designer.canvases.experts import ExpertsCanvas
from designer.canvases.wave import WaveCanvas
from designer.drawing import Drawing
from designer.forms import Form
from designer.lab.over import Crossings
from designer.routed import Routings
from designer.search import Later, in_words
from designer.session import Session
from designer.views.comparison import Comparison
from designer.views.expert_schedules import ExpertSchedules
from designer.views.gallery import Gallery
from designer.views.layers import inside_of, measured_block
from designer.views.links import links_of
from designer.views.numbers import Numbers
from designer.views.problems import Problems
from designer.views.profile import Profiles
from designer.views.runs import LOOK_EVERY_S, RunsPanel
from designer.views.side import Side
from designer.views.timeline import Layer, Pin, TimelineChart
from designer.views.topbar import TopBar
from engine.design import Design, parse_design, save_design
from engine.errors import InputError, MeshwaveError, RunError
from engine.inspect import work
from engine.launch import Record, launchers, reconcile
from engine.predict import Prediction
from engine.program.action import SENDS
from engine.resources import home
from engine.timeline import Timeline
from engine.units import quantity

_DRAFT = re.compile(r"[0-9a-f]{12}")
IsShown = Callable[[], bool]


DRAFTS_KEPT_S = 30 * 24 * 3600.0
LARGEST_TRIED = 50_000  # spans; a larger step is not played anew while layers are dragged, only when they are dropped


class Studio:
    """What all tabs of one designer share: the launcher, the record of runs, and drafts on disk."""

    def __init__(self, first: Design) -> None:
        """Start with ``first`` in every new tab.

        Raises:
            RunError: the folder of drafts and runs cannot be used.
        """
        self._first = first
        self._drafts = home() / "drafts"
        self._open: dict[str, IsShown] = {}
        try:
            self._drafts.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            message = f"cannot keep drafts in {self._drafts}: {error.strerror}; set MESHWAVE_HOME to a folder that you may write"
            raise RunError(message) from None
        self._forget_old_drafts()
        self.record = Record()
        reconcile(self.record)
        self.launcher = launchers["local"](self.record)
        self.launcher.warm()
        self.calibrating = Calibrating()

    def _forget_old_drafts(self) -> None:
        for path in (*self._drafts.glob("*.json"), *self._drafts.glob("*.run")):
            with suppress(OSError):  # one that stays does no harm
                if path.stat().st_mtime < time.time() - DRAFTS_KEPT_S:
                    path.unlink()

    def open(self, draft: str) -> Design:
        """The design that a tab had open before it was reloaded, else the first one."""
        path = self._path(draft)
        try:
            return parse_design(path.read_bytes(), draft=True) if path.exists() else self._first
        except (MeshwaveError, OSError):
            return self._first

    def claim(self, draft: str, is_shown: IsShown) -> str:
        """The draft that a tab writes from now on: ``draft``, or a new one where another tab shows that.

        A tab that was duplicated has the same link as the first; a tab that was reloaded has it
        too, but nobody looks at what it was before.
        """
        other = self._open.get(draft)
        if other is not None and other():
            draft = _new_draft()
        self._open[draft] = is_shown
        return draft

    def release(self, draft: str, is_shown: IsShown) -> None:
        """A tab is gone for good."""
        if self._open.get(draft) is is_shown:
            del self._open[draft]

    def keep(self, draft: str, design: Design) -> None:
        """Write a draft, so that neither a reload nor a crash loses it.

        Raises:
            InputError: it cannot be written, as where the disk is full.
        """
        save_design(design, self._path(draft))

    def shown_run(self, draft: str) -> str:
        """The run that a tab shows, since it was launched or chosen there; "" for none."""
        try:
            return self._path(draft, "run").read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def show_run(self, draft: str, run: str) -> None:
        """Remember which run a tab shows."""
        with suppress(OSError):  # then a reload shows none; it is in the list
            self._path(draft, "run").write_text(run, "utf-8")

    def _path(self, draft: str, kind: str = "json") -> Path:
        return self._drafts / f"{draft}.{kind}"

    def close(self) -> None:
        self.calibrating.close()
        self.launcher.close()
        self.record.close()


class Draft:
    """Where one tab keeps its design: a file, named in the tab's link."""

    def __init__(self, studio: Studio, given: str, is_shown: IsShown, later: Later | None = None) -> None:
        self._studio, self._is_shown = studio, is_shown
        self._given = given if _DRAFT.fullmatch(given) else ""
        self.name = self._given or _new_draft()
        self.session = Session(studio.open(self.name), later)
        self.session.param.watch(lambda *_: self.keep(), "design")
        self.run = studio.shown_run(self.name)

    def shown(self) -> str:
        """The page stands and a page that it replaced is gone: the name of the draft from here on."""
        self.name = self._studio.claim(self.name, self._is_shown)
        if self._given and self.name != self._given:
            self.keep()  # a duplicate starts with what the first had
            self.show_run(self.run)
        return self.name

    def show_run(self, run: str) -> None:
        self.run = run
        self._studio.show_run(self.name, run)

    def gone(self) -> None:
        self._studio.release(self.name, self._is_shown)

    def keep(self) -> None:
        """Write the design; an edit is not refused for it, but the page says what is at stake."""
        try:
            self._studio.keep(self.name, self.session.design)
            self.session.notice = ""
        except InputError as error:
            self.session.notice = f"A reload would lose your last edits: {error}"


def _new_draft() -> str:
    return secrets.token_hex(6)


def page(studio: Studio) -> pn.viewable.Viewable:
    """One tab."""
    pn.config.raw_css = [read_static("app.css")]
    document = pn.state.curdoc
    assert document is not None, "a page is made for a session"
    document.template = HEAD
    given = pn.state.session_args.get("draft", [b""])[0].decode("ascii", "ignore")
    draft = Draft(studio, given, _is_shown(document), document.add_next_tick_callback)
    pn.state.onload(lambda: _put_in_link(draft.shown()))  # the page takes no link before it stands
    pn.state.on_session_destroyed(lambda context: draft.gone())
    widgets = Widgets(draft.session, studio, first_run=draft.run, on_show_run=draft.show_run)
    pn.state.on_session_destroyed(lambda context: widgets.end())
    document.add_periodic_callback(widgets.runs.look, int(LOOK_EVERY_S * 1000))  # Panel's own costs five times the look
    return widgets.layout()


def warm_up(studio: Studio, design: Design) -> None:
    """Build a page that nobody sees: the first of a process takes a third of a second more than the next."""
    widgets = Widgets(Session(design), studio)
    widgets.layout().get_root()
    widgets.end()


def _is_shown(document: Document) -> IsShown:
    """Whether a browser is connected to a page; one that was left or reloaded has none."""

    def is_shown() -> bool:
        session = getattr(document.session_context, "session", None)
        return session is not None and session.connection_count > 0

    return is_shown


def _put_in_link(draft: str) -> None:
    """The tab's link names its draft, and no longer the token."""
    if pn.state.location is not None:
        pn.state.location.search = f"?draft={draft}"


class Widgets:
    """The pieces of one tab, bound to its session."""

    def __init__(
        self,
        session: Session,
        studio: Studio,
        first_run: str = "",
        on_show_run: Callable[[str], Any] = lambda run: None,
    ) -> None:
        self.session = session
        fill: dict[str, Any] = {"sizing_mode": "stretch_both"}
        # Those who listen first are drawn first: an edit is answered by the timeline and the numbers.
        self.timeline = TimelineChart(can_edit=True, on_open=self._look_into, **fill)
        self._block: Pin | None = None  # into which one looks
        self.drawing = Drawing(session, self.timeline.tell)
        self.timeline.on_order = self.drawing.handle
        session.param.watch(lambda *_: self._show_timeline(), ["prediction", "problems", "pinned", "measured"])
        self.timeline.param.watch(lambda *_: self._show_timeline(), ["show_links", "show_device_links"])
        self.numbers = Numbers(session, on_compare=lambda: self.comparison.open(), **fill)
        self.cluster = ClusterCanvas(on_edit=session.edit, on_pane=self._turn_pane, **fill)
        self.experts = ExpertsCanvas(
            on_edit=session.edit,
            on_pane=self._turn_pane,
            on_compare=self._compare_experts,
            routed=Routings(studio.record).of,
            visible=False,
            **fill,
        )
        self.wave = WaveCanvas(
            on_edit=session.edit,
            on_move_stage=self.drawing.move_stage,
            on_try_layers=self._try_layers,
            on_try_stage=self._try_stage,
            on_search={"stop": session.stop_search, "again": session.search_again},
            **fill,
        )
        session.param.watch(lambda *_: self._show_design(), ["design", "prediction", "problems"])
        self.gallery = Gallery(session)
        self.comparison = Comparison(session)
        self.expert_schedules = ExpertSchedules(session)
        self.crossings = Crossings(session)
        self.topbar = TopBar(
            session,
            on_launch=lambda: self.runs.bar.focus_button(),
            on_gallery=self.gallery.open,
            on_compare=self.comparison.open,
            on_experts=lambda: self._turn_pane("cluster" if self.experts.visible else "experts"),
            **fill,
        )
        self.profiles = Profiles(session, studio.calibrating, lambda: self.form.look(), session.later)
        self.form = Form(session, on_measured=self.profiles.open, **fill)
        self.problems = Problems(session, on_focus=self._focus, **fill)
        self.runs = RunsPanel(
            session,
            studio.launcher,
            studio.record,
            on_launch=lambda: self._turn_to(RUN),
            on_blocked=self.problems.block,
            on_show=on_show_run,
            first=first_run,
            **fill,
        )
        self.runs.param.watch(lambda *_: self.experts.look(), "runs")
        self.side = Side(Design=self.form, Run=self.runs, Problems=self.problems)
        self.problems.param.watch(lambda *_: self._show_badge(), ["badge", "severity"])
        session.param.watch(lambda *_: self._show_search(), "search")
        self._show_badge()
        self._show_search()
        self._show_design()
        self._show_timeline()

    def end(self) -> None:
        """The tab is gone: nothing goes on for it."""
        for end in (self.gallery.stop, self.problems.end, self.profiles.end, self.session.end):
            end()

    def _show_design(self) -> None:
        session = self.session
        self.cluster.show(session.design.model_dump(mode="json"))
        if session.stale:  # the last sound stages stay; another schedule can be chosen
            self.wave.show(session.design, anew=session.prediction is None)
        else:
            self.wave.show(session.design, session.prediction.program, session.prediction.costs)

        if self.experts.visible:
            self.experts.show(session.design)

    def _turn_pane(self, pane: str) -> None:
        """The experts in place of the cluster and the wave, or those again."""
        shows = pane == "experts"
        self.cluster.visible = self.wave.visible = not shows
        self.experts.visible = shows
        if shows:
            self.experts.show(self.session.design)
        (self.experts if shows else self.cluster).tell({"type": "focus"})

    def _compare_experts(self) -> None:
        self.expert_schedules.open(self.experts.rank)

    def _show_search(self) -> None:
        """How far a search for the order is; the picture stays what it is meanwhile."""
        self.wave.search = {**self.session.search, "said": in_words(self.session.search)}
        self.timeline.stale = self._stale

    @property
    def _stale(self) -> str:
        """Why what is shown is not of the design as it stands; empty where it is."""
        session = self.session
        if not (session.errors and session.stale):
            return ""
        if session.search:
            shown = "No timeline yet" if session.prediction is None else "This is the last good design"
            return f"{in_words(session.search)}. {shown}"
        number, first = len(session.errors), str(session.errors[0])
        if session.prediction is None:
            return f"No timeline: the design has {number} problem{'s' if number > 1 else ''}. {first}"
        return first

    def _show_timeline(self) -> None:
        stale = self._stale
        inner = self._inside()
        if inner is not None:
            self.timeline.show(inner[0], stale, inner[1])
        else:
            self.timeline.show(self._layers(), stale)

    def _layers(self, tried: Prediction | None = None) -> list[Layer]:
        chart = self.timeline
        return layers(self.session, tried, links=chart.show_links, devices=chart.show_device_links)

    def _look_into(self, block: Pin | None) -> None:
        """Show the inside of a block of the iteration, the transfer behind an arrow, or the iteration again."""
        if block is not None and block.action.op in SENDS:
            self.crossings.open(_of_pin(self.session, block), block.rank, block.action)
            return
        if block is not None:
            inside_of(_of_pin(self.session, block), block.rank, block.action)  # what cannot be shown is refused
        self._block = block
        self._show_timeline()

    def _inside(self) -> tuple[list[Layer], list[str]] | None:
        """The inside of the block that one looks into, as long as the design has it."""
        if self._block is None:
            return None
        rank, action = self._block.rank, self._block.action
        try:
            prediction = _of_pin(self.session, self._block)
            run = self.runs.of_design(prediction) if not self.session.stale else None
            measured = measured_block(run, prediction, rank, action) if run else None
            return inside_of(prediction, rank, action, measured)
        except InputError:
            self._block = None
            return None

    def _try_layers(self, counts: Sequence[int] | None) -> Prediction | None:
        """Show the step with other layers a stage while they are dragged; None shows it as it stands."""
        session = self.session
        tried = session.tried("pipeline.stages", list(counts)) if counts is not None and self._can_try else None
        self._show_tried(tried)
        return tried

    def _try_stage(self, carried: tuple[int, int, int] | None) -> str:
        """Show the step with a stage on another mesh while it is carried there, and say how it changes; None
        shows it as it stands."""
        if carried is None:
            self._show_tried(None)
            self.drawing.end_trial()
            return ""
        if not self._can_try:
            return "too many blocks to show on the way; drop it to see"
        tried, told = self.drawing.try_stage(*carried)
        self._show_tried(tried)
        self.drawing.tell_trial(told)
        return str(told["words"])

    @property
    def _can_try(self) -> bool:
        """Whether the step is small enough to be played anew while something is dragged."""
        prediction = self.session.prediction
        return prediction is not None and len(prediction.timeline) <= LARGEST_TRIED

    def _show_tried(self, tried: Prediction | None) -> None:
        self.numbers.preview(tried)
        if tried is None:
            self._show_timeline()
        elif self._block is None:
            self.timeline.show(self._layers(tried))

    def _focus(self, path: str) -> None:
        """Bring the field of a problem to the front."""
        if self.form.holds(path):
            self._turn_to(DESIGN)  # first: what is hidden takes no keyboard
            self.form.focus_field(path)

    def _turn_to(self, tab: int) -> None:
        self.side.turn_to(tab)

    def _show_badge(self) -> None:
        self.side.mark(PROBLEMS, self.problems.badge, self.problems.severity)

    def layout(self) -> pn.viewable.Viewable:
        """All on one screen."""
        areas = {
            "top": self.topbar, "numbers": self.numbers, "launch": self.runs.bar, "cluster": self.cluster,
            "wave": self.wave, EXPERTS: self.experts, "side": self.side, "timeline": self.timeline,
        }  # fmt: skip
        for area, view in areas.items():
            view.styles = {**view.styles, "grid-area": area, "min-width": "0", "min-height": "0"}
        overlays = (self.gallery, self.comparison, self.expert_schedules, self.crossings.view, self.profiles)
        for view in overlays:
            view.styles = OVER
        return pn.Column(*areas.values(), *overlays, sizing_mode="stretch_both", styles=GRID)


DESIGN, RUN, PROBLEMS = range(3)  # the tabs of the side panel

EXPERTS = "cluster / cluster / wave / wave"  # the experts' area: from the cluster to the wave
OVER = {"position": "absolute", "width": "0", "height": "0"}  # takes no place until it is opened
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


def layers(
    session: Session, tried: Prediction | None = None, *, links: bool = False, devices: bool = False
) -> list[Layer]:
    """What the timeline shows: the pinned designs above the open one, and a run laid over that;
    in place of both what is ``tried`` while a gesture is under way. With ``links`` the open design has lanes of its
    links, with ``devices`` of those of each device too."""
    prediction = tried or session.prediction
    shown = []
    for pinned in session.pinned:
        if _same_axis(pinned, prediction):
            shown.append(_layer(pinned, f"Pinned: {pinned.design.name}"))
    if prediction is not None:
        lanes = links_of(prediction, devices=devices) if links else None
        shown.append(replace(_layer(prediction, prediction.design.name), links=lanes))
        if session.measured is not None and tried is None:
            shown.append(_measured(session.measured, prediction))
    return shown


def _of_pin(session: Session, block: Pin) -> Prediction:
    """The prediction whose block was pinned.

    Raises:
        InputError: it is no longer shown, or has no such block any more.
    """
    shown = [pinned for pinned in session.pinned if _same_axis(pinned, session.prediction)]
    predictions: list[Prediction | None] = [*shown, session.prediction]
    if session.measured is not None:
        predictions.append(session.prediction)  # a run of it lies over it
    found = predictions[block.layer] if block.layer < len(predictions) else None
    if found is None:
        raise InputError("that timeline is no longer shown")
    program, action = found.program, block.action
    here = (program.rank == block.rank) & (program.op == action.op)
    if not (here & (program.stage == action.stage) & (program.microbatch == action.microbatch)).any():
        raise InputError(f"there is no {action} on this mesh any more")
    return found


def _same_axis(pinned: Prediction, prediction: Prediction | None) -> bool:
    """Units and seconds have no axis in common; the numbers still tell what changed."""
    return prediction is None or pinned.costs.unit == prediction.costs.unit


def _measured(timeline: Timeline, prediction: Prediction) -> Layer:
    """A run over the prediction; unit costs are no seconds, so there it is stretched to the same length. A rehearsal
    is told in what it stands for, which may be units; it has nothing to look into."""
    unit = prediction.costs.unit
    doubt = f", clocks aligned to within {quantity(timeline.doubt_s, 's')}" if timeline.doubt_s else ""
    if timeline.source == "rehearsed":
        return Layer(timeline, f"Rehearsed{doubt}", unit=unit, over=True)
    if unit == "s" or not timeline.makespan:
        return Layer(timeline, f"Measured{doubt}", unit=unit, over=True, opens=unit == "s")
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
        work=work(prediction.design, prediction.program, prediction.costs),
        played=(prediction.program, prediction.costs),
        opens=prediction.costs.unit == "s",
        crosses=True,
        find_flows=lambda: prediction.link_flows,
    )
