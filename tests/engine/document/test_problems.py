"""What is said of a wrong document: the exact place, what is wrong with the numbers, and a way out."""

from __future__ import annotations

import copy
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from meshwave.engine.document import parse_design
from meshwave.engine.document.problems import problems
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.schedules import schedules

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
        "there is no key 'pipline' here. Did you mean 'pipeline'? "
        "Known: cluster, cost, experts, format, meshes, model, name, pipeline, training, transfer.",
    ),
    (
        put("cluster.nodez", 1),
        "cluster.nodez",
        "there is no key 'nodez' here. Did you mean 'nodes'? "
        "Known: device, devices_per_node, inter_node, intra_node, nics_per_node, node_bandwidth, nodes, uplink.",
    ),
    (
        put("cluster.device.flops", 1),
        "cluster.device.flops",
        "there is no key 'flops' here. Did you mean 'peak_flops'? "
        "Known: efficiency, memory_bandwidth, memory_bytes, name, peak_flops.",
    ),
    (
        put("meshes[1].device", [1]),
        "meshes[1].device",
        "there is no key 'device' here. Did you mean 'devices'? Known: axes, devices, name.",
    ),
    (
        put("model.moe.expert", 8),
        "model.moe.expert",
        "there is no key 'expert' here. Did you mean 'experts'? Known: aux_loss, capacity_factor, every, experts, top_k, z_loss.",
    ),
    (
        put("pipeline.wave", 1),
        "pipeline.wave",
        "there is no key 'wave' here. Did you mean 'waves'? "
        "Known: actions, backward, grouping, microbatches, placement, recompute, schedule, stages, waves.",
    ),
    (
        put("pipeline.chunks", 2),
        "pipeline.chunks",
        "'chunks' is an option of auto and interleaved-1f1b and interleaved-zb and looped-bfs, not of hanayo; remove it",
    ),
    (put("cost.forward", 1), "cost.forward", "there is no key 'forward' here. Known: kind, overlap, transfer_model."),
    (
        put("cost", {"kind": "unit", "forwards": 1}),
        "cost.forwards",
        "there is no key 'forwards' here. Did you mean 'forward'? "
        "Known: backward, forward, fused, kind, transfer, transfer_model, weight.",
    ),
    (drop("", "cluster"), "cluster", "'cluster' is missing; add it"),
    (drop("cluster", "device"), "cluster.device", "'device' is missing; add it"),
    (drop("model", "kind"), "model.kind", "'kind' is missing; it says which kind this is"),
    (drop("pipeline", "microbatches"), "pipeline.microbatches", "'microbatches' is missing; add it"),
    (drop("pipeline", "schedule"), "pipeline.schedule", "'schedule' is missing; it says which kind this is"),
    (put("cost", {}), "cost.kind", "'kind' is missing; it says which kind this is"),
    (put("cost", {"kind": "calibrated"}), "cost.profile", "'profile' is missing; add it"),
]

