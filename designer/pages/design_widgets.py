"""The widgets of a design's page, their places, and the connections between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import panel as pn
from panel.viewable import Viewable

from meshwave.designer.canvases.cluster import ClusterCanvas
from meshwave.designer.canvases.difference_marks import difference_marks, share_switch
from meshwave.designer.canvases.experts import ExpertsCanvas
from meshwave.designer.canvases.wave import WaveCanvas
from meshwave.designer.forms import Form
from meshwave.designer.kit.assets import read_static
from meshwave.designer.kit.canvas import Overlay
from meshwave.designer.lessons import LessonPane
from meshwave.designer.lessons.tutor import OpenLesson
from meshwave.designer.pages.timeline_content import TimelineContent
from meshwave.designer.pages.timeline_layers import pinned_prediction
from meshwave.designer.pages.transfer_page import BoundaryTransfers
from meshwave.designer.state.comments import Target
from meshwave.designer.state.design_session import Session, progress_text
from meshwave.designer.state.draft import Draft
from meshwave.designer.state.edit_log import EditLog
from meshwave.designer.state.measured_load import MeasuredLoads
from meshwave.designer.state.order_edits import OrderEditor
from meshwave.designer.state.shared_design import Block
from meshwave.designer.state.studio import Studio
from meshwave.designer.views import FILL, Place, View, views
from meshwave.designer.views.design_comparison import Comparison
from meshwave.designer.views.expert_schedules import ExpertSchedules
from meshwave.designer.views.flags import block_flags, mesh_flags
from meshwave.designer.views.gallery import Gallery
from meshwave.designer.views.notes import add_note, timeline_notes
from meshwave.designer.views.numbers import Numbers
from meshwave.designer.views.problems import Problems
from meshwave.designer.views.profiles import Profiles
from meshwave.designer.views.runs import RunsPanel
from meshwave.designer.views.shown_rows import read_shown_timelines
from meshwave.designer.views.tabs import TabbedPages
from meshwave.designer.views.target_drawing import refresh_nodes
from meshwave.designer.views.timeline import Pin, TimelineChart
from meshwave.designer.views.together import Together
from meshwave.designer.views.topbar import TopBar
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import SENDS
from meshwave.engine.runs.accuracy.stragglers import straggler_meshes

LARGEST_TRIED = 50_000  # spans of the largest step that is simulated during a gesture


class Widgets:
    """The widgets of one tab, connected to its session."""

    def __init__(
        self,
        session: Session,
        studio: Studio,
        first_run: str = "",
        on_show_run: Callable[[str], Any] = lambda run: None,
        on_show_lesson: Callable[[OpenLesson | None], Any] = lambda lesson: None,
        edit_log: Callable[[], EditLog] | None = None,
        tab: Draft | None = None,
    ) -> None:
        self.session, self.studio, self.tab = session, studio, tab
        self.first_run, self.on_show_run = first_run, on_show_run
        self._views: dict[str, View] = {}
        # Watchers run in the order of registration, so an edit updates the timeline first.
        self.timeline = TimelineChart(can_edit=True, on_open=self._open_block, on_pin=self._select_block, **FILL)
        self._selected_block: Block | None = None
        self._shown_memory: bool | None = None  # while the lanes of memory are hidden: whether they were shown
        self.order_editor = OrderEditor(session, self.timeline.send)
        self.timeline.on_order = self.order_editor.handle
        self.content = TimelineContent(
            session, self.timeline, lambda prediction: self.runs.followed.find_measuring_run(prediction)
        )
        session.param.watch(lambda *_: self._show_opened(), "opened")
        self.numbers = Numbers(session, on_compare=lambda: self.comparison.open(), **FILL)
        self.cluster = ClusterCanvas(
            on_edit=session.edit,
            on_pane=self._show_pane,
            on_refresh=lambda: refresh_nodes(session, self.runs.bar),
            **FILL,
        )
        self.experts = ExpertsCanvas(
            on_edit=session.edit,
            on_pane=self._show_pane,
            on_compare=self._compare_experts,
            find_loads=MeasuredLoads(studio.record).find_loads,
            visible=False,
            **FILL,
        )
        self.wave = WaveCanvas(
            on_edit=session.edit,
            on_move_stage=self.order_editor.move_stage,
            on_try_layers=self._try_layers,
            on_try_stage=self._try_stage,
            on_compute={"stop": session.stop, "again": session.compute_again},
            **FILL,
        )
        session.watch_later(self._show_design, ["design", "prediction", "problems", "attached"])
        session.watch_later(self._show_differences, ["design", "prediction", "pinned"])
        self.experts.param.watch(lambda *_: self._show_differences(), "picture")
        share_switch([self.cluster, self.wave, self.experts])
        self.cluster.param.watch(lambda *_: self._select_mesh(), ["selected", "meshes"])
        if tab is not None:
            self.timeline.on_note = lambda message: add_note(tab, message)
        session.param.watch(lambda *_: self._show_flags(), ["people", "design", "comments", "read_only"])
        self.gallery = Gallery(session)
        self.comparison = Comparison(session)
        self.expert_schedules = ExpertSchedules(session)
        self.boundary_transfers = BoundaryTransfers(session)
        self.topbar = TopBar(
            session,
            on_view=self.show_view,
            on_launch=lambda: self.runs.bar.focus_button(),
            on_gallery=self.gallery.open,
            on_compare=self.comparison.open,
            on_experts=lambda: self._show_pane("cluster" if self.experts.visible else "experts"),
            on_lessons=lambda: self.lessons.open(),
            on_trace=lambda trace: self.runs.add_trace_run(trace),
            find_shown=partial(read_shown_timelines, self.timeline),
            edit_log=edit_log,
            **FILL,
        )
        self.together = Together(session, tab, **FILL)
        self.lessons = LessonPane(
            session, on_open=on_show_lesson, on_highlight=self._show_control, course=studio.course, **FILL
        )
        self.lessons.param.watch(lambda *_: self._hide_numbers(), ["step", "visible"])
        self.profiles = Profiles(session, studio.calibration, lambda: self.form.refresh(), session.later, studio.user)
        form, problems, runs = (self.view(name).pane for name in ("design", "problems", "run"))
        assert isinstance(form, Form) and isinstance(problems, Problems) and isinstance(runs, RunsPanel)
        self.form, self.problems, self.runs = form, problems, runs
        self.runs.followed.param.watch(lambda *_: self.experts.refresh_loads(), "entries")
        self.order_editor.on_mode = self._show_edit_mode
        followed = self.runs.followed
        followed.param.watch(lambda *_: self.numbers.show_run_errors(followed.find_errors), ["entries", "outcomes"])
        self.numbers.show_run_errors(followed.find_errors)
        self.runs.followed.param.watch(lambda change: self.content.show_run(change.new), "own")
        self._announced: set[tuple[Any, ...]] = set()  # stragglers
        self.runs.followed.param.watch(lambda *_: self._show_stragglers(), "stragglers")
        self.side = TabbedPages("Side panel", self._views_at("side"))
        timeline = {TIMELINE: ("Timeline", lambda: self.timeline)}
        self.dock = TabbedPages("Timeline and runs", {**timeline, **self._views_at("bottom")})
        self.problems.param.watch(lambda *_: self._show_badge(), ["badge", "severity"])
        session.param.watch(lambda *_: self._show_progress(), "progress")
        self._show_badge()
        self._show_stragglers()
        self._show_progress()
        self._show_design()
        self.content.refresh()
        self._show_flags()

    def stop_jobs(self) -> None:
        """Stop all background work of the page after the tab is closed."""
        stops = [each.stop_jobs for each in self._overlays] + [each.stop_jobs for each in self._views.values()]
        for stop in (*stops, self.session.close):
            stop()

    # ---- views ----

    def view(self, name: str) -> View:
        """Return the view with this name; it is built on first use."""
        if name not in self._views:
            self._views[name] = views[name](self)
        return self._views[name]

    def _views_at(self, place: Place) -> dict[str, tuple[str, Callable[[], Viewable]]]:
        """Return the title and the pane constructor of each view at a place, by name and in the order of the tabs."""
        found = sorted((each.order, each.title, name) for name, each in views.items() if each.place == place)
        return {name: (title, partial(self._pane, name)) for _, title, name in found}

    def _pane(self, name: str) -> Viewable:
        return self.view(name).pane

    def show_view(self, name: str) -> None:
        """Show a view."""
        for tabs in (self.side, self.dock):
            if name in tabs:
                tabs.show_view(name)

    def open_profiles(self) -> None:
        """Open the calibration profiles."""
        self.profiles.open()

    def watch_theme(self, draw: Callable[[str], Any]) -> None:
        """Call ``draw`` with the theme of the page, light or dark, now and when it changes."""
        self.topbar.param.watch(lambda change: draw(change.new), "theme")
        draw(self.topbar.theme)

    def _show_design(self) -> None:
        session = self.session
        attached = session.attached.picture(session.design.cluster) if session.attached else {}
        self.cluster.show(session.design.model_dump(mode="json"), attached)
        if session.is_stale:  # the last valid stages remain, and another schedule can be chosen
            self.wave.show(session.design, is_new=session.prediction is None)
        else:
            self.wave.show(session.design, session.prediction.program, session.prediction.costs)
        if self.experts.visible:
            self._arrange_experts()
            self.experts.show(session.design)

    def _show_differences(self) -> None:
        """Mark the differences from the pinned design on the canvases."""
        marks = difference_marks(self.session, self.experts.rank)
        for canvas, found in zip((self.cluster, self.wave, self.experts), marks, strict=True):
            canvas.differences = found

    def _select_mesh(self) -> None:
        """Show the selected mesh to the other people in the design."""
        if self.session.member is not None:
            rank, meshes = self.cluster.selected, self.session.design.meshes
            self.session.member.select_mesh(meshes[rank].name if 0 <= rank < len(meshes) else "")

    def _select_block(self, pin: Pin | None) -> None:
        """Show the selected block to the other people in the design."""
        self._selected_block = Block(pin.rank, pin.action) if pin is not None else None
        if self.session.member is not None:
            self.session.member.select_block(self._selected_block)

    def _show_flags(self) -> None:
        """Mark the meshes and blocks that other people have selected or that have comments."""
        people = self.session.people
        comments = self.tab.readable_comments() if self.tab is not None else []
        self.cluster.flags = mesh_flags(people, comments, self.session.design)
        self.timeline.flags = block_flags(people, comments)
        self.timeline.notes = timeline_notes(comments)
        self.timeline.can_note = self.tab is not None and not self.session.read_only
        still_open = sum(not each.is_resolved for each in comments)
        self.side.set_badge("comments", str(still_open) if still_open else "", "")

    def comment_targets(self) -> list[Target]:
        """Return the possible targets of a comment: the design, the selected mesh and block, and the shown run."""
        meshes, rank = self.session.design.meshes, self.cluster.selected
        found = [Target()]
        if 0 <= rank < len(meshes):
            found.append(Target(kind="mesh", name=meshes[rank].name))
        if self._selected_block is not None:
            found.append(Target(kind="block", name=str(self._selected_block.action), rank=self._selected_block.rank))
        if self.runs.followed.shown is not None:
            found.append(Target(kind="run", name=self.runs.followed.shown.run.id))
        return found

    def _show_opened(self) -> None:
        """Reset the state that belongs to the document that was open before."""
        self.timeline.opened = self.session.opened
        if self.experts.visible and self.session.design.model.moe is None:
            self._show_pane("cluster")

    def _show_pane(self, pane: str) -> None:
        """Show the experts instead of the cluster and the wave, or switch back."""
        shows = pane == "experts"
        self.cluster.visible = not shows
        self.experts.visible = shows
        self._arrange_experts()
        if shows:
            self.experts.show(self.session.design)
        (self.experts if shows else self.cluster).send({"type": "focus"})

    def _arrange_experts(self) -> None:
        """Show the experts over the wave canvas, too, unless the experts pane only offers to add experts."""
        is_wide = self.experts.visible and self.session.design.model.moe is not None
        self.experts.css_classes = [EXPERTS_AREA, *(["mw-wide"] if is_wide else [])]

    def show_experts(self) -> None:
        """Show the experts instead of the cluster and the wave."""
        self._show_pane("experts")

    def _compare_experts(self) -> None:
        self.expert_schedules.open(self.experts.rank)

    def _show_progress(self) -> None:
        """Show the progress of a computation; the pictures stay unchanged meanwhile."""
        self.wave.progress = {**self.session.progress, "said": progress_text(self.session.progress)}
        self.content.refresh_stale_reason()

    def _open_block(self, block: Pin | None) -> None:
        """Show the inside of a block, the transfer behind an arrow or, for None, the whole step."""
        if block is not None and block.action.op in SENDS:
            self.boundary_transfers.open(pinned_prediction(self.session, block), block.rank, block.action)
            return
        if block is None:
            self.runs.followed.show_open_design()
        self.content.show_block(block)

    def _try_layers(self, counts: Sequence[int] | None) -> Prediction | None:
        """Show the step with other layers per stage while they are dragged; None shows the current step."""
        session = self.session
        tried = (
            session.predict_edit("pipeline.stages", list(counts))
            if counts is not None and self._is_trial_possible
            else None
        )
        self._show_tried(tried)
        return tried

    def _try_stage(self, carried: tuple[int, int, int] | None) -> str:
        """Show the step with a stage on another mesh while it is dragged, and return a description of the change.

        None shows the current step.
        """
        if carried is None:
            self._show_tried(None)
            self.order_editor.end_trial()
            return ""
        if not self._is_trial_possible:
            return "too many blocks for a preview; drop the stage to see the change"
        tried, trial = self.order_editor.try_stage(*carried)
        self._show_tried(tried)
        self.order_editor.show_trial(trial)
        return str(trial["words"])

    @property
    def _is_trial_possible(self) -> bool:
        """True if the step is small enough to be simulated during a gesture."""
        prediction = self.session.prediction
        return prediction is not None and len(prediction.timeline) <= LARGEST_TRIED

    def _show_tried(self, tried: Prediction | None) -> None:
        self.numbers.preview(tried)
        self.content.show_trial_step(tried)

    def _hide_numbers(self) -> None:
        """Blur the numbers and the launch bar, and hide the lanes of memory, while a lesson asks for a number."""
        hides = self.lessons.hides_numbers
        for widget in (self.numbers, self.runs.bar):
            widget.styles = {**widget.styles, "filter": "blur(7px)" if hides else "none"}
        if hides and self._shown_memory is None:
            self._shown_memory, self.timeline.show_memory = self.timeline.show_memory, False
        elif not hides and self._shown_memory is not None:
            self.timeline.show_memory, self._shown_memory = self._shown_memory, None

    def _show_control(self, control: str) -> None:
        """Show the form if it has the control that a lesson points at."""
        if self.form.has_field(control):
            self.show_view("design")

    def focus(self, path: str) -> None:
        """Show the field of a problem."""
        if self.form.has_field(path):
            self.show_view("design")  # first, since a hidden field cannot be focused
            self.form.focus_field(path)

    def _show_badge(self) -> None:
        self.side.set_badge("problems", self.problems.badge, self.problems.severity)

    def _show_edit_mode(self, is_on: bool) -> None:
        self.runs.is_editing_order = is_on

    def _show_stragglers(self) -> None:
        """Count the stragglers of the shown run on their tab, mark their lanes, and announce each once."""
        found, run = self.runs.followed.stragglers, self.runs.followed.run.get("id")
        self.dock.set_badge("slowdowns", str(len(found)) if found else "", "warning")
        meshes = dict.fromkeys(name for each in found for name in straggler_meshes(each))
        self.timeline.slow_lanes = {
            mesh: "; ".join(each.message for each in found if mesh in straggler_meshes(each)) for mesh in meshes
        }
        new = {(run, each.code, straggler_meshes(each)): each.message for each in found}
        messages = [message for key, message in new.items() if key not in self._announced]
        self._announced |= set(new)
        if messages:
            self.session.notice = "; ".join(messages)

    def layout(self, class_bar: Viewable | None = None) -> pn.viewable.Viewable:
        """Arrange all widgets on one screen, with the bar of a workshop over them."""
        areas = {
            "top": self.topbar, "people": self.together, "numbers": self.numbers, "launch": self.runs.bar, "cluster": self.cluster,
            "wave": self.wave, "experts": self.experts, "timeline": self.dock, "side": self.side, "lesson": self.lessons,
        }  # fmt: skip
        for area, view in areas.items():
            view.css_classes = [*(view.css_classes or []), f"mw-area-{area}"]
        for overlay in self._overlays:
            overlay.styles = OVER
        sheets = [read_static("kit/page_layout.css")]
        over = [*self._overlays, *([class_bar] if class_bar else [])]
        column = pn.Column(*areas.values(), *over, sizing_mode="stretch_both", stylesheets=sheets)

        def show_lesson(*_: object) -> None:
            column.css_classes = ["mw-with-lesson"] if self.lessons.visible else []

        self.lessons.param.watch(show_lesson, "visible")
        show_lesson()
        return column

    @property
    def _overlays(self) -> tuple[Overlay, ...]:
        return (self.gallery, self.comparison, self.expert_schedules, self.boundary_transfers.view, self.profiles)


TIMELINE = "timeline"
EXPERTS_AREA = "mw-area-experts"
OVER = {"position": "absolute", "width": "0", "height": "0"}  # takes no space until it is opened
