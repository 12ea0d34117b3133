"""A design as a page: it is whole, its words are text, and what it holds opens again."""

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
    """The tags of a page with their attributes, and its text."""

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


def test_it_loads_nothing() -> None:
    read = Read(page(predict(WAVES.design())))

    loaded = [str(value) for _, attributes in read.tags for key, value in attributes.items() if key in LOADS]
    assert loaded
    assert all(value.startswith("data:") for value in loaded)
    assert "default-src 'none'" in next(
        str(each["content"]) for tag, each in read.tags if tag == "meta" and each.get("content")
    )


@pytest.mark.parametrize("name", ["</script><script>alert(1)</script>", "<b>bold</b> & 'quoted\"", ""])
def test_what_it_is_called_is_text(name: str) -> None:
    read = Read(page(predict(WAVES.design(name=name))))

    assert sum(tag == "script" for tag, _ in read.tags) == 1
    assert not any(tag == "b" for tag, _ in read.tags)
    assert (name or "Design") in "".join(read.text)


HOSTILE = "".join(map(chr, [*range(32), *range(127, 160), 0xFDD0, 0xFFFE, 0xFFFF])) + "]]>&<name>"


@pytest.mark.parametrize("form", ["svg", "html"])
def test_names_of_control_characters_make_no_broken_file(form: str) -> None:
    design = WAVES.design()  # documents refuse such names; a program that uses the engine may have them all the same
    meshes = tuple(mesh.model_copy(update={"name": f"{mesh.name} {HOSTILE}"}) for mesh in design.meshes)

    made = exports[form].to_bytes(predict(design.model_copy(update={"name": HOSTILE, "meshes": meshes}))).decode()

    drawing = made if form == "svg" else made[made.index("<svg") : made.index("</svg>") + len("</svg>")]
    ElementTree.fromstring(drawing)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", made)
    assert "\ufffd" in made


def test_it_holds_the_design_that_it_shows() -> None:
    design = WAVES.design()
    read = Read(page(predict(design)))

    saved = next(str(each["href"]) for tag, each in read.tags if tag == "a")
    assert parse_design(base64.b64decode(saved.partition("base64,")[2])) == design


def test_it_has_a_row_a_mesh_and_a_block_an_action_in_either_theme() -> None:
    prediction = predict(WAVES.design())
    whole = page(prediction)

    assert re.findall(r'<th scope="row">(.*?)</th>', whole) == list(prediction.numbers["meshes"])
    assert whole.count("<title>1F2 on mesh") == 2
    assert {'id="idle-light"', 'id="idle-dark"'} <= set(re.findall(r'id="idle-\w+"', whole))
    assert f"{prediction.numbers['bubble_ratio']:.1%}" in whole


def test_it_tells_what_blocks_wait_for_messages_inside_where_they_do() -> None:
    prediction = predict(load_design(example("20-unequal-meshes")))
    inside = prediction.numbers["inside_communication_s"][1]

    whole = page(prediction)

    assert f"<td>{quantity(inside, 's')}</td>" in whole
    assert f"{quantity(inside / 2, 's')} inside blocks</dd>" in whole
    assert "inside blocks" not in page(predict(WAVES.design()))


def test_blocks_that_are_too_many_for_a_drawing_are_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MAX_BLOCKS", 10)

    whole = page(predict(WAVES.design()))

    assert 'src="data:image/png;base64,' in whole
    assert "<svg" not in whole
