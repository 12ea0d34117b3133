"""Presses of − and + that are faster than the responses, in a real browser: each press counts once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, expect

from meshwave.designer.canvases.wave import WaveCanvas
from meshwave.designer.state.design_session import Session
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from tests.browser.gestures import eventually

if TYPE_CHECKING:
    from tests.browser.conftest import Stage

pytestmark = pytest.mark.browser

ANSWERS_AFTER_S = 0.12


class Slow:
    """The wave canvas on a session with slow edits."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.session = Session(load_design(example("02-two-waves")))
        self.before = self.session.design.pipeline.microbatches
        self.edits: list[int] = []

    def page(self) -> WaveCanvas:
        wave = WaveCanvas(self._edit, width=900, height=300)
        self.session.param.watch(lambda *_: self._show(wave), "design")
        self._show(wave)
        return wave

    def _edit(self, path: str, value: Any, label: str) -> None:
        time.sleep(ANSWERS_AFTER_S)
        self.session.edit(path, value, label)
        self.edits.append(value)

    def _show(self, wave: WaveCanvas) -> None:
        prediction = self.session.prediction
        wave.show(self.session.design, prediction.program, prediction.costs)

    def undone(self) -> int:
        """Return the number of undo steps."""
        steps = 0
        while self.session.history[0]:
            self.stage.run(self.session.undo)
            steps += 1
        return steps


@pytest.fixture
def page(stage: Stage) -> Page:
    return stage.page


@pytest.fixture
def slow_page(stage: Stage, page: Page) -> Slow:
    slow_page = Slow(stage)
    stage.show(slow_page.page)
    page.locator(".mw-stage").first.wait_for()
    return slow_page


def wait_for_edits(page: Page, slow_page: Slow, presses: int) -> None:
    """Wait until Python has handled the expected number of edits and one more press, so that additional edits are
    noticed.
    """
    eventually(page, lambda: len(slow_page.edits) >= presses)
    expect(page.get_by_label("microbatches", exact=True)).to_have_value(str(slow_page.edits[-1]))
    page.get_by_role("button", name="Increase microbatches").click()
    eventually(page, lambda: slow_page.edits[-1] == slow_page.edits[presses - 1] + 1)
    assert len(slow_page.edits) == presses + 1
    slow_page.stage.run(slow_page.session.undo)
    slow_page.edits.pop()
    expect(page.get_by_label("microbatches", exact=True)).to_have_value(str(slow_page.edits[-1]))


def shown(page: Page) -> int:
    return int(page.get_by_label("microbatches", exact=True).input_value())


def test_fast_clicks_are_all_counted(page: Page, slow_page: Slow) -> None:
    more = page.get_by_role("button", name="Increase microbatches")

    for _ in range(12):  # answers to the first arrive between the last
        more.click(delay=0)
        page.wait_for_timeout(25)
    assert shown(page) == slow_page.before + 12  # at once, whatever is answered

    wait_for_edits(page, slow_page, 12)
    assert shown(page) == slow_page.before + 12
    assert slow_page.edits == [slow_page.before + step for step in range(1, 13)]
    assert slow_page.undone() == 12


def test_fast_clicks_in_both_directions_are_all_counted(page: Page, slow_page: Slow) -> None:
    signs = [1, 1, -1, 1, -1, -1, 1, 1]

    for sign in signs:
        page.get_by_role("button", name=f"{'Increase' if sign > 0 else 'Decrease'} microbatches").click()
        page.wait_for_timeout(40)
    wait_for_edits(page, slow_page, len(signs))

    assert shown(page) == slow_page.before + sum(signs)
    assert slow_page.session.design.pipeline.microbatches == slow_page.before + sum(signs)


def test_fast_key_presses_are_all_counted(page: Page, slow_page: Slow) -> None:
    page.get_by_role("button", name="Increase microbatches").focus()
    for _ in range(5):
        page.keyboard.press("Enter")
    page.get_by_label("microbatches", exact=True).focus()
    for _ in range(5):
        page.keyboard.press("ArrowUp")
        page.wait_for_timeout(30)
    wait_for_edits(page, slow_page, 10)

    assert shown(page) == slow_page.before + 10
    assert slow_page.undone() == 10


def test_a_refused_step_is_reverted(page: Page, slow_page: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshwave.engine.errors import InputError

    def refuse(path: str, value: Any, label: str) -> None:
        time.sleep(ANSWERS_AFTER_S)
        raise InputError("not today")

    monkeypatch.setattr(slow_page.session, "edit", refuse)
    more = page.get_by_role("button", name="Increase microbatches")
    more.click()
    more.click()
    assert shown(page) == slow_page.before + 2

    eventually(page, lambda: shown(page) == slow_page.before)
