"""Problems of a wrong document: the exact place, the numbers, and fixes."""

from __future__ import annotations

import copy
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from meshwave.engine.document import parse_design
from meshwave.engine.document.fixes import apply_edits
from meshwave.engine.document.problems import problems
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError, Problem
from tests._findings import check_fixes, find_problems

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def document() -> dict[str, Any]:
    """The document of the design page: two waves of a GPT with experts over four meshes of two nodes."""
    return {
        "format": "meshwave/1",
        "name": "two waves on four devices",
        "cluster": {
            "nodes": 2,
            "devices_per_node": 2,
            "device": {"peak_flops": 312e12, "memory_bytes": 80e9, "memory_bandwidth": 2e12, "efficiency": 0.5},
            "intra_node": {"latency_s": 5e-6, "bandwidth": 300e9},
            "inter_node": {"latency_s": 1e-5, "bandwidth": 25e9},
        },
        "model": {
            "kind": "gpt",
            "layers": 32,
            "hidden": 2560,
            "heads": 32,
            "sequence": 1024,
            "vocab": 50257,
            "moe": {"experts": 8, "top_k": 2, "capacity_factor": 1.25, "every": 2},
        },
        "meshes": [{"name": name, "devices": [at], "axes": {"dp": 1, "tp": 1}} for at, name in enumerate("ABCD")],
        "pipeline": {"schedule": "hanayo", "waves": 2, "microbatches": 8, "stages": None, "placement": None},
        "experts": {"schedule": "parm-auto", "ep": 2, "esp": 1, "placement": None, "load": None},
        "transfer": {"strategy": "broadcast", "ordering": "load-balance"},
        "training": {"micro_batch_size": 1, "steps": 20, "optimizer": "adamw", "lr": 3e-4, "precision": "fp32"},
        "cost": {"kind": "roofline"},
    }


def put(where: str, value: Any) -> Change:
    """Set ``meshes[2].devices`` of a document."""
    steps: list[Any] = [
        int(step) if step.isdecimal() else step for step in where.replace("[", ".").replace("]", "").split(".")
    ]

    def change(document: dict[str, Any]) -> None:
        here = document
        for step in steps[:-1]:
            here = here[step]
        here[steps[-1]] = value

    return change


def drop(where: str, key: str) -> Change:
    return lambda document: (document[where] if where else document).pop(key)


def all_of(*changes: Change) -> Change:
    return lambda document: [change(document) for change in changes]


def pipeline(**section: Any) -> Change:
    return put("pipeline", section)


def refused(document: dict[str, Any], change: Change) -> list[Problem]:
    wrong = copy.deepcopy(document)
    change(wrong)
    with pytest.raises(DesignError) as found:
        parse_design(wrong)
    return list(found.value.problems)


def test_the_document_itself_is_sound(document: dict[str, Any]) -> None:
    assert parse_design(document).stages == 16


KEYS = [
    (
        put("pipline", {}),
        "pipline",
        "unknown_key",
        {"key": "pipline", "suggestion": "pipeline"},
    ),
    (
        put("cluster.nodez", 1),
        "cluster.nodez",
        "unknown_key",
        {"key": "nodez", "suggestion": "nodes"},
    ),
    (
        put("cluster.device.flops", 1),
        "cluster.device.flops",
        "unknown_key",
        {"key": "flops", "suggestion": "peak_flops"},
    ),
    (
        put("meshes[1].device", [1]),
        "meshes[1].device",
        "unknown_key",
        {"key": "device", "suggestion": "devices"},
    ),
    (
        put("model.moe.expert", 8),
        "model.moe.expert",
        "unknown_key",
        {"key": "expert", "suggestion": "experts"},
    ),
    (
        put("pipeline.wave", 1),
        "pipeline.wave",
        "unknown_key",
        {"key": "wave", "suggestion": "waves"},
    ),
    (
        put("pipeline.chunks", 2),
        "pipeline.chunks",
        "unused_option",
        {
            "key": "chunks",
            "schedules": ["auto", "interleaved-1f1b", "interleaved-zb", "looped-bfs"],
            "schedule": "hanayo",
        },
    ),
    (put("cost.forward", 1), "cost.forward", "unknown_key", {"key": "forward", "suggestion": None}),
    (
        put("cost", {"kind": "unit", "forwards": 1}),
        "cost.forwards",
        "unknown_key",
        {"key": "forwards", "suggestion": "forward"},
    ),
    (drop("", "cluster"), "cluster", "missing_key", {"key": "cluster"}),
    (drop("cluster", "device"), "cluster.device", "missing_key", {"key": "device"}),
    (drop("model", "kind"), "model.kind", "missing_kind", {"key": "kind"}),
    (drop("pipeline", "microbatches"), "pipeline.microbatches", "missing_key", {"key": "microbatches"}),
    (drop("pipeline", "schedule"), "pipeline.schedule", "missing_kind", {"key": "schedule"}),
    (put("cost", {}), "cost.kind", "missing_kind", {"key": "kind"}),
    (put("cost", {"kind": "calibrated"}), "cost.profile", "missing_key", {"key": "profile"}),
]

