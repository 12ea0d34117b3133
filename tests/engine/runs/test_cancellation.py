"""Runs are cancelled together when their command is interrupted."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.engine.findings import RunRefusal
from meshwave.engine.runs.cancellation import cancel_runs_on


class FakeRun:
    """A run that records its cancellation, or whose cluster does not answer."""

    def __init__(self, answers: bool = True) -> None:
        self.answers, self.is_cancelled = answers, False

    def cancel(self) -> None:
        if not self.answers:
            raise RunRefusal("cancel_pending", {"why": "no answer"})
        self.is_cancelled = True

    def wait(self, timeout_s: float) -> None:
        if not self.answers:
            raise RunRefusal("cancel_pending", {"why": "no answer"})


def test_a_run_that_cannot_be_cancelled_does_not_keep_the_others_or_hide_the_interrupt() -> None:
    runs: Any = [FakeRun(), FakeRun(), FakeRun(answers=False)]

    with pytest.raises(KeyboardInterrupt), cancel_runs_on(KeyboardInterrupt, runs):
        raise KeyboardInterrupt

    assert [run.is_cancelled for run in runs] == [True, True, False]
