"""The library of designs: saved designs, their history after a reload, their versions, and links that contain a
design.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from bokeh.document import Document as Bokeh
from hypothesis import given
from hypothesis import strategies as st

from meshwave.designer.pages import design_page
from meshwave.designer.pages.start_page import ExampleCards, StartPage
from meshwave.designer.state import edit_log
from meshwave.designer.state.draft import Draft
from meshwave.designer.state.edit_log import EditLog
from meshwave.designer.state.file_jobs import open_file
from meshwave.designer.state.jobs import Job, run_now
from meshwave.designer.state.library import DELETED_KEPT_S, Library
from meshwave.designer.state.studio import Studio
from meshwave.designer.views.topbar import TopBar
from meshwave.engine.document import Design, load_design
from meshwave.engine.document.links import data_url, design_link, embedded_document, read_design_link
from meshwave.engine.errors import InputError
from meshwave.engine.exports import exports
from meshwave.engine.files import example, examples
from meshwave.engine.findings import Refusal
from meshwave.engine.lessons.reading import lesson_folders
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs.launchers import launchers
from tests._findings import refusal
from tests.conftest import wait_until
from tests.designer.conftest import FIRST

GIVEN = "0123456789ab"


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "designs")


def tab(studio: Studio, draft: str = GIVEN) -> Draft:
    """Open a tab whose earlier page is no longer visible."""
    opened = Draft(studio, draft, lambda: False)
    opened.claim()
    return opened


# ---- the history ----


@given(st.lists(st.sampled_from(["waves", "microbatches", "undo", "redo", "reload"]), max_size=14))
def test_undo_and_redo_survive_a_reload(moves: list[str]) -> None:
    """A tab that is reloaded at any time behaves like a tab that is never reloaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launchers["local"], "warm", lambda launcher: None)
        studio = Studio(FIRST)
        draft, kept = tab(studio, new := os.urandom(6).hex()), Draft(studio, "", lambda: False)
        for number, move in enumerate(moves):
            if move == "reload":
                draft = tab(studio, new)
            for session in (draft.session, kept.session):
                if move in ("undo", "redo"):
                    getattr(session, move)()
                elif move != "reload":
                    session.edit(f"pipeline.{move}", 1 + number % 3, f"{move} {number}")
        again = tab(studio, new)
        assert again.session.design == kept.session.design
        assert again.session.history == kept.session.history
        while again.session.history[0]:
            for session in (again.session, kept.session):
                session.undo()
            assert again.session.design == kept.session.design
        studio.close()


def test_a_line_of_the_log_that_was_cut_short_loses_no_other_line(studio: Studio) -> None:
    draft = tab(studio)
    draft.session.edit("name", "one", "rename")
    path = studio.library.path(GIVEN, "history.jsonl")
    path.write_bytes(path.read_bytes() + b'{"edit": "half')

    again = tab(studio)

    assert again.session.design.name == "one"
    assert again.session.history == ("rename", "")
    again.session.edit("name", "two", "rename again")
    again.edit_log().add_version("kept", again.session.design)
    last = tab(studio)
    assert last.session.history == ("rename again", "")
    assert [version.name for version in last.edit_log().versions()] == ["kept"]
    last.session.undo()
    assert last.session.design.name == "one"


def test_a_log_that_is_too_large_is_restarted_and_keeps_the_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EditLog(tmp_path / "log")
    log.add_edit(FIRST, renamed := FIRST.model_copy(update={"name": "other"}), "rename", opens=False)
    log.add_version("before", FIRST)
    monkeypatch.setattr(edit_log, "LARGEST_LOG_BYTES", 100)

    log.add_edit(renamed, FIRST, "rename", opens=False)

    assert [step.label for step in log.replay().past] == ["rename"]
    assert [(version.name, version.design) for version in log.versions()] == [("before", FIRST)]