NAMES = [
    (
        put("pipeline.schedule", "hanyo"),
        "pipeline.schedule",
        "unknown_kind",
        {"noun": "schedule", "name": "'hanyo'", "suggestion": "hanayo"},
    ),
    (
        put("pipeline.grouping", "groupd"),
        "pipeline.grouping",
        "unknown_name",
        {"value": "groupd", "suggestion": "grouped"},
    ),
    (
        put("pipeline.recompute", "ful"),
        "pipeline.recompute",
        "unknown_name",
        {"value": "ful", "suggestion": "full", "other": ["a list of stages such as [0, 3]"]},
    ),
    (
        put("pipeline.recompute", "sometimes"),
        "pipeline.recompute",
        "unknown_name",
        {"value": "sometimes", "suggestion": None, "other": ["a list of stages such as [0, 3]"]},
    ),
    (
        put("pipeline.recompute", 3),
        "pipeline.recompute",
        "wrong_type",
        {
            "value": "3",
            "expected": [
                "attention",
                "full",
                "layers",
                "layers-early-stop",
                "none",
                "operators",
                "a list of stages such as [0, 3]",
            ],
        },
    ),
    (
        put("transfer.strategy", ["broadcast"]),
        "transfer.strategy",
        "wrong_type",
        {
            "value": '["broadcast"]',
            "expected": [
                "broadcast",
                "global-allgather",
                "hierarchical",
                "local-allgather",
                "rewrite-allgather",
                "send-recv",
            ],
        },
    ),
    (
        put("pipeline.recompute", ["all"]),
        "pipeline.recompute[0]",
        "wrong_type",
        {"value": '"all"', "expected": ["a whole number"]},
    ),
    (put("pipeline.recompute", [0, -1]), "pipeline.recompute[1]", "out_of_range", {"value": "-1", "minimum": 0}),
    (
        put("pipeline.recompute", [3, 16]),
        "pipeline.recompute[1]",
        "unknown_recomputed_stage",
        {"stage": 16, "last": 15},
    ),
    (
        put("pipeline.recompute", [3, 4, 3]),
        "pipeline.recompute[2]",
        "repeated_recomputed_stage",
        {"stage": 3},
    ),
    (
        put("model.kind", "gtp"),
        "model.kind",
        "unknown_kind",
        {"noun": "model", "name": "'gtp'", "suggestion": "gpt"},
    ),
    (
        put("meshes[2].axes", {"pp": 1}),
        "meshes[2].axes.pp",
        "unknown_name",
        {"value": "pp", "suggestion": "tp"},
    ),
    (
        put("experts.schedule", "parm"),
        "experts.schedule",
        "unknown_name",
        {"value": "parm", "suggestion": "parm-s2"},
    ),
    (
        put("experts.load", "zip"),
        "experts.load",
        "unknown_name",
        {"value": "zip", "suggestion": "zipf", "other": ["a list with a share for each expert"]},
    ),
    (
        put("transfer.strategy", "broadcst"),
        "transfer.strategy",
        "unknown_name",
        {"value": "broadcst", "suggestion": "broadcast"},
    ),
    (
        put("transfer.ordering", "random"),
        "transfer.ordering",
        "unknown_name",
        {"value": "random", "suggestion": "randomized"},
    ),
    (
        put("training.precision", "fp16"),
        "training.precision",
        "unknown_name",
        {"value": "fp16", "suggestion": "fp64"},
    ),
    (
        put("training.optimizer", "adam"),
        "training.optimizer",
        "unknown_name",
        {"value": "adam", "suggestion": "adamw"},
    ),
    (
        put("cost.kind", "rooflin"),
        "cost.kind",
        "unknown_kind",
        {"noun": "cost model", "name": "'rooflin'", "suggestion": "roofline"},
    ),
    (
        put("cost.transfer_model", "latent"),
        "cost.transfer_model",
        "unknown_name",
        {"value": "latent", "suggestion": "latency"},
    ),
    (
        pipeline(schedule="chimera", microbatches=4, concatenation="directly"),
        "pipeline.concatenation",
        "unknown_name",
        {"value": "directly", "suggestion": "direct"},
    ),
]

