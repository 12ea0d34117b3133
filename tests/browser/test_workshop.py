"""A workshop in real browsers: learners join, the teacher follows them, and a restart loses nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.gestures import focused
from tests.browser.test_accessibility import broken_rules, needs_axe
from tests.conftest import IDLE, free_port, new_context

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
PLAN = ROOT / "docs/examples/workshop.toml"
STOP_S = 30


class Server:
    """The command ``meshwave workshop`` in a separate process."""

    def __init__(self, home: Path, port: int) -> None:
        words = [sys.executable, "-m", "meshwave", "workshop", str(PLAN), "--no-browser", "--port", str(port)]
        self._process = subprocess.Popen(
            [*words, "--home", str(home)], cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ}
        )
        assert self._process.stdout is not None
        shown = "".join(self._process.stdout.readline() for _ in range(5))
        board, code = re.search(r"(http\S+/board\S+)", shown), re.search(r"code (\w+)", shown)
        assert board and code, shown
        self.board, self.code = board[1], code[1]
        self.origin = self.board.partition("/board")[0]

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(STOP_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[], Server]]:
    servers: list[Server] = []
    port = free_port()

    def start() -> Server:
        servers.append(Server(tmp_path, port))
        return servers[-1]

    yield start
    for server in servers:
        if server._process.poll() is None:
            server.stop()


@pytest.fixture
def contexts(browser: Browser) -> Iterator[Callable[[], BrowserContext]]:
    made: list[BrowserContext] = []

    def make() -> BrowserContext:
        made.append(new_context(browser))
        return made[-1]

    yield make
    for context in made:
        context.close()


def join(context: BrowserContext, server: Server, name: str, code: str = "") -> Page:
    page = context.new_page()
    page.goto(server.origin)
    expect(page.get_by_role("heading", name="Pipelines in an afternoon")).to_be_visible()
    page.get_by_label("Code on the teacher's screen").fill(code or server.code.lower())
    page.get_by_label("Your name").fill(name)
    page.get_by_role("button", name="Join the workshop").click()
    return page


def learner_strip(page: Page) -> Any:
    return page.get_by_role("region", name="Workshop")


def test_a_workshop_from_joining_to_its_results(
    serve: Callable[[], Server], contexts: Callable[[], BrowserContext], tmp_path: Path
) -> None:
    server = serve()
    teacher = contexts()
    board = teacher.new_page()
    board.goto(server.board)
    expect(board.get_by_text(server.code, exact=True)).to_be_visible()
    expect(board.get_by_text("Nobody has joined yet.")).to_be_visible()

    ada, grace = contexts(), contexts()
    page = join(ada, server, "Ada", "WRONGS")
    expect(page.get_by_role("alert")).to_contain_text("this is not the code of the workshop")
    page = join(ada, server, "Ada")
    page.wait_for_function(IDLE)
    expect(learner_strip(page)).to_contain_text("Ada")
    other = join(grace, server, "ada")
    expect(other.get_by_role("alert")).to_contain_text("is already taken")
    other = join(grace, server, "Grace")
    other.wait_for_function(IDLE)
    expect(board.get_by_role("row", name=re.compile("Ada"))).to_contain_text("no lesson open")
    expect(board.get_by_role("row", name=re.compile("Grace"))).to_be_visible()

    # The teacher tells, points and pauses.
    board.get_by_label("Message to all learners").fill(f"Welcome to https://{'x' * 250}")
    board.get_by_role("button", name="Send to everyone").click()
    board.get_by_label("Class step").select_option("02-bubbles-and-microbatches 1")
    board.get_by_role("button", name="Send learners to this step").click()
    expect(learner_strip(page)).to_contain_text("Welcome")
    for shown in (page.locator(".mw-class-message"), board.locator(".mw-board-told")):
        assert shown.evaluate("at => at.scrollWidth <= at.clientWidth || !at.clientWidth")
        assert shown.evaluate("at => at.getBoundingClientRect().right <= innerWidth")
    page.get_by_role("button", name="Go to the class step").click()
    expect(page.locator(".mw-lesson-body h2")).to_be_visible()
    expect(page.get_by_role("button", name="Go to the class step")).to_be_hidden()
    expect(board.get_by_role("row", name=re.compile("Ada"))).to_contain_text("ubbles")
    page.get_by_role("button", name="Gallery").click()
    gallery = page.locator("dialog", has_text="Schedule gallery")
    expect(gallery).to_be_visible()
    board.get_by_role("button", name="Pause all").click()
    expect(page.get_by_text("The teacher paused the workshop.")).to_be_visible()
    assert focused(page, "at.textContent") == "The teacher paused the workshop."
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.get_by_text("The teacher paused the workshop.")).to_be_visible()
    expect(gallery).to_be_visible()
    board.get_by_role("button", name="Continue").click()
    expect(page.get_by_text("The teacher paused the workshop.")).to_be_hidden()
    page.keyboard.press("Escape")
    expect(gallery).to_be_hidden()

    bar, chart = learner_strip(page).bounding_box(), page.locator(".mw-timeline-stage").first.bounding_box()
    assert bar and chart and chart["y"] + chart["height"] <= bar["y"]

    # A challenge, which a learner opens in the middle of a lesson.
    other.get_by_role("button", name="Go to the class step").click()
    expect(other.get_by_text("The predicted metrics are hidden until you answer.")).to_be_visible()
    other.get_by_role("button", name="Challenges").click()
    other.get_by_role("button", name="Open the initial design").click()
    expect(other.get_by_text("The predicted metrics are hidden until you answer.")).to_be_hidden()
    other.get_by_role("button", name="Submit the open design").click()
    expect(other.get_by_text(re.compile("Place 1: "))).to_be_visible()
    expect(board.get_by_role("region", name="The fastest step")).to_contain_text("Grace")
    other.get_by_role("button", name="Submit the open design").click()
    expect(other.get_by_role("alert").filter(has_text="is not better")).to_be_visible()
    other.get_by_role("button", name="Confirm by a dry run").click()
    leaders = board.get_by_role("region", name="The fastest step")
    expect(leaders).to_contain_text("in progress")
    other.keyboard.press("Escape")  # closes the challenges
    other.get_by_role("button", name="Cancel").click()
    expect(leaders).to_contain_text("no measurement: cancelled")
    with teacher.expect_page() as opened:
        board.get_by_role("region", name="The fastest step").get_by_role("button", name="Open design of Grace").click()
    expect(opened.value).to_have_title(re.compile("Meshwave"))
    assert "draft=" in opened.value.url

    # The teacher opens a learner's design together with the learner, and read-only.
    with teacher.expect_page() as opened:
        board.get_by_role("button", name="Open together with Ada").click()
    beside = opened.value
    beside.wait_for_function(IDLE)
    expect(page.get_by_role("img", name="Teacher")).to_be_visible()
    beside.get_by_label("Design name").fill("by the teacher")
    beside.keyboard.press("Enter")
    expect(page.get_by_label("Design name")).to_have_value("by the teacher")
    page.get_by_label("Design name").fill("by Ada")
    page.keyboard.press("Enter")
    expect(beside.get_by_text("Ada changed name from by the teacher to by Ada")).to_be_visible()
    beside.close()
    with teacher.expect_page() as opened:
        board.get_by_role("button", name="Open design of Ada read-only").click()
    opened.value.wait_for_function(IDLE)
    expect(opened.value.get_by_text("Read-only", exact=True)).to_be_visible()
    expect(opened.value.get_by_label("Design name")).to_have_value("by Ada")
    opened.value.close()

    # The workshop has a library and runs of its own.
    assert any((tmp_path / "workshops/workshop/designs").iterdir())
    assert not (tmp_path / "designs").exists()
    assert not (tmp_path / "runs.sqlite").exists()

    # Learners have neither the board nor the metrics; strangers have nothing.
    refused = ada.new_page()
    refused.goto(f"{server.origin}/board")
    expect(refused.get_by_text("You are signed in as Ada with the role launcher")).to_be_visible()
    assert ada.request.get(f"{server.origin}/metrics").status == 403
    assert "/join" in contexts().request.get(f"{server.origin}/").url

    # A restart loses nothing.
    server.stop()
    again = serve()
    assert again.code == server.code
    page.goto(again.origin)
    page.wait_for_function(IDLE)
    expect(learner_strip(page)).to_contain_text("Ada")
    board.reload()
    expect(board.get_by_text("Open the link that Meshwave printed at its last start")).to_be_visible()
    board.goto(again.board)
    expect(board.get_by_role("region", name="The fastest step")).to_contain_text("Grace")
    other.goto(again.origin)
    other.wait_for_function(IDLE)
    other.get_by_role("link", name="Sign out Grace").click()
    expect(other.get_by_text("You are signed out")).to_be_visible()
    other = join(grace, again, "Grace")
    other.wait_for_function(IDLE)
    expect(learner_strip(other)).to_contain_text("Grace")
    board.get_by_role("button", name="Remove Ada").click()
    board.get_by_role("button", name="Remove Ada and the scores").click()
    expect(page.get_by_role("link", name="Join again")).to_be_visible()


def test_a_learner_joins_in_the_language_of_the_link_and_continues_in_it(
    serve: Callable[[], Server], contexts: Callable[[], BrowserContext]
) -> None:
    server, page = serve(), contexts().new_page()
    page.goto(f"{server.origin}/join?lang=de")
    page.get_by_label("Code auf dem Bildschirm der Lehrperson").fill("WRONGS")
    page.get_by_label("Ihr Name").fill("Ada")
    page.get_by_role("button", name="Am Workshop teilnehmen").click()
    expect(page.get_by_role("alert")).to_contain_text("ist nicht der Code")
    expect(page.get_by_role("heading", name="Pipelines in an afternoon")).to_be_visible()

    page.get_by_label("Code auf dem Bildschirm der Lehrperson").fill(server.code)
    page.get_by_role("button", name="Am Workshop teilnehmen").click()
    page.wait_for_function(IDLE)
    assert page.locator("html").get_attribute("lang") == "de"


@needs_axe
@pytest.mark.nightly
def test_the_pages_of_a_workshop_break_no_rule_of_accessibility(
    serve: Callable[[], Server], contexts: Callable[[], BrowserContext]
) -> None:
    server = serve()
    joining, board = contexts().new_page(), contexts().new_page()
    joining.goto(server.origin)
    expect(joining.get_by_label("Your name")).to_be_visible()
    board.goto(server.board)
    expect(board.get_by_text(server.code).first).to_be_visible()

    for page in (joining, board):
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            assert broken_rules(page) == [], theme
