"""Questions to the timeline in a real browser: areas, search, flows, marks, pinned lanes, what-if analysis, links."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser.drawn import SIZE, Drawn, layer
from tests.browser.gestures import eventually, focused

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser


def predicted_layer(name: str = "03-gpt-on-two-cores", **pipeline: Any) -> Any:
    """Return the layer of an example, optionally with another pipeline."""
    from meshwave.designer.pages.timeline_layers import prediction_layer
    from meshwave.engine.document import parse_design
    from meshwave.engine.files import find_design
    from meshwave.engine.predict.prediction import predict

    document = parse_design(find_design(name).read_bytes()).model_dump(mode="json")
    document["pipeline"] = pipeline or document["pipeline"]
    return prediction_layer(predict(parse_design(document)), name)


COUNT_NOTE_PIXELS = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return data.filter((value, at) => at % 4 === 0 && value === 240 && data[at + 1] === 228 && data[at + 2] === 66).length;
}"""
"""Number of pixels in the colour of notes."""


def find_blocks(drawn: Drawn, text: str, matches: int) -> None:
    drawn.press_key("/")
    drawn.page.get_by_label("Find blocks").fill(text)  # key by key, the matches of its beginning could be found first
    drawn.wait_until(f"chart.hits.total === {matches}")


def panel(drawn: Drawn) -> Locator:
    return drawn.page.locator(".mw-timeline-panel")


def shift_drag(drawn: Drawn, start: tuple[float, float], end: tuple[float, float]) -> None:
    mouse, keyboard = drawn.page.mouse, drawn.page.keyboard
    keyboard.down("Shift")
    mouse.move(*start)
    mouse.down()
    mouse.move((start[0] + end[0]) / 2, (start[1] + end[1]) / 2, steps=3)
    mouse.move(*end, steps=3)
    mouse.up()
    keyboard.up("Shift")
    drawn.wait_for_paint_of_state()


# areas


def test_an_area_is_selected_by_dragging_and_its_figures_are_shown(drawn: Drawn) -> None:
    shown = layer(4, 8)
    drawn.show(shown)

    shift_drag(drawn, drawn.block(1, 1, 2), drawn.block(2, 2, 5, "B"))

    drawn.wait_until(
        "Math.abs(chart.area?.found?.seconds / (chart.area.to - chart.area.from) - 1) < 1e-3"
    )  # the last answer
    area = drawn.ask("area")
    assert area["ranks"] == [1, 2]
    expect(panel(drawn)).to_contain_text("2 meshes")
    for words in ("F forward", "B backward", "idle", "critical path", "transfers"):
        expect(panel(drawn)).to_contain_text(words)
    found = area["found"]
    assert found["busy_s"] + found["idle_s"] == pytest.approx(found["seconds"] * 2)

    drawn.page.get_by_role("button", name="Zoom to area").click()
    drawn.wait_for_paint_of_state()
    assert drawn.ask("view")["to"] - drawn.ask("view")["from"] == pytest.approx(found["seconds"], rel=0.01)

    drawn.press_key("Escape")
    assert drawn.ask("area") is None
    expect(panel(drawn)).to_be_hidden()