VALUES = [
    (put("pipeline.microbatches", 0), "pipeline.microbatches", "out_of_range", {"value": "0", "minimum": 1}),
    (
        put("pipeline.microbatches", 2.5),
        "pipeline.microbatches",
        "wrong_type",
        {"value": "2.5", "expected": ["a whole number"]},
    ),
    (
        put("pipeline.microbatches", "8"),
        "pipeline.microbatches",
        "wrong_type",
        {"value": '"8"', "expected": ["a whole number"]},
    ),
    (
        put("pipeline.microbatches", True),
        "pipeline.microbatches",
        "wrong_type",
        {"value": "true", "expected": ["a whole number"]},
    ),
    (
        put("pipeline.microbatches", None),
        "pipeline.microbatches",
        "wrong_type",
        {"value": "null", "expected": ["a whole number"]},
    ),
    (
        put("pipeline.microbatches", 10**7),
        "pipeline.microbatches",
        "out_of_range",
        {"value": "10000000", "maximum": 20000},
    ),
    (put("pipeline.waves", 0), "pipeline.waves", "out_of_range", {"value": "0", "minimum": 1}),
    (put("pipeline.stages", "all"), "pipeline.stages", "wrong_type", {"value": '"all"', "expected": ["a list"]}),
    (put("pipeline.stages", []), "pipeline.stages", "empty_list", {}),
    (put("pipeline.stages", [0]), "pipeline.stages[0]", "out_of_range", {"value": "0", "minimum": 1}),
    (put("pipeline", None), "pipeline", "wrong_type", {"value": "null", "expected": ["an object"]}),
    (put("pipeline", "hanayo"), "pipeline", "wrong_type", {"value": '"hanayo"', "expected": ["an object"]}),
    (put("meshes", []), "meshes", "empty_list", {}),
    (put("meshes", {}), "meshes", "wrong_type", {"value": "{}", "expected": ["a list"]}),
    (put("meshes[2].devices", [0] * 4097), "meshes[2].devices", "long_list", {"maximum": 4096}),
    (put("pipeline.waves", 4097), "pipeline.waves", "out_of_range", {"value": "4097", "maximum": 4096}),
    (
        pipeline(schedule="interleaved-1f1b", microbatches=8, chunks=10**6),
        "pipeline.chunks",
        "out_of_range",
        {"value": "1000000", "maximum": 4096},
    ),
    (
        pipeline(schedule="interleaved-1f1b", microbatches=8, group=5000),
        "pipeline.group",
        "out_of_range",
        {"value": "5000", "maximum": 4096},
    ),
    (
        all_of(put("cluster.nodes", 2048), put("cluster.devices_per_node", 4)),
        "cluster.nodes",
        "cluster_size",
        {"nodes": 2048, "devices_per_node": 4, "devices": 8192, "maximum": 4096, "fewer": 1024},
    ),
    (
        put("cost", {"kind": "unit", "weight": 3.0}),
        "cost.weight",
        "weight_gradient",
        {"weight": 3.0, "backward": 2.0},
    ),
    (
        put("cost", {"kind": "unit", "stage_costs": {"forward": [1, 1], "input": [1, 1], "weight": [1]}}),
        "cost.stage_costs",
        "stage_cost_columns",
        {"forward": 2, "input": 2, "weight": 1},
    ),
    (
        put("cost", {"kind": "unit", "stage_costs": {"forward": [1.0], "input": [1.0], "weight": [1.0]}}),
        "cost.stage_costs",
        "stage_cost_count",
        {"given": 1},
    ),
    (put("meshes[0]", 5), "meshes[0]", "wrong_type", {"value": "5", "expected": ["an object with keys"]}),
    (put("meshes[2].devices", []), "meshes[2].devices", "empty_list", {}),
    (put("meshes[2].devices", [-1]), "meshes[2].devices[0]", "out_of_range", {"value": "-1", "minimum": 0}),
    (put("meshes[2].axes", [1, 2]), "meshes[2].axes", "wrong_type", {"value": "[1, 2]", "expected": ["an object"]}),
    (put("meshes[2].axes.dp", 0), "meshes[2].axes.dp", "out_of_range", {"value": "0", "minimum": 1}),
    (put("meshes[2].name", ""), "meshes[2].name", "empty_text", {}),
    (put("name", "x" * 300), "name", "long_text", {"length": 300, "maximum": 200}),
    (put("name", 5), "name", "wrong_type", {"value": "5", "expected": ["text"]}),
    (put("cluster.nodes", 5000), "cluster.nodes", "out_of_range", {"value": "5000", "maximum": 4096}),
    (
        put("cluster.device.efficiency", 1.5),
        "cluster.device.efficiency",
        "out_of_range",
        {"value": "1.5", "maximum": 1.0},
    ),
    (put("cluster.device.peak_flops", 0), "cluster.device.peak_flops", "out_of_range", {"value": "0", "minimum": 1.0}),
    (
        put("cluster.intra_node.bandwidth", -1),
        "cluster.intra_node.bandwidth",
        "out_of_range",
        {"value": "-1", "minimum": 1.0},
    ),
    (
        put("cluster.inter_node.latency_s", -1),
        "cluster.inter_node.latency_s",
        "out_of_range",
        {"value": "-1", "minimum": 0.0},
    ),
    (put("model.layers", 10**9), "model.layers", "out_of_range", {"value": "1000000000", "maximum": 100000}),
    (
        put("model.hidden", 10**400),
        "model.hidden",
        "out_of_range",
        {"value": "1000000000000000000000000000000000000...", "maximum": 1000000000},
    ),
    (put("training.lr", -1), "training.lr", "out_of_range", {"value": "-1", "above": 0.0}),
    (put("training.lr", float("nan")), "training.lr", "wrong_type", {"value": "NaN", "expected": ["a finite number"]}),
    (put("training.steps", 0), "training.steps", "out_of_range", {"value": "0", "minimum": 1}),
    (put("training.seed", -1), "training.seed", "out_of_range", {"value": "-1", "minimum": 0}),
    (
        put("training.data", "../x"),
        "training.data",
        "wrong_type",
        {"value": '"../x"', "expected": ["a plain file name, without folders"]},
    ),
    (
        put("training.data", ".."),
        "training.data",
        "wrong_type",
        {"value": '".."', "expected": ["a plain file name, without folders"]},
    ),
    (
        put("training.data", "/etc/x"),
        "training.data",
        "wrong_type",
        {"value": '"/etc/x"', "expected": ["a plain file name, without folders"]},
    ),
    (
        put("training.data", "a\\b"),
        "training.data",
        "wrong_type",
        {"value": '"a\\\\b"', "expected": ["a plain file name, without folders"]},
    ),
    (put("training.data", ""), "training.data", "empty_text", {}),
    (
        put("cost", {"kind": "calibrated", "profile": "../x"}),
        "cost.profile",
        "wrong_type",
        {"value": '"../x"', "expected": ["a plain file name, without folders"]},
    ),
]

