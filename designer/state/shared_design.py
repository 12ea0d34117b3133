"""A design that several people edit together: its current state, its people, and the undo history of each person."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, NamedTuple

from meshwave.designer.state.edit_log import Author, LoggedStep
from meshwave.designer.state.library import Library, new_id
from meshwave.designer.state.merging import merge_changes, to_document
from meshwave.engine.document import Design
from meshwave.engine.document.changes import (
    MESH_ORDER,
    Change,
    Path,
    find_changes,
    moves_meshes,
    paths_overlap,
    revertible_changes,
)
from meshwave.engine.errors import InputError, escape_unprintable
from meshwave.engine.findings import Refusal
from meshwave.engine.program.action import Action

COLOURS = ("#0072b2", "#d55e00", "#18aa61", "#8d356f", "#90a7d5", "#e566ff", "#c20020", "#b114ff")
"""Colours of people, which differ for colour-blind eyes and from both backgrounds; a name is written next to each."""
LONGEST_NAME = 40
MOST_MEMBERS = 50
"""Largest number of people who have one design open at the same time."""
LONGEST_HISTORY = 100
"""Largest number of edits that each person can undo."""
MOST_REPLACED = 20
"""Largest number of replaced values that are offered back to a person; the oldest values are dropped."""


class OwnEdit(NamedTuple):
    """An edit of one person."""

    label: str
    changes: tuple[Change, ...]


class Replaced(NamedTuple):
    """A value that a person set and that somebody else has changed since."""

    number: int
    by: str
    """Name of the person who changed the value."""
    change: Change


class Block(NamedTuple):
    """A block of the timeline: an action of a rank."""

    rank: int
    action: Action


class Presence(NamedTuple):
    """A person in a shared design, as others see the person."""

    name: str
    colour: str
    read_only: bool
    is_self: bool
    mesh: str
    """Name of the selected mesh; empty if none is selected."""
    block: Block | None
    """The selected block; None if no block is selected."""


@dataclass(eq=False)
class Member:
    """A person in a shared design; the edits of the person are kept after the person has left."""

    shared: SharedDesign
    id: str
    name: str = ""
    colour: str = ""
    read_only: bool = False
    notify: Callable[[], Any] | None = None
    """Called after each change of the design or of the people; None once the person has left."""
    is_shown: Callable[[], bool] = lambda: True
    """Function that returns True while the person's page is connected."""
    shown_revision: int | None = None
    """The latest revision that the person's page has drawn; None if the page does not report it."""
    mesh: str = ""
    block: Block | None = None
    past: list[OwnEdit] = field(default_factory=list)
    future: list[OwnEdit] = field(default_factory=list)
    replaced: list[Replaced] = field(default_factory=list)

    @property
    def is_present(self) -> bool:
        """True if the person has the design open."""
        return self.notify is not None and self.is_shown()

    @property
    def history(self) -> tuple[str, str]:
        """Labels of the person's edits that undo and redo apply to; empty if there is none."""
        return (self.past[-1].label if self.past else "", self.future[-1].label if self.future else "")

    def submit(self, before: Design, after: Design, label: str) -> None:
        """Apply an edit of the state ``before`` to the current state.

        Raises:
            Refusal: the edit is inconsistent with the edits of others.
        """
        self.shared.submit(self, before, after, label)

    def undo(self) -> None:
        """Revert the person's last edit, except for values that others have changed since.

        Raises:
            Refusal: the edit cannot be reverted.
        """
        self.shared.undo_or_redo(self, self.past, self.future, "undo")

    def redo(self) -> None:
        """Apply the last reverted edit again, except for values that others have changed since.

        Raises:
            Refusal: the edit cannot be applied.
        """
        self.shared.undo_or_redo(self, self.future, self.past, "redo")

    def restore(self, number: int) -> None:
        """Restore a value of the person that somebody else has changed, as an edit.

        Raises:
            Refusal: the value is no longer offered, or does not fit.
        """
        found = next((each for each in self.replaced if each.number == number), None)
        if found is None:
            raise Refusal("outdated_card")
        self.shared.restore(self, found)
        self.accept_change(number)

    def accept_change(self, number: int) -> None:
        """Accept the change of another person that replaced a value of this one."""
        for each in self.replaced:
            if each.number == number:
                self.shared.note_acceptance(self, each.change.where)
                self.discard_replaced(each.change.where)
        if self.notify is not None:
            self.notify()

    def discard_replaced(self, where: str) -> None:
        """Stop offering to restore the replaced value at a path."""
        self.replaced = [each for each in self.replaced if each.change.where != where]

    def rename(self, name: str) -> None:
        """Change the name of the person."""
        self.name = self.shared.free_name(name, self)
        self.shared.notify_all()

    def select_mesh(self, mesh: str) -> None:
        """Store the name of the mesh that the person has selected; empty if none is selected."""
        if mesh != self.mesh:
            self.mesh = mesh
            self.shared.notify_all()

    def select_block(self, block: Block | None) -> None:
        """Store the block that the person has selected; None if no block is selected."""
        if block != self.block:
            self.block = block
            self.shared.notify_all()

    def leave(self) -> None:
        """Remove the person from those present; a person without edits is not kept."""
        self.notify, self.shown_revision, self.mesh, self.block = None, None, "", None
        if not (self.past or self.future or self.replaced):
            self.shared.members.pop(self.id, None)
        self.shared.notify_all()


