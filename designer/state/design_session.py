"""What one browser tab holds: the design, what follows from it, and the way back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import param

from meshwave.designer.state import expert_edits
from meshwave.designer.state.jobs import Done, Failed, Job, Later, Listener, News, Progress
from meshwave.designer.state.predictions import Outcome, Predictions, predict_with_problems
from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.problems import problems
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.lowering.lower import order
from meshwave.engine.predict.order_consequences import simulate_order
from meshwave.engine.predict.prediction import Prediction

LONGEST_HISTORY = 500
MOST_PINNED = 3  # beside the open design: four on one axis
RUNS = Problem("", "computing", "this step is being computed; until then the last one is shown")
STOPPED = Problem("", "stopped", "the computation was stopped; compute again, undo, or change the design")
CODES = {RUNS.code: "runs", STOPPED.code: "stopped"}
"""Problems that are none: what follows from the design is not known yet."""
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


T = TypeVar("T")


class Step(NamedTuple):
    """A design to go back or forth to."""

    design: Design
    label: str  # of the edit between
    opens: bool  # whether that edit put another document in place


Steps = list[Step]
"""The next one last."""


class Session(param.Parameterized):
    """The open design of a tab and what follows from it.

    Every edit goes through :meth:`edit`: one gesture, one step of undo. An edit that makes a part
    unsound is refused and changes nothing. One that leaves parts that do not fit each other yet is
    kept as a draft: ``problems`` says what is wrong, and ``prediction`` stays the last good one of
    the same document.
    """

    design: Any = param.ClassSelector(class_=Design)
    prediction = param.Parameter(doc="Of the last design that could be simulated.")
    problems = param.List(default=[], item_type=Problem)
    pinned = param.List(
        default=[],
        item_type=Prediction,
        doc="Predictions to compare with, the first the one that changes are told against.",
    )
    measured = param.Parameter(
        default=None, doc="The timeline of a run of the open design, to lay over the predicted one."
    )
    history = param.Tuple(default=("", ""), doc="What undo and redo would do, in words; empty for nothing.")
    opened = param.Integer(default=0, doc="How often another document was put in place.")
    turned = param.Integer(default=0, doc="How often a person went back or forth.")
    progress = param.Dict(
        default={},
        doc="How far the computation of what follows from the open design is: its state (runs, stopped), the share that "
        "is done and what is done now; empty once that is known, and as long as nobody would notice.",
    )
    notice = param.String(default="", doc="What a person should know although no edit was refused; empty for nothing.")

    def __init__(self, design: Design, later: Later | None = None, predictions: Predictions | None = None) -> None:
        """With ``later`` a long computation holds nobody up: its result comes when it is there. ``predictions`` are
        shared with other sessions."""
        super().__init__(design=design)  # type: ignore[no-untyped-call]  # param has no types there
        self._past: Steps = []
        self._future: Steps = []
        self._later = later
        self.predictions = predictions or Predictions()
        self._job: Listener | None = None
        self._pinning: Listener | None = None
        self._file: Listener | None = None
        self._show(design, *self._outcome(design))

    @property
    def later(self) -> Later | None:
        """Runs something in the page's own turn, from any thread; None where nothing goes on beside the page."""
        return self._later

    @property
    def stale(self) -> bool:
        """Whether the prediction is of an earlier design, since this one is wrong."""
        return self.prediction is None or self.prediction.design is not self.design

    @property
    def past(self) -> Iterator[Design]:
        """The designs that undo leads back to, the last one first."""
        return (step.design for step in reversed(self._past))

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.severity == "error"]

    def edit(self, path: str, value: Any, label: str) -> None:
        """Change what is at a path such as ``pipeline.waves``; the empty path merges top-level keys.

        Raises:
            DesignError: the change would make a part unsound; nothing is changed.
        """
        self._step_to(self._edited(path, value), label)

    def tried(self, path: str, value: Any) -> Prediction | None:
        """What an edit would make of the step; nothing is changed. None where it would leave errors."""
        design = self._edited(path, value)
        return self._with_the_same_order(design) if type(design.pipeline).weighs else predict_with_problems(design)[1]

    def _with_the_same_order(self, design: Design) -> Prediction | None:
        """What becomes of a design that searches for its order while it still has that of the open one."""
        if (
            self.stale
            or design.stages != self.design.stages
            or any(each.severity == "error" for each in problems(design))
        ):
            return None
        played = simulate_order(design, order(self.design))
        if played.program is None or played.costs is None or played.timeline is None:
            return None
        return Prediction(design, played.program, played.costs, played.timeline)

    def _edited(self, path: str, value: Any) -> Design:
        document = self.design.model_dump(mode="json")
        return _release(parse_design(_changed(document, path, value), draft=True))

    def replace(self, design: Design, label: str) -> None:
        """Put another design in place of the open one, as one step of undo."""
        self._step_to(design, label, opens=True)
        self.opened += 1

    def undo(self) -> None:
        if self._past:
            *past, step = self._past
            self._turn_to(step.design, past, [*self._future, step._replace(design=self.design)], step.opens)
            self.turned += 1

    def redo(self) -> None:
        if self._future:
            *future, step = self._future
            self._turn_to(step.design, [*self._past, step._replace(design=self.design)], future, step.opens)
            self.turned += 1

    def renew(self) -> None:
        """Predict anew what follows from something besides the design, as when its profile was measured again."""
        self._show(self.design, *self._outcome(self.design))

    def pin(self, prediction: Prediction | None = None) -> None:
        """Compare with a prediction, by default with what is predicted now; one that is pinned is taken off.

        A design with errors has nothing to pin: there the comparison ends.

        Raises:
            InputError: what is predicted is of an earlier design, or as many are pinned as can be told apart.
        """
        if prediction is None and self.stale and self.pinned:
            self.pinned = []
            return
        chosen = prediction or self.current_prediction("pin")
        kept = [pinned for pinned in self.pinned if pinned.design != chosen.design]
        if len(kept) == len(self.pinned):
            if len(kept) == MOST_PINNED:
                names = ", ".join(repr(pinned.design.name) for pinned in kept)
                raise InputError(f"{MOST_PINNED} designs are pinned ({names}); unpin one to pin another")
            kept.append(chosen)
        self.pinned = kept

    def pin_design(self, design: Design) -> None:
        """Compare with a design that is not open, as soon as it is predicted.

        Raises:
            InputError: it cannot be predicted, or as many are pinned as can be told apart.
        """
        outcome = self.predictions.predict_now(design, wait=self._later is None)
        if outcome is not None:
            self._pin_outcome(outcome)
            return
        assert self._later is not None
        self._end_pinning()
        self._pinning = self.predictions.request(design, self._later, lambda news: self._hear_pinned(design, news))

    def _pin_outcome(self, outcome: Outcome) -> None:
        found, prediction = outcome
        if prediction is None:
            raise DesignError(found)
        self.pin(prediction)

    def _hear_pinned(self, design: Design, news: News) -> None:
        try:
            if isinstance(news, Done):
                self._pin_outcome(news.value)
            elif isinstance(news, Failed):
                raise InputError(news.words)
        except InputError as error:
            self.notice = f"{design.name!r} was not pinned: {error}"

    def _end_pinning(self) -> None:
        if self._pinning is not None:
            self._pinning.stop()
            self._pinning = None

    # ---- files ----

    def beside(self, words: str, work: Callable[[], T], then: Callable[[T], None], *, at_once: bool) -> None:
        """Do the work of a file now, or beside the page, which shows ``words`` meanwhile; then hand its result on."""
        self._end_file()
        if at_once or self._later is None:
            then(work())
            return
        self.notice = words
        self._file = Job(work).listen(self._later, partial(self._hear_file, then))

    def _hear_file(self, then: Callable[[T], None], news: News) -> None:
        if not isinstance(news, Done | Failed):
            return
        self._end_file()
        try:
            if isinstance(news, Failed):
                raise InputError(news.words)
            then(news.value)
        except InputError as error:
            self.notice = str(error)

    def _end_file(self) -> None:
        if self._file is not None:
            self._file.stop()
            self._file, self.notice = None, ""

    def unpin(self, place: int) -> None:
        """Take a pinned prediction off; those behind it move up."""
        self.pinned = [*self.pinned[:place], *self.pinned[place + 1 :]]

    def end_comparison(self) -> None:
        """Take all off."""
        self.pinned = []

    def current_prediction(self, purpose: str) -> Prediction:
        """The prediction of the open design, for a ``purpose`` such as "pin".

        Raises:
            InputError: the open design has errors, so the prediction is of an earlier one.
        """
        if self.is_computing or (self.stale and self.progress):
            reason = self.errors[0].message if self.errors else RUNS.message
            raise InputError(f"there is nothing to {purpose} before the step is computed: {reason}")
        if self.stale:
            raise InputError(f"there is nothing to {purpose} before the design's errors are mended: {self.errors[0]}")
        prediction: Prediction = self.prediction
        return prediction

    def _step_to(self, design: Design, label: str, opens: bool = False) -> None:
        if design != self.design:
            past = [*self._past, Step(self.design, label, opens)][-LONGEST_HISTORY:]
            self._turn_to(design, past, [], opens)

    def _turn_to(self, design: Design, past: Steps, future: Steps, opens: bool) -> None:
        outcome = self._outcome(design)  # before anything is changed: what fails here leaves nothing behind
        self._past, self._future = past, future
        self._show(design, *outcome, opens=opens)

    def _show(self, design: Design, found: list[Problem], prediction: Prediction | None, opens: bool = False) -> None:
        with param.parameterized.batch_call_watchers(self):
            if prediction is not None or opens:  # under the name of another document nothing old is shown
                self.prediction = prediction  # first: those who watch it are told first
            self.problems = found
            self.design = design
            state = next((CODES[problem.code] for problem in found if problem.code in CODES), "")
            self.progress = {"state": state, "share": 0.0, "words": ""} if state else {}
            self.history = (
                self._past[-1].label if self._past else "",
                self._future[-1].label if self._future else "",
            )

    # ---- what is computed beside the page ----

    @property
    def is_computing(self) -> bool:
        """Whether what follows from the open design is being computed beside the page."""
        return self._job is not None

    def _outcome(self, design: Design) -> Outcome:
        """What follows from a design, as far as that is known at once; the rest is computed beside the page. A
        computation that an edit has overtaken is given up, unless both mean the same."""
        before, job = self._job, None
        outcome = self.predictions.predict_now(design, wait=self._later is None)
        if outcome is None:
            assert self._later is not None
            job = self.predictions.request(design, self._later, self._hear)
        if before is not None:
            before.stop()  # after the new request, which may be for the same job
        self._job = job
        return outcome or (problems(design), None)

    def _hear(self, news: News) -> None:
        if isinstance(news, Progress):
            if not self.progress:
                self._show(self.design, [*problems(self.design), RUNS], None)
            self.progress = {"state": "runs", "share": news.share, "words": news.words}
            return
        self._job = None
        if isinstance(news, Done):
            self._show(self.design, *news.value)
        elif isinstance(news, Failed):
            self._show_stopped(f"the computation failed: {news.words}; compute again, undo, or change the design")

    def end(self) -> None:
        """Give up all computations, as when the tab is gone."""
        self._end_pinning()
        self._end_file()
        self._end_job()

    def _end_job(self) -> None:
        if self._job is not None:
            self._job.stop()
            self._job = None

    def stop(self) -> None:
        """Give it up and say so; the last good prediction stays."""
        if self.is_computing:
            self._end_job()
            self._show_stopped(STOPPED.message)

    def _show_stopped(self, words: str) -> None:
        self._show(self.design, [*problems(self.design), STOPPED.replace(params=words)], None)

    def compute_again(self) -> None:
        """Compute anew what was stopped."""
        if not self.is_computing and self.progress:
            self._show(self.design, *self._outcome(self.design))