NAMES = [
    (
        put("pipeline.schedule", "hanyo"),
        "pipeline.schedule",
        f"there is no schedule called 'hanyo'. Did you mean 'hanayo'? Known: {', '.join(schedules)}.",
    ),
    (
        put("pipeline.grouping", "groupd"),
        "pipeline.grouping",
        "'groupd' is not known here. Did you mean 'grouped'? Known: grouped, ungrouped.",
    ),
    (
        put("pipeline.recompute", "ful"),
        "pipeline.recompute",
        "'ful' is not known here. Did you mean 'full'? Known: full, none; or a list of stages such as [0, 3].",
    ),
    (
        put("pipeline.recompute", "sometimes"),
        "pipeline.recompute",
        "'sometimes' is not known here. Known: full, none; or a list of stages such as [0, 3].",
    ),
    (
        put("pipeline.recompute", 3),
        "pipeline.recompute",
        "3 should be one of none, full or a list of stages such as [0, 3]",
    ),
    (
        put("transfer.strategy", ["broadcast"]),
        "transfer.strategy",
        '["broadcast"] should be one of broadcast, global-allgather, hierarchical, local-allgather, rewrite-allgather, send-recv',
    ),
    (put("pipeline.recompute", ["all"]), "pipeline.recompute[0]", '"all" should be a whole number'),
    (put("pipeline.recompute", [0, -1]), "pipeline.recompute[1]", "-1 should be at least 0"),
    (
        put("pipeline.recompute", [3, 16]),
        "pipeline.recompute[1]",
        "there is no stage 16 to recompute; there are stages 0 to 15",
    ),
    (
        put("pipeline.recompute", [3, 4, 3]),
        "pipeline.recompute[2]",
        "stage 3 is named more than once; name each stage once",
    ),
    (
        put("model.kind", "gtp"),
        "model.kind",
        "there is no model called 'gtp'. Did you mean 'gpt'? Known: bert, gpt, u-net, u-transformer.",
    ),
    (
        put("meshes[2].axes", {"pp": 2}),
        "meshes[2].axes.pp",
        "'pp' is not known here. Did you mean 'tp'? Known: dp, tp.",
    ),
    (
        put("experts.schedule", "parm"),
        "experts.schedule",
        "'parm' is not known here. Did you mean 'parm-s2'? "
        "Known: a2a-allgather, auto, deepspeed, expert-parallel, parm-auto, parm-s1, parm-s2, ppmoe.",
    ),
    (
        put("experts.load", "zip"),
        "experts.load",
        "'zip' is not known here. Did you mean 'zipf'? Known: uniform, zipf; or a list with a share for each expert.",
    ),
    (
        put("transfer.strategy", "broadcst"),
        "transfer.strategy",
        "'broadcst' is not known here. Did you mean 'broadcast'? "
        "Known: broadcast, global-allgather, hierarchical, local-allgather, rewrite-allgather, send-recv.",
    ),
    (
        put("transfer.ordering", "random"),
        "transfer.ordering",
        "'random' is not known here. Did you mean 'randomized'? Known: dfs, ensemble, load-balance, naive, randomized, randomized-greedy.",
    ),
    (
        put("training.precision", "fp16"),
        "training.precision",
        "'fp16' is not known here. Did you mean 'fp64'? Known: bf16, fp32, fp64.",
    ),
    (
        put("training.optimizer", "adam"),
        "training.optimizer",
        "'adam' is not known here. Did you mean 'adamw'? Known: adamw, sgd.",
    ),
    (
        put("cost.kind", "rooflin"),
        "cost.kind",
        "there is no cost model called 'rooflin'. Did you mean 'roofline'? Known: calibrated, roofline, unit.",
    ),
    (
        put("cost.transfer_model", "latent"),
        "cost.transfer_model",
        "'latent' is not known here. Did you mean 'latency'? Known: batched, half-duplex, latency, link-serial, sender-blocking, shared-links.",
    ),
    (
        pipeline(schedule="chimera", microbatches=4, concatenation="directly"),
        "pipeline.concatenation",
        "'directly' is not known here. Did you mean 'direct'? Known: backward-halving, direct, forward-doubling.",
    ),
]

