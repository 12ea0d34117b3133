"""Predicted effect of a slow device, a slow link and jitter."""

from __future__ import annotations

import json

import pytest

from meshwave.engine.cli import main as cli
from meshwave.engine.document import load_design, parse_design
from meshwave.engine.files import example
from meshwave.engine.findings import Refusal
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.predict.questions import Change, Slowdown, changed_makespan, slow_step
from tests._strategies import document


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    return predict(load_design(example("01-first-wave")))


def test_without_a_slowdown_nothing_is_lost(prediction: Prediction) -> None:
    found = slow_step(prediction, Slowdown())

    assert found.makespan_s == found.p95_s == pytest.approx(prediction.timeline.makespan)
    assert found.loss == 0


def test_one_slow_device_of_every_mesh_slows_the_step_in_proportion(prediction: Prediction) -> None:
    devices = {mesh.devices[0]: 2.0 for mesh in prediction.design.meshes}

    assert slow_step(prediction, Slowdown(devices)).makespan_s == pytest.approx(2 * prediction.timeline.makespan)
    assert slow_step(prediction, Slowdown(devices)).loss == pytest.approx(0.5)


def test_one_slow_device_costs_less_than_all(prediction: Prediction) -> None:
    before = prediction.timeline.makespan

    assert before < slow_step(prediction, Slowdown({0: 2.0})).makespan_s < 2 * before


def test_a_slow_link_delays_the_step() -> None:
    prediction = predict(load_design(example("03-gpt-on-two-cores")))
    one, other = (mesh.name for mesh in prediction.design.meshes[:2])

    assert slow_step(prediction, Slowdown(links={(other, one): 100.0})).loss > 0


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "dualpipe-v"])
def test_a_slow_link_is_that_of_a_cluster_drawn_with_slow_links(schedule: str) -> None:
    def predict_with_links(times: float) -> Prediction:
        made = document({"schedule": schedule, "microbatches": 8}, 2, cost={"kind": "roofline"})
        made["cluster"]["inter_node"] = {"latency_s": 1e-3 * times, "bandwidth": 1e8 / times}
        return predict(parse_design(made))

    slow = slow_step(predict_with_links(1.0), Slowdown(links={("m0", "m1"): 3.0}))
    whole = predict_with_links(3.0)

    assert slow.makespan_s == pytest.approx(whole.timeline.makespan)
    assert changed_makespan(whole.program, whole.costs, Change("transfers"), 2 / 3) == pytest.approx(
        predict_with_links(1.0).timeline.makespan
    )


def test_jitter_costs_time_although_the_mean_of_computations_stays(prediction: Prediction) -> None:
    found = slow_step(prediction, Slowdown(jitter=0.3))

    assert prediction.timeline.makespan < found.makespan_s < found.p95_s
    assert found == slow_step(prediction, Slowdown(jitter=0.3))


@pytest.mark.parametrize(
    ("slowdown", "message"),
    [
        (Slowdown({99: 2.0}), "device 99 belongs to no mesh"),
        (Slowdown({0: 0.0}), "a factor of 0 is out of range"),
        (Slowdown(links={("A", "Z"): 2.0}), "there is no mesh Z"),
        (Slowdown(jitter=3.0), "a jitter of 3 is out of range"),
    ],
)
def test_an_impossible_slowdown_is_refused(prediction: Prediction, slowdown: Slowdown, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        slow_step(prediction, slowdown)


def test_the_command_line_states_the_loss(capsys: pytest.CaptureFixture[str]) -> None:
    slow = ["--slow-device", "0=1.5", "--slow-link", "A:B=2", "--jitter", "0.1"]

    assert cli.main(["simulate", "01-first-wave", *slow]) == 0
    assert "of the throughput is lost" in capsys.readouterr().out
    assert cli.main(["simulate", "01-first-wave", "--json", *slow]) == 0
    assert json.loads(capsys.readouterr().out)["slowdown"]["loss"] > 0
    assert cli.main(["simulate", "01-first-wave", "--slow-link", "A=B"]) == 2
