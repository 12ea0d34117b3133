"""Predictions compared with recordings in which every duration is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwave.designer.views.run_comparison import comparison_data
from meshwave.engine.costs.profile_store import store_profile
from meshwave.engine.document import Design, parse_design
from meshwave.engine.errors import InputError, RunError
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.program.action import Op
from meshwave.engine.runs.accuracy import Comparison, Link, compare, run_profile
from meshwave.engine.runs.recording import (
    WITHIN,
    ClockOffset,
    Clocks,
    MeasuredMemory,
    ProcessClock,
    read_recording,
    write_clocks,
)
from meshwave.engine.runs.run import Contention
from meshwave.engine.runs.run_comparison import step_time_text
from tests.engine.costs.profiles import example_profile
from tests.engine.runs.play import draw
from tests.engine.runs.recorded import record, record_inside

APART = {"kind": "roofline", "transfer_model": "latency"}
"""Messages that do not share links, so that a recording shows the time of each message itself."""
SLOW_HOST = draw(pp=2).cluster.model_dump(mode="json")
SLOW_HOST["device"]["host_bandwidth"] = 1e7
HANAYO = {"schedule": "hanayo", "waves": 1, "microbatches": 4}


def model(layers: int) -> dict[str, Any]:
    return {"kind": "gpt", "layers": layers, "hidden": 16, "heads": 2, "sequence": 12, "vocab": 256}


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    return predict(draw(pp=4, pipeline=HANAYO, model=model(8), cost=APART))


def compare_with(folder: Path, prediction: Prediction, seconds: Any, **how: Any) -> Comparison:
    record(folder, prediction, seconds, **how)
    return compare(prediction, read_recording(folder))


def rows_with(prediction: Prediction, **columns: int) -> Any:
    """Return a mask ``[rows]`` of the rows that have the given values in all columns."""
    rows = np.ones(len(prediction.program), np.bool_)
    for name, value in columns.items():
        rows &= getattr(prediction.program, name) == value
    return rows


def slowed_timeline(prediction: Prediction, times: float, **columns: int) -> Any:
    return prediction.costs.seconds * np.where(rows_with(prediction, **columns), times, 1.0)


def test_a_run_as_predicted_has_no_error_and_no_cause(tmp_path: Path, prediction: Prediction) -> None:
    found = compare_with(tmp_path, prediction, prediction.costs.seconds)

    assert found.iteration.error == pytest.approx(0, abs=1e-4)
    assert found.cause is None
    assert {op.name for op in found.by_kind} == {"F", "B", "SEND_F", "SEND_B", "STEP"}
    for each in (*found.by_kind.values(), *found.by_mesh.values(), *found.by_link.values()):
        if each.at_most:
            assert each.measured_s >= each.predicted_s
        else:
            assert each.measured_s == pytest.approx(each.predicted_s, rel=2e-3, abs=2e-9)
    assert found.timeline.bubble_ratio == pytest.approx(prediction.timeline.bubble_ratio, abs=1e-3)
    assert found.clock_note == ""


@pytest.mark.parametrize(
    ("slow", "name"),
    [
        ({"op": Op.B, "rank": 3, "stage": 3}, "backward of stage 3 on mesh M3"),
        ({"op": Op.F, "rank": 0}, "forward on mesh M0"),
        ({"op": Op.B}, "backward"),
        ({"rank": 2}, "computation on mesh M2"),  # its optimizer step took no longer
    ],
)
def test_the_largest_error_is_narrowed_down_to_its_part(
    slow: dict[str, int], name: str, tmp_path: Path, prediction: Prediction
) -> None:
    seconds = np.where(
        prediction.program.is_compute, slowed_timeline(prediction, 1.8, **slow), prediction.costs.seconds
    )

    found = compare_with(tmp_path, prediction, seconds).cause

    assert found is not None
    assert found.description.startswith(f"{name} took ")
    assert "% longer than predicted; it accounts for " in found.description
    assert found.description.endswith("% of the error of the step")
    assert found.share == pytest.approx(1, abs=0.1)


def test_the_parts_of_an_error_add_up_to_it_with_the_largest_first(tmp_path: Path, prediction: Prediction) -> None:
    seconds = slowed_timeline(prediction, 3.0, op=Op.B) * np.where(rows_with(prediction, op=Op.F), 1.2, 1.0)
    found = compare_with(tmp_path, prediction, seconds)
    parts = found.error_parts()

    assert [part.name for part in parts[:2]] == ["Backward", "Forward"]
    error_s = found.iteration.measured_s - found.iteration.predicted_s
    assert sum(part.effect_s for part in parts) == pytest.approx(error_s, rel=1e-2)


def test_parts_that_are_too_small_to_be_listed_are_one_part_together(tmp_path: Path, prediction: Prediction) -> None:
    seconds = slowed_timeline(prediction, 3.0, op=Op.B) * np.where(rows_with(prediction, op=Op.F), 1.0005, 1.0)
    found = compare_with(tmp_path, prediction, seconds)
    parts = found.error_parts()

    assert [part.name for part in parts] == ["Backward", "Smaller parts"]
    error_s = found.iteration.measured_s - found.iteration.predicted_s
    assert sum(part.effect_s for part in parts) == pytest.approx(error_s, rel=1e-9)


def test_contention_for_cores_explains_longer_computations_up_to_the_processes_per_core(
    tmp_path: Path, prediction: Prediction
) -> None:
    compute = np.where(prediction.program.is_compute, 3.0, 1.0)
    found = compare_with(tmp_path, prediction, compute * prediction.costs.seconds)
    first, *others = found.error_parts(Contention(processes=4, cores=2))

    assert first.name == "Contention for cores (4 processes on 2)"
    twice = prediction.costs.simulate(prediction.program, np.minimum(compute, 2.0) * prediction.costs.seconds).makespan
    assert first.effect_s == pytest.approx(twice - prediction.timeline.makespan, rel=1e-2)
    assert {part.name for part in others} >= {"Forward", "Backward"}


def test_a_step_that_takes_exactly_the_predicted_time_despite_contention_is_compared(
    tmp_path: Path, prediction: Prediction
) -> None:
    factors = np.where(prediction.program.is_compute, 2.0, 0.1)  # short messages and steps offset some contention
    found = compare_with(tmp_path, prediction, factors * prediction.costs.seconds)
    found.__dict__["iteration"] = found.iteration._replace(measured_s=found.iteration.predicted_s)
    contention = Contention(processes=4, cores=2)
    assert found.error_parts(contention)[0].name.startswith("Contention")

    bars = comparison_data(found, contention)["waterfall"]

    assert bars[0]["to"] == bars[-1]["to"]


def test_a_slow_link_is_named_by_its_ends(tmp_path: Path, prediction: Prediction) -> None:
    slow = 20.0

    found = compare_with(tmp_path, prediction, slowed_timeline(prediction, slow, op=Op.SEND_F, rank=1, peer=2))

    assert found.cause is not None
    assert found.cause.description.startswith("transfers of activations from mesh M1 to mesh M2 took ")
    assert "; they account for " in found.cause.description
    errors = {link: each.error or 0.0 for link, each in found.by_link.items()}
    assert errors.pop(Link(1, 2)) == pytest.approx(slow - 1, rel=0.01), (
        "of the gradients that it carries, too, nothing is known: nobody waited for them"
    )
    assert [*errors.values()] == pytest.approx([0.0] * 5, abs=0.01)


@pytest.mark.parametrize("asking_s", [0.0, 90e-6])
def test_a_transfer_without_a_waiting_receiver_has_an_upper_bound_only(asking_s: float, tmp_path: Path) -> None:
    """The first mesh finishes its forwards before the second one needs them, so messages arrive early; a busy machine
    delivers them late.
    """
    drawn = draw(pp=2, pipeline={"schedule": "gpipe", "microbatches": 6, "stages": [1, 7]}, model=model(8), cost=APART)
    prediction = predict(drawn)
    sends = prediction.program.op == Op.SEND_F
    seconds = np.where(sends, 1e-6, 1000 * prediction.costs.seconds)
    found = compare_with(tmp_path, prediction, seconds, asking_s=asking_s)

    is_known = found.rows.known[sends]
    assert is_known[0] or not is_known[1:].any()
    assert not is_known[-1]
    assert not is_known.all()
    of_link = found.by_link[Link(0, 1)]
    assert not of_link.at_most
    assert of_link.measured_s < 2 * (1e-6 + asking_s), "not until its receiver turned to it"


def test_a_link_without_waiting_receivers_has_no_error(tmp_path: Path) -> None:
    """A skip tensor arrives long before the skipped mesh has computed the tensor that is needed with it."""
    prediction = predict(draw(pp=3, model={**model(5), "kind": "u-transformer"}, cost=APART))
    sends = np.isin(prediction.program.op, (Op.SEND_F, Op.SEND_B))
    found = compare_with(tmp_path, prediction, np.where(sends, 2e-4, 0.05), asking_s=9e-5)

    skipping, passing = found.by_link[Link(0, 2)], found.by_link[Link(0, 1)]

    assert skipping.at_most
    assert skipping.measured_s > 0.05, "in hand when its receiver turned to it"
    assert skipping.error is None
    assert 2e-4 <= passing.measured_s <= 2e-4 + 9e-5
    assert not passing.at_most


def test_waiting_before_the_send_does_not_count_as_transfer_time(tmp_path: Path, prediction: Prediction) -> None:
    """The first mesh is late, so all others wait for it long before any message is sent."""
    sends = np.isin(prediction.program.op, (Op.SEND_F, Op.SEND_B))
    slow = np.where(rows_with(prediction, op=Op.F, rank=0), 0.5, np.where(sends, 1e-3, 1e-4))

    found = compare_with(tmp_path, prediction, slow)

    link_seconds = [each.measured_s for each in found.by_link.values() if not each.at_most]
    assert len(link_seconds) >= 3
    assert link_seconds == pytest.approx([1e-3] * len(link_seconds), rel=1e-3)


@pytest.fixture(scope="module")
def with_experts() -> Prediction:
    moe = {"experts": 4, "top_k": 2, "capacity_factor": 1.25, "every": 2}
    experts = {"schedule": "parm-s1", "ep": 2, "esp": 1}
    return predict(draw(pp=2, dp=2, model={**model(4), "moe": moe}, experts=experts))


@pytest.mark.parametrize(
    ("slow", "name"),
    [
        ("waits", "waiting for exchanges of expert layers on mesh M1"),
        ("computed", "computation on mesh M1"),
    ],
)
def test_waits_inside_a_block_are_separated_from_its_computation(
    slow: str, name: str, tmp_path: Path, with_experts: Prediction
) -> None:
    seconds, program = with_experts.costs.seconds, with_experts.program
    on = rows_with(with_experts, rank=1) & (program.is_compute | (program.op == Op.STEP))
    as_predicted, slowed_down = tmp_path / "as predicted", tmp_path / "slowed down"
    as_predicted.mkdir()
    slowed_down.mkdir()
    record(as_predicted, with_experts, seconds)
    record_inside(as_predicted, with_experts, np.zeros_like(seconds))
    waits = compare(with_experts, read_recording(as_predicted)).waits.predicted
    more = 9 * np.where(on, waits if slow == "waits" else seconds - waits, 0.0)
    record(slowed_down, with_experts, seconds + more)
    record_inside(slowed_down, with_experts, waits + (more if slow == "waits" else 0.0))

    found = compare(with_experts, read_recording(slowed_down)).cause

    assert (waits > 0).tolist() == program.is_compute.tolist()
    assert found is not None
    assert found.description.startswith(f"{name} took ")
    assert found.times == pytest.approx(10, rel=0.02)
    assert found.share == pytest.approx(1, abs=0.1)


def test_inseparable_activities_are_reported_together(tmp_path: Path) -> None:
    """A training run does not record tensor-parallel reductions, and a dry run does not record expert exchanges."""
    document = draw(pp=1, dp=4, model={**model(2), "moe": {"experts": 4, "every": 2}}).model_dump(mode="json")
    document["meshes"][0]["axes"] = {"dp": 2, "tp": 2}
    document["experts"]["ep"] = 2
    prediction = predict(parse_design(document))

    found = compare_with(tmp_path, prediction, 3 * prediction.costs.seconds).cause

    assert found is not None
    assert found.description.startswith("computation, all-reduces and expert exchanges on mesh M0 took 3 times")


def test_step_times_have_quartiles_and_exclude_warm_up_steps(tmp_path: Path, prediction: Prediction) -> None:
    stretched = (9.0, 5.0, 1.0, 1.2, 1.1, 1.0, 40.0, 1.3)
    compared = compare_with(tmp_path, prediction, prediction.costs.seconds, stretched=stretched, apart=(6,))
    found = compared.iteration

    assert (found.steps, found.warm_up, found.memory_steps) == (5, 2, 1)
    assert step_time_text(compared).endswith(
        "(5 steps, 2 warm-up steps excluded, 1 step that measured memory excluded)"
    )
    took = [times / found.predicted_s for times in (found.low_s, found.measured_s, found.high_s)]
    assert took == pytest.approx([1.0, 1.1, 1.2], rel=1e-3)


def test_the_optimizer_step_waits_for_reductions_of_replicated_weights(tmp_path: Path) -> None:
    prediction = predict(draw(pp=2, dp=2, model=model(4), training={"clip_norm": 1.0, "steps": 3}))

    found = compare_with(tmp_path, prediction, slowed_timeline(prediction, 3.0, op=Op.REDUCE_GRAD))

    assert found.by_kind[Op.REDUCE_GRAD].error == pytest.approx(2, rel=0.01)
    assert found.by_kind[Op.STEP].error == pytest.approx(0, abs=0.01)
    assert found.cause is not None
    assert found.cause.name.startswith("gradient reduction")


def test_waiting_for_free_reductions_is_not_computing_time(tmp_path: Path) -> None:
    """Both ranks that hold a stage of GEMS complete it at the same time, one of them long after its own last backward."""
    gems = draw(pp=4, pipeline={"schedule": "gems", "microbatches": 4}, cost={"kind": "unit"}, model=model(4))
    prediction = predict(gems)

    found = compare_with(tmp_path, prediction, prediction.costs.seconds, source="rehearsed")

    for each in found.by_mesh.values():
        assert each.measured_s == pytest.approx(each.predicted_s, rel=1e-3)


def test_costs_in_units_are_compared_with_dry_runs_only(tmp_path: Path) -> None:
    prediction = predict(draw(pp=2, cost={"kind": "unit"}))

    run = compare_with(tmp_path, prediction, prediction.costs.seconds)
    assert run.to_json()["error"] is None
    assert run.to_json()["no_error_since"].startswith("the prediction is in cost units, which cannot be compared")
    assert run.cause is None

    rehearsal = compare_with(tmp_path, prediction, prediction.costs.seconds, source="rehearsed", scale=0.02)
    assert rehearsal.to_json()["error"] == pytest.approx(0, abs=1e-4)
    assert rehearsal.iteration.measured_s == pytest.approx(prediction.timeline.makespan, rel=1e-4)
    assert rehearsal.label == "dry run: actions waited for 0.02 s per unit; measured times are divided by this factor"
    with pytest.raises(InputError, match="a dry run waits instead of computing"):
        run_profile(rehearsal)


def test_memory_of_each_mesh_is_compared_on_its_fullest_device(tmp_path: Path) -> None:
    prediction = predict(draw(pp=2, dp=2))
    for process, size in enumerate((1e6, 3e6, 2e6)):
        found = {"weights": size / 2, WITHIN: size / 2}
        MeasuredMemory(step=2, peak_bytes=size, by_category=found, how="counted").write(tmp_path, process)

    first, second = compare_with(tmp_path, prediction, prediction.costs.seconds).memory

    weights, optimizer = (prediction.costs.static_bytes[kind][0] for kind in ("weights", "optimizer"))
    assert (first.mesh, first.measured_bytes) == ("M0", 3e6)
    assert first.predicted_bytes == prediction.memory.total_bytes[0]
    assert first.by_category["weights"] == (weights, 1.5e6)
    assert first.by_category[WITHIN] == pytest.approx((first.predicted_bytes - weights, 1.5e6))
    assert optimizer in first.predicted.values()
    assert (second.mesh, second.measured_bytes) == ("M1", 2e6)


def test_measurements_of_a_run_become_the_costs_of_its_design(
    tmp_path: Path, prediction: Prediction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The costs contain the measured times of all kinds of actions and messages."""
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / "home"))
    times = np.random.default_rng(3).uniform(0.5, 8.0, 16)
    times[Op.SEND_B] = times[Op.SEND_F]  # a link does not know what it carries
    times = times[prediction.program.op]
    found = compare_with(tmp_path, prediction, times * prediction.costs.seconds)

    store_profile(run_profile(found, "a run"), "run-1.json")
    calibrated = predict(with_cost(prediction.design, {"kind": "calibrated", "profile": "run-1.json"}))

    assert calibrated.program == prediction.program
    assert calibrated.timeline.makespan == pytest.approx(found.iteration.measured_s, rel=0.02)
    again = compare(calibrated, read_recording(tmp_path))
    assert abs(again.iteration.error or 0) < 0.02
    for op in (Op.F, Op.B, Op.STEP):
        assert again.by_kind[op].error == pytest.approx(0, abs=0.05)


