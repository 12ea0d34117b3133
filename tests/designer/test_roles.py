"""Access of strangers and of each role to every page, socket, file and endpoint of a server for several people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bokeh.server.views.ws import WSHandler
from tornado.routing import PathMatches, RuleRouter
from tornado.web import ErrorHandler

from meshwave.designer.server.access import ROLES, required_role
from meshwave.designer.server.people import PersonStudios, people_pages
from meshwave.designer.server.people_access import PeopleAccess
from meshwave.designer.server.serve import start_on_free_port, start_pages
from meshwave.designer.server.site import Place
from meshwave.designer.state.studio import Studio
from meshwave.engine.people.people_file import PeopleFile, Role, add_person
from tests.designer.web import answer, cookie_of, send_form, serve_page, websocket_status


class Served(NamedTuple):
    """A server for several people, each of whom is named after his or her role."""

    application: Any
    port: int
    tokens: Mapping[str, str]
    file: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("home")
    path = home / "people.toml"
    tokens = {role.value: add_person(path, role.value, role) for role in Role}
    file = PeopleFile(path)

    def start(studio: Studio) -> Any:
        studios = PersonStudios(studio, home / "people", lambda: file.people.limits)
        return start_on_free_port(
            lambda place: start_pages(people_pages(studios), studio, PeopleAccess(file, place)), Place()
        )[0]

    with serve_page(home, start) as started:
        yield Served(started._tornado, started.port, tokens, path)


def sign_in(server: Served, role: str) -> str:
    signed_in = send_form(server.port, "/sign-in", {"name": role, "token": server.tokens[role]})
    assert signed_in.status == 302
    return cookie_of(signed_in)


def routes(router: RuleRouter) -> Iterator[tuple[str, Any]]:
    """Yield the pattern and the handler of every route of a server."""
    for rule in router.rules:
        if isinstance(rule.target, RuleRouter):
            yield from routes(rule.target)
        else:
            assert isinstance(rule.matcher, PathMatches)
            yield rule.matcher.regex.pattern, rule.target


def sample(pattern: str) -> str:
    """Return a path that matches the pattern of a route."""
    parts = {"$": "", "/?": "/", "(?!extensions/)": "", "(.*)": "x", ".*": "x", "(\\w+)": "x", "([\\w/.-]+)": "x.js"}
    path = pattern
    for part, text in {**parts, "\\w+": "x"}.items():
        path = path.replace(part, text)
    assert re.fullmatch(pattern, path), pattern
    return path


def samples(server: Served) -> Iterator[tuple[str, Any]]:
    """Yield a path and the handler of every route that has one."""
    for pattern, handler in routes(server.application.default_router):
        path = sample(pattern)
        shadowed = path.startswith("/components") or ("/static/" in path and not path.startswith("/static"))
        if handler is not ErrorHandler and not shadowed:
            yield path, handler
        else:
            assert answer(server.port, path).status == 404


def outcome(server: Served, path: str, handler: Any, cookie: str) -> str:
    """Return the outcome of a request: ``opens``, ``sign in`` or ``refused``."""
    headers = {"Cookie": cookie} if cookie else {}
    if issubclass(handler, WSHandler):
        status = websocket_status(server.port, path, Origin=f"http://127.0.0.1:{server.port}", **headers)
        return "opens" if status == 101 else "sign in" if not cookie else "refused"
    response = answer(server.port, path, **headers)
    location = response.headers.get("Location", "").removeprefix(".")
    if location.startswith(("/sign-in", "/refused")):
        return "sign in" if location.startswith("/sign-in") else "refused"
    other_form = path.removesuffix("/") if path.endswith("/") else f"{path}/"
    if location and location == other_form:
        return outcome(server, location, handler, cookie)
    if response.status == 403 and path != "/refused":
        return "refused" if cookie else "sign in"
    assert response.status < 500
    return "opens"


def test_every_route_states_its_role(server: Served) -> None:
    """A new route needs an entry in ``ROLES``; until then only administrators can use it."""
    paths = {path for path, _ in samples(server)}
    assert {f"/{path.split('/')[1]}" for path in paths} - ROLES.keys() == set()
    assert required_role("/new") is Role.ADMIN


@pytest.mark.slow
def test_every_route_is_open_to_the_roles_that_it_states_and_to_nobody_else(server: Served) -> None:
    cookies = {"": "", **{role.value: sign_in(server, role.value) for role in Role}}
    seen = {}
    for path, handler in samples(server):
        needed = required_role(path)
        for name, cookie in cookies.items():
            allowed = needed is None or (name != "" and Role(name).includes(needed))
            expected = "opens" if allowed else "refused" if name else "sign in"
            if path == "/sign-out" and name:
                cookie = sign_in(server, name)  # of its own, since it ends here
            found = outcome(server, path, handler, cookie)
            assert found == expected, (path, name or "a stranger")
            seen[needed, expected] = True
    assert len(seen) == 6  # open, for viewers and for administrators, each with all outcomes


@pytest.mark.parametrize("path", ["/refused", "/sign-in", "/sign-out"])
def test_pages_for_strangers_name_their_icon(server: Served, path: str) -> None:
    """A browser would otherwise look for it at the root of the host, which may belong to another site."""
    assert re.search("<link rel=.icon. href=./favicon.ico.>", answer(server.port, path).read().decode())


def test_a_wrong_token_does_not_sign_in(server: Served) -> None:
    for values in (
        {"name": "admin", "token": "wrong"},
        {"name": "admin", "token": ""},
        {"name": "admin", "token": server.tokens["viewer"]},
        {"name": "nobody", "token": server.tokens["admin"]},
    ):
        refused = send_form(server.port, "/sign-in", values)
        assert refused.status == 403
        assert "Set-Cookie" not in refused.headers
        assert "wrong name or token" in refused.read().decode()


def test_a_form_of_another_site_does_not_sign_in(server: Served) -> None:
    values = {"name": "viewer", "token": server.tokens["viewer"]}
    assert send_form(server.port, "/sign-in", values, **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert send_form(server.port, "/sign-in", values, Host="example.org").status == 403


def test_a_form_leads_back_to_pages_of_this_server_only(server: Served) -> None:
    values = {"name": "viewer", "token": server.tokens["viewer"]}
    for asked, led in (("/transfer", "/transfer"), ("https://example.org/", "/"), ("//example.org", "/")):
        assert send_form(server.port, f"/sign-in?next={asked}", values).headers["Location"] == led


def test_a_shared_link_opens_after_signing_in(server: Served) -> None:
    location = answer(server.port, "/?shared=key&token=secret").headers["Location"].removeprefix(".")
    assert location == "/sign-in?next=/%3Fshared%3Dkey"
    values = {"name": "viewer", "token": server.tokens["viewer"]}
    assert send_form(server.port, location, values).headers["Location"] == "/?shared=key"
    assert send_form(server.port, f"{location}%0D%0A%26x", values).headers["Location"] == "/?shared=key"


def test_signing_out_makes_the_cookie_worthless(server: Served) -> None:
    cookie = sign_in(server, "viewer")
    assert answer(server.port, "/transfer", Cookie=cookie).status == 200
    answer(server.port, "/sign-out", Cookie=cookie)
    assert answer(server.port, "/transfer", Cookie=cookie).status == 302


def test_nobody_joins_the_session_of_another_person(server: Served) -> None:
    """The author of a link that names a session could otherwise use the session of somebody with more rights."""
    admin, viewer = (sign_in(server, role) for role in ("admin", "viewer"))
    page = answer(server.port, "/transfer", Cookie=admin).read().decode()
    found = re.search(r'"token":"([^"]+)"', page)
    assert found is not None
    origin = {"Origin": f"http://127.0.0.1:{server.port}"}

    assert websocket_status(server.port, "/transfer/ws", found[1], Cookie=viewer, **origin) == 403
    assert websocket_status(server.port, "/transfer/ws", found[1], Cookie=admin, **origin) == 101
    assert answer(server.port, "/transfer?bokeh-session-id=chosen", Cookie=admin).status == 302
    assert answer(server.port, f"/transfer?bokeh-token={found[1]}", Cookie=viewer).status == 302
    assert answer(server.port, "/transfer", Cookie=admin, **{"Bokeh-Session-Id": "chosen"}).status == 302
