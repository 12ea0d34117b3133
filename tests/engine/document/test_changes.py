"""Changes by path: they lead from one document to another, keep what others changed, and can be reverted."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.document.changes import (
    MESH_ORDER,
    apply_changes,
    find_changes,
    moves_meshes,
    paths_overlap,
    revertible_changes,
)
from meshwave.engine.files import example
from meshwave.engine.findings import Refusal

BASE: dict[str, Any] = json.loads(example("02-two-waves").read_bytes())
NAMES = [mesh["name"] for mesh in BASE["meshes"]]


def edit(document: dict[str, Any], kind: str, seed: int) -> dict[str, Any]:
    """An edit of a kind, each of which concerns another part of the document."""
    made = deepcopy(document)
    meshes = made["meshes"]
    if kind == "microbatches":
        made["pipeline"]["microbatches"] = 1 + seed
    elif kind == "schedule":
        made["pipeline"] = {"schedule": "1f1b", "microbatches": made["pipeline"]["microbatches"]}
    elif kind == "steps":
        made.setdefault("training", {})["steps"] = seed
    elif kind == "experts":
        made["model"]["moe"] = {"experts": seed + 1} if seed % 2 else None
    elif kind == "add":
        meshes.append({"name": f"new {seed}", "devices": [90 + seed], "axes": {"dp": 1, "tp": 1}})
    elif kind == "remove" and meshes:
        del meshes[seed % len(meshes)]
    elif kind == "rename" and meshes:
        meshes[seed % len(meshes)]["name"] = f"renamed {seed}"
    elif kind == "move" and meshes:
        meshes[seed % len(meshes)]["devices"] = [50 + seed]
    elif kind == "reorder" and meshes:
        meshes.insert(seed % len(meshes), meshes.pop())
    return made


KINDS = ("microbatches", "schedule", "steps", "experts", "add", "remove", "rename", "move", "reorder")
edits = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 5)), max_size=4)


def apply_edits(document: dict[str, Any], made: list[tuple[str, int]]) -> dict[str, Any]:
    for kind, seed in made:
        document = edit(document, kind, seed)
    return document


@given(edits, edits)
def test_changes_lead_from_one_document_to_the_other_and_back(first: Any, second: Any) -> None:
    before = apply_edits(BASE, first)
    after = apply_edits(before, second)
    changes = find_changes(before, after)
    assert apply_changes(before, changes) == after
    assert apply_changes(after, [change.inverse for change in reversed(changes)]) == before


@given(st.sampled_from(KINDS), st.sampled_from(KINDS), st.integers(0, 5), st.integers(0, 5))
def test_edits_of_different_values_both_survive_in_either_order(one: str, other: str, seed: int, odd: int) -> None:
    mine, theirs = (find_changes(BASE, edit(BASE, *each)) for each in ((one, seed), (other, odd)))
    orders = [each.path == MESH_ORDER for each in (*mine, *theirs)]
    if any(paths_overlap(a.path, b.path) for a in mine for b in theirs) or sum(orders) > 1:
        return
    both = apply_changes(apply_changes(BASE, mine), theirs)
    assert both == apply_changes(apply_changes(BASE, theirs), mine)
    assert revertible_changes(both, [*mine, *theirs]) == [*mine, *theirs]
    # reverting one of them leaves the other
    assert apply_changes(both, [each.inverse for each in reversed(mine)]) == apply_changes(BASE, theirs)


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 5)), min_size=2, max_size=6))
def test_meshes_that_people_add_or_remove_at_the_same_time_are_all_added_or_removed(made: Any) -> None:
    merged, added, removed = BASE, 0, set()
    for kind, seed in made:
        if kind == "add":
            merged, added = apply_changes(merged, find_changes(BASE, edit(BASE, "add", 0))), added + 1
        elif kind == "remove":
            merged = apply_changes(merged, find_changes(BASE, edit(BASE, "remove", seed)))
            removed.add(NAMES[seed % len(NAMES)])
        elif kind == "reorder":
            merged = apply_changes(merged, find_changes(BASE, edit(BASE, "reorder", seed)))
    names = [mesh["name"] for mesh in merged["meshes"]]
    assert set(NAMES) - removed <= set(names)
    assert not removed & set(names)
    assert len(names) == len(set(names))


def test_two_new_meshes_with_equal_names_are_both_kept() -> None:
    mine = deepcopy(BASE)
    mine["meshes"].append({"name": "E", "devices": [7], "axes": {"dp": 1, "tp": 1}})
    theirs = deepcopy(BASE)
    theirs["meshes"].append({"name": "E", "devices": [8], "axes": {"dp": 1, "tp": 1}})
    both = apply_changes(apply_changes(BASE, find_changes(BASE, mine)), find_changes(BASE, theirs))
    added = both["meshes"][len(NAMES) :]
    assert [mesh["devices"] for mesh in added] == [[7], [8]]
    assert len({mesh["name"] for mesh in both["meshes"]}) == len(NAMES) + 2


def test_a_removed_mesh_returns_to_its_place() -> None:
    without = edit(BASE, "remove", 1)
    changes = find_changes(BASE, without)
    longer = edit(without, "add", 3)
    restored = apply_changes(longer, [change.inverse for change in reversed(changes)])
    assert [mesh["name"] for mesh in restored["meshes"]] == [*NAMES, "new 3"]


def test_a_change_of_a_removed_part_is_refused() -> None:
    moved = find_changes(BASE, edit(BASE, "move", 0))
    with pytest.raises(Refusal, match=f"the document has no meshes.{NAMES[0]}.devices"):
        apply_changes(edit(BASE, "remove", 0), moved)


def test_only_changes_that_nobody_has_replaced_are_reverted() -> None:
    mine = find_changes(BASE, edit(edit(BASE, "microbatches", 6), "steps", 4))
    later = edit(apply_changes(BASE, mine), "microbatches", 2)
    assert [change.where for change in revertible_changes(later, mine)] == ["training.steps"]


def test_the_order_of_axes_is_a_value() -> None:
    before, after = deepcopy(BASE), deepcopy(BASE)
    before["meshes"][0]["axes"], after["meshes"][0]["axes"] = {"dp": 2, "tp": 2}, {"tp": 2, "dp": 2}
    (change,) = find_changes(before, after)
    assert [*apply_changes(before, [change])["meshes"][0]["axes"]] == ["tp", "dp"]
    assert revertible_changes(after, [change]) == [change]
    assert revertible_changes(before, [change]) == []


def test_repeated_mesh_names_are_distinguished() -> None:
    twins = deepcopy(BASE)
    twins["meshes"][1]["name"] = twins["meshes"][0]["name"]
    moved = deepcopy(twins)
    moved["meshes"][1]["devices"] = [77]
    (change,) = find_changes(twins, moved)
    assert change.where == f"meshes.{NAMES[0]} #2.devices"
    assert apply_changes(twins, [change]) == moved


def test_only_meshes_that_stay_can_be_moved() -> None:
    (order,) = (each for each in find_changes(BASE, edit(BASE, "remove", 0)) if each.path == MESH_ORDER)
    assert not moves_meshes(order)
    (order,) = find_changes(BASE, edit(BASE, "reorder", 0))
    assert moves_meshes(order)
