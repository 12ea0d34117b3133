"""The form of a design whose model is a U-Net."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshwave.designer.canvases.wave_skips import skip_arcs
from meshwave.designer.forms.changes import make_edit
from meshwave.designer.forms.fields import Field, form_sections
from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict


def field(design: Design, path: str) -> Field:
    return next(each for section in form_sections(design) for each in section["fields"] if each["path"] == path)


def changed_design(design: Design, path: str, given: Any) -> Design:
    """The design after an input."""
    at, value, _ = make_edit(design, field(design, path), given)
    document = json.loads(design.to_json())
    if at:
        section, key = at.split(".")
        document[section][key] = value
    else:
        document |= value
    return parse_design(json.loads(json.dumps(document)))


@pytest.fixture
def u_net() -> Design:
    return load_design(example("21-u-net"))


def test_the_u_net_has_its_own_size_fields_and_no_experts(u_net: Design) -> None:
    paths = [each["path"] for section in form_sections(u_net) for each in section["fields"]]

    own = ["kind", "image_size", "image_channels", "base_channels", "channel_multipliers", "attention_resolutions"]
    assert {f"model.{name}" for name in own} <= set(paths)
    assert not {"model.hidden", "model.vocab", "model.moe"} & set(paths)
    assert changed_design(u_net, "model.channel_multipliers", "1, 2, 4, 4").model.layers == 9


def test_every_model_family_can_be_chosen_from_every_other(u_net: Design) -> None:
    kinds = [option["value"] for option in field(u_net, "model.kind")["options"]]
    assert set(kinds) == {"gpt", "bert", "transformer", "u-transformer", "u-net"}

    for kind in kinds:
        design = changed_design(u_net, "model.kind", kind) if kind != "u-net" else u_net
        for other in kinds:
            if other != kind:
                assert changed_design(design, "model.kind", other).model.kind == other


def test_manual_stages_are_balanced_again_for_another_model_family() -> None:
    gpt = load_design(example("03-gpt-on-two-cores"))
    layers = gpt.model.layers
    by_hand = parse_design(
        json.loads(gpt.to_json())
        | {
            "pipeline": {
                **gpt.pipeline.model_dump(mode="json"),
                "stages": [layers - gpt.stages + 1] + [1] * (gpt.stages - 1),
            }
        }
    )

    assert changed_design(by_hand, "model.kind", "bert").pipeline.stages == by_hand.pipeline.stages
    assert changed_design(by_hand, "model.kind", "u-net").pipeline.stages is None


def test_skip_connections_of_the_u_net_are_arcs_that_count_tensors(u_net: Design) -> None:
    prediction = predict(u_net)

    arcs = skip_arcs(u_net, prediction.program, prediction.costs)

    crossing = {(source, target) for source, target, _ in prediction.program.skips.tolist()}
    assert {(arc["from"], arc["to"]) for arc in arcs} == crossing
    words = [arc["words"].partition(" from ")[0] for arc in arcs]
    assert set(words) <= {"1 skip tensor", "2 skip tensors", "3 skip tensors"}