def in_words(progress: Mapping[str, Any]) -> str:
    """How far a computation is, as ``Session.progress`` has it; empty where none goes on."""
    if not progress:
        return ""
    if progress["state"] == "stopped":
        return "The computation was stopped"
    doing = f", {progress['words']}" if progress["words"] else ""
    return f"Computing: {100 * progress['share']:.0f} %{doing}"


def _release(design: Design) -> Design:
    """Give up what was set stage by stage, or expert by expert, for another number of them, rather than refuse the edit."""
    design = expert_edits.release(design)
    try:
        count = design.stages
    except InputError:
        return design
    pipeline = design.pipeline
    given = {key: getattr(pipeline, key) for key in ("stages", "placement")}
    gone = {key: None for key, value in given.items() if value is not None and len(value) != count}
    return design.model_copy(update={"pipeline": pipeline.model_copy(update=gone)}) if gone else design


def _changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    if not path:
        return {**document, **value}
    steps = [int(index) if index else name for name, index in _STEP.findall(path)]
    here: Any = document
    try:
        for step in steps[:-1]:
            here = here[step]
        if isinstance(here, Mapping) and not isinstance(steps[-1], str):
            raise KeyError(steps[-1])
        here[steps[-1]] = value
    except (KeyError, IndexError, TypeError):
        raise InputError(f"there is nothing at {path} to change") from None
    return document
