"""The designer as a process: its folder, the drafts of its tabs, and its start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwave.designer.main import main
from meshwave.designer.pages.design_page import warm_up
from meshwave.designer.pages.design_widgets import Widgets
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.draft import Draft
from meshwave.designer.state.studio import Studio
from meshwave.designer.views import timeline
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.runs.launchers import launchers

GIVEN = "0123456789ab"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    monkeypatch.setattr(launchers["local"], "warm", lambda launcher: None)  # nothing is launched here
    return tmp_path / "designs"


@pytest.fixture
def studio(folder: Path) -> Iterator[Studio]:
    studio = Studio(load_design(example("02-two-waves")))
    yield studio
    studio.close()


def rename(draft: Draft, name: str) -> None:
    draft.session.edit("name", name, "rename")


def test_the_warm_up_page_leaves_no_listeners(studio: Studio) -> None:
    warm_up(studio, load_design(example("01-first-wave")))

    assert studio.calibration._listeners == []


def test_a_reloaded_tab_keeps_its_draft(studio: Studio) -> None:
    looked_at = True
    first = Draft(studio, GIVEN, lambda: looked_at)
    assert first.claim() == GIVEN
    rename(first, "kept")
    again = Draft(studio, GIVEN, lambda: True)  # asked for while the old page still stands

    looked_at = False

    assert again.claim() == GIVEN
    assert again.session.design.name == "kept"
    first.release()
    assert Draft(studio, GIVEN, lambda: True).claim() != GIVEN  # the second tab still has it


def test_a_duplicated_tab_gets_a_draft_of_its_own(studio: Studio) -> None:
    first = Draft(studio, GIVEN, lambda: True)
    first.claim()
    rename(first, "one")
    second = Draft(studio, GIVEN, lambda: True)

    assert second.claim() != GIVEN
    rename(second, "two")

    assert studio.read_draft(GIVEN).name == "one"
    assert studio.read_draft(second.name).name == "two"


def test_a_duplicate_is_saved_even_if_it_was_never_edited(studio: Studio) -> None:
    first = Draft(studio, GIVEN, lambda: True)
    first.claim()
    rename(first, "one")

    second = Draft(studio, GIVEN, lambda: True)

    assert studio.read_draft(second.claim()).name == "one"


def test_the_draft_of_a_closed_tab_can_be_opened_again(studio: Studio) -> None:
    first = Draft(studio, GIVEN, lambda: True)
    first.claim()
    first.release()

    assert Draft(studio, GIVEN, lambda: True).claim() == GIVEN


@pytest.mark.parametrize("given", ["", "../../etc/pwd", "0123456789AB", "0" * 13])
def test_an_invalid_draft_name_opens_a_new_draft(studio: Studio, given: str) -> None:
    draft = Draft(studio, given, lambda: True)

    assert len(draft.claim()) == 12
    assert draft.name != given
    assert draft.session.design == load_design(example("02-two-waves"))


def test_a_full_disk_refuses_no_edit_and_shows_a_notice(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Draft(studio, GIVEN, lambda: True)

    def full(descriptor: int, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("meshwave.engine.files.write_all", full)
        rename(draft, "unkept")

    assert draft.session.design.name == "unkept"
    assert draft.session.notice.startswith(
        "The latest edits are not saved; reloading the page would discard them: cannot write "
    )
    rename(draft, "kept")
    assert draft.session.notice == ""
    assert studio.read_draft(GIVEN).name == "kept"


def test_an_unchanged_timeline_is_not_packed_again(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(load_design(example("02-two-waves")))
    widgets = Widgets(session, studio)
    monkeypatch.setattr(timeline, "pack_layers", lambda *given: pytest.fail("it is drawn already"))

    session.edit("model.layers", 3, "fewer layers than stages")

    assert session.is_stale
    assert "16 stages need at least 16 layers" in widgets.timeline.stale
    session.undo()
    assert widgets.timeline.stale == ""
    widgets.stop_jobs()


# ---- starting it ----


def test_an_unusable_home_folder_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESHWAVE_HOME", "")
        status = main(["serve", "--no-browser", "--home", str(tmp_path / "file")])

    out, err = capsys.readouterr()
    assert (status, out) == (1, "")
    assert err.startswith("cannot save designs in ")
    assert "MESHWAVE_HOME" in err


def test_an_invalid_design_or_option_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--no-browser", str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err.startswith("cannot read ")
    with pytest.raises(SystemExit):
        main(["serve", "--prt", "1"])


def test_serve_help_lists_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])

    assert {"--port", "--home", "--no-browser"} <= set(
        capsys.readouterr().out.replace("]", " ").replace("[", " ").split()
    )
