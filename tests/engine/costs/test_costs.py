"""Contract of every cost model."""

from collections.abc import Callable

import numpy as np
import pytest

from meshwave.engine.costs import cost_models, estimate, layers_per_stage
from meshwave.engine.costs.distinct_actions import distinct_kinds
from meshwave.engine.document import Design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import Op


@pytest.mark.parametrize("kind", sorted(cost_models))
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "chimera", "hanayo", "interleaved-1f1b"])
def test_every_row_has_a_price_that_does_not_depend_on_its_microbatch(
    design: Callable[..., Design], kind: str, schedule: str
) -> None:
    made = design(4, dp=2, schedule=schedule, microbatches=8, cost={"kind": kind})
    program = lower(made)

    costs = estimate(made, program)

    assert costs.seconds.shape == costs.bytes.shape == program.op.shape
    assert (costs.seconds >= 0).all()
    assert (costs.seconds[program.is_compute] > 0).all()
    columns = np.stack([program.op, program.rank, program.stage, program.peer], axis=1).tolist()
    prices: dict[tuple[int, ...], float] = {}
    for key, seconds in zip(map(tuple, columns), costs.seconds.tolist(), strict=True):
        assert prices.setdefault(key, seconds) == seconds
    assert costs.layers == layers_per_stage(made)
    assert costs.activation_bytes.shape == (program.stages,)
    assert costs.working_bytes.shape == (4,)
    assert {name: size.shape for name, size in costs.static_bytes.items()} == dict.fromkeys(
        ("weights", "gradients", "optimizer"), (4,)
    )


def test_kinds_represent_their_rows(design: Callable[..., Design]) -> None:
    program = lower(design(4, schedule="hanayo", microbatches=16))

    found = distinct_kinds(program)

    assert len(found) < len(program) / 4
    for column in ("op", "rank"):
        assert (getattr(found, column)[found.of_row] == getattr(program, column)).all()
    compute = program.is_compute
    assert (found.stage[found.of_row][compute] == program.stage[compute]).all()
    messages = (program.op >= Op.SEND_F) & (program.op <= Op.RECV_B)
    assert (found.peer[found.of_row][messages] == program.peer[messages]).all()


def seconds_by_stage(design: Design, op: Op) -> list[float]:
    program = lower(design)
    seconds = estimate(design, program).seconds
    return [seconds[(program.op == op) & (program.stage == stage)][0] for stage in range(program.stages)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(cost_models))
@pytest.mark.parametrize(("schedule", "op"), [("1f1b", Op.B), ("zb-h1", Op.I)])
@pytest.mark.parametrize(("recompute", "again"), [([1, 3], [0, 1, 0, 1]), ("full", [1] * 4), ("none", [0] * 4)])
def test_a_recomputed_stage_runs_its_forward_again_before_its_backward(
    design: Callable[..., Design], kind: str, schedule: str, op: Op, recompute: object, again: list[int]
) -> None:
    kept, recomputed = (
        design(4, schedule=schedule, pipeline={"stages": [8] * 4, **how}, cost={"kind": kind})
        for how in ({}, {"recompute": recompute})
    )
    once = [
        backward + count * forward
        for backward, forward, count in zip(
            seconds_by_stage(kept, op), seconds_by_stage(kept, Op.F), again, strict=True
        )
    ]

    assert seconds_by_stage(recomputed, op) == pytest.approx(once)
    assert seconds_by_stage(recomputed, Op.F) == seconds_by_stage(kept, Op.F)


def test_a_recomputed_stage_keeps_only_its_input(design: Callable[..., Design]) -> None:
    pipelines = ({}, {"recompute": [0, 1, 3]})
    designs = [design(4, pipeline={"stages": [8] * 4, **pipeline}) for pipeline in pipelines]
    kept, recomputed = (estimate(made, lower(made)) for made in designs)
    ids, hidden = 8 * 32, 4 * 32 * 64

    assert recomputed.activation_bytes.tolist() == [ids, hidden, kept.activation_bytes[2], hidden + ids]
    transient = recomputed.working_bytes - kept.working_bytes  # the activations of the stage that runs its backward
    assert transient == pytest.approx(kept.activation_bytes * [1, 1, 0, 1])
    assert recomputed.deferred_bytes.tolist() == kept.deferred_bytes.tolist()
    assert recomputed.model_flops == kept.model_flops  # of the model, not of the hardware


def test_stages_are_balanced_with_their_recomputation(design: Callable[..., Design]) -> None:
    straight, uneven = (design(4, pipeline={"recompute": how}) for how in ("none", [1]))

    assert layers_per_stage(uneven)[1] < layers_per_stage(straight)[1]
    assert sum(layers_per_stage(uneven)) == 32