def draw_slow_links(schedule: str, axes: dict[str, int]) -> Design:
    """Return a design whose messages and collectives delay each other."""
    link = {"latency_s": 1e-5, "bandwidth": 1e7}
    cluster = {**draw(pp=2, dp=2).cluster.model_dump(mode="json"), "intra_node": link}
    meshes = [{"name": f"M{rank}", "devices": [2 * rank, 2 * rank + 1], "axes": axes} for rank in range(2)]
    pipeline = {"schedule": schedule, "microbatches": 4}
    return draw(pp=2, dp=2, cluster=cluster, meshes=meshes, model=model(4), pipeline=pipeline)


@pytest.mark.parametrize("schedule", ["hanayo", "dualpipe-v"])
@pytest.mark.parametrize("axes", [{"dp": 2, "tp": 1}, {"dp": 1, "tp": 2}], ids=str)
def test_delays_of_shared_links_are_part_of_what_was_predicted(
    schedule: str, axes: dict[str, int], tmp_path: Path
) -> None:
    prediction = predict(draw_slow_links(schedule, axes))
    assert (prediction.simulated_seconds > 1.1 * prediction.costs.seconds).any()

    found = compare_with(tmp_path, prediction, prediction.costs.seconds)

    compared = [*found.by_kind.values(), *found.by_mesh.values(), *found.by_link.values()]
    assert [each.error for each in compared if each.predicted_s] == pytest.approx([0] * len(compared), abs=1e-3)
    assert not found.error_parts()