FORMATS = [
    (
        put("format", "meshwave/2"),
        "format",
        "newer_format",
        {"version": 2, "supported": 1},
    ),
    (drop("", "format"), "format", "missing_format", {"format": "meshwave/1"}),
    (put("format", "other/1"), "format", "unknown_format", {"value": "'other/1'", "format": "meshwave/1"}),
    (put("format", "meshwave/0"), "format", "unknown_format", {"value": "'meshwave/0'", "format": "meshwave/1"}),
    (put("format", 1), "format", "unknown_format", {"value": "1", "format": "meshwave/1"}),
]

MESHES = [
    (
        put("meshes[2].devices", [1]),
        "meshes[2].devices",
        "shared_device",
        {"mesh": "C", "devices": [1], "other": "B"},
    ),
    (
        put("meshes[2].devices", [7]),
        "meshes[2].devices",
        "unknown_device",
        {"mesh": "C", "devices": [7], "last": 3, "nodes": 2, "devices_per_node": 2},
    ),
    (
        all_of(put("meshes[2].devices", [2, 2]), put("meshes[2].axes", {"dp": 2})),
        "meshes[2].devices",
        "repeated_device",
        {"mesh": "C", "devices": [2]},
    ),
    (
        put("meshes[2].axes", {"dp": 2, "tp": 2}),
        "meshes[2].devices",
        "mesh_size",
        {"mesh": "C", "count": 1, "axes": {"dp": 2, "tp": 2}, "product": 4},
    ),
    (
        all_of(put("cluster.nodes", 3), put("meshes[2].devices", [2, 4])),
        "meshes[2].devices",
        "mesh_size",
        {"mesh": "C", "count": 2, "axes": {"dp": 1, "tp": 1}, "product": 1},
    ),
    (put("meshes[2].name", "A"), "meshes[2].name", "duplicate_mesh_name", {"first": 0, "second": 2, "name": "A"}),
    (
        all_of(
            put("cluster.devices_per_node", 4), put("meshes[3].devices", [3, 4, 5]), put("meshes[3].axes", {"tp": 3})
        ),
        "meshes[3].axes.tp",
        "indivisible_heads",
        {"tp": 3, "mesh": "D", "heads": 32, "sizes": [2, 4], "suitable": []},
    ),
]

PIPELINES = [
    (
        put("pipeline.stages", [16, 16]),
        "pipeline.stages",
        "stage_count",
        {"schedule": "hanayo", "stages": 16, "given": 2},
    ),
    (
        put("pipeline.stages", [2] * 15 + [3]),
        "pipeline.stages",
        "stage_layers",
        {"given": 33, "layers": 32},
    ),
    (
        put("model.layers", 8),
        "model.layers",
        "too_few_layers",
        {"stages": 16, "layers": 8},
    ),
    (
        put("pipeline.placement", [0] * 15 + [4]),
        "pipeline.placement[15]",
        "placement_mesh",
        {"stage": 15, "mesh": 4, "last": 3},
    ),
    (
        put("pipeline.placement", [0, 1]),
        "pipeline.placement",
        "placement_count",
        {"stages": 16, "given": 2},
    ),
    (
        put("pipeline.placement", [0] * 16),
        "pipeline.placement",
        "unsupported_placement",
        {"schedule": "hanayo", "own": [0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3, 3, 2, 1, 0]},
    ),
    (
        all_of(put("pipeline.microbatches", 20_000), put("pipeline.waves", 25), put("model.layers", 200)),
        "pipeline.microbatches",
        "step_size",
        {"stages": 200, "microbatches": 20000, "computations": 8000000, "maximum": 4000000},
    ),
    (
        all_of(pipeline(schedule="chimera", microbatches=4), lambda document: document["meshes"].pop()),
        "pipeline.schedule",
        "odd_mesh_count",
        {"title": "Chimera", "ranks": 3, "mesh_counts": [2, 4]},
    ),
    (
        pipeline(schedule="interleaved-1f1b", microbatches=6),
        "pipeline.microbatches",
        "indivisible_microbatches",
        {"title": "Interleaved 1F1B", "group": 4, "microbatches": 6, "supported": [4, 8]},
    ),
    (
        pipeline(schedule="interleaved-1f1b", microbatches=3),
        "pipeline.microbatches",
        "indivisible_microbatches",
        {"title": "Interleaved 1F1B", "group": 4, "microbatches": 3, "supported": [4]},
    ),
    (
        pipeline(schedule="interleaved-1f1b", microbatches=8, group=2),
        "pipeline.group",
        "small_microbatch_group",
        {"group": 2, "ranks": 4},
    ),
]

