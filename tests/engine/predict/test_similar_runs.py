"""Evidence for a prediction: constants, similar runs, and the interval of the step time."""

import json

import pytest

from meshwave.engine.document import load_design
from meshwave.engine.document.devices import device_kinds
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict
from meshwave.engine.predict.similar_runs import (
    Traits,
    find_evidence,
    find_interval,
    left_out_errors,
    predicted_published_runs,
)


def rename_device(design, name):
    cluster = design.cluster
    return design.model_copy(
        update={
            "cluster": type(cluster).model_validate(
                {**cluster.model_dump(), "device": {**cluster.device.model_dump(), "name": name}}
            )
        }
    )


DESIGN = load_design(example("06-data-parallel")).model_copy(
    update={"cost": load_design(example("14-tensor-parallel")).cost}
)


def test_a_device_without_constants_has_no_evidence():
    assert find_evidence(rename_device(DESIGN, "my device")) is None


def test_a_known_device_names_its_constants_and_the_nearest_runs():
    design = rename_device(DESIGN, "H100-SXM5-80GB")

    numbers = predict(design).numbers
    evidence = json.loads(json.dumps(numbers["evidence"]))

    assert evidence["constants"] == device_kinds()["H100-SXM5-80GB"].constants.model_dump()
    assert len(evidence["like_runs"]) == 3
    assert all(run["device"] == "H100-SXM5-80GB" for run in evidence["like_runs"])
    assert "predicted" in evidence["like_runs"][0]["words"]
    low, high = evidence["interval_s"]
    assert 0.5 * numbers["makespan_s"] < low <= high < 2 * numbers["makespan_s"]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["dense", "moe"])
def test_four_fifths_of_the_runs_of_an_unknown_source_lie_in_their_interval(arch):
    """Each run is predicted, and its interval is found, without any run of its source."""
    errors, known = left_out_errors(), predicted_published_runs()
    targets = [run for run in known if run.arch == arch and run.id in errors]
    inside = 0
    for run in targets:
        traits = Traits(run.device, run.arch, run.parameters, run.devices, run.ranks, run.linear_precision)
        low, high = find_interval(traits, [other for other in known if other.source != run.source])
        inside += low <= 1 / (1 + errors[run.id]) <= high

    assert 0.7 <= inside / len(targets) <= 0.9


def test_most_runs_have_an_error_with_their_source_left_out():
    assert len(left_out_errors()) > 0.9 * len(predicted_published_runs())