class SharedDesign:
    """The current state of a shared design and its people; used from one thread.

    The server puts the edits of all people into one order. An edit consists of the values that differ from the state
    that its author saw, so that edits of different values are all kept. If two people change the same value, the
    later edit counts, and the author of the earlier edit can restore it.
    """

    def __init__(self, library: Library, name: str, first: str = "") -> None:
        """Open a design of the library with the history of its people.

        Args:
            library: the library.
            name: ID of the design.
            first: ID of the member who made the edits from before the design was shared.

        Raises:
            InputError: the design cannot be read.
        """
        self.library, self.name, self.revision, self.notice = library, name, 0, ""
        self.design = library.read(name)
        self.comments = 0  # number of changes of the comments, so that pages know when to read them
        self.members: dict[str, Member] = {}
        self._owners: dict[Path, Member] = {}  # the person who set a value last
        self._moved: dict[Member, int] = {}  # the revision in which a person last changed the meaning of positions
        self._numbers = count()
        self._replay(first)

    # ---- people ----

    @property
    def present(self) -> list[Member]:
        """The people who have the design open."""
        return [member for member in self.members.values() if member.is_present]

    def people(self, member: Member) -> list[Presence]:
        """Return the people who have the design open, as a member sees them."""
        return [
            Presence(each.name, each.colour, each.read_only, each is member, each.mesh, each.block)
            for each in self.present
        ]

    def join(
        self,
        id: str,
        name: str,
        notify: Callable[[], Any],
        *,
        is_shown: Callable[[], bool] = lambda: True,
        read_only: bool = False,
    ) -> Member:
        """Add a person, or return the person with this ID who has left before.

        Raises:
            Refusal: too many people have the design open.
        """
        if len(self.present) >= MOST_MEMBERS:
            raise Refusal("too_many_members", {"count": MOST_MEMBERS})
        member = self._member(id)
        if member.is_present:
            member = self._member(new_id())
        member.name, member.read_only = self.free_name(name or member.name, member), read_only
        member.notify, member.is_shown = notify, is_shown
        taken = {each.colour for each in self.present if each is not member}
        if not member.colour or member.colour in taken:
            member.colour = next((each for each in COLOURS if each not in taken), COLOURS[len(taken) % len(COLOURS)])
        self.notify_all()
        return member

    def _member(self, id: str) -> Member:
        return self.members.setdefault(id, Member(self, id))

    def free_name(self, wanted: str, member: Member) -> str:
        """Return a name that no other person present has, based on ``wanted``, or on ``Guest`` if that is empty."""
        name = escape_unprintable(" ".join(wanted[: 10 * LONGEST_NAME].split()))[:LONGEST_NAME] or "Guest"
        taken = {each.name for each in self.present if each is not member}
        return next(each for each in chain([name], (f"{name} {number}" for number in count(2))) if each not in taken)

    def notify_all(self) -> None:
        """Notify all people present of a change."""
        for member in self.present:
            assert member.notify is not None
            member.notify()

    # ---- edits ----

    def submit(self, member: Member, before: Design, after: Design, label: str) -> None:
        """Apply an edit of a member; see :meth:`Member.submit`."""
        design = after
        if before is not self.design:
            design = merge_changes(self.design, find_changes(to_document(before), to_document(after)), after)
        if design == self.design:
            return
        made = self._changes_to(design)
        self._check_positions(member, made)
        self._accept(member, design, label, made)
        member.past = [*member.past, OwnEdit(label, made)][-LONGEST_HISTORY:]
        member.future.clear()
        self.notify_all()

    def undo_or_redo(self, member: Member, source: list[OwnEdit], target: list[OwnEdit], move: str) -> None:
        """Revert the last edit of ``source`` and add its reverse to ``target``."""
        if not source:
            return
        label, changes = source[-1]
        revertible = revertible_changes(to_document(self.design), changes)
        kept = [each for each in revertible if self._is_own(member, each.path)]
        if not kept:
            source.pop()
            self.notify_all()
            raise Refusal("nothing_left_to_undo", {"label": label})
        design = merge_changes(self.design, [each.inverse for each in reversed(kept)])
        source.pop()
        if made := self._changes_to(design):
            self._accept(member, design, label, made, move)
            target.append(OwnEdit(label, made))
        self.notify_all()

    def _is_own(self, member: Member, where: Path) -> bool:
        """Return True if the member made the last edit of the value at a path; an edit to the same value counts too."""
        owners = {path: owner for path, owner in self._owners.items() if paths_overlap(path, where)}
        depth = min(len(where), max(map(len, owners), default=0))  # a section counts if no part of it has an owner
        return all(owner is member for path, owner in owners.items() if len(path) >= depth)

    def restore(self, member: Member, found: Replaced) -> None:
        """Restore a value of a member that somebody else has changed."""
        design = merge_changes(self.design, [found.change.inverse])
        self.submit(member, self.design, design, f"restore {found.change.where}")

    def note_acceptance(self, member: Member, where: str) -> None:
        """Save that a member has accepted that others changed the value at a path."""
        with suppress(InputError):  # it is offered again after a restart
            self.library.log(self.name).add_acceptance(member.id, where)

    def _changes_to(self, design: Design) -> tuple[Change, ...]:
        return tuple(find_changes(to_document(self.design), to_document(design)))

    def _check_positions(self, member: Member, made: Sequence[Change]) -> None:
        """Check that the numbers of meshes, stages and experts in a gesture still have the same meaning.

        Raises:
            Refusal: others changed meshes, stages or experts, and the member's page does not show the change yet.
        """
        shown = member.shown_revision
        if shown is None or not any(each.path[0] in POSITIONAL for each in made):
            return
        by = [other.name for other, revision in self._moved.items() if other is not member and revision > shown]
        if by:
            raise Refusal("edit_of_earlier_state", {"name": by[0]})

    def _accept(self, member: Member, design: Design, label: str, made: Sequence[Change], move: str = "edit") -> None:
        if member.read_only:
            raise Refusal("read_only_design")
        before, self.design = self.design, design
        self.revision += 1
        if _positions(before) != _positions(design):
            self._moved[member] = self.revision
        self._record_changes(member, made)
        author = Author(member.id, member.name)
        try:
            notice = self.library.save_edit(self.name, before, design)
            self.library.log(self.name).add_edit(before, design, label, opens=False, author=author, move=move)
            self.notice = notice
        except InputError as error:
            self.notice = f"The latest edits are not saved; a restart of the server would discard them: {error}"

    def _record_changes(self, member: Member, made: Iterable[Change]) -> None:
        """Record the values that a member set, and offer other members to restore the values that it replaced."""
        for change in made:
            if change.path == MESH_ORDER and not moves_meshes(change):
                continue
            paths = [path for path in self._owners if paths_overlap(path, change.path)]
            for owner in {self._owners[path]: None for path in paths}:
                if owner is not member:
                    replaced = Replaced(next(self._numbers), member.name, change)
                    owner.replaced = [*owner.replaced, replaced][-MOST_REPLACED:]
            for path in paths:
                if path[: len(change.path)] == change.path:
                    del self._owners[path]
            self._owners[change.path] = member

    def _replay(self, first: str) -> None:
        """Read the edits of each person from the log, if the log leads to the current design."""
        log = self.library.log(self.name).replay()
        if log.present != to_document(self.design):
            return
        after = [*(each.document for each in log.past[1:]), log.present]
        for number, step in enumerate(log.past):
            self._replay_step(step, after[number], first)
            for edits, id, where in log.accepted:
                if edits == number + 1 and id in self.members:
                    self.members[id].discard_replaced(where)

    def _replay_step(self, step: LoggedStep, after: Mapping[str, Any], first: str) -> None:
        author = step.author or Author(first, "")
        if step.opens or not author.id:
            return
        member = self._member(author.id)
        member.name = author.name
        made = tuple(find_changes(step.document, after))
        self._record_changes(member, made)
        if step.move == "edit":
            member.future.clear()
        elif source := member.past if step.move == "undo" else member.future:
            source.pop()
        target = member.future if step.move == "undo" else member.past
        target.append(OwnEdit(step.label, made))
        del target[:-LONGEST_HISTORY]


POSITIONAL = ("meshes", "pipeline", "experts", MESH_ORDER[0])
"""Sections whose edits identify meshes, stages and experts by their numbers."""


def _positions(design: Design) -> Any:
    """Return the objects that numbers in gestures identify: meshes, stages with their placement, and experts."""
    stages = None
    with suppress(InputError):
        stages = design.stages
    pipeline, moe = design.pipeline, design.model.moe
    return [mesh.name for mesh in design.meshes], pipeline.schedule, stages, pipeline.placement, moe and moe.experts
