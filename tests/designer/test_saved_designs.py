"""Limits on the designs that people save on a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwave.designer.state.library import Library
from meshwave.designer.state.saved_designs import MEASURE_INTERVAL_S, Saved, SavedDesigns
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.findings import Refusal
from meshwave.engine.people.limits import Limits, TotalLimits

FIRST = load_design(example("01-first-wave"))
EDITED = FIRST.model_copy(update={"name": "edited"})


class Server:
    """The libraries of a server with changeable limits and time."""

    def __init__(self, folder: Path) -> None:
        self.limits, self.now_s = Limits(), 0.0
        self.saved = SavedDesigns(folder, lambda: self.limits, lambda: {"admin"}, lambda: self.now_s)
        self.ada, self.grace, self.admin = (
            Library(folder / person / "designs", self.saved.check) for person in ("ada", "grace", "admin")
        )

    def fill_history(self, library: Library, design: str, size_bytes: int) -> None:
        """Make a history large, as many edits do, and let the server measure it again."""
        library.path(design, "history.jsonl").write_bytes(b"x" * size_bytes)
        self.now_s += 2 * MEASURE_INTERVAL_S


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def refusal_of(call: object, *arguments: object) -> str:
    try:
        call(*arguments)  # type: ignore[operator]
    except Refusal as refusal:
        return str(refusal)
    return ""


def test_the_number_of_designs_of_a_person_is_limited(server: Server) -> None:
    server.limits = Limits(designs=2)
    first, _ = server.ada.add(FIRST), server.ada.add(FIRST)
    assert refusal_of(server.ada.add, FIRST) == (
        "you have 2 saved designs, which is the limit; delete some on the start page"
    )
    assert refusal_of(server.ada.duplicate, first) != ""
    assert refusal_of(server.ada.save, first, EDITED) == ""
    server.ada.delete(first)
    assert refusal_of(server.ada.add, FIRST) == ""
    assert refusal_of(server.ada.restore, first) != ""
    assert refusal_of(server.grace.add, FIRST) == ""
    assert [refusal_of(server.admin.add, FIRST) for _ in range(3)] == [""] * 3


def test_edits_and_versions_are_refused_when_the_disk_space_is_used_up(server: Server) -> None:
    server.limits = Limits(designs_megabytes=0.1)
    design = server.ada.add(FIRST)
    server.fill_history(server.ada, design, 100_001)
    sentence = refusal_of(server.ada.save, design, EDITED)
    assert sentence.startswith("your designs use 10") and "limit: 100 kB" in sentence
    log = server.ada.log(design)
    assert refusal_of(log.add_version, "first", FIRST) == sentence
    with pytest.raises(Refusal):
        log.add_edit(FIRST, EDITED, "rename", opens=False)
    assert server.ada.read(design) == FIRST
    assert server.saved.saved("ada").bytes > 100_000

    server.ada.path(design, "history.jsonl").unlink()  # counts at once
    assert refusal_of(server.ada.save, design, EDITED) == ""


def test_deleted_designs_give_way_to_new_ones(server: Server) -> None:
    server.limits = Limits(designs_megabytes=0.1)
    deleted = server.ada.add(FIRST)
    server.fill_history(server.ada, deleted, 100_001)
    server.ada.delete(deleted)
    assert refusal_of(server.ada.add, FIRST) == ""
    assert "can no longer be restored" in refusal_of(server.ada.restore, deleted)


def test_the_designs_of_all_people_are_limited_together(server: Server) -> None:
    server.limits = Limits(total=TotalLimits(designs=2))
    first, _ = server.ada.add(FIRST), server.grace.add(FIRST)
    assert refusal_of(server.grace.add, FIRST).startswith("this server has 2 saved designs")
    assert refusal_of(server.ada.save, first, EDITED) == ""

    server.limits = Limits(total=TotalLimits(designs_megabytes=0.1))
    server.fill_history(server.ada, first, 100_001)
    assert refusal_of(server.grace.add, FIRST).startswith("the designs on this server use 10")
    assert Saved.sum(server.saved.saved(person) for person in server.saved.people()).designs == 2
