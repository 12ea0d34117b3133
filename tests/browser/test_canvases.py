"""The cluster and the wave canvas in a real browser: gestures by mouse and keyboard, and the resulting edits.

Every page is checked at its end for console errors and for requests to other servers.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.gestures import centre, drag, eventually, press_and_drag, wait_for_paint
from tests.conftest import PATIENCE_S

if TYPE_CHECKING:
    from meshwave.designer.state.design_session import Session
    from tests.browser.conftest import Stage

pytestmark = pytest.mark.browser


def document(
    nodes: int = 2, per_node: int = 4, meshes: list[list[int]] | None = None, **pipeline: Any
) -> dict[str, Any]:
    drawn = [[0], [1], [4], [5]] if meshes is None else meshes
    link = {"latency_s": 1e-5, "bandwidth": 25e9}
    device = {"name": "A100", "peak_flops": 312e12, "memory_bytes": 80e9, "memory_bandwidth": 2e12, "efficiency": 0.5}
    return {
        "format": "meshwave/1",
        "cluster": {
            "nodes": nodes,
            "devices_per_node": per_node,
            "device": device,
            "intra_node": {**link, "bandwidth": 300e9},
            "inter_node": link,
        },
        "model": {"kind": "gpt", "layers": 32, "hidden": 256, "heads": 4, "sequence": 128, "vocab": 1000},
        "meshes": [
            {"name": chr(ord("A") + rank), "devices": devices, "axes": {"dp": len(devices), "tp": 1}}
            for rank, devices in enumerate(drawn)
        ],
        "pipeline": {"schedule": "hanayo", "waves": 1, "microbatches": 4, **pipeline},
    }


@pytest.fixture
def page(stage: Stage) -> Page:
    return stage.page


@pytest.fixture
def draw(stage: Stage, page: Page) -> Callable[..., Session]:
    """Show both canvases on a document and return the session."""

    def show(design: dict[str, Any]) -> Session:
        from meshwave.designer.state.design_session import Session
        from meshwave.engine.document import parse_design

        session = Session(parse_design(design))
        stage.show(lambda: _canvases(session))
        page.locator(".mw-device").first.wait_for()
        page.locator(".mw-stage").first.wait_for()
        return session

    return show


def _canvases(session: Session) -> Any:
    import panel as pn

    from meshwave.designer.canvases.cluster import ClusterCanvas
    from meshwave.designer.canvases.difference_marks import difference_marks, share_switch
    from meshwave.designer.canvases.wave import WaveCanvas

    cluster = ClusterCanvas(session.edit, width=560, height=300)
    wave = WaveCanvas(session.edit, width=860, height=300)

    def show(*_: Any) -> None:
        cluster.show(session.design.model_dump(mode="json"))
        if session.is_stale:
            wave.show(session.design)
        else:
            wave.show(session.design, session.prediction.program, session.prediction.costs)
        cluster.differences, wave.differences, _ = difference_marks(session)

    session.param.watch(show, ["design", "prediction", "problems", "pinned"])
    share_switch([cluster, wave])
    show()
    return pn.Column(cluster, wave)


def device(page: Page, number: int) -> Locator:
    return page.locator(f'.mw-device[data-device="{number}"]')


def devices(session: Session) -> list[list[int]]:
    return [list(mesh.devices) for mesh in session.design.meshes]


def notice(page: Page, canvas: str) -> str:
    """Return the last notice of a canvas."""
    return str(page.locator(f".mw-{canvas}").evaluate("root => root.mw.notice.last ?? ''"))


def seen_pixels(page: Page) -> list[list[int]]:
    """Return the devices of the meshes on the page after the page has followed the session."""
    found: list[list[int]] = page.locator(".mw-cluster").evaluate("root => root.mw.meshList.map((m) => m.devices)")
    return found


def seen_layers(page: Page) -> list[int]:
    found: list[int] = page.locator(".mw-wave").evaluate("root => root.mw.picture.layers")
    return found


# the cluster


def test_a_mesh_is_drawn_moved_resized_and_deleted_by_pointer(
    page: Page, draw: Callable[..., Session], stage: Stage
) -> None:
    session = draw(document())

    drag(page, centre(device(page, 2)), centre(device(page, 6)))
    eventually(page, lambda: seen_pixels(page)[4:] == [[2, 6]])
    assert session.history[0] == "draw mesh E"
    expect(page.locator(".mw-unused")).to_have_text("2 of 8 devices unused")

    drag(page, centre(device(page, 6)), centre(device(page, 7)))
    eventually(page, lambda: seen_pixels(page)[4:] == [[3, 7]])

    page.locator('.mw-handle[data-handle="w"]').wait_for()
    drag(page, centre(page.locator('.mw-handle[data-handle="w"]')), centre(device(page, 2)))
    eventually(page, lambda: seen_pixels(page)[4:] == [[2, 3, 6, 7]])

    page.keyboard.press("Delete")
    eventually(page, lambda: len(seen_pixels(page)) == 4)
    for _ in range(4):
        stage.run(session.undo)
    assert devices(session) == [[0], [1], [4], [5]]


def test_a_gesture_shows_its_effect_and_escape_cancels_it(
    page: Page, draw: Callable[..., Session], stage: Stage
) -> None:
    session = draw(document())

    press_and_drag(page, centre(device(page, 2)), centre(device(page, 3)))
    eventually(page, lambda: notice(page, "cluster") == "New mesh: 2 devices (1 node × 2)")
    expect(page.locator('.mw-ghost[data-ok="true"]')).to_have_count(1)
    page.keyboard.press("Escape")
    page.mouse.up()

    expect(page.locator(".mw-ghost")).to_have_count(0)
    drag(page, centre(device(page, 2)), centre(device(page, 3)))
    eventually(page, lambda: seen_pixels(page)[4:] == [[2, 3]])
    stage.run(session.undo)
    assert session.history[0] == "", "Escape must not leave an edit"


def test_devices_in_use_are_refused_with_a_notice_at_the_pointer(page: Page, draw: Callable[..., Session]) -> None:
    session = draw(document())

    press_and_drag(page, centre(device(page, 2)), centre(device(page, 1)))
    eventually(page, lambda: notice(page, "cluster") == "Device 1 belongs to mesh B")
    expect(page.locator('.mw-ghost[data-ok="false"]')).to_have_count(1)
    page.mouse.up()

    eventually(page, lambda: notice(page, "cluster") == "Device 1 belongs to mesh B; a device can be in one mesh only")
    assert devices(session) == [[0], [1], [4], [5]]


def test_the_nodes_of_a_launch_target_say_in_words_whether_they_are_free(stage: Stage, page: Page) -> None:
    from meshwave.designer.canvases.cluster import ClusterCanvas

    refreshed: list[str] = []
    canvas = ClusterCanvas(on_refresh=lambda: refreshed.append("asked"), width=1000, height=560)
    attached = {"target": "gpus", "time": "14:05:00", "free": 1, "total": 2, "nodes": [("n1", False), ("n2", True)]}
    canvas.show(document(), {**attached, "link": "NVLink (NV18)"})
    stage.show(lambda: canvas)

    line = page.get_by_role("group", name="Nodes of the launch target")
    expect(line).to_contain_text("gpus 1 of 2 nodes free at 14:05:00")
    expect(page.locator(".mw-node-state")).to_have_text(["in use", "free"])
    expect(page.locator(".mw-panel-head .mw-rate").first).to_contain_text("NVLink (NV18)")
    expect(device(page, 0)).to_have_attribute("aria-label", re.compile(r"Device 0, node 0, .*, n1, in use"))
    line.get_by_role("button", name="Refresh").click()
    eventually(page, lambda: refreshed == ["asked"])
    stage.run(lambda: canvas.show(document()))
    expect(line).to_be_hidden()
    expect(page.locator(".mw-node-state")).to_have_count(0)


def test_meshes_are_drawn_by_keyboard(page: Page, draw: Callable[..., Session]) -> None:
    session = draw(document())
    device(page, 0).focus()

    for key in ("ArrowRight", "ArrowRight", "Shift+ArrowRight", "Shift+ArrowDown"):
        page.keyboard.press(key)
    eventually(page, lambda: notice(page, "cluster") == "New mesh: 4 devices (2 nodes × 2)")
    page.keyboard.press("Enter")
    eventually(page, lambda: seen_pixels(page)[4:] == [[2, 3, 6, 7]])
    wait_for_paint(page)  # a key is for the mesh that is drawn under the focus
    page.keyboard.press("Alt+Shift+ArrowUp")
    eventually(page, lambda: seen_pixels(page)[4:] == [[2, 3]])
    device(page, 3).focus()
    page.keyboard.press("Alt+ArrowDown")
    eventually(page, lambda: seen_pixels(page)[4:] == [[6, 7]])
    page.keyboard.press("F2")
    page.keyboard.type("tail")
    page.keyboard.press("Enter")
    eventually(page, lambda: session.design.meshes[4].name == "tail")
    page.keyboard.press("Delete")
    eventually(page, lambda: len(seen_pixels(page)) == 4)


def test_a_mesh_is_renamed_in_place(page: Page, draw: Callable[..., Session]) -> None:
    session = draw(document())

    page.locator('.mw-mesh-label[data-mesh="1"]').dblclick()
    page.keyboard.type("A")
    page.keyboard.press("Enter")
    eventually(page, lambda: notice(page, "cluster") == "rank 0 is already called A; mesh names must be unique")
    page.locator('.mw-mesh-label[data-mesh="1"]').dblclick()
    page.keyboard.type("head")
    page.keyboard.press("Enter")

    eventually(page, lambda: session.design.meshes[1].name == "head")


def test_a_double_click_works_although_the_mesh_is_redrawn_in_between(page: Page, draw: Callable[..., Session]) -> None:
    session = draw(document())

    page.locator(".mw-cluster").evaluate(
        """root => {
            const find = () => root.querySelector('.mw-mesh-label[data-mesh="2"]');
            const { left, top } = find().getBoundingClientRect();
            for (const label of [find(), null]) {
                (label ?? find()).dispatchEvent(new PointerEvent("pointerdown", { clientX: left + 2, clientY: top + 2, bubbles: true, composed: true, cancelable: true }));
                window.dispatchEvent(new PointerEvent("pointerup", { clientX: left + 2, clientY: top + 2 }));
                root.mw.draw();
            }
        }"""
    )
    page.keyboard.type("tail")
    page.keyboard.press("Enter")

    eventually(page, lambda: session.design.meshes[2].name == "tail")


def test_axes_are_chosen_from_what_the_devices_allow(page: Page, draw: Callable[..., Session]) -> None:
    session = draw(document(meshes=[[0, 1, 2, 3], [4, 5, 6, 7]]))

    page.locator('.mw-mesh-label[data-mesh="1"] .mw-chip').click()
    without_cp = ["dp 4 × tp 1", "dp 2 × tp 2", "tp 2 × dp 2", "dp 1 × tp 4"]
    with_cp = ["dp 2 × cp 2 × tp 1", "dp 1 × cp 2 × tp 2", "dp 1 × cp 4 × tp 1"]
    expect(page.get_by_role("menuitemradio")).to_have_text([*without_cp, *with_cp, "Order of devices…"])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    indices = page.locator(".mw-indices")
    expect(indices).to_have_text([""] * 4 + ["dp0 tp0", "dp1 tp0", "dp0 tp1", "dp1 tp1"])  # before it is chosen
    page.keyboard.press("Enter")

    eventually(page, lambda: [*session.design.meshes[1].axes.items()] == [("tp", 2), ("dp", 2)])
    expect(page.locator('.mw-mesh-label[data-mesh="1"] .mw-chip')).to_have_text("tp 2 × dp 2")


def test_the_devices_of_a_mesh_are_put_into_another_order(page: Page, draw: Callable[..., Session]) -> None:
    session = draw(document(meshes=[[0, 1, 2, 3], [4, 5, 6, 7]]))

    page.locator('.mw-mesh-label[data-mesh="1"] .mw-chip').click()
    page.get_by_role("menuitemradio", name="Order of devices…").click()
    field = page.get_by_label("Devices of mesh B")
    expect(field).to_have_value("4 5 6 7")
    field.fill("4 6 5 7")
    field.press("Enter")

    eventually(page, lambda: session.design.meshes[1].devices == (4, 6, 5, 7))


def test_shift_f10_offers_the_commands_of_a_device(page: Page, draw: Callable[..., Session]) -> None:
    session = draw(document(meshes=[[0], [4, 5]]))

    device(page, 0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+F10")
    items = page.locator(".mw-cluster .mw-drop:popover-open .mw-item-text")
    expect(items).to_have_text(["Draw a mesh on the selected devices"])
    page.keyboard.press("Enter")
    eventually(page, lambda: devices(session) == [[0], [4, 5], [1]])

    page.locator('.mw-mesh-label[data-mesh="1"]').click(button="right")
    expect(items).to_have_text(["Rename the mesh", "Delete the mesh"])
    page.get_by_role("menuitem", name="Delete the mesh").click()
    eventually(page, lambda: devices(session) == [[0], [1]])


def test_a_long_press_offers_the_commands_of_a_stage(page: Page, draw: Callable[..., Session]) -> None:
    session = draw(document())
    stage = page.locator(".mw-stage").first

    stage.evaluate(
        """(stage) => {
            const { left, top, width, height } = stage.getBoundingClientRect();
            const at = { clientX: left + width / 2, clientY: top + height / 2 };
            const touch = { pointerType: "touch", isPrimary: true, bubbles: true, composed: true, cancelable: true };
            stage.dispatchEvent(new PointerEvent("pointerdown", { ...at, ...touch }));
        }"""
    )
    menu = page.locator(".mw-wave .mw-drop:popover-open")
    expect(menu.locator(".mw-item")).to_have_count(4)
    menu.get_by_text("Move a layer to the next stage").click()

    eventually(page, lambda: session.design.pipeline.stages is not None)
    assert session.design.pipeline.stages[0] < session.design.pipeline.stages[1]


def test_the_wave_zooms_by_wheel_keys_and_two_fingers(page: Page, draw: Callable[..., Session]) -> None:
    draw(document())
    board, stage = page.locator(".mw-wave-board"), page.locator(".mw-stage").last

    def scale() -> float:
        return float(page.locator(".mw-wave").evaluate("each => each.mw.zoom.scale"))

    before = stage.bounding_box()
    assert before is not None
    x, y = before["x"] + before["width"] / 2, before["y"] + before["height"] / 2
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -70)
    page.keyboard.up("Control")
    eventually(page, lambda: scale() == pytest.approx(2, rel=0.02))
    after = stage.bounding_box()
    assert after is not None
    assert after["width"] > before["width"]
    assert after["x"] < x < after["x"] + after["width"]  # it stays under the pointer
    assert board.evaluate("board => board.scrollWidth > 1.9 * board.clientWidth")

    stage.focus()
    page.keyboard.press("w")
    eventually(page, lambda: scale() == pytest.approx(3, rel=0.02))
    page.keyboard.press("0")
    eventually(page, lambda: scale() == 1)
    assert board.evaluate("board => board.scrollWidth <= board.clientWidth")
    devices = page.context.new_cdp_session(page)
    for event, *distances in (("touchStart", -10), ("touchStart", -10, 10), ("touchMove", -30, 30), ("touchEnd",)):
        points = [{"x": x + distance, "y": y, "id": number} for number, distance in enumerate(distances)]
        devices.send("Input.dispatchTouchEvent", {"type": event, "touchPoints": points})
    eventually(page, lambda: scale() == pytest.approx(3, rel=0.1))


def test_the_cluster_is_tiled_or_the_reason_for_a_refusal_is_shown(page: Page, draw: Callable[..., Session]) -> None:
    draw(document())
    pp = page.get_by_label("pp: meshes in the pipeline")
    words = page.locator(".mw-tile-words")

    pp.fill("9")
    eventually(page, lambda: words.inner_text() == "9 x 1 x 1 x 1 needs 9 devices; the cluster has 8")
    page.get_by_role("button", name="Tile", exact=True).click(force=True)  # it says that it is disabled
    eventually(page, lambda: notice(page, "cluster") == "9 x 1 x 1 x 1 needs 9 devices; the cluster has 8")
    pp.fill("2")
    page.get_by_label("dp: data parallelism per mesh").fill("2")
    page.get_by_label("cp: context parallelism per mesh").fill("2")
    eventually(page, lambda: words.inner_text() == "2 meshes of 4 devices, all used")
    page.keyboard.press("Enter")

    eventually(page, lambda: seen_pixels(page) == [[0, 1, 2, 3], [4, 5, 6, 7]])


def test_sizes_typed_while_a_tiling_is_computed_are_not_replaced_by_its_result(
    page: Page, draw: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshwave.designer.state.design_session import Session

    may_answer, edit = threading.Event(), Session.edit

    def edit_later(session: Session, *change: Any) -> None:
        assert may_answer.wait(PATIENCE_S)
        edit(session, *change)

    monkeypatch.setattr(Session, "edit", edit_later)
    draw(document())
    pp = page.get_by_label("pp: meshes in the pipeline")
    pp.fill("2")
    page.keyboard.press("Enter")
    pp.fill("3")
    page.mouse.move(*centre(page.get_by_role("button", name="Tile", exact=True)))
    page.mouse.down()  # the field loses the focus
    may_answer.set()
    eventually(page, lambda: seen_pixels(page) == [[0], [1]])
    wait_for_paint(page)
    page.mouse.up()

    eventually(page, lambda: seen_pixels(page) == [[0], [1], [2]])


def test_nodes_and_devices_are_added_without_moving_a_mesh(page: Page, draw: Callable[..., Session]) -> None:
    session = draw(document())

    page.get_by_role("button", name="Increase devices per node").click()
    eventually(page, lambda: session.design.cluster.devices_per_node == 5)
    assert devices(session) == [[0], [1], [5], [6]]
    page.get_by_role("button", name="Decrease nodes").click()
    eventually(page, lambda: notice(page, "cluster").startswith("node 1 is used by mesh C"))
    assert session.design.cluster.nodes == 2


def test_256_devices_and_512_stages_stay_inside_their_boxes(page: Page, draw: Callable[..., Session]) -> None:
    design = document(32, 8, [list(range(8 * node, 8 * node + 8)) for node in range(32)], waves=8, microbatches=32)
    design["model"] |= {"kind": "u-transformer", "layers": 512}
    draw(design)

    expect(page.locator(".mw-device")).to_have_count(256)
    expect(page.locator(".mw-stage")).to_have_count(512)
    drawn = ((".mw-device", ".mw-board"), (".mw-stage rect", ".mw-wave-board"), (".mw-skip-line", ".mw-wave-board"))
    for inner, outer in drawn:
        box = page.locator(outer).bounding_box()
        assert box is not None
        edges = page.locator(inner).evaluate_all(
            """all => all.map((one) => one.getBoundingClientRect())
                .map(({ left, top, right, bottom }) => [left, top, right, bottom])"""
        )
        assert min(edge[0] for edge in edges) >= box["x"] - 1
        assert min(edge[1] for edge in edges) >= box["y"] - 1
        assert max(edge[2] for edge in edges) <= box["x"] + box["width"] + 1
        assert max(edge[3] for edge in edges) <= box["y"] + box["height"] + 1


CUT_NUMBERS = """board => {
    const box = (node) => {
        const range = document.createRange();
        range.selectNodeContents(node);
        return range.getBoundingClientRect();
    };
    const labels = [...board.querySelectorAll(".mw-mesh-label")].map((each) => each.getBoundingClientRect());
    const isCut = (number, label) =>
        number.top < label.bottom && number.bottom > label.top &&
        number.left < label.right && number.right > label.right;
    return [...board.querySelectorAll(".mw-number-of")]
        .filter((each) => labels.some((label) => isCut(box(each), label)))
        .map((each) => each.textContent);
}"""
"""The numbers of devices of which a label hides a part only."""


def test_the_label_of_a_mesh_hides_no_part_of_a_number_only(page: Page, draw: Callable[..., Session]) -> None:
    draw(document(16, 10, [list(range(20 * rank, 20 * rank + 20)) for rank in range(8)]))

    expect(page.locator('.mw-cluster[data-density="some"] .mw-mesh-label.mw-named')).to_have_count(8)
    assert page.locator(".mw-board").evaluate(CUT_NUMBERS) == []


# differences from the pinned design


def test_meshes_and_stages_that_differ_from_the_pinned_design_are_marked(
    page: Page, draw: Callable[..., Session], stage: Stage
) -> None:
    session = draw(document(meshes=[[0], [1], [2], [4], [5]]))
    line = page.get_by_role("group", name="Differences from the pinned design").first
    expect(line).to_be_hidden()

    stage.run(session.pin)
    changed = document(meshes=[[0], [3], [2, 6], [4]], stages=[5, 3, 4, 4, 4, 4, 4, 4])
    stage.run(lambda: session.edit("", changed, "change meshes and layers"))

    expect(line).to_contain_text("1 removed")
    expect(line).to_contain_text("1 moved")
    expect(line.get_by_role("listitem").first).to_have_text("mesh B: device 1 (dp 1 x tp 1) → device 3 (dp 1 x tp 1)")
    signs = page.locator(".mw-mark")
    expect(signs).to_have_count(3)
    assert sorted(signs.all_inner_texts()) == sorted(["→", "⤢", "− E"])
    was, now = page.locator('.mw-was[data-kind="moved"]').bounding_box(), device(page, 1).bounding_box()
    assert was is not None
    assert now is not None
    assert abs(was["x"] - now["x"]) < 5
    expect(page.locator(".mw-stage-mark")).not_to_have_count(0)

    switch = page.get_by_role("switch", name="Show differences").first
    expect(switch).to_have_attribute("aria-checked", "true")
    switch.press("Enter")
    expect(page.get_by_role("switch", name="Show differences").last).to_have_attribute("aria-checked", "false")
    expect(signs).to_have_count(0)
    expect(page.locator(".mw-stage-mark")).to_have_count(0)

    page.get_by_role("switch", name="Show differences").last.click()
    expect(signs).to_have_count(3)
    stage.run(session.end_comparison)
    expect(line).to_be_hidden()
    expect(signs).to_have_count(0)


# the wave


def grip_position(page: Page, boundary: int) -> tuple[float, float]:
    return centre(page.locator(f'.mw-grip[data-boundary="{boundary}"] .mw-grip-area'))


def test_layers_move_by_dragging_the_boundary_of_two_stages(
    page: Page, draw: Callable[..., Session], stage: Stage
) -> None:
    session = draw(document(stages=[4] * 8))
    x, y = grip_position(page, 2)

    press_and_drag(page, (x, y), (x + 40, y))
    eventually(page, lambda: notice(page, "wave").startswith("stage 2: "))
    page.keyboard.press("Escape")
    page.mouse.up()
    press_and_drag(page, (x, y), (x + 40, y))
    stage.run(lambda: session.edit("pipeline.microbatches", 8, "costs"))  # which does not end the drag
    expect(page.get_by_label("microbatches", exact=True)).to_have_value("8")
    stage.run(lambda: session.edit("pipeline.stages", [5, 3, 4, 4, 4, 4, 4, 4], "others"))  # which does
    eventually(page, lambda: seen_layers(page)[:2] == [5, 3])
    page.mouse.up()
    stage.run(session.undo)
    eventually(page, lambda: seen_layers(page) == [4] * 8)
    assert session.history[0] == "costs"
    stage.run(session.undo)
    press_and_drag(page, (x, y), (x + 40, y))
    stage.run(session.redo)
    expect(page.get_by_label("microbatches", exact=True)).to_have_value("8")
    page.mouse.move(x + 500, y)  # further than there are layers to take
    page.mouse.up()

    eventually(page, lambda: seen_layers(page) == [4, 4, 7, 1, 4, 4, 4, 4])
    assert session.history[0] == "move 3 layers from stage 3 to 2"
    stage.run(session.undo)
    assert session.history[0] == "costs", "Escape and the edit of the stages must not leave an edit"
    stage.run(session.redo)
    page.get_by_role("button", name="Balance").click()
    eventually(page, lambda: session.design.pipeline.stages is None)


def test_layers_move_by_keyboard_until_one_is_left(page: Page, draw: Callable[..., Session]) -> None:
    session = draw(document(stages=[2, 6, 4, 4, 4, 4, 4, 4]))
    page.locator('.mw-stage[data-stage="0"]').focus()

    page.keyboard.press("Alt+ArrowRight")
    eventually(page, lambda: seen_layers(page)[:2] == [1, 7])
    page.keyboard.press("Alt+ArrowRight")
    eventually(page, lambda: notice(page, "wave") == "Stage 0 needs at least one layer")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Alt+ArrowLeft")
    eventually(page, lambda: session.design.pipeline.stages[:2] == (2, 6))


def test_skip_connections_are_arcs_for_pointer_and_keyboard(
    page: Page, draw: Callable[..., Session], stage: Stage
) -> None:
    design = document()
    design["model"] |= {"kind": "u-transformer", "layers": 12}
    design["pipeline"] = {"schedule": "1f1b", "microbatches": 4, "stages": [3] * 4}
    session = draw(design)
    arcs = page.locator(".mw-skip")
    expect(arcs).to_have_count(2)
    told = page.locator(".mw-wave .mw-notice[data-shown]")

    place = """line => {
        const { x, y } = line.getPointAtLength(0.75 * line.getTotalLength());
        const box = line.ownerSVGElement.getBoundingClientRect();
        return [box.x + x, box.y + y];
    }"""
    page.mouse.move(*arcs.first.locator(".mw-skip-line").evaluate(place))
    expect(told).to_contain_text("direct message from mesh A to mesh D")
    expect(page.locator(".mw-stage[data-linked]")).to_have_count(2)

    page.locator(".mw-stage").nth(3).focus()
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("img", name="3 skip tensors from stage 0 to stage 3")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(told).to_contain_text("with the stage input")
    stage.run(lambda: session.edit("model.kind", "bert", "no skips"))  # and the keyboard is not lost with them
    expect(arcs).to_have_count(0)
    expect(page.locator('.mw-stage[tabindex="0"]')).to_be_focused()
    expect(page.locator(".mw-stage[data-linked]")).to_have_count(0)


def test_waves_are_added_up_to_the_number_of_layers(page: Page, draw: Callable[..., Session]) -> None:
    session = draw(document())
    more = page.get_by_role("button", name="Increase waves")

    for _ in range(3):
        more.click()
    expect(page.locator(".mw-stage")).to_have_count(32)
    more.click(force=True)
    eventually(page, lambda: notice(page, "wave") == "40 stages need 40 layers; the model has 32")
    page.get_by_role("button", name="Decrease waves").click()
    eventually(page, lambda: session.design.pipeline.waves == 3)


def test_a_schedule_is_selected_by_its_thumbnail(page: Page, draw: Callable[..., Session]) -> None:
    session = draw(document())

    page.locator('.mw-schedule[data-schedule="chimera"]').click()
    eventually(page, lambda: session.design.pipeline.schedule == "chimera")
    expect(page.locator(".mw-stage.mw-replica")).to_have_count(4)
    page.locator('.mw-schedule[data-schedule="custom"]').click()
    eventually(page, lambda: session.design.pipeline.schedule == "custom")
    selected = page.locator('.mw-schedule[data-schedule="custom"]')
    expect(selected).to_have_attribute("aria-checked", "true")
    assert not session.errors
    page.locator(".mw-schedules").evaluate("(row) => (row.style.width = '400px')")
    expect(selected).to_be_in_viewport(ratio=1)
    page.locator('.mw-schedule[data-schedule="chimera"]').click()
    eventually(page, lambda: session.design.pipeline.schedule == "chimera")
    expect(page.locator('.mw-schedule[data-schedule="chimera"]')).to_have_attribute("aria-checked", "true")
    page.locator('.mw-schedule[aria-checked="true"]').focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    eventually(page, lambda: session.design.pipeline.schedule == "interleaved-1f1b")


def test_a_press_that_begins_before_a_redraw_ends_on_the_same_button(page: Page, draw: Callable[..., Session]) -> None:
    session = draw(document())
    cards, ungrouped = page.locator(".mw-schedule"), page.get_by_role("button", name="ungrouped")

    page.mouse.move(*centre(ungrouped))
    page.mouse.down()
    page.get_by_role("button", name="Increase microbatches").dispatch_event("click")
    expect(ungrouped).to_have_attribute("aria-disabled", "false")
    page.mouse.up()
    eventually(page, lambda: session.design.pipeline.grouping == "ungrouped")

    page.mouse.move(*centre(cards.first))
    page.mouse.down()
    cards.last.dispatch_event("click")  # at the other end of the row, which would be scrolled to it
    expect(cards.last).to_have_attribute("aria-checked", "true")
    page.mouse.up()
    eventually(page, lambda: session.design.pipeline.schedule == cards.first.get_attribute("data-schedule"))


def test_stages_are_drawn_again_only_if_they_change(page: Page, draw: Callable[..., Session], stage: Stage) -> None:
    session = draw(document())
    page.locator(".mw-lane").first.evaluate("lane => lane.toggleAttribute('data-before')")
    before = page.locator(".mw-lane[data-before]")
    field = page.get_by_label("microbatches", exact=True)

    field.fill("6")
    field.press("Enter")
    eventually(page, lambda: session.design.pipeline.microbatches == 6)
    expect(field).to_have_value("6")
    expect(before).to_have_count(1)

    stage.run(lambda: session.edit("pipeline.waves", 5, "more stages than layers"))
    expect(page.locator(".mw-grip")).to_have_count(0)
    stage.run(lambda: session.edit("pipeline.waves", 1, "one wave"))
    expect(page.locator(".mw-grip")).to_have_count(7)
    stage.run(lambda: session.edit("pipeline.waves", 2, "two waves"))
    expect(page.locator(".mw-stage")).to_have_count(16)
    expect(before).to_have_count(0)


def test_grouping_requires_more_microbatches_than_meshes(page: Page, draw: Callable[..., Session]) -> None:
    session = draw(document())
    ungrouped = page.get_by_role("button", name="ungrouped")

    ungrouped.click(force=True)
    eventually(
        page, lambda: notice(page, "wave") == "grouping has an effect only with more microbatches than meshes (4)"
    )
    field = page.get_by_label("microbatches", exact=True)
    field.fill("8")
    field.press("Enter")
    eventually(page, lambda: session.design.pipeline.microbatches == 8)
    expect(ungrouped).to_have_attribute("aria-disabled", "false")
    ungrouped.click()
    eventually(page, lambda: session.design.pipeline.grouping == "ungrouped")


def test_canvases_follow_the_theme_of_the_page(page: Page, draw: Callable[..., Session]) -> None:
    draw(document())
    page.evaluate("document.documentElement.dataset.theme = 'dark'")

    for _ in range(2):
        for canvas in ("cluster", "wave"):
            expect(page.locator(f".mw-{canvas}")).to_have_attribute("data-theme", "dark")
        expect(page.locator(".mw-device")).to_have_count(8)
        expect(page.locator(".mw-stage")).to_have_count(8)
        draw(document())
