"""Drawings of a plan: lanes that tasks occupy, messages that end at the planned time, and the layout of a tensor."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwave.designer.state.transfer_drawing import MOST_DRAWN_HOPS, TensorLayout, TransferDrawing
from meshwave.engine.document.transfer_document import TransferSpec, parse_transfer
from meshwave.engine.errors import InputError
from meshwave.engine.predict.transfer_comparison import compare_plans
from meshwave.engine.resharding import (
    Link,
    Links,
    Mesh,
    Tensor,
    orderings,
    plan,
    plan_lanes,
    strategies,
    task_hops,
    unit_tasks,
)
from tests._findings import refusal
from tests._strategies import examples

INTRA, INTER = Link(1e-5, 4e10), Link(5e-5, 1.25e9)


def transfer(
    source: list[int], destination: list[int], shape: list[int], specs: tuple[str, str], per_host: int = 2, **more: Any
) -> TransferSpec:
    """Return a transfer between two disjoint meshes with ``per_host`` ranks per host."""
    sizes = []
    for each in (source, destination):
        size = 1
        for axis in each:
            size *= axis
        sizes.append(size)
    hosts = -(-sizes[0] // per_host)
    ranks = (range(sizes[0]), range(sizes[0], sum(sizes)))
    first = (0, hosts)
    sides = {
        name: {
            "shape": mesh,
            "ranks": list(own),
            "hosts": [begin + place // per_host for place in range(len(own))],
            "spec": spec.split(),
        }
        for name, mesh, own, begin, spec in zip(
            ("source", "destination"), (source, destination), ranks, first, specs, strict=True
        )
    }
    links = {
        name: {"latency_s": link.latency_s, "bandwidth": link.bandwidth}
        for name, link in (("intra_node", INTRA), ("inter_node", INTER))
    }
    tensor = {"shape": shape, "item_bytes": 2}
    document = {"format": "meshwave-transfer/1", "tensor": tensor, **sides, "links": links, **more}
    return parse_transfer(json.dumps(document))


ROWS = transfer([2, 2], [3, 2], [13, 6], ("S0 R", "S0 R"))


@pytest.mark.parametrize("strategy", strategies)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_the_last_message_of_a_task_ends_at_the_planned_time(strategy: str, data: st.DataObject) -> None:
    hosts = data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=7))
    links = Links(INTRA, INTER, dict(enumerate(hosts)))
    ranks = tuple(range(1, len(hosts)))
    source = Mesh((1,), (0,), (hosts[0],))
    destination = Mesh((len(ranks),), ranks, tuple(hosts[1:]))
    elements = data.draw(st.integers(1, 4000))
    (task,) = unit_tasks(Tensor((elements,), 4), source, ("R",), destination, ("R",))
    latency = strategies[strategy]().latency(task, 0, links, data.draw(st.sampled_from([None, 1, 3, 17])))

    found = task_hops(strategy, task, 0, links, latency.chunks)

    element_s = 4 / INTER.bandwidth  # chunks of whole elements are not all as long as the formula's
    assert found.end_s.max() <= latency.seconds + len(ranks) * element_s
    alike = len({host == hosts[0] for host in hosts[1:]}) == 1
    if elements >= latency.chunks and (strategy == "broadcast" or (strategy == "send-recv" and alike)):
        assert found.end_s.max() == pytest.approx(latency.seconds, abs=len(ranks) * element_s)
    assert (found.start_s >= -1e-12).all()
    assert set(found.target.tolist()) == set(ranks)
    legs = list(strategies[strategy]().legs(task, 0, links, 1))
    once = task_hops(strategy, task, 0, links, 1)
    assert sorted(zip(once.source, once.target, strict=True)) == sorted((leg.source, leg.target) for leg in legs)


@pytest.mark.parametrize("strategy", strategies)
def test_no_range_is_forwarded_before_it_arrives(strategy: str) -> None:
    spec = transfer([1], [2, 3], [600], ("R", "R"), per_host=3)
    (task,) = unit_tasks(
        spec.planned_tensor, spec.source.mesh, spec.source.spec, spec.destination.mesh, spec.destination.spec
    )

    found = task_hops(strategy, task, 0, spec.lines, 5)

    had = {(0, chunk): 0.0 for chunk in found.chunk.tolist()}
    for row in sorted(range(len(found.chunk)), key=lambda row: (found.end_s[row], found.start_s[row])):
        source, target, chunk = (int(column[row]) for column in found[:3])
        assert had[source, chunk] <= found.start_s[row] + 1e-12
        had[target, chunk] = min(had.get((target, chunk), found.end_s[row]), found.end_s[row])


def test_a_ring_within_a_host_ends_at_the_time_of_the_formula() -> None:
    """Equal links and equal pieces: the last piece that is scattered goes once around the ring."""
    (task,) = unit_tasks(Tensor((600,), 2), Mesh((1,), (0,), (0,)), ("R",), Mesh((3,), (1, 2, 3), (1, 1, 1)), ("R",))
    links = Links(INTRA, INTER, {0: 0, 1: 1, 2: 1, 3: 1})

    for strategy in ("local-allgather", "global-allgather"):
        found = task_hops(strategy, task, 0, links, 1)
        assert found.end_s.max() == pytest.approx(strategies[strategy]().latency(task, 0, links).seconds)


def test_a_rank_sends_one_message_at_a_time_on_each_of_its_links() -> None:
    spec = transfer([1], [2, 3], [600], ("R", "R"), per_host=3)
    (task,) = unit_tasks(
        spec.planned_tensor, spec.source.mesh, spec.source.spec, spec.destination.mesh, spec.destination.spec
    )

    for strategy in strategies:
        found = task_hops(strategy, task, 0, spec.lines, 5)
        for end in (found.source, found.target):
            for rank in range(7):
                for near in (True, False):
                    rows = [
                        row
                        for row in np.argsort(found.start_s, kind="stable")
                        if end[row] == rank
                        and (spec.lines.host[int(found.source[row])] == spec.lines.host[int(found.target[row])]) == near
                    ]
                    assert (found.start_s[rows[1:]] >= found.end_s[rows[:-1]] - 1e-12).all()


@pytest.mark.parametrize("nics", [1, 2])
@pytest.mark.parametrize("ordering", orderings)
def test_a_lane_holds_one_task_at_a_time_and_every_task_holds_both_ends(ordering: str, nics: int) -> None:
    spec = transfer([4], [2, 2], [64, 64], ("R S0", "S01 R"), nics_per_host=nics)
    tasks = unit_tasks(
        spec.planned_tensor, spec.source.mesh, spec.source.spec, spec.destination.mesh, spec.destination.spec
    )
    found = plan(
        spec.planned_tensor,
        (spec.source.mesh, spec.source.spec),
        (spec.destination.mesh, spec.destination.spec),
        spec.lines,
        ordering=ordering,
    )

    rows, held = plan_lanes(found, tasks, spec.lines)

    for lane in range(len(rows)):
        spans = sorted((each.start_s, each.end_s) for each in held if each.lane == lane)
        assert all(one[1] <= other[0] + 1e-12 for one, other in zip(spans[:-1], spans[1:], strict=True))
    ways = {number: {rows[each.lane].way for each in held if each.task == number} for number in range(len(tasks))}
    assert all(each == {"tx", "rx"} for each in ways.values())


def test_the_example_of_the_paper_is_drawn_to_scale() -> None:
    data = TransferDrawing.from_spec(ROWS, "broadcast", "ensemble").to_data()

    assert [row["dim"] for row in data["rows"]] == [0] and data["rows"][0]["cuts"] == [0, 5, 7, 10, 13]
    assert [task["rects"][0][1::2] for task in data["tasks"]] == [
        pytest.approx((start / 13, stop / 13)) for start, stop in ((0, 5), (5, 7), (7, 10), (10, 13))
    ]
    assert [box["places"] for box in data["source"]["boxes"]] == [[0, 1], [2, 3]]
    assert data["destination"]["ends"] == {"0": [0, 5, 10, 13], "1": [0, 6]}
    assert [task["place"] for task in sorted(data["tasks"], key=lambda task: task["start_s"])[:2]] == [0, 1]
    assert data["optimal"] and data["makespan_s"] == data["bound_s"]


@given(st.data())
def test_boxes_cover_the_page_once_whatever_the_dims(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 9), max_size=4))
    entries = [f"S{axis}" for axis in range(3)]
    spec = [data.draw(st.sampled_from(["R", entries[dim % 3]])) if dim < 3 else "R" for dim in range(len(shape))]
    found = TransferDrawing.from_spec(
        transfer([2, 3, 2], [4], shape, (" ".join(spec), " ".join("R" for _ in shape))), "send-recv", "naive"
    )

    rects = [rect for task in found.to_data()["tasks"] for rect in task["rects"]]

    assert sum((right - left) * (bottom - top) for left, top, right, bottom in rects) == pytest.approx(1)
    assert all(
        0 <= low < high <= 1 + 1e-9
        for left, top, right, bottom in rects
        for low, high in ((left, right), (top, bottom))
    )


def test_a_short_last_piece_is_visible() -> None:
    face = TensorLayout.arrange([1000], [((0, 999),), ((999, 1000),)])

    [(left, _, right, _)] = face.rects(((999, 1000),))

    assert right - left > 0.1


def test_very_many_chunks_are_drawn_in_complete_bundles() -> None:
    spec = transfer([1], [4, 2], [1 << 20], ("R", "R"), chunks=5000)

    found = TransferDrawing.from_spec(spec, "broadcast", "naive").hops(0)

    assert len(found["lane"]) <= 3 * MOST_DRAWN_HOPS
    of_edge = [
        (first, last)
        for source, first, last, lane in zip(found["source"], found["first"], found["last"], found["lane"], strict=True)
        if source == 0 and lane == 0
    ]
    assert of_edge[0][0] == 0 and of_edge[-1][1] == 4999
    assert all(one[1] + 1 == other[0] for one, other in zip(of_edge[:-1], of_edge[1:], strict=True))


@pytest.mark.slow
def test_too_many_messages_to_draw_are_refused_with_a_message() -> None:
    many = transfer([80], [80], [80, 80], ("S0 R", "R S0"))
    problem = refusal(lambda: TransferDrawing.from_spec(many, "broadcast", "naive"))
    assert (problem.code, problem.params) == ("too_many_tasks_to_draw", {"tasks": 6400, "maximum": 5000})
    deep = transfer([1], [4], [1 << 20], ("R", "R"), chunks=1_000_000)
    with pytest.raises(InputError, match="more than 400,000 messages"):
        TransferDrawing.from_spec(deep, "broadcast", "naive").hops(0)
    wide = transfer([1], [40, 50], [1 << 20], ("R", "R"), per_host=50)
    assert len(TransferDrawing.from_spec(wide, "send-recv", "naive").hops(0)["lane"]) == 2 * 2000
    with pytest.raises(InputError, match="more than 400,000 messages"):
        TransferDrawing.from_spec(wide, "global-allgather", "naive").hops(0)


def test_every_strategy_is_compared_with_every_ordering() -> None:
    rows = list(compare_plans(ROWS))

    assert [(row["strategy"], row["ordering"]) for row in rows] == [
        (one, other) for one in strategies for other in orderings
    ]
    assert all(row["bound_s"] <= row["makespan_s"] * (1 + 1e-9) for row in rows)
