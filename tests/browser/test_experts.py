"""Experts on devices in a real browser: edits by pointer and keyboard, refusals at the chip, and one undo step per
edit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from meshwave.engine.experts import expert_schedule_names
from tests.browser.gestures import centre, drag, eventually, focused, press_and_drag, wait_for_paint
from tests.browser.legible import faint_texts
from tests.browser.runs import LOSSES, drawn_losses
from tests.browser.test_canvases import document

if TYPE_CHECKING:
    from meshwave.designer.state.design_session import Session
    from tests.browser.conftest import Stage

pytestmark = pytest.mark.browser
RUN_MS = 120_000


def experts_document(dp: int = 4, tp: int = 1, experts: int = 8, **section: Any) -> dict[str, Any]:
    devices = dp * tp
    design = document(nodes=2, per_node=devices // 2, meshes=[list(range(devices))], schedule="1f1b", microbatches=4)
    del design["pipeline"]["waves"]
    design["meshes"][0]["axes"] = {"dp": dp, "tp": tp}
    design["model"]["moe"] = {"experts": experts}
    design["experts"] = {"schedule": "parm-auto", "ep": 4, **section}
    return design


Whole = Callable[..., Page]


class Shown:
    """The canvas on a page, and the session behind it."""

    def __init__(self, page: Page, session: Session) -> None:
        self.page, self.session = page, session

    def chip(self, expert: int, place: int | None = None) -> Locator:
        at = f'.mw-xplace[data-place="{place}"] ' if place is not None else ""
        return self.page.locator(f'{at}.mw-xchip[data-expert="{expert}"]').first

    def place(self, number: int) -> Locator:
        return self.page.locator(f'.mw-xplace[data-place="{number}"]')

    @property
    def placement(self) -> list[list[int]]:
        places = self.page.locator(".mw-experts").evaluate("each => each.mw.picture.places")
        found: list[list[int]] = [place["held"] for place in places]
        return found

    @property
    def drawn(self) -> list[list[int]] | None:
        placement = self.session.design.experts.placement
        return None if placement is None else [list(held) for held in placement]

    @property
    def last(self) -> str:
        return str(self.session.history[0])

    def wait_for_edit(self, words: str) -> None:
        """Wait until the last edit has this label and is drawn."""
        eventually(self.page, lambda: self.last == words)
        if self.drawn is not None:
            eventually(self.page, lambda: self.placement == self.drawn)
        wait_for_paint(self.page)

    def wait_for_text(self, words: str) -> None:
        notice = self.page.locator('.mw-experts .mw-notice[data-kind="error"]')
        notice.filter(has_text=words).wait_for()

    @property
    def focused(self) -> str:
        return focused(self.page, "at?.dataset?.key ?? at?.dataset?.place ?? at?.tagName")


@pytest.fixture
def shown(stage: Stage) -> Callable[..., Shown]:
    def show(design: dict[str, Any]) -> Shown:
        from meshwave.designer.state.design_session import Session
        from meshwave.engine.document import parse_design

        session = Session(parse_design(design, draft=True))
        page = stage.show(lambda: _canvas(session), {"width": 1120, "height": 300})
        page.locator(".mw-experts").wait_for()
        page.locator(".mw-xchip, .mw-xempty").first.wait_for()
        return Shown(page, session)

    return show


def _canvas(session: Session) -> Any:
    import panel as pn

    from meshwave.designer.canvases.difference_marks import difference_marks
    from meshwave.designer.canvases.experts import ExpertsCanvas

    canvas = ExpertsCanvas(session.edit, width=1120, height=300)

    def show(*_: Any) -> None:
        canvas.show(session.design)
        canvas.differences = difference_marks(session).experts

    session.param.watch(show, ["design", "pinned"])
    show()
    return pn.Column(canvas, margin=0)


def test_an_expert_is_dragged_to_another_device_and_the_move_undone(shown: Callable[..., Shown], stage: Stage) -> None:
    page = shown(experts_document())

    press_and_drag(page.page, centre(page.chip(0)), centre(page.place(3)))
    page.page.locator('.mw-xplace[data-place="3"][data-target="yes"]').wait_for()
    page.page.locator(".mw-notice", has_text="load 1× → 1.5×").wait_for()
    page.page.mouse.up()

    page.wait_for_edit("move expert 0 to device 3")
    assert page.drawn == [[1], [2, 3], [4, 5], [0, 6, 7]]
    assert page.placement == page.drawn
    stage.run(page.session.undo)
    assert page.drawn is None
    eventually(page.page, lambda: page.placement == [[0, 1], [2, 3], [4, 5], [6, 7]])


def test_experts_are_zoomed_and_dragged_while_zoomed(shown: Callable[..., Shown]) -> None:
    page = shown(experts_document(dp=16, experts=64, ep=16))

    def width() -> float:
        return float(page.chip(0).evaluate("chip => chip.clientWidth"))

    before = width()
    page.chip(0).focus()
    page.page.keyboard.press("w")
    eventually(page.page, lambda: width() > before)
    page.place(14).scroll_into_view_if_needed()
    press_and_drag(page.page, centre(page.chip(60)), centre(page.place(14)))
    page.page.mouse.up()
    page.wait_for_edit("move expert 60 to device 14")
    page.chip(0).focus()
    page.page.keyboard.press("0")
    eventually(page.page, lambda: width() == before)


def test_experts_do_not_move_after_they_appeared(shown: Callable[..., Shown], stage: Stage) -> None:
    late = """() => {
        const own = window.ResizeObserver;
        window.ResizeObserver = class extends own {
            constructor(report) { super((...sizes) => setTimeout(() => report(...sizes), 100)); }
        };
        return own;
    }"""
    own = stage.page.evaluate_handle(late)  # as on a machine that is busy when the page opens
    try:
        page = shown(experts_document())
        first = centre(page.chip(0))
        page.page.wait_for_timeout(200)
        assert centre(page.chip(0)) == first
    finally:
        stage.page.evaluate("own => { window.ResizeObserver = own; }", own)


def test_experts_on_other_devices_than_in_the_pinned_design_are_marked(
    shown: Callable[..., Shown], stage: Stage
) -> None:
    page = shown(experts_document())
    stage.run(page.session.pin)
    press_and_drag(page.page, centre(page.chip(0)), centre(page.place(3)))
    page.page.mouse.up()
    page.wait_for_edit("move expert 0 to device 3")

    expect(page.chip(0, 3)).to_have_attribute("data-mark", "+")
    expect(page.place(0).locator(".mw-xwas")).to_have_text("−0")
    line = page.page.get_by_role("group", name="Differences from the pinned design")
    expect(line.get_by_role("listitem")).to_have_text(
        ["expert 0: removed from device 0", "expert 0: added on device 3"]
    )
    page.page.get_by_role("switch", name="Show differences").click()
    expect(page.page.locator(".mw-xwas, [data-mark]")).to_have_count(0)


@pytest.mark.parametrize("devices", [4, 8, 16])
def test_device_names_are_never_truncated(shown: Callable[..., Shown], devices: int) -> None:
    page = shown(experts_document(dp=devices, experts=2 * devices, ep=devices)).page

    for tags in page.locator(".mw-xtags:visible").all():
        assert tags.evaluate("each => each.scrollWidth <= each.clientWidth"), tags.inner_text()


def test_control_drag_replicates_and_a_second_replica_on_a_device_is_refused(shown: Callable[..., Shown]) -> None:
    page = shown(experts_document())
    page.page.keyboard.down("Control")
    drag(page.page, centre(page.chip(0)), centre(page.place(2)))
    page.wait_for_edit("replicate expert 0 on device 2")
    assert page.drawn == [[0, 1], [2, 3], [0, 4, 5], [6, 7]]

    press_and_drag(page.page, centre(page.chip(0, 0)), centre(page.place(2)))
    page.page.locator('.mw-xplace[data-place="2"][data-target="no"]').wait_for()
    page.page.mouse.up()
    page.page.keyboard.up("Control")

    page.wait_for_text("device 2 holds expert 0 already")
    half, whole = (page.chip(expert).bounding_box() for expert in (0, 1))
    assert half and whole and half["width"] < whole["width"]  # it serves a part of its expert's load
    assert page.last == "replicate expert 0 on device 2"


def test_a_rectangle_selects_experts_that_move_together(shown: Callable[..., Shown], stage: Stage) -> None:
    page = shown(experts_document())
    expect(page.chip(1)).to_be_visible()
    box = page.place(0).bounding_box()
    assert box
    left_of_board = (box["x"] - 3, box["y"] - 3)
    last = page.chip(1).bounding_box()
    assert last
    drag(page.page, left_of_board, (last["x"] + last["width"] + 2, last["y"] + last["height"] + 2))
    expect(page.page.locator('.mw-xchip[aria-selected="true"]')).to_have_count(2)
    page.page.keyboard.down("Shift")
    page.chip(2).click()
    page.page.keyboard.up("Shift")
    expect(page.page.locator('.mw-xchip[aria-selected="true"]')).to_have_count(3)

    drag(page.page, centre(page.chip(1)), centre(page.place(3)))

    page.wait_for_edit("move experts 0, 1, 2 to device 3")
    assert page.drawn == [[], [3], [4, 5], [0, 1, 2, 6, 7]]
    stage.run(page.session.undo)
    assert page.drawn is None


def test_a_drag_goes_on_after_another_edit_while_its_experts_exist(shown: Callable[..., Shown], stage: Stage) -> None:
    page = shown(experts_document())
    target = page.page.locator('.mw-xplace[data-place="3"][data-target="yes"]')
    sent = page.page.locator('[data-figure="intra"] b')
    before = sent.inner_text()
    press_and_drag(page.page, centre(page.chip(0)), centre(page.place(3)))
    target.wait_for()
    stage.run(lambda: page.session.edit("model.moe.capacity_factor", 3.0, "another edit"))
    expect(sent).not_to_have_text(before)
    expect(page.page.locator(".mw-away")).to_have_count(1)
    target.wait_for()
    page.page.mouse.up()
    page.wait_for_edit("move expert 0 to device 3")
    assert page.drawn == [[1], [2, 3], [4, 5], [0, 6, 7]]

    press_and_drag(page.page, centre(page.chip(0)), centre(page.place(1)))
    page.page.locator(".mw-away").wait_for()
    stage.run(page.session.undo)
    expect(page.page.locator(".mw-away")).to_have_count(0)
    page.page.mouse.up()
    drag(page.page, centre(page.chip(2)), centre(page.place(0)))
    page.wait_for_edit("move expert 2 to device 0")
    assert page.drawn == [[0, 1, 2], [3], [4, 5], [6, 7]]


def test_escape_cancels_a_drag(shown: Callable[..., Shown], stage: Stage) -> None:
    page = shown(experts_document())
    press_and_drag(page.page, centre(page.chip(0)), centre(page.place(3)))
    page.page.keyboard.press("Escape")
    page.page.mouse.up()
    drag(page.page, centre(page.chip(1)), centre(page.place(3)))
    page.wait_for_edit("move expert 1 to device 3")
    stage.run(page.session.undo)
    assert page.session.history[0] == "", "what Escape gave up was no edit"


def test_keys_move_replicate_and_remove_experts(shown: Callable[..., Shown]) -> None:
    page = shown(experts_document())
    press = page.page.keyboard.press
    page.chip(0).click()
    press("ArrowRight")
    assert page.focused == "1@0"

    press("Space")
    press("ArrowRight")
    page.page.locator(".mw-notice", has_text="move to device 1").wait_for()
    press("Enter")
    page.wait_for_edit("move expert 1 to device 1")
    assert page.drawn == [[0], [1, 2, 3], [4, 5], [6, 7]]
    eventually(page.page, lambda: page.focused == "1@1")

    press("r")
    page.wait_for_edit("replicate expert 1")
    assert page.drawn == [[0], [1, 2, 3], [1, 4, 5], [6, 7]]  # on the other node
    press("Delete")
    page.wait_for_edit("remove a replica of expert 1")
    eventually(page.page, lambda: sum(1 in held for held in page.placement) == 1)
    eventually(page.page, lambda: page.focused.startswith("1@"))
    press("Delete")
    page.wait_for_text("holds the only replica of expert 1")

    press("Space")
    press("ArrowLeft")
    press("Escape")
    assert page.last == "remove a replica of expert 1"
    press("Control+a")
    expect(page.page.locator('.mw-xchip[aria-selected="true"]')).to_have_count(8)


def test_balance_and_equal_blocks_take_one_click_each(shown: Callable[..., Shown]) -> None:
    page = shown(experts_document(load="zipf"))
    imbalance = page.page.locator('[data-figure="load"] b')
    before = float(imbalance.inner_text()[:-1])

    page.page.get_by_role("button", name="Balance").click()
    page.wait_for_edit("balance experts, up to 1 replica per device")
    eventually(page.page, lambda: float(imbalance.inner_text()[:-1]) < before / 1.4)
    eventually(page.page, lambda: page.page.locator(".mw-xchip[data-copied]").count() >= 2)

    page.page.get_by_role("button", name="Balance").click()
    page.wait_for_text("no better balance was found")
    page.page.get_by_role("button", name="Equal blocks").click()
    page.wait_for_edit("place the experts in equal blocks")
    assert page.drawn is None
    page.page.get_by_role("button", name="Decrease replicas").click()
    page.page.get_by_role("button", name="Balance").click()
    page.wait_for_edit("balance experts")
    expect(page.page.locator(".mw-xchip[data-copied]")).to_have_count(0)


def test_a_device_shows_its_number_of_experts_and_its_share_of_the_load(shown: Callable[..., Shown]) -> None:
    page = shown(experts_document(load="zipf"))
    expect(page.place(0).locator(".mw-xplace-foot")).to_contain_text("2 experts · 55.2%")
    expect(page.chip(0)).to_have_text("036.8%")
    bars = page.page.locator(".mw-xbar i").evaluate_all("all => all.map((each) => parseFloat(each.style.width))")
    assert bars[0] == 100 and bars == sorted(bars, reverse=True)  # the fullest has the longest

    page.chip(0).click()
    page.page.keyboard.press("ArrowRight")
    assert page.focused == "1@0"
    label, chip = page.place(0).locator(".mw-xdevice").bounding_box(), page.chip(1).bounding_box()
    assert label and chip and chip["y"] - 3 >= label["y"] + label["height"]  # its ring leaves the label alone


def test_terms_of_the_papers_have_tooltips_for_pointer_and_keyboard(shown: Callable[..., Shown]) -> None:
    page = shown(experts_document(dp=4, tp=2, ep=4, esp=2))
    tip = page.page.locator(".mw-experts .mw-tip")
    page.page.locator(".mw-xreason .mw-term", has_text=re.compile("^D$")).hover()
    tip.filter(has_text="including empty ones: 8 experts × ").wait_for()

    page.page.get_by_role("button", name="Compare schedules").focus()
    page.page.keyboard.press("Tab")
    tip.filter(has_text="1× is balanced").wait_for()
    page.page.keyboard.press("ArrowDown")
    tip.filter(has_text="find no free slot").wait_for()
    page.page.keyboard.press("ArrowDown")
    tip.filter(has_text="send to other nodes").wait_for()
    page.page.keyboard.press("Tab")
    tip.filter(has_text="Load of an expert").wait_for()  # one stop for them all, then the colours


def test_a_layer_that_cannot_be_drawn_shows_the_reason_and_keeps_the_settings(
    shown: Callable[..., Shown], stage: Stage
) -> None:
    page = shown(experts_document())
    page.page.get_by_role("button", name="Increase replicas").click()
    stage.run(lambda: page.session.edit("experts.ep", 3, "ep 3"))
    page.page.get_by_role("alert").filter(
        has_text="groups of ep=3 x esp=1 devices do not divide the 4 devices of mesh A"
    ).wait_for()
    stage.run(page.session.undo)
    page.chip(0).wait_for()
    expect(page.page.get_by_label("replicas", exact=True)).to_have_value("2")


def test_settings_are_edits_of_the_document(shown: Callable[..., Shown], stage: Stage) -> None:
    page = shown(experts_document())
    for control, item, key, value in (
        ("schedule", "Parm S2", "schedule", "parm-s2"),
        ("esp", "2 (ep 2)", "esp", 2),
        ("degree", "automatic", "degree", None),
        ("load", "Zipf", "load", "zipf"),
    ):
        page.page.locator(f'[data-control="{control}"]').click()
        page.page.get_by_role("menuitemradio", name=item, exact=True).click()
        eventually(page.page, lambda key=key, value=value: getattr(page.session.design.experts, key) == value)  # type: ignore[misc]
        expect(page.page.locator(f'[data-control="{control}"]')).to_contain_text(item.partition(" (")[0])
    assert page.session.design.experts.ep == 2
    expect(page.page.locator(".mw-xplace")).to_have_count(2)

    load = page.page.locator('[data-control="load"]')
    load.hover()
    page.page.mouse.down()
    sent = page.page.locator('[data-figure="intra"] b')
    before = sent.inner_text()
    stage.run(lambda: page.session.edit("model.moe.capacity_factor", 3.0, "another edit, while a press is under way"))
    expect(sent).not_to_have_text(before)
    page.page.mouse.up()
    expect(page.page.get_by_role("menuitemradio", name="Zipf", exact=True)).to_have_attribute("aria-checked", "true")


def test_hovering_shows_the_groups_of_a_device(shown: Callable[..., Shown]) -> None:
    page = shown(experts_document(dp=4, tp=2, ep=4, esp=2))
    page.page.locator('.mw-xdevice[data-device="2"]').hover()

    def inside(kind: str) -> list[int]:
        found: list[int] = page.page.locator(f'.mw-xdevice[data-in~="{kind}"]').evaluate_all(
            "all => all.map((each) => Number(each.dataset.device))"
        )
        return found

    eventually(page.page, lambda: inside("mp") == inside("esp") == [2, 3])
    assert inside("ep") == [0, 2, 4, 6]
    page.page.get_by_text("ep (different experts) 0 2 4 6").wait_for()

    page.page.mouse.move(2, 2)
    page.chip(2).focus()
    page.page.keyboard.press("ArrowRight")  # and of where the keyboard goes
    eventually(page.page, lambda: inside("mp") == [2, 3])


def test_shift_f10_offers_the_commands_of_an_expert(shown: Callable[..., Shown]) -> None:
    pane = shown(experts_document())
    page = pane.page

    page.locator(".mw-xchip").first.focus()
    page.keyboard.press("Shift+F10")
    menu = page.locator(".mw-experts .mw-drop:popover-open")
    expect(menu.locator(".mw-item-text").first).to_have_text("Replicate the expert")
    page.keyboard.press("Enter")

    pane.wait_for_edit("replicate expert 0")


def test_the_traffic_of_the_layer_is_a_table_that_keys_walk(shown: Callable[..., Shown]) -> None:
    pane = shown(experts_document())
    page = pane.page

    page.get_by_role("button", name="Traffic").click()
    cells = page.locator(".mw-traffic-cell")
    expect(cells).to_have_count(16)
    expect(cells.first).to_be_focused()
    expect(cells.first).to_have_text("–")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(cells.nth(9)).to_be_focused()
    expect(cells.nth(9)).to_have_attribute("aria-label", re.compile(r"^device 2 to device 1: [\d.]+ k?B, "))
    page.keyboard.press("Escape")
    expect(page.locator("dialog.mw-traffic")).not_to_be_visible()


def test_without_experts_one_click_adds_some(shown: Callable[..., Shown], stage: Stage) -> None:
    design = experts_document()
    del design["model"]["moe"], design["experts"]
    page = shown(design)

    page.page.get_by_role("button", name="Add experts").click()

    page.wait_for_edit("add experts to the model")
    page.chip(7).wait_for()
    assert page.session.design.model.moe.experts == 8
    stage.run(page.session.undo)
    page.page.get_by_text("This model has no experts").wait_for()
    expect(page.page.get_by_role("button", name="Add experts")).to_be_focused()  # what had it is gone


# ---- on the page ----


@pytest.fixture
def whole(whole_page: Callable[..., Page]) -> Whole:
    """The whole designer, opened on a document."""
    from meshwave.engine.document import parse_design

    return lambda document, **how: whole_page(parse_design(document), **how)


def test_the_key_x_switches_between_cluster_and_experts(whole: Whole) -> None:
    page = whole(experts_document())
    page.locator(".mw-cluster").wait_for()
    page.keyboard.press("x")
    page.locator(".mw-xchip").first.wait_for()
    box = page.locator(".mw-experts").bounding_box()
    assert box and box["width"] > 1000 and box["y"] + box["height"] < 900
    assert page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]") == [1440, 900]
    page.locator(".mw-cluster").wait_for(state="hidden")
    page.set_viewport_size({"width": 1280, "height": 720})  # nothing of the bar is cut off
    right_of = "each => each.getBoundingClientRect().right"
    eventually(page, lambda: page.locator(".mw-experts").evaluate(right_of) < 1000)
    button = page.get_by_role("button", name="Balance", exact=True).filter(visible=True)
    eventually(page, lambda: button.evaluate(right_of) < page.locator(".mw-experts").evaluate(right_of))

    page.keyboard.press("ArrowRight")  # the keyboard is there at once
    page.keyboard.press("Space")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Undo: move expert").wait_for()
    page.get_by_role("button", name="Cluster", exact=True).click()
    page.locator(".mw-cluster").wait_for()
    page.locator(".mw-experts").wait_for(state="hidden")


class KnownMaps(dict[Any, Any]):
    """Cache that has a map for any links."""

    def get(self, cluster: Any, default: Any = None) -> Any:
        from meshwave.designer.state import expert_map

        return expert_map.make_expert_map(cluster)


@pytest.fixture
def quick_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the layers of the map with made-up times; tests/designer/test_experts.py tests the real ones."""
    from meshwave.designer.state import expert_map
    from meshwave.designer.views import expert_schedules
    from meshwave.engine.predict import expert_map as expert_grid

    points = np.array(list(product(*expert_grid.GRID.values())))
    axes = dict(zip(expert_grid.GRID, points.T, strict=True))
    names = (*expert_grid.SPREADING_SCHEDULES, "ppmoe")
    seconds = {name: 1e-3 + (np.arange(len(points)) + number) % len(names) for number, name in enumerate(names)}
    quick = expert_grid.Grid(axes, seconds, seconds)
    monkeypatch.setattr(expert_map, "price_grid", lambda cluster: quick._replace(cluster=cluster))
    monkeypatch.setattr(expert_schedules, "_maps", KnownMaps())


