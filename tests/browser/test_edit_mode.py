"""Edit mode in a real browser: orders edited by pointer and keyboard, messages of the page, and undo."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, expect

from meshwave.designer.pages.timeline_content import TimelineContent
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.order_edits import OrderEditor
from meshwave.designer.views.timeline import TimelineChart
from meshwave.engine.document import parse_design
from meshwave.engine.program.program import format_program
from tests._strategies import document
from tests.browser.gestures import eventually

if TYPE_CHECKING:
    from meshwave.engine.document import Design
    from tests.browser.conftest import Stage

pytestmark = pytest.mark.browser

SIZE = {"width": 1440, "height": 420}


@dataclass
class Editor:
    """A timeline in edit mode, and the session behind it."""

    page: Page
    session: Session

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = self.page.evaluate("window.meshwaveTimeline.edit")
        return found

    def wait_until(self, holds: Callable[[dict[str, Any]], Any]) -> None:
        try:
            eventually(self.page, lambda: holds(self.facts()))
        except AssertionError as error:
            raise AssertionError(f"the state is {self.facts()}") from error

    def block(self, stage: int, mb: int, op: str = "F") -> tuple[float, float]:
        """Return the middle of a block after it is drawn."""
        box = self._box(stage, mb, op)
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def start(self, stage: int, mb: int, op: str = "F") -> tuple[float, float]:
        """Return a point just inside the left end of a block."""
        box = self._box(stage, mb, op)
        return box["x"] + 2, box["y"] + box["height"] / 2

    def _box(self, stage: int, mb: int, op: str) -> dict[str, float]:
        ask = f"window.meshwaveTimeline.blockAt({stage}, {stage}, {mb}, '{op}')"
        self.page.wait_for_function(ask)
        box: dict[str, float] = self.page.evaluate(ask)
        return box

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag a block over a place without dropping it."""
        self.page.mouse.move(*start)
        self.page.mouse.down()
        self.page.mouse.move((start[0] + end[0]) / 2, start[1], steps=3)
        self.page.mouse.move(*end, steps=3)

    def drop(self) -> None:
        self.page.mouse.up()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.locator(".mw-timeline-stage").press(key)

    def button(self, name: str) -> Any:
        return self.page.locator(".mw-order").get_by_role("button", name=name)

    @property
    def words(self) -> str:
        return str(self.page.locator(".mw-order-text").inner_text())

    def wait_for_text(self, words: str) -> None:
        expect(self.page.locator(".mw-order-text")).to_contain_text(words)

    def wait_for_python(self) -> None:
        """Wait until Python has responded to a request, and thus has handled all earlier gestures."""
        self.drag(self.block(2, 4), self.start(2, 2, "B"))
        self.wait_until(lambda facts: facts["preview"])
        self.page.keyboard.press("Escape")
        self.wait_until(lambda facts: not facts["moving"])
        self.drop()

    def order(self, rank: int) -> list[str]:
        cells: list[list[str]] = format_program(self.session.prediction.program, compute_only=True)
        return cells[rank]


@pytest.fixture
def editor(stage: Stage) -> Editor:
    import panel as pn

    session = Session(parse_design(document({"schedule": "1f1b", "microbatches": 8}, 4)))

    def app() -> pn.Column:
        chart = TimelineChart(can_edit=True, sizing_mode="stretch_both", min_height=SIZE["height"])
        chart.on_order = OrderEditor(session, chart.send).handle
        TimelineContent(session, chart, lambda prediction: None).refresh()
        return pn.Column(chart, sizing_mode="stretch_both", margin=0)

    page = stage.show(app, SIZE)
    page.wait_for_function("window.meshwaveTimeline?.layers.length === 1")
    found = Editor(page, session)
    page.locator(".mw-timeline-stage").focus()
    found.press("e")
    found.wait_until(lambda facts: facts["on"])
    return found


