"""What two designs differ in, in words."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.document.differences import differences
from meshwave.engine.files import example, examples
from tests._strategies import document


def pipeline_design(ranks: int = 4, pipeline: dict[str, Any] | None = None, **sections: Any) -> Design:
    return parse_design(document(pipeline or {"schedule": "1f1b", "microbatches": 4}, ranks, **sections))


@pytest.mark.parametrize("name", examples())
def test_a_design_does_not_differ_from_itself_by_its_name(name: str) -> None:
    design = load_design(example(name))

    assert differences(design, design.model_copy(update={"name": "another"})) == []


def test_another_schedule_is_told_with_its_options() -> None:
    hanayo = pipeline_design(pipeline={"schedule": "hanayo", "waves": 2, "grouping": "ungrouped", "microbatches": 8})

    assert differences(pipeline_design(), hanayo) == [
        "schedule: 1f1b -> hanayo, waves 2, grouping ungrouped",
        "microbatches: 4 -> 8",
    ]


def test_options_of_one_schedule_are_told_one_by_one() -> None:
    one, two = (pipeline_design(pipeline={"schedule": "hanayo", "waves": waves, "microbatches": 4}) for waves in (1, 2))

    assert differences(one, two) == ["waves: 1 -> 2"]


def test_meshes_are_counted_or_told_one_by_one() -> None:
    assert "meshes: 4 -> 5" in differences(pipeline_design(), pipeline_design(5))
    wider = differences(pipeline_design(2), pipeline_design(2, dp=2))
    assert "mesh m0: device 0 (dp 1 x tp 1) -> 2 devices from 0 (dp 2 x tp 1)" in wider
    assert "cluster.devices_per_node: 1 -> 2" in wider


def test_another_kind_of_cost_is_told_by_its_kind() -> None:
    found = differences(pipeline_design(), pipeline_design(cost={"kind": "roofline"}))

    assert found == ["cost: unit -> roofline", "cost.transfer_model: latency -> shared-links"]


def test_layers_set_by_hand_are_written_out() -> None:
    pipeline = {"schedule": "1f1b", "microbatches": 4, "stages": [60, 60, 60, 60]}

    assert differences(pipeline_design(), pipeline_design(pipeline=pipeline)) == [
        "stages: balanced by cost -> 60, 60, 60, 60"
    ]


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"training": {"clip_norm": 1.0}}, "training.clip_norm: no clipping -> 1"),
        ({"training": {"data": "a.txt"}}, "training.data: the built-in sample text -> a.txt"),
        ({"training": {"eval_every": 5}}, "training.eval_every: no evaluation -> 5"),
    ],
)
def test_what_null_says_is_told_in_words(section: dict[str, Any], told: str) -> None:
    assert differences(pipeline_design(), pipeline_design(**section)) == [told]
