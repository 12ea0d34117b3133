"""The top bar: files, exports, names, undo, and shortcuts."""

from __future__ import annotations

import json

import pytest

from meshwave.designer.kit.shortcuts import SHORTCUTS
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.file_jobs import LARGEST_FILE_BYTES, file_name, read_upload
from meshwave.designer.views.numbers import (
    Numbers,
)
from meshwave.designer.views.topbar import TopBar, example_entries
from meshwave.engine.document import load_design, parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.exports import exports
from meshwave.engine.files import all_examples, example
from meshwave.engine.findings import DesignError
from meshwave.engine.imports import is_import
from meshwave.engine.predict.prediction import predict
from tests.designer.widgets import SentMessages


@pytest.fixture
def bar(session: Session) -> TopBar:
    return TopBar(session)


def test_every_example_is_in_the_menu_by_its_title() -> None:
    entries = example_entries()

    assert [entry["name"] for entry in entries] == list(all_examples())
    assert all(entry["title"] and entry["note"] for entry in entries)


def test_opening_an_example_is_one_undo_step(bar: TopBar, session: Session) -> None:
    before = session.design

    bar._handle_msg({"type": "example", "name": "04-chimera"})

    assert session.design == load_design(example("04-chimera"))
    assert not bar.unsaved
    session.undo()
    assert session.design is before
    assert bar.unsaved