def test_a_drag_along_the_axis_selects_all_lanes(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    box = drawn.page.locator(".mw-timeline-stage").bounding_box()
    assert box

    shift_drag(drawn, (box["x"] + 300, box["y"] + 10), (box["x"] + 600, box["y"] + 10))

    assert drawn.ask("area")["ranks"] == [0, 1, 2, 3]


def test_area_mode_selects_without_a_modifier_key_and_starts_with_the_visible_part(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    drawn.page.get_by_role("button", name="Area").click()
    drawn.wait_until("chart.area?.found")
    assert drawn.ask("area")["found"]["critical_share"] == pytest.approx(1, abs=0.01)
    expect(drawn.page.get_by_text(re.compile("100% of the area's duration"))).to_be_visible()

    start, end = drawn.block(0, 0, 0), drawn.block(0, 0, 2)
    drawn.page.mouse.move(*start)
    drawn.page.mouse.down()
    drawn.page.mouse.move(*end, steps=4)
    drawn.page.mouse.up()
    drawn.wait_for_paint_of_state()

    assert drawn.ask("view")["whole"]  # it did not pan
    assert drawn.ask("area")["ranks"] == [0]


def test_an_area_is_selected_by_keys(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))

    drawn.press_key("j")
    drawn.press_key("r")
    for key in ("Shift+ArrowRight", "Shift+ArrowRight", "Shift+ArrowDown"):
        drawn.press_key(key)

    drawn.wait_until("chart.area?.found?.meshes.length === 2")
    assert drawn.ask("area")["ranks"] == [0, 1]
    assert drawn.ask("area")["from"] == pytest.approx(0)


def test_an_area_stays_at_its_seconds_while_the_design_changes(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    shift_drag(drawn, drawn.block(1, 1, 1), drawn.block(2, 2, 3, "B"))
    before = drawn.ask("area")

    drawn.show(layer(4, 12))

    drawn.wait_until("chart.area?.found")
    after = drawn.ask("area")
    assert (after["from"], after["to"]) == (pytest.approx(before["from"]), pytest.approx(before["to"]))
    drawn.show(layer(1, 2))
    assert drawn.ask("area") is None  # those lanes are gone


# the critical path and what if


def test_the_critical_path_panel_lists_parts_and_what_if_results(drawn: Drawn) -> None:
    shown = predicted_layer()
    drawn.show(shown)

    drawn.press_key("c")

    expect(panel(drawn)).to_contain_text(re.compile(r"99\.\d% compute, 0\.\d% optimizer step"))
    expect(panel(drawn).locator(".mw-timeline-key").last).to_have_text("optimizer step")
    expect(panel(drawn)).not_to_contain_text("update")
    expect(panel(drawn).locator(".mw-timeline-gains dt").first).to_have_text("stage 3")  # it holds the head
    tenth = panel(drawn).locator(".mw-timeline-gains dd").nth(1).inner_text()
    expect(panel(drawn)).to_contain_text("span bubble ratio")

    panel(drawn).get_by_label("Reduction of the time of one component").select_option("0.5")
    expect(panel(drawn).locator(".mw-timeline-gains dd").nth(1)).not_to_have_text(tenth)

    panel(drawn).get_by_role("button", name="stage 3").click()
    drawn.wait_until("chart.hits.total === 16")

    drawn.press_key("Escape")
    drawn.press_key("c")
    expect(panel(drawn)).to_be_hidden()


def test_the_critical_path_is_shown_while_a_block_is_pinned(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    drawn.page.mouse.click(*drawn.block(0, 0, 0))
    drawn.page.mouse.move(5, 5)
    drawn.wait_for_paint_of_state()
    veiled = colour_at(drawn, 0, 7)

    drawn.press_key("c")
    panel(drawn).wait_for(state="visible")
    drawn.wait_for_paint_of_state()

    assert sum(veiled) > sum(colour_at(drawn, 0, 7)) + 100  # near white before, and orange then
    assert drawn.ask("pinned")["mb"] == 0


def colour_at(drawn: Drawn, rank: int, mb: int) -> list[int]:
    """Return red, green and blue of a pixel just inside a backward."""
    box = drawn.ask(f"blockAt({rank}, {rank}, {mb}, 'B')")
    code = """async ([x, y]) => {
      const image = await createImageBitmap(await window.meshwaveTimeline.picture());
      const canvas = new OffscreenCanvas(image.width, image.height);
      canvas.getContext("2d").drawImage(image, 0, 0);
      return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data].slice(0, 3);
    }"""
    stage = drawn.page.locator(".mw-timeline-stage").bounding_box()
    assert stage is not None
    at = [box["x"] + 4 - stage["x"], box["y"] + box["height"] - 5 - stage["y"]]
    found: list[int] = drawn.page.evaluate(code, at)
    return found


def test_the_cursor_is_at_the_block_that_keys_move_to(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    drawn.page.mouse.move(700, 150)

    drawn.press_key("j")
    assert drawn.ask("cursor") == pytest.approx(0.0, abs=1e-6)
    drawn.press_key("j")
    assert drawn.ask("cursor") == pytest.approx(1e-3)

    drawn.page.mouse.move(900, 150)
    assert drawn.ask("cursor") > 5e-3


def test_low_lanes_inside_a_block_have_the_name_of_their_device(drawn: Drawn) -> None:
    from meshwave.designer.views.block_layers import block_layers
    from meshwave.engine.document import load_design
    from meshwave.engine.files import example
    from meshwave.engine.predict.prediction import predict
    from meshwave.engine.program.action import forward

    design = load_design(example("15-bert-base-moe"))
    layers, _ = block_layers(predict(design), 0, forward(0, 0))
    drawn.show(*layers)

    assert len(layers[0].timeline.meshes) == 48
    assert drawn.ask("names") == [f"device {device}" for device in design.meshes[0].devices]
    lane = drawn.ask("view")["pitch"]
    left = drawn.page.locator(".mw-timeline-stage").bounding_box()
    assert left is not None and lane < 12
    drawn.page.mouse.move(left["x"] + 151, 150)
    assert drawn.ask("cursor") >= 0, "there is no time before the step"


def test_the_panel_follows_the_design_and_closes_on_demand(drawn: Drawn) -> None:
    drawn.show(predicted_layer())
    drawn.press_key("c")
    expect(panel(drawn)).to_contain_text(re.compile(r"99\.\d% compute"))

    drawn.show(predicted_layer("02-two-waves"))
    expect(panel(drawn)).to_contain_text("100% compute")

    drawn.page.get_by_role("button", name="Close panel").click()
    expect(panel(drawn)).to_be_hidden()
    eventually(drawn.page, lambda: drawn.chart.show_critical)  # the path stays drawn


# search


def test_search_steps_through_the_hits(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))

    find_blocks(drawn, "B of stage 2", 8)
    field = drawn.page.get_by_label("Find blocks")
    for _ in range(2):
        field.press("Enter")
    assert drawn.ask("hits") == {"total": 8, "at": 1, "current": "2B1"}
    field.press("Shift+Enter")
    assert drawn.ask("hits")["current"] == "2B0"
    assert drawn.ask("focus")["stage"] == 2

    field.fill("mesh C stage 0")
    drawn.wait_until("chart.hits.total === 0")
    expect(drawn.page.locator(".mw-timeline-hits")).to_have_text("no matches")
    field.fill("stage 9")
    expect(drawn.page.locator(".mw-timeline-hits")).to_have_text("there is no stage 9; numbers range from 0 to 3")

    field.press("Escape")
    expect(field).to_be_hidden()
    assert focused(drawn.page, 'at.getAttribute("role")') == "application"  # back on the timeline


def test_a_hit_of_a_large_step_is_shown_by_zooming(drawn: Drawn) -> None:
    drawn.show(layer(64, 512))
    drawn.press_key("/")
    drawn.page.keyboard.type("40F300")
    drawn.page.keyboard.press("Enter")  # before Python knows the matches

    drawn.wait_until("chart.hits.current === '40F300'")
    drawn.wait_for_paint_of_state()
    box = drawn.ask("blockAt(40, 40, 300, 'F')")
    assert box["width"] > 4
    assert 100 < box["x"] < 1440
    assert 50 < box["y"] < 430


def test_a_search_runs_again_when_the_design_changes(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    find_blocks(drawn, "stage 1", 16)

    drawn.show(layer(4, 12))

    drawn.wait_until("chart.hits.total === 24")


def test_the_matches_are_a_table_that_is_sorted_and_pins_blocks(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    find_blocks(drawn, "stage 1", 16)

    drawn.page.get_by_role("button", name="Table").click()

    rows = panel(drawn).locator("tbody tr")
    expect(rows).to_have_count(16)
    expect(panel(drawn)).to_contain_text("16 matches: 18.2% of the time of all meshes")
    panel(drawn).get_by_role("button", name="Microbatch").click()
    panel(drawn).get_by_role("button", name="Microbatch").click()
    expect(rows.first.locator("th")).to_have_text("1F7")
    expect(panel(drawn).locator("[aria-sort]")).to_have_text("Microbatch")

    rows.first.click()
    assert drawn.ask("pinned")["stage"] == 1
    assert drawn.ask("hits")["current"] == "1F7"
    expect(rows.first).to_have_attribute("aria-current", "true")

    drawn.page.get_by_label("Find blocks").press("Escape")
    expect(panel(drawn)).to_be_hidden()


def test_the_table_of_matches_is_cut_after_500_rows(drawn: Drawn) -> None:
    drawn.show(layer(16, 128))
    find_blocks(drawn, "F", 2048)

    drawn.page.get_by_role("button", name="Table").click()

    expect(panel(drawn).locator("tbody tr")).to_have_count(500)
    expect(panel(drawn)).to_contain_text("first 500 of 2048 matches")


def test_a_note_is_written_at_a_time_and_drawn(drawn: Drawn) -> None:
    notes: list[Any] = []
    drawn.chart.on_note = lambda message: notes.append(message) or ""
    drawn.change(can_note=True)
    drawn.show(layer(4, 8))
    x, y = drawn.block(1, 1, 2)

    drawn.page.mouse.click(x, y, button="right")
    drawn.page.get_by_role("menuitem", name="Add a note here").click()
    drawn.page.get_by_label("Note", exact=True).fill("<b>Matches</b>")
    drawn.page.get_by_role("button", name="Add note").click()

    eventually(drawn.page, lambda: notes)
    target = notes[0]["target"]
    assert (notes[0]["text"], target["ranks"], target["unit"]) == ("<b>Matches</b>", [], "s")
    assert target["start"] == target["end"] > 0
    canvas = drawn.page.locator(".mw-timeline-over")
    assert canvas.evaluate(COUNT_NOTE_PIXELS) == 0
    drawn.change(notes=[{**target, "kind": "time", "text": notes[0]["text"], "colour": "#f0e442"}])
    eventually(drawn.page, lambda: canvas.evaluate(COUNT_NOTE_PIXELS) > 100)


# causes, effects, flows


def test_arrows_step_from_the_pinned_block_to_cause_and_effect(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    drawn.page.mouse.click(*drawn.block(1, 1, 0, "B"))
    drawn.page.mouse.move(5, 300)

    walked = []
    for key in ("ArrowLeft", "ArrowLeft", "ArrowRight", "ArrowRight"):
        drawn.press_key(key)
        pinned = drawn.ask("pinned")
        walked.append((pinned["rank"], pinned["op"], pinned["mb"]))
    assert walked == [(2, 6, 0), (2, 1, 0), (2, 6, 0), (1, 1, 0)]  # its message, who made it, and back

    drawn.press_key("ArrowRight")  # several wait for it
    first = drawn.ask("pinned")
    drawn.press_key("ArrowDown")
    assert drawn.ask("pinned") != first
    drawn.press_key("ArrowUp")
    assert drawn.ask("pinned") == first
    eventually(drawn.page, lambda: drawn.pins[-1] is not None and drawn.pins[-1].rank == first["rank"])


def test_a_notice_says_that_the_first_block_has_no_cause(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    drawn.page.mouse.click(*drawn.block(0, 0, 0))

    drawn.press_key("ArrowLeft")

    expect(drawn.page.locator(".mw-timeline-notice")).to_have_text("The pinned action did not wait for another action")


def test_flows_are_drawn_on_demand(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    drawn.page.mouse.click(*drawn.block(2, 2, 3))
    flow = drawn.page.get_by_role("button", name="Flow")
    expect(flow).to_have_text("Flow: neighbours")

    drawn.press_key("b")
    expect(flow).to_have_text("Flow: microbatch")
    assert {f"{stage}{op}3" for stage in range(4) for op in "FB"} <= set(drawn.ask("flow"))
    assert "1SEND_F3" in drawn.ask("flow")

    flow.click()
    drawn.wait_for_paint_of_state()
    chain = drawn.ask("flow")
    assert (chain[0], chain[-1]) == ("0F0", "2F3")
    assert len(chain) > 4
    drawn.press_key("Escape")
    expect(flow).not_to_be_visible()


def test_causes_effects_and_flows_include_skip_connections(drawn: Drawn) -> None:
    drawn.show(predicted_layer("18-u-transformer"))

    def related_blocks(stage: int, op: str) -> tuple[set[str], set[str]]:
        drawn.page.mouse.click(*drawn.block(stage, stage, 1, op))
        drawn.wait_until(f"chart.pinned?.stage === {stage} && chart.related")  # found when it is painted
        found = drawn.ask("related")
        drawn.press_key("Escape")
        return set(found["causes"]), set(found["effects"])

    assert {"0SEND_F1", "0SEND_F1TO3", "1F1", "3F1"} <= related_blocks(0, "F")[1]
    assert {"2F1", "2SEND_F1", "0F1", "0SEND_F1TO3"} <= related_blocks(3, "F")[0]
    assert {"3SEND_B1", "3SEND_B1TO0", "2B1", "0B1"} <= related_blocks(3, "B")[1]
    assert {"1B1", "1SEND_B1", "3B1", "3SEND_B1TO0", "0F1"} <= related_blocks(0, "B")[0]

    drawn.page.mouse.click(*drawn.block(1, 1, 1))
    drawn.press_key("b")
    expect(drawn.page.get_by_role("button", name="Flow")).to_have_text("Flow: microbatch")
    assert {"0SEND_F1TO3", "3SEND_B1TO0"} <= set(drawn.ask("flow"))


# bubbles


def test_a_bubble_is_also_explained_to_keyboard_users(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))

    drawn.page.mouse.move(5, 300)
    drawn.press_key("j")
    for _ in range(4):
        drawn.press_key("Shift+ArrowRight")

    why = "Mesh A waits 6 ms for 1B0 of mesh B"
    expect(drawn.page.locator(".mw-timeline-tip-why")).to_contain_text(why)
    expect(drawn.page.locator(".mw-timeline > .mw-sr")).to_contain_text(why)


# marks


def test_marks_measure_the_distance_between_two_points(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    live = drawn.page.locator(".mw-timeline > .mw-sr")
    left = drawn.ask("blockAt(1, 1, 0, 'B')")

    drawn.page.mouse.move(left["x"] + 2, left["y"] + 10)  # near the edge of the block
    drawn.press_key("x")
    drawn.page.mouse.move(left["x"] + left["width"] - 2, left["y"] + 10)
    drawn.press_key("x")

    assert drawn.ask("marks") == [pytest.approx(8e-3), pytest.approx(10e-3)]  # snapped to both edges
    expect(live).to_have_text("Mark 2 at 10\u2009ms, 2\u2009ms after mark 1.")

    box = drawn.page.locator(".mw-timeline-stage").bounding_box()
    assert box
    drawn.page.mouse.click(900, box["y"] + 8)  # on the axis
    assert len(drawn.ask("marks")) == 3
    drawn.page.mouse.click(902, box["y"] + 8)  # the same again takes it away
    assert len(drawn.ask("marks")) == 2
    drawn.page.mouse.move(900, 300)
    drawn.press_key("Shift+X")
    assert drawn.ask("marks") == []


# lanes on top


def test_pinned_lanes_stay_on_top_while_other_lanes_scroll(drawn: Drawn) -> None:
    drawn.show(layer(64, 64))
    drawn.press_key("j")
    drawn.press_key("Shift+ArrowDown")
    drawn.page.mouse.move(700, 440)
    drawn.press_key("u")  # the lane of the block in focus: rank 1
    name = drawn.ask("blockAt(20, 20, 5, 'F')")
    drawn.page.mouse.click(40, name["y"] + 1)  # by its name
    drawn.wait_for_paint_of_state()
    kept = drawn.ask("kept")
    assert kept[0] == "0:1"
    assert len(kept) == 2
    top = drawn.ask("blockAt(1, 1, 5, 'F')")
    assert top["height"] > 15
    assert top["y"] < 65

    drawn.page.mouse.move(700, 300)
    for _ in range(12):
        drawn.page.mouse.wheel(0, -200)
    drawn.wait_for_paint_of_state()
    for _ in range(5):
        drawn.press_key("ArrowDown")
    assert drawn.ask("view")["scroll"] > 100
    assert drawn.ask("blockAt(1, 1, 5, 'F')")["y"] == pytest.approx(top["y"], abs=1)

    drawn.page.mouse.click(40, top["y"] + 5)
    drawn.wait_for_paint_of_state()
    assert len(drawn.ask("kept")) == 1


def test_a_filter_shows_some_lanes_until_escape(drawn: Drawn) -> None:
    drawn.show(layer(16, 4))
    everything = drawn.ask("names")
    drawn.press_key("g")
    drawn.page.keyboard.type("rank 2-3, stage 9")
    count = drawn.page.locator(".mw-timeline-filtered")
    expect(count).to_have_text("3 of 16 lanes")
    drawn.wait_for_paint_of_state()
    assert drawn.ask("names") == [everything[rank] for rank in (2, 3, 9)]

    for key in ("t", "c"):  # arrows and the critical path pass hidden lanes
        drawn.press_key(key)
    drawn.press_key("Escape")
    expect(count).to_be_hidden()
    drawn.wait_for_paint_of_state()
    assert drawn.ask("names") == everything


def test_the_lanes_of_a_timeline_collapse_by_pointer_and_by_keys(drawn: Drawn) -> None:
    drawn.show(layer(4, 8, "Before"), layer(4, 8))
    assert len(drawn.ask("names")) == 8
    triangle = drawn.page.get_by_role("button", name="Lanes of Before")
    triangle.click()
    expect(triangle).to_have_attribute("aria-expanded", "false")
    assert len(drawn.ask("names")) == 4
    triangle.press("ArrowRight")
    expect(triangle).to_have_attribute("aria-expanded", "true")

    for name in ("Before", "Open design"):
        drawn.page.get_by_role("button", name=f"Lanes of {name}").press("ArrowLeft")
    drawn.wait_for_paint_of_state()
    assert drawn.ask("names") == []
    drawn.page.mouse.move(700, 300)
    drawn.page.mouse.wheel(0, -200)
    for key in ("j", "0", "c"):
        drawn.press_key(key)
    assert drawn.ask("focus") is None

    drawn.press_key("/")
    field = drawn.page.locator(".mw-timeline-find")
    field.fill("2F3")
    drawn.wait_until("chart.hits.total === 1")
    field.press("Enter")  # the row of the match expands
    expect(drawn.page.get_by_role("button", name="Lanes of Open design")).to_have_attribute("aria-expanded", "true")
    assert drawn.ask("collapsed") == ["0"]


def grouped_design(ranks: int, microbatches: int, per_node: int, **known: Any) -> Any:
    """Return a layer whose lanes are in groups by node."""
    from meshwave.designer.views.lane_groups import LaneGroups

    names = [f"node {number}" for number in range(ranks // per_node)]
    of = [rank // per_node for rank in range(ranks)]
    return layer(ranks, microbatches, groups=(LaneGroups("node", names, of),), **known)


def choose_group(drawn: Drawn, name: str) -> None:
    drawn.page.get_by_role("button", name="Group", exact=True).click()
    drawn.page.get_by_role("menu", name="Groups of lanes").get_by_text(name, exact=True).click()
    drawn.wait_for_paint_of_state()


def test_lanes_are_grouped_by_node_and_groups_collapse_by_pointer_and_by_keys(drawn: Drawn) -> None:
    drawn.show(grouped_design(64, 64, 8))
    assert drawn.ask("groups") == []  # until somebody groups
    drawn.press_key("Shift+g")
    expect(drawn.page.get_by_role("menu", name="Groups of lanes")).to_have_text("No groupsNode")  # nothing to collapse
    drawn.page.keyboard.press("Escape")

    choose_group(drawn, "Node")
    assert [group["name"] for group in drawn.ask("groups")] == [f"node {number}" for number in range(8)]
    triangle = drawn.page.get_by_role(
        "button", name=re.compile("Lanes of Open design, node 2, 8 lanes, busy .*% of the step")
    )
    with drawn.record_texts():
        triangle.press("ArrowLeft")
        expect(triangle).to_have_attribute("aria-expanded", "false")
        drawn.wait_for_paint_of_state()
    written = [text for text, *_ in drawn.page.evaluate("window.written")]
    assert re.fullmatch(r"busy [\d.]+%", written[written.index("node 2") + 1])
    assert [len(group["ranks"]) for group in drawn.ask("groups")] == [8, 8, 0, 8, 8, 8, 8, 8]

    box = triangle.bounding_box()
    assert box is not None
    drawn.page.mouse.click(box["x"] + 60, box["y"] + 9)  # on its name
    expect(triangle).to_have_attribute("aria-expanded", "true")

    choose_group(drawn, "Collapse all groups")
    assert drawn.ask("names") == []
    drawn.press_key("/")
    field = drawn.page.locator(".mw-timeline-find")
    field.fill("20F3")
    drawn.wait_until("chart.hits.total === 1")
    field.press("Enter")  # the group of the match expands
    drawn.wait_until("chart.groups[2].ranks.length === 8")
    assert len(drawn.ask("collapsed")) == 7

    drawn.press_key("Shift+g")
    drawn.page.get_by_role("menu", name="Groups of lanes").get_by_text("No groups").click()
    drawn.wait_for_paint_of_state()
    assert drawn.ask("groups") == []


def test_memory_follows_the_groups_of_lanes_and_collapses_as_a_whole(drawn: Drawn) -> None:
    drawn.show(grouped_design(16, 8, 4))
    choose_group(drawn, "Node")
    drawn.page.get_by_role("button", name=re.compile("node 1,")).press("ArrowLeft")
    shown = drawn.ask("held")
    assert len(shown) == 13
    assert shown[4] == ["node 1", 4]

    memory = drawn.page.get_by_role("button", name="Memory of Open design")
    memory.press("ArrowLeft")
    expect(memory).to_have_attribute("aria-expanded", "false")
    assert drawn.ask("held") == [["Peak", 16]]


def test_groups_show_filtered_lanes_only_and_are_kept_in_a_link(drawn: Drawn) -> None:
    drawn.show(grouped_design(16, 8, 4))
    choose_group(drawn, "Node")
    drawn.page.get_by_role("button", name=re.compile("node 1,")).press("ArrowLeft")
    drawn.press_key("g")
    drawn.page.get_by_label("Filter lanes").fill("rank 3-6")
    expect(drawn.page.get_by_role("button", name=re.compile("node 0, 1 of 4 lanes"))).to_be_visible()
    assert drawn.ask("groups") == [{"name": "node 0", "ranks": [3]}, {"name": "node 1", "ranks": []}]

    drawn.page.get_by_role("button", name="Copy link", exact=True).click()
    fragment = urlsplit(drawn.page.url).fragment
    assert "group=node" in fragment
    choose_group(drawn, "No groups")
    drawn.page.evaluate("location.hash = ''")
    drawn.page.evaluate("hash => { location.hash = hash }", fragment)
    drawn.wait_until("chart.groups.length === 2")
    assert drawn.ask("collapsed") == ["0:node 1"]


def test_predicted_and_measured_lanes_are_separated_by_kind(drawn: Drawn) -> None:
    measured = layer(4, 8, "Measured", over=True)
    drawn.show(layer(4, 8), measured)
    assert len(drawn.ask("names")) == 4
    choose_group(drawn, "Kind")
    assert len(drawn.ask("names")) == 8
    expect(drawn.page.get_by_role("button", name="Lanes of Measured")).to_be_visible()


# two in one slot


def test_a_forward_and_a_backward_in_one_slot_are_the_halves_of_the_lane(drawn: Drawn) -> None:
    drawn.show(predicted_layer("02-two-waves", schedule="dualpipe", microbatches=10))
    upper, lower = drawn.ask("blockAt(0, 0, 3, 'F')"), drawn.ask("blockAt(0, 3, 6, 'B')")

    assert upper["x"] == pytest.approx(lower["x"])
    assert upper["width"] == pytest.approx(lower["width"])
    assert lower["y"] == pytest.approx(upper["y"] + upper["height"], abs=2)
    drawn.page.mouse.move(lower["x"] + 20, lower["y"] + 5)
    assert drawn.tooltip_text.startswith("3B6")
    drawn.page.mouse.move(upper["x"] + 20, upper["y"] + 5)
    assert drawn.tooltip_text.startswith("0F3")


# help and link


def test_a_question_mark_lists_the_keyboard_shortcuts(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    sheet = drawn.page.get_by_role("dialog", name="Keyboard shortcuts of the timeline")

    drawn.press_key("?")
    expect(sheet).to_be_visible()
    for words in ("critical path, and what-if analysis", "pin the lane to the top", "start an area selection"):
        expect(sheet).to_contain_text(words)
    drawn.page.keyboard.press("Escape")
    expect(sheet).not_to_be_visible()
    drawn.page.get_by_role("button", name="Keyboard shortcuts").click()
    expect(sheet).to_be_visible()


@pytest.fixture
def opened(page: Page, serve: Callable[..., str], visit: Callable[[str], Page]) -> Callable[[str], Drawn]:
    """Open a page with a timeline at a URL fragment."""
    import panel as pn

    from meshwave.designer.views.timeline import TimelineChart

    charts: list[TimelineChart] = []

    def app() -> pn.Column:
        chart = TimelineChart(sizing_mode="stretch_both", min_height=SIZE["height"])
        pn.state.onload(lambda: charts.append(chart))  # what is shown before a page is live may not reach it
        return pn.Column(chart, sizing_mode="stretch_both", margin=0)

    page.set_viewport_size(SIZE)  # type: ignore[arg-type]
    address = serve(app)

    def open_at(rest: str) -> Drawn:
        before = len(charts)
        visit(address + rest)
        page.wait_for_function("window.meshwaveTimeline")
        eventually(page, lambda: len(charts) > before)
        return Drawn(page, charts, [])

    return open_at


def test_a_link_opens_the_same_view_and_has_no_token(opened: Callable[[str], Drawn]) -> None:
    drawn = opened("?token=secret&draft=abc")
    drawn.show(layer(4, 8))
    for key in ("w", "w", "d"):
        drawn.press_key(key)
    drawn.page.mouse.click(*drawn.block(2, 2, 3))
    drawn.press_key("b")
    drawn.page.mouse.move(*drawn.block(1, 1, 3))
    drawn.press_key("x")
    drawn.press_key("u")
    drawn.page.mouse.move(5, 5)
    drawn.press_key("m")
    find_blocks(drawn, "stage 1", 16)
    before = {name: drawn.ask(name) for name in ("view", "pinned", "marks", "kept", "flow")}

    drawn.page.get_by_role("button", name="Copy link", exact=True).click()
    drawn.page.wait_for_function("location.hash.length > 1")
    link = drawn.page.url

    assert "token" not in link
    assert "secret" not in link
    assert urlsplit(link).query == "draft=abc"
    drawn.page.goto("about:blank")
    drawn = opened(urlsplit(link)._replace(scheme="", netloc="").geturl()[1:])
    drawn.show(layer(4, 8))
    drawn.wait_until("chart.pinned && chart.hits.total === 16")
    drawn.wait_for_paint_of_state()

    after = {name: drawn.ask(name) for name in before}
    assert after["view"]["from"] == pytest.approx(before["view"]["from"], rel=1e-4)
    assert after["view"]["to"] == pytest.approx(before["view"]["to"], rel=1e-4)
    assert after["marks"] == pytest.approx(before["marks"])
    for name in ("pinned", "kept", "flow"):
        assert after[name] == before[name]
    eventually(drawn.page, lambda: drawn.chart.show_memory is False)


def test_a_link_to_another_state_of_the_design_gives_a_notice_and_invalid_values_do_nothing(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    drawn.page.evaluate(
        """location.hash = "timeline?window=1e-3~9e-3&pin=0~99~F~99~0&lanes=0:99~0:1~<b>&marks=a~4e-3&area=9~1~2~0~1"
             + "&find=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&program=other" """
    )
    expect(drawn.page.locator(".mw-timeline-notice")).to_contain_text("an earlier version of this design")
    drawn.wait_for_paint_of_state()

    assert drawn.ask("pinned") is None
    assert drawn.ask("kept") == ["0:1"]
    assert drawn.ask("marks") == [4e-3]
    assert drawn.ask("area") is None
    assert not drawn.ask("view")["whole"]
    expect(drawn.page.locator(".mw-timeline-hits")).to_contain_text("unknown search term")


def test_a_timeline_of_a_quarter_of_a_million_blocks_can_be_used(drawn: Drawn) -> None:
    """The timeline is drawn and reacts to gestures; times are measured by ``meshwave bench``."""
    drawn.show(layer(128, 1024))

    for key in ("c", "r"):
        drawn.press_key(key)
    drawn.wait_until("chart.area?.found")
    assert drawn.ask("area")["found"]["blocks"] == {"F": 128 * 1024, "B": 128 * 1024}
    find_blocks(drawn, "microbatch 500", 256)
    assert drawn.ask("stats")["counts"]["dense"] > 0