@pytest.mark.usefixtures("quick_grid")
def test_expert_schedules_are_compared_and_one_is_selected(whole: Whole) -> None:
    page = whole(experts_document(dp=4, tp=2, ep=4, esp=2))
    page.keyboard.press("x")
    page.get_by_role("button", name="Compare schedules").click()
    dialog = page.get_by_role("dialog", name="Expert schedules")
    dialog.wait_for()
    cards = dialog.locator(".mw-es-card")
    cards.first.wait_for()
    expect(cards).to_have_count(len(expert_schedule_names()))
    expect(cards.first.locator("[data-kind=best]")).to_have_count(1)
    eventually(page, lambda: focused(page, "at.ariaCurrent") == "true")  # the present one has the keyboard
    assert dialog.locator(".mw-es-picture rect:not(.mw-es-lane)").count() > 40

    page.keyboard.press("Home")
    tip = dialog.locator(".mw-tip")
    page.keyboard.press("Tab")  # what the card is made of, one stop
    tip.filter(has_text="its compute lane, and its links").wait_for()
    for words in ("A forward and a backward", "sends to other nodes"):
        page.keyboard.press("ArrowDown")
        tip.filter(has_text=words).wait_for()
    page.keyboard.press("Shift+Tab")
    assert focused(page, "at.closest('.mw-es-card').dataset.name") == cards.first.get_attribute("data-name")
    assert faint_texts(page) == []  # of the page behind it too
    dialog.get_by_role("tab", name="1,296 layers").click()
    cells = dialog.locator(".mw-em-cell")
    cells.nth(1295).wait_for()
    cells.nth(0).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    dialog.locator(".mw-em-words", has_text="mp 1 esp 2 k 1 f 2.4 B 2 L 512 M 1024 H/M 3").wait_for()
    dialog.get_by_label("Links").select_option(label="NVLink, 100 Gb/s per GPU")
    dialog.locator(".mw-em-notes", has_text="NVLink of 200 GB/s and a network of 100 Gb/s per GPU").wait_for()
    dialog.get_by_label("Links").focus()
    dialog.get_by_label("Links").select_option(label="This design")
    dialog.locator(".mw-em-notes", has_text="devices and links of this design").wait_for()
    assert focused(page, "at.className") == "mw-em-links"  # where it was, though the map is another
    dialog.get_by_role("button", name="Fastest overall").click()
    dialog.locator(".mw-em .mw-legend", has_text="PPMoE 259").wait_for()  # of how many it is the fastest
    expect(dialog.locator(".mw-em-never")).to_have_count(0)
    dialog.get_by_role("button", name="Speedup over DeepSpeed-MoE").click()
    dialog.get_by_text("paper: 1.13× to 5.77×").wait_for()
    dialog.get_by_role("tab", name="This layer").click()
    dialog.locator('[data-name="parm-s2"]').click()

    dialog.wait_for(state="hidden")
    page.get_by_role("button", name="Undo: experts: schedule Parm S2").wait_for()
    page.locator('[data-control="schedule"]', has_text="Parm S2").wait_for()
    eventually(page, lambda: focused(page, "at.ariaLabel") == "Compare schedules")  # the keyboard is where it was
    page.keyboard.press("Control+z")
    page.locator('[data-control="schedule"]', has_text="Parm, automatic").wait_for()


