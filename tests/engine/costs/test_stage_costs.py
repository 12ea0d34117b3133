"""Costs that a design gives for each stage, in every cost model."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.costs import Costs, estimate, wait_seconds
from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.cost import StageCosts
from meshwave.engine.document.fixes import apply_edits
from meshwave.engine.document.problems import problems
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.block_timeline import predict_block
from meshwave.engine.predict.gallery import apply_variant, list_variants
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.runs.dry_run import plan_waits

Make = Callable[..., Design]
GIVEN = {"forward": [1.0, 2.0, 3.0, 4.0], "input": [1.5, 2.0, 2.5, 3.0], "weight": [0.0, 1.0, 0.5, 2.0]}


def price(design: Design) -> tuple[Program, Costs]:
    program = lower(design)
    return program, estimate(design, program)


def seconds_by_stage(design: Design, op: Op) -> list[float]:
    program, costs = price(design)
    return [float(costs.seconds[(program.op == op) & (program.stage == stage)][0]) for stage in range(program.stages)]


def replace(design: Design, path: str, value: Any, *, draft: bool = False) -> Design:
    return parse_design(apply_edits(design.model_dump(mode="json"), [(path, value)]), draft=draft)


@pytest.mark.parametrize("kind", ["unit", "roofline", "calibrated"])
def test_given_costs_replace_those_of_every_cost_model(design: Make, kind: str) -> None:
    whole = replace(design(schedule="1f1b", cost={"kind": kind}), "cost.stage_costs", GIVEN)
    split = replace(design(schedule="zb-h1", cost={"kind": kind}), "cost.stage_costs", GIVEN)

    assert seconds_by_stage(whole, Op.F) == GIVEN["forward"]
    assert seconds_by_stage(whole, Op.B) == [1.5 + 0.0, 2.0 + 1.0, 2.5 + 0.5, 3.0 + 2.0]
    assert seconds_by_stage(split, Op.I) == GIVEN["input"]
    assert seconds_by_stage(split, Op.W) == GIVEN["weight"]


def test_the_step_of_one_microbatch_is_the_sum_of_all_given_costs(design: Make) -> None:
    made = replace(design(schedule="gpipe", microbatches=1, cost={"kind": "unit"}), "cost.stage_costs", GIVEN)

    assert predict(made).timeline.makespan == pytest.approx(sum(map(sum, GIVEN.values())))


def test_a_stage_that_recomputes_runs_its_given_forward_again(design: Make) -> None:
    pipeline = {"schedule": "1f1b", "microbatches": 4, "recompute": [1]}
    made = replace(design(pipeline=pipeline, cost={"kind": "unit"}), "cost.stage_costs", GIVEN)

    assert seconds_by_stage(made, Op.B) == [1.5, 3.0 + 2.0, 3.0, 5.0]


def test_the_costs_that_the_cost_model_computes_change_nothing_when_given(design: Make) -> None:
    made = design(schedule="zb-h1", tp=2)
    columns = {"forward": Op.F, "input": Op.I, "weight": Op.W}

    same = replace(made, "cost.stage_costs", {name: seconds_by_stage(made, op) for name, op in columns.items()})

    assert predict(same).timeline.makespan == pytest.approx(predict(made).timeline.makespan)


def test_collectives_inside_a_stage_keep_their_share_of_it(design: Make) -> None:
    made = design(schedule="1f1b", tp=4)
    program, before = price(made)
    twice = {
        "forward": [2 * each for each in seconds_by_stage(made, Op.F)],
        "input": seconds_by_stage(made, Op.B),
        "weight": seconds_by_stage(made, Op.B),
    }

    longer = replace(made, "cost.stage_costs", twice)

    waits = wait_seconds(made, program, before.layers)
    assert waits.any()
    assert np.allclose(wait_seconds(longer, program, before.layers), 2 * waits)


@pytest.mark.parametrize("op", [Op.F, Op.B])
def test_the_inside_of_a_block_is_as_long_as_its_given_cost(design: Make, op: Op) -> None:
    made = replace(design(schedule="1f1b", tp=2), "cost.stage_costs", GIVEN)

    block = predict_block(made, 1, 1, op)

    assert block.timeline.makespan == pytest.approx(seconds_by_stage(made, op)[1])


def test_a_dry_run_waits_for_the_given_costs(design: Make) -> None:
    program, costs = price(replace(design(schedule="1f1b", cost={"kind": "unit"}), "cost.stage_costs", GIVEN))

    waits = plan_waits(program, costs, scale=2.0)

    first = program.tables.forward[:, 0]
    assert waits.ns[first].tolist() == [2e9 * each for each in GIVEN["forward"]]


# ---- another number of stages ----


def test_costs_of_another_number_of_stages_are_refused_with_two_fixes(design: Make) -> None:
    drawn = design(schedule="hanayo", cost={"kind": "unit"})
    draft = replace(drawn, "cost.stage_costs", GIVEN, draft=True)

    (problem,) = [each for each in problems(draft) if each.severity == "error"]

    assert (problem.where, problem.code) == ("cost.stage_costs", "stage_cost_count")
    assert problem.message.startswith("costs are given for 4 stages, but the design has 8")
    spread, removed = (apply_edits(draft.model_dump(mode="json"), fix.edits) for fix in problem.fixes)
    assert seconds_by_stage(parse_design(spread), Op.F) == [0.5, 0.5, 1, 1, 1.5, 1.5, 2, 2]
    assert parse_design(removed) == drawn


columns = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12).map(tuple)


@given(column=columns, stages=st.integers(1, 40))
def test_spread_costs_keep_the_cost_of_the_model(column: tuple[float, ...], stages: int) -> None:
    costs = StageCosts(forward=column, input=column, weight=column)

    spread = costs.redistribute(stages)

    assert spread.stages == stages
    assert sum(spread.forward) == pytest.approx(sum(column))
    assert costs.redistribute(len(column)) == costs
    assert costs.redistribute(3 * len(column)).redistribute(len(column)).weight == pytest.approx(column)


def test_the_gallery_compares_schedules_at_the_same_cost_of_the_model(design: Make) -> None:
    made = replace(design(schedule="1f1b", cost={"kind": "unit"}), "cost.stage_costs", GIVEN)
    shown = {(each.schedule, each.stages): each for each in list_variants(made) if each.refusal is None}

    interleaved = apply_variant(made, shown["interleaved-1f1b", 8])

    assert interleaved.cost.stage_costs is not None
    assert sum(interleaved.cost.stage_costs.forward) == sum(GIVEN["forward"])
    assert predict(interleaved).timeline.makespan > 0
