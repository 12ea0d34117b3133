"""A design that several people edit together: merged edits, values that others replace, and undo by each person."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from math import dist
from operator import mul
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwave.designer.state.design_session import Session
from meshwave.designer.state.library import Library
from meshwave.designer.state.shared_design import COLOURS, LONGEST_NAME, Block, Member, SharedDesign
from meshwave.designer.state.sharing import SharedDesigns
from meshwave.designer.views.flags import COMMENT_COLOUR
from meshwave.engine.document import Design
from meshwave.engine.document.changes import find_changes, paths_overlap
from meshwave.engine.errors import InputError
from meshwave.engine.findings import Refusal
from meshwave.engine.program.action import Action, Op
from tests._strategies import examples
from tests.designer.conftest import FIRST

DESIGN = "0123456789ab"
IDS = [f"{number:012x}" for number in range(1, 5)]
NAMES = ("Ada", "Ben", "Chloe", "Dan")


class Page:
    """A session whose page receives the changes of others when :meth:`receive` is called."""

    def __init__(self, shared: SharedDesign, number: int, *, waits: bool = False) -> None:
        self.session = Session(shared.design)
        self.waits = waits
        self.member = shared.join(IDS[number], NAMES[number], self._receive_change)
        self.session.join(self.member)

    def _receive_change(self) -> None:
        if not self.waits:
            self.receive()

    def receive(self) -> None:
        self.session.follow()

    def edit(self, path: str, value: Any, label: str = "") -> None:
        self.session.edit(path, value, label or path)

    @property
    def offers(self) -> list[str]:
        return [f"{each.by}: {each.change.where}" for each in self.session.replaced]


@pytest.fixture
def library(tmp_path: Path) -> Library:
    library = Library(tmp_path / "designs")
    library.save(DESIGN, FIRST)
    return library


@pytest.fixture
def shared(library: Library) -> SharedDesign:
    return SharedDesign(library, DESIGN)


@pytest.fixture
def people(shared: SharedDesign) -> list[Page]:
    return [Page(shared, number) for number in range(2)]


def document(design: Design) -> dict[str, Any]:
    return design.model_dump(mode="json")


# ---- merging ----


def test_an_edit_reaches_everybody(people: list[Page], library: Library) -> None:
    ada, ben = people
    ada.edit("pipeline.microbatches", 8)
    assert ben.session.design.pipeline.microbatches == 8
    assert ben.session.prediction.design.pipeline.microbatches == 8
    assert library.read(DESIGN) == ada.session.design
    assert (ada.session.history, ben.session.history) == (("pipeline.microbatches", ""), ("", ""))


def test_edits_of_different_values_on_one_base_both_survive(people: list[Page]) -> None:
    ada, ben = people
    ben.waits = True
    ada.edit("pipeline.microbatches", 8)
    ben.edit("training.steps", 7)
    ben.receive()
    for page in people:
        assert (page.session.design.pipeline.microbatches, page.session.design.training.steps) == (8, 7)
        assert page.offers == []


def test_the_author_of_a_replaced_value_is_told_and_can_restore_it(people: list[Page]) -> None:
    ada, ben = people
    ada.edit("pipeline.microbatches", 8)
    ben.edit("pipeline.microbatches", 16)
    assert ada.session.design.pipeline.microbatches == 16
    (offer,) = ada.session.replaced
    assert (offer.by, offer.change) == ("Ben", (("pipeline", "microbatches"), 8, 16))
    ada.member.restore(offer.number)
    assert ben.session.design.pipeline.microbatches == 8
    assert ada.offers == []
    assert ben.offers == ["Ada: pipeline.microbatches"]
    ben.member.accept_change(ben.session.replaced[0].number)
    assert (ben.offers, ben.session.design.pipeline.microbatches) == ([], 8)


def test_a_value_whose_section_is_replaced_is_offered_back(people: list[Page]) -> None:
    ada, ben = people
    ada.edit("pipeline.waves", 1)
    ben.edit("pipeline", {"schedule": "1f1b", "microbatches": 4})
    assert "Ben: pipeline.waves" in ada.offers
    number = next(each.number for each in ada.session.replaced if each.change.where == "pipeline.waves")
    with pytest.raises(Refusal, match="the edit conflicts with the edits of others: pipeline"):
        ada.member.restore(number)
    assert "Ben: pipeline.waves" in ada.offers


def test_an_edit_that_would_make_the_merged_design_invalid_is_refused(people: list[Page]) -> None:
    ada, ben = people
    ben.waits = True
    ada.edit("pipeline", {"schedule": "1f1b", "microbatches": 4})
    with pytest.raises(Refusal, match="conflicts with the edits of others"):
        ben.edit("pipeline.waves", 1)
    mesh = {"name": "new", "devices": [9], "axes": {"dp": 1, "tp": 1}}
    ada.edit("cluster.nodes", 5)
    ben.receive()
    ben.waits = True
    meshes = document(FIRST)["meshes"]
    ada.edit("meshes", [*meshes, mesh])
    before = ada.session.design
    with pytest.raises(
        Refusal, match="conflicts with the edits of others: .*device 9 of mesh other already belongs to mesh new"
    ):
        ben.edit("meshes", [*meshes, {**mesh, "name": "other"}])
    assert ada.session.design is before


def test_a_gesture_on_meshes_that_were_renumbered_meanwhile_is_refused(people: list[Page]) -> None:
    ada, ben = people
    ben.member.shown_revision = ben.session.revision
    ada.edit("meshes", document(FIRST)["meshes"][:-1])
    with pytest.raises(Refusal, match="because Ada changed the meshes, stages or experts at the same time"):
        ben.edit("pipeline.microbatches", 8)
    ben.edit("training.steps", 7)  # no position
    ben.member.shown_revision = ben.session.revision
    ben.edit("pipeline.microbatches", 8)
    assert ada.session.design.pipeline.microbatches == 8


def test_settings_that_an_edit_resets_are_offered_back(people: list[Page]) -> None:
    ada, ben = people
    stages = ben.session.design.stages
    layers = FIRST.model.layers
    ada.edit("pipeline.stages", [layers - stages + 1, *[1] * (stages - 1)])
    ben.edit("pipeline.waves", 1)
    assert ben.session.design.pipeline.stages is None
    assert "Ben: pipeline.stages" in ada.offers


# ---- undo ----


def test_undo_reverts_the_own_last_edit_only(people: list[Page]) -> None:
    ada, ben = people
    ada.edit("pipeline.microbatches", 8)
    ben.edit("training.steps", 7)
    ada.session.undo()
    assert (ben.session.design.pipeline.microbatches, ben.session.design.training.steps) == (
        FIRST.pipeline.microbatches,
        7,
    )
    assert ada.session.history == ("", "pipeline.microbatches")
    ada.session.redo()
    assert ben.session.design.pipeline.microbatches == 8
    assert ben.session.history == ("training.steps", "")


def test_undo_of_what_somebody_else_has_replaced_reverts_nothing(people: list[Page]) -> None:
    ada, ben = people
    ada.edit("pipeline.microbatches", 8, "8 microbatches")
    ben.edit("pipeline.microbatches", 16)
    with pytest.raises(Refusal, match="cannot undo .8 microbatches.: others have changed all of its values"):
        ada.session.undo()
    assert ben.session.design.pipeline.microbatches == 16
    assert ada.session.history == ("", "")


def test_a_value_that_somebody_else_has_set_back_is_not_undone(people: list[Page]) -> None:
    ada, ben = people
    ada.edit("training.steps", 7)
    for steps in (8, 7):
        ben.edit("training.steps", steps)
    with pytest.raises(Refusal, match="others have changed all of its values"):
        ada.session.undo()
    assert ada.session.design.training.steps == 7


def test_a_member_without_the_right_to_edit_changes_nothing(shared: SharedDesign, people: list[Page]) -> None:
    viewer = Session(shared.design)
    member = shared.join(IDS[3], "Dan", lambda: None, read_only=True)
    viewer.join(member)
    for change in (lambda: viewer.edit("name", "x", "rename"), viewer.undo, viewer.redo):
        with pytest.raises(Refusal, match="this page is read-only"):
            change()
    with pytest.raises(Refusal, match="this page is read-only"):
        member.submit(shared.design, FIRST.model_copy(update={"name": "x"}), "rename")
    people[0].edit("training.steps", 5)
    viewer.follow()
    assert viewer.design.training.steps == 5


# ---- people ----


def test_people_have_different_names_and_colours(shared: SharedDesign) -> None:
    members = [shared.join(f"{number:012x}", "Ada", lambda: None) for number in range(len(COLOURS))]
    assert [member.name for member in members[:3]] == ["Ada", "Ada 2", "Ada 3"]
    assert len({member.colour for member in members}) == len(COLOURS)
    members[1].rename(" <b>\x1b Grace  Hopper " + "x" * 100)
    assert members[1].name.startswith("<b>\\u001b Grace Hopper x")
    assert len(members[1].name) == LONGEST_NAME
    shared.join("f" * 12, "", lambda: None)
    assert shared.present[-1].name == "Guest"


def test_one_who_returns_keeps_edits_and_colour(shared: SharedDesign, people: list[Page]) -> None:
    ada, ben = people
    ada.edit("pipeline.microbatches", 8)
    colour = ada.member.colour
    ada.session.leave()
    assert [person.name for person in ben.session.people] == ["Ben"]
    ben.edit("pipeline.microbatches", 16)
    again = Page(shared, 0)
    assert (again.member.colour, again.session.history[0]) == (colour, "pipeline.microbatches")
    assert again.offers == ["Ben: pipeline.microbatches"]
    twin = shared.join(IDS[0], "Ada", lambda: None)
    assert twin.id != IDS[0]


def test_a_selection_is_shown_to_the_others(people: list[Page]) -> None:
    ada, ben = people
    ada.member.select_mesh("A")
    ada.member.select_block(Block(1, Action(Op.F, 1, 0)))
    presence = next(person for person in ben.session.people if person.name == "Ada")
    assert (presence.mesh, presence.block, presence.is_self) == ("A", (1, (Op.F, 1, 0, 0, -1)), False)


def test_own_edits_survive_a_restart_of_the_server(shared: SharedDesign, people: list[Page], library: Library) -> None:
    ada, ben = people
    ada.edit("pipeline.microbatches", 8)
    ben.edit("training.steps", 7)
    ada.edit("name", "renamed")
    ada.session.undo()
    again = SharedDesign(library, DESIGN)
    restored = Page(again, 0)
    assert restored.session.history == ("pipeline.microbatches", "name")
    restored.session.undo()
    assert (again.design.pipeline.microbatches, again.design.training.steps) == (FIRST.pipeline.microbatches, 7)
    restored.session.redo()
    other = Page(again, 1)
    other.edit("pipeline.microbatches", 16)
    assert restored.offers == ["Ben: pipeline.microbatches"]


def test_replaced_values_are_offered_after_a_restart_until_they_are_accepted(
    shared: SharedDesign, people: list[Page], library: Library
) -> None:
    ada, ben = people
    ada.edit("pipeline.microbatches", 8)
    ada.edit("training.steps", 7)
    ben.edit("pipeline.microbatches", 16)
    ben.edit("training.steps", 9)
    ada.member.accept_change(ada.session.replaced[0].number)
    again = SharedDesign(library, DESIGN)
    assert Page(again, 0).offers == ["Ben: training.steps"]
    assert Page(again, 1).offers == []


def test_edits_from_before_the_design_was_shared_are_undone_by_their_author(library: Library) -> None:
    edited = FIRST.model_copy(update={"name": "mine"})
    library.log(DESIGN).add_edit(FIRST, edited, "rename", opens=False)
    library.save(DESIGN, edited)
    shared = SharedDesign(library, DESIGN, first=IDS[0])
    ada, ben = Page(shared, 0), Page(shared, 1)
    assert (ada.session.history[0], ben.session.history[0]) == ("rename", "")


VISION = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deuteranopia": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "tritanopia": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}
"""Matrices of colour blindness for linear RGB (Machado, Oliveira and Fernandes 2009, severity 1)."""


def perceived_lab(colour: str, eyes: str) -> tuple[float, float, float]:
    """Return a colour in CIE Lab as a person with this colour blindness perceives it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    r, g, b = (min(1.0, max(0.0, sum(map(mul, row, linear)))) for row in VISION[eyes])
    weights = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8730))
    x, y, z = (max(w[0] * r + w[1] * g + w[2] * b, 0.008856) ** (1 / 3) for w in weights)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("eyes", VISION)