@pytest.mark.parametrize(
    "changes",
    [
        {"dp": 2},
        {"dp": 2, "training": {"gradient_buckets": 2}},
        {"training": {"document_end": 5, "document_lengths": [1, 4, 12, 6], "pad_documents": True, "data": "text.txt"}},
        {"training": {"activation_offload": 1.0}, "cluster": SLOW_HOST},
        {"pipeline": {"schedule": "1f1b", "microbatches": 4, "recompute": "full"}},
        {"pipeline": {"schedule": "1f1b", "microbatches": 4, "recompute": [1]}},
        {"pipeline": {"schedule": "zb-h1", "microbatches": 4, "recompute": "full"}},
    ],
)
def test_a_profile_of_a_run_reproduces_its_step_time(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / "home"))
    prediction = predict(draw(**{"pp": 2, "model": model(4), "cost": APART, **changes}))
    times = np.ones(16)
    times[[Op.F, Op.B, Op.I, Op.W]] = 2.0, 3.0, 4.0, 5.0
    found = compare_with(tmp_path, prediction, times[prediction.program.op] * prediction.costs.seconds)

    store_profile(run_profile(found), "run-1.json")
    calibrated = predict(with_cost(prediction.design, {"kind": "calibrated", "profile": "run-1.json"}))

    assert calibrated.timeline.makespan == pytest.approx(found.iteration.measured_s, rel=1e-3)


