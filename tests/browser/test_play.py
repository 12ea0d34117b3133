"""Playback of the step in a real browser, and saving a part of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from meshwave.designer.views.timeline_columns import Layer
from tests.browser.drawn import Drawn, layer
from tests.designer.timelines import one_f_one_b

pytestmark = pytest.mark.browser


def test_the_step_is_played_continuously_and_event_by_event(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    makespan = drawn.ask("layers[0].makespan")
    drawn.press_key(".")
    first = drawn.ask("playhead")
    drawn.press_key(".")
    assert 0 < first < drawn.ask("playhead") < makespan
    drawn.press_key(",")
    assert drawn.ask("playhead") == pytest.approx(first)
    expect(drawn.page.get_by_role("toolbar", name="Play the step")).to_be_visible()

    drawn.page.emulate_media(reduced_motion="no-preference")
    drawn.page.get_by_label("Speed").select_option("4×")
    drawn.press_key("Space")
    drawn.wait_until(f"chart.playhead >= {0.99 * makespan}")
    drawn.page.emulate_media(reduced_motion="reduce")

    drawn.press_key("Escape")
    assert drawn.ask("playhead") is None


def test_the_timelines_of_both_halves_of_a_lane_are_named(drawn: Drawn) -> None:
    measured = Layer(one_f_one_b(4, 8, source="measured", slower=0.1), "Run 1", over=True)
    with drawn.record_texts():
        drawn.show(layer(4, 8), measured)

    written = drawn.page.evaluate("window.written")
    assert {"predicted", "measured"} <= {text for text, *_ in written}


def test_an_area_is_saved_as_csv(drawn: Drawn, tmp_path: Path) -> None:
    drawn.show(layer(4, 8))
    drawn.press_key("j")
    drawn.press_key("r")
    drawn.press_key("Shift+ArrowRight")
    with drawn.page.expect_download() as saved:
        drawn.page.get_by_role("button", name="Save as CSV").click()

    saved.value.save_as(tmp_path / "area.csv")
    head, *lines = (tmp_path / "area.csv").read_text().splitlines()
    assert head.startswith("mesh,action,kind,stage,microbatch")
    assert [line.split(",")[1] for line in lines if "forward" in line.split(",")[2]][:2] == ["0F0", "0F1"]
