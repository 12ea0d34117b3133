"""Exports of designs in which tensors skip stages."""

from __future__ import annotations

import json

import pytest

from meshwave.engine.document import parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.exports import exports
from meshwave.engine.predict.prediction import Prediction, predict
from tests._strategies import GPT, document


def prediction(ranks: int) -> Prediction:
    model = {**GPT, "kind": "u-transformer", "layers": 6, "vocab": 257}
    return predict(parse_design(document({"schedule": "1f1b", "microbatches": 2}, ranks, model=model)))


@pytest.mark.parametrize("name", ["torch-csv", "torch-csv-comms"])
def test_torch_supports_messages_between_adjacent_stages_only(name: str) -> None:
    with pytest.raises(InputError, match="here tensors skip from stage 0 to stage 2; use two stages"):
        exports[name].to_bytes(prediction(3))
    assert exports[name].to_bytes(prediction(2)), "between neighbours they travel with what is sent anyway"


def test_torchtitan_does_not_support_models_with_skips() -> None:
    with pytest.raises(InputError, match="without skip connections"):
        exports["torchtitan"].to_bytes(prediction(2))


def test_perfetto_draws_an_arrow_to_the_consuming_stage() -> None:
    events = json.loads(exports["perfetto"].to_bytes(prediction(3)))["traceEvents"]
    flows = {
        (event["ph"], event["pid"]) for event in events if event.get("name") == "0SEND_F0TO2" and event["ph"] in "sf"
    }

    assert flows == {("s", 0), ("f", 2)}