def test_edit_mode_is_hidden_until_it_is_switched_on(editor: Editor) -> None:
    tools = editor.page.locator(".mw-order")
    expect(tools).to_be_visible()
    editor.wait_for_text("The first move turns 1F1B into a custom order")
    expect(editor.button("Repeat")).to_be_hidden()

    editor.press("Escape")

    expect(tools).to_be_hidden()
    editor.page.mouse.click(*editor.block(1, 1))
    assert editor.page.evaluate("window.meshwaveTimeline.pinned")["mb"] == 1  # a click pins again
    editor.page.get_by_role("button", name="Edit order").click()
    editor.wait_until(lambda facts: facts["on"])
    assert editor.page.evaluate("window.meshwaveTimeline.pinned") is None


def test_no_run_is_overlaid_on_an_edited_order(editor: Editor, stage: Stage) -> None:
    session = editor.session

    def overlay() -> None:
        session.measured = replace(session.prediction.timeline, source="measured")
        session.param.trigger("prediction")

    stage.run(overlay)
    editor.page.wait_for_function("window.meshwaveTimeline.layers.length === 2")
    assert editor.page.evaluate("window.meshwaveTimeline.blockAt(1, 1, 1, 'F', 1)") is None
    alone = editor.page.evaluate("window.meshwaveTimeline.blockAt(1, 1, 1)")["height"]

    editor.press("Escape")
    editor.wait_until(lambda facts: not facts["on"])

    editor.page.wait_for_function("window.meshwaveTimeline.blockAt(1, 1, 1, 'F', 1)")
    assert editor.page.evaluate("window.meshwaveTimeline.blockAt(1, 1, 1)")["height"] < alone


# ---- by mouse ----


def test_a_block_is_moved_by_mouse_and_its_effect_is_shown(editor: Editor) -> None:
    editor.drag(editor.block(2, 3), editor.start(2, 1, "B"))
    editor.wait_until(lambda facts: facts["preview"] and not facts["isAsking"])

    found = editor.facts()
    assert found["moving"] == {"kind": "move", "blocks": [[0, 2, 3]], "before": [1, 2, 1]}
    assert found["preview"]["makespan"] == [33, 36]
    assert found["preview"]["later"] == 40
    editor.wait_for_text("Move 2F3 before 2B1")
    editor.wait_for_text("step time 33 → 36 (+9.1")
    editor.wait_for_text("memory of m2 +")
    assert editor.session.design.pipeline.schedule == "1f1b"  # nothing is changed before the drop
    editor.drop()
    editor.wait_until(lambda facts: not facts["moving"] and "custom" in editor.words)

    assert editor.session.design.pipeline.schedule == "custom"
    order = editor.order(2)
    assert order.index("2F3") == order.index("2B1") - 1
    editor.wait_for_text("The schedule is now custom; undo restores 1F1B")
    assert editor.session.history[0] == "move 2F3 before 2B1: 1F1B becomes custom"


@pytest.mark.parametrize("by_keys", [False, True])
def test_a_move_goes_on_when_an_earlier_edit_is_drawn(by_keys: bool, editor: Editor, stage: Stage) -> None:
    if by_keys:
        editor.page.mouse.click(*editor.block(2, 3))
        editor.press("Alt+ArrowRight")
    else:
        editor.drag(editor.block(2, 3), editor.start(2, 1, "B"))
    editor.wait_until(lambda facts: facts["preview"])
    stage.run(lambda: editor.session.edit("pipeline.microbatches", 9, "an earlier edit"))
    editor.block(2, 8)  # of the new microbatch
    editor.wait_until(lambda facts: facts["preview"] and not facts["isAsking"])
    if by_keys:
        assert editor.facts()["moving"] == {"kind": "shift", "blocks": [[0, 2, 3]], "by": 1}
        editor.press("Enter")
    else:
        editor.page.mouse.move(*editor.start(2, 1, "B"))
        editor.wait_until(lambda facts: facts["moving"] == {"kind": "move", "blocks": [[0, 2, 3]], "before": [1, 2, 1]})
        editor.drop()
    editor.wait_until(lambda facts: not facts["moving"] and "custom" in editor.words)
    order = editor.order(2)
    assert "2B8" in order
    assert order.index("2F3") == (order.index("2B2") + 1 if by_keys else order.index("2B1") - 1)


