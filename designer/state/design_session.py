"""State of a design page: the design, its prediction and problems, pins, and undo."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import param

from meshwave.designer.state.design_edits import reset_stage_settings
from meshwave.designer.state.file_work import FileWork
from meshwave.designer.state.job_processes import Done, Failed, JobUpdate, Progress
from meshwave.designer.state.jobs import Later, Listener, run_now
from meshwave.designer.state.library import new_id
from meshwave.designer.state.predictions import Outcome, Predictions, compute_outcome
from meshwave.designer.state.shared_design import Member, Presence, Replaced
from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.fixes import apply_edit
from meshwave.engine.document.problems import problems
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError, Problem, Refusal
from meshwave.engine.lowering.lower import order_computations
from meshwave.engine.predict.order_consequences import simulate_order
from meshwave.engine.predict.prediction import Prediction

LONGEST_HISTORY = 500
PIN_LIMIT = 3  # besides the open design: four timelines on one axis
COMPUTING_PROBLEM = Problem("", "computing")
STOPPED_PROBLEM = Problem("", "stopped")
PROGRESS_STATES = {COMPUTING_PROBLEM.code: "runs", STOPPED_PROBLEM.code: "stopped", "computation_failed": "stopped"}
"""State in ``Session.progress`` by the code of the problem that reports an unfinished computation."""


class Step(NamedTuple):
    """An entry of the undo history."""

    read: Callable[[], Design]  # returns the design that the step restores
    label: str  # label of the edit that the step undoes or redoes
    opens: bool  # True if that edit replaced the design
    document: str  # ID of the restored document


Steps = list[Step]
"""Entries of the undo or redo history; the last one is applied next."""


class Session(param.Parameterized):
    """The open design of a tab and everything derived from it.

    Every change goes through :meth:`edit`: one gesture, one undo step. An edit that makes a section invalid is refused
    and changes nothing. An edit whose sections are valid but inconsistent is kept as a draft: ``problems`` lists what
    is wrong, and ``prediction`` stays the last valid one of the same document.
    """

    document = param.String(default="", doc="ID of the open document; undo of an opening restores the one before.")
    design: Any = param.ClassSelector(class_=Design)
    prediction = param.Parameter(doc="Prediction of the last design that could be simulated.")
    problems = param.List(default=[], item_type=Problem)
    pinned = param.List(
        default=[],
        item_type=Prediction,
        doc="Predictions to compare with; changes are relative to the first one.",
    )
    measured = param.Parameter(default=None, doc="Timeline of a run of the open design, overlaid on the predicted one.")
    attached = param.Parameter(default=None, doc="AttachedCluster that was put into the design, None for none.")
    slowed = param.Parameter(default=None, doc="Timeline of the open design with slowdowns, above the predicted one.")
    history = param.Tuple(default=("", ""), doc="Labels of the edits that undo and redo apply to; empty for none.")
    opened = param.Integer(default=0, doc="Number of times that the document was replaced.")
    turned = param.Integer(default=0, doc="Number of undo and redo steps.")
    progress = param.Dict(
        default={},
        doc="Progress of the prediction: its state (runs, stopped), the completed fraction and the current activity; "
        "empty when it is done or is too short to show progress.",
    )
    notice = param.String(default="", doc="Notice to the user that is not about an edit; empty if there is none.")
    read_only = param.Boolean(default=False, doc="True if edits and launches are refused.")
    people = param.List(
        default=[], item_type=Presence, doc="People who have the shared design open; empty if the design is not shared."
    )
    replaced = param.List(default=[], item_type=Replaced, doc="Values of the user that others have changed.")
    comments = param.Integer(default=0, doc="Counter of changes of the comments on the design.")
    revision = param.Integer(default=0, doc="Revision of a shared design, which the page confirms.")

    def __init__(
        self,
        design: Design,
        later: Later | None = None,
        predictions: Predictions | None = None,
        *,
        document: str = "",
        past: Steps | None = None,
        future: Steps | None = None,
        read_only: bool = False,
    ) -> None:
        """Open a design.

        Args:
            design: the design.
            later: schedules a callback in the page's event loop; if given, large predictions are computed by jobs.
            predictions: cache shared with other sessions.
            document: ID of the document.
            past: steps that can be undone, the latest last.
            future: steps that can be redone, the next one last.
            read_only: whether edits and launches are refused.
        """
        super().__init__(design=design, document=document or new_id(), read_only=read_only)  # type: ignore[no-untyped-call]  # param has no types there
        self._past: Steps = past or []
        self._future: Steps = future or []
        self.move = "edit"
        """Kind of the latest change of the design: ``edit``, ``undo``, ``redo``, or ``follow`` if made by others."""
        self.member: Member | None = None
        """The user as a person in the shared design; None if the design is not shared."""
        self._later = later
        self.predictions = predictions or Predictions()
        self._job: Listener | None = None
        self._pinning: Listener | None = None
        self.files = FileWork(later, lambda text: self.param.update(notice=text))
        self._due: dict[Callable[[], None], None] = {}  # calls of watch_later that are to be made, in order
        self._show_outcome(design, *self._request_outcome(design))

    @property
    def later(self) -> Later | None:
        """Function that schedules a callback in the page's event loop from any thread; None without jobs."""
        return self._later

    def watch_later(self, call: Callable[[], None], names: list[str]) -> None:
        """Call a function after changes of these parameters; on a page in a later tick, when the timeline has been sent.

        Several changes in one tick cause one call.
        """

        def schedule(*_: Any) -> None:
            is_scheduled = bool(self._due)
            self._due[call] = None
            if not is_scheduled:
                (self._later or run_now)(self._make_due_calls)

        self.param.watch(schedule, names)

    def _make_due_calls(self) -> None:
        due, self._due = self._due, {}
        for call in due:
            call()

    @property
    def is_stale(self) -> bool:
        """True if the prediction is of an earlier design."""
        return self.prediction is None or self.prediction.design is not self.design

    @property
    def past_designs(self) -> Iterator[Design]:
        """The designs that undo restores, latest first."""
        return (step.read() for step in reversed(self._past))

    @property
    def errors(self) -> list[Problem]:
        """Problems with severity ``error``."""
        return [problem for problem in self.problems if problem.severity == "error"]

    def check_editable(self) -> None:
        """Check that the design may be edited and launched on this page.

        Raises:
            Refusal: it is read-only.
        """
        if self.read_only:
            raise Refusal("read_only_design")

    def edit(self, path: str, value: Any, label: str) -> None:
        """Set the value at a path such as ``pipeline.waves``; the empty path merges top-level keys.

        Raises:
            DesignError: the change would make a part unsound; nothing is changed.
            Refusal: the design is read-only.
        """
        self._push_step(self._apply_edit(path, value), label)

    def predict_edit(self, path: str, value: Any) -> Prediction | None:
        """Return the prediction of the design after an edit without applying it; None if that design has errors."""
        design = self._apply_edit(path, value)
        return (
            self._predict_in_same_order(design)
            if type(design.pipeline).depends_on_costs
            else compute_outcome(design)[1]
        )

    def _predict_in_same_order(self, design: Design) -> Prediction | None:
        """Predict a design in the order of the open design, without a search; None if the order does not fit."""
        if (
            self.is_stale
            or design.stages != self.design.stages
            or any(each.severity == "error" for each in problems(design))
        ):
            return None
        simulated = simulate_order(design, order_computations(self.design))
        if simulated.program is None or simulated.costs is None or simulated.timeline is None:
            return None
        return Prediction(design, simulated.program, simulated.costs, simulated.timeline)

    def _apply_edit(self, path: str, value: Any) -> Design:
        document = self.design.model_dump(mode="json")
        return reset_stage_settings(parse_design(_set_value(document, path, value), draft=True), self.design)

    @property
    def last_step(self) -> Step | None:
        """The latest edit that can be undone."""
        return self._past[-1] if self._past else None

    def open(self, design: Design, label: str) -> None:
        """Open another document, as one undo step."""
        self._push_step(design, label, opens=True, document=new_id())
        self.opened += 1

    def replace(self, design: Design, label: str) -> None:
        """Replace the design of the open document, as one undo step."""
        self._push_step(design, label, opens=True)
        self.opened += 1

    def undo(self) -> None:
        """Revert the last edit; in a shared design, the user's last edit."""
        self.check_editable()
        if self.member is not None:
            self._change_shared(self.member.undo)
        elif self._past:
            *past, step = self._past
            self._apply_step(step, past, [*self._future, self._history_entry(step.label, step.opens)], "undo")
            self.turned += 1

    def redo(self) -> None:
        """Apply the last reverted edit again."""
        self.check_editable()
        if self.member is not None:
            self._change_shared(self.member.redo)
        elif self._future:
            *future, step = self._future
            self._apply_step(step, [*self._past, self._history_entry(step.label, step.opens)], future, "redo")
            self.turned += 1

    def _change_shared(self, change: Callable[[], None]) -> None:
        change()
        self.follow("edit")
        self.turned += 1

    # ---- shared designs ----

    def join(self, member: Member) -> None:
        """Follow a shared design, and edit it as ``member``."""
        self._past, self._future, self.member = [], [], member
        self.read_only = member.read_only
        self.follow()

    def follow(self, move: str = "follow") -> None:
        """Show the current state of the shared design and its people."""
        member = self.member
        if member is None:
            return
        shared = member.shared
        if shared.design is not self.design:
            self.move = move
            self._show_outcome(shared.design, *self._request_outcome(shared.design))
        self.param.update(
            history=member.history,
            notice=shared.notice,
            people=shared.people(member),
            replaced=member.replaced,
            comments=shared.comments,
        )
        self.revision = shared.revision  # last, so that a page that confirms it has drawn the rest

    def end_following(self) -> None:
        """Make the session read-only, since the design is no longer shared."""
        self.leave()
        self.param.update(read_only=True, notice="This design is no longer shared. The page shows its last state.")

    def set_history(self, past: Steps, future: Steps) -> None:
        """Replace the undo and the redo history."""
        self._past, self._future = past, future
        self.history = self._own_history

    def restore(self, number: int) -> None:
        """Restore a value of the user that somebody else has changed.

        Raises:
            Refusal: the value is no longer offered, or does not fit the design.
        """
        self.check_editable()
        if self.member is not None:
            self.member.restore(number)
            self.follow("edit")

    def leave(self) -> None:
        """Stop following the shared design; the page keeps its current state."""
        if self.member is not None:
            self.member.leave()
            self.member = None
            self.param.update(people=[], replaced=[], revision=0, history=self._own_history)

    def _history_entry(self, label: str, opens: bool) -> Step:
        """Return the history entry that restores the current design."""
        design = self.design
        return Step(lambda: design, label, opens, self.document)

    def predict_again(self) -> None:
        """Predict the design again after its external data, such as its profile, has changed."""
        self._show_outcome(self.design, *self._request_outcome(self.design))

    def pin(self, prediction: Prediction | None = None) -> None:
        """Pin a prediction, by default the current one; unpin it if it is pinned already.

        If the current prediction is stale, the comparison ends instead.

        Raises:
            InputError: the prediction is of an earlier design, or the maximum number of designs is pinned.
        """
        if prediction is None and self.is_stale and self.pinned:
            self.pinned = []
            return
        chosen = prediction or self.current_prediction("pin")
        kept = [pinned for pinned in self.pinned if pinned.design != chosen.design]
        if len(kept) == len(self.pinned):
            if len(kept) == PIN_LIMIT:
                names = ", ".join(repr(pinned.design.name) for pinned in kept)
                raise Refusal("too_many_pins", {"count": PIN_LIMIT, "names": names})
            kept.append(chosen)
        self.pinned = kept

    def pin_design(self, design: Design) -> None:
        """Pin a design that is not open, as soon as it is predicted.

        Raises:
            InputError: it cannot be predicted, or the maximum number of designs is pinned.
        """
        outcome = self.predictions.predict_now(design, wait=self._later is None)
        if outcome is not None:
            self._pin_outcome(outcome)
            return
        assert self._later is not None
        self._end_pinning()
        self._pinning = self.predictions.request(
            design, self._later, lambda update: self._receive_pinned(design, update)
        )

    def _pin_outcome(self, outcome: Outcome) -> None:
        found, prediction = outcome
        if prediction is None:
            raise DesignError(found)
        self.pin(prediction)

    def _receive_pinned(self, design: Design, update: JobUpdate) -> None:
        try:
            if isinstance(update, Done):
                self._pin_outcome(update.value)
            elif isinstance(update, Failed):
                raise Refusal("error", {"reason": update.reason})
        except InputError as error:
            self.notice = f"{design.name!r} was not pinned: {error}"

    def _end_pinning(self) -> None:
        if self._pinning is not None:
            self._pinning.stop()
            self._pinning = None

    def unpin(self, place: int) -> None:
        """Remove a pinned prediction."""
        self.pinned = [*self.pinned[:place], *self.pinned[place + 1 :]]

    def end_comparison(self) -> None:
        """Remove all pinned predictions."""
        self.pinned = []

    def current_prediction(self, purpose: str) -> Prediction:
        """Return the prediction of the open design, for a ``purpose`` such as "pin".

        Raises:
            Refusal: the open design has errors, so the prediction is of an earlier one.
        """
        if self.is_computing or (self.is_stale and self.progress):
            reason = self.errors[0].message if self.errors else COMPUTING_PROBLEM.message
            raise Refusal("not_computed", {"purpose": purpose, "reason": reason})
        if self.is_stale:
            raise Refusal("invalid_design", {"purpose": purpose, "reason": str(self.errors[0])})
        prediction: Prediction = self.prediction
        return prediction

    def _push_step(self, design: Design, label: str, opens: bool = False, document: str = "") -> None:
        self.check_editable()
        document = document or self.document
        if self.member is not None and document == self.document:
            self.member.submit(self.design, design, label)
            self.follow("edit")
        elif design != self.design or document != self.document:
            back = (
                [self._history_entry(label, opens)] if self.member is None else []
            )  # in a shared design, each person has a history of their own
            past = [*self._past, *back][-LONGEST_HISTORY:]
            self._apply_step(Step(lambda: design, label, opens, document), past, [], "edit")

    def _apply_step(self, step: Step, past: Steps, future: Steps, move: str) -> None:
        design = step.read()
        outcome = self._request_outcome(design)  # before any state changes, since it may raise
        self._past, self._future, self.move = past, future, move
        self._show_outcome(design, *outcome, opens=step.opens, document=step.document)

    def _show_outcome(
        self,
        design: Design,
        found: list[Problem],
        prediction: Prediction | None,
        opens: bool = False,
        document: str = "",
    ) -> None:
        with param.parameterized.batch_call_watchers(self):
            self.document = document or self.document
            if prediction is not None or opens:  # a new document must not show the prediction of the previous one
                self.prediction = prediction  # first, since param calls watchers in the order of the changes
                self.slowed = None
            self.problems = found
            self.design = design
            state = next((PROGRESS_STATES[problem.code] for problem in found if problem.code in PROGRESS_STATES), "")
            self.progress = {"state": state, "share": 0.0, "words": ""} if state else {}
            self.history = self._own_history if self.member is None else self.member.history

    @property
    def _own_history(self) -> tuple[str, str]:
        past, future = self._past, self._future
        return (past[-1].label if past else "", future[-1].label if future else "")

    # ---- predictions by jobs ----

    @property
    def is_computing(self) -> bool:
        """True while a job predicts the open design."""
        return self._job is not None

    def _request_outcome(self, design: Design) -> Outcome:
        """Return the outcome of a design as far as it is available at once, and start a job for the rest.

        The job of the previous design is stopped, unless both designs have the same meaning.
        """
        before, job = self._job, None
        outcome = self.predictions.predict_now(design, wait=self._later is None)
        if outcome is None:
            assert self._later is not None
            job = self.predictions.request(design, self._later, self._receive_update)
        if before is not None:
            before.stop()  # after the new request, which may be for the same job
        self._job = job
        return outcome or (problems(design), None)

    def _receive_update(self, update: JobUpdate) -> None:
        if isinstance(update, Progress):
            if not self.progress:
                self._show_outcome(self.design, [*problems(self.design), COMPUTING_PROBLEM], None)
            self.progress = {"state": "runs", "share": update.share, "words": update.activity}
            return
        self._job = None
        if isinstance(update, Done):
            self._show_outcome(self.design, *update.value)
        elif isinstance(update, Failed):
            self._show_stopped(Problem("", "computation_failed", {"reason": update.reason}))

    def close(self) -> None:
        """Leave the shared design, if the session has joined one, and stop all jobs of the session."""
        self.leave()
        self._end_pinning()
        self.files.stop()
        self._end_job()

    def _end_job(self) -> None:
        if self._job is not None:
            self._job.stop()
            self._job = None

    def stop(self) -> None:
        """Stop the prediction of the open design; the last valid one stays."""
        if self.is_computing:
            self._end_job()
            self._show_stopped(STOPPED_PROBLEM)

    def _show_stopped(self, problem: Problem) -> None:
        self._show_outcome(self.design, [*problems(self.design), problem], None)

    def compute_again(self) -> None:
        """Start a stopped prediction again."""
        if not self.is_computing and self.progress:
            self._show_outcome(self.design, *self._request_outcome(self.design))


def progress_text(progress: Mapping[str, Any]) -> str:
    """Return a sentence for ``Session.progress``; empty if nothing is being computed."""
    if not progress:
        return ""
    if progress["state"] == "stopped":
        return "The computation was stopped"
    doing = f", {progress['words']}" if progress["words"] else ""
    return f"Computing: {progress['share']:.0%}{doing}"


def _set_value(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    if not path:
        return {**document, **value}
    apply_edit(document, path, value)
    return document