def test_the_form_has_the_experts_and_shows_problems_at_their_fields(whole: Whole) -> None:
    design = experts_document()
    del design["model"]["moe"], design["experts"]
    page = whole(design)
    section = page.locator('.mw-form [data-section="experts"]')
    section.wait_for()
    expect(section.locator(".mw-field")).to_have_count(1)  # the switch

    section.get_by_label("MoE", exact=True).check()
    page.get_by_role("button", name="Undo: add experts to the model").wait_for()
    section.get_by_label("Layer EP").wait_for()
    section.get_by_label("MoE Experts").fill("6")
    section.get_by_label("MoE Experts").press("Enter")
    at_ep = section.locator('[data-path="experts.ep"] .mw-word')
    at_ep.filter(has_text="ep=4 does not divide 6 experts").wait_for()
    section.get_by_label("Layer EP").fill("2")
    section.get_by_label("Layer EP").press("Enter")
    at_ep.wait_for(state="detached")

    placement = section.get_by_label("Layer Placement")
    placement.fill("0 1 2\n3 4")
    placement.press("Control+Enter")
    at_homes = section.locator('[data-path="experts.placement"] .mw-word')
    at_homes.filter(has_text="expert 5 is on no device; add it to one").wait_for()
    placement.fill("0 1 2 3\n4 5")
    placement.press("Control+Enter")
    at_homes.wait_for(state="detached")
    page.get_by_role("button", name="Undo: expert placement").wait_for()

    section.get_by_label("Layer Schedule").select_option(label="PPMoE")  # the form and the canvas say the same
    section.locator('[data-path="experts.ep"] .mw-hint', has_text="not used by this schedule").wait_for()
    section.get_by_label("Layer EP").fill("4")
    section.get_by_label("Layer EP").press("Enter")
    at_ep.filter(has_text="PPMoE places whole experts on the 1 device").wait_for()
    page.get_by_role("button", name="Experts", exact=True).click()
    control = page.locator('[data-control="ep"]')
    expect(control).to_have_attribute("title", re.compile("^PPMoE places whole experts on the 1 device "))
    control.click(force=True)
    page.locator(".mw-experts .mw-notice", has_text="does not use ep and esp").wait_for()
    page.keyboard.press("Control+z")
    control.filter(has_text="2").and_(page.locator('[aria-disabled="false"]')).wait_for()
    expect(section.locator('[data-path="experts.ep"] .mw-hint')).not_to_have_text("not used by this schedule")
    at_ep.wait_for(state="detached")

    section.get_by_label("MoE", exact=True).uncheck()
    page.get_by_role("button", name="Undo: remove the experts from the model").wait_for()
    section.get_by_label("Layer EP").wait_for(state="detached")
    page.keyboard.press("Control+z")
    expect(section.get_by_label("Layer Placement")).to_have_value("0 1 2 3\n4 5")


