"""The file on which a design trains, and how texts are stored."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshwave.engine.document.training import Training
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError
from meshwave.engine.runs.training_texts import find_text, safe_file_name, save_text, texts_folder, training_text
from tests.engine.runs.play import draw


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / "home"))
    texts_folder().mkdir(parents=True)
    return tmp_path


def put(*folders: Path) -> list[Path]:
    for folder in folders:
        folder.mkdir(exist_ok=True)
        (folder / "mine.txt").write_text(str(folder))
    return [folder / "mine.txt" for folder in folders]


def test_a_given_file_precedes_the_folders_and_the_uploaded_texts(home: Path) -> None:
    design = draw(training={"data": "mine.txt"})
    given, beside, kept = put(home / "given", home / "beside", texts_folder())
    folders = [home / "beside", home / "elsewhere"]

    assert training_text(design, given, folders) == given
    assert training_text(design, None, folders) == beside
    beside.unlink()
    assert training_text(design, None, folders) == kept


def test_a_design_without_data_uses_the_bundled_text(home: Path) -> None:
    (given,) = put(home)

    assert training_text(draw()) is None
    assert training_text(draw(), given) == given


def test_a_missing_text_is_a_problem_that_names_the_searched_folders(home: Path) -> None:
    with pytest.raises(DesignError) as refused:
        find_text("mine.txt", [home, texts_folder(), home])

    (problem,) = refused.value.problems
    assert problem.where == "training.data"
    assert f"the text mine.txt does not exist (looked in {home}, {texts_folder()})" in problem.message
    assert "--data FILE" in problem.message
    with pytest.raises(DesignError, match="does not exist"):
        training_text(draw(), home / "mine.txt")
    with pytest.raises(DesignError, match="is neither a file nor a folder; give the path of a text file"):
        training_text(draw(), Path(os.devnull))


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("shakespeare.txt", "shakespeare.txt"),
        ("../../etc/passwd", "passwd"),
        ("C:\\texts\\mine.txt", "mine.txt"),
        (".hidden", "hidden"),
        ("a\x00b\n.txt", "a_b_.txt"),
        ("Märchen 1.txt", "Märchen 1.txt"),
        ("", "text.txt"),
        ("...", "text.txt"),
        ("ä" * 300 + ".txt", "ä" * 58 + ".txt"),
    ],
)
def test_an_uploaded_name_becomes_a_valid_file_name(name: str, plain: str) -> None:
    assert safe_file_name(name) == plain
    assert Training(data=plain).data == plain


def test_a_saved_text_is_found() -> None:
    name = save_text("/somewhere/mine.txt", "Call me Ishmael. \N{WHALE}")

    assert find_text(name, [texts_folder()]).read_text("utf-8") == "Call me Ishmael. \N{WHALE}"
    with pytest.raises(InputError, match="is empty"):
        save_text("mine.txt", "")


def test_a_text_never_replaces_another_text_of_the_same_name() -> None:
    contents = ["Call me Ishmael.", "It was love.", "Call me Ishmael.", "It was love.", "It was a dark night."]
    (texts_folder() / "mine-3.txt").mkdir(parents=True)

    names = [save_text("mine.txt", content) for content in contents]

    assert names == ["mine.txt", "mine-2.txt", "mine.txt", "mine-2.txt", "mine-4.txt"]
    assert [find_text(name, [texts_folder()]).read_text() for name in names] == contents
