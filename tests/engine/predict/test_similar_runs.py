"""What a prediction rests on: constants, like runs, and the interval of the step time."""

import json

from meshwave.engine.document import load_design
from meshwave.engine.document.devices import device_kinds
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict
from meshwave.engine.predict.similar_runs import find_evidence


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
