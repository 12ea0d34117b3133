"""A server for several people in real browsers: they sign in, act within their roles, and lose their sessions."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from meshwave.engine.people.people_file import Role, add_person
from tests.browser.test_accessibility import broken_rules, needs_axe
from tests.conftest import IDLE, ROOT, free_port, new_context

pytestmark = [pytest.mark.browser, pytest.mark.slow]
STOP_S = 30


class Server(NamedTuple):
    """The command ``meshwave serve --people``, and the tokens of people who are named by their roles."""

    link: str
    file: Path
    tokens: Mapping[str, str]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    file, port = tmp_path / "people.toml", str(free_port())
    tokens = {role.value: add_person(file, role.value, role) for role in Role}
    words = [sys.executable, "-m", "meshwave", "serve", "--people", str(file), "--no-browser", "--port", port]
    process = subprocess.Popen(
        [*words, "--home", str(tmp_path / "home")], cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert process.stdout is not None
    link = next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
    yield Server(link, file, tokens)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=STOP_S)


@pytest.fixture
def sign_in(browser: Browser, server: Server) -> Iterator[Callable[..., Page]]:
    contexts: list[BrowserContext] = []

    def enter(role: str, path: str = "", token: str = "") -> Page:
        contexts.append(new_context(browser))
        page = contexts[-1].new_page()
        page.goto(f"{server.link}{path}")
        page.get_by_label("Name").fill(role)
        page.get_by_label("Personal token").fill(token or server.tokens[role])
        page.get_by_role("button", name="Sign in").click()
        return page

    yield enter
    for context in contexts:
        context.close()


@pytest.mark.nightly
def test_people_do_what_their_roles_allow_and_an_administrator_ends_a_page(
    server: Server, sign_in: Callable[..., Page]
) -> None:
    expect(sign_in("admin", token="wrong").get_by_role("alert")).to_contain_text("wrong name or token")

    designer = sign_in("designer")
    expect(designer.get_by_role("heading", name="Examples")).to_be_visible()
    designer.goto(f"{server.link}?example=02-two-waves")
    designer.wait_for_function(IDLE)
    expect(designer.get_by_role("button", name="Dry run")).to_have_attribute("aria-disabled", "false")
    launch = designer.get_by_role("button", name=re.compile("^Launch "))
    expect(launch).to_have_attribute("aria-disabled", "true")
    expect(launch).to_have_attribute("title", re.compile("needs the role launcher"))
    designer.get_by_role("button", name="Increase microbatches").click()
    expect(designer.get_by_role("button", name=re.compile("^Undo"))).to_have_attribute("aria-disabled", "false")
    designer.goto(f"{server.link}admin")
    expect(designer.get_by_text("You are signed in as designer with the role designer")).to_be_visible()
    designer.go_back()
    designer.wait_for_function(IDLE)

    viewer = sign_in("viewer")
    viewer.goto(f"{server.link}?example=02-two-waves")
    viewer.wait_for_function(IDLE)
    microbatches = viewer.get_by_label("microbatches", exact=True)
    expect(microbatches).to_have_value("4")
    viewer.get_by_role("button", name="Increase microbatches").click()
    expect(viewer.get_by_text("this page is read-only").first).to_be_visible()
    expect(microbatches).to_have_value("4")

    admin = sign_in("admin", "admin")
    people = admin.get_by_role("region", name="People")
    row = people.get_by_role("row", name=re.compile("^designer designer Designer"))
    expect(row).to_have_count(1)  # the sessions of pages that were left have ended
    expect(people.get_by_role("row", name=re.compile("^viewer viewer Designer"))).to_have_count(1)
    row.get_by_role("button").focus()
    admin.keyboard.press("Enter")
    expect(admin.get_by_role("dialog")).to_contain_text("End the session of designer on the page Designer?")
    admin.keyboard.press("Escape")
    expect(row).to_be_visible()
    row.get_by_role("button").click()
    admin.get_by_role("dialog").get_by_role("button", name="End session").click()
    expect(row).to_be_hidden()
    expect(designer.get_by_role("alert").filter(has_text="an administrator ended this session")).to_be_visible()
    designer.get_by_role("button", name="Reload").click()
    designer.wait_for_function(IDLE)
    expect(row).to_be_visible()  # the page updates by itself

    beside = viewer.context.new_page()
    beside.goto(f"{server.link}start")
    beside.get_by_role("link", name="Sign out viewer").click()
    expect(beside.get_by_text("You are signed out")).to_be_visible()
    expect(viewer.get_by_role("alert").filter(has_text="an administrator ended this session")).to_be_visible()
    beside.get_by_role("link", name="Sign in again").click()
    expect(beside.get_by_role("heading", name="Sign in to Meshwave")).to_be_visible()

    server.file.write_text(server.file.read_text().replace('role = "designer"', 'role = "viewer"'))
    expect(row).to_be_hidden()


@needs_axe
@pytest.mark.nightly
def test_the_pages_of_people_break_no_rule_of_accessibility(server: Server, sign_in: Callable[..., Page]) -> None:
    def check(page: Page) -> None:
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            assert broken_rules(page) == [], theme

    page = sign_in("admin", "admin")
    expect(page.get_by_role("region", name="People").get_by_role("row")).to_have_count(2)
    check(page)
    page.get_by_role("button", name=re.compile("End session")).click()
    check(page)
    page.goto(f"{server.link}sign-out")
    page.goto(server.link)
    check(page)
