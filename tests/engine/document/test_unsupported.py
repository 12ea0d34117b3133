"""Reasons why a design that can be planned cannot be run, each with its place."""

from __future__ import annotations

import pytest

from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.document.unsupported import dry_run_problems, run_problems
from meshwave.engine.files import example, examples


def changed_design(part: str, experts: dict[str, int] | None = None, **values: object) -> Design:
    document = load_design(example("03-gpt-on-two-cores")).model_dump(mode="json")
    document[part].update(values)
    document["experts"].update(experts or {})
    return parse_design(document)


@pytest.mark.parametrize("name", examples())
def test_every_example_can_run(name: str) -> None:
    assert run_problems(load_design(example(name))) == []


@pytest.mark.parametrize(
    ("design", "where", "code"),
    [
        (changed_design("model", moe={"experts": 4}, experts={"ep": 4}), "experts.ep", "split_expert_groups"),
        (changed_design("model", vocab=255), "model.vocab", "vocabulary"),
        (changed_design("model", kind="bert", vocab=256), "model.vocab", "vocabulary"),
        (
            changed_design("training", activation_offload=0.5, compile=True),
            "training.activation_offload",
            "unsupported_offload",
        ),
        (
            changed_design("training", linear_precision="fp8", compile=True),
            "training.linear_precision",
            "fp8_products",
        ),
        (changed_design("training", linear_precision="fp4"), "training.linear_precision", "fp4_products"),
        (changed_design("training", cuda_graphs="step"), "training.cuda_graphs", "unsupported_training"),
    ],
    ids=["experts", "bytes", "bytes and a mask", "offload", "compiled fp8", "fp4", "graphs"],
)
def test_an_unsupported_setting_is_an_error_at_its_key(design: Design, where: str, code: str) -> None:
    assert [(found.where, found.code, found.severity) for found in run_problems(design)] == [(where, code, "error")]


def test_batched_messages_need_meshes_without_resharding() -> None:
    document = load_design(example("14-tensor-parallel")).model_dump(mode="json")
    assert run_problems(parse_design(document)) == []

    (found,) = run_problems(parse_design({**document, "transfer": {"batched": True}}))

    assert (found.where, found.code) == ("transfer.batched", "batched_resharding")
    assert [fix.label for fix in found.fixes] == ["set batched to false"]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"transfer": {"batched": True}}, "transfer.batched"),
        ({"cost": {"kind": "unit", "transfer_model": "batched"}}, "cost.transfer_model"),
        ({"cost": {"kind": "unit", "transfer_model": "half-duplex"}}, "cost.transfer_model"),
    ],
)
def test_a_dry_run_refuses_settings_that_it_cannot_simulate(change: dict[str, object], where: str) -> None:
    document = load_design(example("03-gpt-on-two-cores")).model_dump(mode="json")
    design = parse_design({**document, **change})

    assert [found.where for found in dry_run_problems(design)] == [where]
    assert run_problems(design) == []
    assert dry_run_problems(parse_design({**document, "cost": {"kind": "unit", "transfer_model": "link-serial"}})) == []
