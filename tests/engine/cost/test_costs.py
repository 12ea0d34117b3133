"""Every cost model keeps the same promises."""

from collections.abc import Callable

import numpy as np
import pytest

from engine.cost import cost_models, estimate, layers_per_stage
from engine.cost.kinds import kinds
from engine.design import Design
from engine.design.cost import CalibratedCost
from engine.errors import InputError
from engine.lowering import lower
from engine.program.action import Op


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


def test_kinds_stand_for_their_rows(design: Callable[..., Design]) -> None:
    program = lower(design(4, schedule="hanayo", microbatches=16))

    found = kinds(program)

    assert len(found) < len(program) / 4
    for column in ("op", "rank"):
        assert (getattr(found, column)[found.of_row] == getattr(program, column)).all()
    compute = program.is_compute
    assert (found.stage[found.of_row][compute] == program.stage[compute]).all()
    messages = (program.op >= Op.SEND_F) & (program.op <= Op.RECV_B)
    assert (found.peer[found.of_row][messages] == program.peer[messages]).all()


def test_a_cost_model_that_is_not_there_yet_is_refused_in_words(design: Callable[..., Design]) -> None:
    made = design().model_copy(update={"cost": CalibratedCost(profile="mine.json")})

    with pytest.raises(InputError, match=r'kind "calibrated"; set cost\.kind to "roofline" or "unit"'):
        layers_per_stage(made)