ACTIONS = [
    (
        put("pipeline.actions", [["0F0"]]),
        "pipeline.actions",
        "unused_orders",
        {"schedule": "hanayo"},
    ),
    (
        pipeline(schedule="custom", microbatches=1),
        "pipeline.actions",
        "missing_orders",
        {},
    ),
    (
        pipeline(schedule="custom", microbatches=1, actions=[["0F0", "0B0"]]),
        "pipeline.actions",
        "order_count",
        {"given": 1, "expected": 4},
    ),
    (
        pipeline(schedule="custom", microbatches=1, actions=[["0F0", "0G0"], [], [], []]),
        "pipeline.actions[0][1]",
        "unknown_action",
        {"cell": "0G0"},
    ),
    (
        pipeline(schedule="custom", microbatches=1, actions=[[], [], ["0SEND_F0"], []]),
        "pipeline.actions[2][0]",
        "unnecessary_action",
        {"action": "0SEND_F0"},
    ),
    (
        pipeline(schedule="custom", microbatches=2, actions=[["0F2"], [], [], []]),
        "pipeline.actions[0][0]",
        "unknown_microbatch",
        {"action": "0F2", "microbatch": 2, "microbatches": 2},
    ),
    (
        pipeline(schedule="custom", microbatches=1, actions=[["32F0"], [], [], []]),
        "pipeline.actions[0][0]",
        "undefined_stage",
        {"action": "32F0", "stage": 32, "layers": 32},
    ),
    (
        pipeline(schedule="custom", microbatches=1, actions=[["0F0", "0B0"], [], [], []], placement=[0]),
        "pipeline.placement",
        "unused_placement",
        {},
    ),
    (
        all_of(
            pipeline(schedule="custom", microbatches=3000, actions=[["2999F2999"], [], [], []]),
            put("model.layers", 3000),
        ),
        "pipeline.microbatches",
        "step_size",
        {"stages": 3000, "microbatches": 3000, "computations": 18000000, "maximum": 4000000},
    ),
    (
        pipeline(schedule="custom", microbatches=1, actions=[[5], [], [], []]),
        "pipeline.actions[0][0]",
        "wrong_type",
        {"value": "5", "expected": ["text"]},
    ),
]

MODELS = [
    (
        put("model.heads", 7),
        "model.heads",
        "indivisible_width",
        {"heads": 7, "hidden": 2560, "near": 2562, "suitable": [5, 8]},
    ),
    (
        put("model.moe.top_k", 9),
        "model.moe.top_k",
        "top_k",
        {"top_k": 9, "experts": 8},
    ),
    (put("experts.ep", 3), "experts.ep", "indivisible_experts", {"ep": 3, "experts": 8, "supported": [2, 4]}),
    (put("experts.load", [1.0]), "experts.load", "load_size", {"given": 1, "experts": 8}),
    (
        put("experts.load", [0.0] * 8),
        "experts.load",
        "zero_load",
        {},
    ),
    (
        put("experts.placement", [[0, 1, 2, 3, 4, 5, 6, 7, 8]]),
        "experts.placement[0]",
        "unknown_expert",
        {"expert": 8, "last": 7},
    ),
    (
        put("experts.ep", 8),
        "experts.ep",
        "expert_devices",
        {"given": 8, "ep": 8, "esp": 1, "devices": 4},
    ),
    (
        put("experts.placement", [[0, 1, 2, 3], [4, 5, 6, 7], [], [], []]),
        "experts.placement",
        "placement_devices",
        {"given": 5, "devices": 4},
    ),
    (
        put("experts.placement", [[0, 1, 2, 3], [4, 5, 6]]),
        "experts.placement",
        "unplaced_expert",
        {"expert": 7},
    ),
]

EVERY = [*KEYS, *NAMES, *VALUES, *FORMATS, *MESHES, *PIPELINES, *ACTIONS, *MODELS]


every_mistake = pytest.mark.parametrize(
    ("change", "where", "code", "params"),
    EVERY,
    ids=[f"{where}: {code} {number}" for number, (_, where, code, _) in enumerate(EVERY)],
)


@every_mistake
def test_one_mistake_is_one_problem(
    document: dict[str, Any], change: Change, where: str, code: str, params: dict[str, Any]
) -> None:
    (problem,) = refused(document, change)

    assert (problem.where, problem.code) == (where, code)
    assert params.items() <= problem.params.items()


@every_mistake
def test_each_fix_removes_its_problem(
    document: dict[str, Any], change: Change, where: str, code: str, params: dict[str, Any]
) -> None:
    change(document)

    check_fixes(document, find_problems(document))


FIXES = [
    (put("clustr", {}), "clustr", ["remove clustr"]),
    (put("cost", {"kind": "unit", "forwards": 1}), "cost.forwards", ["rename forwards to forward", "remove forwards"]),
    (put("pipeline.schedule", "hanyo"), "pipeline.schedule", ['set schedule to "hanayo"']),
    (put("pipeline.microbatches", 0), "pipeline.microbatches", ["set microbatches to 1"]),
    (pipeline(schedule="interleaved-1f1b", microbatches=6), "pipeline.microbatches", ["use 4 microbatches", "use 8 microbatches"]),
    (pipeline(schedule="gpipe", microbatches=2, stages=[8, 8, 8, 9]), "pipeline.stages", ["balance the stages by cost", "set layers to 33"]),
    (put("meshes[2].devices", [7]), "meshes[2].devices", ["use 4 nodes", "move mesh C to device 2"]),
    (put("meshes[2].name", "A"), "meshes[2].name", ["rename mesh 2 to C"]),
    (put("model.heads", 7), "model.heads", ["set heads to 5", "set heads to 8", "set hidden to 2562"]),
    (put("experts.ep", 3), "experts.ep", ["set ep to 2", "set ep to 4"]),
    (put("experts.load", [1.0]), "experts.load", ['set load to "uniform"']),
]  # fmt: skip


