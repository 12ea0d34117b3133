"""Predicted figures of a design, as ``simulate --json`` and the page show them."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwave.engine.document import parse_design
from meshwave.engine.findings import DesignError
from meshwave.engine.predict.prediction import check_design, predict
from meshwave.engine.schedules import schedules
from tests._strategies import Drawn, document, examples, pipelines

SLOW_LINKS = {"latency_s": 1e-5, "bandwidth": 1e9}


def predicted_numbers(pipeline: dict[str, Any], ranks: int, **sections: Any) -> dict[str, Any]:
    return predict(parse_design(document(pipeline, ranks, **sections))).numbers


def test_numbers_of_two_waves_on_four_meshes() -> None:
    """Figure 3e of the Hanayo paper: F = 1 and B = 2 per stage, 60 slots, a bubble of one fifth."""
    numbers = predicted_numbers(
        {"schedule": "hanayo", "waves": 2, "microbatches": 4}, 4, cost={"kind": "unit", "forward": 4, "backward": 8}
    )

    assert numbers["makespan_s"] == 60
    assert numbers["bubble_ratio"] == pytest.approx(0.2)
    assert numbers["busy_s"] == [48] * 4
    assert numbers["idle_s"] == [12] * 4
    assert numbers["peak_inflight"] == [3.25, 3.5, 3.75, 4.0]
    assert numbers["weight_copies"] == [1] * 4
    assert numbers["samples_per_s"] == 4 / 60
    assert numbers["tokens_per_s"] == 4 * 32 / 60
    assert numbers["layers_per_stage"] == [15] * 16
    assert (numbers["unit"], numbers["mfu"]) == ("units", None)
    assert numbers["fits"] is True
    assert numbers["warnings"] == []


def test_chimera_keeps_two_copies_of_the_weights() -> None:
    numbers = predicted_numbers({"schedule": "chimera", "microbatches": 4}, 4)

    assert numbers["weight_copies"] == [2] * 4
    assert numbers["makespan_s"] == 16


def test_seconds_come_from_the_roofline() -> None:
    """MFU is the model's FLOPs divided by the peak FLOPs of all devices in the same time."""
    design = parse_design(document({"schedule": "1f1b", "microbatches": 8}, 2, cost={"kind": "roofline"}))
    prediction = predict(design)
    numbers = prediction.numbers

    assert numbers["unit"] == "s"
    assert 0 < numbers["makespan_s"] < 1
    assert numbers["mfu"] == prediction.costs.model_flops / (2 * 312e12 * numbers["makespan_s"])
    assert 0 < numbers["mfu"] < 0.5
    assert numbers["samples_per_s"] == 8 / numbers["makespan_s"]


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(data=st.data(), kind=st.sampled_from(["unit", "roofline"]), dp=st.integers(1, 2))
def test_every_schedule_has_all_metrics_as_json(data: st.DataObject, kind: str, dp: int) -> None:
    drawn = data.draw(st.sampled_from(list(schedules)).flatmap(pipelines))
    numbers = predict(drawn.design(dp, cost={"kind": kind})).numbers

    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    per_mesh = ("busy_s", "idle_s", "exposed_communication_s", "peak_inflight", "peak_memory_bytes", "weight_copies")
    assert all(len(numbers[key]) == drawn.ranks for key in (*per_mesh, "meshes"))
    busy, idle = sum(numbers["busy_s"]), sum(numbers["idle_s"])
    assert numbers["bubble_ratio"] == pytest.approx(1 - busy / (drawn.ranks * numbers["makespan_s"]), abs=1e-9)
    assert numbers["bubble_ratio"] == pytest.approx(idle / (busy + idle), abs=1e-9)
    assert numbers["samples_per_s"] == pytest.approx(dp * drawn.microbatches / numbers["makespan_s"])


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(data=st.data())
def test_the_maximum_of_memory_over_time_is_the_peak(data: st.DataObject) -> None:
    drawn = data.draw(st.sampled_from(list(schedules)).flatmap(pipelines))
    prediction = predict(drawn.design(cost={"kind": "roofline"}))

    for (times, held), peak in zip(prediction.memory_curves, prediction.memory.total_bytes, strict=True):
        assert times[0] == 0
        assert (times[1:] >= times[:-1]).all()
        assert held.max() == pytest.approx(peak)
    for (times, held), (same, parts) in zip(prediction.memory_curves, prediction.memory_parts, strict=True):
        assert times.tolist() == same.tolist()
        assert np.sum(list(parts.values()), axis=0) == pytest.approx(held)
        assert min(part.min() for part in parts.values()) >= -1e-6 * held.max()


