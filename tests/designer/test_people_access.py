"""People who sign in: changes of their file, and the header of a reverse proxy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tornado.httputil import HTTPHeaders

from meshwave.designer.server.people_access import PeopleAccess
from meshwave.designer.server.serve import serve
from meshwave.designer.server.site import Place, check_encryption, parse_site
from meshwave.designer.server.workshop_access import WorkshopAccess
from meshwave.engine.findings import Refusal
from meshwave.engine.lessons.classroom import CODE_LETTERS, Classroom
from meshwave.engine.lessons.workshop import read_workshop
from meshwave.engine.people.people_file import PeopleFile, Role, add_person

HEADER_FILE = """login = "header"
header = "X-Forwarded-User"
proxies = ["127.0.0.1"]

[[people]]
name = "Ada@example.org"
role = "launcher"
"""


class FakeHandler:
    """A request, with the parts that the access control uses."""

    def __init__(self, path: str = "/", address: str = "127.0.0.1", cookie: str = "", **headers: str) -> None:
        named = HTTPHeaders({name.replace("_", "-"): value for name, value in headers.items()})
        self.request = SimpleNamespace(
            host="127.0.0.1:5006", path=path, headers=named, arguments={}, remote_ip=address, user=None
        )
        self.cookie = cookie

    def get_cookie(self, name: str, default: str) -> str:
        return self.cookie or default

    def set_cookie(self, name: str, value: str, **options: Any) -> None:
        self.cookie = value


def header_access(tmp_path: Path) -> PeopleAccess:
    (tmp_path / "people.toml").write_text(HEADER_FILE)
    return PeopleAccess(PeopleFile(tmp_path / "people.toml"), Place(port=5006))


def test_a_proxy_names_the_person(tmp_path: Path) -> None:
    access = header_access(tmp_path)
    assert access.get_user(FakeHandler(X_Forwarded_User="ada@example.org")) == (
        "ada@example.org",
        "Ada@example.org",
        Role.LAUNCHER,
    )


def test_the_header_is_believed_from_the_stated_proxies_only(tmp_path: Path) -> None:
    access = header_access(tmp_path)
    assert access.get_user(FakeHandler(address="10.0.0.7", X_Forwarded_User="ada@example.org")) is None
    assert access.get_user(FakeHandler()) is None
    assert access.get_user(FakeHandler(X_Forwarded_User="grace@example.org")) is None
    assert access.get_user(FakeHandler(X_Remote_User="ada@example.org")) is None
    twice = FakeHandler(X_Forwarded_User="ada@example.org")
    twice.request.headers.add("X-Forwarded-User", "ada@example.org")
    assert access.get_user(twice) is None


def test_the_header_is_ignored_where_the_file_does_not_state_it(tmp_path: Path) -> None:
    add_person(tmp_path / "people.toml", "ada", Role.ADMIN)
    access = PeopleAccess(PeopleFile(tmp_path / "people.toml"), Place(port=5006))
    assert access.get_user(FakeHandler(X_Forwarded_User="ada")) is None


def test_a_removed_person_is_refused_and_a_new_role_applies_at_once(tmp_path: Path) -> None:
    path = tmp_path / "people.toml"
    token = add_person(path, "ada", Role.VIEWER)
    access = PeopleAccess(PeopleFile(path), Place(port=5006))
    browser: Any = FakeHandler("/metrics")
    access.sign_in_with_token(browser, "ADA", f" {token} ")
    assert access.identify(browser) == ("ada", "ada", Role.VIEWER)
    assert access.is_current(browser.request)
    assert access.get_user(browser) is None

    path.write_text(path.read_text().replace('"viewer"', '"admin"'))
    assert not access.is_current(browser.request)
    assert access.get_user(browser) == ("ada", "ada", Role.ADMIN)
    assert access.is_current(browser.request)

    path.write_text("")
    assert not access.is_current(browser.request)
    assert access.get_user(browser) is None


def test_a_new_token_ends_the_sign_ins_with_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "people.toml"
    token = add_person(path, "ada", Role.VIEWER)
    access = PeopleAccess(PeopleFile(path), Place(port=5006))
    browser: Any = FakeHandler()
    access.sign_in_with_token(browser, "ada", token)
    assert access.get_user(browser) is not None

    path.unlink()
    add_person(path, "ada", Role.VIEWER)
    assert not access.is_current(browser.request)
    assert access.get_user(browser) is None


def test_wrong_tokens_never_keep_others_behind_the_same_address_from_signing_in(tmp_path: Path) -> None:
    token = add_person(tmp_path / "people.toml", "ada", Role.VIEWER)
    access = PeopleAccess(PeopleFile(tmp_path / "people.toml"), Place(port=5006))
    for number in range(200):
        with pytest.raises(Refusal) as refused:
            access.sign_in_with_token(FakeHandler(), ("ada", "eve")[number % 2], f"{token}{number}")  # type: ignore[arg-type]
        assert refused.value.problem.code == "wrong_token"

    browser: Any = FakeHandler()
    access.sign_in_with_token(browser, "ada", token)
    assert access.get_user(browser) == ("ada", "ada", Role.VIEWER)


def test_wrong_codes_never_keep_others_from_joining_a_workshop(tmp_path: Path) -> None:
    classroom = Classroom(tmp_path, read_workshop(Path(__file__).parents[2] / "docs/examples/workshop.toml"))
    access = WorkshopAccess(classroom, "token", Place(port=5006))
    for number in range(200):
        with pytest.raises(Refusal, match="this is not the code of the workshop"):
            access.join(FakeHandler(), f"GUESS{number}", "Eve")  # type: ignore[arg-type]

    learner: Any = FakeHandler()
    access.join(learner, classroom.code, "Ada")
    assert classroom.find_by_key(learner.cookie) is not None
    assert len(CODE_LETTERS) ** len(classroom.code) > 10**12
    classroom.close()


@pytest.mark.parametrize(
    ("place", "code"),
    [
        (Place(), ""),
        (Place("192.168.1.20"), "unencrypted_address"),
        (Place("0.0.0.0"), "unencrypted_address"),
        (Place("192.168.1.20", proxy=parse_site("https://hub.example.org/")), ""),
        (Place("127.0.0.1", key=Path("missing.pem")), "unreadable_certificate"),
        (Place("127.0.0.1", certificate=Path(__file__)), "certificate_without_key"),
        (Place("192.168.1.20", certificate=Path(__file__), key=Path(__file__)), ""),
        (Place("0.0.0.0", certificate=Path(__file__), key=Path(__file__)), "address_without_name"),
        (Place("::1"), "address_without_name"),
        (Place("::", proxy=parse_site("https://hub.example.org/")), ""),
    ],
)
def test_other_machines_are_served_with_tls_under_a_name_that_they_can_open(place: Place, code: str) -> None:
    found = ""
    try:
        check_encryption(place)
    except Refusal as refusal:
        found = refusal.problem.code
    assert found == code


def test_other_machines_are_not_served_without_people_who_sign_in() -> None:
    with pytest.raises(Refusal, match="needs user accounts; create them with meshwave people add"):
        serve(place=Place("192.168.1.20", certificate=Path(__file__), key=Path(__file__)))


def test_behind_a_proxy_only_its_name_is_served_to_other_machines() -> None:
    site = parse_site("https://hub.example.org/")
    file: Any = None
    assert PeopleAccess(file, Place("192.168.1.20", 5006, proxy=site)).hosts == ["hub.example.org"]
    assert "127.0.0.1:5006" in PeopleAccess(file, Place(port=5006, proxy=site)).hosts
