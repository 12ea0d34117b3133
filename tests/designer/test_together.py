"""Tabs that have one design open together: links, permissions, and the state after a reload."""

from __future__ import annotations

from errno import ENOSPC
from typing import Any

import pytest

from meshwave.designer.pages.start_page import StartPage
from meshwave.designer.state.draft import Draft
from meshwave.designer.state.jobs import run_now
from meshwave.designer.state.shared_design import Block
from meshwave.designer.state.studio import Studio
from meshwave.designer.views.flags import block_flags, mesh_flags
from meshwave.designer.views.together import Together
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.findings import Refusal
from meshwave.engine.people.people_file import OWNER
from meshwave.engine.program.action import Action, Op
from tests.designer.conftest import FIRST


class Tab:
    """A tab, and the messages of its widget to the page."""

    def __init__(self, studio: Studio, *, draft: str = "", key: str = "") -> None:
        self.is_shown = True
        self.draft = Draft(studio, draft, lambda: self.is_shown, key=key)
        self.draft.claim()
        self.session = self.draft.session
        self.widget = Together(self.session, self.draft)
        self.refused = ""
        self.widget._send_msg = self._receive_message  # type: ignore[method-assign]

    def _receive_message(self, message: dict[str, Any]) -> None:
        self.refused = message["refused"] or ""

    def send(self, kind: str, **gesture: Any) -> None:
        self.widget._handle_msg({"type": kind, **gesture})

    @property
    def names(self) -> list[str]:
        return [person["name"] for person in self.widget.people]


@pytest.fixture
def ada_tab(studio: Studio) -> Tab:
    tab = Tab(studio)
    tab.session.edit("pipeline.microbatches", 8, "8 microbatches")
    tab.send("share")
    tab.send("rename", name="Ada")
    return tab


@pytest.fixture
def ben(studio: Studio, ada_tab: Tab) -> Tab:
    tab = Tab(studio, key=ada_tab.widget.links["edit"])
    tab.send("enter", member="", name="Ben")
    return tab


def test_a_design_is_shared_while_it_is_open(ada_tab: Tab, ben: Tab) -> None:
    assert ben.session.design.pipeline.microbatches == 8
    ben.session.edit("training.steps", 7, "7 steps")
    assert ada_tab.session.design.training.steps == 7
    assert ada_tab.names == ben.names == ["Ada", "Ben"]
    assert ada_tab.session.history == ("8 microbatches", "")  # the edit from before it was shared
    assert (ada_tab.draft.query, ben.draft.query) == (f"draft={ada_tab.draft.name}", f"shared={ben.draft.key}")


def test_a_reload_returns_as_the_same_person(studio: Studio, ada_tab: Tab, ben: Tab) -> None:
    ben.session.edit("training.steps", 7, "7 steps")
    ben.is_shown = False
    ada_tab.session.follow()
    assert ada_tab.names == ["Ada"]
    again = Tab(studio, key=ben.draft.key)
    again.send("enter", member=ben.widget.member, name="Ben")
    assert (again.session.history, again.names) == (("7 steps", ""), ["Ada", "Ben"])
    twin = Tab(studio, key=ben.draft.key)
    twin.send("enter", member=again.widget.member, name="Ben")
    assert (twin.session.history, twin.names) == (("", ""), ["Ada", "Ben", "Ben 2"])


