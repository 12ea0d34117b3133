"""Traffic between devices, and its sum by nodes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.traffic import MOST_ROWS, Traffic


def test_messages_are_summed_without_those_to_the_device_itself() -> None:
    found = Traffic.from_messages([4, 5, 9], [0, 0, 1], [(4, 5, 10.0), (4, 5, 2.0), (9, 4, 7.0), (5, 5, 100.0)])

    assert found.bytes.tolist() == [[0, 12, 0], [0, 0, 0], [7, 0, 0]]
    assert (found.bytes_inside_nodes, found.bytes_between_nodes) == (12, 7)
    assert found.to_json()["numbers"] == [4, 5, 9]


@given(nodes=st.lists(st.integers(0, 9), min_size=MOST_ROWS + 1, max_size=MOST_ROWS + 30))
def test_many_devices_are_summed_by_node(nodes: list[int]) -> None:
    sent = np.random.default_rng(len(nodes)).uniform(0, 9, (len(nodes), len(nodes)))
    whole = Traffic.between_devices(range(len(nodes)), nodes, sent)

    by_node = whole.limit_rows()

    assert (by_node.unit, by_node.numbers) == ("node", tuple(sorted(set(nodes))))
    assert by_node.bytes_inside_nodes == pytest.approx(whole.bytes_inside_nodes)
    assert by_node.bytes_between_nodes == pytest.approx(whole.bytes_between_nodes)
    assert by_node.limit_rows() is by_node


def test_few_devices_are_listed_one_by_one() -> None:
    found = Traffic.between_devices([0, 1], [0, 0], np.ones((2, 2)))

    assert found.limit_rows() is found
