"""The designer behind a reverse proxy that serves it below a path: a real nginx in front of ``meshwave serve``."""

from __future__ import annotations

import getpass
import grp
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import IDLE, free_port, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
NGINX = shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
CONFIGURATION = """
daemon off;
user {user} {group};
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
        location {path} {{
            {settings}
            proxy_pass http://127.0.0.1:{upstream}/;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection "upgrade";
        }}
    }}
}}
"""
BASIC_AUTHENTICATION = """
            auth_basic "Meshwave";
            auth_basic_user_file {folder}/passwords;
            proxy_set_header X-Forwarded-User $remote_user;
"""
PEOPLE = """
login = "header"
header = "X-Forwarded-User"
proxies = ["127.0.0.1"]

[[people]]
name = "ada"
role = "designer"
"""


@contextmanager
def serve_behind_proxy(home: Path, path: str, *options: str, settings: str = "") -> Iterator[str]:
    """Serve a designer behind nginx at ``path``, and yield its link."""
    if NGINX is None:
        pytest.skip("nginx is not installed")
    port, upstream = free_port(), free_port()
    folder = home / "nginx"
    folder.mkdir(exist_ok=True)
    own = {"user": getpass.getuser(), "group": grp.getgrgid(os.getgid()).gr_name}  # they can read the folder
    values = {"folder": folder, "port": port, "upstream": upstream, "path": path, **own}
    (folder / "nginx.conf").write_text(CONFIGURATION.format(**values, settings=settings.format(folder=folder)))
    url = f"http://127.0.0.1:{port}{path}"
    words = [sys.executable, "-m", "meshwave", "serve", "--no-browser", "--port", str(upstream), "--url", url]
    nginx = subprocess.Popen([NGINX, "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", str(folder / "log")])
    server = subprocess.Popen([*words, "--home", str(home), *options], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        shown = "".join(server.stdout.readline() for _ in range(3))
        found = re.search(r"http\S+", shown)
        assert found, shown
        wait_until(lambda: (folder / "pid").exists())
        yield found[0]
    finally:
        for process in (server, nginx):
            process.send_signal(signal.SIGINT)
            process.wait(30)
        server.stdout.close()


@pytest.fixture
def link(tmp_path: Path) -> Iterator[str]:
    """The link of a designer behind nginx."""
    with serve_behind_proxy(tmp_path, "/user/ada/meshwave/") as link:
        yield link


@pytest.mark.nightly
def test_people_sign_in_by_basic_authentication_of_the_proxy(tmp_path: Path, browser: Browser) -> None:
    (tmp_path / "nginx").mkdir()
    (tmp_path / "nginx/passwords").write_text("ada:{PLAIN}secret\neve:{PLAIN}secret\n")
    people = tmp_path / "people.toml"
    people.write_text(PEOPLE)
    people.chmod(0o600)

    with serve_behind_proxy(tmp_path, "/", "--people", str(people), settings=BASIC_AUTHENTICATION) as link:
        answers = {}
        for name, password in (("ada", "secret"), ("ada", "wrong"), ("eve", "secret")):
            context = browser.new_context(http_credentials={"username": name, "password": password})
            page = context.new_page()
            answer = page.goto(f"{link}admin")
            assert answer is not None
            answers[name, password] = answer.status, page.locator("body").inner_text()
            context.close()

    assert answers["ada", "wrong"][0] == 401
    assert "You are signed in as ada with the role designer" in answers["ada", "secret"][1]
    assert answers["eve", "secret"] == (403, "eve has no account on this server; an administrator can add this name")


@pytest.mark.nightly
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
