"""The documentation site of the designer: the same access control, and a note if the site has not been built."""

from __future__ import annotations

from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

import pytest

from meshwave.designer.server import documentation
from meshwave.designer.server.serve import read_design, serve_in_thread

TOKEN = "a-token-for-tests"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site")


@pytest.fixture(scope="module")
def address(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a designer whose documentation site is in ``folder``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESHWAVE_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr(documentation, "documentation_folder", lambda: folder)
        with serve_in_thread(read_design(None), TOKEN) as link:
            yield link.partition("?")[0]


@pytest.fixture
def owner_opener(address: str) -> OpenerDirector:
    """A browser that followed the link with the token."""
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    browser.open(f"{address}?token={TOKEN}", timeout=20).read()
    return browser


def status(browser: OpenerDirector, url: str) -> tuple[int, str]:
    try:
        with browser.open(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_a_checkout_without_built_documentation_says_how_to_build_it(
    address: str, owner_opener: OpenerDirector
) -> None:
    code, text = status(owner_opener, f"{address}docs/glossary.html")

    assert code == 404
    assert "make docs" in text


def test_the_built_site_is_served_to_authenticated_users_only(
    address: str, owner_opener: OpenerDirector, folder: Path
) -> None:
    (folder / "guide").mkdir()
    (folder / "index.html").write_text("the first page")
    (folder / "guide" / "run.html").write_text("how to run")

    assert status(owner_opener, f"{address}docs") == (200, "the first page")
    assert status(owner_opener, f"{address}docs/") == (200, "the first page")
    assert status(owner_opener, f"{address}docs/guide/run.html") == (200, "how to run")
    assert status(owner_opener, f"{address}docs/guide/../../secret")[0] in (403, 404)
    code, text = status(build_opener(), f"{address}docs/")
    assert code == 403
    assert "Open the link that Meshwave printed" in text
    assert "the first page" not in text