def test_a_restart_keeps_the_link_and_the_own_undo(
    studio: Studio, ada_tab: Tab, ben: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    ben.session.edit("training.steps", 7, "7 steps")
    restarted = Studio(FIRST)
    try:
        owner, other = Tab(restarted, draft=ada_tab.draft.name), Tab(restarted, key=ben.draft.key)
        owner.send("enter", member=ada_tab.widget.member, name="Ada")
        other.send("enter", member=ben.widget.member, name="Ben")
        assert owner.session.history == ("8 microbatches", "")
        other.session.undo()
        assert owner.session.design.training.steps == FIRST.training.steps
        assert owner.session.design.pipeline.microbatches == 8
    finally:
        restarted.close()


def test_the_read_only_link_follows_and_changes_nothing(studio: Studio, ada_tab: Tab) -> None:
    viewer = Tab(studio, key=ada_tab.widget.links["view"])
    assert viewer.widget.read_only
    assert viewer.widget.links == {}
    ada_tab.session.edit("training.steps", 7, "7 steps")
    assert viewer.session.design.training.steps == 7
    with pytest.raises(Refusal, match="this page is read-only"):
        viewer.session.edit("training.steps", 8, "8 steps")
    for gesture in ("share", "end_sharing"):
        viewer.send(gesture)
        assert viewer.refused.startswith("this page is read-only")
    viewer.send("enter", member=ada_tab.widget.member, name="Ada")  # not even as somebody else
    assert viewer.session.read_only
    with pytest.raises(Refusal, match="this page is read-only"):
        viewer.session.undo()


def test_a_replaced_value_is_offered_back(ada_tab: Tab, ben: Tab) -> None:
    ben.session.edit("pipeline.microbatches", 16, "16 microbatches")
    (offer,) = ada_tab.widget.replaced
    assert offer["text"] == "Ben changed pipeline.microbatches from 8 to 16"
    ada_tab.send("restore", number=offer["number"])
    assert (ben.session.design.pipeline.microbatches, ada_tab.widget.replaced) == (8, [])
    ada_tab.send("restore", number=offer["number"])
    assert ada_tab.refused
    (offer,) = ben.widget.replaced
    ben.send("dismiss", number=offer["number"])
    assert ben.widget.replaced == []


def test_an_edit_of_what_the_page_has_not_drawn_yet_is_refused(ada_tab: Tab, ben: Tab) -> None:
    ben.send("drawn", revision=ben.widget.revision)
    meshes = FIRST.model_dump(mode="json")["meshes"]
    ada_tab.session.edit("meshes", meshes[:-1], "delete mesh D")
    with pytest.raises(Refusal, match="Ada changed the meshes"):
        ben.session.edit("pipeline.microbatches", 4, "4 microbatches")
    ben.send("drawn", revision=ben.widget.revision)
    ben.session.edit("pipeline.microbatches", 4, "4 microbatches")


def test_ended_links_lead_to_nothing(studio: Studio, ada_tab: Tab, ben: Tab) -> None:
    key = ben.draft.key
    ben.send("end_sharing")
    assert ben.refused.startswith("only the owner")
    ada_tab.send("end_sharing")
    assert (ada_tab.widget.links, ada_tab.widget.people) == ({}, [])
    assert ben.session.read_only
    assert ben.session.notice.startswith("This design is no longer shared")
    with pytest.raises(Refusal, match="this link is not valid"):
        Tab(studio, key=key)
    ada_tab.session.undo()
    assert ada_tab.session.design == FIRST
    assert studio.library.read(ada_tab.draft.name) == FIRST


def test_opening_another_design_leaves_the_others(studio: Studio, ada_tab: Tab, ben: Tab) -> None:
    ben.session.open(load_design(example("04-chimera")), "open the example")
    assert ada_tab.names == ["Ada"]
    assert (ben.draft.query, ben.draft.is_own) == (f"draft={ben.draft.name}", True)
    assert ben.session.history == ("", "")
    assert studio.library.read(ada_tab.draft.name).name == FIRST.name


def test_a_design_that_somebody_has_open_is_not_deleted(studio: Studio, ada_tab: Tab, ben: Tab) -> None:
    ada_tab.session.close()
    ada_tab.draft.release()
    start = StartPage(studio, run_now)
    refused = []
    start._send_msg = lambda message: refused.append(message["refused"])  # type: ignore[method-assign]
    start._handle_msg({"type": "delete", "design": ada_tab.draft.name})
    assert refused == ["this design is open in another tab; close that tab first"]
    ben.session.close()
    start._handle_msg({"type": "delete", "design": ada_tab.draft.name})
    assert refused[1] is None
    start.stop_jobs()
    with pytest.raises(Refusal, match="this link is not valid"):
        Tab(studio, key=ben.draft.key)
    reloaded = Tab(studio, draft=ada_tab.draft.name)
    assert (reloaded.session.design, reloaded.widget.links, reloaded.names) == (FIRST, {}, [])


def test_a_design_that_was_deleted_from_the_disk_is_not_shared(studio: Studio, ada_tab: Tab) -> None:
    ada_tab.session.close()
    ada_tab.draft.release()
    studio.library.delete(ada_tab.draft.name)
    assert Tab(studio, draft=ada_tab.draft.name).draft.link is None


def test_an_end_of_sharing_that_cannot_be_saved_is_refused(ada_tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr("meshwave.designer.state.sharing.write_private", fail)
    ada_tab.send("end_sharing")
    assert ada_tab.refused == "the list of shared designs cannot be saved: No space left on device"
    assert ada_tab.widget.links


def test_names_that_the_server_knows_cannot_be_changed(studio: Studio, ada_tab: Tab) -> None:
    studio.user = OWNER._replace(name="Teacher")
    teacher = Tab(studio, key=ada_tab.widget.links["edit"])
    teacher.send("enter", member="", name="Ada's friend")
    assert not teacher.widget.can_rename
    teacher.widget.can_rename = True  # as a browser can set it
    teacher.send("rename", name="Ada")
    assert teacher.names == ["Ada", "Teacher"]


def test_selections_of_others_are_marked(ada_tab: Tab, ben: Tab) -> None:
    assert ben.session.member is not None
    ben.session.member.select_mesh("B")
    action = Action(Op.F, 1, 0)
    ben.session.member.select_block(Block(1, action))
    colour = ben.widget.people[1]["colour"]
    assert mesh_flags(ada_tab.session.people, [], FIRST) == [
        {"rank": 1, "colour": colour, "text": "Ben", "selects": True}
    ]
    assert block_flags(ada_tab.session.people, []) == [
        {"rank": 1, "op": int(Op.F), "stage": 1, "mb": 0, "colour": colour, "text": "Ben"}
    ]
    assert mesh_flags(ben.session.people, [], FIRST) == []
