"""Partial tensors: every slice is summed once, in mesh order, and sent like any other."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.designer.state.transfer_drawing import TransferDrawing
from meshwave.engine.cli.main import main
from meshwave.engine.document.transfer_document import parse_transfer
from meshwave.engine.findings import DesignError
from meshwave.engine.resharding import (
    Link,
    Links,
    Mesh,
    SpecError,
    Tensor,
    Transfer,
    orderings,
    plan_transfer,
    strategies,
    unit_tasks,
    volume,
)
from meshwave.engine.resharding.orderings.ensemble import MEMBERS
from meshwave.engine.resharding.plan import plan_tasks
from tests.engine.resharding.test_moves import sides

INTRA, INTER = Link(1e-5, 4e10), Link(5e-5, 1.25e9)
FREE = Link()


@st.composite
def partial_transfers(draw: st.DrawFn) -> Transfer:
    """Draw a source with at least one partial axis; meshes are disjoint, neighbouring or overlapping."""
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 8]), max_size=3)))
    per_host = draw(st.integers(1, 4))
    hosts = {rank: rank // per_host for rank in range(16)}
    first, second = draw(st.sampled_from([(range(8), range(8, 16)), (range(8), range(8)), (range(8), range(4, 12))]))
    mesh, spec = draw(sides(len(shape), list(first), hosts))
    free = [axis for axis in range(len(mesh.shape)) if str(axis) not in "".join(spec)]
    partial = draw(st.permutations(free))[: draw(st.integers(1, max(1, len(free))))]
    spec = (*spec, f"P{''.join(map(str, partial))}") if free else spec
    return plan_transfer(
        Tensor(shape, 2),
        (mesh, spec),
        draw(sides(len(shape), list(second), hosts)),
        Links(INTRA, INTER, hosts),
        strategy=draw(st.sampled_from([*strategies, None])),
        ordering=draw(st.sampled_from(list(orderings))),
        chunks=draw(st.sampled_from([None, 1, 3])),
    )


def groups(planned: Transfer) -> dict[int, list[int]]:
    """Return the ranks of a source that hold partial sums of the same slice, by rank, in row-major order."""
    mesh, spec = planned.source
    axes = {int(axis) for entry in spec if entry.startswith("P") for axis in entry[1:]}
    found: dict[Any, list[int]] = {}
    keys = {}
    for place, rank in enumerate(mesh.ranks):
        at = np.unravel_index(place, mesh.shape)
        keys[rank] = tuple(int(n) for axis, n in enumerate(at) if axis not in axes)
        found.setdefault(keys[rank], []).append(rank)
    return {rank: found[keys[rank]] for rank in mesh.ranks}


@pytest.mark.slow
@given(partial_transfers())
def test_every_receiver_ends_with_the_sum(planned: Transfer) -> None:
    """Replayed message by message: a rank that forwards a slice must have all partial sums of it, each once."""
    of_rank = groups(planned)
    whole = sum(1 << n for n in range(len(next(iter(of_rank.values())))))  # one bit per partial sum
    held: dict[tuple[int, int], np.ndarray] = {}
    for number, task in enumerate(planned.tasks):
        for rank in {*task.senders, *task.receivers, *task.keepers, *(r for group in task.addends for r in group)}:
            held[rank, number] = np.zeros(task.elements, int)
        for rank in task.senders:
            held[rank, number] += 1 << of_rank[rank].index(rank) if task.addends else whole
    for move in planned.moves:
        task, part = planned.tasks[move.task], slice(move.start, move.stop)
        if move.is_partial_sum(task):
            held[move.target, move.task][part] += 1 << of_rank[move.source].index(move.source)
        else:
            assert (held[move.source, move.task][part] == whole).all()
            held[move.target, move.task][part] = whole
    got: Counter[int] = Counter()
    for number, task in enumerate(planned.tasks):
        for rank in (*task.receivers, *task.keepers):
            assert (held[rank, number] == whole).all()
            got[rank] += task.elements
    assert got == Counter({rank: volume(box) for rank, box in planned.destination_boxes.items() if volume(box)})


@given(partial_transfers())
def test_costs_include_sums_and_the_playback_sends_their_addends(planned: Transfer) -> None:
    plan = planned.plan
    assert plan.bound_s <= plan.makespan_s * (1 + 1e-9)
    assert plan.makespan_s >= plan.reduce_s + plan.gather_s
    assert all(each.start_s >= plan.reduce_s for each in plan.tasks)
    additions = [move for move in planned.moves if move.is_partial_sum(planned.tasks[move.task])]
    assert (plan.reduce_s > 0) == bool(additions)
    assert planned.simulated_s >= max((5e-11 * move.elements + 1e-5 for move in additions), default=0.0)


def test_the_ensemble_counts_the_sums_of_partial_tensors() -> None:
    """One sender has the other partial sums on its own host; the search alone prefers no sender."""
    hosts = {rank: rank // 3 for rank in range(8)}
    source = Mesh((2, 2), (2, 3, 4, 5), tuple(hosts[rank] for rank in (2, 3, 4, 5)))
    destination = Mesh((1, 2), (6, 7), (2, 2))
    links = Links(Link(1e-6, 4e10), Link(5e-6, 1.25e9), hosts)

    lengths = {
        name: plan_transfer(
            Tensor((1,), 2), (source, ("R", "P1")), (destination, ("R",)), links, ordering=name
        ).plan.makespan_s
        for name in orderings
    }

    assert lengths["ensemble"] == min(lengths.values()) == pytest.approx(7e-6, rel=1e-3)


@given(partial_transfers())
def test_the_ensemble_is_never_worse_than_its_members_for_partial_tensors(planned: Transfer) -> None:
    has_choice = any(task.addends and len(task.senders) > 1 for task in planned.tasks)
    lengths = {
        name: plan_tasks(planned.tasks, planned.links, planned.plan.strategy, name, None).makespan_s
        for name in ("ensemble", *(orderings if has_choice else MEMBERS))
    }

    assert lengths["ensemble"] <= min(lengths.values()) * (1 + 1e-9)


def test_a_group_reduces_and_scatters_so_that_each_rank_sends_a_piece() -> None:
    """Four partial sums of 4 MB on a host: each rank receives three quarters of a fourth, and all four NICs are used."""
    source, destination = Mesh((4,), (0, 1, 2, 3), (0, 0, 0, 0)), Mesh((1,), (4,), (1,))
    links = Links(Link(1e-5, 1e9), Link(0.0, 1e8), dict(enumerate((0, 0, 0, 0, 1))))
    made = plan_transfer(
        Tensor((1 << 20,), 4), (source, ("R", "P0")), (destination, ("R",)), links, strategy="send-recv"
    )

    assert [(task.senders, task.addends) for task in made.tasks] == [((rank,), ((0, 1, 2, 3),)) for rank in range(4)]
    assert made.plan.reduce_s == pytest.approx(3 * (1e-5 + (1 << 20) / 1e9))
    assert made.plan.makespan_s == pytest.approx(made.plan.reduce_s + (1 << 22) / 1e8)
    assert made.plan.is_optimal
    # Played, the first piece leaves as soon as it is summed, while others are still being summed.
    assert (1 << 22) / 1e8 < made.simulated_s <= made.plan.makespan_s * (1 + 1e-9)


def test_copies_of_a_sum_are_balanced_like_other_copies() -> None:
    """Two hosts hold all partial sums: each sums a slice for one of two receivers, at the same time."""
    source = Mesh((2, 2), (0, 1, 2, 3), (0, 0, 1, 1))
    destination = Mesh((2,), (4, 5), (2, 3))
    links = Links(FREE, Link(0.0, 1e6), dict(enumerate((0, 0, 1, 1, 2, 3))))
    made = plan_transfer(Tensor((1000, 1000), 4), (source, ("R", "R", "P1")), (destination, ("S0", "R")), links)

    assert {each.sender // 2 for each in made.plan.tasks} == {0, 1}
    assert made.plan.makespan_s == pytest.approx(2.0)


def test_a_rank_that_needs_a_sum_computes_it() -> None:
    mesh = Mesh((2,), (0, 1), (0, 0))
    made = plan_transfer(Tensor((6,), 4), (mesh, ("R", "P0")), (mesh, ("S0",)), Links(FREE, FREE, {0: 0, 1: 0}))

    assert [(task.senders, task.keepers, task.receivers) for task in made.tasks] == [((0,), (0,), ()), ((1,), (1,), ())]
    assert [tuple(move) for move in made.moves] == [(0, 1, 0, 0, 3), (1, 0, 1, 0, 3)]


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (("R", "P2"), "unknown_axis"),
        (("S0", "P0"), "sharded_partial_axis"),
        (("R", "P00"), "repeated_partial_axis"),
        (("P0", "R"), "spec_length"),
    ],
)
def test_invalid_partial_axes_are_refused(spec: tuple[str, ...], code: str) -> None:
    mesh = Mesh((2, 2), (0, 1, 2, 3), (0, 0, 0, 0))
    with pytest.raises(SpecError) as refused:
        unit_tasks(Tensor((4,), 4), mesh, spec, mesh, ("R",))

    assert refused.value.problem.code == code


def test_a_partial_destination_is_refused() -> None:
    mesh = Mesh((2,), (0, 1), (0, 0))
    for strategy in strategies:
        with pytest.raises(SpecError, match="receives the sum and cannot be partial itself"):
            plan_transfer(
                Tensor((4,), 4), (mesh, ("R",)), (mesh, ("R", "P0")), Links(FREE, FREE, {0: 0, 1: 0}), strategy=strategy
            )


# ---- the document ----

SPEC: dict[str, Any] = {
    "format": "meshwave-transfer/1",
    "tensor": {"shape": [12, 6], "item_bytes": 4},
    "source": {"shape": [2, 2], "ranks": [0, 1, 2, 3], "hosts": [0, 0, 1, 1], "spec": ["S0", "R"], "partial": [1]},
    "destination": {"shape": [3], "ranks": [4, 5, 6], "hosts": [2, 2, 3], "spec": ["R", "S0"]},
    "links": {
        "intra_node": {"latency_s": 1e-5, "bandwidth": 4e10},
        "inter_node": {"latency_s": 5e-5, "bandwidth": 1.25e9},
    },
}


@pytest.mark.slow
def test_the_command_reports_sums_and_their_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(SPEC))

    assert main(["reshard", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["reshard", str(path)]) == 0
    words = capsys.readouterr().out

    assert sum(task["bytes"] for task in found["unit_tasks"]) == found["bytes"] == prod((12, 6)) * 4
    assert all(task["addends"] in ([[0, 1]], [[2, 3]]) for task in found["unit_tasks"])
    assert all(plan["reduce_s"] > 0 and plan["makespan_s"] > plan["reduce_s"] for plan in found["plans"])
    assert "sum of 0, 1 to 4" in words


@pytest.mark.parametrize(
    ("side", "changes", "words"),
    [
        ("source", {"partial": [0]}, "source.partial: axis 0 shards dim 0"),
        ("source", {"partial": [5]}, "source.partial: P5 names axis 5"),
        ("source", {"spec": ["S0", "R", "P1"], "partial": []}, "source.spec: 'P1' is not an entry of a spec"),
        ("destination", {"partial": [0], "spec": ["R", "R"]}, "destination.partial: the destination receives the sum"),
    ],
)
def test_invalid_partial_axes_are_reported_at_their_location(side: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DesignError) as error:
        parse_transfer(json.dumps({**SPEC, side: {**SPEC[side], **changes}}))
    assert words in str(error.value)


@pytest.mark.parametrize("strategy", strategies)
def test_a_sum_can_be_drawn(strategy: str) -> None:
    """The slices cover the destination, and every message of the playback has a lane."""
    drawing = TransferDrawing.from_spec(parse_transfer(json.dumps(SPEC)), strategy, "ensemble")
    data, play = drawing.to_data(), drawing.simulation_data()

    assert data["source"]["partial"] == [1] and data["reduce_s"] > 0
    assert sum(task["bytes"] for task in data["tasks"]) == data["bytes"]
    assert all(task["addends"] for task in data["tasks"])
    assert {lane["way"] for lane in data["lanes"]} >= {"tx", "rx", "in"}
    assert max(play["messages"]["end_s"]) == pytest.approx(drawing.simulation.seconds)
    for task in range(len(drawing.tasks)):
        assert max(drawing.hops(task)["end_s"]) <= data["makespan_s"] * (1 + 1e-9)


def test_a_whole_tensor_has_no_sums() -> None:
    """A partial axis of one rank has no effect."""
    source = Mesh((2, 1), (0, 1), (0, 0))
    asked = Tensor((4,), 4), (Mesh((2,), (2, 3), (1, 1)), ("R",)), Links(INTRA, INTER, dict(enumerate((0, 0, 1, 1))))
    tensor, destination, links = asked
    partial, whole = (plan_transfer(tensor, (source, spec), destination, links) for spec in (("S0", "P1"), ("S0",)))
    assert replace(partial, loads=()) == replace(whole, loads=())