def test_a_drag_ends_when_its_block_has_gone(editor: Editor, stage: Stage) -> None:
    editor.drag(editor.block(2, 7), editor.start(2, 1, "B"))
    editor.wait_until(lambda facts: facts["preview"])
    stage.run(lambda: editor.session.edit("pipeline.microbatches", 6, "an edit of another person"))
    editor.wait_until(lambda facts: not facts["moving"] and not facts["selected"])
    editor.drop()
    editor.wait_for_python()
    assert editor.session.design.pipeline.schedule == "1f1b"


def test_escape_cancels_a_move(editor: Editor) -> None:
    editor.drag(editor.block(2, 3), editor.start(2, 1, "B"))
    editor.wait_until(lambda facts: facts["preview"])
    editor.page.keyboard.press("Escape")
    editor.wait_until(lambda facts: not facts["moving"])
    editor.drop()

    assert editor.facts()["on"]
    editor.wait_for_python()
    assert editor.session.design.pipeline.schedule == "1f1b"


def test_a_block_moved_back_changes_nothing(editor: Editor) -> None:
    editor.drag(editor.block(2, 3), editor.start(2, 1, "B"))
    editor.wait_until(lambda facts: facts["preview"])
    editor.page.mouse.move(*editor.block(2, 3))
    editor.wait_until(lambda facts: facts["moving"] is None and facts["preview"] is None)
    editor.drop()

    editor.wait_for_python()
    assert editor.session.history == ("", "")


def test_a_deadlocked_order_is_shown_and_repaired(editor: Editor) -> None:
    editor.drag(editor.block(1, 2, "B"), editor.start(1, 1))
    editor.wait_until(lambda facts: facts["preview"] and facts["preview"]["fault"])

    found = editor.facts()["preview"]
    assert found["fault"].startswith("deadlock: mesh m1 waits at 1B2")
    assert "1B2" in found["ring"]
    editor.wait_for_text("This position makes the order invalid")
    editor.drop()
    editor.wait_until(lambda facts: facts["fault"] and not facts["moving"])

    assert [problem.where for problem in editor.session.errors] == ["pipeline.actions[1][1]"]
    assert editor.facts()["ring"]
    assert editor.page.evaluate("window.meshwaveTimeline.layers.length") == 1
    starts = [editor.page.evaluate(f"window.meshwaveTimeline.blockAt(1, 1, {mb}, '{op}').x") for op, mb in ("B2", "F1")]
    assert starts == sorted(starts)  # the order as it was edited
    blocked = editor.page.evaluate("window.meshwaveTimeline.blocked")
    assert {"1B2", "1F1"} <= set(blocked)
    assert not {"0F0", "1F0"} & set(blocked)
    expect(editor.page.locator(".mw-timeline-legend")).to_contain_text("blocked by the deadlock")
    editor.button("Repair").click()
    editor.wait_until(lambda facts: "Moved 1B2 (1 change, the fewest possible)" in editor.words)

    assert editor.session.errors == []
    assert editor.facts()["fault"] == ""
    assert editor.page.evaluate("window.meshwaveTimeline.blocked") == []
    expect(editor.page.locator(".mw-timeline-legend")).not_to_contain_text("blocked by the deadlock")
    expect(editor.button("Repair")).to_be_hidden()


def test_blocks_are_selected_by_a_rectangle(editor: Editor) -> None:
    mouse, keyboard = editor.page.mouse, editor.page.keyboard
    (x0, y0), (x1, y1) = editor.start(0, 0), editor.block(1, 1)
    keyboard.down("Shift")
    mouse.move(x0 - 8, y0)
    mouse.down()
    mouse.move(x1, y1, steps=4)
    mouse.up()
    mouse.click(*editor.block(3, 5, "B"))
    keyboard.up("Shift")

    assert set(editor.facts()["selected"]) == {"0F0", "0F1", "0F2", "1F0", "1F1", "3B5"}
    editor.page.keyboard.down("Shift")
    mouse.click(*editor.block(3, 5, "B"))
    editor.page.keyboard.up("Shift")
    assert "3B5" not in editor.facts()["selected"]


