"""The expert layer on eight processes against one that has all experts: outputs, gradients, bytes.

Point by point what an implementation of Parm and PPMoE has to show:

1. outputs and all gradients equal one process, in float64, float32 and bf16:
   ``test_every_schedule_computes_what_one_process_does``, ``test_other_precisions_...``
2. over a grid of groups, experts, choices and capacities: :func:`grid`
3. with drops S1 is what gates of parts of the tokens come to, the others what one gate comes to:
   ``test_where_tokens_are_dropped_...``
4. the gather under the exchange has the bits of one after it: ``test_moe_operators.py``
5. inner products of every step: ``test_moe_operators.py``
6. what is broken on purpose is seen: ``test_each_rule_of_the_gradients_is_needed``
7. bytes are the formulas': ``test_what_is_sent_is_what_was_priced``
8. no tokens, all tokens, slots that are rounded up, as many tokens as devices, experts that hold none:
   ``test_chunks_losses_replicas_and_odd_places_change_nothing``; no gradient is None: :func:`differences`
9. the same bits again: ``test_the_same_seed_gives_the_same_bits``; another layout, the same losses:
   the models with experts of ``test_equality.py``, and ``test_moe_designs.py``
10. several layers, optimizer steps, microbatches and recomputation: ``test_chunks_...``; in whole models:
    ``test_experts_that_drop_tokens_and_are_computed_again_train_like_one_process`` of ``test_equality.py``
11. PPMoE in pipeline stages: the models with experts of ``test_equality.py``
12. the automatic choice is the faster of its two, and turns where the formulas have it: ``test_price.py``;
    that among all schedules is the fastest of those that change no result: ``test_auto.py``, ``test_moe_designs.py``
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from meshwave.engine.experts import Layer, Line, Links, StepOp, expert_schedules, price
from meshwave.engine.experts._price import share_of_rows
from tests.engine.runtime.moe_reference import Case, Outcome, run

pytestmark = pytest.mark.torch

PAIRS = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (2, 4), (4, 4), (4, 1), (8, 4), (2, 8)]
LINKS = Links(Line(1e-5, 1e-9), Line(5e-5, 1e-8))
SCHEDULES = [name for name, schedule in expert_schedules.items() if not schedule.chooses]
WORK = "tests.engine.runtime.moe_works:play"


def layer(schedule: str, mp: int, esp: int, *, each: int = 2, **options: Any) -> Layer:
    """A small layer over eight processes, ``each`` experts a place."""
    folded = expert_schedules[schedule].places == "mp"
    ep, esp = (mp, 1) if folded else (8 // esp, esp)
    sizes: dict[str, Any] = {"tokens": 16, "hidden": 6, "ffn_hidden": 16, "top_k": 2, "capacity_factor": None}
    return Layer(mp=mp, ep=ep, esp=esp, experts=each * ep, item_bytes=8, **{**sizes, **options})


def can(case: Case) -> bool:
    if next(expert_schedules[case.schedule]().problems(case.layer), None) or case.layer.experts < case.layer.top_k:
        return False
    gathers_first = case.schedule == "deepspeed-pregate" and case.layer.esp > 1
    return not (gathers_first and (case.layer.capacity_factor is not None or case.aux))  # its gate sees other tokens


def reference(case: Case) -> Outcome:
    """What one process comes to: the same for all schedules whose gates see the same tokens."""
    dropping = case.layer.capacity_factor is not None
    schedule = case.schedule if dropping and case.domain > 1 else "any"
    return _reference(case.same(schedule=schedule, layer=replace(case.layer, ep=1, esp=1, homes=None)))


_reference = cache(run)


def differences(case: Case, found: list[Any]) -> float:
    """The largest error of anything that any process has."""
    expected, worst = reference(case), 0.0
    for process, mine in enumerate(found):
        shard = process // case.layer.mp
        for got, wanted in ((mine.y, expected.y), (mine.dx, expected.dx)):
            for microbatch, tensor in enumerate(got):
                worst = max(worst, away(tensor, wanted[microbatch * case.shards + shard]))
        for kind in ("gradients", "weights") if case.steps else ("gradients",):
            for name, tensor in getattr(mine, kind).items():
                assert tensor is not None, f"{name} has no gradient on process {process}"
                whole = getattr(expected, kind)[name]
                cut = mine.cuts.get(name)
                worst = max(worst, away(tensor, cut.select(whole) if cut else whole))
    return worst


def away(one: Tensor, other: Tensor) -> float:
    size = max(1.0, float(other.abs().max())) if other.dtype != torch.float64 else 1.0
    return float((one - other).abs().max()) / size


def check(crew: Any, cases: list[Case], tolerance: float = 1e-9) -> list[list[Any]]:
    """Play all cases in one set of processes; what each process found of each case."""
    outcomes = crew.call(WORK, 8, cases)
    broken = [outcome for outcome in outcomes if not isinstance(outcome, list)]
    assert not broken, broken
    played = [list(found) for found in zip(*outcomes, strict=True)]
    wrong = {
        f"{case.schedule} mp={case.layer.mp} esp={case.layer.esp} k={case.layer.top_k} f={case.layer.capacity_factor}": far
        for case, found in zip(cases, played, strict=True)
        if not (far := differences(case, found)) < tolerance
    }
    assert not wrong, wrong
    return played


COMBINATIONS = list(product((1, 2), (1, 2), (1.0, 1.2, None)))
"""Experts of a place, experts of a token, capacity factors."""


def grid() -> Iterator[Case]:
    """Every combination on every grid of groups; a schedule has a sixth of them, other ones on other grids."""
    for (at, (mp, esp)), (turn, schedule) in product(enumerate(PAIRS), enumerate(SCHEDULES)):
        for number, (each, k, f) in enumerate(COMBINATIONS):
            if (number + number // 3 + at + turn) % 6 == 0:
                yield Case(schedule, layer(schedule, mp, esp, each=each, top_k=k, capacity_factor=f))


Played = list[tuple[Case, list[Any]]]
"""Cases, and what each process found of each."""


@pytest.fixture(scope="module")
def played(crew: Any) -> Played:
    """The grid, whose outcomes are those of one process."""
    cases = [case for case in grid() if can(case)]
    return list(zip(cases, check(crew, cases), strict=True))


def test_every_schedule_computes_what_one_process_does(played: Played) -> None:
    assert {case.schedule for case, _ in played} == set(SCHEDULES)
    assert len(played) > 100


def test_where_tokens_are_dropped_s1_may_drop_others_and_else_all_are_one(crew: Any) -> None:
    """S1's gates see a part of the tokens each. The others are what one gate of all tokens makes of them."""
    names = ("parm-s1", "parm-s2", "deepspeed", "a2a-allgather", "ppmoe")
    eight = {name: {"each": 4} if name == "ppmoe" else {} for name in names}
    dropping, roomy = (
        [Case(name, layer(name, 2, 2, capacity_factor=f, **eight[name])) for name in names] for f in (0.8, None)
    )
    found = dict(zip(names, check(crew, dropping), strict=True))
    whole = reference(dropping[1])
    assert all(reference(case) is whole for case in dropping[1:])
    assert max(away(each.y[0], whole.y[process // 2]) for process, each in enumerate(found["parm-s1"])) > 1e-3

    first, *others = check(crew, roomy)
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            assert away(mine.y[0], theirs.y[0]) < 1e-12 and away(mine.dx[0], theirs.dx[0]) < 1e-12


def test_chunks_losses_replicas_and_odd_places_change_nothing(crew: Any) -> None:
    homes = ((0, 1, 5), (2,), (), (3, 4, 5, 0), (6,), (7, 1), (2,), (0,))
    odd = [
        Case("parm-s1", layer("parm-s1", 2, 1, each=1, homes=homes)),
        Case("parm-s2", layer("parm-s2", 4, 1, each=1, homes=homes, degree=2)),
        Case("a2a-allgather", layer("a2a-allgather", 2, 2, homes=homes[:4] + ((),) * 0, each=2)),
        Case("ppmoe", layer("ppmoe", 2, 1, each=4, homes=((0, 1, 2, 3, 4, 5, 6), (7, 0, 1)))),
    ]
    chunked = [
        Case(schedule, layer(schedule, 2, 2, degree=degree, capacity_factor=f), aux=0.1, z=0.01)
        for schedule in ("parm-s1", "parm-s2", "deepspeed", "a2a-allgather")
        for degree, f in ((2, 1.2), (4, None))
    ]
    crowded = [
        Case(schedule, layer(schedule, 2, 2 if schedule != "ppmoe" else 1), forced=(1, 2))
        for schedule in ("parm-s1", "parm-s2", "deepspeed", "ppmoe")
    ]
    crowded.append(Case("parm-s2", layer("parm-s2", 2, 2), forced=(3,)))  # of the others, all alike, the first is next
    trained = [
        Case(schedule, layer(schedule, 2, 2 if schedule != "ppmoe" else 1), depth=2, steps=5, microbatches=2)
        for schedule in ("parm-s1", "parm-s2", "ppmoe")
    ]
    others = [
        Case("parm-s2", layer("parm-s2", 4, 2), recomputed=True),
        Case("parm-s1", layer("parm-s1", 4, 2, degree=2), split=True),
        Case("ppmoe", layer("ppmoe", 4, 1), split=True),
        Case("parm-s1", layer("parm-s1", 8, 1, tokens=8)),
        Case("parm-s2", layer("parm-s2", 4, 2, tokens=10, capacity_factor=1.0)),
    ]
    check(crew, [case for case in odd + chunked + crowded + trained + others if can(case)])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_other_precisions_are_as_near_as_they_can_be(dtype: torch.dtype, tolerance: float, crew: Any) -> None:
    names = ("deepspeed", "a2a-allgather", "parm-s1", "parm-s2", "ppmoe")
    cases = [Case(name, layer(name, 2, 2, top_k=k), dtype=dtype) for name in names for k in (1, 2)]
    check(crew, cases, tolerance)


SPOILT = [
    ("deepspeed", "every copy of a token counts"),
    ("deepspeed", "identity for the sum of shards"),
    ("parm-s1", "no sum of the gate"),
    ("parm-s2", "a sum of the gate"),
    ("ppmoe", "no sum of the input's gradient"),
    ("ppmoe", "results assigned, not added"),
]


def test_each_rule_of_the_gradients_is_needed(crew: Any) -> None:
    """What is broken on purpose is seen."""
    cases = [Case(name, layer(name, 2, 2), spoilt=rule) for name, rule in SPOILT]
    played = zip(*crew.call(WORK, 8, cases), strict=True)
    for case, found in zip(cases, played, strict=True):
        assert differences(case.same(spoilt=""), list(found)) > 1e-3, case.spoilt


def test_what_is_sent_is_what_was_priced(played: Played) -> None:
    """Bytes of every collective, on every process, forwards and backwards; of a gather in pieces their sum.

    Where slots are sent: without a capacity it depends on the load."""
    cases = [(case, found) for case, found in played if case.layer.capacity_factor is not None]
    assert {case.schedule for case, _ in cases} == set(SCHEDULES)
    for case, found in cases:
        priced = price(case.schedule, case.layer, LINKS)
        for way, direction in (("forward", priced.forward), ("backward", priced.backward)):
            expected: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
            for collective in priced.collectives(direction):
                expected[collective.name][0] += collective.buffer_bytes
                expected[collective.name][1] += collective.sent_bytes
            for mine in found:
                counted: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
                for message in mine.messages[way]:
                    counted[message.collective][0] += message.buffer_bytes
                    counted[message.collective][1] += message.sent_bytes
                assert counted == expected, (case.schedule, case.layer.mp, case.layer.esp, way)


def test_rows_are_computed_as_they_are_priced(crew: Any) -> None:
    """Of the load that was measured: all slots of an expert where their number is fixed, the tokens alone where
    none is dropped."""
    homes = ((0, 1, 5), (2, 3, 4, 5, 6), (7, 6), (1,))
    hot = {"load": (0, 0.5, 0.5, *(0,) * 5), "homes": ((0, 1), (1, 2), (2,), (3, 2), (4,), (5,), (6,), (7, 1))}
    cases = [
        Case("ppmoe", layer("ppmoe", 2, 1)),
        Case("ppmoe", layer("ppmoe", 4, 1, homes=homes)),
        Case("ppmoe", layer("ppmoe", 2, 1), forced=(3, 0)),
        Case("ppmoe", layer("ppmoe", 2, 1, capacity_factor=1.2)),
        Case("parm-s2", layer("parm-s2", 2, 2, capacity_factor=1.2)),
        Case("parm-s1", layer("parm-s1", 4, 2, capacity_factor=1.0, degree=2)),
        Case("expert-parallel", layer("expert-parallel", 1, 1)),
        Case("deepspeed", layer("deepspeed", 2, 2)),
        Case("deepspeed-lanes", layer("deepspeed-lanes", 2, 2)),
        Case("deepspeed-pregate", layer("deepspeed-pregate", 2, 2)),
        Case("a2a-allgather", layer("a2a-allgather", 2, 4, degree=2)),
        Case("parm-s1", layer("parm-s1", 4, 2, degree=2)),
        Case("parm-s2", layer("parm-s2", 4, 2, degree=2)),
        Case("parm-s2", layer("parm-s2", 4, 1, each=1, **hot), forced=(1, 2)),
    ]
    for case, found in zip(cases, check(crew, cases), strict=True):
        devices, near = case.layer.devices, len(homes) if case.layer.homes == homes else 1e-6
        for first in range(0, 8, devices):
            block = found[first : first + devices]
            routed = sum(each.load[0] for each in block).tolist()
            of = replace(case.layer, load=tuple(count / sum(routed) for count in routed))
            priced = price(case.schedule, of, LINKS)
            (experts,) = (costed.step for costed in priced.forward if costed.step.op == StepOp.EXPERTS)
            rows = [sum(each.rows) for each in block]
            assert rows == pytest.approx((experts.rows * share_of_rows(of, experts)).tolist(), abs=near), case
            assert max(rows) == pytest.approx(priced.rows, abs=near), case


def test_a_hot_expert_keeps_its_own_device_busy_alone(crew: Any) -> None:
    """All tokens ask for two of eight experts: no other device computes a row."""
    (found,) = check(crew, [Case("parm-s1", layer("parm-s1", 2, 1, each=1), forced=(1, 2))])

    assert [sum(each.rows) for each in found] == [0, 64, 64, 0, 0, 0, 0, 0]


def test_the_same_seed_gives_the_same_bits(crew: Any) -> None:
    cases = [Case("parm-s2", layer("parm-s2", 4, 2, degree=2)), Case("deepspeed", layer("deepspeed", 2, 2))]
    one, other = (check(crew, cases) for _ in range(2))
    for mine, theirs in zip(one, other, strict=True):
        for here, there in zip(mine, theirs, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(here.y + here.dx, there.y + there.dx, strict=True))
            assert all(torch.equal(g, there.gradients[name]) for name, g in here.gradients.items())
