"""Differences of two designs, as text."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.document.differences import describe_differences, distinct_titles
from meshwave.engine.files import example, examples
from tests._strategies import document


def pipeline_design(ranks: int = 4, pipeline: dict[str, Any] | None = None, **sections: Any) -> Design:
    return parse_design(document(pipeline or {"schedule": "1f1b", "microbatches": 4}, ranks, **sections))


@pytest.mark.parametrize("name", examples())
def test_a_design_does_not_differ_from_itself_by_its_name(name: str) -> None:
    design = load_design(example(name))

    assert describe_differences(design, design.model_copy(update={"name": "another"})) == []


def test_a_different_schedule_is_listed_with_its_options() -> None:
    hanayo = pipeline_design(pipeline={"schedule": "hanayo", "waves": 2, "grouping": "ungrouped", "microbatches": 8})

    assert describe_differences(pipeline_design(), hanayo) == [
        "schedule: 1f1b -> hanayo, waves 2, grouping ungrouped",
        "microbatches: 4 -> 8",
    ]


def test_options_of_one_schedule_are_listed_individually() -> None:
    one, two = (pipeline_design(pipeline={"schedule": "hanayo", "waves": waves, "microbatches": 4}) for waves in (1, 2))

    assert describe_differences(one, two) == ["waves: 1 -> 2"]


def test_designs_of_one_name_are_titled_by_what_differs() -> None:
    one, two = (pipeline_design(pipeline={"schedule": "hanayo", "waves": waves, "microbatches": 4}) for waves in (1, 2))
    other = pipeline_design().model_copy(update={"name": "other"})
    many = pipeline_design(pipeline={"schedule": "1f1b", "microbatches": 5}, training={"lr": 0.1, "seed": 3})

    assert distinct_titles([one, two, other]) == [f"{one.name} (waves 1)", f"{one.name} (waves 2)", "other"]
    assert distinct_titles([one, one]) == [one.name, one.name]
    assert distinct_titles([pipeline_design(), many])[1] == f"{many.name} (microbatches 5, training.lr 0.1, …)"


def test_meshes_are_counted_or_listed_individually() -> None:
    assert "meshes: 4 -> 5" in describe_differences(pipeline_design(), pipeline_design(5))
    assert [line for line in describe_differences(pipeline_design(2), pipeline_design(3, dp=2)) if "mesh" in line] == [
        "meshes: 2 -> 3",
        "mesh m0: device 0 (dp 1 x tp 1) -> 2 devices from 0 (dp 2 x tp 1)",
        "mesh m1: device 1 (dp 1 x tp 1) -> 2 devices from 2 (dp 2 x tp 1)",
    ]
    wider = describe_differences(pipeline_design(2), pipeline_design(2, dp=2))
    assert "mesh m0: device 0 (dp 1 x tp 1) -> 2 devices from 0 (dp 2 x tp 1)" in wider
    assert "cluster.devices_per_node: 1 -> 2" in wider


def test_meshes_with_gaps_between_their_devices_are_listed_by_their_devices() -> None:
    def design_on(*meshes: list[int]) -> Design:
        base = document({"schedule": "1f1b", "microbatches": 4}, 2)
        base["cluster"] |= {"nodes": 2, "devices_per_node": 4}
        axes = {"dp": 2, "tp": 1}
        return parse_design(
            {**base, "meshes": [{"name": f"m{at}", "devices": each, "axes": axes} for at, each in enumerate(meshes)]}
        )

    rows, columns = design_on([0, 1], [2, 3]), design_on([0, 4], [2, 3])

    assert describe_differences(rows, columns) == [
        "mesh m0: 2 devices from 0 (dp 2 x tp 1) -> devices 0, 4 (dp 2 x tp 1)"
    ]
    assert describe_differences(columns, rows) == [
        "mesh m0: devices 0, 4 (dp 2 x tp 1) -> 2 devices from 0 (dp 2 x tp 1)"
    ]
    assert len({*distinct_titles([rows, columns])}) == 2


def test_a_different_cost_model_is_listed_by_its_kind() -> None:
    found = describe_differences(pipeline_design(), pipeline_design(cost={"kind": "roofline"}))

    assert found == ["cost: unit -> roofline", "cost.transfer_model: latency -> shared-links"]


def test_explicit_layers_are_listed_in_full() -> None:
    pipeline = {"schedule": "1f1b", "microbatches": 4, "stages": [60, 60, 60, 60]}

    assert describe_differences(pipeline_design(), pipeline_design(pipeline=pipeline)) == [
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
def test_null_is_listed_by_its_meaning(section: dict[str, Any], told: str) -> None:
    assert describe_differences(pipeline_design(), pipeline_design(**section)) == [told]
