"""The inside of a block lasts as long as the block, whatever is in it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from engine.design import parse_design
from engine.errors import InputError
from engine.lowering.layers import inside
from engine.predict import predict
from engine.program.action import Op
from engine.resources import example

MOE = {"experts": 4, "top_k": 2, "capacity_factor": 1.25, "every": 2}


def design(**changes: Any) -> Any:
    return parse_design({**json.loads(example("14-tensor-parallel").read_text()), **changes})


def with_experts(schedule: str, recompute: str = "none", **experts: Any) -> Any:
    base = json.loads(example("14-tensor-parallel").read_text())
    pipeline = {**base["pipeline"], "recompute": recompute, "schedule": "zb-h1" if recompute == "none" else "1f1b"}
    layout = {"schedule": schedule, "ep": 2, "esp": 1, **experts}
    return design(model={**base["model"], "moe": MOE}, experts=layout, pipeline=pipeline)


DESIGNS = {
    "dense": design,
    "parm-s2": lambda: with_experts("parm-s2", degree=2),
    "parm-auto": lambda: with_experts("parm-auto", degree=None),
    "ppmoe": lambda: with_experts("ppmoe"),
    "recomputed": lambda: with_experts("deepspeed", recompute="full", ep=1, esp=2),
}


@pytest.mark.parametrize("name", DESIGNS)
def test_the_inside_of_a_block_ends_when_the_block_does(name: str) -> None:
    predicted = predict(DESIGNS[name]())
    program, seconds = predicted.program, predicted.costs.seconds
    for stage in range(program.stages):
        for op in (Op.F, Op.B, Op.I, Op.W):
            rows = np.flatnonzero((program.op == op) & (program.stage == stage))
            if not rows.size:
                continue
            found = inside(predicted.design, int(program.rank[rows[0]]), stage, op)
            assert found.timeline.makespan == pytest.approx(seconds[rows[0]])
            assert len(found.words) == len(found.steps) == len(found.timeline)
            assert set(found.devices) <= set(predicted.design.meshes[int(program.rank[rows[0]])].devices)
            causes = found.timeline.cause >= 0
            before = found.timeline.end[found.timeline.cause[causes]]
            assert (before <= found.timeline.start[causes] + 1e-12).all()


def test_units_say_nothing_of_the_inside() -> None:
    with pytest.raises(InputError, match="use cost kind roofline"):
        inside(design(cost={"kind": "unit"}), 0, 0, Op.F)
