"""Price and energy of training, at a price per device-hour and a power per device."""

from __future__ import annotations

import pytest

from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict


def priced_design(name: str = "11-eight-by-32", **rates: float) -> Design:
    document = load_design(example(name)).model_dump(mode="json")
    return parse_design({**document, "cluster": {**document["cluster"], **rates}})


def test_all_devices_are_paid_for_the_whole_step() -> None:
    design = priced_design(price_per_device_hour=3600.0, watts_per_device=500.0)
    numbers = predict(design).numbers
    step_s, devices = numbers["makespan_s"], 8

    assert numbers["price"]["step"] == pytest.approx(devices * step_s)
    assert numbers["price"]["training"] == pytest.approx(devices * step_s * design.training.steps)
    assert numbers["energy_j"]["step"] == pytest.approx(devices * step_s * 500)
    assert numbers["energy_j"]["million_tokens"] == pytest.approx(1e6 * devices * 500 / numbers["tokens_per_s"])


def test_nothing_is_stated_without_a_rate_or_without_seconds() -> None:
    assert [predict(priced_design()).numbers[key] for key in ("price", "energy_j")] == [None, None]
    assert predict(priced_design("02-two-waves", price_per_device_hour=2.0)).numbers["price"] is None


def test_a_rate_changes_no_other_number() -> None:
    plain, paid = (predict(priced_design(**rates)).numbers for rates in ({}, {"price_per_device_hour": 2.0}))

    assert {key for key in plain if plain[key] != paid[key]} == {"price"}
