"""The documentation site: it builds without warnings, has no dead links, and loads nothing from other servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

from meshwave.designer.forms.fields import form_sections
from meshwave.engine.document import load_design
from meshwave.engine.files import examples

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("source", "src"), ("iframe", "src")}


class Html(HTMLParser):
    """The anchors and the references of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id":
                self.anchors.add(value)
            if (tag, name) in LOADED:
                self.loads.append(value)
            if (tag, name) == ("a", "href"):
                self.links.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as ``make docs`` builds it; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-E", "-W", "--keep-going", "-q", ROOT / "docs", folder]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> Mapping[Path, Html]:
    return {path: Html(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def dead_links(pages: Mapping[Path, Html]) -> Iterator[str]:
    """Yield ``page: link`` for each link inside the site that has no target."""
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            address, anchor = urldefrag(link)
            if urlsplit(address).scheme:
                continue
            target = (path.parent / unquote(urlsplit(address).path)).resolve() if address else path
            if not target.is_file() or (anchor and target in pages and unquote(anchor) not in pages[target].anchors):
                yield f"{path.name}: {link}"


def test_every_link_and_anchor_inside_the_site_has_a_target(pages: Mapping[Path, Html]) -> None:
    assert len(pages) > 10
    assert list(dead_links(pages)) == []


def test_links_to_other_sites_are_secure_and_none_is_loaded(pages: Mapping[Path, Html]) -> None:
    links = {link for page in pages.values() for link in page.links if urlsplit(link).scheme}
    loads = {link for page in pages.values() for link in page.loads if urlsplit(link).scheme not in ("", "data")}

    assert {urlsplit(link).scheme for link in links} <= {"https", "mailto"}
    assert loads == set()


def test_the_terms_of_the_page_have_an_entry_in_the_glossary(site: Path, pages: Mapping[Path, Html]) -> None:
    help_on_page = (ROOT / "static/kit/help.js").read_text(encoding="utf-8")
    terms = re.findall(r'^  "?[\w ]+"?: "([\w-]+)",$', help_on_page, re.MULTILINE)
    named = re.findall(r'^  "?[\w ]+"?: "([\w/]+\.html)",$', help_on_page, re.MULTILINE)

    assert len(terms) > 70
    assert {f"term-{term}" for term in terms} <= pages[site / "glossary.html"].anchors
    assert {site / page for page in named} <= pages.keys()


def test_every_field_of_the_form_is_described_in_the_reference(site: Path, pages: Mapping[Path, Html]) -> None:
    designs = [load_design(path) for path in examples().values()]

    paths = {field["path"] for design in designs for section in form_sections(design) for field in section["fields"]}

    assert len(paths) > 50
    assert {f"confval-{path}" for path in paths} <= pages[site / "reference/document.html"].anchors


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_of_a_page_beside_the_site_have_a_target(name: str) -> None:
    links = re.findall(r"\]\(([^)#]+)", (ROOT / name).read_text(encoding="utf-8"))

    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []
