"""Every step of an expert layer against its adjoint, and Parm's SAA against what it overlaps, on eight processes."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.engine.experts import Layer, StepOp, equal_blocks
from meshwave.engine.experts._steps import ADJOINT
from tests.engine.runtime.experts.step_processes import InnerProducts, OverlapOutcome

PROCESSES = "tests.engine.runtime.experts.step_processes"
COMPUTES = {StepOp.GATE, StepOp.EXPERTS}
PAIRS = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (2, 4), (4, 4), (4, 1), (8, 4), (2, 8)]
UNEVEN = ((0, 1, 5), (2,), (), (3, 4, 5, 0), (6,), (7, 1), (2,), (0,))
"""A placement of eight experts on eight places, with replicas and a place that has none."""


def make_layer(mp: int, esp: int, *, per_node: int = 8, **options: Any) -> Layer:
    ep = 8 // esp
    sizes: dict[str, Any] = {"experts": 2 * ep, "tokens": 16, "hidden": 6, "ffn_hidden": 16, "top_k": 2}
    nodes = tuple(device // per_node for device in range(8))
    return Layer(mp=mp, ep=ep, esp=esp, nodes=nodes, item_bytes=8, **{**sizes, "capacity_factor": None, **options})


def call(crew: Any, function: str, argument: Any) -> list[Any]:
    outcomes = crew.call(f"{PROCESSES}:{function}", 8, argument)
    errors = [outcome for outcome in outcomes if not isinstance(outcome, list)]
    assert not errors, errors
    return outcomes  # type: ignore[no-any-return]


def relative_difference(products: InnerProducts) -> float:
    return abs(products.forward - products.adjoint) / max(abs(products.forward), 1.0)


def test_the_backward_of_every_linear_step_is_its_adjoint(crew: Any) -> None:
    """``<A x, y> = <x, A^T y>`` on every grid of groups, and with uneven placements and replicas."""
    layers = [*(make_layer(mp, esp) for mp, esp in PAIRS), make_layer(2, 1, experts=8, placement=UNEVEN)]
    layers.append(make_layer(4, 2, experts=8, placement=(*UNEVEN[:2], (3, 4, 5, 0), (6, 7, 1))))

    for found in call(crew, "inner_products", layers):
        names = {each.name.split(" over ")[0].split(",")[0] for products in found for each in products}
        assert names == {op.value for op in ADJOINT if op not in COMPUTES}
        wrong = {
            (number, each.name): each
            for number, products in enumerate(found)
            for each in products
            if relative_difference(each) > 1e-12
        }
        assert not wrong


def test_the_backward_of_a_step_that_computes_is_the_adjoint_of_its_differential(crew: Any) -> None:
    for found in call(crew, "differentials", make_layer(2, 2)):
        assert len(found) >= 6
        assert not [each for each in found if relative_difference(each) > 1e-7]


# ---- the all-to-all with the all-gather under it ----

OVERLAPS = [
    *(make_layer(mp, esp) for mp, esp in ((2, 1), (8, 1), (4, 2), (8, 4), (2, 4))),
    make_layer(4, 1, degree=2),
    make_layer(2, 2, per_node=4, degree=3),
    make_layer(4, 2, per_node=4, degree=4),
    make_layer(4, 1, per_node=4, capacity_factor=0.4),
    make_layer(4, 1, experts=8, placement=UNEVEN, degree=2),
    make_layer(2, 1, experts=8, placement=UNEVEN, per_node=4),
]
"""One node and two, fewer and more copies of a token than shards of an expert, chunks, drops, uneven placements."""
OverlapCase = tuple[int, Layer, OverlapOutcome]
"""A process, a layer, and the outcome of the process."""


@pytest.fixture(scope="module")
def overlaps(crew: Any) -> list[OverlapCase]:
    outcomes = enumerate(call(crew, "compare_overlaps", OVERLAPS))
    return [(process, *each) for process, found in outcomes for each in zip(OVERLAPS, found, strict=True)]


def test_a_gather_under_the_exchange_has_the_bits_of_one_after_it(overlaps: list[OverlapCase]) -> None:
    for _, layer, found in overlaps:
        same = dict(zip(found.names, found.is_same, strict=True))
        assert all(found.is_same), (layer.mp, layer.esp, layer.degree, same)


def test_each_exchange_step_brings_the_experts_of_one_place_to_every_peer(overlaps: list[OverlapCase]) -> None:
    """On one node, step ``i`` brings a peer the results of the experts at the place ``peer's place - i``."""
    on_one_node = [each for each in overlaps if each[1].placement is None and set(each[1].nodes or ()) == {0}]
    assert any(layer.mp > layer.esp for _, layer, _ in on_one_node)
    for process, layer, found in on_one_node:
        experts = [list(block) for block in equal_blocks(layer.experts, layer.ep)]
        places = [peer // layer.esp for peer in layer.members("mp", process)]
        assert found.gathered == [[experts[(place - step) % layer.ep] for place in places] for step in range(layer.ep)]


def test_every_peer_receives_the_results_of_all_experts_once(overlaps: list[OverlapCase]) -> None:
    for _, layer, found in overlaps:
        for peer in range(layer.mp):
            assert sorted(expert for step in found.gathered for expert in step[peer]) == list(range(layer.experts))