@pytest.mark.parametrize(
    ("failing", "error"),
    [("json.dumps", KeyboardInterrupt()), ("pathlib.Path.read_bytes", OSError(5, "Input/output error"))],
)
def test_versions_are_kept_if_clearing_a_large_log_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, error: BaseException
) -> None:
    log = EditLog(tmp_path / "log")
    log.add_version("before", FIRST)

    def fail(*given: object, **options: object) -> bytes:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(edit_log, "LARGEST_LOG_BYTES", 100)
        patch.setattr(failing, fail)
        with pytest.raises((KeyboardInterrupt, Refusal)):
            log.add_edit(FIRST, FIRST.model_copy(update={"name": "other"}), "rename", opens=False)

    assert [version.name for version in log.versions()] == ["before"]


def test_large_versions_do_not_clear_the_undo_history_at_each_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edit_log, "LARGEST_LOG_BYTES", 5_000)
    log = EditLog(tmp_path / "log")
    for name in "abcd":
        log.add_version(name, FIRST)
    one, two = (FIRST.model_copy(update={"name": name}) for name in ("one", "two"))

    log.add_edit(FIRST, one, "first", opens=False)
    log.add_edit(one, two, "second", opens=False)

    assert [step.label for step in log.replay().past] == ["first", "second"]
    assert [version.name for version in log.versions()] == ["d", "c", "b", "a"]


def test_versions_that_two_servers_add_at_the_same_time_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edit_log, "LARGEST_LOG_BYTES", 100)
    log, write = EditLog(tmp_path / "log"), edit_log.write_private
    log.add_version("before", FIRST)
    added = Event()

    def add() -> None:
        EditLog(tmp_path / "log").add_version("meanwhile", FIRST)
        added.set()

    with ThreadPoolExecutor(1) as elsewhere:

        def write_later(path: Path, text: str) -> None:
            elsewhere.submit(add)
            added.wait(0.3)
            write(path, text)

        monkeypatch.setattr(edit_log, "write_private", write_later)
        log.add_edit(FIRST, FIRST.model_copy(update={"name": "other"}), "rename", opens=False)

    assert {version.name for version in log.versions()} == {"before", "meanwhile"}


@pytest.mark.parametrize("damage", [{"content": {"format": "meshwave/99"}}, {"content": None}, {"at": None}])
def test_a_version_that_cannot_be_read_hides_no_other_and_stays_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: dict[str, object]
) -> None:
    log, path = EditLog(tmp_path / "log"), tmp_path / "log"
    log.add_version("sound", FIRST)
    line = {"version": "damaged", "at": 1.0, "content": {}} | damage
    path.write_text(path.read_text() + json.dumps(line) + "\n" + '{"version": "empty"}\n' + "[" * 100_000)

    assert [version.name for version in log.versions()] == ["sound"]

    monkeypatch.setattr(edit_log, "LARGEST_LOG_BYTES", 100)
    log.add_edit(FIRST, FIRST.model_copy(update={"name": "other"}), "rename", opens=False)
    assert json.dumps(line, separators=(",", ":")) in path.read_text().splitlines()


def test_opening_another_design_leaves_the_open_one_in_the_library(studio: Studio) -> None:
    moved: list[str] = []
    draft = Draft(studio, GIVEN, lambda: True, on_move=moved.append)
    draft.claim()
    draft.session.edit("name", "mine", "rename")

    draft.session.open(load_design(example("04-chimera")), "open the example")

    assert studio.read_draft(GIVEN).name == "mine"
    assert moved == [f"draft={draft.name}"]
    assert studio.read_draft(draft.name).name.startswith("Chimera")
    draft.session.undo()
    assert draft.name == GIVEN
    draft.session.edit("name", "mine again", "rename")
    assert studio.read_draft(GIVEN).name == "mine again"