@pytest.mark.parametrize("slowness", [1.0, 1.5])
@pytest.mark.parametrize("schedule", ["dualpipe-v", "hanayo"])
def test_a_profile_of_a_run_reproduces_slots_and_slow_tensor_parallel_exchanges(
    schedule: str, slowness: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prediction with the profile subtracts the savings of slots itself, and scales exchanges with their stages."""
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / "home"))
    prediction = predict(draw_slow_links(schedule, {"dp": 1, "tp": 2}))
    assert bool(prediction.overlap_saved.any()) == (schedule == "dualpipe-v")
    compute = prediction.program.op <= Op.W
    found = compare_with(tmp_path, prediction, np.where(compute, slowness, 1.0) * prediction.costs.seconds)

    store_profile(run_profile(found), "run-1.json")
    calibrated = predict(with_cost(prediction.design, {"kind": "calibrated", "profile": "run-1.json"}))

    assert calibrated.timeline.makespan == pytest.approx(found.iteration.measured_s, rel=1e-3)


@pytest.mark.parametrize("sharding", ["none", "optimizer", "gradients"])
def test_a_profile_of_a_run_counts_the_messages_that_share_a_nic(
    sharding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both devices of a mesh send to the other node at once, so that each message takes half of the NIC."""
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / "home"))
    links = {"intra_node": {"latency_s": 1e-5, "bandwidth": 1e8}, "inter_node": {"latency_s": 1e-5, "bandwidth": 1e6}}
    cluster = {**draw(pp=2, dp=2).cluster.model_dump(mode="json"), **links, "nodes": 2, "devices_per_node": 2}
    meshes = [{"name": f"M{rank}", "devices": [2 * rank, 2 * rank + 1], "axes": {"dp": 2}} for rank in range(2)]
    training = {"sharding": sharding}
    prediction = predict(draw(pp=2, dp=2, cluster=cluster, meshes=meshes, model=model(4), training=training))
    found = compare_with(tmp_path, prediction, prediction.costs.seconds)

    profile = run_profile(found)
    store_profile(profile, "run-1.json")
    calibrated = predict(with_cost(prediction.design, {"kind": "calibrated", "profile": "run-1.json"}))

    (link,) = profile.links
    assert link.beta_s_per_byte == pytest.approx(1 / 1e6, rel=1e-3)
    assert calibrated.timeline.makespan == pytest.approx(found.iteration.measured_s, rel=1e-3)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_copies_of_activations_are_as_fast_as_in_the_run_of_a_profile(
    schedule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / "home"))

    def offload(cost: dict[str, Any], host_bandwidth: float) -> Prediction:
        cluster = {**SLOW_HOST, "device": {**SLOW_HOST["device"], "host_bandwidth": host_bandwidth}}
        pipeline = {"schedule": schedule, "microbatches": 4}
        training = {"activation_offload": 1.0}
        return predict(draw(pp=2, model=model(4), cost=cost, cluster=cluster, pipeline=pipeline, training=training))

    prediction = offload(APART, 1e7)
    found = compare_with(tmp_path, prediction, 0.5 * prediction.costs.seconds)
    store_profile(run_profile(found), "run-1.json")

    calibrated = {"kind": "calibrated", "profile": "run-1.json"}
    for host_bandwidth in (1e7, 1e5):  # the device of the run has its own
        makespan = offload(calibrated, host_bandwidth).timeline.makespan
        assert makespan == pytest.approx(found.iteration.measured_s, rel=1e-3)


