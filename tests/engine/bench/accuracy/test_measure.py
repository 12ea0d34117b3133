"""Measurement of designs in real processes, and the stored results."""

from __future__ import annotations

import time

import pytest

from meshwave.engine.bench.accuracy.cases import GIVES_PROFILE, MODEL, PROFILE, UNIT, USES_PROFILE, Case, case_document
from meshwave.engine.bench.accuracy.measure import Bench, case_scale, open_bench
from meshwave.engine.costs.profile import Machine, Profile
from meshwave.engine.costs.profile_store import store_profile
from meshwave.engine.predict.prediction import predict

TINY = {**MODEL, "layers": 2, "hidden": 32}
SMALL = {"model": TINY, "microbatches": 2}
BY_PROFILE = {"kind": "calibrated", "profile": PROFILE}


@pytest.mark.slow
def test_the_shortest_computation_is_long_enough_unless_a_step_gets_too_long() -> None:
    few, many = (case_document({"schedule": "1f1b"}, microbatches=count, model=MODEL, cost=UNIT) for count in (8, 80))

    assert case_scale(predict(Case("few", "", few).design(1))) == pytest.approx(0.02)  # a forward is a unit
    assert case_scale(predict(Case("many", "", many).design(1))) == pytest.approx(2.0 / (3 * 83))


@pytest.mark.torch
@pytest.mark.usefixtures("warm_processes")
def test_a_dry_run_and_a_training_run_are_compared_with_their_predictions(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path_factory.mktemp("home")))
    store_profile(
        Profile(machine=Machine(ranks=1, ranks_per_node=1, made_s=time.time())), PROFILE
    )  # as if just calibrated

    with open_bench(say=pytest.fail) as measuring:  # it would say that it calibrates
        _measures_dry_run(measuring)
        _measures_with_run_profile(measuring)


def _measures_dry_run(measuring: Bench) -> None:
    drawn = case_document({"schedule": "1f1b"}, ((1, 1),) * 2, cost=UNIT, **SMALL)

    found = measuring.measure(Case("a wave", "waves", drawn, rivals="waves", scale=0.01, tags={"limit": "x"}))

    assert (found.case, found.group, found.way, found.rivals) == ("a wave", "waves", "rehearsed", "waves")
    assert (found.meshes, found.processes, found.unit, found.scale, found.steps) == (2, 2, "units", 0.01, 3)
    assert found.predicted == 9
    assert found.measured > 8.9  # a wait is never too short
    assert found.shortest_s == pytest.approx(0.01)
    assert found.note.startswith("messages have their full size")
    assert found.message_bytes == found.modelled_message_bytes
    assert found.message_bytes
    assert not found.measured_bytes


def _measures_with_run_profile(measuring: Bench) -> None:
    drawn = case_document({"schedule": "1f1b"}, ((1, 1),), cost=BY_PROFILE, **SMALL)

    found = measuring.measure(
        Case("real", "", drawn, "measured", tags={GIVES_PROFILE: "itself", USES_PROFILE: "of itself"})
    )

    assert found.learned is not None
    assert found.learned == pytest.approx(found.measured, rel=0.05)  # the design that taught is predicted so
    assert found.scale is None
    assert found.measured_bytes[0] > 0
