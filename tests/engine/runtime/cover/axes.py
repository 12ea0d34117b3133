"""Axes of the pairwise cover of training: the values of each, and the document of a combination."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from meshwave.engine.schedules import schedules
from tests.engine.runtime.equality import Document, layers_for
from tests.engine.runtime.models.test_u_net import SMALL
from tests.engine.runtime.test_equality_meshes import BERT, DEEPSEEK, GPT_OSS, LLAMA, MIXTRAL, MOE, QWEN

Case = dict[str, str]
"""Value of each axis; axes that are left out have their first value."""

OPTIONS: dict[str, Document] = {
    "auto-wave": {"schedule": "auto", "path": "wave", "chunks": 2, "backward": "whole"},
    "eager-1f1b-split": {"schedule": "eager-1f1b", "backward": "split"},
    "hanayo-split": {"schedule": "hanayo", "backward": "split", "grouping": "ungrouped"},
    "interleaved-1f1b-fused": {"schedule": "interleaved-1f1b", "slots": "fused"},
}
"""Schedules with options that change which actions there are."""
LANGUAGE: dict[str, Document] = {
    "gpt": {"kind": "gpt"},
    "llama": {**LLAMA, "attention": {**LLAMA["attention"], "qk_norm": "head"}},
    "tied": {**LLAMA, "tied_embeddings": True, "embedding_scale": 2.0, "logit_soft_cap": 8.0},
    "latent": {"kind": "transformer", **DEEPSEEK},
    "multi-token": {**LLAMA, "mtp_layers": 1},
    "latent-multi-token-tied": {"kind": "transformer", **DEEPSEEK, "mtp_layers": 2, "tied_embeddings": True},
    "window-sinks": {"kind": "transformer", **GPT_OSS},
    "alibi": {**LLAMA, "positions": {"kind": "alibi"}, "norm": {"placement": "both"}},
    "parallel": {**LLAMA, **QWEN, "residual": "parallel", "positions": {"kind": "rope", "fraction": 0.5}},
    "bert": {"kind": "bert"},
    "masked": {**LLAMA, **BERT, "positions": {"offset": 2}},
    "u-transformer": {"kind": "u-transformer"},
}
"""Model settings beside the sizes, and those of experts for the models that have some."""
EXPERTS: dict[str, Document] = {
    "expert-parallel": {"schedule": "expert-parallel"},
    "deepspeed": {"schedule": "deepspeed"},
    "deepspeed-pregate": {"schedule": "deepspeed", "variant": "pregate"},
    "deepspeed-lanes": {"schedule": "deepspeed", "variant": "lanes"},
    "a2a-allgather": {"schedule": "a2a-allgather"},
    "parm-s1": {"schedule": "parm-s1"},
    "parm-s2": {"schedule": "parm-s2", "degree": 2},
    "ppmoe": {"schedule": "ppmoe"},
    "auto": {"schedule": "auto"},
}
SHARDING: dict[str, Document] = {
    "none": {},
    "optimizer": {"sharding": "optimizer"},
    "gradients": {"sharding": "gradients"},
    "parameters": {"sharding": "parameters"},
    "parameters-1": {"sharding": "parameters", "unsharded_stages": 1},
    "parameters-0": {"sharding": "parameters", "unsharded_stages": 0},
}
STEP: dict[str, Document] = {
    "adamw": {},
    "adamw-clipped": {"clip_norm": 0.5, "weight_decay": 0.1, "lr_schedule": "cosine", "warmup_steps": 1},
    "sgd": {"optimizer": "sgd", "lr": 0.1},
    "sgd-evaluated": {"optimizer": "sgd", "eval_every": 2},
}
DOCUMENTS: dict[str, Document] = {
    "none": {},
    "packed": {"document_end": 32},
    "padded": {"document_end": 32, "pad_documents": True},
}
AXES: dict[str, tuple[str, ...]] = {
    "schedule": (*(name for name in schedules if name != "custom"), *OPTIONS),
    "pp": ("2", "1", "3", "4"),
    "dp": ("1", "2"),
    "cp": ("1", "ring", "all_gather"),
    "tp": ("1", "2"),
    "model": (*LANGUAGE, "u-net"),
    "experts": ("none", *EXPERTS),
    "groups": ("whole", "half", "shards"),
    "placement": ("blocks", "uneven", "layer", "moving"),
    "capacity": ("dropless", "limited"),
    "sharding": tuple(SHARDING),
    "gradient_reduction": ("microbatch", "step"),
    "gradient_buckets": ("1", "3"),
    "sequence_parallel": ("off", "on"),
    "recompute": ("none", "attention", "operators", "layers", "layers-early-stop", "full", "first"),
    "offload": ("0", "0.5", "1"),
    "precision": ("fp64", "fp32", "bf16", "bf16-gradients", "pure_bf16"),
    "documents": tuple(DOCUMENTS),
    "step": tuple(STEP),
    "meshes": ("equal", "swapped", "single"),
    "boundary": ("batch", "sequence", "hidden"),
    "strategy": ("broadcast", "send-recv", "local-allgather", "hierarchical", "rewrite-allgather"),
    "batched": ("off", "on"),
    "order": ("outer-dp", "outer-tp"),
    "stages": ("balanced", "uneven"),
    "kernel": ("default", "unfused"),
}
"""Values of each axis, the plainest first."""
LOW = ("bf16", "bf16-gradients", "pure_bf16")
"""Precisions whose rounding errors reach the tolerance after three steps of SGD with experts.

