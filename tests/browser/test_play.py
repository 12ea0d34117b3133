"""Playback of the step in a real browser, and saving a part of it."""

from __future__ import annotations

import re
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


TEXT_PIXELS = """async ([x, y, width, height]) => {
  const image = await createImageBitmap(await window.meshwaveTimeline.picture());
  const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(x, y, width, height);
  return data.filter((value, i) => i % 4 === 0 && value < 160).length;
}"""
"""Script that counts the dark pixels of a part of the picture."""


def test_the_titles_of_lanes_and_of_memory_stay_readable_while_later_spans_are_covered(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    drawn.page.mouse.move(5, 5)
    drawn.wait_for_paint_of_state()
    stage = drawn.page.locator(".mw-timeline-stage").bounding_box()
    memory = drawn.page.get_by_role("button", name="Memory of Open design").bounding_box()
    assert stage and memory
    titles = [[130, 22, 300, 18], [130, memory["y"] - stage["y"] + 2, 300, 15]]
    before = [drawn.page.evaluate(TEXT_PIXELS, title) for title in titles]
    lanes = [200, 60, 600, 10]
    spans = drawn.page.evaluate(TEXT_PIXELS, lanes)

    drawn.press_key(".")

    assert drawn.page.evaluate(TEXT_PIXELS, lanes) < 0.1 * spans
    for title, dark in zip(titles, before, strict=True):
        assert dark > 20
        assert drawn.page.evaluate(TEXT_PIXELS, title) == pytest.approx(dark, rel=0.2)


def test_the_playhead_keeps_its_time_in_a_changed_design_and_goes_with_another_one(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    for _ in range(8):
        drawn.press_key(".")
    time = drawn.ask("playhead")
    shown = drawn.page.get_by_role("toolbar", name="Play the step").get_by_role("status")
    text = shown.inner_text()

    drawn.show(layer(4, 16))
    assert drawn.ask("playhead") == pytest.approx(time, rel=1e-3)
    expect(shown).to_have_text(text)

    drawn.show(layer(1, 1))  # a step that is over before that time
    assert drawn.ask("playhead") == pytest.approx(drawn.ask("layers[0].makespan"))

    drawn.change(opened=1)
    drawn.wait_until("chart.playhead === null")
    expect(drawn.page.get_by_role("toolbar", name="Play the step")).to_be_hidden()


def test_the_toolbar_of_the_playback_answers_its_keys_and_returns_the_focus(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    tools = drawn.page.get_by_role("toolbar", name="Play the step")
    for key, button in (("Escape", "Next event"), ("Enter", "Stop playing")):
        drawn.press_key(".")
        first = drawn.ask("playhead")
        tools.get_by_role("button", name="Next event").press(".")
        assert drawn.ask("playhead") > first

        tools.get_by_role("button", name=button).press(key)

        expect(tools).to_be_hidden()
        assert drawn.ask("playhead") is None
        expect(drawn.page.locator(".mw-timeline-stage")).to_be_focused()


def test_times_in_unit_costs_have_their_unit(drawn: Drawn) -> None:
    drawn.change(can_note=True)
    drawn.show(layer(4, 8, unit="units"))
    drawn.press_key(".")
    expect(drawn.page.get_by_role("toolbar", name="Play the step").get_by_role("status")).to_have_text(
        re.compile(r"^[\d.]+ units?$")
    )

    drawn.press_key("Escape")
    drawn.page.mouse.click(*drawn.block(1, 1, 2), button="right")
    drawn.page.get_by_role("menuitem", name="Add a note here").click()
    expect(drawn.page.locator(".mw-timeline-panel header b")).to_have_text(re.compile(r"^Note at [\d.]+ units?$"))


def test_the_playback_ends_when_the_order_is_edited(drawn: Drawn) -> None:
    drawn.change(can_edit=True)
    drawn.show(layer(4, 8))
    drawn.press_key(".")

    drawn.press_key("e")

    assert drawn.ask("edit")["on"]
    assert drawn.ask("playhead") is None
