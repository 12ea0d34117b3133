"""Searched orders: they can run, fit the memory, and are never slower than a named schedule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwave.engine.costs import peak_inflight
from meshwave.engine.document import parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.lowering.schedule_prices import priced_pipe, search_findings
from meshwave.engine.lowering.transfers import add_transfers
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import build_program, from_columns
from meshwave.engine.program.simulation import simulate
from meshwave.engine.program.verification import verify
from meshwave.engine.progress import report_progress_to
from meshwave.engine.schedules import Pipe, Prices, schedules
from meshwave.engine.schedules._order_search import (
    Heuristic,
    Shop,
    ensure_minimum_memory,
    fits_memory,
    greedy_order,
    improve_order,
    list_heuristics,
    order_lower_bound,
    program_actions,
    rank_fits_memory,
    simulate_orders,
)
from meshwave.engine.schedules._steady_state import repeat_pattern
from tests._strategies import document, examples


@pytest.fixture(autouse=True, scope="module")
def short_search() -> Iterator[None]:
    """Reduce the number of tries; properties of these results also hold for better ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshwave.engine.schedules.auto.MAX_MOVES", 300)
        yield


seconds = st.sampled_from([0.0, 0.3, 0.5, 1.0, 1.7, 4.0])


@st.composite
def shops(draw: st.DrawFn) -> Shop:
    """Draw stages placed anywhere on the ranks, of any cost and size, with little memory."""
    ranks, mbs = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    places = draw(st.permutations([*range(ranks), *draw(st.lists(st.integers(0, ranks - 1), max_size=4))]))
    stages = len(places)

    def values_per_stage(values: st.SearchStrategy[float], count: int = stages) -> tuple[float, ...]:
        return tuple(draw(st.lists(values, min_size=count, max_size=count)))

    forward, back, weight = values_per_stage(seconds), values_per_stage(seconds), values_per_stage(seconds)
    across = [a != b for a, b in zip(places, places[1:], strict=False)]
    return ensure_minimum_memory(
        Shop(
            microbatches=mbs,
            rank=tuple(places),
            seconds=(forward, tuple(np.add(back, weight).tolist()), back, weight),
            hop=tuple(np.multiply(values_per_stage(seconds, stages - 1), across).tolist()),
            size=values_per_stage(st.sampled_from([0.1, 0.7, 1.0, 3.0])),
            room=values_per_stage(st.sampled_from([0.0, 2.0, 5.0, 50.0]), ranks),
            split=draw(st.booleans()),
        )
    )


any_heuristic = st.sampled_from([*list_heuristics(True)])


@given(shop=shops(), heuristic=any_heuristic)
def test_a_greedy_order_is_complete_runs_and_fits_the_memory(shop: Shop, heuristic: Heuristic) -> None:
    orders = greedy_order(shop, heuristic)

    program = build_program(program_actions(orders), [shop.rank], [0] * shop.microbatches)
    assert sum(map(len, orders)) == shop.tasks
    assert verify(add_transfers(program)) == []
    assert all(rank_fits_memory(shop, rank, order) for rank, order in enumerate(orders))
    assert fits_memory(shop, program)


@given(shop=shops(), heuristic=any_heuristic)
def test_the_simulation_of_orders_equals_the_simulator(shop: Shop, heuristic: Heuristic) -> None:
    orders = greedy_order(shop, heuristic)
    program = add_transfers(build_program(program_actions(orders), [shop.rank], [0] * shop.microbatches))
    takes = np.zeros(len(program))
    for row in range(len(program)):
        op, stage, *_ = program.row(row)
        if op in (Op.SEND_F, Op.SEND_B):
            takes[row] = shop.hop[stage - (op == Op.SEND_B)]
        elif op.is_compute:
            takes[row] = shop.seconds[op][stage]

    simulated = simulate_orders(shop, orders)

    assert simulated is not None
    assert simulated.makespan == pytest.approx(simulate(program, takes).makespan)
    assert simulated.makespan >= order_lower_bound(shop) * (1 - 1e-9)


