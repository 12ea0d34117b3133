"""The transfer lab in a real browser: opened by a link, edited by pointer and keyboard, and planned again at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Locator, Page, expect

from meshwave.designer.server.serve import read_design
from meshwave.engine.resharding import orderings, strategies
from tests.browser.gestures import centre, drag, eventually, focused, press_and_drag, wait_for_paint

if TYPE_CHECKING:
    from meshwave.designer.canvases.transfer import TransferView
    from meshwave.engine.document import Design
    from tests.browser.conftest import Stage

pytestmark = pytest.mark.browser


class Shown:
    """The transfer lab on a page, and its session."""

    def __init__(self, page: Page, view: TransferView) -> None:
        self.page, self.view = page, view

    @property
    def spec(self) -> tuple[list[str], list[str]]:
        document = self.view.session.state.document
        return document["source"]["spec"], document["destination"]["spec"]

    def wait_for_tasks(self, number: int) -> None:
        """Wait until a number of unit tasks are drawn."""
        expect(self.page.locator(".mw-tr-task")).to_have_count(number)

    def chip(self, side: str, axis: int) -> Locator:
        return self.page.locator(f'[data-card="{side}"] .mw-tr-axis[data-axis="{axis}"]')

    def slot(self, side: str, dim: int | str) -> Locator:
        return self.page.locator(f'[data-card="{side}"] .mw-tr-slot[data-dim="{dim}"]')

    def lanes(self, what: str) -> Any:
        return self.page.locator(".mw-transfer").evaluate(f"each => (lanes => {what})(each.mw.lanes)")


@pytest.fixture
def shown(stage: Stage) -> Callable[[str], Shown]:
    def open_lab(fragment: str = "") -> Shown:
        import panel as pn

        from meshwave.designer.pages.transfer_page import make_lab
        from meshwave.designer.state.jobs import page_callback_scheduler

        views: list[TransferView] = []

        def app() -> Any:
            views.append(make_lab(page_callback_scheduler(pn.state.curdoc)))
            views[0].begin()
            return views[0]

        stage.page.evaluate("fragment => (location.hash = fragment)", fragment)
        page = stage.show(app)
        page.locator(".mw-tr-task").first.wait_for()
        return Shown(page, views[0])

    return open_lab


def test_a_link_opens_a_transfer_and_dragging_an_axis_replans_it(shown: Callable[..., Shown]) -> None:
    from meshwave.designer.state import transfer_links as edits

    _, document = edits.starting_transfers()["case-5"]
    lab = shown(edits.link_fragment(document, "send-recv", "naive"))
    page = lab.page
    expect(page.locator('[data-card="lanes"] header')).to_contain_text("send-recv, naive")
    mark = page.locator(".mw-brand svg").bounding_box()
    assert mark is not None and mark["width"] == 22
    assert page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]") == [1440, 900]
    assert lab.spec == (["S1", "R", "R"], ["S0", "R", "R"])
    lab.wait_for_tasks(4)

    press_and_drag(page, centre(lab.chip("source", 0)), centre(lab.slot("source", 1)))
    page.locator('.mw-tr-slot[data-dim="1"][data-target]').wait_for()
    page.keyboard.press("Escape")
    page.mouse.up()
    assert lab.spec[0] == ["S1", "R", "R"]
    drag(page, centre(lab.chip("source", 0)), centre(lab.slot("source", 1)))
    lab.wait_for_tasks(8)
    assert lab.spec[0] == ["S1", "S0", "R"]
    chip = centre(lab.chip("source", 0))
    drag(page, centre(lab.chip("source", 1)), (chip[0] - 12, chip[1]))  # before it: the outer cut
    eventually(page, lambda: lab.spec[0] == ["R", "S10", "R"])

    page.wait_for_function("location.hash.endsWith('&strategy=send-recv&ordering=naive')")
    page.keyboard.press("Control+z")
    eventually(page, lambda: lab.spec[0] == ["S1", "S0", "R"])
    lab.wait_for_tasks(8)
    press_and_drag(page, centre(lab.chip("destination", 1)), centre(lab.slot("destination", 2)))
    page.keyboard.press("Control+z")  # all chips are drawn anew while one is held
    lab.wait_for_tasks(4)
    assert lab.spec[0] == ["S1", "R", "R"]
    page.mouse.up()
    eventually(page, lambda: lab.spec[1] == ["S0", "R", "S1"])
    expect(page.locator(".mw-tr-ghost")).to_have_count(0)


def test_axes_with_partial_sums_are_marked(shown: Callable[..., Shown]) -> None:
    lab = shown()
    expect(lab.chip("source", 1)).not_to_contain_text("partial")
    field = lab.page.locator('input[data-path="source.partial"]')

    field.fill("1")
    field.press("Enter")

    expect(lab.chip("source", 1)).to_contain_text("partial")
    expect(lab.chip("source", 0)).not_to_contain_text("partial")
    expect(lab.chip("source", 1)).to_have_css("border-style", "dashed")
    chip, slot = (each.bounding_box() for each in (lab.chip("source", 1), lab.slot("source", "none")))
    assert chip is not None and slot is not None
    assert chip["x"] + chip["width"] < slot["x"] + slot["width"]


def test_axes_move_by_keys_and_problems_are_shown_at_their_fields(shown: Callable[..., Shown]) -> None:
    lab = shown()
    page = lab.page
    lab.chip("destination", 1).focus()
    page.keyboard.press("ArrowLeft")  # from nowhere to the last dim
    lab.wait_for_tasks(8)
    page.keyboard.press("ArrowLeft")
    eventually(page, lambda: lab.spec[1] == ["S01", "R"])
    page.keyboard.press("ArrowUp")
    eventually(page, lambda: lab.spec[1] == ["S10", "R"])
    page.keyboard.press("Delete")
    eventually(page, lambda: lab.spec[1] == ["S0", "R"])
    lab.wait_for_tasks(4)

    field = page.locator('input[data-path="source.ranks"]')
    field.fill("0-2")
    field.press("Enter")
    expect(page.locator(".mw-tr-field", has=field).get_by_role("alert")).to_contain_text("has 4 ranks, and 3 ranks")
    expect(page.locator(".mw-transfer[data-stale]")).to_have_count(1)
    lab.wait_for_tasks(4)  # the last good picture
    field.fill("some")
    field.press("Enter")
    expect(page.locator(".mw-tr-field", has=field).get_by_role("alert")).to_contain_text("should be a rank")
    assert field.input_value() == "some"
    for path, text, words in (
        ("source.ranks", "9-4", "'9-4' is a descending range: write 4-9"),
        ("links.inter_node.bandwidth", "0", "too low: use at least 1 B/s"),
        ("links.inter_node.bandwidth", "1e400", "1e400 could be"),
        ("links.inter_node.bandwidth", "1e400 B/s", "is too large"),
    ):
        other = page.locator(f'input[data-path="{path}"]')
        other.fill(text)
        other.press("Enter")
        expect(page.locator(".mw-tr-field", has=other).get_by_role("alert")).to_contain_text(words)
        expect(other).to_have_value(text)  # what was typed stands beside the sentence, and nowhere else
        expect(page.locator(".mw-tr-general")).to_be_hidden()
    other.fill("10 Gbit/s")
    other.press("Enter")
    expect(other).to_have_value("1.25 GB/s")
    expect(page.locator(".mw-tr-field", has=other).get_by_role("alert")).to_have_count(0)
    page.locator('input[data-path="links.inter_node.latency_s"]').fill("70")
    page.locator('input[data-path="links.inter_node.latency_s"]').press("Enter")
    expect(page.locator('input[data-path="links.inter_node.latency_s"]')).to_have_value("70 µs")
    page.get_by_role("button", name="Undo: links.inter_node.latency_s").click()
    expect(field).to_have_value("0-2")  # another document is in place: what was refused is forgotten
    page.get_by_role("button", name="Undo: source.ranks").click()
    expect(field).to_have_value("0-3")
    expect(page.locator(".mw-transfer[data-stale]")).to_have_count(0)
    expect(page.locator('.mw-tr-field input[aria-invalid="true"]')).to_have_count(0)


def test_plans_are_compared_and_the_chunks_of_a_task_shown(shown: Callable[..., Shown]) -> None:
    lab = shown()
    page = lab.page
    plans = page.locator(".mw-tr-plan")
    expect(plans).to_have_count(len(strategies) * len(orderings))
    expect(page.locator(".mw-tr-plan[data-best]").first).to_be_visible()
    page.locator('[data-plan="local-allgather dfs"]').click()
    expect(page.locator('[data-plan="local-allgather dfs"]')).to_have_attribute("aria-pressed", "true")
    eventually(page, lambda: lab.view.session.drawing.plan.strategy == "local-allgather")
    page.locator('[data-plan="broadcast ensemble"]').click()
    expect(page.locator('[data-plan="broadcast ensemble"]')).to_have_attribute("aria-pressed", "true")
    naive = page.locator('[data-plan="broadcast naive"]')
    expect(naive).to_have_text("133 ms")
    time = page.get_by_role("group", name="Timeline of the links")
    time.get_by_role("button", name="Simulated", exact=True).click()
    expect(naive).to_have_text("66.1 ms")  # its order keeps no NIC waiting for another
    expect(page.locator('[data-card="plans"] header')).to_contain_text("simulated")
    page.set_viewport_size({"width": 860, "height": 900})
    bar = page.locator(".mw-tr-bar").bounding_box()
    figures = [figure.bounding_box() for figure in page.locator(".mw-tr-figure").all()]
    assert bar and len(figures) == 3 and all(box and box["x"] + box["width"] <= 860 for box in figures)
    assert all(box and bar["y"] <= box["y"] <= bar["y"] + bar["height"] - box["height"] for box in figures)
    page.set_viewport_size({"width": 1440, "height": 900})
    time.get_by_role("button", name="Planned", exact=True).click()
    expect(naive).to_have_text("133 ms")

    page.locator('.mw-tr-task[data-task="3"]').click()
    eventually(page, lambda: lab.lanes("lanes.planned.hops.get(3)?.lane.length ?? 0") > 4)
    x, y, width = lab.lanes(
        "(([hops, box]) => [box.x + lanes.x((hops.start_s[1] + hops.end_s[1]) / 2), box.y + lanes.top(hops.lane[1]) + lanes.laneHeight(hops.lane[1]) / 2,"
        " lanes.x(hops.end_s[1]) - lanes.x(hops.start_s[1])])([lanes.planned.hops.get(3), lanes.element.getBoundingClientRect()])"
    )
    page.mouse.move(x, y)
    expect(page.locator(".mw-tr-tip")).to_contain_text("Task 3, chunk")
    expect(page.locator(".mw-tr-rank[data-sends]")).to_have_text("2", use_inner_text=True)
    for _ in range(3):
        page.mouse.wheel(0, -200)
    wider = "lanes.x(lanes.planned.hops.get(3).end_s[1]) - lanes.x(lanes.planned.hops.get(3).start_s[1])"
    eventually(page, lambda: lab.lanes(wider) > 2 * width)
    page.locator(".mw-tr-stage").press("0")
    page.locator(".mw-tr-stage").press("j")
    eventually(page, lambda: lab.lanes("lanes.view.pinned.task") == 1)  # the next one of the plan

    # the same as simulated, to which two keys and a link lead, and which stays over edits
    page.locator(".mw-tr-stage").press("p")
    simulated = page.get_by_role("button", name="Simulated", exact=True)
    expect(simulated).to_have_attribute("aria-pressed", "true")
    expect(page.locator('[data-card="lanes"] header')).to_contain_text("66.1 ms simulated")
    page.wait_for_function("location.hash.endsWith('&shows=simulated')")
    assert lab.lanes("lanes.view.pinned.task") == 1
    page.locator('[data-plan="send-recv ensemble"]').click()
    eventually(page, lambda: lab.lanes("lanes.front === lanes.simulated && lanes.picture.strategy") == "send-recv")
    wait_for_paint(page)
    x, y, rows, parts = lab.lanes(
        "(({ bars }, box) => [box.x + lanes.x((bars.start_s[0] + bars.end_s[0]) / 2), box.y + lanes.top(0) + lanes.laneHeight(0) * (1 - bars.high[0] / 2),"
        " lanes.front.lanes[0].rows, bars.high.filter((_, bar) => bars.lane[bar] === 0)])(lanes.front.data, lanes.element.getBoundingClientRect())"
    )
    assert rows == 2 and 0.5 in parts and max(parts) == 1  # they share the NIC, and never more than there is
    shades = lab.lanes("[...lanes.front.lanes[0].isLighter.values()]")
    assert True in shades and False in shades  # messages that follow one another are told apart, however short
    page.mouse.move(x, y)
    expect(page.locator(".mw-tr-tip")).to_contain_text("on average 93% of the link rate")
    page.get_by_role("button", name="Planned", exact=True).click()
    expect(simulated).to_have_attribute("aria-pressed", "false")
    expect(page.locator('[data-card="lanes"] header')).to_contain_text("send-recv, ensemble: 131 ms")


def test_the_traffic_of_a_plan_marks_what_goes_between_hosts(shown: Callable[..., Shown]) -> None:
    lab = shown()
    page, side = lab.page, lab.view.picture
    ranks = {*side["source"]["ranks"], *side["destination"]["ranks"]}

    page.locator('[data-card="lanes"]').get_by_role("button", name="Traffic").click()

    cells = page.locator(".mw-traffic-cell")
    expect(cells).to_have_count(len(ranks) ** 2)
    between = page.locator('.mw-traffic-cell[data-reach="between"]').filter(has_text="B")
    assert between.count() > 0
    page.keyboard.press("Escape")
    expect(page.locator("dialog.mw-traffic")).not_to_be_visible()


def test_an_invalid_link_gives_a_message_and_changes_nothing(shown: Callable[..., Shown]) -> None:
    from meshwave.designer.state import transfer_links as edits

    _, document = edits.starting_transfers()["uneven"]
    document["destination"]["spec"] = ["S7", "R"]
    lab = shown(edits.link_fragment(document, "broadcast", "dfs"))

    general = lab.page.locator(".mw-tr-general")
    expect(general).to_contain_text(
        "the link was not opened: destination.spec[0]: S7 names axis 7, and the mesh has axes"
    )
    lab.wait_for_tasks(4)
    with lab.page.expect_download() as download:
        lab.page.get_by_role("button", name="Save").click()
    assert json.loads(Path(download.value.path()).read_text())["tensor"]["shape"] == [13312, 6144]


CONTRASTS = """elements => {
    const luminance = (colour) => {
        const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map((each) => {
            const part = colour.startsWith("rgb") ? each / 255 : Number(each);
            return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    return elements.map((element) => {
        const [letters, ground] = [element.querySelector("text"), element.querySelector("rect")].map((each) => getComputedStyle(each ?? element));
        const [low, high] = (element.localName === "span" ? [letters.color, ground.backgroundColor] : [letters.fill, ground.fill]).map(luminance).sort((one, other) => one - other);
        return getComputedStyle(element).opacity === "1" ? (high + 0.05) / (low + 0.05) : 0;
    });
}"""
"""Contrasts of the texts of unit tasks and ranks by WCAG 2; transparent texts have none."""


def test_dimmed_text_is_legible_and_sharding_specs_are_explained(shown: Callable[..., Shown]) -> None:
    lab = shown()
    page = lab.page
    page.locator('.mw-tr-task[data-task="1"]').click()
    expect(page.locator(".mw-tr-task:not([data-on])")).to_have_count(3)
    for theme in ("light", "dark"):
        page.evaluate("theme => (document.documentElement.dataset.theme = theme)", theme)
        found = page.locator(".mw-tr-task, .mw-tr-rank").evaluate_all(CONTRASTS)
        assert len(found) == 4 + 10 and min(found) >= 4.5, (theme, found)

    tip = page.locator(".mw-tip:popover-open")
    lab.slot("source", 1).locator(".mw-tr-slot-words").hover()
    expect(tip).to_contain_text("R: no axis shards dim 1; each rank has all of it")
    lab.chip("source", 1).press("ArrowRight")  # to the first dim, as its inner cut
    eventually(page, lambda: lab.spec[0] == ["S01", "R"])
    lab.slot("source", 0).locator(".mw-tr-slot-words").hover()
    expect(tip).to_contain_text(
        "S01: axis 0 shards dim 0 into 2, then axis 1 splits each piece into 2: 4 pieces in total"
    )
    page.get_by_role("button", name="About the sharding spec of the source").hover()
    expect(tip).to_contain_text("in S10 axis 1 is the outer one")


def test_empty_ranks_and_slices_that_stay_in_place_are_marked(shown: Callable[..., Shown]) -> None:
    from meshwave.designer.state import transfer_links as edits

    document = edits.make_transfer([4], [4], [3, 4], ("S0 R", "R S0"), per_host=2)
    document["destination"] |= {"ranks": [0, 1, 2, 3], "hosts": [0, 0, 1, 1]}  # the same devices, cut otherwise
    lab = shown(edits.link_fragment(document, "broadcast", "ensemble"))
    page = lab.page
    lab.wait_for_tasks(12)
    expect(page.locator(".mw-tr-stays")).to_have_count(3)
    expect(page.locator('[data-card="source"] .mw-tr-rank[data-empty]')).to_have_text("3", use_inner_text=True)
    mesh = page.get_by_role("grid", name="Ranks of the source mesh")
    mesh.get_by_role("row").get_by_role("gridcell").first.focus()
    page.keyboard.press("ArrowRight")
    assert focused(page, "at.ariaLabel") == "[1:2, 0:4], 16 B, on rank 1, host 0"
    expect(mesh.get_by_role("gridcell", selected=True)).to_have_text("1", use_inner_text=True)
    expect(page.locator(".mw-tr-task[data-on]")).to_have_count(4)
    page.keyboard.press("Escape")
    expect(page.locator(".mw-tr-task[data-on]")).to_have_count(0)


def test_the_numbers_of_cuts_of_large_dims_are_shown_in_full(shown: Callable[..., Shown]) -> None:
    lab = shown()
    shape = lab.page.get_by_label("Tensor: Shape")
    shape.fill("1000000 x 1000000")
    shape.press("Enter")

    cuts = lab.page.locator('[data-card="tasks"] .mw-tr-ruler')
    expect(cuts.first).to_have_text("333334")

    for cut in cuts.all():
        assert cut.evaluate("at => at.getBBox().x") >= 0, cut.text_content()


def test_many_tasks_are_drawn_as_one_image_and_can_be_selected(shown: Callable[..., Shown]) -> None:
    from meshwave.designer.state import transfer_links as edits

    page = shown().page
    document = edits.make_transfer([32], [32], [64, 64], ("S0 R", "R S0"))
    page.evaluate("fragment => (location.hash = fragment)", edits.link_fragment(document, "broadcast", "naive"))
    expect(page.locator(".mw-tr-figures")).to_contain_text("in 1024 unit tasks")
    expect(page.locator(".mw-tr-task")).to_have_count(0)  # no element for any of them
    x, y = centre(page.locator('[data-card="tasks"] .mw-tr-crowd'))
    page.mouse.move(x, y)
    expect(page.locator(".mw-tr-task")).to_have_count(1)
    page.mouse.click(x, y)
    expect(page.locator(".mw-sr")).to_contain_text("Task ")
    expect(page.locator(".mw-tr-rank[data-on]")).to_have_count(2)
    first = page.locator(".mw-tr-task").get_attribute("data-task")
    page.mouse.move(x + 40, y)
    expect(page.locator(f'.mw-tr-task:not([data-task="{first}"])')).to_have_count(1)


# ---- on the designer's page ----


def assert_equal_times(dialog: Locator) -> None:
    """Check that the simulated time in the header equals that of the timeline and of the table of plans."""
    links = dialog.locator('[data-card="lanes"] header')
    chosen = dialog.locator('.mw-tr-plan[aria-pressed="true"]')
    expect(chosen).to_have_count(1)
    expect(dialog.locator(".mw-tr-figure").nth(1)).to_have_text(f"{chosen.inner_text()}simulated")
    expect(links).to_contain_text(f": {chosen.inner_text()} simulated")


def test_an_arrow_of_the_timeline_opens_its_transfer(whole_page: Callable[[Design], Page]) -> None:
    page = whole_page(read_design("14-tensor-parallel"))
    page.wait_for_function("window.meshwaveTimeline.arrows.length > 0")
    arrow = page.evaluate("window.meshwaveTimeline.arrows[0]")
    page.mouse.dblclick(arrow["x"], arrow["y"])  # opens it once

    dialog = page.get_by_role("dialog", name="Transfer")
    dialog.wait_for()
    expect(dialog.get_by_role("heading", level=1)).to_have_text("Activation of microbatch 0, stage 0: mesh A to mesh B")
    dialog.locator(".mw-tr-task").first.wait_for()
    expect(dialog.get_by_role("button", name="source axis 1 tp × 2, replicates")).to_be_visible()
    expect(dialog.get_by_role("button", name="Simulated", exact=True)).to_have_attribute("aria-pressed", "true")
    assert_equal_times(dialog)
    take = dialog.get_by_role("button", name="Use this plan in the design")
    expect(take).to_have_attribute("aria-disabled", "true")
    dialog.locator('[data-plan="send-recv dfs"]').click()
    expect(take).to_have_attribute("aria-disabled", "false")
    assert_equal_times(dialog)
    page.keyboard.press("Control+z")  # of the picture, not of the design
    expect(take).to_have_attribute("aria-disabled", "true")
    dialog.locator('[data-plan="send-recv dfs"]').click()
    take.click()
    expect(take).to_have_attribute("aria-disabled", "true")
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    page.get_by_role("button", name="Undo: transfers: send-recv, dfs").wait_for()