@pytest.mark.parametrize("axes", [{"dp": 2, "tp": 1}, {"dp": 1, "tp": 2}], ids=str)
def test_a_profile_of_a_run_does_not_contain_the_delays_of_shared_links(
    axes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / "home"))
    prediction = predict(draw_slow_links("hanayo", axes))
    found = compare_with(tmp_path, prediction, prediction.costs.seconds)

    store_profile(run_profile(found), "run-1.json")
    calibrated = predict(with_cost(prediction.design, {"kind": "calibrated", "profile": "run-1.json"}))

    assert calibrated.costs.seconds == pytest.approx(prediction.costs.seconds, rel=1e-3)
    assert calibrated.timeline.makespan == pytest.approx(found.iteration.measured_s, rel=1e-3)


def test_limits_of_a_prediction_are_stated_with_the_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / "home"))
    store_profile(example_profile(), "known.json")
    cost = {"kind": "calibrated", "profile": "known.json"}
    prediction = predict(draw(pp=2, cost=cost, training={"compile": True, "precision": "bf16"}))
    record(tmp_path, prediction, prediction.costs.seconds)

    found = compare(prediction, read_recording(tmp_path), "predicted for hosts linked at 1 MB/s")

    assert found.label == (
        "predicted for hosts linked at 1 MB/s; blocks were compiled with torch.compile, which predictions do not model"
    )
    assert found.to_json()["label"] == found.label
    assert "the profile was measured in fp32 only; bf16 is assumed to take the same time" in found.coverage_warnings


