"""HTML export: the page is self-contained, its texts are escaped, and the design it contains can be opened."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from meshwave.engine.document import load_design, parse_design
from meshwave.engine.exports import exports, html
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.units import quantity
from tests._strategies import Drawn

WAVES = Drawn({"schedule": "hanayo", "waves": 1, "microbatches": 4}, 2)
LOADS = ("src", "href", "data", "action", "srcset")


class Read(HTMLParser):
    """Parser that collects the tags of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page(prediction: Prediction) -> str:
    return exports["html"].to_bytes(prediction).decode()


def test_the_page_loads_no_resources() -> None:
    read = Read(page(predict(WAVES.design())))

    loaded = [str(value) for _, attributes in read.tags for key, value in attributes.items() if key in LOADS]
    assert loaded
    assert all(value.startswith("data:") for value in loaded)
    assert "default-src 'none'" in next(
        str(each["content"]) for tag, each in read.tags if tag == "meta" and each.get("content")
    )


@pytest.mark.parametrize("name", ["</script><script>alert(1)</script>", "<b>bold</b> & 'quoted\"", ""])
def test_the_design_name_is_escaped(name: str) -> None:
    read = Read(page(predict(WAVES.design(name=name))))

    assert sum(tag == "script" for tag, _ in read.tags) == 1
    assert not any(tag == "b" for tag, _ in read.tags)
    assert (name or "Design") in "".join(read.text)


HOSTILE = "".join(map(chr, [*range(32), *range(127, 160), 0xFDD0, 0xFFFE, 0xFFFF])) + "]]>&<name>"


@pytest.mark.parametrize("form", ["svg", "html"])
def test_names_with_control_characters_give_a_valid_file(form: str) -> None:
    design = WAVES.design()  # documents refuse such names; a program that uses the engine may have them all the same
    meshes = tuple(mesh.model_copy(update={"name": f"{mesh.name} {HOSTILE}"}) for mesh in design.meshes)

    made = exports[form].to_bytes(predict(design.model_copy(update={"name": HOSTILE, "meshes": meshes}))).decode()

    drawing = made if form == "svg" else made[made.index("<svg") : made.index("</svg>") + len("</svg>")]
    ElementTree.fromstring(drawing)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", made)
    assert "\ufffd" in made


def test_the_page_contains_its_design() -> None:
    design = WAVES.design()
    read = Read(page(predict(design)))

    saved = next(str(each["href"]) for tag, each in read.tags if tag == "a")
    assert parse_design(base64.b64decode(saved.partition("base64,")[2])) == design


def test_the_page_has_a_row_per_mesh_and_a_block_per_action_in_both_themes() -> None:
    prediction = predict(WAVES.design())
    whole = page(prediction)

    assert re.findall(r'<th scope="row">(.*?)</th>', whole) == list(prediction.numbers["meshes"])
    assert whole.count("<title>1F2 on mesh") == 2
    assert {'id="idle-light"', 'id="idle-dark"'} <= set(re.findall(r'id="idle-\w+"', whole))
    assert f"{prediction.numbers['bubble_ratio']:.1%}" in whole


def test_the_page_states_communication_inside_blocks() -> None:
    prediction = predict(load_design(example("20-unequal-meshes")))
    inside = prediction.numbers["inside_communication_s"][1]

    whole = page(prediction)

    assert f"<td>{quantity(inside, 's')}</td>" in whole
    assert f"{quantity(inside / 2, 's')} inside blocks</dd>" in whole
    assert "inside blocks" not in page(predict(WAVES.design()))


def test_too_many_blocks_for_a_drawing_become_a_bitmap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MAX_BLOCKS", 10)

    whole = page(predict(WAVES.design()))

    assert 'src="data:image/png;base64,' in whole
    assert "<svg" not in whole