def test_edits_of_another_server_are_kept_as_a_version(studio: Studio) -> None:
    draft, other = tab(studio), Library(studio.library.folder)
    draft.session.edit("name", "one", "rename")
    other.save(GIVEN, elsewhere := FIRST.model_copy(update={"name": "elsewhere"}))

    draft.session.edit("name", "two", "rename")

    [version] = draft.edit_log().versions()
    assert version.design == elsewhere
    assert draft.session.notice.endswith(f"those edits are kept as the version {version.name}.")
    assert studio.library.read(GIVEN).name == "two"
    draft.session.edit("name", "three", "rename")
    assert draft.session.notice == ""
    again = tab(studio)
    again.session.edit("name", "four", "rename")
    assert len(again.edit_log().versions()) == 1

    other.save(GIVEN, FIRST.model_copy(update={"name": "elsewhere again"}))  # in the same second, if the test is fast
    again.session.edit("name", "five", "rename")
    assert {each.design.name for each in again.edit_log().versions()} == {"elsewhere", "elsewhere again"}


def test_undo_after_a_reload_works_again_after_edits_of_another_server(studio: Studio) -> None:
    draft, other = tab(studio), Library(studio.library.folder)
    draft.session.edit("name", "one", "rename")
    draft.session.edit("name", "two", "rename")
    elsewhere = studio.library.read(GIVEN).model_copy(
        update={"training": FIRST.training.model_copy(update={"seed": 7})}
    )
    other.log(GIVEN).add_edit(studio.library.read(GIVEN), elsewhere, "seed", opens=False)
    other.save(GIVEN, elsewhere)

    draft.session.edit("name", "three", "first")
    draft.session.edit("name", "four", "second")

    again = tab(studio)
    assert again.session.design.name == "four"
    assert again.session.history == ("second", "")
    again.session.undo()
    assert (again.session.design.name, again.session.history) == ("three", ("first", "second"))


