"""A cluster of 16,384 devices in a real browser: folded nodes, zoom, and gestures at both levels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.gestures import Point, centre, drag, eventually, wait_for_paint
from tests.browser.test_canvases import device, document, notice

if TYPE_CHECKING:
    from meshwave.designer.state.design_session import Session
    from tests.browser.conftest import Stage

pytestmark = pytest.mark.browser

NODES, PER_NODE = 2048, 8


@pytest.fixture
def page(stage: Stage) -> Page:
    return stage.page


@pytest.fixture
def session(stage: Stage, page: Page) -> Session:
    """Show the cluster with mesh A on nodes 0 to 127, and return its session."""
    from meshwave.designer.canvases.cluster import ClusterCanvas
    from meshwave.designer.state.design_session import Session
    from meshwave.engine.document import parse_design

    design = document(NODES, PER_NODE, [list(range(128 * PER_NODE))])
    session = Session(parse_design(design))

    def make() -> Any:
        canvas = ClusterCanvas(session.edit, width=560, height=360)

        def show(*_: Any) -> None:
            canvas.show(session.design.model_dump(mode="json"))

        session.param.watch(show, ["design"])
        show()
        return canvas

    stage.show(make)
    page.locator(".mw-device").first.wait_for()
    return session


def cluster(page: Page, expression: str) -> Any:
    wait_for_paint(page)
    return page.locator(".mw-cluster").evaluate(f"root => (cluster => {expression})(root.mw)")


def nodes_of(session: Session, rank: int) -> tuple[int, int]:
    """Return the first and the last node of a mesh, which is on whole nodes."""
    devices = session.design.meshes[rank].devices
    assert len(devices) % PER_NODE == 0
    assert devices == tuple(range(devices[0], devices[0] + len(devices)))
    return devices[0] // PER_NODE, devices[-1] // PER_NODE


def first_node_on_page(page: Page, rank: int) -> int:
    """Return the first node of a mesh on the page, which follows the session after a while; -1 if it has no such mesh."""
    device: int = cluster(page, f"cluster.meshList[{rank}]?.devices[0] ?? {-PER_NODE}")
    return device // PER_NODE


def point(page: Page, node: int) -> Point:
    """Return the middle of the tile with a node."""
    tile = cluster(page, f"cluster.cell({node * PER_NODE})")
    return centre(device(page, tile))


def levels(page: Page) -> str:
    return str(page.get_by_role("listbox").get_attribute("aria-label")).rpartition("visible: ")[2]


def test_folded_nodes_are_few_boxes_with_the_meshes_they_hold(page: Page, session: Session) -> None:
    fold = cluster(page, "cluster.layout.fold")
    assert fold > 1
    assert levels(page) == f"groups of {fold} nodes"
    boxes = page.locator(".mw-device.mw-group")
    expect(boxes).to_have_count(NODES // fold)
    assert boxes.count() < 200
    expect(boxes.first).to_have_attribute("aria-label", f"Nodes 0 to {fold - 1}, mesh A: {fold * PER_NODE}")
    expect(boxes.nth(-1)).to_have_attribute(
        "aria-label", f"Nodes {NODES - fold} to {NODES - 1}, {fold * PER_NODE} unused"
    )
    expect(page.locator(".mw-mesh-label")).to_have_text("0A")


def test_meshes_on_few_folded_nodes_have_whole_names_or_ranks(stage: Stage) -> None:
    from meshwave.designer.canvases.cluster import ClusterCanvas
    from meshwave.designer.state.design_session import Session
    from meshwave.engine.document import parse_design

    nodes = 64
    design = document(nodes, PER_NODE, [list(range(node * PER_NODE, (node + 1) * PER_NODE)) for node in range(nodes)])
    design |= {"pipeline": {"schedule": "gpipe", "microbatches": 4}, "model": {**design["model"], "layers": nodes}}
    for node, mesh in enumerate(design["meshes"]):
        mesh["name"] = f"p{node}" if node % 2 else f"a longer name {node}"
    session = Session(parse_design(design))

    def make() -> Any:
        canvas = ClusterCanvas(session.edit, width=430, height=330)
        canvas.show(session.design.model_dump(mode="json"))
        return canvas

    page = stage.show(make)
    labels = page.locator(".mw-mesh-label")
    expect(labels).to_have_count(nodes)
    shown = labels.evaluate_all(
        """labels => labels.map((label) => [...label.children].filter((part) => part.checkVisibility())
            .map((part) => part.scrollWidth <= part.clientWidth && part.textContent))"""
    )
    assert shown[11] == ["p11"] and shown[12] == ["12"]
    assert [place for place, parts in enumerate(shown) if not parts or not all(parts)] == []


def test_a_mesh_is_drawn_moved_and_stretched_on_folded_nodes(page: Page, session: Session) -> None:
    fold = cluster(page, "cluster.layout.fold")

    drag(page, point(page, 1024), point(page, 1024 + fold))
    eventually(page, lambda: len(session.design.meshes) == 2)
    assert nodes_of(session, 1) == (1024, 1024 + 2 * fold - 1)
    eventually(page, lambda: cluster(page, "cluster.model.selected") == 1)

    drag(page, point(page, 1024), point(page, 1024 + 3 * fold))
    eventually(page, lambda: nodes_of(session, 1) == (1024 + 3 * fold, 1024 + 5 * fold - 1))
    eventually(page, lambda: first_node_on_page(page, 1) == 1024 + 3 * fold)

    x, y = centre(page.locator('.mw-handle[data-handle="se"]'))
    drag(page, (x, y), point(page, 1024 + 5 * fold))
    eventually(page, lambda: nodes_of(session, 1) == (1024 + 3 * fold, 1024 + 6 * fold - 1))

    drag(page, point(page, 1024), point(page, 0))  # over mesh A
    eventually(page, lambda: notice(page, "cluster").endswith("a device can be in one mesh only"))
    assert session.history[0] == "resize mesh B"


def test_the_keyboard_draws_and_moves_a_mesh_at_both_levels(page: Page, session: Session) -> None:
    fold = cluster(page, "cluster.layout.fold")
    rows = cluster(page, "cluster.layout.rows")
    device(page, 0).focus()

    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("Enter")
    eventually(page, lambda: len(session.design.meshes) == 2)
    assert nodes_of(session, 1) == (rows, rows + 2 * fold - 1)
    eventually(page, lambda: first_node_on_page(page, 1) == rows)
    page.keyboard.press("Alt+ArrowDown")
    eventually(page, lambda: nodes_of(session, 1) == (rows + fold, rows + 3 * fold - 1))
    eventually(page, lambda: first_node_on_page(page, 1) == rows + fold)

    for _ in range(60):
        page.keyboard.press("+")
    eventually(page, lambda: levels(page) == "devices")
    assert page.locator(".mw-device").count() < 200
    first = cluster(page, "cluster.focus")
    page.keyboard.press("Alt+ArrowDown")  # by one node
    eventually(page, lambda: nodes_of(session, 1)[0] == rows + fold + 1)
    expect(device(page, first + PER_NODE)).to_be_focused()
    for _ in range(7):
        page.keyboard.press("ArrowDown")
    expect(device(page, first + 8 * PER_NODE)).to_be_focused()
    expect(device(page, first + 8 * PER_NODE)).to_be_in_viewport()
    page.keyboard.press("0")
    eventually(page, lambda: levels(page) == f"groups of {fold} nodes")
    page.keyboard.press("Delete")
    eventually(page, lambda: len(session.design.meshes) == 1)


def test_the_wheel_unfolds_the_nodes_at_the_pointer(page: Page, session: Session) -> None:
    at = point(page, 1024)
    node = "cluster.grid.at(cluster.gestures.nearest({{clientX: {}, clientY: {}}}).device)[0]".format(*at)
    before = cluster(page, node)

    page.mouse.move(*at)
    for _ in range(25):
        page.mouse.wheel(0, -150)
    eventually(page, lambda: levels(page) == "devices")

    assert abs(cluster(page, node) - before) <= 1
    one = cluster(page, "cluster.gestures.nearest({{clientX: {}, clientY: {}}}).device".format(*at))
    drag(page, centre(device(page, one)), centre(device(page, one + PER_NODE)))
    eventually(page, lambda: len(session.design.meshes) == 2)
    assert session.design.meshes[1].devices == (one, one + PER_NODE)
    row = cluster(page, "cluster.view.row")
    page.keyboard.down("Alt")
    page.mouse.wheel(0, 100)
    page.keyboard.up("Alt")
    eventually(page, lambda: cluster(page, "cluster.view.row") > row)
    page.get_by_role("button", name="Fit").click()
    expect(page.locator(".mw-zoom")).to_contain_text("groups of")


def test_two_fingers_zoom_the_cluster_and_draw_nothing(page: Page, session: Session) -> None:
    x, y = point(page, 1024)
    touchscreen = page.context.new_cdp_session(page)

    def touch(event: str, *distances: int) -> None:
        points = [{"x": x + distance, "y": y, "id": number} for number, distance in enumerate(distances)]
        touchscreen.send("Input.dispatchTouchEvent", {"type": event, "touchPoints": points})

    touch("touchStart", -10)
    touch("touchStart", -10, 10)
    touch("touchMove", -40, 40)
    touch("touchEnd")

    eventually(page, lambda: cluster(page, "cluster.view.scale") == pytest.approx(4, rel=0.1))
    assert len(session.design.meshes) == 1
    assert cluster(page, "cluster.ghost") is None


def test_more_than_16384_devices_are_refused_in_a_sentence(page: Page, session: Session) -> None:
    field = page.get_by_label("devices per node", exact=True)

    field.fill("9")
    field.press("Enter")

    eventually(
        page, lambda: notice(page, "cluster") == "A cluster has at most 16384 devices, at most 1024 on each node"
    )
    assert session.design.cluster.devices == 16_384


def test_groups_are_tiled_and_every_mesh_is_visible(page: Page, session: Session) -> None:
    page.get_by_label("pp: meshes in the pipeline").fill("16")
    page.get_by_label("dp: data parallelism per mesh").fill("128")
    page.get_by_label("tp: tensor parallelism per mesh").fill("8")
    eventually(page, lambda: page.locator(".mw-tile-words").inner_text() == "16 meshes of 1024 devices, all used")
    page.keyboard.press("Enter")

    eventually(page, lambda: len(session.design.meshes) == 16)
    expect(page.locator(".mw-mesh-label")).to_have_count(16)
    expect(page.locator(".mw-mesh-label").nth(15)).to_have_text("15P")
