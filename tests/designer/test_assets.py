"""Modules of the page have URLs, under which browsers cache them until their version changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshwave.designer.kit.assets import HEAD, module_code, modules_digest, served_modules
from meshwave.designer.views.timeline import TimelineChart

STATIC = Path(__file__).resolve().parents[2] / "static"
IMPORTED = re.compile(r'\bfrom "([^"]+)";')
MODULES = {"widgets.js": b"export {};", "kit/native_import.js": b"1;", "kit/canvas.js": b"2;"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kit").mkdir()
    for name, text in MODULES.items():
        (tmp_path / name).write_bytes(text)
    return tmp_path


def test_a_widget_imports_the_url_that_the_page_preloads() -> None:
    preloaded = re.findall(r'rel="modulepreload" href="([^"]+)"', HEAD)

    (url,) = re.findall(r'import\(new URL\("([^"]+)", document\.baseURI\)\)', str(TimelineChart._esm))
    assert url.endswith("/widgets.js") and url in preloaded
    with pytest.raises(FileNotFoundError, match=r"widgets\.js does not export static/nothing\.js"):
        module_code("nothing.js")


def test_modules_are_served_separately_without_a_bundle(folder: Path) -> None:
    assert served_modules(folder) == MODULES


def test_a_bundle_replaces_exactly_the_modules_it_was_built_from(folder: Path) -> None:
    bundle = f"// {modules_digest(MODULES)}\nexport {{}};".encode()
    (folder / "bundle.js").write_bytes(bundle)
    served = served_modules(folder)

    assert served == {"widgets.js": bundle, "kit/native_import.js": b"1;"}
    assert modules_digest(served) != modules_digest(MODULES), "a browser would take one for the other"
    (folder / "kit" / "canvas.js").write_bytes(b"3;")
    assert served_modules(folder) == MODULES | {"kit/canvas.js": b"3;"}


@pytest.mark.parametrize("path", sorted(STATIC.glob("*/*.js")), ids=lambda path: path.relative_to(STATIC).as_posix())
def test_a_module_imports_only_from_its_own_folder_and_the_kit(path: Path) -> None:
    imported = [(path.parent / name).resolve() for name in IMPORTED.findall(path.read_text(encoding="utf-8"))]

    assert all(other.is_file() and other.parent in (path.parent, STATIC / "kit") for other in imported)