@pytest.mark.parametrize(("change", "where", "labels"), FIXES, ids=[where for _, where, _ in FIXES])
def test_a_remedy_that_is_an_edit_is_a_fix(
    document: dict[str, Any], change: Change, where: str, labels: list[str]
) -> None:
    (problem,) = refused(document, change)

    assert (problem.where, [fix.label for fix in problem.fixes]) == (where, labels)


def test_a_schedule_that_needs_another_number_of_meshes_offers_it(document: dict[str, Any]) -> None:
    document["meshes"].pop()
    document["pipeline"] = {"schedule": "chimera", "microbatches": 4}

    (problem,) = refused(document, lambda document: None)
    fewer, more = (apply_edits(document, fix.edits) for fix in problem.fixes)

    assert [mesh["name"] for mesh in fewer["meshes"]] == ["A", "B"]
    assert [mesh["devices"] for mesh in more["meshes"]] == [[0], [1], [2], [3]]


def test_all_mistakes_are_listed_at_once(document: dict[str, Any]) -> None:
    found = refused(document, all_of(put("zz", 1), put("model.hiden", 1), put("training.steps", "many")))

    assert [problem.where for problem in found] == ["model.hiden", "training.steps", "zz"]


def test_mistakes_between_parts_are_listed_at_once_too(document: dict[str, Any]) -> None:
    found = refused(document, all_of(put("meshes[1].devices", [0]), put("meshes[3].name", "A"), put("experts.ep", 5)))

    assert [problem.where for problem in found] == ["meshes[1].devices", "meshes[3].name", "experts.ep"]


def test_a_part_that_is_wrong_does_not_hide_what_is_wrong_between_the_others(document: dict[str, Any]) -> None:
    mistakes = all_of(
        put("cluster.device.efficiency", 1.5),  # no check between parts looks at these five
        put("model.vocab", 0),
        put("pipeline.recompute", "sometimes"),
        put("training.lr", -1),
        put("zz", 1),
        put("meshes[1].devices", [0]),
        put("meshes[3].name", "A"),
        put("pipeline.stages", [16, 16]),
    )

    found = refused(document, mistakes)

    assert {problem.where for problem in found} == {
        "cluster.device.efficiency",
        "model.vocab",
        "pipeline.recompute",
        "training.lr",
        "zz",
        "meshes[1].devices",
        "meshes[3].name",
        "pipeline.stages",
    }


@pytest.mark.parametrize(
    ("hidden", "beside"),
    [
        (put("pipeline.waves", 0), put("meshes[1].devices", [0])),
        (drop("", "pipeline"), put("meshes[1].devices", [0])),
        (put("meshes[2].axes", {"dp": 2}), put("meshes[1].devices", [0])),
        (put("model.heads", 7), put("pipeline.placement", [0, 1])),
        (put("meshes[2].axes", {"dp": 2}), put("pipeline.stages", [32])),
        (put("pipeline.stages", [16, 16]), put("pipeline.recompute", [3, 16])),
        (put("pipeline.stages", [16, 16]), put("pipeline.placement", [0, 1])),
        (put("cost", {"kind": "unit", "forward": -1}), put("meshes[3].name", "A")),
        (put("experts.load", "zip"), put("experts.ep", 3)),
    ],
)
def test_two_mistakes_are_two_problems(document: dict[str, Any], hidden: Change, beside: Change) -> None:
    alone = [*refused(document, hidden), *refused(document, beside)]

    assert refused(document, all_of(hidden, beside)) == alone


