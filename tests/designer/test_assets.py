"""Modules of the page are linked into one file, which a browser keeps until there is another one."""

from __future__ import annotations

import re

import pytest

from meshwave.designer.kit.assets import HEAD, linked, module
from meshwave.designer.views.timeline import TimelineChart
from meshwave.engine.errors import MeshwaveError


def test_a_module_comes_after_those_that_it_imports_and_gives_what_it_exports() -> None:
    page = linked(
        {
            "page": '// Draws.\nimport { h as element, s } from "static/canvas.js";\n\nexport async function render() {}\n',
            "canvas": 'const SVG = "known as such";\nexport const h = 1;\nexport function s() {}\n',
        }
    )

    assert page == (
        "const $canvas = (() => {\n"
        'const SVG = "known as such";\nconst h = 1;\nfunction s() {}\n\n'
        "return { h, s };\n})();\n"
        "const $page = (() => {\n"
        "// Draws.\nconst { h: element, s } = $canvas;\n\nasync function render() {}\n\n"
        "return { render };\n})();\n"
        "export { $canvas as canvas, $page as page };\n"
    )


@pytest.mark.parametrize(
    "line",
    ['import h from "static/b.js";', 'import { h } from "./b.js";', "export default h;", "export let h = 1;"],
)
def test_what_cannot_be_linked_is_named(line: str) -> None:
    with pytest.raises(MeshwaveError, match=re.escape(f"static/a.js: {line!r}")):
        linked({"a": line, "b": ""})


def test_modules_that_import_each_other_are_named() -> None:
    with pytest.raises(MeshwaveError, match=re.escape("static/a.js imports itself: a from b from a")):
        linked({"a": 'import { b } from "static/b.js";', "b": 'import { a } from "static/a.js";'})


def test_a_widget_names_its_module_by_the_url_that_the_page_asks_for_early() -> None:
    (early,) = re.findall(r'rel="modulepreload" href="([^"]+)"', HEAD)

    assert f'location.origin + "{early}")).timeline;' in str(TimelineChart._esm)
    with pytest.raises(FileNotFoundError, match=r"static/nothing\.js is missing"):
        module("nothing.js")