VALUES = [
    (put("pipeline.microbatches", 0), "pipeline.microbatches", "0 should be at least 1"),
    (put("pipeline.microbatches", 2.5), "pipeline.microbatches", "2.5 should be a whole number"),
    (put("pipeline.microbatches", "8"), "pipeline.microbatches", '"8" should be a whole number'),
    (put("pipeline.microbatches", True), "pipeline.microbatches", "true should be a whole number"),
    (put("pipeline.microbatches", None), "pipeline.microbatches", "null should be a whole number"),
    (put("pipeline.microbatches", 10**7), "pipeline.microbatches", "10000000 should be at most 20,000"),
    (put("pipeline.waves", 0), "pipeline.waves", "0 should be at least 1"),
    (put("pipeline.stages", "all"), "pipeline.stages", '"all" should be a list'),
    (put("pipeline.stages", []), "pipeline.stages", "the list is empty; give at least one"),
    (put("pipeline.stages", [0]), "pipeline.stages[0]", "0 should be at least 1"),
    (put("pipeline", None), "pipeline", "null should be an object"),
    (put("pipeline", "hanayo"), "pipeline", '"hanayo" should be an object'),
    (put("meshes", []), "meshes", "the list is empty; give at least one"),
    (put("meshes", {}), "meshes", "{} should be a list"),
    (put("meshes[2].devices", [0] * 4097), "meshes[2].devices", "the list has at most 4,096 entries; shorten it"),
    (put("pipeline.waves", 4097), "pipeline.waves", "4097 should be at most 4,096"),
    (
        pipeline(schedule="interleaved-1f1b", microbatches=8, chunks=10**6),
        "pipeline.chunks",
        "1000000 should be at most 4,096",
    ),
    (
        pipeline(schedule="interleaved-1f1b", microbatches=8, group=5000),
        "pipeline.group",
        "5000 should be at most 4,096",
    ),
    (
        all_of(put("cluster.nodes", 2048), put("cluster.devices_per_node", 4)),
        "cluster.nodes",
        "2048 x 4 are 8192 devices, and a cluster has at most 4096; use 1024 nodes or fewer",
    ),
    (
        put("cost", {"kind": "unit", "weight": 3.0}),
        "cost.weight",
        "the weight gradient (3) is a part of backward (2); use 2 or less",
    ),
    (put("meshes[0]", 5), "meshes[0]", "5 should be an object with keys"),
    (put("meshes[2].devices", []), "meshes[2].devices", "the list is empty; give at least one"),
    (put("meshes[2].devices", [-1]), "meshes[2].devices[0]", "-1 should be at least 0"),
    (put("meshes[2].axes", [1, 2]), "meshes[2].axes", "[1, 2] should be an object"),
    (put("meshes[2].axes.dp", 0), "meshes[2].axes.dp", "0 should be at least 1"),
    (put("meshes[2].name", ""), "meshes[2].name", "the text is empty; give it a name"),
    (put("name", "x" * 300), "name", "the text has 300 characters; use at most 200"),
    (put("name", 5), "name", "5 should be text"),
    (put("cluster.nodes", 5000), "cluster.nodes", "5000 should be at most 4,096"),
    (put("cluster.device.efficiency", 1.5), "cluster.device.efficiency", "1.5 should be at most 1"),
    (put("cluster.device.peak_flops", 0), "cluster.device.peak_flops", "0 should be at least 1"),
    (put("cluster.intra_node.bandwidth", -1), "cluster.intra_node.bandwidth", "-1 should be at least 1"),
    (put("cluster.inter_node.latency_s", -1), "cluster.inter_node.latency_s", "-1 should be at least 0"),
    (put("model.layers", 10**9), "model.layers", "1000000000 should be at most 100,000"),
    (put("model.hidden", 10**400), "model.hidden", f"1{'0' * 36}... should be at most 1,000,000,000"),
    (put("training.lr", -1), "training.lr", "-1 should be more than 0"),
    (put("training.lr", float("nan")), "training.lr", "NaN should be a finite number"),
    (put("training.steps", 0), "training.steps", "0 should be at least 1"),
    (put("training.seed", -1), "training.seed", "-1 should be at least 0"),
    (put("training.data", "../x"), "training.data", '"../x" should be a plain file name, without folders'),
    (put("training.data", ".."), "training.data", '".." should be a plain file name, without folders'),
    (put("training.data", "/etc/x"), "training.data", '"/etc/x" should be a plain file name, without folders'),
    (put("training.data", "a\\b"), "training.data", '"a\\\\b" should be a plain file name, without folders'),
    (put("training.data", ""), "training.data", "the text is empty; give it a name"),
    (
        put("cost", {"kind": "calibrated", "profile": "../x"}),
        "cost.profile",
        '"../x" should be a plain file name, without folders',
    ),
]