def test_colours_of_people_and_comments_differ_for_all_eyes(eyes: str) -> None:
    pairs = combinations([*COLOURS, COMMENT_COLOUR], 2)
    assert min(dist(perceived_lab(one, eyes), perceived_lab(other, eyes)) for one, other in pairs) > 18


# ---- any interleaving ----

PATHS: dict[str, Callable[[int], Any]] = {
    "pipeline.microbatches": lambda seed: 4 * (1 + seed),
    "training.steps": lambda seed: 1 + seed,
    "training.lr": lambda seed: 1e-4 * (1 + seed),
    "model.layers": lambda seed: 8 + seed,
    "cluster.nodes": lambda seed: 4 + seed,
    "name": lambda seed: f"name {seed}",
}
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["edit", "edit", "edit", "mesh", "receive", "undo", "redo", "restart"]),
        st.integers(0, 3),
        st.sampled_from(list(PATHS)),
        st.integers(0, 3),
    ),
    max_size=24,
)


def apply_move(page: Page, move: str, path: str, seed: int) -> None:
    if move == "edit":
        page.edit(path, PATHS[path](seed), f"{path} {seed}")
    elif move == "mesh":
        meshes = document(page.session.design)["meshes"]
        page.edit("meshes", [*meshes, meshes[0]][:-1] if seed % 2 else [meshes[-1], *meshes[:-1]], "order")
    elif move in ("undo", "redo"):
        getattr(page.session, move)()
    else:
        page.receive()