@settings(max_examples=examples(20))
@given(shop=shops())
def test_an_improved_order_is_not_slower_runs_and_fits_the_memory(shop: Shop) -> None:
    orders = greedy_order(shop, Heuristic())
    better = improve_order(shop, orders, tries=60)

    before, after = simulate_orders(shop, orders), simulate_orders(shop, better)
    assert before is not None
    assert after is not None
    assert after.makespan <= before.makespan
    assert all(rank_fits_memory(shop, rank, order) for rank, order in enumerate(better))
    assert sorted(map(sorted, better)) == sorted(map(sorted, orders))


PATHS: list[dict[str, Any]] = [
    {"path": "loop", "chunks": 1},
    {"path": "loop", "chunks": 2},
    {"path": "wave", "chunks": 2},
    {"path": "wave", "chunks": 4},
]


def uneven_prices(stages: int, ranks: int, seed: int) -> Prices:
    chance = np.random.default_rng(seed)
    forward, back, weight = (tuple(chance.uniform(0.5, 2, stages).tolist()) for _ in range(3))
    return Prices(
        forward, back, weight, (0.2,) * (stages - 1), (1.0,) * stages, (1.0,) * stages, (2.0 * stages,) * ranks
    )


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 4.0])
@pytest.mark.parametrize("options", PATHS, ids=str)
def test_no_named_schedule_of_the_path_and_memory_is_faster(options: dict[str, Any], limit: float | None) -> None:
    auto = schedules["auto"](**options, limit=limit)
    pipe = Pipe(4, 8, uneven_prices(auto.stage_count(4), 4, seed=3))

    tried = auto.search_result(pipe).tried

    named = [each for each in tried if not each.name.startswith("found")]
    assert len(named) >= 2
    best = min((each for each in tried if each.fits), key=lambda each: each.seconds)
    assert auto.search_result(pipe).best == best
    assert limit is None or peak_inflight(auto.program(pipe)).max() <= limit + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", PATHS[1:], ids=str)
def test_orders_for_uneven_costs_beat_named_schedules_or_are_optimal(options: dict[str, Any], seed: int) -> None:
    """Faster than every named schedule, unless one of them is within one percent of the lower bound."""
    auto = schedules["auto"](**options)
    pipe = Pipe(4, 12, uneven_prices(auto.stage_count(4), 4, seed))

    answer = auto.search_result(pipe)
    tried, least = answer.tried, answer.least

    found = min(each.seconds for each in tried if each.name.startswith("found"))
    named = min(each.seconds for each in tried if not each.name.startswith("found"))
    assert found < named or named <= 1.01 * least


@pytest.mark.slow
def test_a_search_uses_the_design_costs_and_reports_its_candidates() -> None:
    """The embedding and the head are expensive: no two stages have equal costs."""
    pipeline = {"schedule": "auto", "microbatches": 8, "path": "wave", "chunks": 2}
    auto = parse_design(document(pipeline, 4, dp=2, cost={"kind": "roofline"}))
    wave = parse_design(
        document({"schedule": "hanayo", "microbatches": 8, "backward": "split"}, 4, dp=2, cost={"kind": "roofline"})
    )

    prices = priced_pipe(auto).prices
    assert prices is not None
    assert prices.judge is not None
    assert prices.forward[-1] > prices.forward[1]
    assert predict(auto).timeline.makespan <= predict(wave).timeline.makespan
    judged = prices.judge(schedules["hanayo"](backward="split").program(wave.pipe))
    assert judged == (predict(wave).timeline.makespan, True)
    said = search_findings(auto)
    assert re.match(r"Simulated \d+ named orders and \d+ searched orders .*; chose .*: .* ms\.", said[0])
    assert any(line.startswith("hanayo (1, grouped, split): ") for line in said)


