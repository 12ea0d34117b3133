"""Random designs that other trainers can express, for round trips."""

from __future__ import annotations

import random
from typing import Any

from meshwave.engine.costs.presets import preset
from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.meshes import equal_meshes
from meshwave.engine.trainers.jobs import EXPERT_SCHEDULE
from meshwave.engine.trainers.models import shorten_section


def draw_design(seed: int) -> Design:
    """Return a random design that Megatron-LM's arguments express."""
    chance = random.Random(seed)
    pp, chunks = chance.choice([(1, 1), (2, 1), (4, 1), (2, 2), (4, 2)])
    dp, cp, tp = chance.choice([1, 2, 4]), chance.choice([1, 1, 2]), chance.choice([1, 2])
    layers = [chance.choice([2, 3, 4])] * pp * chunks
    if len(layers) > 1 and chance.random() < 0.5:
        layers[0] += 1
    mtp_layers = chance.choice([0, 0, 1])
    layers[-1] += mtp_layers
    axes = {"dp": dp, **({"cp": cp} if cp > 1 else {}), "tp": tp}
    model = draw_model(chance, sum(layers), mtp_layers)
    pipeline: dict[str, Any] = {
        "schedule": "interleaved-1f1b" if chunks > 1 else "1f1b",
        "microbatches": pp * chance.choice([2, 4]),
        "stages": layers if len(layers) > 1 else None,
        "recompute": chance.choice(["none", "attention", "layers", "full"]),
    }
    if chunks > 1:
        pipeline |= {
            "chunks": chunks,
            "group": chance.choice([None, 2 * pp]),
            "slots": chance.choice(["single", "fused"]),
        }
    document = {
        "format": "meshwave/1",
        "name": "a test",
        "cluster": {**preset("dgx-h100").cluster.model_dump(mode="json"), "nodes": -(-dp * cp * tp * pp // 8)},
        "model": model,
        "meshes": equal_meshes(pp, axes),
        "pipeline": pipeline,
        "training": {
            **(training := draw_training(chance)),
            "gradient_buckets": chance.choice([1, 4]) if may_have_buckets(training, dp * cp) else 1,
            "context_parallel": chance.choice(["ring", "all_gather"]) if cp > 1 else "ring",
        },
    }
    if model["moe"]:
        ep = chance.choice([size for size in (1, 2, 4) if dp * cp * tp % size == 0])
        document["experts"] = {"schedule": EXPERT_SCHEDULE, "ep": ep, "degree": 1}
    return parse_design(document, draft=True)


def draw_model(chance: random.Random, layers: int, mtp_layers: int) -> dict[str, Any]:
    """Return a random model section in its shortest form."""
    bias = chance.choice([True, False])
    latent = {"q_rank": chance.choice([None, 32]), "kv_rank": 16, "nope_dim": 16, "rope_dim": 8, "value_dim": 16}
    attention = {
        "kv_heads": chance.choice([None, 4]),
        "head_dim": chance.choice([None, 32]),
        "qkv_bias": bias or chance.choice([True, False]),
        "out_bias": bias,
        "sinks": chance.choice([True, False]),
        "latent": chance.choice([None, None, latent]),
    }
    if attention["latent"] is None:
        attention["qk_norm"] = chance.choice(["none", "head"])
        attention["window"] = chance.choice([None, 64])
        attention["full_every"] = chance.choice([0, 2])
    gated, activation = chance.choice([(False, "gelu"), (True, "silu"), (False, "relu2"), (False, "gelu_tanh")])
    scaling = chance.choice(
        [None, {"kind": "llama3", "factor": 4.0, "original_context": 8192}, {"kind": "linear", "factor": 2.0}]
    )
    if attention["latent"]:
        scaling = chance.choice([None, {"kind": "yarn", "factor": 40.0, "original_context": 4096}])
    experts = {
        "experts": 8,
        "top_k": chance.choice([1, 2, 4]),
        "ffn": chance.choice([None, 64]),
        "capacity_factor": chance.choice([None, 1.5]),
        "every": chance.choice([1, 2]),
        "first_dense": chance.choice([0, 2]) if layers > 6 else 0,
        "shared_ffn": chance.choice([0, 64]),
        "shared_gate": chance.choice([True, False]),
        "scale": chance.choice([1.0, 2.5]),
        "aux_loss": chance.choice([0.0, 0.01]),
        "z_loss": chance.choice([0.0, 0.001]),
        **chance.choice(
            [{}, {"normalize": False}, {"score": "sigmoid", "bias_correction": True, "bias_update_rate": 0.01}]
        ),
        **chance.choice([{}, {"groups": 4, "top_groups": 2}]),
    }
    section = {
        "kind": "transformer",
        "layers": layers,
        "mtp_layers": mtp_layers,
        "mtp_loss_weight": 0.5,
        "hidden": 128,
        "heads": 8,
        "sequence": 256,
        "vocab": chance.choice([256, 300]),
        "ffn": chance.choice([None, 384]),
        "tied_embeddings": chance.choice([True, False]),
        "norm": {"kind": chance.choice(["layernorm", "rmsnorm"]), "eps": chance.choice([1e-5, 1e-6])},
        "mlp": {"gated": gated, "activation": activation, "bias": bias},
        "attention": attention,
        "positions": chance.choice(
            [
                {"kind": "learned", "table": chance.choice([None, 1024])},
                {"kind": "none"},
                {"kind": "rope", "theta": 5e5, "fraction": chance.choice([0.5, 1.0]), "scaling": scaling},
            ]
        ),
        "moe": chance.choice([None, experts]),
    }
    return shorten_section(section)


def may_have_buckets(training: dict[str, Any], copies: int) -> bool:
    """Return True if Megatron-LM reduces the gradients of a job in buckets once per step."""
    return copies > 1 and training["sharding"] in ("none", "optimizer")


def draw_training(chance: random.Random) -> dict[str, Any]:
    """Return a random training section."""
    precision = chance.choice(["bf16", "fp32"])
    schedule = chance.choice(["constant", "linear", "cosine"])
    decay_steps = chance.choice([None, 5]) if schedule != "constant" else None
    schedule = "sqrt" if decay_steps and chance.random() < 0.5 else schedule
    found = {
        "micro_batch_size": chance.choice([1, 2]),
        "steps": chance.choice([20, 1000]),
        "optimizer": chance.choice(["adamw", "sgd"]),
        "lr": chance.choice([3e-4, 1.5e-5]),
        "lr_schedule": schedule,
        "warmup_steps": chance.choice([0, 7]),
        "decay_steps": decay_steps,
        "min_lr_factor": 0.0 if schedule == "constant" else chance.choice([0.0, 0.1]),
        "weight_decay": chance.choice([0.0, 0.1]),
        "clip_norm": chance.choice([None, 0.5]),
        "precision": precision,
        "bf16_gradients": precision == "bf16" and chance.choice([True, False]),
        "sharding": chance.choice(["none", "optimizer", "gradients", "parameters"]),
        "sequence_parallel": chance.choice([True, False]),
        "linear_precision": chance.choice(["same", "fp8", "fp4"]),
        "tensor_parallel_overlap": chance.choice([True, False]),
        "attention_kernel": chance.choice(["default", "flash_2", "cudnn", "unfused"]),
        "seed": chance.choice([0, 1234]),
        "data": chance.choice([None, "corpus.bin"]),
    }
    if chance.random() < 0.5:
        found |= {"eval_every": 100, "eval_batches": 3, "eval_share": chance.choice([0.1, 0.05])}
    return found