def with_cost(design: Design, cost: dict[str, Any]) -> Design:
    return parse_design({**design.model_dump(mode="json"), "cost": cost})


def test_another_program_and_an_empty_folder_are_refused(tmp_path: Path, prediction: Prediction) -> None:
    with pytest.raises(RunError, match="not all ranks have recorded a training step"):
        compare(prediction, read_recording(tmp_path))
    record(tmp_path, prediction, prediction.costs.seconds)
    with pytest.raises(InputError, match="the program of the run"):
        compare(predict(draw(pp=4)), read_recording(tmp_path))


def test_clocks_are_aligned_and_their_uncertainty_is_stated(tmp_path: Path, prediction: Prediction) -> None:
    ahead = 5_000_000_000
    seen = (ClockOffset(10**12, ahead, 30_000), ClockOffset(2 * 10**12, ahead, 20_000))
    clocks = Clocks((ProcessClock(), *(ProcessClock(False, seen) for _ in range(3))))
    record(tmp_path, prediction, 1e3 * prediction.costs.seconds, ahead_ns=(0, ahead, ahead, ahead))
    write_clocks(tmp_path, clocks)

    found = compare(prediction, read_recording(tmp_path))

    assert found.iteration.measured_s == pytest.approx(1e3 * found.iteration.predicted_s, rel=1e-3)
    assert found.recording.clocks.uncertainty_s == pytest.approx(15e-6)
    assert found.timeline.doubt_s == pytest.approx(15e-6)
    assert found.clock_note == "the clocks of 3 of 4 processes, up to 5 s apart, were aligned to within 15 µs"


def test_a_clock_uncertainty_as_large_as_a_transfer_gives_a_note(tmp_path: Path, prediction: Prediction) -> None:
    seen = (ClockOffset(10**12, 0, 30_000),)
    write_clocks(tmp_path, Clocks((ProcessClock(), ProcessClock(False, seen))))

    found = compare_with(tmp_path, prediction, np.where(prediction.program.op > Op.W, 1e-4, 1e-3))

    assert found.clock_note.endswith(": a transfer of 100 µs has an error of up to 15.0%")
