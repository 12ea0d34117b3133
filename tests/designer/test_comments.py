"""Comments: storage, permissions, and marks on the canvases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from meshwave.designer.state.comments import LONGEST_COMMENT, MOST_COMMENTS, Comments, Target
from meshwave.designer.state.draft import Draft
from meshwave.designer.state.studio import Studio
from meshwave.designer.views.comments import CommentList, target_title
from meshwave.designer.views.flags import COMMENT_COLOUR, block_flags, mesh_flags
from meshwave.designer.views.notes import add_note, timeline_notes
from meshwave.engine.findings import Refusal
from tests.designer.conftest import FIRST

MESH = Target(kind="mesh", name="B")
BLOCK = Target(kind="block", name="5F0", rank=2)


@pytest.fixture
def comments(tmp_path: Path) -> Comments:
    return Comments(tmp_path / "comments.json", clock=lambda: 1e9)


class Panel:
    """A tab with its list of comments."""

    def __init__(self, studio: Studio, key: str = "") -> None:
        self.draft = Draft(studio, "", lambda: True, key=key)
        self.draft.claim()
        self.list = CommentList(self.draft.session, self.draft, lambda: [Target(), MESH])
        self.refused: str | None = None
        self.list._send_msg = self._receive_message  # type: ignore[method-assign]

    def _receive_message(self, message: dict[str, Any]) -> None:
        self.refused = message["refused"]

    def send(self, kind: str, **gesture: Any) -> None:
        self.list._handle_msg({"type": kind, **gesture})

    def write(self, text: str, target: Target = MESH) -> None:
        self.send("add", text=text, target=target.model_dump())

    @property
    def listed_comments(self) -> list[dict[str, Any]]:
        comments: list[dict[str, Any]] = self.list.comments.data
        return comments


def test_a_comment_is_kept_resolved_and_deleted(comments: Comments) -> None:
    comments.add(MESH, " too small\nfor this \x1b ", "Ada")
    comments.add(Target(), "fine", "Ben")
    first, second = comments.read()
    assert (first.text, first.author, first.target, first.written_s) == (
        "too small\nfor this \\u001b",
        "Ada",
        MESH,
        1e9,
    )
    comments.resolve(first.id, True)
    assert [each.is_resolved for each in comments.read()] == [True, False]
    comments.delete(second.id)
    assert [each.id for each in comments.read()] == [first.id]
    with pytest.raises(Refusal, match="this comment was deleted"):
        comments.resolve(second.id, True)


@pytest.mark.slow
def test_comments_have_limits(comments: Comments) -> None:
    for text, reason in (("  ", "type a comment"), ("x" * (LONGEST_COMMENT + 1), "the limit is 2,000")):
        with pytest.raises(Refusal, match=reason):
            comments.add(MESH, text, "Ada")
    for _ in range(MOST_COMMENTS):
        comments.add(MESH, "x", "Ada")
    with pytest.raises(Refusal, match="at most 200 comments"):
        comments.add(MESH, "x", "Ada")


def test_comments_that_several_servers_add_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    def write(author: str) -> None:
        server = Comments(tmp_path / "comments.json")
        for number in range(10):
            server.add(MESH, f"{author} {number}", author)

    with ThreadPoolExecutor(4) as servers:
        list(servers.map(write, ["Ada", "Ben", "Chloe", "Dan"]))

    assert len({each.text for each in Comments(tmp_path / "comments.json").read()}) == 40


def test_comments_are_beside_the_document_and_appear_on_all_pages(studio: Studio) -> None:
    ada = Panel(studio)
    ada.write("too small")
    assert [(each["about"], each["text"], each["author"]) for each in ada.listed_comments] == [
        ("Mesh B", "too small", "Owner")
    ]
    assert ada.draft.session.history == ("", "")
    assert studio.library.read(ada.draft.name) == FIRST
    ada.draft.share()
    link = ada.draft.link
    assert link is not None
    ben = Panel(studio, link.edit_key)
    assert ben.listed_comments[0]["text"] == "too small"
    assert not ben.listed_comments[0]["can_delete"]
    ben.write("<b>why?</b>", BLOCK)
    assert [each["about"] for each in ada.listed_comments] == ["Mesh B", "Block 5F0 on mesh C"]
    ben.send("delete", comment=ada.listed_comments[0]["id"])
    assert ben.refused == "Owner wrote this comment; only Owner and the owner of the design can delete it"
    ben.send("resolve", comment=ada.listed_comments[0]["id"], on=True)
    assert [each["resolved"] for each in ada.listed_comments] == [False, True]
    ada.send("delete", comment=ada.listed_comments[0]["id"])
    assert [each["text"] for each in ben.listed_comments] == ["too small"]


def test_comments_in_a_damaged_file_are_reported_and_never_overwritten(studio: Studio) -> None:
    panel = Panel(studio)
    panel.write("too small")
    path = studio.library.path(panel.draft.name, "comments.json")
    path.write_text(damaged := path.read_text()[:-5])
    panel.send("refresh")
    assert panel.listed_comments == []
    assert panel.list.notice == (
        f"the comments on this design cannot be read: {path} is damaged; repair the file, or rename it to start without "
        "comments"
    )
    for kind, gesture in (
        ("add", {"text": "x", "target": MESH.model_dump()}),
        ("resolve", {"comment": "x"}),
        ("delete", {"comment": "x"}),
    ):
        panel.send(kind, **gesture)
        assert panel.refused == panel.list.notice
    assert path.read_text() == damaged
    assert panel.draft.readable_comments() == []
    path.rename(path.with_suffix(".damaged"))
    panel.write("new")
    assert ([each["text"] for each in panel.listed_comments], panel.list.notice) == (["new"], "")


def test_a_person_with_two_tabs_is_one_author(studio: Studio) -> None:
    studio.user = studio.user._replace(name="Ada")
    first = Panel(studio)
    first.draft.share()
    assert first.draft.link is not None
    second = Panel(studio, first.draft.link.edit_key)
    assert [person.name for person in second.draft.session.people] == ["Ada", "Ada 2"]
    second.write("too small")
    assert first.listed_comments[0]["author"] == "Ada"


def test_a_read_only_page_shows_comments_and_adds_none(studio: Studio) -> None:
    ada = Panel(studio)
    ada.write("too small")
    ada.draft.share()
    link = ada.draft.link
    assert link is not None
    viewer = Panel(studio, link.view_key)
    assert (len(viewer.listed_comments), viewer.list.can_write) == (1, False)
    for kind, gesture in (("add", {"text": "x", "target": MESH.model_dump()}), ("delete", {"comment": "x"})):
        viewer.send(kind, **gesture)
        assert str(viewer.refused).startswith("this page is read-only")
    assert len(ada.listed_comments) == 1


@pytest.mark.parametrize("target", [None, "mesh", {}, {"kind": "file", "name": "/etc/passwd", "rank": 0}])
def test_a_damaged_target_is_refused(studio: Studio, target: object) -> None:
    panel = Panel(studio)
    panel.send("add", text="x", target=target)
    assert str(panel.refused).startswith("the page sent an invalid value of 'target'")


NOTE = {"start": 0.01, "end": 0.02, "unit": "s", "ranks": [0, 1]}


def test_notes_on_times_and_areas_are_comments(studio: Studio) -> None:
    panel = Panel(studio)

    assert add_note(panel.draft, {"target": NOTE, "text": "<b>slow</b>"}) == ""
    assert add_note(panel.draft, {"target": {**NOTE, "end": 0.01, "ranks": []}, "text": "starts here"}) == ""

    assert [each["about"] for each in panel.listed_comments] == ["Area from 10 ms to 20 ms", "Time 10 ms"]
    assert timeline_notes(panel.draft.readable_comments()) == [
        {**NOTE, "kind": "area", "text": "<b>slow</b>", "colour": COMMENT_COLOUR},
        {
            "kind": "time",
            "start": 0.01,
            "end": 0.01,
            "unit": "s",
            "ranks": [],
            "text": "starts here",
            "colour": COMMENT_COLOUR,
        },
    ]
    panel.send("delete", comment=panel.listed_comments[0]["id"])
    panel.send("resolve", comment=panel.listed_comments[0]["id"], on=True)
    assert timeline_notes(panel.draft.readable_comments()) == []


@pytest.mark.parametrize(
    "change", [{"start": -1}, {"end": float("nan")}, {"unit": "m"}, {"ranks": [-1]}, {"ranks": None}]
)
def test_a_damaged_note_is_refused(studio: Studio, change: dict[str, Any]) -> None:
    panel = Panel(studio)
    refused = add_note(panel.draft, {"target": {**NOTE, **change}, "text": "x"})
    assert refused.startswith("the page sent an invalid value of 'target'")
    assert panel.listed_comments == []


def test_open_comments_are_marked_where_they_belong(comments: Comments) -> None:
    for target in (MESH, MESH, BLOCK, Target(kind="mesh", name="gone"), Target(kind="block", name="damaged", rank=0)):
        comments.add(target, "x", "Ada")
    found = comments.read()
    (mesh,) = mesh_flags([], found, FIRST)
    assert (mesh["rank"], mesh["text"], mesh["colour"]) == (1, "2 comments", COMMENT_COLOUR)
    (block,) = block_flags([], found)
    assert (block["rank"], block["stage"], block["mb"], block["text"]) == (2, 5, 0, "1 comment")
    for each in found:
        comments.resolve(each.id, True)
    assert mesh_flags([], comments.read(), FIRST) == block_flags([], comments.read()) == []
    assert target_title(Target(kind="mesh", name="gone"), FIRST) == "Mesh gone (removed)"
    assert target_title(Target(kind="run", name="r1"), FIRST) == "Run r1"