@settings(max_examples=examples(25))
@given(st.integers(2, 4), MOVES)
def test_any_interleaving_converges_and_loses_no_edit_silently(count: int, moves: Any) -> None:
    with TemporaryDirectory() as folder:
        library = Library(Path(folder))
        library.save(DESIGN, FIRST)
        shared = SharedDesign(library, DESIGN)
        pages = [Page(shared, number, waits=True) for number in range(count)]
        setters: dict[tuple[str, ...], Member] = {}
        for move, number, path, seed in moves:
            if move == "restart":
                shared = SharedDesign(library, DESIGN)
                pages = [Page(shared, each, waits=True) for each in range(count)]
                setters = {where: shared.members[member.id] for where, member in setters.items()}
                continue
            page = pages[number % count]
            before, offers = shared.design, {each.id: len(each.replaced) for each in shared.members.values()}
            try:
                apply_move(page, move, path, seed)
            except InputError:
                assert shared.design is before  # a refused edit changes nothing
            changes = find_changes(document(before), document(shared.design))
            for change in changes:
                for where in [where for where in setters if paths_overlap(where, change.path)]:
                    owner = setters.pop(where)
                    if owner is page.member:
                        continue
                    assert move not in ("undo", "redo")  # they never change what somebody else set
                    assert owner.replaced[-1].by == page.member.name  # nobody loses a value without being told
                    assert len(owner.replaced) > offers[owner.id] or offers[owner.id] == 20
                setters[change.path] = page.member
            assert library.read(DESIGN) == shared.design
        for page in pages:
            page.receive()
        assert len({json.dumps(document(page.session.design)) for page in pages}) == 1