FORMATS = [
    (
        put("format", "meshwave/2"),
        "format",
        "this design is of version 2, and this Meshwave reads up to 1; update Meshwave to open it",
    ),
    (drop("", "format"), "format", 'the document does not say its format; add "format": "meshwave/1"'),
    (put("format", "other/1"), "format", "'other/1' is no format of a design; it should be \"meshwave/1\""),
    (put("format", "meshwave/0"), "format", "'meshwave/0' is no format of a design; it should be \"meshwave/1\""),
    (put("format", 1), "format", '1 is no format of a design; it should be "meshwave/1"'),
]

MESHES = [
    (
        put("meshes[2].devices", [1]),
        "meshes[2].devices",
        "device 1 of mesh C already belongs to mesh B; a device drives one mesh",
    ),
    (
        put("meshes[2].devices", [7]),
        "meshes[2].devices",
        "mesh C uses device 7, but the cluster has devices 0 to 3 (2 x 2); move the mesh or add nodes",
    ),
    (
        all_of(put("meshes[2].devices", [2, 2]), put("meshes[2].axes", {"dp": 2})),
        "meshes[2].devices",
        "mesh C names device 2 more than once; name each device once",
    ),
    (
        put("meshes[2].axes", {"dp": 2, "tp": 2}),
        "meshes[2].devices",
        "mesh C is drawn over 1 device, but dp=2 x tp=2 needs 4; resize the mesh or change an axis",
    ),
    (
        all_of(put("cluster.nodes", 3), put("meshes[2].devices", [2, 4])),
        "meshes[2].devices",
        "mesh C is drawn over 2 devices, but dp=1 x tp=1 needs 1; resize the mesh or change an axis",
    ),
    (put("meshes[2].name", "A"), "meshes[2].name", "meshes 0 and 2 are both called 'A'; rename one"),
    (
        all_of(
            put("cluster.devices_per_node", 4), put("meshes[3].devices", [3, 4, 5]), put("meshes[3].axes", {"tp": 3})
        ),
        "meshes[3].axes.tp",
        "tp=3 of mesh D does not divide the 32 heads of the model; use tp=2 or 4",
    ),
]

PIPELINES = [
    (
        put("pipeline.stages", [16, 16]),
        "pipeline.stages",
        "hanayo cuts the model into 16 stages here, but 2 are given; give 16 or null",
    ),
    (
        put("pipeline.stages", [2] * 15 + [3]),
        "pipeline.stages",
        "the stages hold 33 layers, but the model has 32; change a stage or the model",
    ),
    (
        put("model.layers", 8),
        "model.layers",
        "16 stages need at least 16 layers, and the model has 8; use fewer stages or more layers",
    ),
    (
        put("pipeline.placement", [0] * 15 + [4]),
        "pipeline.placement[15]",
        "stage 15 is placed on mesh 4, but there are meshes 0 to 3",
    ),
    (
        put("pipeline.placement", [0, 1]),
        "pipeline.placement",
        "16 stages need 16 places, and 2 are given; give one a stage or null",
    ),
    (
        put("pipeline.placement", [0] * 16),
        "pipeline.placement",
        "hanayo places its stages on meshes 0, 1, 2, 3, 3, 2, 1, 0, ..., in any order of the meshes, but not like this; "
        "use null, another order of the meshes, or a custom schedule",
    ),
    (
        all_of(put("pipeline.microbatches", 20_000), put("pipeline.waves", 25), put("model.layers", 200)),
        "pipeline.microbatches",
        "200 stages x 20000 microbatches, forward and backward, are 8,000,000 computations, "
        "and a step can have 4,000,000; use fewer microbatches or stages",
    ),
    (
        all_of(pipeline(schedule="chimera", microbatches=4), lambda document: document["meshes"].pop()),
        "pipeline.schedule",
        "Chimera pairs meshes from both ends and needs an even number of them, not 3; use 4",
    ),
    (
        pipeline(schedule="interleaved-1f1b", microbatches=6),
        "pipeline.microbatches",
        "Interleaved 1F1B takes microbatches 4 at a time, not 6; use 4 or 8",
    ),
    (
        pipeline(schedule="interleaved-1f1b", microbatches=3),
        "pipeline.microbatches",
        "Interleaved 1F1B takes microbatches 4 at a time, not 3; use 4",
    ),
    (
        pipeline(schedule="interleaved-1f1b", microbatches=8, group=2),
        "pipeline.group",
        "a group of 2 cannot fill 4 meshes; use one of 4 or more",
    ),
]

