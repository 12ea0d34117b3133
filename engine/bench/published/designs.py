"""Conversion of published runs to designs.

Assumptions about what a row does not state, or a design cannot express, are listed by code in ``assumed``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from meshwave.engine.bench.published.runs import Run
from meshwave.engine.document import Design
from meshwave.engine.document.devices import AttentionKernel, DeviceKind, Graphs, device_kinds
from meshwave.engine.document.loading import parse_design
from meshwave.engine.findings import Refusal

Json = dict[str, Any]

DEVICES = (
    (r"A100.*PCIe", "A100-PCIe-80GB"),
    (r"A100.*40GB", "A100-SXM4-40GB"),
    (r"A100", "A100-SXM4-80GB"),
    (r"H100.*9[56]GB", "H100-SXM5-96GB"),
    (r"H100.*PCIe|H100.*NVL", ""),
    (r"H100", "H100-SXM5-80GB"),
    (r"GH200", ""),
    (r"H200", "H200-SXM5-141GB"),
    (r"GB200", "GB200-186GB"),
    (r"GB300", "GB300-288GB"),
    (r"B200", "B200-SXM-180GB"),
    (r"B300", "B300-SXM-288GB"),
)
"""Patterns of device names in published runs, and the kind of device of each; the first match counts."""
MLPS: Mapping[str, Json] = {
    "swiglu": {"gated": True, "activation": "silu", "bias": False},
    "gelu": {"gated": False, "activation": "gelu", "bias": True},
    "squared_relu": {"gated": False, "activation": "relu2", "bias": False},
}
ARCHITECTURES = (
    (
        r"GPT[ _-]?OSS",
        {
            "mlp": {"gated": True, "activation": "clamped_swish", "bias": True},
            "attention": {"qkv_bias": True, "out_bias": True, "sinks": True},
        },
    ),
)
"""Patterns of model names, and the published architecture of the model where a row names its kind of MLP only."""
PRODUCTS = ((r"fp4", "fp4"), (r"fp8|float8", "fp8"))
"""Patterns of precisions, and the number format of the linear layers' products; 16 bits if none matches."""
RECOMPUTE = {"none": "none", "selective": "attention", "full": "layers"}
UNFUSED = r"no flash attention|Megatron-LM 20(21|22)|Megatron-DeepSpeed"
"""Pattern of attention types and frameworks in which attention is several kernels."""
STATED_FLASH_2 = r"fms-fsdp"
"""Pattern of sources that state FlashAttention-2."""
IMPLIED_FLASH_2 = r"torchtitan (Dec 2024|Jun 2025)|torchtitan .*A100|KempnerForge"
"""Pattern of frameworks, devices and sources of runs that leave the choice to torch, which takes FlashAttention-2.

cuDNN has had to be selected since October 2024 (pytorch/pytorch#138649; #142132 measures 329 TFLOP/s on H100), which
torchtitan does on Blackwell only (pytorch/torchtitan#1196), and never came first on Ampere.
"""
PER_OPERATOR = r"per op|selective layer|torchtitan .*selective"
"""Pattern of recomputation that keeps attention and every second matrix product."""
CHEAP_PARTS = r"layer_?norm|norm|moe_act|act|mla_up_proj|mlp|moe"
"""Patterns of recomputed modules of Megatron that take little time; attention, the only part of a layer whose recomputation
a design with fused kernels can state, is not among them."""
EARLY_STOP = r"torch|Composer|Kempner|FSDP"
"""Pattern of frameworks with torch's checkpoints, which stop recomputing at the last tensor that a backward needs."""
OVERLAPPED = r"NeMo|Megatron-Bridge"
"""Pattern of frameworks whose recipes overlap tensor-parallel communication."""
WHOLE_GRAPHS = (
    r"Bridge 26\.0[68].*(DeepSeekV3|Qwen3_|GPT OSS).*(GB[23]00).*mxfp8",
    r"Bridge 26\.0[68].*Qwen3_30B.*B300.*mxfp8",
)
"""Patterns of runs with experts whose recipes launch a whole step from CUDA graphs and overlap exchanges."""
GRAPHS: tuple[tuple[Graphs, tuple[str, ...]], ...] = (
    (
        "step",
        (
            *WHOLE_GRAPHS,
            r"full CG",  # stated in the notes of a row
            r"Bridge (25\.11|26\.\d\d).*LLAMA3_8B.* G?B[23]00.*(bf16|fp8 current)",
            r"Bridge 26\.0[24].*LLAMA3\.1_405B GB300.*nvfp4",
        ),
    ),
    (
        "attention",
        (
            r"partial.(CG|cg)",  # stated in the notes of a row, or in its name
            r"Bridge 26\.0[24].*(DeepSeekV3|Qwen3_235B).* GB[23]00.*mxfp8",
            r"Bridge 26\.0[24].*Qwen3_30B.* B200.*mxfp8",
            r"Bridge 26\.04.*DeepSeekV3.* B200.*mxfp8.*ep32",
            r"Bridge (25\.11|26\.\d\d).*GPT OSS.* G?B300.*bf16",
        ),
    ),
    ("router", (r"Bridge (25\.11|26\.0[24]).*Qwen3_30B.* (GB[23]00|B300).*mxfp8",)),
)
"""Patterns of runs with CUDA graphs and the kernels that these launch: stated in their notes, or in the recipes of their
release (``cuda_graph_impl`` and ``cuda_graph_scope``). The first match counts."""
OVERLAPPED_EXCHANGES = (
    *WHOLE_GRAPHS,
    r"EP (A2A |all-to-all )?overlap",  # stated in the notes of a row
    r"Bridge (25\.11|26\.\d\d).*Qwen3_235B.*H100",
    r"Bridge 25\.11.*Qwen3_235B.* B200",
    r"Bridge 26\.04.*GPT OSS.*GB200.*bf16",
    r"Bridge 26\.0[4-8].*DeepSeekV3.* B200.*mxfp8.*ep32",
    r"Bridge 26\.0[68].*GPT OSS.*GB200.*bf16",
)
"""Patterns of runs whose exchanges of experts overlap with compute: stated in their notes, or in the performance recipes of
the release of Megatron-Bridge (tags v0.2.0 to v0.6.0, ``moe_a2a_overlap``); matched with the framework, model, device,
precision, degree of expert parallelism and notes of a row."""
BLOCKING = r"Megatron-DeepSpeed"
"""Pattern of frameworks whose step times have a fixed part per layer and microbatch, as if the host waited for each kernel."""
BLOCKING_GATHERS = r"Megatron-LM 2021 ZeRO-3"
"""Pattern of the framework and schedule of runs with the first releases of ZeRO-3 in DeepSpeed."""
EAGER = r"Composer|compile off|no torch.compile|fsdp;"
"""Pattern of frameworks and notes of runs whose elementwise operators are separate kernels."""
SHORT_GRADIENTS = r"PURE|InternLM"
"""Pattern of precisions, and of a framework with 16-bit weights, in which gradients are accumulated and reduced in 16 bits."""
SHARDINGS = (
    (r"zero2|shard_grad_op|optimizer\+gradients", "gradients"),
    (r"zero1", "optimizer"),
    (r"fsdp|zero3", "parameters"),
)
NETWORKS = (  # number of NICs of a node, Gbit/s of each; those of the vendor's reference system if none matches
    (r"(\d+)x ?(\d+) Gb/s", lambda found, devices: (int(found[1]), float(found[2]))),
    (r"(\d+)x ?(\d+) GB/s", lambda found, devices: (int(found[1]), 8 * float(found[2]))),
    (r"(\d+) Omni-Path", lambda found, devices: (int(found[1]), 100.0)),
    (r"(\d+) Gb/s per node", lambda found, devices: (devices, float(found[1]) / devices)),
    (r"(\d+) Gb/s(?: \S+)? per GPU", lambda found, devices: (devices, float(found[1]))),
)


