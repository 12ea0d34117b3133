"""A process is identified by its start time too, so that another process with the same ID is never signalled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from meshwave.engine.runs.process_identity import handle, own_handle


@pytest.fixture
def sleeping_process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def test_a_process_is_alive_until_it_ends(sleeping_process: subprocess.Popen[bytes]) -> None:
    found = handle(sleeping_process.pid)

    assert found is not None
    assert found.is_alive()
    assert found.kill()
    os.waitid(os.P_PID, sleeping_process.pid, os.WEXITED | os.WNOWAIT)  # ended, and its number still taken
    assert not found.is_alive()
    assert handle(sleeping_process.pid) is None


@pytest.mark.parametrize("other", [{"born": "1"}, {"boot": "an earlier start of the machine"}])
def test_a_process_with_a_reused_number_is_not_signalled(
    sleeping_process: subprocess.Popen[bytes], other: dict[str, str]
) -> None:
    now = handle(sleeping_process.pid)
    assert now is not None
    then = now._replace(**other)

    assert not then.is_alive()
    assert not then.kill()
    assert now.is_alive()


def test_an_unused_process_number_has_no_handle(sleeping_process: subprocess.Popen[bytes]) -> None:
    gone = own_handle()._replace(pid=2**22 + 1)  # beyond what Linux gives out

    assert not gone.is_alive()
    assert not gone.kill()
