"""Balanced placements: every expert is placed, no worse than equal blocks, with replicas only in free slots."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.experts import (
    Layer,
    Placement,
    balance_experts,
    crossing_assignments,
    device_load,
    device_rows,
    load_per_replica,
    load_shares,
)
from meshwave.engine.experts._placement import place_by_node, place_globally, place_shadows, replica_counts

loads = st.lists(st.floats(0, 100), min_size=1, max_size=24)


def layer(
    load: list[float] | None,
    places: int,
    nodes: int = 1,
    experts: int = 0,
    esp: int = 1,
    capacity_factor: float | None = None,
) -> Layer:
    experts = experts or len(load or ())
    per_node = -(-places * esp // nodes)
    return Layer(
        mp=1,
        ep=places,
        esp=esp,
        experts=experts,
        tokens=64,
        hidden=8,
        ffn_hidden=16 * esp,
        capacity_factor=capacity_factor,
        nodes=tuple(device // per_node for device in range(places * esp)),
        load=load_shares(load, experts),
    )


def blocks(experts: int, places: int) -> Placement:
    return tuple(tuple(block.tolist()) for block in np.array_split(np.arange(experts), places))


@given(loads, st.integers(1, 8), st.integers(1, 3), st.integers(1, 2), st.integers(0, 3), st.sampled_from([None, 1.25]))
def test_every_expert_is_placed_and_no_device_has_more_work_than_with_equal_blocks(
    load: list[float], places: int, nodes: int, esp: int, extra: int, capacity_factor: float | None
) -> None:
    drawn = layer(load, places, nodes, esp=esp, capacity_factor=capacity_factor)

    placement = balance_experts(drawn, extra)

    most = -(-len(load) // places) + extra
    assert len(placement) == places
    assert {expert for held in placement for expert in held} == set(range(len(load)))
    assert all(len(set(held)) == len(held) <= most and list(held) == sorted(held) for held in placement)
    equal = device_rows(replace(drawn, placement=blocks(len(load), places)))
    assert device_rows(replace(drawn, placement=placement)).max() <= equal.max() + 1e-8
    assert placement == balance_experts(drawn, extra)


@given(loads, st.integers(1, 8), st.integers(1, 3))
def test_nothing_is_replicated_without_free_slots(load: list[float], places: int, nodes: int) -> None:
    placement = balance_experts(layer(load, places, nodes))

    assert sorted(expert for held in placement for expert in held) == list(range(len(load)))


@given(loads, st.integers(1, 8), st.integers(0, 3))
def test_each_method_fills_the_slots_without_duplicates_in_a_place(load: list[float], places: int, extra: int) -> None:
    most = -(-len(load) // places) + extra
    nodes = [place // 2 for place in range(places)]
    of = np.array(load)
    for placement in (
        place_globally(of, places, extra),
        place_by_node(of, nodes, extra),
        place_shadows(of, nodes, extra),
    ):
        assert {expert for held in placement for expert in held} == set(range(len(load)))
        assert all(len(set(held)) == len(held) <= most for held in placement)


@given(loads, st.integers(2, 8), st.integers(1, 3))
def test_hierarchical_keeps_the_replicas_of_an_expert_on_one_node(load: list[float], places: int, extra: int) -> None:
    nodes = [place // 2 for place in range(places)]
    placement = place_by_node(np.array(load), nodes, extra)

    for expert in range(len(load)):
        assert len({nodes[place] for place, held in enumerate(placement) if expert in held}) == 1


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=6).filter(lambda load: len(load) % 2 == 0))
def test_two_experts_per_place_are_within_the_bound_of_lpt(load: list[float]) -> None:
    """Graham 1969: longest first takes at most 4/3 - 1/(3 m) of the optimum; here with two slots per place."""
    places = len(load) // 2
    placement = place_globally(np.array(load), places)

    orders = permutations(load)
    best = min(max(order[2 * p] + order[2 * p + 1] for p in range(places)) for order in orders)
    assert max(sum(load[e] for e in held) for held in placement) <= (4 / 3 - 1 / (3 * places)) * best * (1 + 1e-9)


def test_the_hottest_expert_is_replicated_until_the_slots_are_full() -> None:
    assert replica_counts(np.array([8.0, 4.0, 1.0]), 6, most=4) == [3, 2, 1]
    assert replica_counts(np.array([8.0, 0.0]), 8, most=2) == [2, 1]  # no more than places, and none of the idle


def test_replicas_divide_the_load_of_a_hot_expert() -> None:
    drawn = layer([13, 1, 1, 1], places=4)

    alone, twice = (device_load(replace(drawn, placement=balance_experts(drawn, extra))).max() for extra in (0, 1))

    assert alone == pytest.approx(4 * 13 / 16)
    assert twice < alone / 2


def test_replicas_on_every_node_reduce_messages_between_nodes() -> None:
    """Equally balanced placements are ranked by the number of token assignments that cross nodes."""
    drawn = layer(None, places=4, nodes=2, experts=4)

    apart, together = (balance_experts(drawn, extra) for extra in (0, 1))

    assert crossing_assignments(replace(drawn, placement=apart)) == pytest.approx(0.5)
    assert crossing_assignments(replace(drawn, placement=together)) < 0.5
    assert device_load(replace(drawn, placement=together)).max() == pytest.approx(1)


def test_a_device_has_the_load_of_its_place() -> None:
    load = device_load(layer([3, 1], places=2, esp=2))

    assert load == pytest.approx([1.5, 1.5, 0.5, 0.5])


@given(loads, st.integers(1, 6), st.integers(1, 3))
def test_the_loads_of_all_devices_sum_to_the_whole_load(load: list[float], places: int, nodes: int) -> None:
    drawn = layer(load, places, nodes)
    assert device_load(replace(drawn, placement=balance_experts(drawn, 2))).mean() == pytest.approx(1)


@given(loads, st.integers(1, 8), st.integers(1, 3), st.integers(0, 3))
def test_the_shares_of_an_experts_copies_sum_to_its_load(
    load: list[float], places: int, nodes: int, extra: int
) -> None:
    drawn = layer(load, places, nodes)
    placement = balance_experts(drawn, extra)

    served = load_per_replica(replace(drawn, placement=placement))

    assert served.sum(axis=0) == pytest.approx(drawn.shares)
    assert all(set(np.flatnonzero(part)) <= set(held) for part, held in zip(served, placement, strict=True))


def test_a_copy_that_is_near_to_more_places_serves_a_larger_share() -> None:
    near = replace(layer(None, 4, nodes=2, experts=4), placement=((0, 1), (2,), (3,), (0,)))
    assert load_per_replica(near)[:, 0] == pytest.approx([1 / 8, 0, 0, 1 / 8])

    lonely = replace(near, nodes=(0, 0, 0, 1))
    assert load_per_replica(lonely)[:, 0] == pytest.approx([3 / 16, 0, 0, 1 / 16])
    folded = replace(lonely, mp=4)
    assert load_per_replica(folded, "mp")[:, 0] == pytest.approx([1 / 8, 0, 0, 1 / 8])  # they share its rows


def test_with_a_capacity_slots_are_balanced_first_and_then_tokens() -> None:
    drawn = layer([9, 8, 7, 6, 1, 1, 1, 1], places=4, capacity_factor=1.0)
    equal = replace(drawn, placement=blocks(8, 4))

    alone, twice = (replace(drawn, placement=balance_experts(drawn, extra)) for extra in (0, 1))

    assert device_rows(alone).max() == device_rows(twice).max() == 1
    assert device_load(alone).max() < device_load(equal).max()


def test_with_a_capacity_replicas_balance_an_indivisible_number_of_experts() -> None:
    drawn = layer([1] * 10, places=4, capacity_factor=1.0)

    alone, twice = (device_rows(replace(drawn, placement=balance_experts(drawn, extra))).max() for extra in (0, 1))

    assert alone == pytest.approx(1.2)
    assert twice == pytest.approx(1)