def test_what_is_wrong_a_thousand_times_is_told_twenty_times(document: dict[str, Any]) -> None:
    cells = [["zz"] * 1000, *[["0F0", "0B0"]] * 3]

    found = refused(document, pipeline(schedule="custom", microbatches=1, actions=cells))

    assert [problem.where for problem in found] == [
        *(f"pipeline.actions[0][{n}]" for n in range(20)),
        "pipeline.actions",
    ]
    assert (found[-1].code, found[-1].params) == ("unlisted_problems", {"count": 980})


@pytest.mark.slow
def test_thousands_of_unknown_keys_are_told_at_once(document: dict[str, Any]) -> None:
    found = refused(document, put("training", {f"key{number}": 1 for number in range(50_000)}))

    assert len(found) == 21
    assert found[-1].where == "training.key0"


def test_heads_are_advised_that_every_mesh_can_cut(document: dict[str, Any]) -> None:
    document["cluster"]["devices_per_node"] = 4
    document["experts"]["ep"] = 4
    wide = put("meshes", [{"name": "A", "devices": [0, 1, 2, 3], "axes": {"tp": 4}}])

    (problem,) = refused(document, all_of(wide, put("model.heads", 7)))

    assert problem.params["suitable"] == [4, 8]


@pytest.mark.parametrize("key", ["ep", "esp"])
def test_experts_of_a_model_that_has_none_are_a_warning(document: dict[str, Any], key: str) -> None:
    document["model"]["moe"], document["experts"] = None, {}

    assert warnings(document, put("experts", {key: 3})) == [(f"experts.{key}", "unused_expert_setting")]
    assert warnings(document, put("experts", {"schedule": "ppmoe"})) == []


@pytest.mark.parametrize("name", ["", "  "])
def test_a_design_without_a_name_is_a_warning(document: dict[str, Any], name: str) -> None:
    document["model"]["moe"], document["experts"] = None, {}

    assert warnings(document, put("name", name)) == [("name", "empty_name")]


def test_a_code_stays_the_same_for_forms_to_hang_it_on(document: dict[str, Any]) -> None:
    (problem,) = refused(document, put("meshes[2].axes", {"dp": 2}))

    assert (problem.code, problem.severity) == ("mesh_size", "error")


def warnings(document: dict[str, Any], change: Change) -> list[tuple[str, str]]:
    drawn = copy.deepcopy(document)
    change(drawn)
    return [(problem.where, problem.code) for problem in problems(parse_design(drawn)) if problem.severity == "warning"]


@pytest.mark.parametrize(
    ("devices", "is_rectangle"),
    [([0, 1], True), ([1, 5], True), ([0, 1, 4, 5], True), ([5, 1, 4, 0], True), ([0, 2], False), ([3, 4], False)],
)
def test_a_mesh_that_is_no_rectangle_is_a_warning(
    document: dict[str, Any], devices: list[int], is_rectangle: bool
) -> None:
    """Nodes are rows and their devices columns: 0 1 2 3 over 4 5 6 7."""
    document["cluster"]["devices_per_node"] = 4
    document["model"]["moe"], document["experts"] = None, {}
    mesh = {"name": "A", "devices": devices, "axes": {"dp": len(devices)}}

    found = warnings(document, put("meshes", [mesh]))

    assert found == ([] if is_rectangle else [("meshes[0].devices", "scattered_devices")])


def test_expert_groups_that_cross_meshes_are_a_warning(document: dict[str, Any]) -> None:
    assert warnings(document, put("experts.ep", 2)) == [("experts.ep", "split_expert_groups")]
    assert warnings(document, put("experts.ep", 1)) == []


@pytest.mark.parametrize("cell", ["2999F2999", "999999F999999"])
def test_a_cell_far_out_of_bounds_costs_nothing(document: dict[str, Any], cell: str) -> None:
    document["pipeline"] = {"schedule": "custom", "microbatches": 4, "actions": [[cell], [], [], []]}
    draft = parse_design(document, draft=True)
    tracemalloc.start()

    with pytest.raises(InputError, match="there are only 4"):
        print(draft.stages)
    assert [problem.code for problem in problems(draft) if problem.severity == "error"] == ["unknown_microbatch"]
    with pytest.raises(InputError, match="there are only 4"):
        draft.pipeline.program(draft.pipe)

    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def test_a_short_stage_list_of_many_mistakes_names_each(document: dict[str, Any]) -> None:
    found = refused(document, put("pipeline.stages", [0, 1, -1]))

    assert [problem.where for problem in found] == ["pipeline.stages[0]", "pipeline.stages[2]"]
