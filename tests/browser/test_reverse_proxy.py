"""The designer behind a reverse proxy that serves it below a path: a real nginx in front of ``meshwave serve``."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import IDLE, free_port, until

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
NGINX = shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
CONFIGURATION = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location /user/ada/meshwave/ {{
            proxy_pass http://127.0.0.1:{upstream}/;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection "upgrade";
        }}
    }}
}}
"""


@pytest.fixture
def link(tmp_path: Path) -> Iterator[str]:
    """The link of a designer behind nginx."""
    if NGINX is None:
        pytest.skip("nginx is not installed")
    port, upstream = free_port(), free_port()
    folder = tmp_path / "nginx"
    folder.mkdir()
    (folder / "nginx.conf").write_text(CONFIGURATION.format(folder=folder, port=port, upstream=upstream))
    url = f"http://127.0.0.1:{port}/user/ada/meshwave/"
    words = [sys.executable, "-m", "meshwave", "serve", "--no-browser", "--port", str(upstream), "--url", url]
    nginx = subprocess.Popen([NGINX, "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", str(folder / "log")])
    server = subprocess.Popen([*words, "--home", str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        shown = "".join(server.stdout.readline() for _ in range(3))
        found = re.search(r"http\S+", shown)
        assert found, shown
        until(lambda: (folder / "pid").exists())
        yield found[0]
    finally:
        for process in (server, nginx):
            process.send_signal(signal.SIGINT)
            process.wait(30)
        server.stdout.close()


def test_the_designer_works_below_a_path(link: str, page: Page, complaints: list[str]) -> None:
    root = link.partition("?")[0]
    assert root.endswith("/user/ada/meshwave/")
    page.goto(root)
    expect(page).to_have_url(re.compile(r"/user/ada/meshwave/refused\?next="))
    expect(page.get_by_text("access token")).to_be_visible()
    expect(page.locator("link[rel=icon]")).to_have_attribute("href", "/user/ada/meshwave/favicon.ico")
    complaints.clear()

    failed: list[str] = []
    page.on("response", lambda answer: failed.append(answer.url) if answer.status >= 400 else None)
    page.goto(link)
    expect(page.get_by_role("heading", name="New")).to_be_visible()
    expect(page).to_have_url(root)
    (cookie,) = page.context.cookies()
    assert cookie["path"] == "/user/ada/meshwave/"

    page.get_by_role("link", name=re.compile("^Pipeline")).first.click()
    page.wait_for_function(IDLE)
    page.get_by_label("microbatches", exact=True).fill("12")
    page.keyboard.press("Enter")
    undo = page.get_by_role("button", name=re.compile("^Undo"))
    expect(undo).to_have_attribute("aria-disabled", "false")
    expect(page).to_have_url(re.compile(re.escape(root) + r"\?.*draft="))
    page.reload()
    page.wait_for_function(IDLE)
    expect(page.get_by_label("microbatches", exact=True)).to_have_value("12")

    page.get_by_role("link", name="Meshwave start page").click()
    expect(page).to_have_url(f"{root}start")
    page.get_by_role("link", name=re.compile("^Transfer lab")).click()
    page.wait_for_function(IDLE)
    expect(page).to_have_url(re.compile(re.escape(root) + "transfer"))
    assert failed == []
