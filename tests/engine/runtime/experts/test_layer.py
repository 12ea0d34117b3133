"""The expert layer on eight processes against one that has all experts: outputs, gradients, bytes.

Requirements on an implementation of Parm and PPMoE, and the tests that check them:

1. outputs and all gradients equal those of one process, in float64, float32 and bf16:
   ``test_every_schedule_matches_one_process``, ``test_lower_precisions_match_...``
2. over a grid of groups, experts, choices and capacities: :func:`grid`
3. with dropped tokens, S1 equals gates that each see a part of the tokens, the others equal one gate:
   ``test_dropped_tokens_differ_only_under_s1``
4. the gather under the exchange has the bits of one after it: ``test_steps.py``
5. inner products of every step: ``test_steps.py``
6. a broken rule changes the gradients: ``test_each_rule_of_the_gradients_is_needed``
7. bytes are those of the formulas: ``test_sent_bytes_are_those_of_the_cost_model``
8. no tokens, all tokens, slots that are rounded up, as many tokens as devices, places without experts:
   ``test_chunks_losses_replicas_and_uneven_places_match_one_process``; no gradient is None: :func:`largest_error`
9. the same bits again: ``test_the_same_seed_gives_the_same_bits``; another layout, the same losses:
   the models with experts of ``test_equality.py``, and ``test_designs.py``
10. several layers, optimizer steps, microbatches and recomputation: ``test_chunks_...``; in whole models:
    ``test_equality.py``
11. PPMoE in pipeline stages: the models with experts of ``test_equality.py``
12. the automatic choice is the faster of its two, and changes where the formulas do: ``test_price.py``;
    the choice among all schedules is the fastest of those that change no result: ``test_auto.py``, ``test_designs.py``
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

from meshwave.engine.document.architecture import PLAIN, Mlp
from meshwave.engine.document.model import Router
from meshwave.engine.experts import Layer, Line, Links, StepOp, expert_schedules, price_expert_schedule
from meshwave.engine.experts._price import share_of_rows
from tests.engine.runtime.experts.reference_layer import Case, Outcome, run_reference

PAIRS = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (2, 4), (4, 4), (4, 1), (8, 4), (2, 8)]
LINKS = Links(Line(1e-5, 1e-9), Line(5e-5, 1e-8))
SCHEDULES = [name for name, schedule in expert_schedules.items() if not schedule.chooses]
RUN_CASES = "tests.engine.runtime.experts.layer_processes:run_cases"


def make_layer(schedule: str, mp: int, esp: int, *, each: int = 2, **options: Any) -> Layer:
    """Return a small layer over eight processes, with ``each`` experts per place."""
    is_folded = expert_schedules[schedule].places == "mp"
    ep, esp = (mp, 1) if is_folded else (8 // esp, esp)
    sizes: dict[str, Any] = {"tokens": 16, "hidden": 6, "ffn_hidden": 16, "top_k": 2, "capacity_factor": None}
    return Layer(mp=mp, ep=ep, esp=esp, experts=each * ep, item_bytes=8, **{**sizes, **options})


def is_comparable(case: Case) -> bool:
    """Return True if a case is valid and its gates route the same tokens as those of the reference."""
    if next(expert_schedules[case.schedule]().problems(case.layer), None) or case.layer.experts < case.layer.top_k:
        return False
    gathers_first = case.schedule == "deepspeed-pregate" and case.layer.esp > 1
    return not (gathers_first and (case.layer.capacity_factor is not None or case.aux_loss))


def reference(case: Case) -> Outcome:
    """Return the results of one process, shared by all schedules whose gates route the same tokens."""
    drops_tokens = case.layer.capacity_factor is not None
    schedule = case.schedule if drops_tokens and case.gates_per_input > 1 else "any"
    return _reference(case.with_changes(schedule=schedule, layer=replace(case.layer, ep=1, esp=1, placement=None)))


_reference = cache(run_reference)


def largest_error(case: Case, outcomes: list[Any]) -> float:
    """Return the largest error of any tensor of any process."""
    expected, largest = reference(case), 0.0
    for process, outcome in enumerate(outcomes):
        number = process // case.layer.mp
        for found, wanted in ((outcome.y, expected.y), (outcome.dx, expected.dx)):
            for microbatch, tensor in enumerate(found):
                largest = max(largest, distance(tensor, wanted[microbatch * case.inputs + number]))
        for kind in ("gradients", "weights") if case.steps else ("gradients",):
            for name, tensor in getattr(outcome, kind).items():
                assert tensor is not None, f"{name} has no gradient on process {process}"
                whole = getattr(expected, kind)[name]
                shard = outcome.shards.get(name)
                largest = max(largest, distance(tensor, shard.select_part(whole) if shard else whole))
    return largest


def distance(one: Tensor, other: Tensor) -> float:
    size = max(1.0, float(other.abs().max())) if other.dtype != torch.float64 else 1.0
    return float((one - other).abs().max()) / size


def check(crew: Any, cases: list[Case], tolerance: float = 1e-9) -> list[list[Any]]:
    """Run all cases in one set of processes, compare them with one process, and return their outcomes by process."""
    outcomes = crew.call(RUN_CASES, 8, cases)
    errors = [outcome for outcome in outcomes if not isinstance(outcome, list)]
    assert not errors, errors
    by_case = [list(found) for found in zip(*outcomes, strict=True)]
    wrong = {
        f"{case.schedule} mp={case.layer.mp} esp={case.layer.esp} k={case.layer.top_k} f={case.layer.capacity_factor}": error
        for case, found in zip(cases, by_case, strict=True)
        if not (error := largest_error(case, found)) < tolerance
    }
    assert not wrong, wrong
    return by_case


COMBINATIONS = list(product((1, 2), (1, 2), (1.0, 1.2, None)))
"""Experts of a place, experts of a token, capacity factors."""


def grid() -> Iterator[Case]:
    """Yield a twelfth of all combinations for every grid of groups and schedule, different ones for each."""
    for (pair, (mp, esp)), (turn, schedule) in product(enumerate(PAIRS), enumerate(SCHEDULES)):
        for number, (each, k, f) in enumerate(COMBINATIONS):
            if (number + pair + turn) % 12 == 0:
                yield Case(schedule, make_layer(schedule, mp, esp, each=each, top_k=k, capacity_factor=f))


GATED, SWISH = Mlp(gated=True, activation="silu", bias=False), Mlp(gated=True, activation="clamped_swish")
DEEPSEEK = Router("sigmoid", scale=2.5, balance_rate=0.001, groups=4, top_groups=2)
GPT_OSS = Router(has_bias=True)
QWEN = Router(normalize=False, groups=2, top_groups=1)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gated_experts_and_other_routers_match_one_process(schedule: str, crew: Any) -> None:
    cases = [
        Case(
            schedule, make_layer(schedule, mp, esp, each=each, capacity_factor=f, degree=degree), mlp=mlp, router=router
        )
        for mp, esp, each, f, degree, mlp, router in (
            (2, 2, 4, None, 2, GATED, DEEPSEEK),
            (4, 2, 4, 1.2, 1, SWISH, GPT_OSS),
            (2, 1, 2, None, 1, Mlp(activation="relu", bias=False), QWEN),
        )
    ]
    cases.append(cases[0].with_changes(splits_backward=True, aux_loss=0.1))
    cases = [case.with_changes(layer=with_matrices(case)) for case in cases]
    cases = [case for case in cases if is_comparable(case)]
    assert cases
    check(crew, cases)


def with_matrices(case: Case) -> Layer:
    return replace(case.layer, matrices=3 if case.mlp.gated else 2, has_biases=case.mlp.bias)


def test_experts_in_fp8_match_the_same_arithmetic_in_one_process(crew: Any) -> None:
    """Each expert rounds the rows of all inputs together, and each shard of an expert its own part of the weights."""
    cases = []
    for schedule, mp, esp in product(SCHEDULES, (1, 2), (1, 2)):
        layer = make_layer(schedule, mp, esp, hidden=16, ffn_hidden=32)
        shards = layer.esp if expert_schedules[schedule].shards_experts else 1
        case = Case(
            schedule, layer, float8_shards=shards, joined=layer.devices // mp, mlp=GATED if mp == esp else PLAIN.mlp
        )
        case = case.with_changes(layer=with_matrices(case), splits_backward=esp == 2)
        cases += [case] * is_comparable(case)
    assert {case.schedule for case in cases} == set(SCHEDULES)
    check(crew, cases)


Outcomes = list[tuple[Case, list[Any]]]
"""Cases with their outcomes by process."""


@pytest.fixture(scope="module")
def outcomes(crew: Any) -> Outcomes:
    """The outcomes of the grid, which match one process."""
    cases = [case for case in grid() if is_comparable(case)]
    return list(zip(cases, check(crew, cases), strict=True))


def test_every_schedule_matches_one_process(outcomes: Outcomes) -> None:
    assert {case.schedule for case, _ in outcomes} == set(SCHEDULES)
    assert len(outcomes) > 50


def test_dropped_tokens_differ_only_under_s1(crew: Any) -> None:
    """Each gate of S1 routes a part of the tokens, so it may drop other tokens than a gate that routes all of them."""
    names = ("parm-s1", "parm-s2", "deepspeed", "a2a-allgather", "ppmoe")
    eight = {name: {"each": 4} if name == "ppmoe" else {} for name in names}
    with_drops, without_drops = (
        [Case(name, make_layer(name, 2, 2, capacity_factor=f, **eight[name])) for name in names] for f in (0.8, None)
    )
    found = dict(zip(names, check(crew, with_drops), strict=True))
    whole = reference(with_drops[1])
    assert all(reference(case) is whole for case in with_drops[1:])
    assert max(distance(each.y[0], whole.y[process // 2]) for process, each in enumerate(found["parm-s1"])) > 1e-3

    first, *others = check(crew, without_drops)
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            assert distance(mine.y[0], theirs.y[0]) < 1e-12 and distance(mine.dx[0], theirs.dx[0]) < 1e-12


def test_chunks_losses_replicas_and_uneven_places_match_one_process(crew: Any) -> None:
    placement = ((0, 1, 5), (2,), (), (3, 4, 5, 0), (6,), (7, 1), (2,), (0,))
    uneven = [
        Case("parm-s1", make_layer("parm-s1", 2, 1, each=1, placement=placement)),
        Case("parm-s2", make_layer("parm-s2", 4, 1, each=1, placement=placement, degree=2)),
        Case("a2a-allgather", make_layer("a2a-allgather", 2, 2, placement=placement[:4] + ((),) * 0, each=2)),
        Case("ppmoe", make_layer("ppmoe", 2, 1, each=4, placement=((0, 1, 2, 3, 4, 5, 6), (7, 0, 1)))),
    ]
    chunked = [
        Case(schedule, make_layer(schedule, 2, 2, degree=degree, capacity_factor=f), aux_loss=0.1, z_loss=0.01)
        for schedule in ("parm-s1", "parm-s2", "deepspeed", "a2a-allgather")
        for degree, f in ((2, 1.2), (4, None))
    ]
    crowded = [
        Case(schedule, make_layer(schedule, 2, 2 if schedule != "ppmoe" else 1), preferred=(1, 2))
        for schedule in ("parm-s1", "parm-s2", "deepspeed", "ppmoe")
    ]
    crowded.append(
        Case("parm-s2", make_layer("parm-s2", 2, 2), preferred=(3,))
    )  # the other experts are equal, so the first one is next
    trained = [
        Case(schedule, make_layer(schedule, 2, 2 if schedule != "ppmoe" else 1), depth=2, steps=5, microbatches=2)
        for schedule in ("parm-s1", "parm-s2", "ppmoe")
    ]
    others = [
        Case("parm-s2", make_layer("parm-s2", 4, 2), recomputes=True),
        Case("parm-s1", make_layer("parm-s1", 4, 2, degree=2), splits_backward=True),
        Case("ppmoe", make_layer("ppmoe", 4, 1), splits_backward=True),
        Case("parm-s1", make_layer("parm-s1", 8, 1, tokens=8)),
        Case("parm-s2", make_layer("parm-s2", 4, 2, tokens=10, capacity_factor=1.0)),
    ]
    check(crew, [case for case in uneven + chunked + crowded + trained + others if is_comparable(case)])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_lower_precisions_match_one_process_within_rounding(dtype: torch.dtype, tolerance: float, crew: Any) -> None:
    names = ("deepspeed", "a2a-allgather", "parm-s1", "parm-s2", "ppmoe")
    cases = [Case(name, make_layer(name, 2, 2, top_k=k), dtype=dtype) for name in names for k in (1, 2)]
    check(crew, cases, tolerance)


BROKEN_RULES = [
    ("deepspeed", "every copy of a token counts"),
    ("deepspeed", "identity for the sum of shards"),
    ("parm-s1", "no sum of the gate"),
    ("parm-s2", "a sum of the gate"),
    ("ppmoe", "no sum of the input's gradient"),
    ("ppmoe", "results assigned, not added"),
]


def test_each_rule_of_the_gradients_is_needed(crew: Any) -> None:
    cases = [Case(name, make_layer(name, 2, 2), broken_rule=rule) for name, rule in BROKEN_RULES]
    by_case = zip(*crew.call(RUN_CASES, 8, cases), strict=True)
    for case, found in zip(cases, by_case, strict=True):
        assert largest_error(case.with_changes(broken_rule=""), list(found)) > 1e-3, case.broken_rule


def test_sent_bytes_are_those_of_the_cost_model(outcomes: Outcomes) -> None:
    """Every collective, on every process, forward and backward; without a capacity the bytes depend on the load."""
    cases = [(case, found) for case, found in outcomes if case.layer.capacity_factor is not None]
    assert {case.schedule for case, _ in cases} == set(SCHEDULES)
    for case, found in cases:
        priced = price_expert_schedule(case.schedule, case.layer, LINKS)
        for name, direction in (("forward", priced.forward), ("backward", priced.backward)):
            expected: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
            for collective in priced.collectives(direction):
                expected[collective.name][0] += collective.buffer_bytes
                expected[collective.name][1] += collective.sent_bytes
            for mine in found:
                counted: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
                for record in mine.records[name]:
                    counted[record.collective][0] += record.buffer_bytes
                    counted[record.collective][1] += record.sent_bytes
                assert counted == expected, (case.schedule, case.layer.mp, case.layer.esp, name)


def test_computed_rows_are_those_of_the_cost_model_for_the_same_load(crew: Any) -> None:
    """With a capacity, experts compute all of their slots; without one, only the tokens."""
    placement = ((0, 1, 5), (2, 3, 4, 5, 6), (7, 6), (1,))
    hot = {"load": (0, 0.5, 0.5, *(0,) * 5), "placement": ((0, 1), (1, 2), (2,), (3, 2), (4,), (5,), (6,), (7, 1))}
    cases = [
        Case("ppmoe", make_layer("ppmoe", 2, 1)),
        Case("ppmoe", make_layer("ppmoe", 4, 1, placement=placement)),
        Case("ppmoe", make_layer("ppmoe", 2, 1), preferred=(3, 0)),
        Case("ppmoe", make_layer("ppmoe", 2, 1, capacity_factor=1.2)),
        Case("parm-s2", make_layer("parm-s2", 2, 2, capacity_factor=1.2)),
        Case("parm-s1", make_layer("parm-s1", 4, 2, capacity_factor=1.0, degree=2)),
        Case("expert-parallel", make_layer("expert-parallel", 1, 1)),
        Case("deepspeed", make_layer("deepspeed", 2, 2)),
        Case("deepspeed-lanes", make_layer("deepspeed-lanes", 2, 2)),
        Case("deepspeed-pregate", make_layer("deepspeed-pregate", 2, 2)),
        Case("a2a-allgather", make_layer("a2a-allgather", 2, 4, degree=2)),
        Case("parm-s1", make_layer("parm-s1", 4, 2, degree=2)),
        Case("parm-s2", make_layer("parm-s2", 4, 2, degree=2)),
        Case("parm-s2", make_layer("parm-s2", 4, 1, each=1, **hot), preferred=(1, 2)),
    ]
    for case, found in zip(cases, check(crew, cases), strict=True):
        devices, tolerance = case.layer.devices, len(placement) if case.layer.placement == placement else 1e-6
        for first in range(0, 8, devices):
            block = found[first : first + devices]
            routed = sum(each.load[0] for each in block).tolist()
            loaded = replace(case.layer, load=tuple(count / sum(routed) for count in routed))
            priced = price_expert_schedule(case.schedule, loaded, LINKS)
            (experts,) = (costed.step for costed in priced.forward if costed.step.op == StepOp.EXPERTS)
            rows = [sum(each.rows) for each in block]
            assert rows == pytest.approx((experts.rows * share_of_rows(loaded, experts)).tolist(), abs=tolerance), case
            assert max(rows) == pytest.approx(priced.rows, abs=tolerance), case


def test_only_the_devices_of_chosen_experts_compute(crew: Any) -> None:
    """All tokens choose two of eight experts."""
    (found,) = check(crew, [Case("parm-s1", make_layer("parm-s1", 2, 1, each=1), preferred=(1, 2))])

    assert [sum(each.rows) for each in found] == [0, 64, 64, 0, 0, 0, 0, 0]


def test_the_same_seed_gives_the_same_bits(crew: Any) -> None:
    cases = [Case("parm-s2", make_layer("parm-s2", 4, 2, degree=2)), Case("deepspeed", make_layer("deepspeed", 2, 2))]
    one, other = (check(crew, cases) for _ in range(2))
    for mine, theirs in zip(one, other, strict=True):
        for here, there in zip(mine, theirs, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(here.y + here.dx, there.y + there.dx, strict=True))
            assert all(torch.equal(g, there.gradients[name]) for name, g in here.gradients.items())
