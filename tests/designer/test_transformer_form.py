"""The form of a transformer: its parts are groups, and optional parts are switched on with their defaults."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.designer.forms.changes import make_edit
from meshwave.designer.forms.fields import Field, form_sections
from meshwave.engine.document import Design, parse_design
from tests._strategies import document

SIZES = {"layers": 4, "hidden": 64, "heads": 4, "sequence": 32, "vocab": 257}


@pytest.fixture
def transformer() -> Design:
    pipeline = {"schedule": "1f1b", "microbatches": 4}
    return parse_design(document(pipeline, 2, model={"kind": "transformer", **SIZES}))


def fields(design: Design) -> dict[str, Field]:
    return {field["path"]: field for section in form_sections(design) for field in section["fields"]}


def edited_design(design: Design, path: str, given: Any) -> Design:
    at, value, _ = make_edit(design, fields(design)[path], given)
    data = design.model_dump(mode="json")
    *parts, key = at.split(".")
    section = data
    for part in parts:
        section = section[part]
    section[key] = value
    return parse_design(data)


def test_the_parts_of_an_architecture_are_groups_of_the_form(transformer: Design) -> None:
    groups = [field["group"] for path, field in fields(transformer).items() if path.startswith("model.")]

    assert list(dict.fromkeys(groups)) == ["", "Attention", "Latent", "MLP", "Norm", "Positions", "Scaling", "MoE"]


@pytest.mark.parametrize("path", ["model.attention.latent", "model.positions.scaling"])
def test_an_optional_part_is_switched_on_with_its_defaults_and_off(transformer: Design, path: str) -> None:
    found = edited_design(transformer, path, True)

    assert any(name.startswith(f"{path}.") for name in fields(found))
    assert edited_design(found, path, False) == transformer


def test_the_number_of_key_value_heads_is_a_field(transformer: Design) -> None:
    found = edited_design(transformer, "model.attention.kv_heads", "2")

    assert fields(found)["model.attention.kv_heads"]["value"] == 2
    assert fields(found)["model.attention.kv_heads"]["label"] == "KV heads"
