"""Contention in a profile: ratios over repetitions, factors for the network model, files, and text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.costs.contention import ROWS, LinkSharing, PairOrder, Ratio, describe_contention, link_sharing
from meshwave.engine.costs.profile import Profile, parse_profile
from meshwave.engine.findings import DesignError
from tests.engine.costs.profiles import contention, example_profile

RATIOS = st.floats(1e-3, 1e3)


@given(st.lists(RATIOS, min_size=1, max_size=9))
def test_half_of_the_repetitions_lie_between_the_quartiles_and_the_median_does(samples: list[float]) -> None:
    ratio = Ratio.from_samples(samples)
    first, third = ratio.quartiles

    assert min(samples) <= first <= ratio.median <= third <= max(samples)
    inside = sum(first * (1 - 1e-9) <= sample <= third * (1 + 1e-9) for sample in samples)
    assert inside >= len(samples) / 2 - 1
    assert [ratio.median * (1 + off) for off in ratio.residuals] == pytest.approx(samples)


@given(first=st.floats(1e-3, 1.0), rest=st.floats(0.0, 1.0))
def test_messages_whose_first_takes_half_of_the_time_are_sequential(first: float, rest: float) -> None:
    """The second message follows the first, within a fifth; messages that share a link arrive together."""
    assert PairOrder.from_samples([(first, first * (1.8 + 0.4 * rest))]).order == "sequential"
    assert PairOrder.from_samples([(first, first * (1 + 0.2 * rest))]).order == "shared"


# ---- what a model of the network reads ----


def test_an_older_profile_has_no_contention_and_shares_nothing() -> None:
    document = json.loads(example_profile().to_json())

    assert "contention" not in document
    assert link_sharing(parse_profile(json.dumps(document)).contention) == LinkSharing(1.0, None, 1.0, 1.0)


def test_each_kind_of_link_has_its_own_factors() -> None:
    inside = contention("same_node", shared_rate=Ratio.from_samples([1.7]), duplex_rate=Ratio.from_samples([0.6]))

    assert link_sharing(example_profile(contention=(inside,)).contention) == LinkSharing(
        same_node_capacity=1.7, same_node_duplex=0.6
    )
    across = contention(shared_rate=Ratio.from_samples([1.2]))
    assert link_sharing(example_profile(contention=(inside, across)).contention) == LinkSharing(1.2, 1.7, 0.8, 0.6)


def test_a_pair_of_processes_alone_on_its_nodes_has_a_capacity_of_one() -> None:
    found = link_sharing(example_profile(contention=(contention(shared_rate=None),)).contention)

    assert (found.across_nodes_capacity, found.across_nodes_duplex) == (1.0, 0.8)


@given(shared=RATIOS, duplex=RATIOS)
def test_noise_never_makes_a_link_slower_than_one_message_or_faster_than_two(shared: float, duplex: float) -> None:
    measured = contention(shared_rate=Ratio.from_samples([shared]), duplex_rate=Ratio.from_samples([duplex]))
    found = link_sharing(example_profile(contention=(measured,)).contention)

    assert found.across_nodes_capacity == min(2.0, max(1.0, shared))
    assert found.across_nodes_duplex == min(1.0, max(0.5, duplex))


# ---- files and text ----


def test_contention_is_read_back_and_takes_a_line_per_link() -> None:
    made = example_profile(contention=(contention("same_node", shared_rate=None), contention()))
    text = made.to_json()

    assert parse_profile(text) == made
    assert sum(line.lstrip().startswith('{"pair"') and "message_bytes" in line for line in text.splitlines()) == 2


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"pair": "same_device"}, r"contention\[0\].pair"),
        ({"alone_s": 0.0}, r"contention\[0\].alone_s"),
        ({"shared_rate": {"median": 1.0, "samples": []}}, r"contention\[0\].shared_rate.samples"),
        ({"rate": 1.0}, r"contention\[0\].rate: .*unknown key 'rate'"),
    ],
)
def test_invalid_contention_is_refused_at_its_key(change: dict[str, Any], where: str) -> None:
    document = json.loads(example_profile(contention=(contention(),)).to_json())
    document["contention"][0] |= change

    with pytest.raises(DesignError, match=where):
        parse_profile(json.dumps(document))


def test_every_measurement_is_described_with_its_unit() -> None:
    alone, shared, duplex, order, beside = describe_contention(contention())

    assert alone == "2.5 MB in 100 ms, 25 MB/s"
    assert shared == "25 MB/s in total, 1.00x (IQR 0.95-1.05) one alone"
    assert duplex == "20 MB/s each way, 0.80x (IQR 0.80-0.80) one way alone"
    assert order == "one after the other: arrived after 105 ms and 200 ms"
    assert beside == "all-reduce of 4 ranks 1.50x (IQR 1.50-1.50) its time alone, message 2.00x (IQR 2.00-2.00)"
    lacking = contention(shared_rate=None, pair_order=None, collective_beside_transfer=None)
    assert [bool(words) for words in describe_contention(lacking)] == [True, False, True, False, False]
    assert len(ROWS) == len(describe_contention(lacking))


def test_the_schema_of_a_profile_says_what_each_figure_is() -> None:
    definitions = Profile.model_json_schema()["$defs"]

    for name in ("message_bytes", "alone_s", "alone_samples_s", "shared_rate", "duplex_rate"):
        assert definitions["Contention"]["properties"][name]["description"]
