"""A design that cannot run says why at its places; whether it can be planned is another question."""

from __future__ import annotations

import pytest

from engine.design import Design, load_design, parse_design
from engine.design.runnable import runnable
from engine.resources import example, examples


def changed(part: str, experts: dict[str, int] | None = None, **values: object) -> Design:
    document = load_design(example("03-gpt-on-two-cores")).model_dump(mode="json")
    document[part].update(values)
    document["experts"].update(experts or {})
    return parse_design(document)


@pytest.mark.parametrize("name", examples())
def test_every_example_can_run(name: str) -> None:
    assert runnable(load_design(example(name))) == []


@pytest.mark.parametrize(
    ("design", "where", "code"),
    [
        (changed("model", moe={"experts": 4}, experts={"ep": 4}), "experts.ep", "experts_mesh"),
        (changed("model", vocab=255), "model.vocab", "vocabulary"),
        (changed("model", kind="bert", vocab=256), "model.vocab", "vocabulary"),
    ],
    ids=["experts", "bytes", "bytes and a mask"],
)
def test_what_cannot_run_is_an_error_at_its_place(design: Design, where: str, code: str) -> None:
    assert [(found.where, found.code, found.severity) for found in runnable(design)] == [(where, code, "error")]
