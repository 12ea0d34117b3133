"""Buckets of gradients: how a stage is divided, and the times of their reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.costs import estimate
from meshwave.engine.costs.device_sizes import device_sizes
from meshwave.engine.costs.gradient_buckets import _divide, bucket_sizes, gradient_buckets
from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.problems import problems
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.shared_links_simulation import simulate_shared_links
from meshwave.engine.program.simulation import computing_seconds, flow_bytes, simulate
from meshwave.engine.runs.dry_run import plan_waits
from meshwave.engine.runs.dry_run_threads import run_step_in_threads
from tests.engine.runs.play import draw

MODEL = {"kind": "gpt", "layers": 8, "hidden": 64, "heads": 2, "sequence": 64, "vocab": 260}
SCHEDULES: list[tuple[str, int]] = [("1f1b", 1), ("zb-h1", 2), ("interleaved-1f1b", 2), ("dualpipe", 4), ("chimera", 4)]


def design(schedule: str = "1f1b", pp: int = 1, buckets: int = 3, **changes: Any) -> Design:
    training = {"steps": 1, "micro_batch_size": 4, "gradient_buckets": buckets, **changes.pop("training", {})}
    changes = {"model": {**MODEL, "layers": 16 if pp > 1 else 8}, **changes}
    return draw(pp=pp, dp=2, pipeline={"schedule": schedule, "microbatches": 8}, training=training, **changes)


def spans(prediction: Prediction, rank: int = 0) -> dict[str, tuple[float, float]]:
    line = prediction.timeline
    of_rank = np.flatnonzero(line.rank == rank).tolist()
    return {str(line.action(span)): (float(line.start[span]), float(line.end[span])) for span in of_rank}


@given(
    sizes=st.lists(st.floats(0.1, 100.0), min_size=1, max_size=20), count=st.integers(1, 30), joined=st.integers(1, 3)
)
def test_buckets_divide_a_stage_from_its_last_block_to_the_first(sizes: list[float], count: int, joined: int) -> None:
    joined = min(joined, len(sizes))

    buckets = _divide(sizes, count, joined)

    assert 1 <= len(buckets) <= count
    assert [block for each in reversed(buckets) for block in each] == list(range(len(sizes)))
    assert len(buckets[0]) >= joined
    largest = max([*sizes[:-joined], sum(sizes[-joined:])])
    assert all(sum(sizes[each.start : each.stop]) <= sum(sizes) / count + largest + 1e-9 for each in buckets)


@pytest.mark.parametrize(
    "model", [{}, {"moe": {"experts": 4, "top_k": 2}}, {"kind": "transformer", "tied_embeddings": True}]
)
def test_all_buckets_together_are_the_stage(model: dict[str, Any]) -> None:
    drawn = design(model={**MODEL, **model}, **({"experts": {"ep": 2}} if "moe" in model else {}))
    held = device_sizes(drawn, lower(drawn), [8])

    found = bucket_sizes(drawn, [8], held)

    assert len(found) == 3
    for name in ("reduced", "gates", "experts"):
        assert sum(getattr(each, name) for each in found) == pytest.approx(getattr(held, name))


def test_layers_of_multi_token_prediction_are_reduced_with_their_head() -> None:
    drawn = design(model={**MODEL, "kind": "transformer", "mtp_layers": 1}, buckets=20)

    first = gradient_buckets(drawn, [8])[0][0]

    assert [*first] == [8, 9], "the last layer and the head"


@pytest.mark.parametrize(("schedule", "pp"), SCHEDULES)
def test_each_bucket_starts_inside_the_last_computation_of_its_stage(schedule: str, pp: int) -> None:
    prediction = predict(design(schedule, pp))
    program = prediction.program
    for rank in range(program.ranks):
        found, order = spans(prediction, rank), program.actions(rank)
        last_end = 0.0
        for reduce in (action for action in order if action.op == Op.REDUCE_GRAD):
            holders = program.ranks_of(reduce.stage)
            lasts = [
                [each for each in program.actions(other) if each.op.is_compute and each.stage == reduce.stage][-1]
                for other in holders
            ]
            ends = [spans(prediction, other)[str(last)] for other, last in zip(holders, lasts, strict=True)]
            start, end = found[str(reduce)]
            number = [a for a in order if a[:2] == reduce[:2]].index(reduce)
            assert reduce.microbatch == number
            assert start >= max(last_end, max(begin for begin, _ in ends))
            if reduce == [a for a in order if a[:2] == reduce[:2]][-1]:
                assert start >= max(done for _, done in ends) - 1e-12, "the first block is final last"
            elif start > last_end and len(holders) == 1:
                assert start < ends[0][1]
            last_end = end
    assert found["STEP"][0] >= last_end


@pytest.mark.parametrize("training", [{}, {"sharding": "optimizer"}])
def test_one_mesh_hides_all_buckets_but_the_last(training: dict[str, Any]) -> None:
    link = {"latency_s": 1e-6, "bandwidth": 2e8}
    cluster = {"nodes": 1, "devices_per_node": 2, "intra_node": link, "inter_node": link}
    device = {"name": "core", "peak_flops": 5e10, "memory_bytes": 4e9, "memory_bandwidth": 1e10, "efficiency": 0.5}
    whole, divided = (
        predict(design(buckets=count, cluster={**cluster, "device": device}, training=training)) for count in (1, 4)
    )
    before, after = spans(whole), spans(divided)

    reduced = before["0REDUCE_GRAD"][1] - before["0REDUCE_GRAD"][0]
    last = after["0REDUCE_GRAD3"][1] - after["0REDUCE_GRAD3"][0]
    assert whole.timeline.makespan - divided.timeline.makespan == pytest.approx(reduced - last)
    assert last < 0.4 * reduced
    assert divided.timeline.mean_exposed_communication == pytest.approx(last)
    np.testing.assert_allclose(divided.memory.total_bytes, whole.memory.total_bytes)


def test_split_backwards_finish_gradients_in_their_weight_halves() -> None:
    found = spans(predict(design("zb-h1", 2)))

    assert found["0W7"][0] < found["0REDUCE_GRAD0"][0] < found["0W7"][1]


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "pp"), SCHEDULES)
def test_shared_links_without_contention_start_buckets_at_the_same_times(schedule: str, pp: int) -> None:
    """The event loop starts them by timers, the fast path by edges of the graph."""
    drawn = design(schedule, pp, cluster={**design(pp=pp).cluster.model_dump(), "nodes": 1})
    program = lower(drawn)
    costs = estimate(drawn, program)
    assert costs.network is not None and costs.lead is not None
    args = program, computing_seconds(program, costs.seconds, costs.network)
    sizes = flow_bytes(program, costs.seconds, costs.network)

    alone = simulate(program, costs.seconds, lead=costs.lead)
    shared = simulate_shared_links(*args, sizes, costs.network, lead=costs.lead, must_compile=True)

    rows = np.flatnonzero(program.op[program.graph.nodes] == Op.REDUCE_GRAD)
    reductions = program.span_of_row[program.graph.nodes[rows]]
    assert (costs.lead[program.graph.nodes[rows]] > 0).any()
    np.testing.assert_allclose(shared.start[rows + 1], alone.start[reductions], rtol=0.02)


def test_threads_of_a_dry_run_start_buckets_inside_the_last_backward() -> None:
    drawn = design()
    program = lower(drawn)
    costs = estimate(drawn, program)
    scale = 0.4 / costs.simulate(program).makespan

    simulated = run_step_in_threads(plan_waits(program, costs, scale))

    rows = {str(program.row(row)): row for row in range(len(program))}
    start, end = (column / 1e9 for column in (simulated.start, simulated.end))
    backward, first, last = rows["0B7"], rows["0REDUCE_GRAD0"], rows["0REDUCE_GRAD2"]
    assert start[backward] < start[first] < end[backward] <= start[last] + 1e-3
    predicted = costs.simulate(program)
    for name in ("0REDUCE_GRAD0", "0REDUCE_GRAD1"):
        span, of_backward = program.span_of_row[[rows[name], backward]]
        began, done = predicted.start[of_backward], predicted.end[of_backward]
        wanted = (predicted.start[span] - began) / (done - began)
        passed = (start[rows[name]] - start[backward]) / (end[backward] - start[backward])
        assert passed == pytest.approx(wanted, abs=0.25)


@pytest.mark.parametrize(("schedule", "pp", "microbatches"), [("gems", 2, 1), ("chimera", 2, 1), ("chimera", 4, 2)])
def test_a_stage_without_computations_on_a_rank_is_reduced_in_its_own_rows(
    schedule: str, pp: int, microbatches: int
) -> None:
    drawn = design(schedule, pp).model_dump()
    drawn["pipeline"]["microbatches"] = microbatches
    program = lower(parse_design(drawn))
    costs = estimate(parse_design(drawn), program)
    scale = 0.05 / costs.simulate(program).makespan
    place = program.rank * program.stages + program.stage
    reduces = np.flatnonzero(program.op == Op.REDUCE_GRAD)
    idle = reduces[~np.isin(place[reduces], place[program.is_compute])].tolist()

    waits = plan_waits(program, costs, scale)
    simulated = run_step_in_threads(waits)

    early = {row for reductions in waits.early.values() for _, row in reductions}
    assert idle and early and not early & {*idle}
    assert (simulated.end[reduces] >= simulated.start[reduces]).all() and (simulated.start[reduces] > 0).all()


def test_a_device_with_constants_slows_reductions_beside_computation() -> None:
    """With one reduction, its constants hide a share of it; buckets take longer while the device computes."""
    from meshwave.engine.costs.models.roofline import slowed_reductions
    from meshwave.engine.costs.presets import preset

    drawn = design(cluster={**preset("dgx-h100").cluster.model_dump(), "nodes": 1, "devices_per_node": 2})
    constants = drawn.cluster.device.constants
    assert constants is not None and 0 < constants.overlap < 1

    found = slowed_reductions(drawn, np.array([[1.0], [1.0], [1.0]]), np.array([[100.0], [50.0], [0.0]]))

    assert found[:, 0].tolist() == pytest.approx([1 / constants.overlap, 1 / constants.overlap, 1.0])


def test_a_warning_names_buckets_that_block_reductions_leave_without_effect() -> None:
    drawn = design(training={"sharding": "gradients"})

    assert [each.code for each in problems(drawn) if each.where == "training.gradient_buckets"] == [
        "unused_gradient_buckets"
    ]
    assert Action(Op.REDUCE_GRAD, 0, 0) not in lower(drawn).actions(0)


@pytest.mark.parametrize(
    ("schedule", "dp", "warns"),
    [("1f1b", 1, True), ("1f1b", 2, False), ("chimera", 1, False)],
)
def test_a_warning_names_buckets_without_a_reduction(schedule: str, dp: int, warns: bool) -> None:
    training = {"steps": 1, "gradient_buckets": 3}
    drawn = draw(pp=2, dp=dp, pipeline={"schedule": schedule, "microbatches": 4}, training=training)

    codes = [each.code for each in problems(drawn) if each.where == "training.gradient_buckets"]

    assert codes == (["unshared_gradient_buckets"] if warns else [])
    assert (lower(drawn).op == Op.REDUCE_GRAD).any() != warns
