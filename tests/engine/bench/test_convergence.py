"""Tests of the convergence benchmark."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.engine.bench import convergence as convergence_bench
from meshwave.engine.bench import speed as bench
from meshwave.engine.bench.convergence import BASELINES, TITLES, Size, compare_convergence, convergence_design, to_text
from meshwave.engine.errors import RunError
from meshwave.engine.predict.prediction import predict

TINY = Size(layers=2, hidden=16, sequence=16, experts=4, micro_batch=2, microbatches=2, steps=4)

pytestmark = pytest.mark.usefixtures("warm_processes")


@pytest.fixture(scope="module")
def trained_results() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convergence_bench, "missing_requirement", lambda: "not in tests")
        return compare_convergence(TINY, ["ppmoe", "once", "backbone"])


@pytest.mark.torch
@pytest.mark.nightly
def test_ppmoe_and_expert_parallelism_have_equal_losses_from_the_same_seed(trained_results: dict[str, Any]) -> None:
    ppmoe, once, backbone = trained_results["runs"].values()
    assert ppmoe["losses"] == pytest.approx(once["losses"], abs=1e-12)
    assert trained_results["largest_difference"] == {"once": pytest.approx(0, abs=1e-12)}
    assert backbone["losses"] != pytest.approx(once["losses"], abs=1e-4)  # another model: the comparison can fail
    for run in trained_results["runs"].values():
        assert len(run["losses"]) == len(run["seconds"]) == TINY.steps
        assert run["losses"][-1] < run["losses"][0]
        assert run["seconds"] == sorted(run["seconds"])
    assert "not in tests" in trained_results["network"]


@pytest.mark.torch
@pytest.mark.nightly
def test_another_seed_gives_other_losses(trained_results: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convergence_bench, "missing_requirement", lambda: "not in tests")
    other = compare_convergence(Size(**{**vars(TINY), "seed": 1, "steps": 1}), ["ppmoe"])["runs"]["ppmoe"]

    assert trained_results["runs"]["ppmoe"]["losses"][0] != other["losses"][0]


def test_all_layouts_have_the_same_global_batch() -> None:
    designs = [convergence_design(name, Size()) for name in TITLES]

    assert {design.training for design in designs} == {designs[0].training}
    batches = {
        design.meshes[0].dp * design.pipeline.microbatches * design.training.micro_batch_size for design in designs
    }
    assert batches == {16}
    assert {design.training.seed for design in designs} == {0}


def test_ppmoe_is_the_fastest_predicted_expert_layout_between_slow_nodes() -> None:
    ppmoe, once, resent, backbone = (predict(convergence_design(name, Size())).timeline.makespan for name in TITLES)

    assert backbone < ppmoe < once < resent


def convergence_results(**changes: Any) -> dict[str, Any]:
    run = {"step_s": 0.5, "step_quartiles_s": [0.4, 0.6], "predicted_step_s": 0.4}
    runs = {
        "ppmoe": {
            **run,
            "title": "PPMoE",
            "losses": [5.0, 4.0, 3.0],
            "seconds": [1.0, 1.5, 2.0],
            "seconds_to_target": 1.5,
        },
        "once": {
            **run,
            "title": "once",
            "losses": [5.0, 4.0, 3.5],
            "seconds": [2.0, 4.0, 6.0],
            "seconds_to_target": 6.0,
        },
    }
    whole = {
        "network": "n",
        "steps": 3,
        "seed": 0,
        "target_loss": 3.5,
        "runs": runs,
        "largest_difference": {"once": 0.5},
    }
    return {**whole, **changes}


def test_the_text_has_losses_and_seconds_of_steps() -> None:
    text = to_text(convergence_results())

    assert text[2].split() == ["loss", "of", "step", "1", "2", "3"]
    assert text[3].split() == ["PPMoE", "5.0000", "4.0000", "3.0000"]
    assert text[8].split() == ["once", "2.00", "4.00", "6.00"]
    assert "step time: median 500 ms, IQR 400 ms - 600 ms (2 steps); 1.50 s to a loss of 3.5000" in text[10]
    assert text[-1].endswith("PPMoE and expert parallel, tokens sent once: 0.5")
    assert bench.to_text({"convergence": convergence_results()})[0] == "convergence"


def test_seconds_to_a_loss_end_with_the_first_step_that_reaches_it() -> None:
    runs = convergence_results()["runs"]

    assert convergence_bench._seconds_to_loss(4.2, runs["ppmoe"]) == 1.5
    assert convergence_bench._seconds_to_loss(3.5, runs["once"]) == 6.0
    assert dict(convergence_bench._largest_loss_differences(runs)) == {"once": 0.5}
    assert set(BASELINES) < set(TITLES)


@pytest.mark.torch
def test_a_failed_run_ends_the_benchmark_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convergence_bench, "missing_requirement", lambda: "not in tests")
    monkeypatch.setattr(convergence_bench, "TIMEOUT_S", 0.0)

    with pytest.raises(RunError, match="PPMoE: not finished after 0 s"):
        compare_convergence(TINY, ["ppmoe"])
