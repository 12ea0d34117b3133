"""What one transfer under work holds: its document, what follows from it, and the way back."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, NamedTuple

import param

from meshwave.designer.state import transfer_fields, transfer_links
from meshwave.designer.state.jobs import Done, Failed, Job, Later, Listener, News
from meshwave.designer.state.transfer_drawing import Drawing
from meshwave.designer.state.transfer_plans import drawing, is_small
from meshwave.engine.document.transfer_document import TransferSpec, parse_transfer
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.resharding import orderings, strategies

LONGEST_HISTORY = 500


class State(NamedTuple):
    """What an edit changes."""

    document: transfer_fields.Document
    strategy: str
    ordering: str


class Step(NamedTuple):
    """A state to go back or forth to, and the edit between in words."""

    state: State
    label: str


class Bench(param.Parameterized):
    """A transfer under work. An edit that leaves the document wrong is kept: ``problems`` says what is
    wrong, and ``drawing`` stays the last good one."""

    state: Any = param.Parameter(doc="See State.")
    drawing: Any = param.ClassSelector(class_=Drawing, doc="Of the last document that could be planned.")
    problems = param.List(default=[], item_type=Problem)
    history = param.Tuple(default=("", ""), doc="What undo and redo would do, in words; empty for nothing.")

    def __init__(
        self, spec: TransferSpec, strategy: str = "broadcast", ordering: str = "ensemble", later: Later | None = None
    ) -> None:
        """With ``later`` a plan that takes long holds nobody up: its drawing comes when it is there."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._later = later
        self._job: Listener | None = None
        self.open(spec, strategy, ordering)

    def open(self, spec: TransferSpec, strategy: str, ordering: str) -> None:
        """Begin anew with a transfer: nothing leads back to what was before."""
        self._past: list[Step] = []
        self._future: list[Step] = []
        self._show(State(transfer_links.as_document(spec), strategy, ordering))

    @property
    def is_stale(self) -> bool:
        """Whether the drawing is of an earlier document, since this one is wrong or is being planned."""
        return bool(self.problems) or self.is_planning

    @property
    def is_planning(self) -> bool:
        return self._job is not None

    def end(self) -> None:
        """Give up a plan that is being made, as when the page is gone."""
        if self._job is not None:
            self._job.stop()
            self._job = None

    def edit(self, document: transfer_fields.Document, label: str) -> None:
        """Put another document in place, as one step of undo."""
        self._step_to(self.state._replace(document=document), label)

    def choose(self, strategy: str, ordering: str) -> None:
        """Plan by another strategy and ordering.

        Raises:
            InputError: there are no such.
        """
        title = f"{strategies[strategy].title}, {orderings[ordering].title.lower()}"
        self._step_to(self.state._replace(strategy=strategy, ordering=ordering), title)

    def load(self, text: str | bytes, label: str, strategy: str | None = None, ordering: str | None = None) -> None:
        """Open the text of a file or of a link, as one step of undo.

        Raises:
            DesignError: it is no sound transfer; nothing is changed.
            InputError: there is no such strategy or ordering.
        """
        state = State(
            transfer_links.as_document(parse_transfer(text)),
            strategy or self.state.strategy,
            ordering or self.state.ordering,
        )
        _known(state)
        self._step_to(state, label)

    def undo(self) -> None:
        if self._past:
            step = self._past.pop()
            self._future.append(Step(self.state, step.label))
            self._show(step.state)

    def redo(self) -> None:
        if self._future:
            step = self._future.pop()
            self._past.append(Step(self.state, step.label))
            self._show(step.state)

    def _step_to(self, state: State, label: str) -> None:
        if state == self.state:
            return
        self._past = [*self._past, Step(self.state, label)][-LONGEST_HISTORY:]
        self._future = []
        self._show(state)

    def _show(self, state: State) -> None:
        self.end()
        self._tell(state, *self._planned(state))

    def _tell(self, state: State, problems: list[Problem], drawing: Drawing | None) -> None:
        with param.parameterized.batch_call_watchers(self):
            self.state = state
            self.problems = problems
            if drawing is not None:
                self.drawing = drawing
            self.history = (
                self._past[-1].label if self._past else "",
                self._future[-1].label if self._future else "",
            )

    def _planned(self, state: State) -> tuple[list[Problem], Drawing | None]:
        """What is known of a state at once; a large plan is made beside the page."""
        try:
            spec = parse_transfer(json.dumps(state.document))
            if self._later is None or is_small(spec):
                return [], Drawing.of(spec, state.strategy, state.ordering)
            _known(state)
        except InputError as error:
            return _refused(error), None
        work = partial(drawing, spec, state.strategy, state.ordering)
        self._job = Job(work).listen(self._later, self._hear)
        return [], None

    def _hear(self, news: News) -> None:
        if isinstance(news, Done | Failed):
            self._job = None
            found = news.value if isinstance(news, Done) else None
            problems = [Problem("", "plan", news.words)] if isinstance(news, Failed) else []
            self._tell(self.state, problems, found)


def _refused(error: InputError) -> list[Problem]:
    return list(error.problems) if isinstance(error, DesignError) else [Problem("", "plan", str(error))]


def _known(state: State) -> None:
    """
    Raises:
        InputError: there is no such strategy or ordering.
    """
    strategies[state.strategy], orderings[state.ordering]
