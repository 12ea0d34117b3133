"""The file of the people of a server, and the command that adds to it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from meshwave.engine.cli.main import main
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError
from meshwave.engine.people.people_file import (
    PeopleFile,
    Role,
    add_person,
    hash_token,
    is_token_of,
    new_person,
    read_people,
)

TOKEN = 'token = "sha256$' + "0" * 32 + "$" + "0" * 64 + '"'


def codes(path: Path, text: str) -> list[str]:
    path.write_text(text)
    with pytest.raises(DesignError) as refused:
        read_people(path)
    return [problem.code for problem in refused.value.problems]


def test_each_role_includes_those_before_it() -> None:
    roles = [Role.VIEWER, Role.DESIGNER, Role.LAUNCHER, Role.ADMIN]
    for place, role in enumerate(roles):
        assert [role.includes(other) for other in roles] == [number <= place for number in range(4)]


def test_a_person_signs_in_with_the_token_that_was_shown_once(tmp_path: Path) -> None:
    path = tmp_path / "people.toml"
    tokens = {name: add_person(path, name, Role.DESIGNER) for name in ("Ada", "grace@example.org")}
    people = read_people(path)
    ada, grace = people.find("ada"), people.find("GRACE@example.org")

    assert ada is not None and grace is not None
    assert ada.user == ("ada", "Ada", Role.DESIGNER)
    assert is_token_of(ada, tokens["Ada"]) and is_token_of(grace, tokens["grace@example.org"])
    assert not any(is_token_of(ada, wrong) for wrong in ("", tokens["grace@example.org"], tokens["Ada"] + "x"))
    assert not is_token_of(None, "") and not is_token_of(None, tokens["Ada"])
    assert tokens["Ada"] not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_example_of_the_documentation_is_valid() -> None:
    people = read_people(Path(__file__).parents[3] / "docs/examples/people.toml")
    assert [person.role for person in people.people] == [Role.ADMIN, Role.DESIGNER]
    assert people.limits.total.processes == 32


def test_equal_tokens_have_different_hashes() -> None:
    assert hash_token("secret") != hash_token("secret")


def test_a_name_is_added_once(tmp_path: Path) -> None:
    add_person(tmp_path / "people.toml", "ada", Role.VIEWER)
    with pytest.raises(InputError, match="lists 'ADA' already"):
        add_person(tmp_path / "people.toml", "ADA", Role.ADMIN)


@pytest.mark.parametrize("name", ["", ".", "../ada", "a/b", 'a"', "a\nrole", "a" * 65])
def test_a_name_that_could_be_a_path_or_break_the_file_is_refused(name: str) -> None:
    with pytest.raises(DesignError):
        new_person(name, Role.VIEWER)


def test_problems_of_the_file_name_the_place(tmp_path: Path) -> None:
    path = tmp_path / "people.toml"
    assert codes(path, "[[people") == ["invalid_toml"]
    assert codes(path, f'[[people]]\nname = "ada"\nrole = "owner"\n{TOKEN}') == ["invalid_value"]
    assert codes(path, '[[people]]\nname = "ada"\nrole = "viewer"') == ["person_without_token"]
    twice = f'[[people]]\nname = "ada"\nrole = "viewer"\n{TOKEN}\n[[people]]\nname = "Ada"\nrole = "admin"\n{TOKEN}'
    assert codes(path, twice) == ["duplicate_person"]
    assert codes(path, 'login = "header"\nheader = "X-User"') == ["header_login_without_proxy"]
    assert codes(path, 'login = "header"\nheader = "X-User"\nproxies = ["proxy"]') == ["proxy_address"]


def test_a_changed_file_applies_at_once_and_an_unreadable_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "people.toml"
    path.write_text("")
    file = PeopleFile(path)
    assert file.people.find("ada") is None
    add_person(path, "ada", Role.VIEWER)
    assert file.people.find("ada") is not None
    path.write_text("[[people")
    assert file.people.find("ada") is not None


def test_the_command_shows_the_token_apart_from_the_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["people", "add", "ada", "--role", "launcher"]) == 0
    entry, shown = capsys.readouterr()
    path = tmp_path / "people.toml"
    path.write_text(entry)
    token = shown.split()[-1]

    assert token not in entry
    assert is_token_of(read_people(path).find("ada"), token)
    assert main(["people", "add", "grace", "--role", "admin", "--file", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert [person.role for person in read_people(path).people] == ["launcher", "admin"]
    assert main(["people", "add", "grace", "--role", "admin", "--file", str(path)]) == 2
