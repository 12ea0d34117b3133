"""Unit costs: shares of one number, and the makespans that the papers print."""

from collections.abc import Callable

import numpy as np
import pytest

from meshwave.engine.costs import estimate
from meshwave.engine.document import Design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import Op
from meshwave.engine.program.simulation import simulate


def prices(design: Design) -> dict[str, set[float]]:
    program = lower(design)
    seconds = estimate(design, program).seconds
    return {Op(op).name: set(seconds[program.op == op].tolist()) for op in np.unique(program.op)}


def test_a_stage_costs_its_share(design: Callable[..., Design]) -> None:
    two_waves = {"schedule": "hanayo", "waves": 2, "microbatches": 4}

    found = prices(design(pipeline=two_waves, cost={"kind": "unit", "transfer": 0.125}))

    assert found == {
        "F": {0.25},
        "B": {0.5},
        "SEND_F": {0.125},
        "SEND_B": {0.125},
        "RECV_F": {0.0},
        "RECV_B": {0.0},
        "STEP": {0.0},
    }


def test_a_replica_of_chimera_costs_all_of_a_share_and_reductions_are_free(design: Callable[..., Design]) -> None:
    found = prices(design(schedule="chimera", cost={"kind": "unit"}))

    assert found["F"] == {1.0}
    assert found["B"] == {2.0}
    assert found["REDUCE_GRAD"] == {0.0}


def test_given_stages_cost_in_proportion_to_their_layers(design: Callable[..., Design]) -> None:
    given = {"schedule": "1f1b", "microbatches": 4, "stages": [4, 8, 8, 12]}
    program = lower(made := design(pipeline=given, cost={"kind": "unit"}))

    seconds = estimate(made, program).seconds

    forward = {int(program.stage[row]): seconds[row] for row in np.flatnonzero(program.op == Op.F)}
    assert forward == {0: 0.5, 1: 1.0, 2: 1.0, 3: 1.5}


@pytest.mark.parametrize(
    ("cost", "halves"), [({}, (1.0, 1.0)), ({"weight": 0.5}, (1.5, 0.5)), ({"weight": 0}, (2.0, 0.0))]
)
def test_the_halves_of_a_backward(
    design: Callable[..., Design], cost: dict[str, float], halves: tuple[float, float]
) -> None:
    orders = [["0F0", "0I0", "0W0"], ["1F0", "1I0", "1W0"]]
    hand_drawn = {"schedule": "custom", "microbatches": 1, "actions": orders}

    found = prices(design(2, pipeline=hand_drawn, cost={"kind": "unit", **cost}))

    assert (found["I"], found["W"]) == ({halves[0]}, {halves[1]})


@pytest.mark.parametrize(
    ("ranks", "waves", "makespan"), [(2, 1, 16), (4, 1, 36), (4, 2, 60), (4, 4, 108), (8, 2, 124), (8, 4, 220)]
)
def test_hanayo_has_the_makespan_of_the_figures(
    design: Callable[..., Design], ranks: int, waves: int, makespan: float
) -> None:
    """The unit is the forward of one stage; a device's share is 2 x waves stages."""
    made = design(
        ranks,
        pipeline={"schedule": "hanayo", "waves": waves, "microbatches": ranks},
        model={"layers": 64},
        cost={"kind": "unit"},
    )
    program = lower(made)
    costs = estimate(made, program)

    timeline = simulate(program, costs.seconds, costs.transfer_model)

    assert costs.unit == "units"
    assert timeline.end.max() * 2 * waves == pytest.approx(makespan)
