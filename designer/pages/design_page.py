"""The page: its pieces, where they lie, and how they hear of each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import panel as pn
from bokeh.document import Document
from panel.viewable import Viewable

from meshwave.designer.canvases.cluster import ClusterCanvas
from meshwave.designer.canvases.experts import ExpertsCanvas
from meshwave.designer.canvases.wave import WaveCanvas
from meshwave.designer.forms import Form
from meshwave.designer.kit.assets import HEAD, read_static
from meshwave.designer.lessons import LessonPane
from meshwave.designer.lessons.tutor import OpenLesson
from meshwave.designer.pages.timeline_layers import _of_pin, layers
from meshwave.designer.pages.transfer_page import Crossings
from meshwave.designer.state.design_session import Session, progress_text
from meshwave.designer.state.jobs import page_later
from meshwave.designer.state.measured_load import MeasuredLoads
from meshwave.designer.state.order_edits import Drawing
from meshwave.designer.state.studio import Draft, IsShown, Studio
from meshwave.designer.views import FILL, Place, View, views
from meshwave.designer.views.block_layers import inside_of, measured_block
from meshwave.designer.views.design_comparison import Comparison
from meshwave.designer.views.expert_schedules import ExpertSchedules
from meshwave.designer.views.gallery import Gallery
from meshwave.designer.views.numbers import Numbers
from meshwave.designer.views.problems import Problems
from meshwave.designer.views.profiles import Profiles
from meshwave.designer.views.runs import LOOK_EVERY_S, RunsPanel
from meshwave.designer.views.tabs import TabbedPages
from meshwave.designer.views.timeline import Layer, Pin, TimelineChart
from meshwave.designer.views.topbar import TopBar
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import SENDS

LARGEST_TRIED = 50_000  # spans; a larger step is not played anew while layers are dragged, only when they are dropped


def page(studio: Studio) -> pn.viewable.Viewable:
    """One tab."""
    pn.config.raw_css = [read_static("kit/page.css")]
    document = pn.state.curdoc
    assert document is not None, "a page is made for a session"
    document.template = HEAD  # type: ignore[assignment]  # Bokeh takes the text of a template too
    draft = Draft(studio, _argument("draft"), _is_shown(document), page_later(document))
    pn.state.onload(lambda: _put_in_link(draft.shown()))  # the page takes no link before it stands
    pn.state.on_session_destroyed(lambda context: draft.gone())
    widgets = Widgets(
        draft.session, studio, first_run=draft.run, on_show_run=draft.show_run, on_show_lesson=draft.show_lesson
    )
    if draft.lesson:
        widgets.lessons.resume(OpenLesson(*draft.lesson))
    if lesson := _argument("lesson"):
        widgets.lessons.open(lesson)
    pn.state.on_session_destroyed(lambda context: widgets.end())
    document.add_periodic_callback(widgets.runs.look, int(LOOK_EVERY_S * 1000))  # Panel's own costs five times the look
    return widgets.layout()


def _argument(name: str) -> str:
    """Return an argument of the page's link; empty for none."""
    return str(pn.state.session_args.get(name, [b""])[0].decode("ascii", "ignore"))


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
        on_show_lesson: Callable[[OpenLesson | None], Any] = lambda lesson: None,
    ) -> None:
        self.session, self.studio = session, studio
        self.first_run, self.on_show_run = first_run, on_show_run
        self._views: dict[str, View] = {}
        # Those who listen first are drawn first: an edit is answered by the timeline and the numbers.
        self.timeline = TimelineChart(can_edit=True, on_open=self._look_into, **FILL)
        self._block: Pin | None = None  # into which one looks
        self._drawn: tuple[Any, ...] = ()  # of what the layers of the timeline were made
        self.drawing = Drawing(session, self.timeline.tell)
        self.timeline.on_order = self.drawing.handle
        session.param.watch(lambda *_: self._show_timeline(), ["prediction", "problems", "pinned", "measured"])
        self.timeline.param.watch(lambda *_: self._show_timeline(), ["show_links", "show_device_links"])
        self.numbers = Numbers(session, on_compare=lambda: self.comparison.open(), **FILL)
        self.cluster = ClusterCanvas(on_edit=session.edit, on_pane=self._turn_pane, **FILL)
        self.experts = ExpertsCanvas(
            on_edit=session.edit,
            on_pane=self._turn_pane,
            on_compare=self._compare_experts,
            routed=MeasuredLoads(studio.record).of,
            visible=False,
            **FILL,
        )
        self.wave = WaveCanvas(
            on_edit=session.edit,
            on_move_stage=self.drawing.move_stage,
            on_try_layers=self._try_layers,
            on_try_stage=self._try_stage,
            on_compute={"stop": session.stop, "again": session.compute_again},
            **FILL,
        )
        session.param.watch(lambda *_: self._show_design(), ["design", "prediction", "problems"])
        self.gallery = Gallery(session)
        self.comparison = Comparison(session)
        self.expert_schedules = ExpertSchedules(session)
        self.crossings = Crossings(session)
        self.topbar = TopBar(
            session,
            on_view=self.turn_to,
            on_launch=lambda: self.runs.bar.focus_button(),
            on_gallery=self.gallery.open,
            on_compare=self.comparison.open,
            on_experts=lambda: self._turn_pane("cluster" if self.experts.visible else "experts"),
            on_lessons=lambda: self.lessons.open(),
            **FILL,
        )
        self.lessons = LessonPane(session, on_open=on_show_lesson, on_highlight=self._show_control, **FILL)
        self.lessons.param.watch(lambda *_: self._hide_numbers(), ["step", "visible"])
        self.profiles = Profiles(session, studio.calibrating, lambda: self.form.look(), session.later)
        form, problems, runs = (self.view(name).pane for name in ("design", "problems", "run"))
        assert isinstance(form, Form) and isinstance(problems, Problems) and isinstance(runs, RunsPanel)
        self.form, self.problems, self.runs = form, problems, runs
        self.runs.param.watch(lambda *_: self.experts.look(), "runs")
        self.side, self.bottom = TabbedPages("Side panel", self._at("side")), self._below()
        self.problems.param.watch(lambda *_: self._show_badge(), ["badge", "severity"])
        session.param.watch(lambda *_: self._show_progress(), "progress")
        self._show_badge()
        self._show_progress()
        self._show_design()
        self._show_timeline()

    def end(self) -> None:
        """The tab is gone: nothing goes on for it."""
        for end in (
            self.gallery.stop,
            *(view.end for view in self._views.values()),
            self.profiles.end,
            self.session.end,
        ):
            end()

    # ---- views ----

    def view(self, name: str) -> View:
        """The view of this name, built when somebody first asks for it."""
        if name not in self._views:
            self._views[name] = views[name](self)
        return self._views[name]

    def _at(self, place: Place) -> dict[str, tuple[str, Viewable]]:
        """Title and pane of the views of a place, by their names and in their order."""
        found = sorted((each.order, each.title, name) for name, each in views.items() if each.place == place)
        return {name: (title, self.view(name).pane) for _, title, name in found}

    def _below(self) -> Viewable:
        """The timeline, under tabs where there are other views beside it."""
        others = self._at("bottom")
        return TabbedPages("Bottom", {TIMELINE: ("Timeline", self.timeline), **others}) if others else self.timeline

    def turn_to(self, name: str) -> None:
        """Bring a view to the front."""
        for tabs in (self.side, self.bottom):
            if isinstance(tabs, TabbedPages) and name in tabs:
                tabs.turn_to(name)

    def open_profiles(self) -> None:
        """Show what was measured."""
        self.profiles.open()

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

    def _show_progress(self) -> None:
        """How far a computation is; the picture stays what it is meanwhile."""
        self.wave.progress = {**self.session.progress, "said": progress_text(self.session.progress)}
        self.timeline.stale = self._stale

    @property
    def _stale(self) -> str:
        """Why what is shown is not of the design as it stands; empty where it is."""
        session = self.session
        if session.is_computing and not session.progress:
            return "Computing" if session.prediction is None else ""
        if not (session.errors and session.stale):
            return ""
        if session.progress:
            shown = "No timeline yet" if session.prediction is None else "This is the last good design"
            return f"{progress_text(session.progress)}. {shown}"
        number, first = len(session.errors), str(session.errors[0])
        if session.prediction is None:
            return f"No timeline: the design has {number} problem{'s' if number > 1 else ''}. {first}"
        return first

    def _show_timeline(self) -> None:
        stale = self._stale
        inner = self._inside()
        if inner is not None:
            self._drawn = ()
            self.timeline.show(inner[0], stale, inner[1])
        elif self._are_drawn():
            self.timeline.stale = stale
        else:
            self.timeline.show(self._layers(), stale)

    def _are_drawn(self) -> bool:
        """Whether the layers are those that were drawn last; they are, from now on."""
        session, chart = self.session, self.timeline
        before = self._drawn
        self._drawn = (session.prediction, session.measured, *session.pinned, chart.show_links, chart.show_device_links)
        return len(before) == len(self._drawn) and all(map(is_, before, self._drawn))

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
            self._drawn = ()
            self.timeline.show(self._layers(tried))

    def _hide_numbers(self) -> None:
        """Blur the numbers while a lesson asks for one."""
        self.numbers.styles = {**self.numbers.styles, "filter": "blur(7px)" if self.lessons.hides_numbers else "none"}

    def _show_control(self, control: str) -> None:
        """Bring the form to the front where it has the control that a lesson points at."""
        if self.form.holds(control):
            self.turn_to("design")

    def focus(self, path: str) -> None:
        """Bring the field of a problem to the front."""
        if self.form.holds(path):
            self.turn_to("design")  # first: what is hidden takes no keyboard
            self.form.focus_field(path)

    def _show_badge(self) -> None:
        self.side.mark("problems", self.problems.badge, self.problems.severity)

    def layout(self) -> pn.viewable.Viewable:
        """All on one screen."""
        areas = {
            "top": self.topbar, "numbers": self.numbers, "launch": self.runs.bar, "cluster": self.cluster,
            "wave": self.wave, EXPERTS: self.experts, "side": self.side, "timeline": self.bottom, "lesson": self.lessons,
        }  # fmt: skip
        for area, view in areas.items():
            view.styles = {**view.styles, "grid-area": area, "min-width": "0", "min-height": "0"}
        overlays = (self.gallery, self.comparison, self.expert_schedules, self.crossings.view, self.profiles)
        for view in overlays:
            view.styles = OVER
        column = pn.Column(*areas.values(), *overlays, sizing_mode="stretch_both", styles=self._grid)
        self.lessons.param.watch(lambda *_: column.param.update(styles=self._grid), "visible")
        return column

    @property
    def _grid(self) -> dict[str, str]:
        """The places of the page, with one at the left for an open lesson."""
        return GRID_WITH_LESSON if self.lessons.visible else GRID


TIMELINE = "timeline"
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
GRID_WITH_LESSON = GRID | {
    "grid-template-columns": "clamp(320px, 27vw, 520px) minmax(0, 2fr) minmax(0, 3fr) 320px",
    "grid-template-areas": '"top top top top" "numbers numbers numbers launch" "lesson cluster wave side" '
    '"lesson timeline timeline side"',
}