# ---- a run ----


@pytest.mark.nightly
def test_a_small_run_with_experts_trains(whole: Whole) -> None:
    """The loss falls, the run and its layers are overlaid on the prediction, and its expert load is offered."""
    import json

    from meshwave.engine.files import example

    design = json.loads(example("17-experts-on-two-cores").read_text())
    design["training"]["steps"] = 5
    page = whole(design, launches=True)
    page.wait_for_function("window.meshwaveTimeline?.layers.length === 1")

    page.get_by_role("button", name="Launch 4 processes").click()
    page.locator(".mw-state", has_text="succeeded").first.wait_for(timeout=RUN_MS)

    page.get_by_role("tab", name="Loss").click()
    page.wait_for_function(f"(({LOSSES})() ?? [[]])[0]?.length === 5")
    [losses] = drawn_losses(page)
    assert losses[-1] < losses[0] - 0.1
    page.get_by_role("tab", name="Timeline").click()
    page.locator(
        ".mw-quiet", has_text="D (slots) is 2.5 times X (tokens), and on one node no gather can overlap the exchange"
    ).wait_for()
    page.wait_for_function("window.meshwaveTimeline.layers.map(layer => layer.source).join() === 'predicted,measured'")

    page.mouse.dblclick(*block(page, 0, 0, 1))
    page.locator(".mw-timeline-crumbs").get_by_text("0F1 on mesh A").wait_for()
    page.wait_for_function("window.meshwaveTimeline.layers.map(layer => layer.source).join() === 'predicted,measured'")
    shown = page.evaluate("window.meshwaveTimeline.layers.map(({ label, ranks }) => [label, ranks])")
    assert re.fullmatch(r"Run of \d\d:\d\d, step \d", shown[1][0]) and shown[0][1] == shown[1][1] == 8

    page.locator(".mw-timeline-stage").evaluate("each => each.blur()")
    page.keyboard.press("x")
    page.locator('[data-control="load"]').click()
    page.get_by_role("menuitemradio", name="measured").click()
    page.get_by_role("button", name="Undo: set the expert load to measured").wait_for()
    page.locator('[data-control="load"]', has_text="5 steps").wait_for()
    expect(page.locator('[data-figure="load"] b')).not_to_have_text("1×")
    page.keyboard.press("Control+z")
    page.locator('[data-control="load"]', has_text="uniform").wait_for()


