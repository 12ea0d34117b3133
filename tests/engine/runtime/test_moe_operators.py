"""Every step of an expert layer against its adjoint, and Parm's SAA against what it overlaps, on eight processes."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.engine.experts import Layer, StepOp, contiguous
from meshwave.engine.experts._steps import ADJOINT
from tests.engine.runtime.moe_operators import Overlapped, Products

pytestmark = pytest.mark.torch

OPERATORS = "tests.engine.runtime.moe_operators"
COMPUTES = {StepOp.GATE, StepOp.EXPERTS}
PAIRS = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (2, 4), (4, 4), (4, 1), (8, 4), (2, 8)]
UNEVEN = ((0, 1, 5), (2,), (), (3, 4, 5, 0), (6,), (7, 1), (2,), (0,))
"""Homes of eight experts on eight places, with replicas and a place that has none."""


def layer(mp: int, esp: int, *, per_node: int = 8, **options: Any) -> Layer:
    ep = 8 // esp
    sizes: dict[str, Any] = {"experts": 2 * ep, "tokens": 16, "hidden": 6, "ffn_hidden": 16, "top_k": 2}
    nodes = tuple(device // per_node for device in range(8))
    return Layer(mp=mp, ep=ep, esp=esp, nodes=nodes, item_bytes=8, **{**sizes, "capacity_factor": None, **options})


def called(crew: Any, what: str, argument: Any) -> list[Any]:
    outcomes = crew.call(f"{OPERATORS}:{what}", 8, argument)
    broken = [outcome for outcome in outcomes if not isinstance(outcome, list)]
    assert not broken, broken
    return outcomes  # type: ignore[no-any-return]


def apart(of: Products) -> float:
    return abs(of.forward - of.adjoint) / max(abs(of.forward), 1.0)


def test_every_linear_step_is_followed_backwards_by_its_adjoint(crew: Any) -> None:
    """``<A x, y> = <x, A^T y>``: on every grid of groups, and where experts have odd homes and replicas."""
    layers = [*(layer(mp, esp) for mp, esp in PAIRS), layer(2, 1, experts=8, homes=UNEVEN)]
    layers.append(layer(4, 2, experts=8, homes=(*UNEVEN[:2], (3, 4, 5, 0), (6, 7, 1))))

    for found in called(crew, "products", layers):
        seen = {each.name.split(" over ")[0].split(",")[0] for products in found for each in products}
        assert seen == {op.value for op in ADJOINT if op not in COMPUTES}
        wrong = {(at, each.name): each for at, products in enumerate(found) for each in products if apart(each) > 1e-12}
        assert not wrong


def test_what_computes_is_followed_backwards_by_the_adjoint_of_its_differential(crew: Any) -> None:
    for found in called(crew, "differentials", layer(2, 2)):
        assert len(found) >= 6
        assert not [each for each in found if apart(each) > 1e-7]


# ---- the all-to-all with the all-gather under it ----

OVERLAPS = [
    *(layer(mp, esp) for mp, esp in ((2, 1), (8, 1), (4, 2), (8, 4), (2, 4))),
    layer(4, 1, degree=2),
    layer(2, 2, per_node=4, degree=3),
    layer(4, 2, per_node=4, degree=4),
    layer(4, 1, per_node=4, capacity_factor=0.4),
    layer(4, 1, experts=8, homes=UNEVEN, degree=2),
    layer(2, 1, experts=8, homes=UNEVEN, per_node=4),
]
"""One node and two, fewer and more copies of a token than shards of an expert, chunks, drops, odd homes."""


@pytest.fixture(scope="module")
def saa(crew: Any) -> list[tuple[int, Layer, Overlapped]]:
    """What each process came to with each layer."""
    played = enumerate(called(crew, "overlapped", OVERLAPS))
    return [(process, *of) for process, found in played for of in zip(OVERLAPS, found, strict=True)]


def test_a_gather_under_the_exchange_gives_the_bits_of_one_after_it(saa: list[tuple[int, Layer, Overlapped]]) -> None:
    """As the last steps of the layer forwards, and of its gradient backwards."""
    for _, of, found in saa:
        assert all(found.same), (of.mp, of.esp, of.degree, dict(zip(found.names, found.same, strict=True)))


def test_pieces_go_where_the_placement_rule_has_them(saa: list[tuple[int, Layer, Overlapped]]) -> None:
    """On one node the piece of a peer at step ``i`` is of the experts of place ``ep_of_peer - i``."""
    on_one = [each for each in saa if each[1].homes is None and set(each[1].nodes or ()) == {0}]
    assert any(of.mp > of.esp for _, of, _ in on_one)
    for process, of, found in on_one:
        of_place = [list(block) for block in contiguous(of.experts, of.ep)]
        places = [peer // of.esp for peer in of.members("mp", process)]
        assert found.pieces == [[of_place[(place - step) % of.ep] for place in places] for step in range(of.ep)]


def test_all_experts_come_to_every_peer_once(saa: list[tuple[int, Layer, Overlapped]]) -> None:
    """Node by node too, and wherever they lie."""
    for _, of, found in saa:
        for peer in range(of.mp):
            assert sorted(expert for piece in found.pieces for expert in piece[peer]) == list(range(of.experts))