In the model with ALiBi they grow five to eight times with each step: the gradients of one process in pure_bf16 differ from
those in fp64 by 0.8%, 2.6% and 21%, and those of four processes from those of one process by 0.7%, 5.1% and 27% (in fp32
by 3e-7, 6e-6 and 1e-5). Experts that move after the first of two steps train in the second one.
"""
PROCESSES = 8
"""Largest number of processes of a case."""
TOKEN_GROUPS = ("parm-s1", "auto", "deepspeed-pregate")
"""Expert schedules whose gates may see another selection of tokens than those of one process, so that other ones are dropped."""


def complete(case: Case) -> Case:
    """Return the case with the values of all axes."""
    return {axis: case.get(axis, values[0]) for axis, values in AXES.items()}


def shorten_case(case: Case) -> Case:
    """Return the values of a case that are not the plainest."""
    return {axis: value for axis, value in case.items() if value != AXES[axis][0]}


def mesh_axes(case: Case) -> list[dict[str, int]]:
    """Return the axes of each mesh."""
    dp, cp, tp = (1 if case[axis] == "1" else 2 for axis in ("dp", "cp", "tp"))
    names = ("tp", "cp", "dp") if case["order"] == "outer-tp" else ("dp", "cp", "tp")
    shapes = [{"dp": dp, "cp": cp, "tp": tp}] * int(case["pp"])
    if case["meshes"] == "swapped":
        shapes[1::2] = [{"dp": tp, "cp": cp, "tp": dp}] * len(shapes[1::2])
    elif case["meshes"] == "single":
        shapes[-1] = {"dp": 1, "cp": 1, "tp": 1}
    return [{name: shape[name] for name in names if name != "cp" or shape["cp"] > 1} for shape in shapes]


RULES: dict[str, Callable[[Case], bool]] = {
    "the number of processes": lambda case: sum(map(devices_of, mesh_axes(case))) > PROCESSES,
    "a setting of experts without experts": lambda case: (
        case["experts"] == "none" and any(case[axis] != AXES[axis][0] for axis in ("groups", "placement", "capacity"))
    ),
    "a gate that sees other tokens": lambda case: (
        case["capacity"] == "limited"
        and (case["experts"] in TOKEN_GROUPS or case["cp"] != "1" or case["meshes"] != "equal")
    ),
    "a dense mesh": lambda case: case["model"] == "u-net" and case["experts"] != "none",
    "sequence parallelism without tensor parallelism": lambda case: (
        case["sequence_parallel"] == "on" and all(axes["tp"] == 1 for axes in mesh_axes(case))
    ),
    "sharding without copies": lambda case: (
        case["sharding"] != "none" and all(axes["dp"] == 1 for axes in mesh_axes(case))
    ),
    "a reduction per step without sharded gradients": lambda case: (
        case["gradient_reduction"] == "step" and case["sharding"] in ("none", "optimizer")
    ),
    "buckets of gradients that are not reduced once per step": lambda case: (
        case["gradient_buckets"] != "1"
        and (
            all(devices_of(axes) == 1 for axes in mesh_axes(case))
            or (case["sharding"] not in ("none", "optimizer") and case["gradient_reduction"] == "microbatch")
        )
    ),
    "unequal meshes that are equal": lambda case: (
        case["meshes"] != "equal" and len({tuple(axes.items()) for axes in mesh_axes(case)}) == 1
    ),
    "slices of one device": lambda case: (
        case["boundary"] != "batch" and (case["pp"] == "1" or all(axes["tp"] == 1 for axes in mesh_axes(case)))
    ),
    "a strategy without transfers of several devices": lambda case: (
        case["strategy"] != "broadcast" and (case["pp"] == "1" or devices_of(mesh_axes(case)[0]) == 1)
    ),
    "an order of one axis": lambda case: (
        case["order"] == "outer-tp" and all(sum(size > 1 for size in axes.values()) < 2 for axes in mesh_axes(case))
    ),
    "batches without messages": lambda case: case["batched"] == "on" and case["pp"] == "1",
}
"""Combinations that have no effect or no reference, by name."""
COMPANIONS: dict[str, Case] = {
    "groups": {"experts": "expert-parallel"},
    "placement": {"experts": "expert-parallel"},
    "capacity": {"experts": "expert-parallel"},
    "experts": {"dp": "2"},
    "sequence_parallel": {"tp": "2"},
    "gradient_reduction": {"sharding": "gradients"},
    "gradient_buckets": {"dp": "2"},
    "sharding": {"dp": "2"},
    "meshes": {"dp": "2"},
    "boundary": {"tp": "2"},
    "strategy": {"dp": "2"},
    "order": {"dp": "2", "tp": "2"},
    "precision": {"dp": "2", "sharding": "optimizer"},
}
"""Values of other axes without which no value of an axis has an effect, besides the first one."""


def devices_of(axes: dict[str, int]) -> int:
    """Return the number of devices of a mesh."""
    return axes["dp"] * axes.get("cp", 1) * axes["tp"]


def broken_rule(case: Case) -> str | None:
    """Return the name of the first rule that excludes a case; None if there is none."""
    return next((name for name, excludes in RULES.items() if excludes(case)), None)


def document_of(given: Case) -> Document:
    """Return the document of a case."""
    case = complete(given)
    meshes, at = [], 0
    for number, axes in enumerate(mesh_axes(case)):
        meshes.append({"name": "ABCD"[number], "devices": [*range(at, at := at + devices_of(axes))], "axes": axes})
    link = {"latency_s": 1e-5, "bandwidth": 1e9}
    device = {"name": "core", "peak_flops": 5e10, "memory_bytes": 4e9, "memory_bandwidth": 1e10, "efficiency": 0.5}
    pipeline = _pipeline(case)
    model = _model(case, layers_for({**pipeline, "microbatches": 1}, int(case["pp"])))
    document: Document = {
        "format": "meshwave/1",
        "cluster": {
            "nodes": -(-at // 2),
            "devices_per_node": 2,
            "device": device,
            "intra_node": link,
            "inter_node": {**link, "bandwidth": 3e8},
        },
        "model": model,
        "meshes": meshes,
        "pipeline": pipeline,
        "training": _training(case),
        "transfer": {
            "strategy": case["strategy"],
            "ordering": "ensemble",
            "boundary": case["boundary"],
            "batched": case["batched"] == "on",
        },
        "cost": {"kind": "unit", "transfer_model": "batched"} if case["batched"] == "on" else {"kind": "roofline"},
    }
    if case["experts"] != "none":
        document["experts"] = _experts(case, devices_of(mesh_axes(case)[0]), model)
    if case["stages"] == "uneven":
        stages = _stage_count(case)
        document["pipeline"]["stages"] = [
            *[1] * (stages - 1),
            (9 if case["model"] == "u-net" else model["layers"]) - stages + 1,
        ]
    return document


def _pipeline(case: Case) -> Document:
    options = OPTIONS.get(case["schedule"], {"schedule": case["schedule"]})
    recompute: Any = [0] if case["recompute"] == "first" else case["recompute"]
    microbatches = 8 if case["pp"] == "4" else 6 if case["pp"] == "3" else 4
    return {**options, "microbatches": microbatches, "recompute": recompute}


def _stage_count(case: Case) -> int:
    pipeline = _pipeline(case)
    options = {key: value for key, value in pipeline.items() if key in schedules[pipeline["schedule"]].model_fields}
    return schedules[pipeline["schedule"]](**options).stage_count(int(case["pp"]))


def _model(case: Case, layers: int) -> Document:
    if case["model"] == "u-net":
        return SMALL
    sizes = {"layers": layers, "hidden": 16, "heads": 4, "sequence": 12, "vocab": 257, "ffn": 32}
    model = {**sizes, **LANGUAGE[case["model"]]}
    if case["experts"] == "none":
        return {**model, "moe": None}
    moe = {"experts": 4, **model.get("moe", MIXTRAL["moe"] if model["kind"] == "transformer" else MOE)}
    low = case["precision"] in LOW  # a rounded score could choose another expert
    reached = {"groups": 1, "top_groups": 1} if low and model["kind"] == "transformer" else {}
    capacity = {"capacity_factor": 1.0 if case["capacity"] == "limited" else None}
    even = {} if case["meshes"] == "equal" else {"aux_loss": 0.0}
    return {**model, "moe": {**moe, **capacity, **even, **reached, **({"top_k": moe["experts"]} if low else {})}}


def _experts(case: Case, devices: int, model: Document) -> Document:
    count = model["moe"]["experts"]
    esp = 2 if case["groups"] == "shards" else 1
    ep = max(1, devices // esp // (2 if case["groups"] == "half" else 1))
    found = {**EXPERTS[case["experts"]], "ep": ep, "esp": esp}
    places = 1 if case["experts"] == "ppmoe" else esp
    groups = (2 if case["tp"] == "2" else 1) if case["experts"] == "ppmoe" else ep
    if case["experts"] == "ppmoe":
        found |= {"ep": 1, "esp": 1}
    if case["placement"] in ("uneven", "layer"):
        held: list[list[int]] = [[] for _ in range(groups)]
        for expert in range(count):
            held[expert * expert % groups].append(expert)
        held[-1] = sorted({*held[-1], 1})
        placement = [each for each in held for _ in range(places)]
        every = model["moe"].get("every", 2)
        own = [{"layer": model["layers"] // every * every - 1, "placement": placement}]
        found |= {"placement": placement} if case["placement"] == "uneven" else {"layers": own}
    if case["placement"] == "moving":
        found |= {"rebalance_steps": 1, "rebalance_threshold": 1.0}
    return found


def _training(case: Case) -> Document:
    precision = case["precision"]
    return {
        "steps": 3 if case["placement"] == "moving" and precision not in LOW else 2,
        "micro_batch_size": 2,
        "lr": 0.01,
        "precision": precision.removesuffix("-gradients"),
        "bf16_gradients": precision == "bf16-gradients",
        "sequence_parallel": case["sequence_parallel"] == "on",
        "activation_offload": float(case["offload"]),
        "gradient_reduction": case["gradient_reduction"],
        "gradient_buckets": int(case["gradient_buckets"]),
        "attention_kernel": case["kernel"],
        **({"context_parallel": case["cp"]} if case["cp"] != "1" else {}),
        **SHARDING[case["sharding"]],
        **DOCUMENTS[case["documents"]],
        **STEP[case["step"]],
    }


def pairs_of(case: Case) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Yield the pairs of values of a complete case."""
    yield from combinations(((axis, case[axis]) for axis in AXES), 2)
