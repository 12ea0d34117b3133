"""Stragglers of a run are announced on the page, marked on the timeline, and simulated."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from meshwave.engine.runs import Run, State
from meshwave.engine.runs.launchers.local import LocalLauncher
from meshwave.engine.runs.options import PLAIN, REHEARSAL, Options
from tests.engine.runs.play import draw, processes, submit, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from meshwave.designer.state.studio import Studio
    from meshwave.engine.runs.process_identity import Handle
    from tests.browser.conftest import Server

pytestmark = [pytest.mark.browser, pytest.mark.torch]
RUN_MS = 60_000
EVEN_STEPS = 24

Launch = Callable[..., Run]


@pytest.fixture
def launch(studio: Studio) -> Iterator[Launch]:
    """Launch a design with two processes in one mesh."""
    launcher = LocalLauncher(studio.record)

    def start(options: Options = PLAIN, **training: Any) -> Run:
        model = {"kind": "gpt", "layers": 2, "hidden": 64, "heads": 2, "sequence": 64, "vocab": 256}
        training = {"lr": 0.01, "micro_batch_size": 2, **training}
        return submit(launcher, draw(pp=1, dp=2, model=model, training=training), options)

    yield start
    launcher.close()


STOP_AGAIN_AND_AGAIN = """
import os, signal, sys, time
while True:
    for number, seconds in ((signal.SIGSTOP, 0.02), (signal.SIGCONT, 0.005)):
        os.kill(int(sys.argv[1]), number)
        time.sleep(seconds)
"""


@contextmanager
def stop_intermittently(process: Handle) -> Iterator[None]:
    """Stop a process for four fifths of the time.

    Another process sends the signals. A thread waits for the server of the page, so that most steps are not slow.
    """
    stopping = subprocess.Popen(
        [sys.executable, "-c", STOP_AGAIN_AND_AGAIN, str(process.pid)], stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        stopping.kill()
        stopping.wait()
        process.send(signal.SIGCONT)


def badge(page: Page) -> Locator:
    return page.get_by_role("tab", name="Slowdowns").locator(".mw-tab-badge")


@pytest.mark.nightly
def test_a_slow_process_is_announced_marked_and_simulated(
    kept_server: Server, visit: Callable[[str], Page], served_page: Page, launch: Launch
) -> None:
    run = launch(steps=10_000)
    wait_until(lambda: run.progress.done > 2)
    with stop_intermittently(processes(run)[1]):
        page = visit(f"{kept_server.link}?run={run.id}")
        notice = page.locator(".mw-notice[role=status]")
        expect(notice).to_contain_text(re.compile("times as long"), timeout=RUN_MS)  # also of another slowdown
        expect(badge(page)).to_be_visible()
        page.wait_for_function("window.meshwaveTimeline.slow.join() === 'M0'")
        lanes = page.locator(".mw-timeline-stage")
        expect(lanes).to_have_attribute("aria-label", re.compile("on mesh M0, process 1 takes"), timeout=RUN_MS)
        page.get_by_role("tab", name="Slowdowns").click()
        found = page.locator(".mw-straggler-list li", has_text="process 1")
        expect(found.locator("[data-code]")).to_have_attribute("data-code", "slow_process")
        expect(found.locator("[data-code]")).to_have_attribute("data-where", "meshes[0]")
        run.cancel()
        assert run.wait(timeout_s=30) is State.CANCELLED

    found.get_by_role("button", name="Simulate").click()
    expect(page.locator(".mw-slow-result")).to_contain_text("of the throughput is lost")
    expect(page.get_by_label("Slow device")).to_have_value("1")
    page.wait_for_function("window.meshwaveTimeline.layers[0].label === 'With slowdowns'")

    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".mw-slow-result")).to_be_hidden()
    page.wait_for_function("window.meshwaveTimeline.layers[0].label !== 'With slowdowns'")


@pytest.mark.nightly
def test_nothing_is_announced_when_all_processes_are_equally_fast(
    kept_server: Server, visit: Callable[[str], Page], served_page: Page, launch: Launch
) -> None:
    run = launch(REHEARSAL, steps=EVEN_STEPS)
    page = visit(f"{kept_server.link}?run={run.id}")
    page.get_by_role("tab", name="Run", exact=True).click()
    expect(page.locator(".mw-run .mw-state")).to_have_text("succeeded", timeout=RUN_MS)

    page.get_by_role("tab", name="Slowdowns").click()
    page.wait_for_function("window.meshwaveTimeline.layers.length === 2")
    expect(page.get_by_text("No straggler was found")).to_be_visible()
    expect(badge(page)).to_be_hidden()
    expect(page.locator(".mw-notice[role=status]")).to_be_empty()
    assert page.evaluate("window.meshwaveTimeline.slow") == []