@settings(max_examples=examples(20))
@given(st.permutations(list(PATHS)), st.integers(2, 4))
def test_edits_of_different_values_survive_in_any_order_and_undo_leaves_the_others(
    order: list[str], count: int
) -> None:
    with TemporaryDirectory() as folder:
        library = Library(Path(folder))
        library.save(DESIGN, FIRST)
        shared = SharedDesign(library, DESIGN)
        pages = [Page(shared, number, waits=True) for number in range(count)]
        edits = [(pages[at % count], path) for at, path in enumerate(order[: 2 * count])]
        for page, path in edits:
            page.edit(path, PATHS[path](2))
        present = document(shared.design)
        assert all(_value(present, path) == PATHS[path](2) for _, path in edits)
        own = [path for page, path in edits if page is pages[0]]
        for _ in own:
            pages[0].session.undo()
        present, first = document(shared.design), document(FIRST)
        assert all(_value(present, path) == _value(first, path) for path in own)
        assert all(_value(present, path) == PATHS[path](2) for _, path in edits if path not in own)


def _value(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = document[key]
    return document


# ---- links ----


def test_a_link_opens_the_same_design_until_it_is_ended(tmp_path: Path, library: Library) -> None:
    designs = SharedDesigns(tmp_path, lambda library, is_new: None)
    link = designs.share(library, DESIGN)
    assert designs.share(library, DESIGN) == link
    again = SharedDesigns(tmp_path, lambda library, is_new: None)  # the server was restarted
    assert again.find_link(link.edit_key) == (link, False)
    assert again.find_link(link.view_key) == (link, True)
    assert again.open(link) is again.open(link)
    assert (tmp_path / "shared.json").stat().st_mode & 0o077 == 0
    again.end_link(link)
    for key in (link.edit_key, "", "../designs", "\udcff"):
        with pytest.raises(Refusal, match="this link is not valid"):
            again.find_link(key)


def test_edits_of_a_shared_design_on_another_server_are_kept_as_a_version(tmp_path: Path, library: Library) -> None:
    page = Page(SharedDesign(library, DESIGN), 0)
    Library(library.folder).save(DESIGN, elsewhere := FIRST.model_copy(update={"name": "elsewhere"}))

    page.edit("pipeline.waves", 1)

    assert [version.design for version in library.log(DESIGN).versions()] == [elsewhere]
    assert "edited elsewhere" in page.member.shared.notice
    page.edit("pipeline.waves", 2)
    assert page.member.shared.notice == ""


def test_links_that_another_server_makes_or_ends_count_at_once(tmp_path: Path, library: Library) -> None:
    one, two = (SharedDesigns(tmp_path, lambda library, is_new: None) for _ in range(2))
    first = one.share(library, DESIGN)
    assert two.find_link(first.view_key) == (first, True)
    assert two.share(library, DESIGN) == first

    one.end_link(first)
    second = two.share(library, library.add(FIRST))

    assert one.find_link(second.edit_key) == (second, False)
    for designs in (one, two, SharedDesigns(tmp_path, lambda library, is_new: None)):
        with pytest.raises(Refusal, match="this link is not valid"):
            designs.find_link(first.edit_key)


def test_links_that_several_servers_make_at_the_same_time_are_all_kept(tmp_path: Path, library: Library) -> None:
    shared = [library.add(FIRST) for _ in range(24)]

    def share(designs: list[str]) -> None:
        server = SharedDesigns(tmp_path, lambda library, is_new: None)
        for design in designs:
            server.share(library, design)

    with ThreadPoolExecutor(4) as servers:
        list(servers.map(share, (shared[each::4] for each in range(4))))

    again = SharedDesigns(tmp_path, lambda library, is_new: None)
    assert all(again.link(library, design) for design in shared)


def test_a_damaged_list_of_links_is_never_overwritten(tmp_path: Path, library: Library) -> None:
    path = tmp_path / "shared.json"
    path.write_text("[[")
    designs = SharedDesigns(tmp_path, lambda library, is_new: None)
    assert designs.link(library, DESIGN) is None
    with pytest.raises(Refusal, match="shared.json, is damaged; repair the file"):
        designs.share(library, DESIGN)
    assert path.read_text() == "[["
    path.unlink()
    assert designs.link(library, DESIGN) is None
    assert designs.share(library, DESIGN) == designs.link(library, DESIGN)


def test_a_design_that_was_renamed_while_nobody_had_it_open_is_read_again(tmp_path: Path, library: Library) -> None:
    designs = SharedDesigns(tmp_path, lambda library, is_new: None)
    link = designs.share(library, DESIGN)
    page = Page(designs.open(link), 0)
    assert designs.is_open(library, DESIGN)
    page.session.leave()
    assert not designs.is_open(library, DESIGN)
    library.rename(DESIGN, "another name")
    assert designs.open(link).design.name == "another name"