# ---- by keyboard ----


def test_blocks_are_selected_and_moved_by_keys(editor: Editor) -> None:
    editor.press("ArrowRight", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "Enter")
    assert editor.facts()["selected"] == ["3B0"]

    editor.press("Alt+ArrowRight")
    editor.wait_until(lambda facts: facts["preview"])
    editor.wait_for_text("Move 3B0 1 place later")
    editor.press("Shift+ArrowRight")
    editor.wait_until(lambda facts: facts["moving"]["by"] == 2 and facts["preview"]["fault"] == "")
    editor.press("Alt+ArrowLeft")
    editor.wait_until(lambda facts: facts["moving"]["by"] == 1)
    editor.press("Enter")
    editor.wait_until(lambda facts: "schedule is now custom" in editor.words)

    assert editor.order(3)[:3] == ["3F0", "3F1", "3B0"]
    assert editor.facts()["selected"] == ["3B0"]  # and stays so

    editor.press("Escape", "Escape")
    assert not editor.facts()["on"]


def test_shift_enter_selects_more_blocks(editor: Editor) -> None:
    editor.press("ArrowRight", "Enter", "ArrowRight", "Shift+Enter")
    assert editor.facts()["selected"] == ["0F0", "0F1"]
    editor.press("Shift+Enter")
    assert editor.facts()["selected"] == ["0F0"]


# ---- patterns, halves, slots, differences ----


def test_a_move_is_repeated_and_the_differences_are_marked(editor: Editor) -> None:
    editor.drag(editor.block(3, 4), editor.start(3, 3, "B"))
    editor.wait_until(lambda facts: facts["preview"])
    editor.drop()
    editor.wait_until(lambda facts: not facts["moving"] and "custom" in editor.words)
    editor.button("All repetitions").click()
    editor.wait_until(lambda facts: "Done: apply the move of 3F4 to all repetitions" in editor.words)

    order = editor.order(3)
    assert all(order.index(f"3F{mb}") == order.index(f"3B{mb - 1}") - 1 for mb in range(2, 7))
    editor.button("Differences").click()
    editor.wait_until(lambda facts: facts["moved"])
    editor.wait_for_text("Compared with 1F1B: ")
    editor.press("v")
    editor.wait_until(lambda facts: not facts["moved"])


def test_a_move_that_cannot_be_repeated_gives_the_reason(editor: Editor) -> None:
    editor.page.mouse.click(*editor.block(0, 0))
    editor.button("All repetitions").click()
    editor.wait_until(lambda facts: "steady state" in editor.words)

    assert editor.session.history == ("", "")


def test_a_backward_is_split_and_joined_and_shares_a_slot(editor: Editor) -> None:
    editor.page.mouse.click(*editor.block(2, 2, "B"))
    editor.button("Split").click()
    editor.wait_until(lambda facts: editor.session.history[0].startswith("split 2B2"))
    assert {"2I2", "2W2"} <= set(editor.order(2))

    editor.page.mouse.click(*editor.block(2, 2, "W"))
    editor.press("x")
    editor.wait_until(lambda facts: editor.session.history[0] == "join 2W2")
    assert "2B2" in editor.order(2)

    backward = editor.block(2, 2, "B")  # drawn: the others stand where they will be
    editor.page.mouse.click(*editor.block(2, 4))
    editor.page.keyboard.down("Control")
    editor.page.mouse.click(*backward)
    editor.page.keyboard.up("Control")
    editor.button("One slot").click()
    editor.wait_until(lambda facts: "one slot" in editor.session.history[0])
    assert "(2F4;2B2)OVERLAP_F_B" in editor.order(2)
    editor.press("o")
    editor.wait_until(lambda facts: editor.session.history[0].startswith("split the slot"))
    assert "2F4" in editor.order(2)


# ---- on the whole page ----