def test_an_unknown_example_is_refused(bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = SentMessages(bar, monkeypatch)

    bar._handle_msg({"type": "example", "name": "../../etc/passwd"})

    assert "there is no example" in messages.messages_of_type("answered")[0]["refused"]


def test_a_saved_design_opens_unchanged(bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = SentMessages(bar, monkeypatch)
    session.edit("name", "a/b: <two> waves?", "rename")
    assert bar.unsaved

    bar._handle_msg({"type": "save"})

    (download,) = messages.messages_of_type("download")
    assert download["name"] == "a b two waves.json"
    assert parse_design(download["content"]) == session.design
    assert not bar.unsaved


def test_save_as_renames_and_saves(bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = SentMessages(bar, monkeypatch)

    bar._handle_msg({"type": "save_as", "name": "  another   name "})

    assert session.design.name == "another name"
    assert messages.messages_of_type("download")[0]["name"] == "another name.json"
    assert session.history[0] == "save as another name"


def test_a_file_with_invalid_sections_is_reported_and_changes_nothing(
    bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, before = SentMessages(bar, monkeypatch), session.design
    document = before.model_dump(mode="json")
    document["cluster"]["nodes"] = 0

    bar._handle_msg({"type": "open", "files": [{"file": "x.json", "text": json.dumps(document)}]})

    (message,) = messages.messages_of_type("trouble")
    assert message["title"] == "x.json was not opened"
    assert message["lines"][0]["where"] == "cluster.nodes"
    assert session.design is before


def test_a_draft_opens_with_its_problems(bar: TopBar, session: Session) -> None:
    document = session.design.model_dump(mode="json")
    document["model"]["layers"] = 3

    bar._handle_msg({"type": "open", "files": [{"file": "draft.json", "text": json.dumps(document)}]})

    assert session.history[0] == "open draft.json"
    assert [problem.where for problem in session.errors] == ["model.layers"]


def test_importing_a_schedule_is_one_edit_of_the_open_design(
    bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, before = SentMessages(bar, monkeypatch), session.design
    text = exports["torch-csv-comms"].to_bytes(session.prediction).decode()

    bar._handle_msg({"type": "open", "files": [{"file": "Waves.CSV", "text": text}]})

    assert session.history[0] == "import Waves.CSV"
    assert session.design.pipeline.schedule == "custom"
    assert (session.design.name, session.design.meshes) == (before.name, before.meshes)
    assert session.prediction.timeline.makespan == predict(before).timeline.makespan
    assert bar.unsaved
    assert not messages.messages_of_type("trouble")
    session.undo()
    assert session.design is before


def test_a_schedule_with_errors_is_reported_at_its_cells_and_changes_nothing(
    bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, before = SentMessages(bar, monkeypatch), session.design

    bar._handle_msg({"type": "open", "files": [{"file": "x.csv", "text": "0F0,0B0\n1F0,1X0"}]})

    (message,) = messages.messages_of_type("trouble")
    assert message["title"] == "x.csv was not opened"
    assert message["lines"] == [
        {
            "where": "row 2, column 2 (B2)",
            "message": "'1X0' is not an action; did you mean 1B0?",
            "excerpt": "    1F0,1X0\n        ^^^",
            "fixes": [],
        }
    ]
    assert session.design is before


def test_other_changes_of_an_import_are_reported(
    bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = SentMessages(bar, monkeypatch)

    bar._handle_msg({"type": "open", "files": [{"file": "x.csv", "text": "0F0,0B0\n1F0,1B0"}]})

    (message,) = messages.messages_of_type("notes")
    assert [line["message"] for line in message["lines"]] == [
        "2 meshes of one device each replaced the 4 of the design"
    ]
    assert session.design.ranks == 2


def test_a_schedule_larger_than_the_cluster_opens_as_a_new_design(
    bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, before = SentMessages(bar, monkeypatch), session.design
    text = "\n".join(f"{rank}F0,{rank}B0" for rank in range(20))

    bar._handle_msg({"type": "open", "files": [{"file": "twenty.csv", "text": text}]})

    assert (session.design.name, session.design.ranks) == ("twenty", 20)
    assert "undo restores" in messages.messages_of_type("notes")[0]["lines"][0]["message"]
    session.undo()
    assert session.design is before


def test_a_schedule_can_be_imported_into_a_draft_with_errors(bar: TopBar, session: Session) -> None:
    session.edit("model.layers", 3, "3 layers")

    bar._handle_msg({"type": "open", "files": [{"file": "x.csv", "text": "\n".join(f"{r}F0,{r}B0" for r in range(4))}]})

    assert not session.errors
    assert session.design.model.layers == 4


def test_a_file_that_is_too_large_or_not_text_is_refused() -> None:
    with pytest.raises(InputError, match="the page opens files of up to 6 MB; use the command line"):
        read_upload(" " * (LARGEST_FILE_BYTES + 1))
    with pytest.raises(InputError, match="not text"):
        read_upload(None)
    with pytest.raises(DesignError, match="not JSON"):
        read_upload("{")
    assert is_import("a.CSV")
    assert not is_import("csv.json")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Two waves", "Two waves"),
        ("../../x", "x"),
        ("a\nb", "a b"),
        ("...", "design"),
        ("", "design"),
        ("é 波", "é 波"),
    ],
)
def test_a_design_name_becomes_a_valid_file_name_on_any_system(name: str, file: str) -> None:
    assert file_name(name) == file


def test_an_empty_or_too_long_name_is_refused(bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    messages, before = SentMessages(bar, monkeypatch), session.design

    for name in ("  ", "x" * 201):
        bar._handle_msg({"type": "rename", "name": name})

    assert all(answer["refused"] for answer in messages.messages_of_type("answered"))
    assert session.design is before


def test_undo_and_redo_show_the_labels_of_the_history(bar: TopBar, session: Session) -> None:
    session.edit("training.steps", 3, "steps 3")
    assert bar.history == ["steps 3", ""]

    bar._handle_msg({"type": "undo"})
    assert bar.history == ["", "steps 3"]
    assert session.design.training.steps != 3
    bar._handle_msg({"type": "redo"})
    assert session.design.training.steps == 3


@pytest.mark.parametrize("name", exports)
def test_every_export_is_downloaded_as_a_file(
    name: str, bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = SentMessages(bar, monkeypatch)
    session.edit("pipeline", {"schedule": "1f1b", "microbatches": 4}, "1F1B, which every format expresses")

    bar._handle_msg({"type": "export", "name": name})

    (download,) = messages.messages_of_type("download")
    assert download["content"]
    assert download["name"].startswith("Two waves")
    assert download["mime"] != "application/octet-stream"


def test_parts_that_an_export_omits_are_reported(
    bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = SentMessages(bar, monkeypatch)
    session.edit("pipeline.recompute", "full", "recompute")

    for name in ("svg", "torch-csv"):
        bar._handle_msg({"type": "export", "name": name})

    (message,) = messages.messages_of_type("notes")
    assert message["title"] == "Some parts of the design are not in Two waves on four meshes.csv"
    assert "the modules must recompute all stages" in message["lines"][0]["message"]


def test_a_draft_with_errors_is_not_exported_as_the_previous_design(
    bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = SentMessages(bar, monkeypatch)
    session.edit("model.layers", 3, "3 layers")

    bar._handle_msg({"type": "export", "name": "svg"})
    bar._handle_msg({"type": "pin"})

    assert not messages.messages_of_type("download")
    for answer in messages.messages_of_type("answered"):
        assert "the design has errors: model.layers: 16 stages need" in answer["refused"]
    assert session.pinned == []
    assert not Numbers(session).can_pin


def test_a_comparison_can_be_ended_while_the_design_has_errors(bar: TopBar, session: Session) -> None:
    bar._handle_msg({"type": "pin"})
    session.edit("model.layers", 3, "3 layers")

    bar._handle_msg({"type": "pin"})

    assert session.pinned == []


def test_notices_of_the_session_are_shown_in_the_bar(bar: TopBar, session: Session) -> None:
    session.notice = "the disk is full"

    assert bar.notice == "the disk is full"


def test_launch_and_pin_shortcuts_call_their_handlers(session: Session) -> None:
    pressed: list[int] = []
    bar = TopBar(session, on_launch=lambda: pressed.append(1))

    bar._handle_msg({"type": "launch"})
    bar._handle_msg({"type": "pin"})

    assert pressed == [1]
    assert session.pinned


def test_the_keyboard_help_lists_the_keys_of_the_bar() -> None:
    shown = " ".join(shortcut.keys for shortcut in SHORTCUTS)

    assert all(keys in shown for keys in ("Ctrl+Z", "Ctrl+Shift+Z", "Ctrl+Y", "Ctrl+S", "Ctrl+O", "P", "L", "?"))