ACTIONS = [
    (
        put("pipeline.actions", [["0F0"]]),
        "pipeline.actions",
        "actions are only for schedule 'custom'; hanayo makes its own: remove them or change the schedule",
    ),
    (
        pipeline(schedule="custom", microbatches=1),
        "pipeline.actions",
        "a custom schedule needs its actions: per mesh a list such as 0F0 0B0",
    ),
    (
        pipeline(schedule="custom", microbatches=1, actions=[["0F0", "0B0"]]),
        "pipeline.actions",
        "there is 1 list of actions for 4 meshes; give one a mesh",
    ),
    (
        pipeline(schedule="custom", microbatches=1, actions=[["0F0", "0G0"], [], [], []]),
        "pipeline.actions[0][1]",
        "'0G0' is not an action; write stage, kind and microbatch, such as 0F0 (forward), 0B0 (backward), "
        "0I0 (input gradient) or 0W0 (weight gradient)",
    ),
    (
        pipeline(schedule="custom", microbatches=1, actions=[[], [], ["0SEND_F0"], []]),
        "pipeline.actions[2][0]",
        "0SEND_F0 is no computation; leave sends, receives and updates out, they are added by themselves",
    ),
    (
        pipeline(schedule="custom", microbatches=2, actions=[["0F2"], [], [], []]),
        "pipeline.actions[0][0]",
        "0F2 is of microbatch 2, but there are 2 (0 to 1)",
    ),
    (
        pipeline(schedule="custom", microbatches=1, actions=[["32F0"], [], [], []]),
        "pipeline.actions[0][0]",
        "32F0 is of stage 32, but 32 layers make at most as many stages",
    ),
    (
        pipeline(schedule="custom", microbatches=1, actions=[["0F0", "0B0"], [], [], []], placement=[0]),
        "pipeline.placement",
        "the orders already say where each stage lies; remove it",
    ),
    (
        all_of(
            pipeline(schedule="custom", microbatches=3000, actions=[["2999F2999"], [], [], []]),
            put("model.layers", 3000),
        ),
        "pipeline.microbatches",
        "3000 stages x 3000 microbatches, forward and backward, are 18,000,000 computations, "
        "and a step can have 4,000,000; use fewer microbatches or stages",
    ),
    (
        pipeline(schedule="custom", microbatches=1, actions=[[5], [], [], []]),
        "pipeline.actions[0][0]",
        "5 should be text",
    ),
]

MODELS = [
    (
        put("model.heads", 7),
        "model.heads",
        "7 heads do not divide a hidden width of 2560; use 5 or 8 heads, or a width of 2562",
    ),
    (
        put("model.moe.top_k", 9),
        "model.moe.top_k",
        "a token cannot visit 9 of 8 experts; use a top_k of 8 or less",
    ),
    (put("experts.ep", 3), "experts.ep", "ep=3 does not divide 8 experts; use a divisor"),
    (put("experts.load", [1.0]), "experts.load", "the list of loads has 1 for 8 experts; give one an expert"),
    (
        put("experts.load", [0.0] * 8),
        "experts.load",
        'no expert is chosen by a load of zeros; give some of them a share, or set it to "uniform"',
    ),
    (
        put("experts.placement", [[0, 1, 2, 3, 4, 5, 6, 7, 8]]),
        "experts.placement[0]",
        "there is no expert 8; the model has experts 0 to 7",
    ),
    (
        put("experts.ep", 8),
        "experts.ep",
        "ep=8 x esp=1 needs 8 devices, and all meshes have 4; use a smaller one",
    ),
    (
        put("experts.placement", [[0, 1, 2, 3], [4, 5, 6, 7], [], [], []]),
        "experts.placement",
        "there are experts for 5 devices, and the cluster has 4; give one entry a device or null",
    ),
    (
        put("experts.placement", [[0, 1, 2, 3], [4, 5, 6]]),
        "experts.placement",
        "expert 7 is on no device; place it",
    ),
]

