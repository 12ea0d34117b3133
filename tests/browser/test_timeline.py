"""The timeline in a real browser: its drawing, and gestures by pointer and keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from meshwave.designer.pages.timeline_layers import prediction_layer
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict
from tests.browser.drawn import Drawn, layer
from tests.browser.gestures import eventually, focused, wait_for_paint
from tests.designer.timelines import one_f_one_b
from tests.engine.predict.test_link_load import two_nodes

pytestmark = pytest.mark.browser


def test_an_empty_chart_shows_instructions(drawn: Drawn) -> None:
    words = drawn.page.get_by_text("Draw a mesh to see its timeline")
    expect(words).to_be_visible()

    drawn.show(layer(4, 8))

    expect(words).to_be_hidden()


def test_few_blocks_are_shapes_with_labels_and_transfers_are_arrows(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))

    counts = drawn.ask("stats")["counts"]
    assert counts["shapes"] == counts["labels"] == 2 * 4 * 8
    assert counts["transfers"] == 2 * 3 * 8
    assert counts["dense"] == counts["solid"] == 0


@pytest.mark.parametrize(("ranks", "microbatches"), [(64, 512), (128, 1024)])
def test_many_blocks_are_painted_as_distinguishable_shares_of_forward_and_backward(
    drawn: Drawn, ranks: int, microbatches: int
) -> None:
    drawn.show(layer(ranks, microbatches))

    counts = drawn.ask("stats")["counts"]
    assert counts["dense"] == 2 * ranks * microbatches
    assert counts["shapes"] == 0
    assert drawn.ask("view")["whole"]
    assert drawn.ask("stats")["lanes"] == ranks  # all of them are in view
    near = colour_share(drawn)
    assert near["F"] > 0.15
    assert near["B"] > 0.35


def colour_share(drawn: Drawn) -> dict[str, float]:
    """Return the fraction of the middle of the picture whose colour is near that of an op."""
    from meshwave.engine.exports.pictures.palette import OPS, rgb

    code = """async ([colours]) => {
      const image = await createImageBitmap(await window.meshwaveTimeline.picture());
      const canvas = new OffscreenCanvas(image.width, image.height);
      const context = canvas.getContext("2d");
      context.drawImage(image, 0, 0);
      const { data } = context.getImageData(500, 70, 500, 160);
      const found = Object.fromEntries(Object.keys(colours).map((name) => [name, 0]));
      for (let at = 0; at < data.length; at += 4)
        for (const [name, rgb] of Object.entries(colours))
          if (rgb.every((value, channel) => Math.abs(value - data[at + channel]) < 30)) found[name] += 4 / data.length;
      return found;
    }"""
    found: dict[str, float] = drawn.page.evaluate(code, [{op: rgb(OPS["light"][op]) for op in ("F", "B")}])
    return found


def test_the_wheel_zooms_around_the_pointer_and_dragging_pans(drawn: Drawn) -> None:
    drawn.show(layer(8, 32))
    x, y = drawn.block(3, 3, 16)

    drawn.page.mouse.move(x, y)
    for _ in range(6):
        drawn.page.mouse.wheel(0, -200)
    drawn.wait_for_paint_of_state()

    assert drawn.ask("view")["to"] - drawn.ask("view")["from"] < 0.02
    assert drawn.block(3, 3, 16)[0] == pytest.approx(x, abs=8)  # fourteen times a part of a pixel

    before = drawn.block(3, 3, 16)[0]
    drawn.page.mouse.down()
    drawn.page.mouse.move(x + 150, y, steps=5)
    drawn.page.mouse.up()
    drawn.wait_for_paint_of_state()

    assert drawn.block(3, 3, 16)[0] == pytest.approx(before + 150, abs=6)
    assert drawn.ask("pinned") is None  # a drag is no click


def test_two_fingers_zoom_around_their_middle(drawn: Drawn) -> None:
    drawn.show(layer(8, 32))
    x, y = drawn.block(3, 3, 16)
    before = drawn.ask("view")
    devices = drawn.page.context.new_cdp_session(drawn.page)

    def touch(event: str, *distances: int) -> None:
        points = [{"x": x + distance, "y": y, "id": number} for number, distance in enumerate(distances)]
        devices.send("Input.dispatchTouchEvent", {"type": event, "touchPoints": points})

    touch("touchStart", -20, 20)
    touch("touchMove", -80, 80)
    touch("touchEnd")
    drawn.wait_for_paint_of_state()

    after = drawn.ask("view")
    assert after["to"] - after["from"] == pytest.approx((before["to"] - before["from"]) / 4, rel=0.1)
    assert drawn.block(3, 3, 16)[0] == pytest.approx(x, abs=8)
    assert drawn.ask("pinned") is None


def test_lanes_grow_when_the_user_zooms_into_many_lanes(drawn: Drawn) -> None:
    drawn.show(layer(64, 512))
    drawn.page.mouse.move(700, 180)

    for _ in range(12):
        drawn.page.mouse.wheel(0, -200)
    drawn.wait_for_paint_of_state()

    view, counts = drawn.ask("view"), drawn.ask("stats")["counts"]
    assert view["pitch"] > 20 > view["fit"]
    assert counts["labels"] > 0
    assert counts["dense"] == 0


def test_keys_zoom_pan_and_fit(drawn: Drawn) -> None:
    drawn.show(layer(8, 32))
    spans = []
    for key in ("w", "+", "d", "ArrowRight", "a", "ArrowLeft", "s", "-"):
        drawn.press_key(key)
        drawn.wait_for_paint_of_state()
        view = drawn.ask("view")
        spans.append((view["from"], view["to"] - view["from"]))
    starts, widths = zip(*spans, strict=True)

    assert widths[1] < widths[0]
    assert starts[1] < starts[2] < starts[3]
    assert starts[5] == pytest.approx(starts[1])
    assert widths[5] < widths[6] < widths[7]

    drawn.press_key("w")
    drawn.press_key("0")
    drawn.wait_for_paint_of_state()
    assert drawn.ask("view")["whole"]


def test_hovering_shows_the_facts_about_a_block(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))

    drawn.page.mouse.move(*drawn.block(1, 1, 0, "B"))

    told = drawn.tooltip_text
    for words in ("1B0", "backward", "Mesh", "B", "1, layers 4 to 7", "Microbatch", "Start", "8\u2009ms", "2\u2009ms"):
        assert words in told
    assert "Waited" in told
    assert "4\u2009ms for 2B0 from mesh C" in told


def test_hovering_shows_compute_transfer_and_memory_of_a_block(drawn: Drawn) -> None:
    from meshwave.engine.predict.questions import Work

    flops = np.full((4, 1, 4), 3e12)
    drawn.show(layer(4, 8, work=Work(np.arange(4, dtype=np.int32)[None], flops)))

    drawn.page.mouse.move(*drawn.block(1, 1, 3))

    told = drawn.tooltip_text
    for words in (
        "End",
        "Compute",
        "3\u2009TFLOP per device, 3\u2009PFLOP/s",
        "Sends",
        "8\u2009MB to mesh C",
        "Memory",
    ):
        assert words in told


def test_the_tooltip_of_a_block_never_covers_its_lane(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))

    for rank in range(4):
        drawn.page.mouse.move(*drawn.block(rank, rank, 4))
        block, tip = drawn.ask(f"blockAt({rank}, {rank}, 4)"), drawn.page.locator(".mw-timeline-tip").bounding_box()
        assert tip is not None
        assert tip["y"] >= block["y"] + block["height"] or tip["y"] + tip["height"] <= block["y"]


def test_the_tooltip_stays_in_view_when_the_panel_opens(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    drawn.page.mouse.move(*drawn.block(0, 0, 4, "B"))
    drawn.press_key("c")
    panel = drawn.page.locator(".mw-timeline-panel")
    panel.wait_for(state="visible")
    drawn.wait_for_paint_of_state()

    tip, beside = (drawn.page.locator(f".mw-timeline-{name}").bounding_box() for name in ("tip", "panel"))
    assert tip is not None
    assert beside is not None
    assert tip["x"] + tip["width"] <= beside["x"]


def test_few_meshes_share_memory_strips_with_the_pinned_design(drawn: Drawn) -> None:
    drawn.show(layer(8, 32, "Pinned: 1F1B"), layer(8, 32))

    drawn.page.mouse.move(700, 400)

    assert "Memory per device" in drawn.tooltip_text
    assert "Pinned: 1F1B" in drawn.tooltip_text
    assert drawn.tooltip_text.lower().count("peak") == 2


def test_hovering_shows_transfers_idle_time_and_memory(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    (x, y), (_, below) = drawn.block(0, 0, 3), drawn.block(1, 1, 0)
    step = drawn.block(0, 0, 3)[0] - drawn.block(0, 0, 2)[0]

    drawn.page.mouse.move(x + 0.75 * step, (y + below) / 2)
    assert "activation of microbatch 3" in drawn.tooltip_text
    assert "8\u2009MB" in drawn.tooltip_text

    drawn.page.mouse.move(x + 3 * step, y)
    assert "Idle" in drawn.tooltip_text
    assert "0B0" in drawn.tooltip_text
    why = drawn.page.get_by_text(
        "Mesh A waits 6 ms for 1B0 of mesh B: 4 ms while mesh B itself waits for 2B0 of mesh C, then"
    )
    why.wait_for(state="visible")

    drawn.page.mouse.move(700, 400)
    assert "Memory per device" in drawn.tooltip_text
    assert "of 80\u2009GB" in drawn.tooltip_text


def test_memory_is_drawn_by_category(drawn: Drawn) -> None:
    prediction = predict(load_design(example("03-gpt-on-two-cores")))
    drawn.show(prediction_layer(prediction, "Open design"))
    found = drawn.ask("shadesAt(1, 700)")
    assert found["shades"] >= 4

    drawn.page.mouse.move(found["x"], found["y"])

    for kind in ("weights", "optimizer", "workspace", "activations"):
        assert kind in drawn.tooltip_text


def test_a_click_pins_a_block_with_its_causes_and_effects(drawn: Drawn) -> None:
    from meshwave.designer.views.timeline import Pin
    from meshwave.engine.program.action import backward

    drawn.show(layer(4, 8))

    drawn.page.mouse.click(*drawn.block(2, 2, 1, "B"))
    drawn.wait_for_paint_of_state()

    related = drawn.ask("related")
    assert {"3B1", "3SEND_B1", "2F1"} <= set(related["causes"])
    assert {"2SEND_B1", "1B1"} <= set(related["effects"])
    drawn.wait_until("chart.pinned !== null")
    eventually(drawn.page, lambda: drawn.pins == [Pin(0, 2, backward(2, 1))])

    drawn.press_key("Escape")

    assert drawn.ask("pinned") is None
    eventually(drawn.page, lambda: drawn.pins[-1] is None)


def test_a_pin_and_the_view_stay_while_the_design_changes(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    drawn.page.mouse.click(*drawn.block(2, 2, 1, "B"))
    for _ in range(3):
        drawn.page.mouse.wheel(0, -200)
    drawn.wait_for_paint_of_state()
    before = drawn.ask("view")

    drawn.show(layer(4, 12))

    after = drawn.ask("view")
    assert drawn.ask("pinned")["mb"] == 1
    assert after["from"] == pytest.approx(before["from"])
    assert after["to"] == pytest.approx(before["to"])

    drawn.show(layer(2, 4))

    assert drawn.ask("pinned") is None  # there is no such block any more


def test_the_keyboard_moves_between_blocks_and_reads_them_aloud(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    live = drawn.page.locator(".mw-timeline > .mw-sr")

    drawn.press_key("k")  # nothing has the focus yet: the first block in view gets it
    drawn.press_key("j")
    assert drawn.ask("focus") == {"layer": 0, "rank": 0, "op": 0, "stage": 0, "mb": 1}
    expect(live).to_contain_text("0F1, forward of microbatch 1. Mesh A, Stage 0, layers 0 to 3")

    drawn.press_key("Shift+ArrowDown")
    assert drawn.ask("focus")["rank"] == 1
    drawn.press_key("Shift+ArrowRight")
    drawn.press_key("k")
    drawn.press_key("Enter")
    assert drawn.ask("pinned") == drawn.ask("focus")
    expect(live).to_contain_text("Pinned 1F0")

    drawn.press_key("f")
    drawn.wait_for_paint_of_state()
    assert not drawn.ask("view")["whole"]


def test_the_keyboard_reaches_the_chart_and_its_buttons(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    stage = drawn.page.locator(".mw-timeline-stage")

    reached = []
    for _ in range(14):
        drawn.page.keyboard.press("Tab")
        reached.append(focused(drawn.page, 'at.getAttribute("role") ?? at.getAttribute("aria-label")'))

    buttons = {
        "Transfers",
        "Critical path",
        "Memory",
        "Area",
        "Find",
        "Filter",
        "Fit",
        "Copy link",
        "PNG",
        "Keyboard shortcuts",
    }
    assert buttons | {"application", "Lanes of Open design"} <= set(reached)
    assert "4 meshes" in (stage.get_attribute("aria-label") or "")


def test_keys_switch_critical_path_memory_transfers_and_links_also_in_python(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))

    switches = {"c": "show_critical", "m": "show_memory", "t": "show_transfers", "l": "show_links"}
    for key, name in {**switches, "Shift+L": "show_device_links"}.items():
        before = getattr(drawn.chart, name)
        drawn.press_key(key)
        eventually(drawn.page, lambda name=name, before=before: getattr(drawn.chart, name) is not before)  # type: ignore[misc]

    assert drawn.ask("stats")["counts"]["transfers"] == 0
    drawn.change(show_transfers=True)
    drawn.wait_until("chart.stats.counts.transfers > 0")


def test_two_designs_are_drawn_above_each_other_on_one_axis(drawn: Drawn) -> None:
    drawn.show(layer(4, 8, "Pinned: 1F1B", memory=None), layer(4, 12))

    upper, lower = (drawn.ask(f"blockAt(0, 0, 5, 'B', {number})") for number in (0, 1))
    assert upper["x"] == pytest.approx(lower["x"])
    assert upper["y"] < lower["y"]


def test_measured_blocks_are_below_predicted_blocks_in_the_same_lane(drawn: Drawn) -> None:
    from meshwave.designer.views.timeline_columns import Layer

    predicted = layer(4, 8)
    measured = Layer(one_f_one_b(4, 8, source="measured", slower=0.1), "Run 1", over=True)

    drawn.show(predicted, measured)

    upper, lower = (drawn.ask(f"blockAt(1, 1, 5, 'B', {number})") for number in (0, 1))
    next_lane = drawn.ask("blockAt(2, 2, 5, 'B', 0)")
    assert upper["y"] < lower["y"] < next_lane["y"]
    assert lower["x"] > upper["x"]
    drawn.page.mouse.move(*drawn.block(1, 1, 5, "B", 1))
    assert "Predicted" in drawn.tooltip_text
    assert "longer than predicted" in drawn.tooltip_text
    assert "Run 1, measured" in drawn.tooltip_text


def test_the_title_of_an_overlay_fits_into_a_narrow_window(drawn: Drawn) -> None:
    from meshwave.designer.views.timeline_columns import Layer

    drawn.page.set_viewport_size({"width": 390, "height": 460})
    measured = Layer(one_f_one_b(4, 8, source="measured", slower=0.1), "Measured, clock resolution 2 ms", over=True)

    with drawn.record_texts():
        drawn.show(layer(4, 8, "Two waves on four devices of a cluster"), measured)
        drawn.wait_until("window.written.some(([text]) => /^Two w.*…$/.test(text))")  # painted in its new size
        written = drawn.page.evaluate("window.written")

    assert any(re.fullmatch("predicted .*ms, measured .*ms, .*% longer", text) for text, *_ in written)
    assert [text for text, right, width in written if right > width] == []


def test_a_measured_timeline_over_unit_costs_is_compared_by_its_order_only(drawn: Drawn) -> None:
    from meshwave.designer.views.timeline_columns import Layer

    measured = Layer(one_f_one_b(4, 8, source="measured", slower=0.1), "Run 1", over=True, unit="units")
    drawn.show(layer(4, 8, unit="units"), measured)

    drawn.page.mouse.move(*drawn.block(1, 1, 5))

    assert "unit costs are not in seconds; only the order can be compared" in drawn.tooltip_text
    assert "longer" not in drawn.tooltip_text
    assert "longer" not in drawn.page.locator(".mw-timeline-legend").inner_text()


def test_the_last_valid_timeline_stays_below_the_message_about_a_problem(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))

    drawn.change(stale="pipeline.waves: 12 stages do not divide over 4 meshes; use 8 or 16")

    words = drawn.page.get_by_text("12 stages do not divide")
    words.wait_for(state="visible")
    assert drawn.ask("layers")[0]["ranks"] == 4
    drawn.change(stale="")
    words.wait_for(state="hidden")


def test_a_message_above_the_timeline_does_not_repaint_it(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    before = drawn.ask("stats")["paints"]

    drawn.change(stale="Computing: 40%")

    drawn.page.get_by_text("Computing: 40%").wait_for(state="visible")
    drawn.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert drawn.ask("stats")["paints"] == before


def test_the_chart_follows_the_theme_of_the_page(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))
    assert drawn.ask("theme") == "light"

    drawn.page.evaluate("document.documentElement.dataset.theme = 'dark'")
    drawn.wait_until("chart.theme === 'dark'")

    drawn.page.evaluate("document.documentElement.dataset.theme = 'light'")
    drawn.wait_until("chart.theme === 'light'")


def test_a_saved_picture_is_a_png_of_the_current_view(drawn: Drawn) -> None:
    drawn.show(layer(4, 8))

    head = drawn.page.evaluate(
        "async () => [...new Uint8Array(await (await window.meshwaveTimeline.picture()).arrayBuffer()).slice(1, 4)]"
    )
    assert bytes(head) == b"PNG"

    with drawn.page.expect_download() as download:
        drawn.page.get_by_role("button", name="PNG").click()
    assert download.value.suggested_filename == "Open design.png"


def test_a_double_click_zooms_to_a_block_and_back(drawn: Drawn) -> None:
    drawn.show(layer(8, 32))
    x, y = drawn.block(3, 3, 16)

    drawn.page.mouse.dblclick(x, y)
    drawn.wait_for_paint_of_state()

    box = drawn.ask("blockAt(3, 3, 16, 'F')")
    assert box["width"] > 100
    assert 0 < box["x"] < 1440

    drawn.page.mouse.dblclick(600, 45)  # the axis is no block
    drawn.wait_for_paint_of_state()
    assert drawn.ask("view")["whole"]


def test_links_shows_the_load_of_each_nic_and_hovering_names_the_transfer(whole_page: Callable[..., Page]) -> None:
    page = whole_page(two_nodes(1e6, devices=(0, 2, 3, 1)).design)
    chart = "window.meshwaveTimeline"
    page.wait_for_function(f"{chart}.layers.length === 1 && {chart}.stats.paints > 0")
    assert page.evaluate(f"{chart}.links") == []

    page.get_by_role("button", name="Links", exact=True).click()
    page.wait_for_function(f"{chart}.links.length === 4")
    wait_for_paint(page)
    lanes = page.evaluate(f"{chart}.links")
    assert [lane["name"] for lane in lanes] == [
        f"NIC of node {node}, {way}" for node in (0, 1) for way in ("outgoing", "incoming")
    ]
    assert all(lane["shares"] >= 8 and 0.5 < lane["share"] <= 1 and lane["height"] > 8 for lane in lanes)

    point = page.evaluate(
        f"[...Array({lanes[0]['shares']}).keys()].map(at => {chart}.shareAt(0, at)).find(({{ y }}) => y > {lanes[0]['y'] + lanes[0]['height'] / 2})"
    )
    page.mouse.move(point["x"], point["y"])
    wait_for_paint(page)
    told = page.locator(".mw-timeline-tip").inner_text()
    for words in ("NIC of node 0, outgoing", "of the step", "SEND_", "Bytes", "kB/s", "of the port", "Shared with"):
        assert words in told
    assert re.search(r"Shared with\s+\d+SEND_[FB]\d, mesh m\d to m\d", told), told

    page.get_by_role("button", name="Device links").click()
    page.wait_for_function(f"{chart}.links.some(({{ name }}) => name.startsWith('link of device'))")
    page.get_by_role("button", name="Links", exact=True).click()
    page.wait_for_function(f"{chart}.links.length === 0")
