"""State of the transfer lab: the document, its plan, and undo."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, NamedTuple

import param

from meshwave.designer.state import transfer_fields, transfer_links
from meshwave.designer.state.job_processes import Done, Failed, JobUpdate
from meshwave.designer.state.jobs import Job, Later, Listener
from meshwave.designer.state.transfer_drawing import TransferDrawing
from meshwave.designer.state.transfer_plans import draw_plan, is_small_transfer
from meshwave.engine.document.transfer_document import TransferSpec, parse_transfer
from meshwave.engine.errors import InputError
from meshwave.engine.findings import Problem, problems_of
from meshwave.engine.resharding import orderings, strategies

LONGEST_HISTORY = 500


class State(NamedTuple):
    """The part of the session that an edit changes and undo restores."""

    document: transfer_fields.Document
    strategy: str
    ordering: str


class Step(NamedTuple):
    """An entry of the undo history: the state to restore and the label of the undone edit."""

    state: State
    label: str


class TransferSession(param.Parameterized):
    """An open transfer.

    An edit that makes the document invalid is kept: ``problems`` lists what is wrong, and ``drawing`` stays the last
    valid one.
    """

    state: Any = param.Parameter(doc="The open document, strategy and ordering.")
    drawing: Any = param.ClassSelector(
        class_=TransferDrawing, doc="TransferDrawing of the last document that could be planned."
    )
    problems = param.List(default=[], item_type=Problem)
    history = param.Tuple(default=("", ""), doc="Labels of the edits that undo and redo apply to; empty for none.")

    def __init__(
        self, spec: TransferSpec, strategy: str = "broadcast", ordering: str = "ensemble", later: Later | None = None
    ) -> None:
        """Open a transfer.

        Args:
            spec: the transfer.
            strategy: name of the strategy.
            ordering: name of the ordering.
            later: schedules a callback in the page's event loop; if given, large transfers are planned by jobs.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.later = later
        self._job: Listener | None = None
        self.open(spec, strategy, ordering)

    def open(self, spec: TransferSpec, strategy: str, ordering: str) -> None:
        """Open a transfer and clear the undo history."""
        self._past: list[Step] = []
        self._future: list[Step] = []
        self._plan_and_show(State(transfer_links.transfer_document(spec), strategy, ordering))

    @property
    def is_stale(self) -> bool:
        """True if the drawing is of an earlier document, because this one is invalid or being planned."""
        return bool(self.problems) or self.is_planning

    @property
    def is_planning(self) -> bool:
        """True while a job plans the document."""
        return self._job is not None

    def stop_jobs(self) -> None:
        """Stop the job that plans the document, if there is one."""
        if self._job is not None:
            self._job.stop()
            self._job = None

    def edit(self, document: transfer_fields.Document, label: str) -> None:
        """Replace the document as one undo step."""
        self._push_step(self.state._replace(document=document), label)

    def choose(self, strategy: str, ordering: str) -> None:
        """Plan with another strategy and ordering.

        Raises:
            InputError: the strategy or ordering is unknown.
        """
        title = f"{strategies[strategy].title}, {orderings[ordering].title}"
        self._push_step(self.state._replace(strategy=strategy, ordering=ordering), title)

    def load(self, text: str | bytes, label: str, strategy: str | None = None, ordering: str | None = None) -> None:
        """Open the text of a file or of a link, as one undo step.

        Raises:
            DesignError: the transfer is invalid; nothing is changed.
            InputError: the strategy or ordering is unknown.
        """
        state = State(
            transfer_links.transfer_document(parse_transfer(text)),
            strategy or self.state.strategy,
            ordering or self.state.ordering,
        )
        _check_names(state)
        self._push_step(state, label)

    def undo(self) -> None:
        """Revert the last edit."""
        if self._past:
            step = self._past.pop()
            self._future.append(Step(self.state, step.label))
            self._plan_and_show(step.state)

    def redo(self) -> None:
        """Apply the last reverted edit again."""
        if self._future:
            step = self._future.pop()
            self._past.append(Step(self.state, step.label))
            self._plan_and_show(step.state)

    def _push_step(self, state: State, label: str) -> None:
        if state == self.state:
            return
        self._past = [*self._past, Step(self.state, label)][-LONGEST_HISTORY:]
        self._future = []
        self._plan_and_show(state)

    def _plan_and_show(self, state: State) -> None:
        self.stop_jobs()
        self._update(state, *self._plan(state))

    def _update(self, state: State, problems: list[Problem], drawing: TransferDrawing | None) -> None:
        with param.parameterized.batch_call_watchers(self):
            self.state = state
            self.problems = problems
            if drawing is not None:
                self.drawing = drawing
            self.history = (
                self._past[-1].label if self._past else "",
                self._future[-1].label if self._future else "",
            )

    def _plan(self, state: State) -> tuple[list[Problem], TransferDrawing | None]:
        """Return the problems and the drawing of a state; a large transfer is planned by a job and returns neither."""
        try:
            spec = parse_transfer(json.dumps(state.document))
            if self.later is None or is_small_transfer(spec):
                return [], TransferDrawing.from_spec(spec, state.strategy, state.ordering)
            _check_names(state)
        except InputError as error:
            return list(problems_of(error)), None
        work = partial(draw_plan, spec, state.strategy, state.ordering)
        self._job = Job(work, "plan of a transfer").add_listener(self.later, self._receive_update)
        return [], None

    def _receive_update(self, update: JobUpdate) -> None:
        if isinstance(update, Done | Failed):
            self._job = None
            found = update.value if isinstance(update, Done) else None
            problems = [Problem("", "error", {"reason": update.reason})] if isinstance(update, Failed) else []
            self._update(self.state, problems, found)


def _check_names(state: State) -> None:
    """Check that the strategy and the ordering exist."""
    strategies[state.strategy], orderings[state.ordering]
