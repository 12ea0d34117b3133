"""Sign-in at an OAuth provider, which the tests serve on the loopback, with redirects as browsers follow them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.cookiejar import CookieJar
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

import panel as pn
import pytest

from meshwave.designer.server.oauth import oauth_sign_in
from meshwave.designer.server.people_access import PeopleAccess
from meshwave.designer.server.serve import start_on_free_port, start_pages
from meshwave.designer.server.site import Place
from meshwave.designer.state.studio import Studio
from meshwave.engine.errors import InputError
from meshwave.engine.findings import Refusal
from meshwave.engine.people.people_file import OAuth, PeopleFile, read_people
from tests.designer.web import answer, serve_page

PEOPLE = """login = "oauth"

[oauth]
provider = "generic"
key = "meshwave"
user_key = "email"
options = {{ AUTHORIZE_URL = "{link}/authorize", TOKEN_URL = "{link}/token", USER_URL = "{link}/user", scope = ["email"] }}

[[people]]
name = "ada@example.org"
role = "admin"

[[people]]
name = "grace@example.org"
role = "designer"
"""
SECRET = "the secret of the client"


class Provider(ThreadingHTTPServer):
    """A provider that identifies every visitor as the person in ``claims``."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.claims: dict[str, Any] = {}
        self.has_id_token = False
        self.grants: list[dict[str, str]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def link(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/user":
            assert self.headers["Authorization"] == "Bearer access"
            self._send_json(self.server.claims)
            return
        asked = {key: values[0] for key, values in parse_qs(parts.query).items()}
        assert (asked["client_id"], asked["response_type"], asked["scope"]) == ("meshwave", "code", "email")
        self.send_response(302)
        back = {"code": "granted", "state": asked["state"]} if self.server.claims else {"error": "access_denied"}
        self.send_header("Location", f"{asked['redirect_uri']}?{urlencode(back)}")
        self.end_headers()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        given = {key: values[0] for key, values in parse_qs(body).items()}
        self.server.grants.append(given)
        token = {"access_token": "access", "token_type": "Bearer", "expires_in": 3600}
        if self.server.has_id_token:
            claims = base64.urlsafe_b64encode(json.dumps(self.server.claims).encode()).decode().rstrip("=")
            token["id_token"] = f"e30.{claims}.signature"
        self._send_json(token)

    def _send_json(self, content: dict[str, Any]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *arguments: Any) -> None:
        """Write no log."""


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    provider = Provider()
    yield provider
    provider.shutdown()
    provider.server_close()


class Site(NamedTuple):
    """A server of Meshwave with its file of people."""

    port: int
    people: Path

    @property
    def link(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def site(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    path = tmp_path_factory.mktemp("people") / "people.toml"
    path.write_text(PEOPLE.format(link=provider.link))
    file = PeopleFile(path)

    def start(studio: Studio) -> Any:
        pages = {page: lambda: pn.Column() for page in ("/", "/start")}  # beside /admin
        return start_on_free_port(lambda found: start_pages(pages, studio, PeopleAccess(file, found)), Place())[0]

    with pytest.MonkeyPatch.context() as patch, serve_page(tmp_path_factory.mktemp("home"), start) as server:
        patch.setenv("PANEL_OAUTH_SECRET", SECRET)
        yield Site(server.port, path)


@pytest.fixture
def browser() -> OpenerDirector:
    """A client that follows redirects and keeps cookies, as a browser does."""
    return build_opener(HTTPCookieProcessor(CookieJar()))


def visit(browser: OpenerDirector, link: str) -> tuple[int, str, str]:
    """Return the status, the last address and the text of a page."""
    try:
        with browser.open(link, timeout=20) as page:
            return page.status, page.url, page.read().decode()
    except HTTPError as error:
        return error.code, error.url or "", error.read().decode()


def cookies(browser: OpenerDirector) -> dict[str, str | None]:
    (jar,) = (each.cookiejar for each in browser.handlers if isinstance(each, HTTPCookieProcessor))
    return {cookie.name: cookie.value for cookie in jar}


@pytest.mark.parametrize("has_id_token", [False, True])
def test_people_of_the_file_sign_in_at_the_provider_and_out_again(
    provider: Provider, site: Site, browser: OpenerDirector, has_id_token: bool
) -> None:
    provider.claims, provider.has_id_token = {"email": "Ada@Example.org", "email_verified": True}, has_id_token
    status, link, page = visit(browser, f"{site.link}/admin")
    assert (status, link) == (200, f"{site.link}/admin")
    assert '<meta name="mw-signed-in-as" content="ada@example.org">' in page
    given = provider.grants[-1]
    assert (given["code"], given["client_id"], given["client_secret"]) == ("granted", "meshwave", SECRET)
    ((name, value),) = cookies(browser).items()  # no token of the provider
    assert name == f"meshwave-{site.port}"
    assert answer(site.port, "/start", Cookie=f"{name}={value}").status == 200

    assert answer(site.port, "/sign-out", Cookie=f"{name}={value}", **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert "You are signed out" in visit(browser, f"{site.link}/sign-out")[2]
    assert cookies(browser) == {}
    refused = answer(site.port, "/start", Cookie=f"{name}={value}")
    assert refused.status == 302 and "/sign-in" in refused.headers["Location"]


def test_the_role_of_the_file_applies(provider: Provider, site: Site, browser: OpenerDirector) -> None:
    provider.claims = {"email": "grace@example.org"}
    assert visit(browser, f"{site.link}/")[0] == 200
    status, link, page = visit(browser, f"{site.link}/admin")
    assert status == 403 and "/refused" in link
    assert "You are signed in as grace@example.org with the role designer" in page


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"email": "mallory@example.org"}, "mallory@example.org has no account on this server"),
        ({"email": "<b>mallory"}, "&lt;b&gt;mallory has no account on this server"),
        (
            {"email": "ada@example.org", "email_verified": False},
            "has not verified that ada@example.org is your address",
        ),
        ({"login": "ada"}, "OAuth token payload missing user information"),
        ({}, "access_denied"),
    ],
)
def test_other_people_are_refused(
    provider: Provider, site: Site, browser: OpenerDirector, claims: dict[str, Any], reason: str
) -> None:
    provider.claims, provider.has_id_token = claims, False
    status, _, page = visit(browser, f"{site.link}/")
    assert status in (401, 403) and reason in page
    assert f"meshwave-{site.port}" not in cookies(browser)


def test_an_answer_of_the_provider_that_this_browser_did_not_ask_for_is_refused(
    provider: Provider, site: Site, browser: OpenerDirector
) -> None:
    provider.claims = {"email": "ada@example.org"}
    state = base64.urlsafe_b64encode(b'{"state_id": "forged", "next_url": "/"}').decode()
    status, _, page = visit(browser, f"{site.link}/sign-in?code=granted&state={state}")
    assert status == 401 and "OAuth state mismatch" in page


def test_the_sign_in_sends_nobody_to_another_site_and_answers_to_its_own_name_only(site: Site) -> None:
    assert answer(site.port, "/sign-in?next=https://example.net/").status == 400
    assert answer(site.port, "/sign-in?next=//example.net/").status == 400
    assert answer(site.port, "/sign-in", Host="example.net").status == 403


def test_people_no_longer_sign_in_at_the_provider_once_the_file_says_so(
    provider: Provider, site: Site, browser: OpenerDirector
) -> None:
    provider.claims, before = {"email": "ada@example.org"}, site.people.read_text()
    site.people.write_text(
        '[[people]]\nname = "ada@example.org"\nrole = "admin"\ntoken = "sha256$' + f'{0:032}${0:064}"\n'
    )
    try:
        assert "restart the server" in visit(browser, f"{site.link}/")[2]
    finally:
        site.people.write_text(before)


def test_the_provider_is_one_of_panel(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"there is no OAuth provider called 'githup'\. Did you mean 'github'\?"):
        oauth_sign_in(OAuth(provider="githup", key="meshwave"))
    (tmp_path / "people.toml").write_text('login = "oauth"')
    with pytest.raises(InputError, match=r"needs the table \[oauth\] with the keys provider and key"):
        read_people(tmp_path / "people.toml")