@pytest.mark.parametrize(
    "extremes",
    [
        {"cluster": {"device": {"peak_flops": 1.0, "memory_bandwidth": 1.0, "efficiency": 1e-6}}},
        {"cluster": {"device": {"peak_flops": 1e24, "memory_bytes": 1.0, "memory_bandwidth": 1e24}}},
        {"cluster": {"intra_node": {"latency_s": 1e6, "bandwidth": 1.0}}},
        {"model": {"hidden": 10**9, "heads": 1, "sequence": 10**9, "vocab": 10**9, "layers": 100_000}},
        {"training": {"micro_batch_size": 10**6, "lr": 1e300}},
        {"cost": {"kind": "unit", "forward": 1e-9, "backward": 1e9, "transfer": 1e9}},
    ],
)
def test_the_most_extreme_design_has_finite_numbers(extremes: dict[str, Any]) -> None:
    design = document({"schedule": "hanayo", "microbatches": 3}, 2, cost={"kind": "roofline"}, training={})

    numbers = predict(parse_design(laid_over(design, extremes))).numbers

    assert all(map(math.isfinite, numbers_in(numbers)))


def laid_over(document: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a document with some keys changed at any depth."""
    return {
        **document,
        **{
            key: laid_over(document.get(key, {}), value) if isinstance(value, dict) else value
            for key, value in changes.items()
        },
    }


def numbers_in(value: Any) -> list[float]:
    if isinstance(value, dict):
        return numbers_in(list(value.values()))
    if isinstance(value, list):
        return [number for each in value for number in numbers_in(each)]
    return [value] if isinstance(value, (int, float)) else []


# ---- warnings ----


def warnings(**sections: Any) -> list[str]:
    design = document({"schedule": "gpipe", "microbatches": 4}, 2, cost={"kind": "roofline"})
    return [str(problem) for problem in check_design(parse_design(laid_over(design, sections)))]


def test_a_valid_design_has_no_problems() -> None:
    assert warnings() == []


def test_a_model_that_does_not_fit_is_reported_with_its_largest_category_and_a_remedy() -> None:
    cluster = {"device": {"memory_bytes": 1e9}}

    told = warnings(cluster=cluster, model={"hidden": 1024, "layers": 96})

    assert len(told) == 2
    for rank, warning in enumerate(told):
        assert re.fullmatch(
            rf"warning: meshes\[{rank}\]: a device of mesh m{rank} needs [\d.]+ GB of memory but has 1 GB; "
            r"the largest part is optimizer \([\d.]+ GB\); use more meshes, a larger tp or sgd",
            warning,
        )


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        (
            {"cluster": {"nodes": 3}},
            ["warning: meshes: 1 of 3 devices belong to no mesh and stay idle"],
        ),
        ({"model": {"moe": {"experts": 4}}}, []),
        (
            {"model": {"vocab": 100}},
            ["warning: model.vocab: a gpt reads text as bytes and needs a vocab of at least 256, not 100"],
        ),
        (
            {"model": {"kind": "bert"}},
            ["warning: model.vocab: a bert reads text as bytes and needs a vocab of at least 257, not 256"],
        ),
    ],
)
def test_warnings_are_listed_and_the_design_is_simulated(sections: dict[str, Any], told: list[str]) -> None:
    assert warnings(**sections) == told


def test_meshes_may_have_different_shapes() -> None:
    design = document({"schedule": "gpipe", "microbatches": 4}, 2, dp=2)
    design["meshes"][1] = {"name": "m1", "devices": [2], "axes": {"dp": 1}}

    assert [problem.code for problem in check_design(parse_design(design))] == ["unused_devices"]


def test_replicas_with_unequal_shares_of_a_microbatch_give_a_warning() -> None:
    design = document({"schedule": "gpipe", "microbatches": 4}, 2, dp=3)
    design["meshes"][1] = {"name": "m1", "devices": [3, 4], "axes": {"dp": 2}}
    design["training"] = {**design.get("training", {}), "micro_batch_size": 1}

    told = {problem.code: problem for problem in check_design(parse_design(design))}
    assert set(told) == {"unused_devices", "indivisible_micro_batch"}
    assert told["indivisible_micro_batch"].where == "meshes[1].axes.dp"
    assert told["indivisible_micro_batch"].message == (
        "a microbatch has 3 sequences (micro_batch_size x dp of mesh m0), which the dp=2 replicas of mesh m1 cannot share "
        "evenly; set training.micro_batch_size to a multiple of 2, or change dp"
    )


@pytest.mark.parametrize(
    ("changes", "way_out"),
    [
        (
            {"pipeline": {"schedule": "gpipe", "microbatches": 64}},
            "use 1f1b instead of gpipe, recomputation of all stages or more meshes",
        ),
        ({"pipeline": {"schedule": "hanayo", "microbatches": 64}}, "use recomputation of all stages or more meshes"),
        (
            {"pipeline": {"schedule": "hanayo", "microbatches": 64}, "training": {"micro_batch_size": 2}},
            "use a smaller micro_batch_size, recomputation of all stages or more meshes",
        ),
    ],
)
def test_remedies_are_those_that_the_design_does_not_use_yet(changes: dict[str, Any], way_out: str) -> None:
    small = {"device": {"memory_bytes": 1e6}}
    base = document({"schedule": "gpipe", "microbatches": 4}, 2, cost={"kind": "roofline"}, training={})
    base["pipeline"] = changes["pipeline"]

    long = {"sequence": 1024}
    told = [
        str(each) for each in check_design(parse_design(laid_over(base, {**changes, "cluster": small, "model": long})))
    ]

    assert "the largest part is activations" in told[0]
    assert "of memory but has 1 MB" in told[0]
    assert told[0].endswith(way_out)


def test_equal_stage_costs_of_indivisible_layers_give_a_warning() -> None:
    made = document({"schedule": "gpipe", "microbatches": 4}, 3, cost={"kind": "unit"})
    made["model"] = {**made["model"], "layers": 32}

    (warning,) = check_design(parse_design(made))

    assert (warning.where, warning.severity) == ("pipeline.stages", "warning")
    assert "all 3 stages the same cost, but 32 layers cannot be divided equally (10 or 11 each)" in warning.message
    (fix,) = warning.fixes
    assert (fix.label, fix.edits) == ("set pipeline.stages to 11, 11 and 10", (("pipeline.stages", [11, 11, 10]),))
    assert check_design(parse_design(laid_over(made, {"pipeline": {"stages": [11, 11, 10]}}))) == []
    assert check_design(parse_design(laid_over(made, {"model": {"layers": 33}}))) == []
    assert str(warning) in predict(parse_design(made)).numbers["warnings"]


# ---- what cannot be predicted ----


def test_a_deadlock_of_a_custom_order_is_a_problem_of_the_design() -> None:
    drawn = Drawn({"schedule": "custom", "microbatches": 1, "actions": [["0B0", "0F0"]]}, 1)

    with pytest.raises(DesignError, match="deadlock: mesh m0 waits at 0B0"):
        predict(drawn.design())
    assert [problem.where for problem in check_design(drawn.design())] == ["pipeline.actions[0][0]"]
