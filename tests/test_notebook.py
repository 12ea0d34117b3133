"""Notebooks show a prediction and the designer, in a simulated notebook page and in a real JupyterLab."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest

import meshwave as mw
from meshwave.designer import notebook

from .conftest import IDLE, ROOT, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

NAME = "02-two-waves"


@pytest.fixture(scope="module", autouse=True)
def end_server() -> Iterator[None]:
    yield
    if notebook._shared_server.cache_info().currsize:
        notebook._shared_server().close()
        notebook._shared_server.cache_clear()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Serve the HTML of a cell's output on another port of this machine, as Jupyter does."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    Thread(target=server.serve_forever, daemon=True).start()

    def write(html: str) -> str:
        (tmp_path / "cell.html").write_text(f"<!doctype html><link rel=icon href=data:,>{html}", "utf-8")
        return f"http://127.0.0.1:{server.server_port}/cell.html"

    yield write
    server.shutdown()
    server.server_close()


@pytest.mark.browser
def test_a_prediction_is_an_interactive_timeline(page: Page, host: Callable[[str], str]) -> None:
    page.goto(host(mw.predict(mw.example(NAME))._repr_html_()))
    timeline = page.frame_locator("iframe").get_by_role("group", name="Predicted timeline")
    drawing = timeline.locator("svg:visible").first

    timeline.focus()
    page.keyboard.press("+")

    assert wait_until(lambda: "scale(1)" not in (drawing.get_attribute("style") or "scale(1)"))


@pytest.mark.browser
def test_the_designer_in_a_cell_edits_the_design(page: Page, host: Callable[[str], str]) -> None:
    shown = mw.designer(mw.example(NAME))
    page.goto(host(shown._repr_html_()))
    designer = page.frame_locator("iframe")
    assert shown.design == mw.example(NAME)

    microbatches = designer.get_by_label("microbatches", exact=True).first
    microbatches.wait_for()
    page.frames[-1].wait_for_function(IDLE)
    microbatches.fill("16")
    microbatches.press("Enter")

    assert wait_until(lambda: shown.design.pipeline.microbatches == 16)


@pytest.mark.slow
def test_only_the_server_of_a_notebook_may_be_framed() -> None:
    shown = mw.designer(mw.example(NAME))

    with urlopen(shown.link) as answer:
        assert answer.headers["Content-Security-Policy"].startswith("frame-ancestors http://127.0.0.1:*")
        assert answer.headers["X-Frame-Options"] is None


@pytest.mark.nightly
@pytest.mark.browser
def test_jupyterlab_shows_the_timeline_and_the_designer(page: Page, tmp_path: Path, complaints: list[str]) -> None:
    cells = [
        "import meshwave as mw; p = mw.predict(mw.example('02-two-waves')); p",
        "shown = mw.designer(mw.example('02-two-waves')); shown",
    ]
    document = {
        "cells": [
            {
                "cell_type": "code",
                "execution_count": None,
                "id": str(i),
                "metadata": {},
                "outputs": [],
                "source": source,
            }
            for i, source in enumerate(cells)
        ],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (tmp_path / "first.ipynb").write_text(json.dumps(document))
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--IdentityProvider.token=t",
        "--port=0",
    ]
    server = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")},
        stderr=subprocess.DEVNULL,
    )
    try:
        files = wait_until(lambda: list((tmp_path / "runtime").glob("jpserver-*.json")))
        link = json.loads(files[0].read_text())["url"]
        page.goto(f"{link}lab/tree/first.ipynb?token=t")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60_000)
        page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_text("Run All Cells", exact=True).click()
        frames = page.locator(".jp-OutputArea iframe")
        frames.first.wait_for(timeout=60_000)
        page.locator(".jp-Notebook .jp-Cell").nth(1).scroll_into_view_if_needed()
        frames.nth(1).wait_for(timeout=60_000)
        assert frames.nth(0).content_frame.locator("svg:visible").first.is_visible()
        frames.nth(1).content_frame.get_by_label("microbatches", exact=True).first.wait_for(timeout=60_000)
    finally:
        page.goto("about:blank")
        server.terminate()
        server.wait(20)
    complaints.clear()  # those of JupyterLab are not ours