# ---- inside a block of the timeline ----


@pytest.fixture
def opened(whole: Whole) -> Page:
    design = experts_document(dp=2, tp=2, ep=2, esp=2, schedule="parm-s2")
    design["cluster"]["nodes"] = 4
    design["meshes"].append({"name": "B", "devices": [4, 5, 6, 7], "axes": {"dp": 2, "tp": 2}})
    page = whole(design)
    page.wait_for_function("window.meshwaveTimeline.layers.length === 1")
    return page


def block(page: Page, rank: int, stage: int, mb: int, op: str = "F") -> tuple[float, float]:
    wait_for_paint(page)
    box = page.evaluate(f"window.meshwaveTimeline.blockAt({rank}, {stage}, {mb}, '{op}')")
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def wait_for_lanes(page: Page, number: int) -> None:
    page.wait_for_function(f"window.meshwaveTimeline.layers[0]?.ranks === {number}")


def test_enter_opens_the_layers_of_the_pinned_block_and_backspace_restores_the_view(opened: Page) -> None:
    page = opened
    x, y = block(page, 0, 0, 0)
    page.mouse.move(x, y)
    page.mouse.wheel(0, -400)
    page.mouse.click(*block(page, 0, 0, 0))
    before = page.evaluate("window.meshwaveTimeline.view")
    assert not before["whole"]

    page.keyboard.press("Enter")

    wait_for_lanes(page, 12)  # of four devices: computing, links in the node, links between nodes
    crumbs = page.locator(".mw-timeline-crumbs")
    crumbs.get_by_text("0F0 on mesh A").wait_for()
    assert page.evaluate("window.meshwaveTimeline.view.whole")
    for words in ("dispatch", "combine", "experts, feed-forward"):
        expect(page.locator(".mw-timeline-legend", has_text=words)).to_be_visible()
    expect(page.get_by_role("button", name="Edit order")).to_be_hidden()

    page.keyboard.press("Backspace")

    wait_for_lanes(page, 2)
    after = page.evaluate("window.meshwaveTimeline.view")
    assert after["from"] == pytest.approx(before["from"]) and after["to"] == pytest.approx(before["to"])
    pinned = page.evaluate("window.meshwaveTimeline.pinned")
    assert (pinned["stage"], pinned["mb"], pinned["op"]) == (0, 0, 0)
    expect(crumbs).to_be_hidden()


