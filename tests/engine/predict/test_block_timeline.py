"""The timeline inside a block is as long as the block, for any content."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from meshwave.engine.costs import wait_seconds
from meshwave.engine.costs.models.roofline import mesh_prices
from meshwave.engine.costs.slot_pieces import SlotPieces
from meshwave.engine.document import parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.experts import StepOp
from meshwave.engine.files import example
from meshwave.engine.predict.block_timeline import predict_block
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.program.action import Op

MOE = {"experts": 4, "top_k": 2, "capacity_factor": 1.25, "every": 2}


def design(**changes: Any) -> Any:
    return parse_design({**json.loads(example("14-tensor-parallel").read_text()), **changes})


def with_experts(schedule: str, recompute: str = "none", **experts: Any) -> Any:
    base = json.loads(example("14-tensor-parallel").read_text())
    pipeline = {**base["pipeline"], "recompute": recompute, "schedule": "zb-h1" if recompute == "none" else "1f1b"}
    layout = {"schedule": schedule, "ep": 2, "esp": 1, **experts}
    return design(model={**base["model"], "moe": MOE}, experts=layout, pipeline=pipeline)


def sharded(sharding: str, schedule: str = "1f1b") -> Any:
    base = json.loads(example("14-tensor-parallel").read_text())
    meshes = [{**mesh, "axes": {"dp": len(mesh["devices"])}} for mesh in base["meshes"]]
    training = {**base["training"], "sharding": sharding, "unsharded_stages": 0}
    return design(meshes=meshes, training=training, pipeline={**base["pipeline"], "schedule": schedule})


DESIGNS = {
    "dense": design,
    "parm-s2": lambda: with_experts("parm-s2", degree=2),
    "parm-auto": lambda: with_experts("parm-auto", degree=None),
    "ppmoe": lambda: with_experts("ppmoe"),
    "recomputed": lambda: with_experts("deepspeed", recompute="full", ep=1, esp=2),
    "recomputed layers": lambda: with_experts("deepspeed", recompute="layers", ep=1, esp=2),
    "sharded parameters": lambda: sharded("parameters"),
    "sharded gradients": lambda: sharded("gradients", "zb-h1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DESIGNS)
def test_the_layers_of_a_block_end_with_the_block(name: str) -> None:
    predicted = predict(DESIGNS[name]())
    program, seconds = predicted.program, predicted.costs.seconds
    for stage in range(program.stages):
        for op in (Op.F, Op.B, Op.I, Op.W):
            rows = np.flatnonzero((program.op == op) & (program.stage == stage))
            if not rows.size:
                continue
            found = predict_block(predicted.design, int(program.rank[rows[0]]), stage, op)
            assert found.timeline.makespan == pytest.approx(seconds[rows[0]])
            assert len(found.labels) == len(found.steps) == len(found.timeline)
            assert set(found.devices) <= set(predicted.design.meshes[int(program.rank[rows[0]])].devices)
            causes = found.timeline.cause >= 0
            before = found.timeline.end[found.timeline.cause[causes]]
            assert (before <= found.timeline.start[causes] + 1e-12).all()


def test_a_block_contains_recomputed_experts() -> None:
    forward, backward = (predict_block(DESIGNS["recomputed layers"](), 1, 1, op) for op in (Op.F, Op.B))

    times = [sum(step == StepOp.EXPERTS for step in found.steps) for found in (forward, backward)]

    assert times[1] == 2 * times[0] > 0  # of the recomputed forward, and of its gradient


def test_a_block_contains_the_collectives_of_sharded_state_that_computation_does_not_hide() -> None:
    none, some = (predict_block(sharded(sharding), 1, 1, Op.B) for sharding in ("none", "parameters"))

    assert {*some.labels} - {*none.labels} == {"sharded state"}


@pytest.mark.parametrize("name", ["dense", "ppmoe", "recomputed", "recomputed layers"])
def test_the_pieces_of_an_action_in_a_slot_wait_as_long_as_the_action(name: str) -> None:
    """A backward that recomputes experts repeats their exchanges, during which the other action can compute."""
    predicted = predict(DESIGNS[name]())
    made, program = predicted.design, predicted.program
    pieces, waited = SlotPieces(made, mesh_prices(made), predicted.costs.layers), waits_of(predicted)
    for row in np.flatnonzero((program.op <= Op.I) & (program.microbatch == 0)).tolist():
        found = pieces.find(int(program.rank[row]), int(program.stage[row]), Op(int(program.op[row])))
        assert sum(each.wait_s for each in found) == pytest.approx(waited[row])


def waits_of(prediction: Prediction) -> NDArray[np.float64]:
    return wait_seconds(prediction.design, prediction.program, prediction.costs.layers)


@pytest.mark.parametrize("name", ["dense", "ppmoe", "recomputed"])
def test_waits_inside_blocks_equal_the_time_that_free_links_would_save(name: str) -> None:
    """Waits are those of tensor-parallel reductions and expert messages, also in a recomputed forward."""
    made = DESIGNS[name]()
    document, link = json.loads(made.to_json()), {"latency_s": 0.0, "bandwidth": 1e24}
    document["cluster"] |= {"intra_node": link, "inter_node": link}
    found, saved = predict(made), predict(parse_design(document))
    compute = found.program.op <= Op.W

    took = found.costs.seconds[compute] - saved.costs.seconds[compute]
    waited = waits_of(found)
    assert waited[compute] == pytest.approx(took)
    assert not waited[~compute].any() and waited.any()
    assert waits_of(saved) == pytest.approx(0.0, abs=1e-12)


def test_experts_wait_where_the_lane_of_the_device_that_computes_most_is_idle() -> None:
    """Chunks overlap and the load is uneven, in every phase of the block."""
    meshes = json.loads(example("14-tensor-parallel").read_text())["meshes"]
    apart = [{**mesh, "axes": {"dp": len(mesh["devices"])}} for mesh in meshes]
    uneven = {**MOE, "capacity_factor": None}
    base = json.loads(with_experts("deepspeed", degree=2, load="zipf").to_json())
    predicted = predict(parse_design({**base, "meshes": apart, "model": {**base["model"], "moe": uneven}}))
    program, waited = predicted.program, waits_of(predicted)
    assert waited.any()
    for row in np.flatnonzero((program.op <= Op.W) & (program.microbatch == 0)):
        found = predict_block(
            predicted.design, int(program.rank[row]), int(program.stage[row]), Op(int(program.op[row]))
        )
        lanes = [number for number, (_, lane) in enumerate(found.lanes) if lane == 0]
        idle = found.timeline.makespan - found.timeline.busy[lanes].max()
        assert waited[row] == pytest.approx(idle, abs=1e-12)
    assert predicted.numbers["inside_communication_s"] == pytest.approx(
        [waited[program.rank == rank].sum() for rank in range(program.ranks)]
    )


def test_unit_costs_do_not_describe_the_inside_of_a_block() -> None:
    with pytest.raises(InputError, match="select roofline costs"):
        predict_block(design(cost={"kind": "unit"}), 0, 0, Op.F)
