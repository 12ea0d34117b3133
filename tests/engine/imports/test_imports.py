"""Import formats: every format is found by the names and the content of its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwave.engine.document import load_design
from meshwave.engine.exports import exports
from meshwave.engine.files import example
from meshwave.engine.findings import Refusal
from meshwave.engine.imports import Import, find_format, imports, is_import, load_import
from meshwave.engine.predict.prediction import predict

IN_BOTH = [name for name in imports if name in exports and exports[name].suffix.endswith(imports[name].suffixes)]
"""Formats whose exported files can be imported as they are."""


@pytest.mark.parametrize("name", imports)
def test_every_import_format_is_described(name: str) -> None:
    member = imports[name]

    assert issubclass(member, Import)
    assert member.title and member.note
    assert all(suffix.startswith(".") and suffix == suffix.lower() for suffix in member.suffixes)
    assert is_import(f"a{member.suffixes[0].upper()}", '{"model_type": ""}')


@pytest.mark.parametrize("name", IN_BOTH)
def test_exported_files_are_recognized_and_imported(name: str, tmp_path: Path) -> None:
    design = load_design(example("03-gpt-on-two-cores"))
    path = tmp_path / f"a{exports[name].suffix}"
    path.write_bytes(exports[name].to_bytes(predict(design)))

    found = load_import(path)

    assert imports[name].recognizes(path.read_text())
    assert found.design.ranks == design.ranks
    assert found.design == load_import(path, form=name).design


@pytest.fixture
def second_csv_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register another format whose files have the same suffix as torch's."""

    class Numbers(imports["torch-csv"]):  # type: ignore[misc]
        @staticmethod
        def recognizes(text: str) -> bool:
            return text.startswith("1")

    monkeypatch.setitem(imports._load(), "numbers", Numbers)


@pytest.mark.parametrize(("text", "form"), [("0F0,0B0", "torch-csv"), ("1,2", "numbers")])
def test_formats_with_one_suffix_are_distinguished_by_content(second_csv_format: None, text: str, form: str) -> None:
    assert find_format("a.csv", text) == form


@pytest.mark.parametrize(
    ("file", "text", "code"),
    [("a.csv", "x", "unknown_import"), ("a.csv", "1F0", "ambiguous_import"), ("a.xls", "", "unknown_import")],
)
def test_an_ambiguous_format_must_be_named(second_csv_format: None, file: str, text: str, code: str) -> None:
    with pytest.raises(Refusal) as refused:
        find_format(file, text)

    assert refused.value.problem.code == code
    assert "--from" in str(refused.value)
