"""The order in which the processes of a group exchange their parts."""

from __future__ import annotations

import pytest

from meshwave.engine.experts import Layer
from meshwave.engine.runtime.experts.overlap import ExchangeOrder, exchange_order

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ((0,) * 8, ExchangeOrder(1, 4)),
        ((0,) * 4 + (1,) * 4, ExchangeOrder(2, 2)),
        ((0,) * 6 + (1,) * 2, ExchangeOrder(1, 4)),
    ],
)
def test_places_exchange_inside_their_node_first(nodes: tuple[int, ...], expected: ExchangeOrder) -> None:
    four = Layer(mp=2, ep=4, esp=2, experts=4, tokens=4, hidden=2, ffn_hidden=2, nodes=nodes)

    order = exchange_order(four)

    assert order == expected
    for number in range(4):  # a permutation at every step, and every place once
        assert sorted(order.receiving_place(place, number) for place in range(4)) == list(range(4))
        assert all(order.sending_place(order.receiving_place(place, number), number) == place for place in range(4))
    assert all(sorted(order.receiving_place(place, n) for n in range(4)) == list(range(4)) for place in range(4))
