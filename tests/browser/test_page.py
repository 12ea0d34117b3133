"""The designer in a real browser: draw, predict, launch, compare."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from meshwave.designer.server.serve import read_design, serve_in_thread
from meshwave.engine.runs import Record
from meshwave.engine.runs.launchers import launchers
from tests.browser.gestures import eventually, wait_for_paint
from tests.browser.runs import LOSSES, drawn_losses, write_run

PLOT_HEIGHTS = """() => {
    const all = (view) => [view, ...(view.child_views ?? []).flatMap(all)];
    const figures = Bokeh.index.roots.flatMap(all).filter(({ model }) => model.type === "Figure");
    return figures.map(({ el }) => el.getBoundingClientRect().height);
}"""
pytestmark = [pytest.mark.browser, pytest.mark.torch]

TOKEN = "a-token-for-tests"
RUN_MS = 120_000
Whole = Callable[..., Page]


@pytest.fixture
def designer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Start the designer with a design as ``meshwave serve`` does, and return its link."""
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    with ExitStack() as stack:
        yield lambda design: stack.enter_context(serve_in_thread(read_design(design), TOKEN))


@pytest.fixture
def forbid_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepare no processes for launches."""
    monkeypatch.setattr(launchers["local"], "warm", lambda launcher: None)


def iteration(page: Page) -> str:
    return page.locator('.mw-tile[data-key="iteration"]').inner_text()


def wait_for_another_iteration(page: Page, before: str) -> None:
    expect(page.locator('.mw-tile[data-key="iteration"]')).not_to_have_text(before, use_inner_text=True)


def test_a_run_of_another_design_is_opened_with_its_own_timeline(whole_page: Whole, tmp_path: Path) -> None:
    record = Record(tmp_path)
    write_run(record, read_design("03-gpt-on-two-cores"), factor=2.0)
    record.close()
    page = whole_page(read_design("01-first-wave"), launches=True)
    sources = "window.meshwaveTimeline.layers.map(({ source, label }) => `${source} ${label}`).join()"
    page.get_by_role("tab", name="Runs").click()
    page.locator(".mw-run-table tbody td").nth(2).click(button="right")
    page.get_by_role("menuitem", name="Show timeline").click()

    page.wait_for_function(f"/^predicted Predicted,measured Measured/.test({sources})")
    expect(page.get_by_role("tab", name="Timeline")).to_have_attribute("aria-selected", "true")
    crumbs = page.locator(".mw-timeline-crumbs")
    expect(crumbs).to_contain_text("Small GPT on two CPU cores")
    crumbs.get_by_text("Open design").click()
    page.wait_for_function(f"{sources} === 'predicted One wave on four meshes'")
    expect(crumbs).to_be_hidden()


@pytest.mark.nightly
def test_runs_are_compared_in_the_plots_and_their_designs_are_opened(whole_page: Whole, tmp_path: Path) -> None:
    design, record = read_design("03-gpt-on-two-cores"), Record(tmp_path)
    first, second = (write_run(record, design, factor=factor, steps=steps) for factor, steps in ((2.0, 3), (1.5, 5)))
    record.close()
    page = whole_page(design, launches=True)
    page.get_by_role("tab", name="Runs").click()
    for run in (first, second):
        page.locator(f'.mw-run-table tr[data-run="{run}"] input[type="checkbox"]').check()
    page.get_by_role("tab", name="Loss").click()
    page.wait_for_function(f"(({LOSSES})() ?? []).length === 2")
    assert sorted(map(len, drawn_losses(page))) == [3, 5]
    wide = page.viewport_size
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_role("navigation", name="Pane").get_by_role("button", name="Timeline").click()
    eventually(page, lambda: min(page.evaluate(PLOT_HEIGHTS)) >= 200)
    assert wide
    page.set_viewport_size(wide)

    page.get_by_role("tab", name="Runs").click()
    page.evaluate(
        "const { open } = window; window.open = (link) => Object.assign(window, { opened: link, open }); null"
    )
    page.locator(f'.mw-run-table tr[data-run="{second}"] .mw-run-more').click()
    page.get_by_role("menuitem", name="Open its design").click()
    assert page.evaluate("window.opened") == f"./?run={second}"

    page.locator(f'.mw-run-table tr[data-run="{second}"] .mw-run-more').click()
    page.get_by_role("menuitem", name="Show timeline").click()
    expect(page.locator('.mw-tile[data-key="iteration"]')).to_contain_text(re.compile(r"earlier runs \+\d"))


def test_the_command_palette_finds_and_runs_commands_of_the_page_and_of_the_timeline(whole_page: Whole) -> None:
    page = whole_page(read_design("01-first-wave"))
    palette = page.get_by_role("dialog", name="Commands")
    search = page.get_by_role("combobox", name="Search commands")

    def run(words: str) -> None:
        page.keyboard.press("Control+k")
        expect(search).to_be_focused()
        search.fill(words)
        page.keyboard.press("Enter")
        expect(palette).to_be_hidden()

    page.keyboard.press("Control+k")
    options = palette.get_by_role("option")
    assert options.count() > 25
    expect(options.filter(has_text="Pin or unpin")).to_contain_text("P")
    page.keyboard.press("ArrowDown")
    expect(palette.locator('[aria-selected="true"]')).to_contain_text("Redo")
    page.keyboard.press("Escape")
    expect(palette).to_be_hidden()

    run("view runs")
    expect(page.get_by_role("tab", name="Runs")).to_have_attribute("aria-selected", "true")
    run("critical path")
    expect(page.get_by_role("tab", name="Timeline")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("button", name="Critical path")).to_have_attribute("aria-pressed", "true")
    page.get_by_label("Layers", exact=True).focus()  # also while a field is edited
    run("gallery")
    expect(page.get_by_role("heading", name="Gallery")).to_be_visible()


def test_the_timeline_offers_what_applies_to_the_block_under_the_pointer(whole_page: Whole) -> None:
    page = whole_page(read_design("01-first-wave"))
    stage = page.locator(".mw-timeline-stage")
    box = stage.bounding_box()
    assert box
    menu = page.get_by_role("menu", name="Timeline")

    page.mouse.click(box["x"] + 120, box["y"] + 75, button="right")
    expect(menu.get_by_role("menuitem")).to_contain_text(["Pin", "Zoom to block", "Pin lane to the top", "Toggle mark"])
    shown = menu.bounding_box()
    assert shown
    assert (shown["x"], shown["y"]) == pytest.approx((box["x"] + 120, box["y"] + 75), abs=2)
    expect(menu.get_by_role("menuitem").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(menu).to_be_hidden()
    expect(stage).to_be_focused()
    page.mouse.click(box["x"] + 120, box["y"] + 75, button="right")
    expect(menu.get_by_role("menuitem").first).to_have_text("UnpinEnter")
    page.keyboard.press("Escape")
    expect(menu).to_be_hidden()


@pytest.mark.nightly
@pytest.mark.usefixtures("forbid_launches")
def test_the_page_fits_on_one_screen_on_first_and_later_visits(
    designer: Callable[[str], str], visit: Callable[[str], Page], page: Page
) -> None:
    link = designer("01-first-wave")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    visit(link)
    modules = [url for url in asked if "/assets/" in url]
    assert len(modules) == len(set(modules)), "a module is loaded under two URLs or twice"
    assert not any("es-module-shims" in url for url in asked)
    lab = page.get_by_role("link", name="Transfer lab").get_attribute("href")
    visit(page.url.partition("?")[0] + str(lab))
    page.locator(".mw-tr-task").first.wait_for()
    visit(link)
    loaded = "performance.getEntriesByType('resource').filter(({ name }) => name.includes('/assets/'))"
    assert page.evaluate(f"{loaded}.map(({{ transferSize }}) => transferSize)") == [0] * len(modules)  # from its cache

    expect(page.locator('.mw-tile[data-key="iteration"]')).to_contain_text("36")
    assert page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]") == [1440, 900]
    for view in (".mw-cluster", ".mw-wave", ".mw-numbers"):
        box = page.locator(view).bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= 1440 and box["y"] + box["height"] <= 900
    assert page.evaluate("window.meshwaveTimeline.layers.length") == 1


def test_drawing_a_mesh_and_adding_a_wave_are_undone(whole_page: Whole) -> None:
    page = whole_page(read_design("01-first-wave"))
    page.get_by_role("button", name="Increase devices per node").click()  # an unused device to draw on
    expect(page.locator(".mw-device")).to_have_count(5)
    before = iteration(page)

    free = page.locator('.mw-device[data-device="4"]').bounding_box()
    assert free
    page.mouse.move(free["x"] + 6, free["y"] + 6)
    page.mouse.down()
    page.mouse.move(free["x"] + free["width"] - 6, free["y"] + free["height"] - 6, steps=4)
    page.mouse.up()
    wait_for_another_iteration(page, before)
    page.wait_for_function("window.meshwaveTimeline.layers[0].ranks === 5")

    drawn = iteration(page)
    page.keyboard.press("Control+z")
    expect(page.locator('.mw-tile[data-key="iteration"]')).to_have_text(before, use_inner_text=True)
    page.keyboard.press("Control+Shift+Z")
    expect(page.locator('.mw-tile[data-key="iteration"]')).to_have_text(drawn, use_inner_text=True)
    page.keyboard.press("Control+z")

    page.get_by_role("button", name="Increase waves").click()
    wait_for_another_iteration(page, before)
    expect(page.locator('.mw-tile[data-key="bubble"]')).to_contain_text("20")


def test_pinning_shows_both_timelines_and_the_change(whole_page: Whole) -> None:
    page = whole_page(read_design("01-first-wave"))
    page.get_by_role("button", name=re.compile("^Pin")).first.click()
    page.get_by_role("button", name="Increase waves").click()

    page.wait_for_function("window.meshwaveTimeline.layers.length === 2")
    expect(page.locator('.mw-tile[data-key="bubble"]')).to_contain_text("better")


def test_invalid_input_is_reported_at_its_field_and_the_last_valid_timeline_stays(whole_page: Whole) -> None:
    page = whole_page(read_design("01-first-wave"))
    field = page.get_by_label("Layers", exact=True)
    field.fill("3")
    field.press("Enter")

    expect(page.get_by_text(re.compile("8 stages need at least 8 layers")).first).to_be_visible()
    assert page.evaluate("window.meshwaveTimeline.layers.length") == 1
    field.fill("-3")
    field.press("Enter")
    expect(field).to_have_attribute("aria-invalid", "true")


def test_a_run_is_cancelled_and_its_state_is_shown_after_a_reload(
    designer: Callable[[str], str], visit: Callable[[str], Page]
) -> None:
    page = visit(designer("01-first-wave"))
    alone = read_design("01-first-wave").model_dump(mode="json") | {"name": "alone"}  # leaves the page a core
    open_design(page, alone | {"meshes": alone["meshes"][:1], "pipeline": {"schedule": "1f1b", "microbatches": 4}})
    steps = page.get_by_label("Steps", exact=True)
    steps.fill("100000")
    steps.press("Enter")
    page.get_by_role("button", name="Launch").first.click()
    under_way = "window.meshwaveRuns?.model.run.total === 100000 && window.meshwaveRuns.model.run.done > 2"
    page.wait_for_function(under_way, timeout=RUN_MS)

    page.wait_for_url("**/?draft=*")
    page.reload()
    page.get_by_role("tab", name="Run", exact=True).click()
    page.wait_for_function(under_way, timeout=RUN_MS)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".mw-run .mw-state")).to_have_text("cancelled", timeout=RUN_MS)


@pytest.mark.usefixtures("forbid_launches")
def test_without_the_token_nothing_is_shown(designer: Callable[[str], str], page: Page, complaints: list[str]) -> None:
    link = designer("01-first-wave")
    response = page.goto(link.split("?")[0])
    assert response and response.status == 403
    expect(page.get_by_text("Open the link that")).to_be_visible()

    wrong = page.goto(link + "x")
    assert wrong and wrong.status == 403
    foreign = page.request.get(link, headers={"Host": "example.org"})
    assert foreign.status == 403
    complaints.clear()  # the browser logs each refusal as an error


def open_design(page: Page, document: dict[str, Any]) -> None:
    file = {"name": "d.json", "mimeType": "application/json", "buffer": json.dumps(document).encode()}
    page.get_by_label("Design, schedule or trace files").set_input_files(file)
    expect(page.get_by_label("Design name")).to_have_value(document["name"])


def two_waves(name: str, **wait_for_another_iteration: Any) -> dict[str, Any]:
    document = read_design("02-two-waves").model_dump(mode="json")
    for path, value in wait_for_another_iteration.items():
        part, key = path.split("__")
        document[part][key] = value
    return {**document, "name": name}


def test_a_run_is_launched_followed_and_overlaid_and_blockers_of_another_launch_are_shown(
    whole_page: Whole,
) -> None:
    page = whole_page(read_design("05-hanayo-as-chimera"), launches=True)
    bar = page.locator(".mw-launchbar-words")
    badge = page.get_by_role("tab", name="Problems").locator(".mw-tab-badge")
    page.get_by_role("button", name="Launch").first.click()
    expect(page.locator(".mw-run .mw-state")).to_have_text("succeeded", timeout=RUN_MS)

    page.get_by_role("tab", name="Loss").click()
    page.wait_for_function(f"(({LOSSES})() ?? [[]])[0]?.length === 20")
    [losses] = drawn_losses(page)
    assert losses[-1] < losses[0] - 0.5
    page.wait_for_function("window.meshwaveTimeline.layers.length === 2")
    assert page.evaluate("window.meshwaveTimeline.layers[1].source") == "measured"
    page.get_by_role("tab", name="Error breakdown").click()
    expect(page.locator(".mw-compare")).to_contain_text("iteration")
    expect(bar).to_contain_text("done: 20 steps, loss")
    page.get_by_role("tab", name="Runs").click()
    expect(page.locator(".mw-run-table tbody tr").first).to_contain_text("20 of 20")
    page.get_by_role("tab", name="Timeline").click()
    expect(badge).to_be_hidden()

    open_design(page, two_waves("few words", model__vocab=200))

    expect(bar).to_contain_text("a gpt reads text as bytes and needs a vocab of at least 256")
    assert bar.evaluate("bar => bar.scrollHeight <= bar.clientHeight || !!bar.dataset.tip"), "all of it can be read"
    expect(page.get_by_role("button", name="Launch").first).to_have_attribute("aria-disabled", "true")
    expect(badge).to_have_attribute("data-severity", "launch")
    page.get_by_role("tab", name="Problems").click()
    expect(page.locator(".mw-problem b").first).to_have_text("Blocks launch")
    page.locator(".mw-problem").first.click()  # its field, on the page that it is on
    expect(page.get_by_role("tab", name="Design")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_label("Vocabulary")).to_be_focused()

    page.get_by_role("tab", name="Run", exact=True).click()
    expect(page.locator(".mw-run")).to_be_hidden()  # it was of another design
    page.wait_for_function("window.meshwaveTimeline.layers.map(({ source }) => source).join() === 'predicted'")


def test_opening_another_design_unpins_lanes_and_shows_its_cluster(whole_page: Whole) -> None:
    page = whole_page(read_design("16-gpt2-moe"))
    for key in "ju":  # the block in focus, and its lane on top
        page.locator(".mw-timeline-stage").press(key)
    page.wait_for_function("window.meshwaveTimeline.kept.length === 1")
    page.locator(".mw-timeline-collapse button").first.click()
    page.wait_for_function("window.meshwaveTimeline.collapsed.length === 1")
    page.get_by_role("button", name="Experts", exact=True).click()
    expect(page.locator(".mw-xchip").first).to_be_visible()
    expect(page.locator(".mw-wave")).to_be_hidden()

    open_design(page, two_waves("no experts"))

    expect(page.locator(".mw-cluster")).to_be_visible()
    page.wait_for_function("window.meshwaveTimeline.kept.length + window.meshwaveTimeline.collapsed.length === 0")

    page.get_by_role("button", name="Experts", exact=True).click()
    expect(page.get_by_role("heading", name="This model has no experts")).to_be_visible()
    expect(page.locator(".mw-wave")).to_be_visible()


def test_many_more_processes_than_cores_are_launched_by_a_second_press(
    whole_page: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr("meshwave.engine.runs.launchers._machine.PROCESSES_PER_CORE", 0)
    monkeypatch.setattr("meshwave.designer.views.runs.RunsPanel._start", lambda *given: started.append("started"))
    page = whole_page(read_design("02-two-waves"))

    page.get_by_role("button", name="Launch 4 processes").click()

    expect(page.locator(".mw-launchbar-words")).to_contain_text("4 processes would share")
    again = page.get_by_role("button", name="Launch anyway")
    again.blur()
    expect(again).to_be_hidden()
    for press in (page.get_by_role("button", name="Launch 4 processes"), again):
        page.wait_for_timeout(900)  # a double click is one press
        press.click()
    eventually(page, lambda: started == ["started"])


def test_a_document_with_errors_shows_nothing_of_the_previous_document(whole_page: Whole) -> None:
    page = whole_page(read_design("01-first-wave"))

    open_design(page, two_waves("too few layers", model__layers=3))

    expect(page.locator(".mw-timeline-empty")).to_contain_text("No timeline: the design has 1 problem.")
    expect(page.locator(".mw-wave-drawing")).to_be_hidden()
    page.keyboard.press("Control+z")
    expect(page.locator(".mw-wave-drawing")).to_be_visible()
    page.wait_for_function("window.meshwaveTimeline.layers[0]?.label === 'One wave on four meshes'")
    page.keyboard.press("Control+Shift+Z")
    expect(page.locator(".mw-timeline-empty")).to_be_visible()


def test_tabs_are_selected_by_keyboard_and_the_tiling_follows_the_design(whole_page: Whole) -> None:
    page = whole_page(read_design("01-first-wave"))
    tab = page.get_by_role("tab", name="Design")
    expect(tab).to_have_attribute("aria-selected", "true")
    tab.focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Run", exact=True)).to_be_focused()
    expect(page.get_by_role("tab", name="Run", exact=True)).to_have_attribute("aria-selected", "true")
    expect(page.get_by_text("Training text: default")).to_be_visible()
    expect(page.get_by_label("Layers", exact=True)).to_be_hidden()
    page.keyboard.press("Home")
    expect(page.get_by_label("Layers", exact=True)).to_be_visible()

    sizes = page.locator(".mw-size input")
    expect(page.locator(".mw-tile-words")).to_have_text("4 meshes of 1 device, all used")
    document = two_waves("two meshes", cluster__devices_per_node=4, pipeline__waves=1)
    document["meshes"] = [
        {"name": name, "devices": devices, "axes": {"dp": 2, "tp": 1}}
        for name, devices in (("A", [0, 1]), ("B", [2, 3]))
    ]
    open_design(page, document)
    for place, value in enumerate("221"):
        expect(sizes.nth(place)).to_have_value(value)
    expect(page.locator(".mw-tile-words")).to_have_text("2 meshes of 2 devices, all used")
    sizes.nth(0).fill("1")
    expect(page.locator(".mw-tile-words")).to_have_text("1 mesh of 2 devices, 2 unused")
    sizes.nth(0).press("Enter")
    expect(page.locator(".mw-mesh-label")).to_have_count(1)
    sizes.nth(0).press("Control+z")  # nothing is typed: the page's undo
    expect(page.locator(".mw-mesh-label")).to_have_count(2)
    expect(sizes.nth(0)).to_have_value("2")


def test_dragged_layers_are_predicted_and_undone_as_one_step(whole_page: Whole) -> None:
    page = whole_page(read_design("01-first-wave"))
    expect(page.locator(".mw-equal")).to_have_count(0)
    before = iteration(page)
    grip = page.locator('.mw-grip[data-boundary="1"]').bounding_box()
    assert grip
    x, y = grip["x"] + grip["width"] / 2, grip["y"] + 12
    undo = page.get_by_role("button", name="Undo", exact=False).first

    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 28, y, steps=5)
    wait_for_another_iteration(page, before)
    page.wait_for_function("window.meshwaveTimeline.layers[0].makespan > 36")
    expect(undo).to_have_attribute("aria-disabled", "true")  # nothing is edited yet
    page.keyboard.press("Escape")
    page.mouse.up()
    expect(page.locator('.mw-tile[data-key="iteration"]')).to_have_text(before, use_inner_text=True)
    page.wait_for_function("window.meshwaveTimeline.layers[0].makespan === 36")

    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 28, y, steps=5)
    page.mouse.up()
    wait_for_another_iteration(page, before)
    expect(undo).to_have_attribute("aria-label", "Undo: move 1 layer from stage 1 to 2")
    page.keyboard.press("Control+z")
    expect(page.locator('.mw-tile[data-key="iteration"]')).to_have_text(before, use_inner_text=True)
    expect(undo).to_have_attribute("aria-disabled", "true")

    many = page.get_by_label("microbatches", exact=True)
    many.fill("6")
    many.press("Enter")
    expect(undo).to_have_attribute("aria-label", "Undo: 6 microbatches")
    many.press("Control+z")  # what is there is the design's, so this is the page's undo
    expect(many).to_have_value("4")
    expect(undo).to_have_attribute("aria-disabled", "true")
    many.press("End")
    many.press("2")
    board = page.locator(".mw-wave-drawing")
    before = board.bounding_box()
    page.set_viewport_size({"width": 1200, "height": 880})  # all is drawn anew
    eventually(page, lambda: board.bounding_box() != before)
    wait_for_paint(page)
    expect(many).to_have_value("42")
    many.press("Control+z")  # what is typed is the field's own
    expect(many).to_have_value("4")
    many.press("Tab")
    expect(undo).to_have_attribute("aria-disabled", "true")

    layers = page.get_by_label("Layers", exact=True)
    layers.fill("18")
    layers.press("Enter")
    expect(page.locator(".mw-equal")).to_contain_text("unit costs: equal stages")
