"""Cancellation of runs whose command is interrupted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from meshwave.engine.errors import MeshwaveError
from meshwave.engine.runs.run import Run

CANCEL_TIMEOUT_S = 5.0
"""Maximum time, in seconds, to wait for the results of cancelled runs; processes usually end within 0.1 s."""


@contextmanager
def cancel_runs_on(error: type[BaseException], runs: Sequence[Run]) -> Iterator[None]:
    """Cancel runs and wait until they have ended, if an error of this class is raised in the context.

    A run that cannot be cancelled, for example because its cluster does not answer, does not prevent that of the others.
    """
    try:
        yield
    except error:
        for run in reversed(runs):  # the last one first, so that no queued run starts
            with suppress(MeshwaveError):
                run.cancel()
        end_s = time.monotonic() + CANCEL_TIMEOUT_S
        for run in runs:
            with suppress(MeshwaveError):
                run.wait(timeout_s=end_s - time.monotonic())
        raise