class PublishedDesign(NamedTuple):
    """Design of a published run, and the assumptions behind it."""

    design: Design
    assumed: tuple[str, ...]  # codes of assumptions


def published_design(run: Run) -> PublishedDesign:
    """Return the design of a published run.

    Raises:
        InputError: the run cannot be expressed as a design.
    """
    kind = _device_kind(run)
    assumed = [*_assumption_texts(run)]
    document = {
        "format": "meshwave/1",
        "name": run.model or run.id,
        "cluster": _cluster_section(run, kind),
        "model": _model_section(run),
        "meshes": _mesh_sections(run),
        "pipeline": _pipeline_section(run),
        "training": _training_section(run),
        "experts": {"schedule": "parm-s1" if run.tp > 1 else "expert-parallel", "ep": run.ep, "degree": 1},
    }
    design = parse_design(document)
    return PublishedDesign(design, tuple(assumed))


def _device_kind(run: Run) -> DeviceKind:
    name = next((name for pattern, name in DEVICES if re.search(pattern, run.device)), "")
    if not name:
        raise Refusal("run_device", {"device": run.device, "known": list(device_kinds())})
    return device_kinds()[name]


def _cluster_section(run: Run, kind: DeviceKind) -> Json:
    linked = min(run.gpus_per_node if kind.linked_devices <= 8 else kind.linked_devices, run.devices)
    nics, rate = linked * kind.nics / kind.linked_devices, kind.nic_bandwidth
    for pattern, read in NETWORKS:
        if found := re.search(pattern, run.interconnect or ""):
            nics, gigabits = read(found, linked)
            rate = gigabits / 8 * 1e9
            break
    return {
        "nodes": -(-run.devices // linked),
        "devices_per_node": linked,
        "nics_per_node": max(1, round(nics)),
        "device": {
            "name": kind.name,
            "peak_flops": kind.peak_flops,
            "memory_bytes": kind.memory_bytes,
            "memory_bandwidth": kind.memory_bandwidth,
        },
        "intra_node": {"latency_s": 5e-6, "bandwidth": kind.link_bandwidth},
        "inter_node": {"latency_s": 1e-5, "bandwidth": rate},
    }


def _model_section(run: Run) -> Json:
    mlp = next((values for name, values in MLPS.items() if run.mlp.startswith(name)), None)
    if mlp is None:
        raise Refusal("run_mlp", {"mlp": run.mlp, "known": sorted(MLPS)})
    own: Json = next((parts for pattern, parts in ARCHITECTURES if re.search(pattern, run.model)), {})
    rotary = run.mlp.startswith(("swiglu", "squared_relu"))
    positions = "alibi" if "ALiBi" in (run.attention_type or "") else "rope" if rotary else "learned"
    return {
        "kind": "transformer",
        "layers": run.layers + run.mtp_layers,
        "hidden": run.hidden,
        "heads": run.heads,
        "sequence": run.seq,
        "vocab": -(-run.vocab // (128 * run.tp)) * 128 * run.tp,
        "ffn": run.ffn,
        "tied_embeddings": bool(run.tied_embeddings),
        "attention": {**_attention_section(run, biased=mlp["bias"]), **own.get("attention", {})},
        "mlp": own.get("mlp", mlp),
        "norm": {"kind": "rmsnorm" if rotary else "layernorm"},
        "positions": {"kind": positions},
        **({"moe": _experts_section(run)} if run.experts else {}),
    }


def _attention_section(run: Run, *, biased: bool) -> Json:
    found: Json = {"qkv_bias": biased, "out_bias": biased}
    if run.mla is not None:
        found["latent"] = {
            "q_rank": run.mla.q_lora_rank,
            "kv_rank": run.mla.kv_lora_rank,
            "nope_dim": run.mla.qk_nope_head_dim,
            "rope_dim": run.mla.qk_rope_head_dim,
            "value_dim": run.mla.v_head_dim,
        }
        return found
    if window := re.search(r"sliding window (\d+)( on every other layer)?", run.attention_type or ""):
        found |= {"window": int(window[1]), "full_every": 2 if window[2] else 0}
    return {**found, "kv_heads": run.kv_heads, "head_dim": run.head_dim}


def _experts_section(run: Run) -> Json:
    if run.top_k is None:
        raise Refusal("run_incomplete", {"keys": ["top_k"]})
    return {
        "experts": run.experts,
        "top_k": run.top_k,
        "capacity_factor": None,
        "every": 1,
        "ffn": run.moe_ffn,
        "first_dense": run.dense_layers,
        "shared_ffn": run.shared_expert_ffn,
    }


def _mesh_sections(run: Run) -> list[Json]:
    """Return one mesh per pipeline rank; devices are ordered by tp, then dp, then rank."""
    size = run.dp * run.cp * run.tp
    if size * run.pp != run.devices:
        raise Refusal("run_degrees", {"product": size * run.pp, "devices": run.devices})
    axes = {"dp": run.dp, **({"cp": run.cp} if run.cp > 1 else {}), "tp": run.tp}
    return [
        {"name": str(rank), "devices": list(range(rank * size, (rank + 1) * size)), "axes": axes}
        for rank in range(run.pp)
    ]


def _pipeline_section(run: Run) -> Json:
    if run.gbs % (run.dp * run.mbs):
        raise Refusal("run_batch", {"gbs": run.gbs, "dp": run.dp, "mbs": run.mbs})
    chunks = run.vp or 1
    while (
        run.pp * chunks > run.layers and chunks > 1
    ):  # Megatron counts embedding and loss as layers; a design does not
        chunks = next(fewer for fewer in range(chunks - 1, 0, -1) if chunks % fewer == 0)
    return {
        **_schedule_section(run, chunks if run.pp > 1 else 1),
        "microbatches": run.gbs // (run.dp * run.mbs),
        "stages": stage_layers(run, run.pp * chunks if run.pp > 1 else 1),
        "recompute": _recompute_setting(run),
    }


def _schedule_section(run: Run, chunks: int) -> Json:
    """Return the schedule of a row and its options; Megatron overlaps exchanges with several chunks or a single rank only."""
    overlaps = (chunks > 1 or run.pp == 1) and _matches(run, OVERLAPPED_EXCHANGES)
    if chunks > 1 or overlaps:
        return {"schedule": "interleaved-1f1b", "chunks": chunks, "slots": "fused" if overlaps else "single"}
    return {"schedule": "1f1b"}


def _matches(run: Run, patterns: Iterable[str]) -> bool:
    described = f"{run.framework} {run.model} {run.device} {run.precision} ep{run.ep} {run.notes or ''} {run.id}"
    return any(re.search(pattern, described) for pattern in patterns)


def _recompute_setting(run: Run) -> str:
    """Return the recompute setting of a row; selective recomputation means attention only."""
    if run.recompute not in RECOMPUTE:
        raise Refusal("run_recompute", {"recompute": run.recompute, "known": sorted(RECOMPUTE)})
    detail = run.recompute_detail or ""
    if _recomputes_cheap_parts(run):
        return "none"
    if ratio := re.search(r"HFU/MFU = (\d+(?:\.\d+)?)", detail):  # recomputing the whole forward gives 1.33
        return "layers-early-stop" if float(ratio[1]) > 1.25 else "operators"
    if "block" in detail:  # only a few layers are recomputed
        return "none"
    if run.recompute == "full" and re.search(EARLY_STOP, run.framework):
        return "layers-early-stop"
    return (
        "operators"
        if re.search(PER_OPERATOR, f"{detail} {run.framework} {run.recompute}")
        else RECOMPUTE[run.recompute]
    )


def _recomputes_cheap_parts(run: Run) -> bool:
    """Return True if all modules that a row names as recomputed are norms, activations and projections."""
    modules = re.findall(r"\w+", (run.recompute_detail or "").partition("+")[0])
    return run.recompute == "selective" and bool(modules) and all(re.fullmatch(CHEAP_PARTS, each) for each in modules)


def stage_layers(run: Run, stages: int) -> list[int] | None:
    """Return the layers of each stage as the row states them; None if the cost model has to split them."""
    layout, layers = (run.stage_layout or "").partition("(")[0], run.layers + run.mtp_layers
    if "|" in layout:
        return _listed_layers(layout, stages, layers)
    if "count as one layer each" in layout and stages > 1 and (layers + 2) % stages == 0:
        each = (layers + 2) // stages
        return [each - 1, *[each] * (stages - 2), each - 1] if each > 1 else None
    return [layers // stages] * stages if layers % stages == 0 else None


def _listed_layers(layout: str, stages: int, layers: int) -> list[int] | None:
    found: list[int] = []
    for part in layout.split("|"):
        number, times = (re.search(pattern, part) for pattern in (r"\d+", r"x\s*(\d+)"))
        count = (int(number[0]) if number else 0) + ("mtp" in part)
        found += [count] * min(int(times[1]) if times else 1, stages + 1)
    return found if len(found) == stages and sum(found) == layers and min(found) > 0 else None


def _training_section(run: Run) -> Json:
    formats = (name for pattern, name in PRODUCTS if re.search(pattern, run.precision, re.IGNORECASE))
    return {
        "micro_batch_size": run.mbs,
        "precision": "bf16",
        "linear_precision": next(formats, "same"),
        "sharding": next((name for pattern, name in SHARDINGS if re.search(pattern, run.sharding or "")), "none"),
        "sequence_parallel": run.sequence_parallel,
        "bf16_gradients": bool(re.search(SHORT_GRADIENTS, f"{run.precision} {run.framework}")),
        "tensor_parallel_overlap": bool(re.search(OVERLAPPED, run.framework)) and run.sequence_parallel,
        "compile": not re.search(EAGER, f"{run.framework} {run.notes}"),
        "cuda_graphs": next((graphs for graphs, patterns in GRAPHS if _matches(run, patterns)), "none"),
        "blocking_gathers": bool(re.search(BLOCKING_GATHERS, f"{run.framework} {run.schedule}")),
        "blocking_launches": bool(re.search(BLOCKING, run.framework)),
        "attention_kernel": _attention_kernel(run),
    }


def _attention_kernel(run: Run) -> AttentionKernel:
    described = f"{run.attention_type} {run.framework}"
    if re.search(UNFUSED, described):
        return "unfused"
    if re.search(f"{STATED_FLASH_2}|{IMPLIED_FLASH_2}", f"{run.framework} {run.device} {run.source}"):
        return "flash_2"
    return "default"


def _assumption_texts(run: Run) -> Iterator[str]:
    if "not stated" in (run.interconnect or "not stated") and run.devices > run.gpus_per_node:
        yield "network of the vendor's reference system"
    if run.pp * (run.vp or 1) > run.layers:
        yield "fewer chunks, since each has a layer"
    if _recomputes_cheap_parts(run):
        yield "no time to recompute norms, activations and projections"
    elif run.recompute == "selective" or "block" in (run.recompute_detail or ""):
        yield "recomputed part of a layer"
    if re.search(IMPLIED_FLASH_2, f"{run.framework} {run.device}"):
        yield "attention kernel that torch selects"
    if "InternLM" in run.framework:
        yield "gradients of 16 bits"
    if run.mtp_layers:
        yield "prediction of further tokens as one more layer"
