"""Entries of the run database: the state, the place and the data of a run."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticKnownError, from_json

from meshwave.engine.run_files import Count, RunFile


class State(StrEnum):
    """State of a run. The last four are final."""

    QUEUED = "QUEUED"  # waits until other runs of its launch target have ended
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    LOST = "LOST"  # the process that launched it has ended, so the outcome is unknown

    @property
    def is_over(self) -> bool:
        """True if the state is final."""
        return self not in NEXT_STATES


NEXT_STATES: Mapping[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.STARTING, State.FAILED, State.CANCELLED, State.LOST}),
    State.STARTING: frozenset({State.RUNNING, State.FAILED, State.CANCELLED, State.LOST, State.QUEUED}),
    State.RUNNING: frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST, State.QUEUED}),
}
"""States that can follow each state that is not final."""

Seconds = Annotated[float, Field(ge=0, le=2e11)]
"""Time in Unix seconds, up to the year 8307."""


class Transition(NamedTuple):
    """Change of the state of a run."""

    state: State
    time_s: float  # Unix seconds
    reason: str


class Place(NamedTuple):
    """Launcher and target of a run. Runs of the same place share one queue."""

    launcher: str
    target: str | None = None


def _parse_column(value: Any) -> Any:
    """Return the data in a column of JSON text."""
    try:
        return from_json(value) if isinstance(value, str) else value
    except ValueError as error:
        raise PydanticKnownError("json_invalid", {"error": str(error)}) from None


class Entry(RunFile):
    """Entry of a run in the database. Times are in Unix seconds."""

    id: str
    key: str | None
    name: str
    state: Annotated[State, Field(strict=False)]
    reason: str
    launcher: str
    handle: Annotated[dict[str, Any], BeforeValidator(_parse_column)]
    """Data by which the launcher finds the run again."""
    digest: str
    """Hash of the program."""
    processes: Count
    steps: Count
    created_s: Seconds
    started_s: Seconds | None
    finished_s: Seconds | None
    manner: str = ""
    """Text on how it differs from plain training, such as "dry run, time x 40"."""
    is_rehearsal: Annotated[bool, Field(strict=False)] = False
    """True for a dry run; an integer in SQLite."""
    person: str = ""
    """ID of the workshop learner who launched it; empty for the user."""

    @property
    def place(self) -> Place:
        """Launcher and target of the run."""
        return Place(self.launcher, self.handle.get("target"))