@pytest.fixture
def whole(whole_page: Callable[[Design], Page]) -> Page:
    page = whole_page(parse_design(document({"schedule": "interleaved-1f1b", "microbatches": 8, "chunks": 2}, 4)))
    page.wait_for_function("window.meshwaveTimeline.layers.length === 1")
    return page


def test_an_edit_is_undone_by_the_undo_of_the_page(whole: Page) -> None:
    iteration = whole.locator('.mw-tile[data-key="iteration"]')
    before = iteration.inner_text()
    stage = whole.locator(".mw-timeline-stage")
    stage.focus()
    for key in ("e", "ArrowRight", "Enter", "Alt+ArrowRight", "Enter"):
        stage.press(key)
    expect(whole.locator(".mw-order-text")).to_contain_text(
        "The schedule is now custom; undo restores Interleaved 1F1B"
    )
    expect(iteration).not_to_have_text(before, use_inner_text=True)

    whole.keyboard.press("Control+z")

    expect(iteration).to_have_text(before, use_inner_text=True)
    expect(whole.locator(".mw-order-text")).not_to_contain_text("schedule is now custom")


def test_a_stage_is_dragged_to_another_mesh_and_moved_by_keys(whole: Page) -> None:
    def mesh_of(number: int) -> re.Pattern[str]:
        return re.compile(rf"Stage 5 on mesh m{number}\b")

    stage = whole.locator('.mw-stage[data-stage="5"]')
    expect(stage).to_have_attribute("aria-label", mesh_of(1))
    box = stage.bounding_box()
    lane = whole.locator('.mw-stage[data-stage="6"]').bounding_box()
    assert box and lane
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    whole.mouse.move(x, y)
    whole.mouse.down()
    whole.mouse.move(x, lane["y"] + lane["height"] / 2, steps=4)
    expect(whole.locator(".mw-wave .mw-notice").first).to_contain_text("becomes a custom order")
    whole.mouse.up()
    expect(stage).to_have_attribute("aria-label", mesh_of(2))

    stage.press("Alt+ArrowDown")
    stage.press("Enter")
    expect(stage).to_have_attribute("aria-label", mesh_of(3))
    whole.keyboard.press("Control+z")
    whole.keyboard.press("Control+z")
    expect(stage).to_have_attribute("aria-label", mesh_of(1))


def test_a_dragged_stage_shows_its_effect_on_the_step(whole: Page) -> None:
    """With mouse and keyboard, the timeline shows the changed step and a text about the effect; Escape cancels the
    drag.
    """
    stage, lane = (whole.locator(f'.mw-stage[data-stage="{number}"]') for number in (5, 6))
    words, numbers = whole.locator(".mw-order-text"), whole.locator('.mw-tile[data-key="iteration"]')
    expect(numbers).to_contain_text("unit")
    before = numbers.inner_text()
    at, to = stage.bounding_box(), lane.bounding_box()
    assert at and to

    whole.mouse.move(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
    whole.mouse.down()
    whole.mouse.move(at["x"] + at["width"] / 2, to["y"] + to["height"] / 2, steps=4)
    expect(words).to_contain_text("Move stage 5 to mesh m2")
    expect(words).to_contain_text("step time")
    expect(whole.locator(".mw-wave .mw-notice").first).to_contain_text("to mesh m2: step time")
    whole.wait_for_function("meshwaveTimeline.edit.trial?.later > 0")
    expect(numbers).not_to_have_text(before, use_inner_text=True)
    whole.keyboard.press("Escape")
    expect(words).to_be_hidden()
    expect(numbers).to_have_text(before, use_inner_text=True)
    whole.mouse.up()

    stage.press("Alt+ArrowDown")
    expect(words).to_contain_text("Move stage 5 to mesh m2")
    stage.press("Alt+ArrowDown")
    expect(words).to_contain_text("Move stage 5 to mesh m3")
    stage.press("Escape")
    expect(words).to_be_hidden()
    expect(numbers).to_have_text(before, use_inner_text=True)
    expect(stage).to_have_attribute("aria-label", re.compile(r"Stage 5 on mesh m1\b"))
