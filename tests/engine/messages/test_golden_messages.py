"""Texts of some findings of each catalogue, word by word."""

from __future__ import annotations

from typing import Any

import pytest

import meshwave.engine.schedules  # noqa: F401  (schedules add their own messages)
from meshwave.engine.messages import render

DOCUMENT = [
    ("invalid_json", {"line": 2, "column": 10, "reason": "Expecting ':' delimiter"}, "line 2, column 10 is not JSON: Expecting ':' delimiter"),
    ("unknown_key", {"key": "wave", "known": ["stages", "waves"], "suggestion": "waves"}, "unknown key 'wave'. Did you mean 'waves'? Known: stages, waves."),
    (
        "unknown_name",
        {"value": "ful", "known": ["full", "none"], "suggestion": "full", "other": ["a list of stages such as [0, 3]"]},
        "unknown value 'ful'. Did you mean 'full'? Known: full, none; or a list of stages such as [0, 3].",
    ),
    ("wrong_type", {"value": "2.5", "expected": ["a whole number"]}, "2.5 should be a whole number"),
    ("wrong_type", {"value": "3", "expected": ["full", "none", "a list"]}, "3 should be full, none or a list"),
    ("out_of_range", {"value": "5000", "maximum": 4096}, "5000 should be at most 4,096"),
    (
        "mesh_size",
        {"mesh": "C", "count": 1, "axes": {"dp": 2, "tp": 2}, "product": 4},
        "mesh C has 1 device, but dp=2 x tp=2 needs 4; resize the mesh or change an axis",
    ),
    (
        "unknown_device",
        {"mesh": "C", "devices": [7], "last": 3, "nodes": 2, "devices_per_node": 2},
        "mesh C uses device 7, but the cluster has devices 0 to 3 (2 x 2); move the mesh or add nodes",
    ),
    (
        "shared_device",
        {"mesh": "C", "devices": [1, 2], "other": "B"},
        "devices 1 and 2 of mesh C already belong to mesh B; a device belongs to one mesh",
    ),
    (
        "indivisible_width",
        {"heads": 7, "hidden": 2560, "near": 2562, "suitable": [5, 8]},
        "7 heads do not divide a hidden width of 2560; use 5 or 8 heads, or a width of 2562",
    ),
    (
        "indivisible_micro_batch",
        {"sequences": 3, "first": "A", "dp": 2, "mesh": "B", "multiple": 2},
        "a microbatch has 3 sequences (micro_batch_size x dp of mesh A), which the dp=2 replicas of mesh B cannot share "
        "evenly; set training.micro_batch_size to a multiple of 2, or change dp",
    ),
]  # fmt: skip

SCHEDULES = [
    (
        "indivisible_microbatches",
        {"title": "Interleaved 1F1B", "group": 4, "microbatches": 6, "supported": [4, 8]},
        "Interleaved 1F1B needs a multiple of 4 microbatches, not 6; use 4 or 8",
    ),
    (
        "odd_mesh_count",
        {"title": "Chimera", "ranks": 3, "mesh_counts": [2, 4]},
        "Chimera needs an even number of meshes, not 3; use 2 or 4",
    ),
]

EXPERTS = [
    ("indivisible_experts", {"ep": 3, "experts": 8, "supported": [2, 4]}, "ep=3 does not divide 8 experts; use 2 or 4"),
    (
        "rounded_capacity",
        {"slots": 10, "capacity": 16, "mp": 2, "degree": 4},
        "an expert needs 10 slots and gets 16, the next multiple of mp=2 x degree=4",
    ),
    (
        "placement_size",
        {"given": 2, "group": "a group of ep=4 x esp=1", "expected": 4},
        "the placement has 2 entries, but a group of ep=4 x esp=1 has 4 devices; give one entry per device, or null",
    ),
]

TRANSFERS = [
    (
        "mesh_rank_count",
        {"shape": [2, 2], "needed": 4, "given": 1, "key": "hosts"},
        "a mesh of 2 x 2 has 4 ranks, and 1 hosts are given; give 4",
    ),
    (
        "reused_axis",
        {"axis": 0, "first": 0, "second": 1},
        "axis 0 shards both dim 0 and dim 1; an axis can shard only one dim",
    ),
]

PROFILES = [
    (
        "missing_profile",
        {"name": "nowhere.json", "known": [], "suggestion": None},
        "there is no profile called 'nowhere.json'. Measure this machine with meshwave calibrate.",
    ),
]

FIXES = [
    ("set_value", {"key": "layers", "value": 128}, "set layers to 128"),
    ("set_value", {"key": "placement", "value": None}, "set placement to null"),
    ("use_microbatches", {"microbatches": 12}, "use 12 microbatches"),
    ("move_mesh", {"mesh": "C", "devices": [2, 3]}, "move mesh C to devices 2 and 3"),
    ("use_axes", {"mesh": "C", "dp": 2, "tp": 1}, "use dp=2 tp=1 on mesh C"),
]

GALLERY = [
    (
        "faster_schedule",
        {"schedule": "GPipe", "step": 2.0, "unit": "s", "reduction": 0.25, "memory_ratio": ratio},
        f"GPipe takes 2 s: 25.0% shorter than the current schedule, with {memory}.",
    )
    for ratio, memory in (
        (0.5, "50.0% less memory"),
        (1.003, "the same memory"),
        (1.4, "40.0% more memory"),
        (151.0, "151.0 times the memory"),
    )
]

GOLDEN = [*GALLERY, *DOCUMENT, *SCHEDULES, *EXPERTS, *TRANSFERS, *PROFILES, *FIXES]


@pytest.mark.parametrize(("code", "params", "text"), GOLDEN, ids=[code for code, *_ in GOLDEN])
def test_a_finding_renders_as(code: str, params: dict[str, Any], text: str) -> None:
    assert render(code, params) == text


def test_a_former_code_of_a_stored_run_has_the_present_text() -> None:
    params = {"tensor": "x", "dtype": "int8"}
    assert render("unsummable_dtype", params) == render("unsupported_sum_dtype", params)