EVERY = [*KEYS, *NAMES, *VALUES, *FORMATS, *MESHES, *PIPELINES, *ACTIONS, *MODELS]


@pytest.mark.parametrize(
    ("change", "where", "message"), EVERY, ids=[f"{where}: {message[:40]}" for _, where, message in EVERY]
)
def test_one_mistake_is_one_problem(document: dict[str, Any], change: Change, where: str, message: str) -> None:
    assert [(problem.where, problem.message) for problem in refused(document, change)] == [(where, message)]


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
    assert found[-1].message == "and 980 more like this"


def test_thousands_of_unknown_keys_are_told_at_once(document: dict[str, Any]) -> None:
    found = refused(document, put("training", {f"key{number}": 1 for number in range(50_000)}))

    assert len(found) == 21
    assert found[-1].where == "training.key0"


def test_heads_are_advised_that_every_mesh_can_cut(document: dict[str, Any]) -> None:
    document["cluster"]["devices_per_node"] = 4
    document["experts"]["ep"] = 4
    wide = put("meshes", [{"name": "A", "devices": [0, 1, 2, 3], "axes": {"tp": 4}}])

    (problem,) = refused(document, all_of(wide, put("model.heads", 7)))

    assert problem.message == "7 heads do not divide a hidden width of 2560; use 4 or 8 heads, or a width of 2562"


@pytest.mark.parametrize("key", ["ep", "esp"])
def test_experts_of_a_model_that_has_none_are_a_warning(document: dict[str, Any], key: str) -> None:
    document["model"]["moe"], document["experts"] = None, {}

    assert warnings(document, put("experts", {key: 3})) == [(f"experts.{key}", "experts_unused")]
    assert warnings(document, put("experts", {"schedule": "ppmoe"})) == []


@pytest.mark.parametrize("name", ["", "  "])
def test_a_design_without_a_name_is_a_warning(document: dict[str, Any], name: str) -> None:
    document["model"]["moe"], document["experts"] = None, {}

    assert warnings(document, put("name", name)) == [("name", "name_empty")]


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

    assert found == ([] if is_rectangle else [("meshes[0].devices", "mesh_shape")])


def test_expert_groups_that_cross_meshes_are_a_warning(document: dict[str, Any]) -> None:
    assert warnings(document, put("experts.ep", 2)) == [("experts.ep", "experts_mesh")]
    assert warnings(document, put("experts.ep", 1)) == []


@pytest.mark.parametrize("cell", ["2999F2999", "999999F999999"])
def test_a_cell_far_out_of_bounds_costs_nothing(document: dict[str, Any], cell: str) -> None:
    document["pipeline"] = {"schedule": "custom", "microbatches": 4, "actions": [[cell], [], [], []]}
    draft = parse_design(document, draft=True)
    tracemalloc.start()

    with pytest.raises(InputError, match="there are 4"):
        print(draft.stages)
    assert [problem.code for problem in problems(draft) if problem.severity == "error"] == ["action_microbatch"]
    with pytest.raises(InputError, match="there are 4"):
        draft.pipeline.program(draft.pipe)

    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def test_a_short_stage_list_of_many_mistakes_names_each(document: dict[str, Any]) -> None:
    found = refused(document, put("pipeline.stages", [0, 1, -1]))

    assert [problem.where for problem in found] == ["pipeline.stages[0]", "pipeline.stages[2]"]
