"""A new view, launcher and export in a copy of the source tree appear on the page."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import IDLE, new_context, watch
from tests.extended import copy_tree, environment

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
COLOURS = """(cell) => {
    const probe = document.createElement("span");
    probe.style.color = "var(--mw-text)";
    document.body.append(probe);
    return [getComputedStyle(cell).color, getComputedStyle(probe).color];
}"""


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """The page of ``meshwave serve`` in the copy."""
    tree = copy_tree(tmp_path)
    command = [sys.executable, "-m", "meshwave.designer.main", "serve", "02-two-waves", "--no-browser"]
    process = subprocess.Popen(command, cwd=tree, env=environment(tree), text=True, stdout=subprocess.PIPE)
    assert process.stdout is not None
    link = next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
    complaints: list[str] = []
    context = new_context(browser)
    page = context.new_page()
    watch(page, complaints)
    page.goto(link)
    page.wait_for_function(IDLE)
    yield page
    context.close()
    process.terminate()
    process.communicate()
    assert not complaints, "\n".join(complaints)


@pytest.mark.nightly
def test_new_members_appear_on_the_page(page: Page) -> None:
    table, schedule = page.get_by_role("columnheader", name="layers"), page.get_by_label("Microbatches", exact=True)
    schedule.wait_for()
    assert not table.is_visible(), "it shows through the tab at the front"

    page.keyboard.press("n")

    table.wait_for()
    assert page.get_by_role("tab", name="Stages").get_attribute("aria-selected") == "true"
    assert not schedule.is_visible()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        shown, wanted = table.evaluate(COLOURS)
        assert shown == wanted, f"it has the colours of the page in its {scheme} theme"

    page.get_by_role("tab", name="Design").click()
    schedule.wait_for()
    assert not table.is_visible()

    launch_on = page.get_by_label("Launch on")
    launch_on.select_option("torchrun")
    assert launch_on.input_value() == "torchrun"
    page.get_by_role("button", name="Export").click()
    page.get_by_role("menuitem", name="Numbers (Markdown)").wait_for()
