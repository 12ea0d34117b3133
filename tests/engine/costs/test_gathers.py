"""UNSHARD and RESHARD of sharded weights: their places in the program, their checks, their times and their memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshwave.engine.costs import estimate
from meshwave.engine.costs.alpha_beta import collective_seconds
from meshwave.engine.costs.memory import memory_over_time, peak_memory
from meshwave.engine.document import Design
from meshwave.engine.lowering.lower import lower, order_computations
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import format_program, parse_program
from meshwave.engine.program.program_file import from_json, to_json
from meshwave.engine.program.verification import verify
from meshwave.engine.schedules import schedules

MODEL = {"layers": 16, "hidden": 512, "heads": 8, "sequence": 64, "vocab": 512}
MakeDesign = Callable[..., Design]


def sharded_design(
    design: MakeDesign, schedule: str = "1f1b", limit: int | None = None, reduction: str = "microbatch", **more: Any
) -> Design:
    training = {"sharding": "parameters", "unsharded_stages": limit, "gradient_reduction": reduction}
    return design(more.pop("pp", 2), dp=2, schedule=schedule, model=MODEL, training=training, **more)


def test_a_mesh_gathers_the_next_stages_and_frees_the_others(design: MakeDesign) -> None:
    program = lower(sharded_design(design, "interleaved-1f1b", 2, pipeline={"chunks": 3, "microbatches": 2}))
    shown = [cell for cell in format_program(program)[0] if not ("SEND" in cell or "RECV" in cell)]

    assert " ".join(shown) == (
        "0UNSHARD 2UNSHARD 0F0 0F1 0RESHARD 4UNSHARD 2F0 2F1 4F0 4F1 4B0 4B1 4RESHARD 0UNSHARD 2B0 2B1 2RESHARD "
        "0B0 0B1 0RESHARD STEP"
    )
    assert from_json(to_json(program)) == program


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("name", sorted(set(schedules) - {"custom", "auto", "gems", "chimera", "dualpipe"}))
def test_every_schedule_computes_with_gathered_stages_only(name: str, limit: int, design: MakeDesign) -> None:
    program = lower(sharded_design(design, name, limit))
    held = dict.fromkeys(range(program.ranks), 0)
    most = 0
    for rank, op in zip(program.rank.tolist(), program.op.tolist(), strict=True):
        held[rank] += (op == Op.UNSHARD) - (op == Op.RESHARD)
        most = max(most, held[rank])

    assert verify(program) == []
    assert most <= max(limit, 1 + int(program.fused.any()))
    assert not any(held.values())


@pytest.mark.torch
@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("name", ["interleaved-1f1b", "looped-bfs", "zb-v"])
def test_gathers_and_reductions_are_placed_as_torch_places_them(name: str, limit: int, design: MakeDesign) -> None:
    torch = pytest.importorskip("torch.distributed.pipelining.schedules")
    made = sharded_design(design, name, limit, "step")
    computed = format_program(order_computations(made))
    for order, cells in zip(computed, format_program(lower(made)), strict=True):
        actions = [torch._Action.from_str(cell) for cell in order]
        gathered = torch._add_unshard_reshard(actions, limit)
        expected = [str(action) for action in torch._add_reduce_grad(gathered, made.pipeline.microbatches)]
        ours = [cell for cell in cells if not ("SEND" in cell or "RECV" in cell or cell == "STEP")]
        assert sorted_runs(ours) == sorted_runs(expected)


def sorted_runs(cells: list[str]) -> list[list[str]]:
    """Return the cells with neighbouring RESHARDs sorted: torch frees stages in the order of a set."""
    runs: list[list[str]] = [[]]
    for cell in cells:
        if cell.endswith("RESHARD"):
            runs[-1].append(cell)
        else:
            runs += [[cell], []]
    return [sorted(run) for run in runs if run]


@pytest.mark.parametrize(
    ("cells", "code"),
    [
        (["0F0", "0UNSHARD", "0B0", "0RESHARD"], "missing_unshard"),
        (["0UNSHARD", "0F0", "0RESHARD", "0B0", "0RESHARD"], "missing_unshard"),
        (["0UNSHARD", "0F0", "0UNSHARD", "0B0", "0RESHARD"], "repeated_unshard"),
        (["0UNSHARD", "0F0", "0B0", "0RESHARD", "0RESHARD"], "repeated_reshard"),
        (["0UNSHARD", "0F0", "0B0"], "missing_reshard"),
    ],
)
def test_a_program_that_uses_freed_weights_is_refused(cells: list[str], code: str) -> None:
    assert code in {problem.code for problem in verify(parse_program([cells]))}


def test_meshes_without_copies_and_replicated_weights_gather_nothing(design: MakeDesign) -> None:
    alone = design(2, training={"sharding": "parameters", "unsharded_stages": 2})
    replicated = design(2, dp=2, training={"sharding": "gradients", "unsharded_stages": 2})
    layer_by_layer = sharded_design(design, limit=0)
    one_stage = sharded_design(design, pp=1)

    for made in (alone, replicated, layer_by_layer, one_stage):
        assert not (lower(made).op == Op.UNSHARD).any()


def test_a_gather_takes_the_time_of_a_ring_and_runs_beside_the_computations(design: MakeDesign) -> None:
    made = sharded_design(design, "interleaved-1f1b", 2, pipeline={"chunks": 4, "microbatches": 4})
    program, plain = (
        lower(made),
        design(2, dp=2, schedule="interleaved-1f1b", pipeline={"chunks": 4, "microbatches": 4}, model=MODEL),
    )
    costs, replicated = estimate(made, program), estimate(plain, lower(plain))
    timeline = costs.simulate(program)
    unshards, forwards = program.op == Op.UNSHARD, program.op == Op.F
    first = np.flatnonzero(unshards & (program.stage == 2))[0]
    layers = costs.layers[2]
    size = 4 * layers * (12 * 512**2 + 13 * 512)
    latency = 2 * layers * made.cluster.intra_node.latency_s

    group = [list(made.meshes[0].devices)]
    assert costs.seconds[first] == pytest.approx(collective_seconds(made.cluster, group, size, rounds=1), abs=latency)
    assert costs.seconds[forwards] == pytest.approx(replicated.seconds[lower(plain).op == Op.F])
    hidden = timeline.start[np.isin(timeline.op, [Op.UNSHARD])]
    assert (hidden > 0).any()
    for span in np.flatnonzero(timeline.op == Op.F).tolist():
        gathers = (timeline.op == Op.UNSHARD) & (timeline.stage == timeline.stage[span])
        before = gathers & (timeline.start <= timeline.start[span]) & (timeline.rank == timeline.rank[span])
        assert timeline.end[before].max() <= timeline.start[span] + 1e-12


def test_memory_rises_with_an_unshard_and_falls_with_a_reshard(design: MakeDesign) -> None:
    peaks = []
    for limit in (1, 4):
        made = sharded_design(design, "looped-bfs", limit, pp=1, pipeline={"chunks": 4, "microbatches": 4})
        program = lower(made)
        costs = estimate(made, program)
        peak = peak_memory(program, costs)
        [(_, held)] = memory_over_time(costs.simulate(program), costs)
        assert held.max() == pytest.approx(peak.total_bytes[0])
        assert held[-1] == pytest.approx(held[0]), "all weights are freed at the end of the step"
        peaks.append(float(peak.by_category["weights"][0] - costs.static_bytes["weights"][0]))
    assert 0 < peaks[0] < peaks[1] == pytest.approx(float(costs.unsharded_bytes.sum()))


def test_a_slow_link_exposes_gathers_as_the_cause_of_computations(design: MakeDesign) -> None:
    link = {"latency_s": 1e-6, "bandwidth": 1e7}
    found = predict(
        sharded_design(
            design, "looped-bfs", 1, pp=1, pipeline={"chunks": 4, "microbatches": 2}, cluster={"intra_node": link}
        )
    )
    timeline = found.timeline
    causes = timeline.op[timeline.cause[timeline.is_compute]]

    assert (causes == Op.UNSHARD).sum() == (timeline.op == Op.UNSHARD).sum()
    assert timeline.exposed_communication[0] > 0.4 * timeline.makespan