def test_undo_of_an_edit_that_the_cleared_history_lacks_is_kept_after_a_reload(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = tab(studio)
    draft.session.edit("pipeline.microbatches", 3, "microbatches")
    with monkeypatch.context() as patch:
        patch.setattr(edit_log, "LARGEST_LOG_BYTES", 100)
        draft.session.edit("name", "one", "rename")
    draft.session.undo()
    draft.session.undo()
    draft.session.edit("name", "two", "rename again")

    again = tab(studio)

    assert again.session.history == ("rename again", "")


def test_an_open_design_that_another_server_has_made_unreadable_is_not_overwritten(studio: Studio) -> None:
    draft = tab(studio)
    draft.session.edit("name", "one", "rename")
    path = studio.library.path(GIVEN, "design.json")
    path.write_text("newer")

    draft.session.edit("name", "two", "rename")

    assert draft.session.notice.startswith("The latest edits are not saved;")
    assert path.read_text() == "newer"


def test_a_full_disk_makes_no_version_of_the_own_edits(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    Library(studio.library.folder).save(GIVEN, FIRST)  # before the server was started
    draft = tab(studio)
    with monkeypatch.context() as disk:
        disk.setattr("meshwave.engine.files.write_all", lambda descriptor, content: os.write(-1, content))
        draft.session.edit("name", "one", "rename")

    draft.session.edit("name", "two", "rename")

    assert (draft.session.notice, draft.edit_log().versions()) == ("", [])


# ---- the library ----


def test_a_card_has_the_schedule_the_step_time_and_a_picture(studio: Studio) -> None:
    draft = tab(studio)
    draft.session.edit("pipeline.waves", 1, "fewer waves")
    studio.save_cards()

    [card] = studio.library.cards()

    assert (card["id"], card["name"], card["schedule"]) == (GIVEN, FIRST.name, "Hanayo")
    assert card["step"].endswith("units")
    assert card["picture"]["ranks"] == 4


def test_designs_are_renamed_duplicated_and_tagged(library: Library) -> None:
    design = library.add(FIRST)
    library.rename(design, "mine")
    library.tag(design, ["slides", " for  paper ", "", "slides"])
    copy = library.duplicate(design)

    cards = {card["id"]: card for card in library.cards()}

    assert library.read(design).name == cards[design]["name"] == "mine"
    assert cards[design]["tags"] == cards[copy]["tags"] == ["slides", "for paper"]
    assert library.read(copy).name == cards[copy]["name"] == "mine (copy)"


def test_a_deleted_design_can_be_restored_for_thirty_days(tmp_path: Path, library: Library) -> None:
    kept, gone = library.add(FIRST), library.add(FIRST)
    for design in (kept, gone):
        library.delete(design)
    assert library.cards() == []
    long_ago = time.time() - DELETED_KEPT_S - 60
    os.utime(tmp_path / "designs" / f"{gone}.deleted", (long_ago, long_ago))

    library = Library(tmp_path / "designs")

    library.restore(kept)
    assert library.read(kept) == FIRST
    assert refusal(lambda: library.restore(gone)).code == "deleted_for_good"


def test_a_server_that_runs_for_months_discards_designs_that_were_deleted_long_ago(library: Library) -> None:
    old, new = library.add(FIRST), library.add(FIRST)
    library.delete(old)
    then = time.time() - DELETED_KEPT_S - 1
    os.utime(library.folder / f"{old}.deleted", (then, then))

    library.delete(new)

    assert [path.name for path in library.folder.glob("*.deleted")] == [f"{new}.deleted"]


def test_a_design_that_was_saved_again_after_it_was_deleted_can_be_deleted_again(library: Library) -> None:
    design = library.add(FIRST)
    library.delete(design)
    library.save(design, again := FIRST.model_copy(update={"name": "again"}))
    library.delete(design)
    assert library.cards() == []
    library.restore(design)
    assert library.read(design) == again


@pytest.mark.parametrize("shows_run", [False, True])
def test_an_edit_in_a_tab_restores_a_deleted_design_with_its_versions(studio: Studio, shows_run: bool) -> None:
    draft = tab(studio)
    draft.session.edit("name", "one", "rename")
    draft.edit_log().add_version("kept", FIRST)
    studio.library.delete(GIVEN)

    if shows_run:
        draft.save_shown_run("0001")
    draft.session.edit("name", "two", "rename again")
    studio.library.restore(GIVEN)

    assert studio.library.read(GIVEN).name == "two"
    assert tab(studio).run == ("0001" if shows_run else "")
    assert [version.name for version in draft.edit_log().versions()] == ["kept"]
    assert [step.label for step in draft.edit_log().replay().past] == ["rename", "rename again"]


def test_versions_and_comments_that_a_tab_adds_after_a_deletion_join_the_earlier_ones(studio: Studio) -> None:
    draft = tab(studio)
    draft.session.edit("name", "one", "rename")
    draft.edit_log().add_version("kept", FIRST)
    comments = studio.library.path(GIVEN, "comments.json")
    comments.write_text('["kept"]')
    studio.library.delete(GIVEN)

    draft.save_shown_run("0001")
    studio.library.log(GIVEN).add_version("later", FIRST)
    comments.write_text('["later"]')
    assert not studio.library.has(GIVEN)
    draft.session.edit("name", "two", "rename again")

    assert {version.name for version in draft.edit_log().versions()} == {"kept", "later"}
    assert json.loads(comments.read_text()) == ["kept", "later"]


def test_deleting_a_design_keeps_an_earlier_deleted_copy(library: Library) -> None:
    design = library.add(FIRST)
    library.delete(design)
    library.path(design, "").mkdir()
    library.path(design, "design.json").write_text(FIRST.to_json())

    library.delete(design)

    assert len(list(library.folder.glob("*.deleted/design.json"))) == 2


def test_drafts_of_earlier_versions_are_moved_to_the_library(tmp_path: Path) -> None:
    (tmp_path / "drafts").mkdir()
    (tmp_path / "drafts" / f"{GIVEN}.json").write_text(FIRST.to_json())

    library = Library(tmp_path / "designs")

    assert library.read(GIVEN) == FIRST
    assert [card["name"] for card in library.cards()] == [FIRST.name]


def test_a_library_whose_folder_was_removed_is_empty_and_saves_again(library: Library) -> None:
    library.add(FIRST)
    shutil.rmtree(library.folder)
    assert library.cards() == []

    design = library.add(FIRST)

    assert [card["id"] for card in library.cards()] == [design]
    assert library.folder.stat().st_mode & 0o077 == 0


def test_a_new_design_that_cannot_be_saved_leaves_no_folder(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = library.add(FIRST)

    def full(descriptor: int, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("meshwave.engine.files.write_all", full)
    for save in (lambda: library.add(FIRST), lambda: library.save(kept, FIRST)):
        with pytest.raises(InputError, match="No space left"):
            save()

    assert [path.name for path in library.folder.iterdir()] == [kept]
    assert library.read(kept) == FIRST


def test_a_damaged_design_does_not_hide_the_others(library: Library) -> None:
    sound, damaged = library.add(FIRST), library.add(FIRST)
    library.path(damaged, "design.json").write_text("{")
    library.path(sound, "card.json").write_text("[]")

    assert [card["id"] for card in library.cards()] == [sound]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"\x00\xff\x80",
        b'{"name": "\xe4"}',
        b"[" * 100_000,
        FIRST.to_json().encode().replace(b"{", b'{"new": 1,', 1),
    ],
    ids=["empty", "null", "binary", "latin-1", "nested", "a newer version's"],
)
def test_a_design_that_cannot_be_read_stays_and_a_new_one_is_opened_with_the_reason(
    studio: Studio, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    path = studio.library.path(studio.library.add(FIRST), "design.json")
    path.write_bytes(content)
    monkeypatch.setattr(design_page, "page_argument", lambda name: path.parent.name if name == "draft" else "")

    async def page() -> Draft:
        return design_page._open_draft(studio, Bokeh())

    with ThreadPoolExecutor(1) as elsewhere:  # playwright's loop, if a test before used it, runs in this thread
        opened = elsewhere.submit(lambda: asyncio.run(page())).result()
    opened.claim()
    assert f"{path} cannot be read and stays unchanged: " in opened.session.notice
    opened.session.edit("name", "mine", "rename")

    assert path.read_bytes() == content
    assert studio.read_draft(opened.name).name == "mine"


def test_a_lesson_is_left_although_the_design_from_before_cannot_be_read(studio: Studio) -> None:
    draft = tab(studio)
    draft.save_shown_lesson(("bubbles", FIRST.model_copy(update={"name": "mine"})))
    before = studio.library.path(studio.library.path(GIVEN, "lesson").read_text().split()[1], "design.json")
    before.write_text("{")

    again = tab(studio)
    assert again.lesson == ("bubbles", FIRST)
    again.save_shown_lesson(None)

    assert before.read_text() == "{"


@pytest.mark.parametrize("design", ["", "..", "../../etc", "0123456789AB", "0" * 13])
def test_an_invalid_id_reaches_no_file(library: Library, design: str) -> None:
    for act in (library.read, library.delete, library.restore, library.duplicate):
        with pytest.raises(InputError):
            act(design)


def test_a_design_that_another_tab_shows_is_not_deleted(studio: Studio) -> None:
    draft = Draft(studio, GIVEN, lambda: True)
    draft.claim()
    draft.save()
    page = StartPage(studio, run_now)
    sent: list[dict[str, str]] = []
    page._send_msg = sent.append  # type: ignore[method-assign]

    page._handle_msg({"type": "delete", "design": GIVEN})
    page.stop_jobs()

    assert "open in another tab" in sent[-1]["refused"]
    assert studio.library.has(GIVEN)


def test_examples_have_their_names_before_their_pictures(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwave.designer.pages.start_page._examples.cards", {})
    page = StartPage(studio, lambda call: None)
    page.stop_jobs()

    names = {entry["id"]: entry["name"] for entry in page.examples.data}
    assert names["04-chimera"] == "Chimera: two replicas on four meshes"


def test_the_pictures_of_examples_are_computed_by_one_job_for_all_pages(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwave.designer.pages.start_page._examples", ExampleCards())
    monkeypatch.setattr("meshwave.designer.pages.start_page.examples", lambda: ["01-first-wave", "02-two-waves"])
    jobs: list[Job] = []
    monkeypatch.setattr("meshwave.designer.pages.start_page.Job", lambda *about: jobs.append(Job(*about)) or jobs[-1])
    closed, first, second = (StartPage(studio, run_now) for _ in range(3))
    closed.stop_jobs()

    assert len(jobs) == 1
    for page in (first, second):
        assert wait_until(lambda page=page: all("picture" in card for card in page.examples.data))
    late = StartPage(studio, run_now)
    assert all("picture" in card for card in late.examples.data)


# ---- what was opened recently ----


def test_recent_entries_are_the_latest_first_and_only_those_that_still_exist(studio: Studio) -> None:
    deleted, kept = studio.library.add(FIRST), studio.library.add(FIRST.model_copy(update={"name": "kept"}))
    for kind, name in (
        ("draft", deleted),
        ("draft", kept),
        ("example", "04-chimera"),
        ("run", "gone"),
        ("lesson", next(iter(lesson_folders()))),
        ("draft", kept),
    ):
        studio.library.note_opened(kind, name)
    studio.library.delete(deleted)

    page = StartPage(studio, run_now)
    page.stop_jobs()

    recent = page.recent.data
    assert [entry["kind"] for entry in recent] == ["draft", "lesson", "example"]
    assert recent[0]["title"] == "kept"
    assert recent[2]["title"] == "Chimera: two replicas on four meshes"


def test_a_damaged_list_of_recent_entries_is_empty(library: Library) -> None:
    (library.folder / "recent.json").write_text('[{"kind": 1}]')

    assert library.recent() == []


# ---- links ----


@pytest.mark.parametrize("name", examples())
def test_a_link_contains_a_design(name: str) -> None:
    design = load_design(example(name))
    link = design_link(design)

    assert read_design_link(f"http://127.0.0.1:5006/start#{link}") == design
    assert len(link) < 2500


@pytest.mark.parametrize("link", ["", "#design=", "#design=!", "#design=AAAA", f"#design={'A' * 70_000}"])
def test_a_link_without_a_design_is_refused(link: str) -> None:
    with pytest.raises(InputError):
        read_design_link(link)


def test_the_unpacked_size_of_a_link_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = Design.model_construct(name="x" * 8_000_000)
    monkeypatch.setattr(Design, "model_dump_json", lambda self: f'{{"name": "{self.name}"}}')

    with pytest.raises(InputError, match="no design"):
        read_design_link(design_link(huge))


# ---- versions, and exports that carry a design ----


def test_a_named_version_is_restored_as_one_undoable_step(studio: Studio) -> None:
    draft = tab(studio)
    bar = TopBar(draft.session, edit_log=draft.edit_log)
    bar._handle_msg({"type": "add_version", "name": "for the paper"})
    draft.session.edit("pipeline.waves", 1, "fewer waves")

    bar._handle_msg({"type": "list_versions"})
    assert [(version["name"], version["changes"]) for version in bar.versions] == [("for the paper", ["waves: 1 -> 2"])]
    bar._handle_msg({"type": "restore_version", "name": "for the paper"})

    assert draft.session.design == FIRST
    assert tab(studio).session.history[0] == "restore version for the paper"
    bar._handle_msg({"type": "forget_version", "name": "for the paper"})
    assert bar.versions == []


@pytest.mark.parametrize("form", ["html", "png"])
def test_an_exported_page_or_picture_opens_as_its_design(form: str) -> None:
    exported = exports[form].to_bytes(predict(FIRST))

    opened = open_file(f"step.{form}", exported.decode("utf-8", "replace"), FIRST, 100)

    assert opened.design == FIRST
    assert not opened.is_import


@pytest.mark.parametrize("name", ["a", "ab", "abc"])  # three lengths of the padding
@pytest.mark.parametrize("checksum", ["", "L", "Lb", "Lb5"])
def test_a_checksum_after_a_design_that_looks_like_base64_is_ignored(name: str, checksum: str) -> None:
    design = FIRST.model_copy(update={"name": name})

    assert embedded_document(data_url(design) + checksum) == design.to_json()


@pytest.mark.parametrize(
    "text", ["<html></html>", "data:application/json;base64,A", "data:application/json;base64,/w=="]
)
def test_a_page_without_a_design_is_refused(text: str) -> None:
    opened = open_file("page.html", text, FIRST, 100)

    assert opened.design is None
    assert opened.problems
