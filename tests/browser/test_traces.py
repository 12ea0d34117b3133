"""Traces of other tools that are opened or dropped on the page become runs that are overlaid on the prediction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.engine.imports.traced import design, trace_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser
FILES = "Design, schedule or trace files"
LAID_OVER = "window.meshwaveTimeline.layers.map(({ source }) => source).join() === 'predicted,measured'"


@pytest.fixture
def page(whole_page: Callable[..., Page]) -> Page:
    return whole_page(design(), launches=True)


def test_traces_of_processes_lie_over_the_prediction_and_calibrate(page: Page, tmp_path: Path) -> None:
    files = trace_of(tmp_path, lambda action: f"PP:{action}")
    predicted = page.evaluate("window.meshwaveTimeline.layers[0].makespan")

    page.get_by_label(FILES).set_input_files([str(file) for file in files])

    expect(page.get_by_role("alert")).to_contain_text("rank0.json, rank1.json is a run of this design")
    page.wait_for_function(LAID_OVER)
    measured = page.evaluate("window.meshwaveTimeline.layers[1].makespan")
    assert measured == pytest.approx(1.5 * predicted, rel=0.1)
    expect(page.locator(".mw-run .mw-state")).to_have_text("succeeded")

    page.get_by_role("button", name="Calibrate from this run").click()

    page.wait_for_function("([was]) => window.meshwaveTimeline.layers[0].makespan > 1.2 * was", arg=[predicted])


def test_times_of_stages_are_dropped_on_the_page(page: Page) -> None:
    transfer = page.evaluate_handle(
        """() => {
            const data = new DataTransfer();
            data.items.add(new File(["stage,forward_ms,backward_ms\\n0,10,20\\n1,30,60\\n"], "times.csv"));
            return data;
        }"""
    )

    page.dispatch_event("body", "drop", {"dataTransfer": transfer})

    page.wait_for_function(LAID_OVER)
    assert page.evaluate("window.meshwaveTimeline.layers[1].makespan") > 4 * 0.09


def test_a_trace_of_another_design_is_refused_in_words(page: Page, tmp_path: Path) -> None:
    [file, _] = trace_of(tmp_path, lambda action: f"PP:{action}")

    page.get_by_label(FILES).set_input_files(str(file))

    expect(page.get_by_role("alert")).to_contain_text("rank0.json was not opened")
    expect(page.get_by_role("alert")).to_contain_text("the trace lacks 8 computations of the design")
    assert page.evaluate("window.meshwaveTimeline.layers.length") == 1
