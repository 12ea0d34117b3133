"""The widgets around the canvases in a real browser, used by pointer and keyboard."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Locator, Page, expect

from meshwave.designer.forms import Form
from meshwave.designer.state.design_session import Session
from meshwave.designer.views.numbers import Numbers
from meshwave.designer.views.problems import Problems
from meshwave.designer.views.topbar import TopBar
from meshwave.engine.document import load_design, parse_design
from meshwave.engine.exports import exports
from meshwave.engine.files import example
from tests.browser.gestures import eventually

if TYPE_CHECKING:
    from panel.viewable import Viewable

    from tests.browser.conftest import Stage

pytestmark = pytest.mark.browser


@dataclass
class Shell:
    """The widgets on a page, and the session behind them."""

    page: Page
    session: Session
    launched: list[int] = field(default_factory=list)

    def field(self, path: str) -> Locator:
        return self.page.locator(f'[data-path="{path}"] :is(input, select, textarea)').first

    def words(self, path: str) -> Locator:
        return self.page.locator(f'[data-path="{path}"] .mw-word')

    def type(self, path: str, text: str) -> None:
        self.field(path).fill(text)
        self.field(path).press("Enter")

    def tile(self, key: str) -> Locator:
        return self.page.locator(f'.mw-tile[data-key="{key}"]')

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name)

    def wait_for_python(self) -> None:
        """Wait until Python has handled all gestures so far."""
        before = len(self.launched)
        self.page.evaluate("window.dispatchEvent(new KeyboardEvent('keydown', { key: 'l' }))")
        eventually(self.page, lambda: len(self.launched) > before)


@pytest.fixture
def session() -> Session:
    return Session(load_design(example("02-two-waves")))


@pytest.fixture
def launched() -> list[int]:
    return []


@pytest.fixture
def app(session: Session, launched: list[int]) -> Callable[[], Viewable]:
    import panel as pn

    def make() -> Viewable:
        fill: dict[str, Any] = {"sizing_mode": "stretch_both"}
        form = Form(session, **fill)
        areas = {
            "top": TopBar(
                session,
                on_launch=lambda: launched.append(1),
                largest=100_000,
                **fill,
            ),
            "numbers": Numbers(session, **fill),
            "side": form,
            "list": Problems(session, on_focus=form.focus_field, **fill),
        }
        for area, view in areas.items():
            view.styles = {"grid-area": area, "min-width": "0", "min-height": "0"}
        return pn.Column(*areas.values(), sizing_mode="stretch_both", styles=GRID)

    return make


@pytest.fixture
def shell(stage: Stage, app: Callable[[], Viewable], session: Session, launched: list[int]) -> Shell:
    page = stage.show(app)
    page.wait_for_selector(".mw-field")
    page.wait_for_selector(".mw-tile")
    page.wait_for_selector(".mw-topbar")
    return Shell(page, session, launched)


GRID = {
    "display": "grid",
    "height": "100vh",
    "width": "100vw",
    "gap": "1px",
    "grid-template-columns": "minmax(0, 1fr) 320px",
    "grid-template-rows": "44px 66px minmax(0, 1fr)",
    "grid-template-areas": '"top top" "numbers side" "list side"',
}


def test_the_logo_is_small_and_coloured(shell: Shell) -> None:
    """Without its style sheet, the logo would be a large black square."""
    mark = shell.page.locator(".mw-topbar .mw-brand svg")

    box = mark.bounding_box()
    assert box is not None
    assert (box["width"], box["height"]) == (22, 22)
    assert mark.locator("rect").evaluate("rect => getComputedStyle(rect).fill") != "rgb(0, 0, 0)"


# ---- the form ----


def test_a_typed_number_is_one_edit_and_the_numbers_follow(shell: Shell) -> None:
    before = shell.tile("iteration").inner_text()

    shell.type("pipeline.microbatches", "8")

    eventually(shell.page, lambda: shell.session.history == ("microbatches 8", ""))
    expect(shell.tile("iteration")).not_to_have_text(before)
    assert shell.session.design.pipeline.microbatches == 8
    expect(shell.button("Undo: microbatches 8")).to_be_visible()


def test_a_refused_value_stays_in_its_field_with_the_reason(shell: Shell) -> None:
    shell.type("model.heads", "7")

    expect(shell.words("model.heads")).to_contain_text("heads do not divide")
    entry = shell.field("model.heads")
    assert entry.input_value() == "7"
    assert entry.get_attribute("aria-invalid") == "true"
    described = entry.get_attribute("aria-describedby") or ""
    assert "words" in described.split()[0]
    assert shell.session.design.model.heads == 4

    entry.press("Escape")

    assert entry.input_value() == "4"
    expect(shell.words("model.heads")).to_have_count(0)


def test_the_reason_of_a_refusal_disappears_when_the_present_value_is_typed_again(shell: Shell) -> None:
    shell.type("model.heads", "7")
    expect(shell.words("model.heads")).to_contain_text("heads do not divide")

    shell.type("model.heads", "4")

    expect(shell.words("model.heads")).to_have_count(0)
    expect(shell.field("model.heads")).to_have_attribute("aria-invalid", "false")


def test_control_z_in_a_field_undoes_the_edit_and_updates_the_field(shell: Shell) -> None:
    entry = shell.field("pipeline.microbatches")
    before = entry.input_value()
    shell.type("pipeline.microbatches", "8")
    eventually(shell.page, lambda: shell.session.design.pipeline.microbatches == 8)

    entry.press("Control+z")

    eventually(shell.page, lambda: shell.session.design.pipeline.microbatches == int(before))
    expect(entry).to_have_value(before)

    entry.fill("6")
    entry.press("Control+z")  # what is being typed is the field's own
    entry.press("Tab")

    eventually(shell.page, lambda: str(shell.session.design.pipeline.microbatches) == entry.input_value())


def test_refused_values_are_cleared_when_another_design_is_opened(shell: Shell, stage: Stage) -> None:
    shell.type("model.heads", "7")
    expect(shell.words("model.heads")).to_contain_text("heads do not divide")

    stage.run(lambda: shell.session.replace(shell.session.design, "open the same again"))

    expect(shell.words("model.heads")).to_have_count(0)
    expect(shell.field("model.heads")).to_have_value("4")


def test_amounts_are_parsed_and_shown_with_units_and_prefixes(shell: Shell) -> None:
    shell.page.get_by_role("group", name="Cluster").get_by_text("Cluster", exact=True).click()

    shell.type("cluster.device.memory_bytes", "80 Gb")
    expect(shell.words("cluster.device.memory_bytes")).to_have_text("'80 Gb' should be an amount such as 80 GB, in B")
    expect(shell.field("cluster.device.memory_bytes")).to_have_value("80 Gb")

    shell.type("cluster.device.memory_bytes", "80 GB")
    eventually(shell.page, lambda: shell.session.design.cluster.device.memory_bytes == 8e10)
    expect(shell.field("cluster.device.memory_bytes")).to_have_value("80 GB")


def test_typed_text_is_kept_during_another_edit(shell: Shell, stage: Stage) -> None:
    shell.field("training.steps").fill("77")

    stage.run(lambda: shell.session.edit("pipeline.microbatches", 8, "elsewhere"))

    expect(shell.field("pipeline.microbatches")).to_have_value("8")
    assert shell.field("training.steps").input_value() == "77"


def test_a_problem_is_shown_at_its_field_and_a_click_in_the_list_focuses_the_field(shell: Shell, stage: Stage) -> None:
    shell.type("model.layers", "3")

    expect(shell.words("model.layers")).to_contain_text("need at least")
    expect(shell.page.locator(".mw-numbers")).to_have_attribute("data-stale", "")
    expect(shell.page.locator(".mw-side-note")).to_have_text("Last valid design")
    shell.field("training.steps").focus()
    shell.page.locator(".mw-problem").click()
    expect(shell.field("model.layers")).to_be_focused()

    stage.run(shell.session.undo)

    expect(shell.page.locator(".mw-none")).to_contain_text("No problems")
    expect(shell.words("model.layers")).to_have_count(0)


def test_a_computation_in_the_list_of_problems_has_not_the_colour_of_an_error(stage: Stage, session: Session) -> None:
    problems = Problems(session, sizing_mode="stretch_both")
    page = stage.show(lambda: problems)
    entry = {"where": "pipeline", "code": "x", "message": "text", "fixes": []}
    stage.run(lambda: problems.param.update(problems=[{**entry, "severity": each} for each in ("error", "computing")]))
    expect(page.locator(".mw-problem")).to_have_count(2)

    error, computing = (
        page.locator(f".mw-problem[data-severity={severity}]").evaluate(
            "line => [...line.querySelectorAll('.mw-svg, b')].map((part) => getComputedStyle(part).color)"
        )
        for severity in ("error", "computing")
    )

    assert len(error) == len(computing) == 2
    assert not set(error) & set(computing)


def test_a_fix_in_the_list_of_problems_is_applied_with_the_keyboard(shell: Shell) -> None:
    shell.type("model.layers", "3")
    shell.page.locator(".mw-problem").focus()

    shell.page.keyboard.press("Tab")
    expect(shell.page.locator(".mw-problems .mw-fix")).to_be_focused()
    shell.page.keyboard.press("Enter")

    expect(shell.page.locator(".mw-none")).to_contain_text("No problems")
    eventually(shell.page, lambda: shell.session.design.model.layers > 3)


def test_a_problem_in_a_folded_section_is_counted_in_the_heading_and_unfolds_the_section(
    shell: Shell, stage: Stage
) -> None:
    section = shell.page.locator('[data-section="model"]')
    section.locator("summary").click()
    stage.run(lambda: shell.session.edit("model.layers", 3, "3 layers"))

    expect(section.locator(".mw-flaws")).to_have_text("1 error")
    shell.page.locator(".mw-problem").click()

    expect(shell.field("model.layers")).to_be_visible()
    expect(shell.field("model.layers")).to_be_focused()


def test_another_schedule_has_its_own_options(shell: Shell) -> None:
    shell.field("pipeline.schedule").select_option(label="Interleaved 1F1B")

    expect(shell.field("pipeline.chunks")).to_be_visible()
    expect(shell.field("pipeline.waves")).to_have_count(0)


def test_a_schedule_can_be_drawn_by_hand_in_the_form(shell: Shell) -> None:
    shell.field("pipeline.schedule").select_option(label="Custom")
    orders = shell.field("pipeline.actions")
    expect(orders).to_be_visible()
    lines = orders.input_value().splitlines()
    assert len(lines) == 4
    assert all("F0" in line for line in lines)

    orders.fill("\n".join([*lines[:-1], "0F0"]))
    orders.press("Control+Enter")

    eventually(shell.page, lambda: shell.session.errors)
    expect(orders).to_have_value("\n".join([*lines[:-1], "0F0"]))


def test_a_preset_sets_the_cluster(shell: Shell) -> None:
    shell.page.get_by_role("group", name="Cluster").get_by_text("Cluster", exact=True).click()

    shell.field("cluster").select_option(label="DGX H100")

    eventually(shell.page, lambda: "H100" in shell.session.design.cluster.device.name)
    expect(shell.field("cluster.devices_per_node")).to_have_value("8")


def test_the_search_shows_matching_fields_and_unfolds_their_groups(shell: Shell) -> None:
    seed, layers = shell.field("training.seed"), shell.field("model.layers")
    expect(seed).to_be_hidden()
    expect(layers).to_be_visible()
    search = shell.page.get_by_label("Find a setting")

    search.fill("seed")
    expect(seed).to_be_visible()
    expect(layers).to_be_hidden()
    search.fill("no such setting")
    expect(shell.page.get_by_text("No matching settings")).to_be_visible()
    search.fill("")

    expect(layers).to_be_visible()
    expect(seed).to_be_hidden()
    expect(shell.field("cluster.nodes")).to_be_hidden()  # its section is folded again


def test_a_problem_at_a_field_is_fixed_by_its_button(shell: Shell) -> None:
    shell.type("model.layers", "3")
    field = shell.page.locator('[data-path="model.layers"]')

    fix = field.locator(".mw-fix").first
    label = fix.inner_text()
    fix.click()

    expect(shell.words("model.layers")).to_have_count(0)
    eventually(shell.page, lambda: not shell.session.errors)
    assert shell.session.history[0].lower() == label.lower()


def test_a_device_is_chosen_by_name_and_amounts_are_shown_with_units(shell: Shell) -> None:
    shell.page.get_by_role("group", name="Cluster").get_by_text("Cluster", exact=True).click()

    shell.field("cluster.device").select_option(label="MI300X-192GB")

    eventually(shell.page, lambda: shell.session.design.cluster.device.name == "MI300X-192GB")
    expect(shell.field("cluster.device.memory_bytes")).to_have_value("192 GB")
    expect(shell.field("cluster.device.peak_flops")).to_have_value("1.3074 PFLOP/s")
    expect(shell.field("cluster.intra_node.bandwidth")).to_have_value("448 GB/s")


def test_arrow_keys_in_a_number_field_are_edits_that_are_undone_one_by_one(shell: Shell, stage: Stage) -> None:
    entry = shell.field("pipeline.waves")
    entry.focus()

    entry.press("ArrowDown")
    eventually(shell.page, lambda: shell.session.design.pipeline.waves == 1)
    entry.press("ArrowUp")
    eventually(shell.page, lambda: shell.session.history[0] == "waves 2")
    stage.run(shell.session.undo)
    assert shell.session.history == ("waves 1", "waves 2")


# ---- the numbers ----


def test_changes_from_the_pinned_design_have_a_colour_a_sign_and_a_word(shell: Shell) -> None:
    shell.button("Pin this design").click()
    expect(shell.button("Unpin this design")).to_have_attribute("aria-pressed", "true")

    shell.type("pipeline.microbatches", "16")

    iteration = shell.tile("iteration")
    expect(iteration.locator(".mw-verdict")).to_have_text("worse")
    expect(iteration.locator('[data-icon="rise"]')).to_have_count(1)
    assert "more than" in (iteration.get_attribute("aria-label") or "")
    expect(shell.tile("bubble").locator(".mw-verdict")).to_have_text("better")
    colours = [
        shell.tile(key).locator(".mw-verdict").evaluate("node => getComputedStyle(node).color")
        for key in ("iteration", "bubble")
    ]
    assert colours[0] != colours[1]

    shell.button("End comparison").click()

    expect(iteration.locator(".mw-verdict")).to_have_text("")


def test_a_tile_has_a_tooltip_for_pointer_and_keyboard(shell: Shell) -> None:
    tip = shell.page.locator(".mw-numbers .mw-tip")

    shell.tile("bubble").hover()
    expect(tip).to_contain_text("1 − busy time ÷ (meshes × iteration time)")
    shell.button("Save as").hover()
    expect(tip).to_be_hidden()

    shell.button("Pin this design").focus()
    shell.page.keyboard.press("Shift+Tab")
    expect(tip).to_contain_text("averaged over the meshes")


# ---- the top bar ----


def test_keyboard_shortcuts_of_the_page(shell: Shell, stage: Stage) -> None:
    page, session = shell.page, shell.session
    stage.run(lambda: session.edit("training.steps", 3, "steps 3"))
    expect(shell.field("training.steps")).to_have_value("3")

    page.keyboard.press("Control+z")
    eventually(shell.page, lambda: session.history == ("", "steps 3"))
    page.keyboard.press("Control+Shift+Z")
    eventually(shell.page, lambda: session.history == ("steps 3", ""))
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+y")
    eventually(shell.page, lambda: session.history == ("steps 3", ""))
    page.keyboard.press("p")
    eventually(shell.page, lambda: session.pinned)
    page.keyboard.press("l")
    eventually(shell.page, lambda: shell.launched == [1])
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("p")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_hidden()
    shell.wait_for_python()
    assert session.pinned, "a key went through the open dialog"


def test_the_help_menu_opens_the_documentation_in_a_tab_of_its_own(shell: Shell) -> None:
    shell.page.get_by_role("button", name="Help").click()
    with shell.page.expect_popup() as opened:
        shell.page.get_by_role("menuitem", name="Glossary").click()

    assert opened.value.url.endswith("/docs/glossary.html")
    opened.value.close()


@pytest.mark.parametrize(
    ("part", "page"),
    [
        ('.mw-tile[data-key="bubble"]', "/docs/glossary.html#term-bubble-ratio"),
        (
            '[data-path="training.micro_batch_size"] label',
            "/docs/reference/document.html#confval-training.micro_batch_size",
        ),
        (".mw-brand", "/docs/index.html"),
    ],
)
def test_f1_opens_the_documentation_of_the_element_under_the_pointer(shell: Shell, part: str, page: str) -> None:
    shell.page.locator(part).hover()
    with shell.page.expect_popup() as opened:
        shell.page.keyboard.press("F1")

    assert opened.value.url.endswith(page)
    opened.value.close()


def test_shortcuts_are_ignored_while_the_user_types(shell: Shell, stage: Stage) -> None:
    stage.run(lambda: shell.session.edit("training.steps", 3, "steps 3"))
    expect(shell.field("training.steps")).to_have_value("3")
    name = shell.page.get_by_label("Design name")

    name.click()
    name.press("End")
    name.press_sequentially(" pl?")
    name.press("Control+z")
    shell.field("pipeline.schedule").focus()
    shell.page.keyboard.press("p")

    shell.wait_for_python()
    assert not shell.session.pinned
    assert shell.launched == [1]
    assert shell.session.design.training.steps == 3
    expect(shell.page.locator("dialog[open]")).to_have_count(0)


def test_the_name_is_edited_in_place(shell: Shell) -> None:
    name = shell.page.get_by_label("Design name")

    name.fill("Folded twice")
    name.press("Enter")

    eventually(shell.page, lambda: shell.session.design.name == "Folded twice")
    expect(shell.page.get_by_label("Unsaved changes")).to_be_visible()
    name.fill("never mind")
    name.press("Escape")
    expect(name).to_have_value("Folded twice")
    name.fill("")
    name.press("Enter")
    expect(name).to_have_value("Folded twice")


def test_a_saved_file_can_be_opened_again(shell: Shell, tmp_path: Path, stage: Stage) -> None:
    page, session = shell.page, shell.session
    shell.field("training.steps").fill("5")  # not yet taken over: Ctrl+S does that too

    with page.expect_download() as awaited:
        page.keyboard.press("Control+s")

    assert awaited.value.suggested_filename == "Two waves on four meshes.json"
    path = tmp_path / "saved.json"
    awaited.value.save_as(path)
    assert session.design.training.steps == 5
    assert parse_design(path.read_bytes()) == session.design
    expect(page.get_by_label("Unsaved changes")).to_be_hidden()

    stage.run(lambda: session.edit("training.steps", 9, "steps 9"))
    expect(page.get_by_label("Unsaved changes")).to_be_visible()
    page.locator('input[type="file"]').set_input_files(path)
    eventually(shell.page, lambda: session.history[0] == "open saved.json")
    assert session.design.training.steps == 5
    expect(page.get_by_label("Unsaved changes")).to_be_hidden()


def test_save_as_requests_a_name(shell: Shell) -> None:
    shell.button("Save as").click()
    entry = shell.page.get_by_label("File name")
    expect(entry).to_be_focused()
    entry.fill("a new one")

    with shell.page.expect_download() as awaited:
        entry.press("Enter")

    assert awaited.value.suggested_filename == "a new one.json"
    eventually(shell.page, lambda: shell.session.design.name == "a new one")
    expect(entry).to_be_hidden()


def test_an_export_is_downloaded_unchanged(shell: Shell) -> None:
    shell.button("Export").click()

    with shell.page.expect_download() as awaited:
        shell.page.get_by_role("menuitem", name="torch CSV torch.distributed").click()

    assert awaited.value.suggested_filename == "Two waves on four meshes.csv"
    assert Path(awaited.value.path()).read_bytes() == exports["torch-csv"].to_bytes(shell.session.prediction)


def test_examples_are_opened_by_keyboard(shell: Shell) -> None:
    examples = shell.button("Examples")
    examples.focus()
    examples.press("Enter")
    expect(shell.page.get_by_role("menuitem").first).to_be_focused()

    shell.page.keyboard.press("c")  # the first letter of one
    shell.page.keyboard.press("Enter")

    eventually(shell.page, lambda: shell.session.design.name.startswith("Chimera"))
    expect(shell.page.get_by_role("menu", name="Examples")).to_be_hidden()
    expect(shell.page.get_by_label("Design name")).to_have_value(shell.session.design.name)


def test_a_file_that_is_not_a_design_is_reported(shell: Shell) -> None:
    before = shell.session.design
    picker = shell.page.locator('input[type="file"]')

    picker.set_input_files({"name": "no.json", "mimeType": "application/json", "buffer": b'{"format": '})
    trouble = shell.page.get_by_role("alert")
    expect(trouble).to_contain_text("no.json was not opened")
    expect(trouble).to_contain_text("line 1, column 12 is not JSON")
    shell.button("Close").click()
    expect(trouble).to_be_hidden()

    picker.set_input_files({"name": "huge.json", "mimeType": "application/json", "buffer": b" " * 100_001})
    expect(trouble).to_contain_text("the limit is 0.1 MB")
    assert shell.session.design is before


def test_an_imported_schedule_replaces_the_order_and_can_be_undone(shell: Shell) -> None:
    before = shell.session.design
    content = exports["torch-csv"].to_bytes(shell.session.prediction)

    shell.page.locator('input[type="file"]').set_input_files(
        {"name": "waves.csv", "mimeType": "text/csv", "buffer": content}
    )

    undo = shell.button("Undo: import waves.csv")
    expect(undo).to_be_visible()
    assert shell.session.design.pipeline.schedule == "custom"
    undo.click()
    eventually(shell.page, lambda: shell.session.design is before)


def test_an_invalid_schedule_is_shown_with_an_arrow_under_the_cell(shell: Shell) -> None:
    before, rows = shell.session.design, [f"{rank}F0,{rank}F1,{rank}B0,{rank}B1" for rank in range(4)]
    rows[2] = "2F0,2F1,2B0,2X1"

    shell.page.locator('input[type="file"]').set_input_files(
        {"name": "wrong.csv", "mimeType": "text/csv", "buffer": "\n".join(rows).encode()}
    )

    trouble = shell.page.get_by_role("alert")
    expect(trouble).to_contain_text("wrong.csv was not opened")
    expect(trouble).to_contain_text("row 3, column 4 (D3)'2X1' is not an action; did you mean 2B1?")
    shown = trouble.locator("pre")
    assert shown.inner_text().splitlines() == ["2F0,2F1,2B0,2X1", "            ^^^"]
    assert shell.session.design is before


def test_other_changes_by_an_imported_schedule_are_listed(shell: Shell) -> None:
    shell.page.locator('input[type="file"]').set_input_files(
        {"name": "two.csv", "mimeType": "text/csv", "buffer": b"0F0,0B0\n1F0,1B0"}
    )

    told = shell.page.get_by_role("alert")
    expect(told).to_contain_text("two.csv is open")
    expect(told).to_contain_text("2 meshes of one device each replaced the 4 of the design")
    assert shell.session.design.ranks == 2


def test_a_file_can_be_dropped_anywhere_on_the_page(shell: Shell) -> None:
    document = shell.session.design.model_dump(mode="json") | {"name": "dropped"}
    transfer = shell.page.evaluate_handle(
        """text => {
            const data = new DataTransfer();
            data.items.add(new File([text], "dropped.json", { type: "application/json" }));
            return data;
        }""",
        json.dumps(document),
    )
    shell.page.dispatch_event("body", "dragover", {"dataTransfer": transfer})
    expect(shell.page.get_by_text("Drop to open the design, schedule or trace")).to_be_visible()

    shell.page.dispatch_event("body", "drop", {"dataTransfer": transfer})

    eventually(shell.page, lambda: shell.session.design.name == "dropped")
    expect(shell.page.get_by_text("Drop to open the design, schedule or trace")).to_be_hidden()


def test_the_selected_theme_is_stored_and_applied_to_all_widgets(
    shell: Shell, stage: Stage, app: Callable[[], Viewable]
) -> None:
    page = shell.page
    surface = "node => getComputedStyle(node).backgroundColor"
    light = page.locator(".mw-form").evaluate(surface)

    shell.button("Theme").click()
    page.get_by_role("menuitemradio", name="Dark").click()

    root = page.locator("html")
    expect(root).to_have_attribute("data-theme", "dark")
    assert root.evaluate("node => getComputedStyle(node).colorScheme") == "dark"
    dark = {page.locator(each).evaluate(surface) for each in (".mw-form", ".mw-numbers", ".mw-problems", ".mw-topbar")}
    assert len(dark) == 1
    assert light not in dark

    root.evaluate("node => delete node.dataset.theme")
    stage.show(app)
    expect(root).to_have_attribute("data-theme", "dark")


def test_the_theme_of_the_system_is_used_until_another_one_is_selected(shell: Shell) -> None:
    root = shell.page.locator("html")
    expect(root).to_have_attribute("data-theme", "light")

    shell.page.emulate_media(color_scheme="dark")

    expect(root).to_have_attribute("data-theme", "dark")
    shell.page.emulate_media(color_scheme="light")


def test_every_control_has_an_accessible_name(shell: Shell) -> None:
    nameless = shell.page.evaluate(
        """() => {
            const found = [];
            const walk = (root) => root.querySelectorAll("*").forEach((node) => {
                if (node.shadowRoot) walk(node.shadowRoot);
                if (!node.matches("button, input, select, textarea, dialog[open]")) return;
                const label = node.getAttribute("aria-label") ?? node.labels?.[0]?.textContent ?? node.textContent;
                if (!label?.trim()) found.push(node.outerHTML);
            });
            walk(document);
            return found;
        }"""
    )
    assert nameless == []
