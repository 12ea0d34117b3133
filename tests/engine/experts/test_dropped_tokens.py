"""Dropped tokens: compared with an enumeration of all choices of tokens, and with the excess over the capacity."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import comb, prod

import pytest

from meshwave.engine.experts import Layer, dropped_token_share, expert_schedules


def layer(tokens: int, experts: int, *, mp: int = 1, **changes: object) -> Layer:
    sizes = {"mp": mp, "ep": 1, "esp": mp, "experts": experts, "tokens": tokens, "hidden": 8, "ffn_hidden": 16}
    return Layer(**{**sizes, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("shares", [(0.25, 0.25, 0.5), (0.7, 0.2, 0.1), (1.0, 0.0, 0.0)])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_the_dropped_share_is_the_mean_over_all_choices_of_tokens(shares: tuple[float, ...], factor: float) -> None:
    of = layer(6, 3, capacity_factor=factor, load=shares)
    expected = 0.0
    for chosen in product(range(3), repeat=6):
        above = sum(max(chosen.count(expert) - of.capacity, 0) for expert in range(3))
        expected += prod(shares[expert] for expert in chosen) * above / 6

    assert dropped_token_share("expert-parallel", of) == pytest.approx(expected)


def test_a_hot_expert_drops_the_excess_over_its_capacity() -> None:
    of = layer(1_000_000, 4, capacity_factor=1.2, load=(0.5, 0.2, 0.2, 0.1))

    assert dropped_token_share("expert-parallel", of) == pytest.approx(0.5 - 1.2 / 4, abs=1e-4)


def test_each_of_many_experts_has_its_own_probability() -> None:
    shares = tuple((expert + 1) / 20_100 for expert in range(200))
    of = layer(400, 200, capacity_factor=0.5, load=shares)
    expected = sum(
        comb(400, count) * share**count * (1 - share) ** (400 - count) * (count - of.capacity) / 400
        for share in shares
        for count in range(of.capacity, 41)
    )

    assert dropped_token_share("expert-parallel", of) == pytest.approx(expected)


def test_the_dropped_share_does_not_depend_on_the_placement() -> None:
    of = layer(64, 4, mp=2, load=(0.4, 0.3, 0.2, 0.1))

    assert (
        dropped_token_share("ppmoe", replace(of, nodes=(0, 1), placement=((0, 1, 2), (0, 3))))
        == dropped_token_share("ppmoe", of)
        > 0
    )


def test_an_expert_that_every_token_visits_drops_all_tokens_beyond_its_slots() -> None:
    """No token visits an expert twice.

    Of 12 visits, 8 are to the hot expert, and a mean of 4 to the other one, whose mean excess over 4 slots is half its
    mean deviation (De Moivre).
    """
    of = layer(8, 2, top_k=2, capacity_factor=0.5, load=(0.75, 0.25))

    assert of.capacity == 4
    assert dropped_token_share("expert-parallel", of) == pytest.approx((8 - 4 + 8 * comb(7, 4) / 2**8 / 2) / 12)


def test_nothing_is_dropped_without_a_capacity_or_with_sufficient_slots() -> None:
    for factor in (None, 4.0):
        assert (
            dropped_token_share("expert-parallel", layer(64, 4, capacity_factor=factor, load=(0.7, 0.1, 0.1, 0.1))) == 0
        )


@pytest.mark.parametrize("name", [name for name, each in expert_schedules.items() if not each.chooses])
def test_a_gate_that_routes_a_part_of_the_tokens_drops_more_by_chance(name: str) -> None:
    found, whole = (
        dropped_token_share(name, layer(64, 4, mp=2)),
        dropped_token_share("expert-parallel", layer(64, 4, mp=2)),
    )

    assert 0 < whole < 0.1
    assert (found > 1.3 * whole) if expert_schedules[name].gate_sees_part else (found == whole)
