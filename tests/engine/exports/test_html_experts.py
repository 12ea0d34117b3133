"""Experts in the HTML export: the schedule with its reason, the placement, and the lanes of a layer."""

from __future__ import annotations

import re
from typing import Any

import pytest

from meshwave.engine.document import load_design, parse_design
from meshwave.engine.document.expert_layers import price_expert_layer
from meshwave.engine.experts import expert_schedules, simulate_layer
from meshwave.engine.exports import exports
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.units import quantity


def section(prediction: Prediction) -> str:
    """Return the lines of the section with their markup."""
    page = exports["html"].to_bytes(prediction).decode()
    found = re.search(r'<section id="experts">.*?</section>', page, re.DOTALL)
    return found[0] if found else ""


def predicted_example(name: str, **experts: Any) -> Prediction:
    document = load_design(example(name)).model_dump(mode="json")
    document["experts"] |= experts
    return predict(parse_design(document))


def test_the_section_has_the_chosen_schedule_with_its_reason_and_times() -> None:
    prediction = predicted_example("15-bert-base-moe", schedule="auto")
    priced = price_expert_layer(prediction.design, prediction.design.meshes[0])
    assert priced.choice is not None

    told = section(prediction)

    assert priced.choice.titled_reason in told
    assert f"<dd>{expert_schedules[priced.name].title}</dd>" in told
    times = [quantity(simulate_layer(priced, way).makespan, "s") for way in (priced.forward, priced.backward)]
    assert f"<dd>{times[0]}, {times[1]}</dd>" in told
    assert f"predicted, {times[0]} + {times[1]}" in told


def test_the_section_lists_the_experts_and_load_of_each_place() -> None:
    placement = [[0, 1, 2, 3, 4]] * 4 + [[0, 5, 6, 7]] * 4 + [[8, 9, 10, 11]] * 4 + [[12, 13, 14, 15]] * 4

    told = section(predicted_example("15-bert-base-moe", load="zipf", placement=placement))

    assert "Placement: 4 places, 1 replica<" in told
    rows = re.findall(r'<th scope="row">([\d-]+)</th><td>([^<]+)</td><td>([\d.]+)×</td><td>([\d.]+)%</td>', told)
    assert [row[:2] for row in rows] == [("0-3", "0-4"), ("4-7", "0, 5-7"), ("8-11", "8-11"), ("12-15", "12-15")]
    assert sum(float(row[3]) for row in rows) == pytest.approx(100, abs=0.2)


def test_the_lanes_of_a_layer_have_a_tooltip_for_every_step() -> None:
    prediction = predict(load_design(example("17-experts-on-two-cores")))

    told = section(prediction)

    assert told.count("<title>experts on 3 compute: starts at") == 2 * 2  # forward and backward, in both themes
    assert "<title>dispatch on 0 inside the node: starts at" in told
    assert {"experts", "gate and order", "backward"} <= set(re.findall(r">([^<>]+)</text>", told))


def test_of_many_devices_only_the_last_one_to_finish_is_drawn() -> None:
    told = section(predict(load_design(example("15-bert-base-moe"))))

    assert "One layer, forward and backward on device" in told
    assert len(set(re.findall(r"<title>experts on (\d+) compute", told))) == 1


def test_equal_layers_are_listed_once_and_models_without_experts_have_no_section() -> None:
    told = section(predict(load_design(example("16-gpt2-moe"))))

    assert told.count("<h3>") == 1 and "on meshes A, B" in told and "over tp 4" in told
    assert "set in the design" in told
    assert section(predict(load_design(example("06-data-parallel")))) == ""


def test_a_model_whose_blocks_have_no_experts_has_no_section() -> None:
    document = load_design(example("16-gpt2-moe")).model_dump(mode="json")
    document["model"]["moe"]["every"] = document["model"]["layers"] + 1

    prediction = predict(parse_design(document))

    assert section(prediction) == ""
    assert prediction.numbers["dropped"] is None
