"""Documents with wrong meshes, pipelines, orders and models: the change, and the place, code and parameters of the problem."""

from __future__ import annotations

from tests.engine.document.document_changes import combine_changes, pipeline, put

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
        combine_changes(put("meshes[2].devices", [2, 2]), put("meshes[2].axes", {"dp": 2})),
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
        combine_changes(put("cluster.nodes", 3), put("meshes[2].devices", [2, 4])),
        "meshes[2].devices",
        "mesh_size",
        {"mesh": "C", "count": 2, "axes": {"dp": 1, "tp": 1}, "product": 1},
    ),
    (put("meshes[2].name", "A"), "meshes[2].name", "duplicate_mesh_name", {"first": 0, "second": 2, "name": "A"}),
    (
        combine_changes(
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
        combine_changes(put("pipeline.microbatches", 20_000), put("pipeline.waves", 25), put("model.layers", 200)),
        "pipeline.microbatches",
        "step_size",
        {"stages": 200, "microbatches": 20000, "computations": 8000000, "maximum": 4000000},
    ),
    (
        combine_changes(pipeline(schedule="chimera", microbatches=4), lambda document: document["meshes"].pop()),
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
        combine_changes(
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