def test_a_double_click_opens_the_layers_and_the_navigation_path_leads_back(opened: Page) -> None:
    page = opened
    page.mouse.dblclick(*block(page, 1, 1, 2, "B"))
    wait_for_lanes(page, 12)
    page.locator(".mw-timeline-crumbs").get_by_text("1B2 on mesh B").wait_for()

    page.get_by_role("button", name="iteration", exact=True).click()
    wait_for_lanes(page, 2)


def test_the_open_layers_are_updated_after_an_edit_of_the_experts(opened: Page) -> None:
    page = opened
    page.mouse.click(*block(page, 0, 0, 0))
    page.get_by_role("button", name="Open layers").click()
    wait_for_lanes(page, 12)
    before = page.evaluate("window.meshwaveTimeline.layers[0].makespan")

    page.locator(".mw-timeline-stage").evaluate("each => each.blur()")
    page.keyboard.press("x")
    page.locator('[data-control="schedule"]').click()
    page.get_by_role("menuitemradio", name="DeepSpeed-MoE", exact=True).click()
    page.wait_for_function(f"window.meshwaveTimeline.layers[0].makespan > {before}")
    page.locator(".mw-timeline-crumbs").get_by_text("0F0 on mesh A").wait_for()

    page.locator(".mw-timeline-stage").focus()
    page.keyboard.press("Escape")
    wait_for_lanes(page, 2)