@pytest.mark.slow
@pytest.mark.parametrize("memory_bytes", [1.8e9, 2.2e9])
def test_a_named_schedule_that_fits_the_devices_is_never_faster(memory_bytes: float) -> None:
    """A named order counts as fitting by the memory of its prediction, not by that of the search, which is larger."""

    def predicted(pipeline: dict[str, Any]) -> Prediction:
        made = document({"microbatches": 4, **pipeline}, 4, cost={"kind": "roofline"})
        made["cluster"]["device"]["memory_bytes"] = memory_bytes
        made["model"] = {"kind": "gpt", "layers": 16, "hidden": 1024, "heads": 16, "sequence": 512, "vocab": 3000}
        made["training"] = {"micro_batch_size": 2}
        return predict(parse_design(made))

    for chosen, name in (({"path": "wave", "chunks": 2}, "zb-v"), ({}, "zb-h1")):
        named, auto = predicted({"schedule": name}), predicted({"schedule": "auto", **chosen})
        assert auto.memory.fits.all()
        assert auto.timeline.makespan <= named.timeline.makespan * (1 + 1e-9) or not named.memory.fits.all()


def test_any_placement_can_be_given() -> None:
    pipeline = {"schedule": "auto", "microbatches": 4, "placement": [1, 0, 0, 2, 1]}

    program = lower(parse_design(document(pipeline, 3)))

    assert program.placement.tolist() == [[1, 0, 0, 2, 1]]


def test_equal_pipelines_have_equal_results() -> None:
    pipe = Pipe(4, 8, uneven_prices(4, 4, seed=1))
    again = replace(pipe, prices=replace(pipe.prices, judge=None))

    assert pipe == again
    assert schedules["auto"]().program(pipe) == schedules["auto"]().program(again)


@pytest.mark.slow
@pytest.mark.parametrize("options", PATHS[1:3], ids=str)
def test_a_long_step_is_searched_with_fewer_microbatches(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The orders found are extended to the whole step: complete, within the memory, and not slower than named schedules."""
    monkeypatch.setattr("meshwave.engine.schedules.auto.MAX_SEARCHED_TASKS", 200)
    monkeypatch.setattr("meshwave.engine.schedules.auto.SHORT_STEP_TASKS", 200)
    monkeypatch.setattr("meshwave.engine.schedules.auto.MAX_MOVES", 40)
    auto = schedules["auto"](**options, limit=5.0)
    pipe = Pipe(4, 60, uneven_prices(auto.stage_count(4), 4, seed=5))

    answer = auto.search_result(pipe)

    named = [each for each in answer.tried if not each.name.startswith("found")]
    assert answer.searched < 60
    assert len(named) < len(answer.tried)
    assert all(answer.best.seconds <= each.seconds for each in named if each.fits)
    assert verify(add_transfers(answer.program)) == []
    assert peak_inflight(answer.program).max() <= 5 + 1e-9
    assert any("compared on" in line and "of the 60 microbatches" in line for line in auto.search_findings(pipe))


@pytest.mark.parametrize("more", [3, 12, 60])
def test_a_repeated_pattern_extends_a_step(more: int) -> None:
    """1F1B of equal stages repeats after every microbatch, and its extension is 1F1B."""
    one = (1.0,) * 3
    shop = Shop(12, (0, 1, 2), (one, (2.0,) * 3, one, one), (0.0, 0.0), one, (3.0,) * 3, split=False)
    short, long = (schedules["1f1b"]().program(Pipe(3, count)) for count in (12, 12 + more))
    simulated = simulate_orders(shop, [[action[:3] for action in short.actions(rank)] for rank in range(3)])
    assert simulated is not None

    made = [
        from_columns(columns, [shop.rank], [0] * long.microbatches)
        for columns in repeat_pattern(shop, simulated.ends, 12 + more)
    ]

    assert made
    assert all(program == long for program in made)


def test_a_search_reports_progress_and_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwave.engine.schedules.auto.MAX_MOVES", 40)
    auto = schedules["auto"](path="wave", chunks=2)
    heard: list[float] = []

    class Enough(Exception):
        pass

    def watch(share: float, words: str) -> None:
        heard.append(share)
        if len(heard) > 3:
            raise Enough

    pipe = Pipe(4, 8, uneven_prices(8, 4, seed=9))
    with pytest.raises(Enough), report_progress_to(watch):
        auto.program(pipe)
    assert heard == sorted(heard)
    assert auto.search_result(pipe).tried, "what was ended is not taken for an answer"
