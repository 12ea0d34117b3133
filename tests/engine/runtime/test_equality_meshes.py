"""Training equals one process with tensor parallelism, with experts, and on unequal meshes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshwave.engine.document import parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.schedules import schedules
from tests.engine.runtime.equality import (
    Document,
    assert_equal,
    case_name,
    layers_for,
    reference,
    thin_out,
    unequal_meshes,
    unsharded_reference,
)

CUT = [
    ({"schedule": "hanayo", "waves": 2, "microbatches": 4}, 2, 1, {"kind": "bert"}),
    (
        {"schedule": "1f1b", "microbatches": 4, "recompute": "full"},
        2,
        1,
        {"precision": "pure_bf16", "optimizer": "sgd"},
    ),
    ({"schedule": "zb-v", "microbatches": 4}, 2, 1, {"precision": "pure_bf16", "optimizer": "sgd"}),
    ({"schedule": "interleaved-1f1b", "microbatches": 4}, 4, 1, {"layers": 8, "precision": "bf16", "optimizer": "sgd"}),
]
"""Cases with tensor parallelism: a schedule, number of meshes, dp, and other settings."""


@pytest.mark.parametrize(("pipeline", "pp", "dp", "others"), thin_out(2, CUT), ids=case_name)
def test_a_tensor_parallel_model_trains_like_one_process(
    pipeline: Document, pp: int, dp: int, others: Document, crew: Any, draw: Callable[..., Document]
) -> None:
    """The vocabulary of 257 tokens is sharded unevenly."""
    document = draw(pipeline, pp=pp, dp=dp, tp=2, **{"layers": layers_for(pipeline, pp), **others})
    assert_equal(crew.train(document), reference(document), others.get("precision", "fp64"))


@pytest.mark.parametrize("name", thin_out(3, [name for name in schedules if name != "custom"]))
def test_every_schedule_trains_a_tensor_parallel_model(name: str, crew: Any, draw: Callable[..., Document]) -> None:
    pipeline = {"schedule": name, "microbatches": 4}
    document = draw(pipeline, pp=2, tp=2, layers=layers_for(pipeline, 2), clip_norm=0.5)
    assert_equal(crew.train(document), reference(document))


WIDE = [
    ({"schedule": "1f1b", "microbatches": 4}, 2, 1, 4, {"clip_norm": 0.5}),
    ({"schedule": "zb-v", "microbatches": 4}, 1, 2, 4, {}),
    ({"schedule": "1f1b", "microbatches": 4}, 2, 1, 3, {"kind": "bert"}),
    ({"schedule": "zb-h1", "microbatches": 4, "recompute": "full"}, 2, 2, 2, {"clip_norm": 0.5, "steps": 3}),
    ({"schedule": "chimera", "microbatches": 4, "recompute": [1, 2]}, 4, 1, 2, {"clip_norm": 0.5}),
    ({"schedule": "hanayo", "waves": 2, "microbatches": 4}, 2, 2, 2, {"precision": "bf16", "optimizer": "sgd"}),
]
"""Cases like :data:`CUT`, with tp."""


@pytest.mark.parametrize(("pipeline", "pp", "dp", "tp", "others"), thin_out(4, WIDE), ids=case_name)
def test_larger_and_uneven_tensor_parallel_groups_train_like_one_process(
    pipeline: Document, pp: int, dp: int, tp: int, others: Document, crew: Any, draw: Callable[..., Document]
) -> None:
    """The feed-forward block of width 34 is sharded unevenly over three and four devices, the vocabulary always."""
    document = draw(pipeline, pp=pp, dp=dp, tp=tp, layers=layers_for(pipeline, pp), **others)
    document["model"] |= {"hidden": 24, "heads": 12, "ffn": 34}
    assert_equal(crew.train(document), reference(document), others.get("precision", "fp64"))


LLAMA = {
    "kind": "transformer",
    "heads": 4,
    "attention": {"kv_heads": 2, "qkv_bias": False, "out_bias": False},
    "mlp": {"gated": True, "activation": "silu", "bias": False},
    "norm": {"kind": "rmsnorm", "eps": 1e-6},
    "positions": {"kind": "rope"},
}
BERT = {
    "objective": "masked",
    "vocab": 300,
    "attention": {},
    "mlp": {},
    "norm": {"placement": "post"},
    "positions": {},
    "token_types": 2,
    "embedding_norm": True,
    "head_transform": True,
    "head_bias": True,
    "tied_embeddings": True,
}
ARCHITECTURES = {
    "bert": ({"schedule": "1f1b", "microbatches": 4}, 2, 1, BERT),
    "bert-split-backward": ({"schedule": "zb-h1", "microbatches": 4}, 1, 2, BERT),
    "head-norms": ({"schedule": "zb-h1", "microbatches": 4}, 1, 2, {"attention": {"kv_heads": 2, "qk_norm": "head"}}),
    "window": (
        {"schedule": "hanayo", "waves": 1, "microbatches": 4},
        1,
        2,
        {"attention": {"kv_heads": 2, "window": 5}},
    ),
    "parallel": ({"schedule": "1f1b", "microbatches": 4, "recompute": "full"}, 1, 2, {"residual": "parallel"}),
}
"""Transformers: a pipeline schedule, dp, tp, and other settings of the model."""


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_transformer_trains_like_one_process(name: str, crew: Any, draw: Callable[..., Document]) -> None:
    pipeline, dp, tp, others = ARCHITECTURES[name]
    document = draw(pipeline, pp=2, dp=dp, tp=tp, layers=layers_for(pipeline, 2), clip_norm=0.5)
    document["model"] |= {**LLAMA, **others}
    assert_equal(crew.train(document), reference(document))


def test_replicated_weights_of_a_tensor_parallel_group_stay_bitwise_equal(
    crew: Any, draw: Callable[..., Document]
) -> None:
    """Each process updates replicated weights itself; they must not diverge."""
    found = crew.train(draw({"schedule": "1f1b", "microbatches": 4}, dp=2, tp=2, steps=4, lr=0.1, clip_norm=0.5))

    for rank in (found[:4], found[4:]):
        for name, weight in rank[0]["parameters"].items():
            same = [other["parameters"][name] for other in rank if name not in other["cuts"]]
            assert all(np.array_equal(weight, other) for other in same), name


MOE = {"experts": 4, "top_k": 2, "capacity_factor": None, "every": 2, "aux_loss": 0.05, "z_loss": 0.01}
UNEVEN = [[0, 1], [1, 2], [3], [0, 2]]
EXPERTS = [
    ("1f1b", 2, 2, 2, {"schedule": "parm-auto", "ep": 4, "esp": 1}),
    ("chimera", 2, 2, 1, {"schedule": "a2a-allgather", "ep": 1, "esp": 2}),
    ("gpipe", 2, 2, 2, {"schedule": "deepspeed", "ep": 2, "esp": 2}),
    ("1f1b", 1, 2, 2, {"schedule": "parm-s1", "ep": 4, "layers": [{"layer": 3, "placement": UNEVEN}]}),
]
"""Models with experts: a pipeline schedule, number of meshes, dp, tp, and the experts section."""


@pytest.mark.parametrize(("schedule", "pp", "dp", "tp", "experts"), thin_out(2, EXPERTS), ids=case_name)
def test_a_model_with_experts_trains_like_one_process(
    schedule: str, pp: int, dp: int, tp: int, experts: Document, crew: Any, draw: Callable[..., Document]
) -> None:
    document = draw({"schedule": schedule, "microbatches": 2}, pp=pp, dp=dp, tp=tp, layers=4, clip_norm=0.5)
    document["model"]["moe"] = MOE
    document["experts"] = experts
    assert_equal(crew.train(document), reference(document))


GATED = {"gated": True, "activation": "silu", "bias": False}
MIXTRAL = {"mlp": GATED, "moe": {**MOE, "every": 1, "ffn": 24}}
DEEPSEEK = {
    "mlp": GATED,
    "norm": {"kind": "rmsnorm"},
    "positions": {"kind": "rope"},
    "attention": {
        "latent": {"q_rank": 12, "kv_rank": 10, "nope_dim": 6, "rope_dim": 4, "value_dim": 8},
        "qkv_bias": False,
    },
    "moe": {
        **MOE, "experts": 8, "every": 1, "first_dense": 1, "ffn": 8, "shared_ffn": 16, "score": "sigmoid", "scale": 2.5,
        "bias_correction": True, "bias_update_rate": 0.003, "groups": 4, "top_groups": 2,
    },
}  # fmt: skip
QWEN = {
    "mlp": GATED,
    "attention": {"qk_norm": "full", "soft_cap": 5.0},
    "norm": {"kind": "rmsnorm"},
    "moe": {**MOE, "shared_ffn": 24, "shared_gate": True, "normalize": False},
}
GPT_OSS = {
    "mlp": {"gated": True, "activation": "clamped_swish"},
    "norm": {"weight": False, "bias": False},
    "attention": {"sinks": True, "window": 5, "full_every": 2},
    "moe": {**MOE, "router_bias": True},
}
EXPERT_ARCHITECTURES = [
    (DEEPSEEK, "zb-h1", 2, 1, 2, {"schedule": "parm-s1", "ep": 2}, True),
    (DEEPSEEK, "1f1b", 2, 2, 2, {"schedule": "parm-s2", "ep": 2, "esp": 2, "degree": 2}, False),
    (QWEN, "zb-h1", 2, 2, 2, {"schedule": "deepspeed", "ep": 2, "esp": 2}, True),
    (GPT_OSS, "zb-h1", 2, 2, 2, {"schedule": "ppmoe"}, False),
    (GPT_OSS, "1f1b", 1, 2, 2, {"schedule": "parm-s2", "ep": 2, "esp": 2}, False),
]
"""Architectures with experts: the model, schedule, pipeline ranks, dp, tp and experts section; True if tensor-parallel
devices divide the tokens.
"""


@pytest.mark.parametrize(
    ("architecture", "schedule", "pp", "dp", "tp", "experts", "divides"), thin_out(4, EXPERT_ARCHITECTURES)
)
def test_an_architecture_with_experts_trains_like_one_process(
    architecture: Document,
    schedule: str,
    pp: int,
    dp: int,
    tp: int,
    experts: Document,
    divides: bool,
    crew: Any,
    draw: Callable[..., Document],
) -> None:
    document = draw(
        {"schedule": schedule, "microbatches": 2},
        pp=pp,
        dp=dp,
        tp=tp,
        layers=4,
        clip_norm=0.5,
        sequence_parallel=divides,
    )
    document["model"] |= {"kind": "transformer", **architecture}
    document["experts"] = experts
    expected = unsharded_reference(document)
    assert_equal(crew.train(document), expected)
    balances = [weight for name, weight in expected.parameters.items() if name.endswith("gate.balance")]
    assert all(weight.unique().numel() > 1 for weight in balances)
    assert len(balances) == (3 if architecture is DEEPSEEK else 0)


OVERLAPPED = [
    ({"schedule": "dualpipe", "microbatches": 8}, 2, 1, {"schedule": "expert-parallel", "ep": 2, "esp": 1}),
    ({"schedule": "dualpipe-v", "microbatches": 6}, 2, 2, {"schedule": "parm-s1", "ep": 2, "esp": 1}),
    ({"schedule": "dualpipe-v", "microbatches": 6}, 1, 2, {"schedule": "parm-s2", "ep": 2, "esp": 1, "degree": 2}),
    ({"schedule": "dualpipe-v", "microbatches": 6, "recompute": "full"}, 1, 2, {"schedule": "parm-s1", "ep": 2}),
]
"""A pipeline schedule with shared slots, dp, tp, and the experts section."""


@pytest.mark.parametrize(("pipeline", "dp", "tp", "experts"), thin_out(5, OVERLAPPED), ids=case_name)
def test_slots_whose_exchanges_overlap_train_like_one_process(
    pipeline: Document, dp: int, tp: int, experts: Document, crew: Any, draw: Callable[..., Document]
) -> None:
    document = draw(pipeline, pp=2, dp=dp, tp=tp, layers=4, clip_norm=0.5, sequence_parallel=tp > 1)
    document["model"]["moe"] = {**MOE, "every": 1}
    document["experts"] = experts
    assert lower(parse_design(document)).fused.any()
    assert_equal(crew.train(document), unsharded_reference(document))


@pytest.mark.parametrize(
    "experts",
    [
        {"schedule": "parm-s2", "ep": 2, "esp": 2, "degree": 2},
        {"schedule": "ppmoe"},
        {"schedule": "deepspeed", "ep": 4},
    ],
    ids=case_name,
)
def test_recomputed_experts_that_drop_tokens_train_like_one_process(
    experts: Document, crew: Any, draw: Callable[..., Document]
) -> None:
    """A token that is routed again must get the same slot."""
    pipeline = {"schedule": "1f1b", "microbatches": 2, "recompute": "full"}
    document = draw(pipeline, pp=2, dp=2, tp=2, layers=4)
    document["model"]["moe"] = {**MOE, "capacity_factor": 0.7}
    document["experts"] = experts
    assert_equal(crew.train(document), reference(document))


OFFLOADED = [
    ({"schedule": "zb-h1", "microbatches": 4}, 1, 2, {"schedule": "ppmoe"}),
    ({"schedule": "1f1b", "microbatches": 2, "recompute": "layers"}, 2, 1, {"schedule": "expert-parallel", "ep": 2}),
    ({"schedule": "dualpipe-v", "microbatches": 6}, 1, 2, {"schedule": "parm-s2", "ep": 2, "esp": 1, "degree": 2}),
]
"""A pipeline, dp, tp, and the experts section."""


@pytest.mark.parametrize(("pipeline", "dp", "tp", "experts"), thin_out(4, OFFLOADED), ids=case_name)
def test_experts_whose_activations_are_offloaded_train_like_one_process(
    pipeline: Document, dp: int, tp: int, experts: Document, crew: Any, draw: Callable[..., Document]
) -> None:
    document = draw(pipeline, pp=2, dp=dp, tp=tp, layers=4, activation_offload=1.0)
    document["model"]["moe"] = {**MOE, "every": 1}
    document["experts"] = experts
    assert_equal(crew.train(document), reference(document))


UNEQUAL = [
    ({"schedule": "gpipe"}, [(1, 1), (4, 1)], "send-recv", {"micro_batch_size": 4}),
    ({"schedule": "zb-h1"}, [(4, 1), (2, 2)], "local-allgather", {"clip_norm": 0.5, "micro_batch_size": 1}),
    ({"schedule": "eager-1f1b"}, [(2, 1), (1, 1), (1, 2)], "hierarchical", {}),
    ({"schedule": "chimera"}, [(1, 1), (2, 1)], "broadcast", {"clip_norm": 0.5}),
    (
        {"schedule": "interleaved-1f1b", "chunks": 2},
        [(2, 2), (4, 1)],
        "broadcast",
        {"precision": "bf16", "optimizer": "sgd"},
    ),
    ({"schedule": "zb-v"}, [(3, 1), (1, 2)], "hierarchical", {"kind": "bert"}),
    ({"schedule": "1f1b"}, [(2, 1), (1, 2), (2, 2)], "rewrite-allgather", {}),
]
"""A pipeline, the dp and tp of each mesh, and the strategy of transfers between meshes."""
SLICED = [
    ("sequence", {"schedule": "1f1b"}, [(1, 2), (2, 1)], "broadcast", {}),
    ("hidden", {"schedule": "zb-h1"}, [(2, 2), (1, 2)], "local-allgather", {"micro_batch_size": 1}),
    ("sequence", {"schedule": "interleaved-1f1b", "chunks": 2}, [(1, 2), (1, 2)], "rewrite-allgather", {}),
    ("hidden", {"schedule": "hanayo", "waves": 1, "recompute": "full"}, [(1, 2), (2, 1)], "global-allgather", {}),
]
"""Cases like :data:`UNEQUAL`, with the dim of which each tensor-parallel device sends a slice."""


@pytest.mark.parametrize(("boundary", "pipeline", "shapes", "strategy", "others"), thin_out(4, SLICED), ids=case_name)
def test_tensor_parallel_devices_that_send_a_slice_each_train_like_one_process(
    boundary: str,
    pipeline: Document,
    shapes: list[tuple[int, int]],
    strategy: str,
    others: Document,
    crew: Any,
    draw: Callable[..., Document],
) -> None:
    document = draw({**pipeline, "microbatches": 4}, pp=len(shapes), **{"micro_batch_size": 2, **others})
    document = unequal_meshes(document, shapes, strategy)
    document["transfer"]["boundary"] = boundary
    assert_equal(crew.train(document), reference(document))


@pytest.mark.parametrize(("pipeline", "shapes", "strategy", "others"), thin_out(4, UNEQUAL), ids=case_name)
def test_meshes_of_different_shapes_train_like_one_process(
    pipeline: Document,
    shapes: list[tuple[int, int]],
    strategy: str,
    others: Document,
    crew: Any,
    draw: Callable[..., Document],
) -> None:
    pp = len(shapes)
    document = draw({**pipeline, "microbatches": 4}, pp=pp, layers=layers_for(pipeline, pp), **others)
    document = unequal_meshes(document, shapes, strategy)
    assert_equal(crew.train(document), reference(document), others.get("precision", "fp64"))


UNEQUAL_EXPERTS = [
    ("1f1b", [(1, 1), (2, 1)], {"schedule": "parm-s2", "ep": 1, "esp": 1}, 0.0),
    ("1f1b", [(1, 2), (1, 1)], {"schedule": "ppmoe"}, 0.05),
]
"""A pipeline schedule, the dp and tp of each mesh, the experts section, and the weight of the auxiliary loss.

The weight is above 0 only if all meshes have the same dp, because the loss is a mean over the replicas of a mesh, and
other replicas have other tokens.
"""


@pytest.mark.parametrize(("schedule", "shapes", "experts", "aux_loss"), thin_out(4, UNEQUAL_EXPERTS), ids=case_name)
def test_experts_on_meshes_of_different_shapes_train_like_one_process(
    schedule: str,
    shapes: list[tuple[int, int]],
    experts: Document,
    aux_loss: float,
    crew: Any,
    draw: Callable[..., Document],
) -> None:
    """The z-loss is a mean over tokens, which does not depend on the process that holds them."""
    document = draw({"schedule": schedule, "microbatches": 4}, pp=len(shapes), layers=4, clip_norm=0.5)
    document["model"]["moe"] = {**MOE, "aux_loss": aux_loss}
    document["experts"] = experts
    document = unequal_meshes(document, shapes, "broadcast")
    assert_equal(crew.train(document), reference(document))


SHARDED = [
    ("optimizer", {"schedule": "gpipe", "microbatches": 2}, 1, 3, 1, {"clip_norm": 0.5}),
    ("optimizer", {"schedule": "zb-h1", "microbatches": 4}, 2, 2, 1, {"precision": "bf16", "optimizer": "sgd"}),
    ("parameters", {"schedule": "hanayo", "waves": 2, "microbatches": 4}, 2, 2, 1, {"optimizer": "sgd"}),
    ("parameters", {"schedule": "1f1b", "microbatches": 4}, 2, 2, 1, {"precision": "pure_bf16", "optimizer": "sgd"}),
    ("parameters", {"schedule": "1f1b", "microbatches": 4}, 2, 2, 1, {"kind": "u-transformer"}),
    ("parameters", {"schedule": "zb-v", "microbatches": 4}, 2, 2, 1, {"unsharded_stages": 0}),
    ("gradients", {"schedule": "zb-v", "microbatches": 4}, 2, 2, 1, {"gradient_reduction": "step"}),
    ("parameters", {"schedule": "interleaved-1f1b", "microbatches": 4}, 2, 2, 1, {"gradient_reduction": "step"}),
    (
        "parameters",
        {"schedule": "1f1b", "microbatches": 4},
        1,
        2,
        1,
        {"precision": "bf16", "optimizer": "sgd", "gradient_reduction": "step"},
    ),
    (
        "parameters",
        {"schedule": "looped-bfs", "microbatches": 4, "chunks": 4},
        1,
        2,
        1,
        {"precision": "bf16", "optimizer": "sgd", "unsharded_stages": 2},
    ),
]
"""Cases with sharded state: the sharded tensors, a schedule, number of meshes, dp, tp, and other settings."""


@pytest.mark.parametrize(("sharding", "pipeline", "pp", "dp", "tp", "others"), thin_out(4, SHARDED), ids=case_name)
def test_sharded_state_trains_like_one_process(
    sharding: str,
    pipeline: Document,
    pp: int,
    dp: int,
    tp: int,
    others: Document,
    crew: Any,
    draw: Callable[..., Document],
) -> None:
    document = draw(pipeline, pp=pp, dp=dp, tp=tp, layers=layers_for(pipeline, pp), sharding=sharding, **others)
    assert_equal(crew.train(document), unsharded_reference(document), others.get("precision", "fp64"))


SHARDED_EXPERTS = [
    ("optimizer", "gpipe", {"pp": 1, "dp": 4}, {"ep": 2}, {"moe": {**MOE, "every": 1}}, {}),
    ("optimizer", "chimera", {"dp": 2}, {"schedule": "a2a-allgather", "ep": 2}, {}, {"clip_norm": 0.5}),
    ("gradients", "zb-h1", {"dp": 2, "tp": 2}, {"schedule": "ppmoe"}, {}, {"clip_norm": 0.5}),
    ("gradients", "1f1b", {"dp": 4, "pp": 1}, {"ep": 2}, {}, {"precision": "bf16", "optimizer": "sgd"}),
    (
        "parameters",
        "1f1b",
        {"pp": 1, "dp": 4},
        {"placement": UNEVEN, "ep": 4},
        {},
        {"clip_norm": 0.5},
    ),
    ("parameters", "zb-v", {"dp": 4}, {"ep": 2}, {"moe": {**MOE, "bias_correction": True, "score": "sigmoid"}}, {}),
    ("parameters", "dualpipe-v", {"dp": 2}, {"ep": 1}, {}, {"unsharded_stages": 2}),
    (
        *("parameters", "1f1b", {"dp": 2, "tp": 2}, {"schedule": "parm-s1", "ep": 2, "esp": 2}),
        *({}, {"clip_norm": 0.5, "sequence_parallel": True}),
    ),
]
"""The sharded tensors, a schedule, sizes of meshes, the experts section, the model, and other settings."""


@pytest.mark.parametrize(("sharding", "schedule", "sizes", "experts", "model", "others"), thin_out(4, SHARDED_EXPERTS))
def test_sharded_experts_train_like_one_process(
    sharding: str,
    schedule: str,
    sizes: Document,
    experts: Document,
    model: Document,
    others: Document,
    crew: Any,
    draw: Callable[..., Document],
) -> None:
    """The weights of an expert are sharded over the devices that hold it, the others over the data-parallel copies."""
    pipeline = {"schedule": schedule, "microbatches": 4}
    document = draw(pipeline, layers=5, **{"pp": 2, **sizes}, **others)
    document["model"] |= {"kind": "transformer", "moe": MOE, **model}
    document["experts"] = {"schedule": "expert-parallel", "esp": 1, **experts}
    document["training"]["sharding"] = sharding
    assert_equal(crew.train(document), unsharded_reference(document), others.get("precision", "fp64"))


def test_a_mesh_without_copies_trains_beside_one_that_gathers_weights(crew: Any, draw: Callable[..., Document]) -> None:
    document = draw({"schedule": "1f1b", "microbatches": 4}, pp=2, layers=3, micro_batch_size=2)
    document = unequal_meshes(document, [(2, 1), (1, 1)], "broadcast")
    expected = reference(document)
    document["training"]["sharding"] = "parameters"
    assert_equal(crew.train(document), expected)


DIVIDED_TOKENS = [
    ({"schedule": "1f1b", "microbatches": 4}, 2, {"clip_norm": 0.5, "kind": "bert"}),
    ({"schedule": "chimera", "microbatches": 4}, 1, {"clip_norm": 0.5}),
    ({"schedule": "gpipe", "microbatches": 4}, 1, {"clip_norm": 0.5, "kind": "u-transformer"}),
]
"""Cases with sequence parallelism: a schedule, dp, and other settings."""


@pytest.mark.parametrize(("pipeline", "dp", "others"), thin_out(2, DIVIDED_TOKENS), ids=case_name)
def test_sequence_parallelism_trains_like_one_process(
    pipeline: Document, dp: int, others: Document, crew: Any, draw: Callable[..., Document]
) -> None:
    document = draw(pipeline, dp=dp, tp=2, layers=layers_for(pipeline, 2), **others)
    document["training"]["sequence_parallel"] = True
    assert_equal(crew.train(document), unsharded_reference(document))


def test_a_llama_with_sequence_parallelism_trains_like_one_process(crew: Any, draw: Callable[..., Document]) -> None:
    document = draw({"schedule": "1f1b", "microbatches": 4}, tp=2, layers=3)
    document["model"] |= {**LLAMA, "attention": {**LLAMA["attention"], "qk_norm": "head"}}
    expected = reference(document)
    document["training"]["sequence_parallel"] = True
    assert_equal(crew.train(document), expected)


def test_sequence_parallel_tensors_pass_between_meshes_with_different_axes(
    crew: Any, draw: Callable[..., Document]
) -> None:
    document = unequal_meshes(draw({"schedule": "1f1b", "microbatches": 4}), [(1, 4), (2, 2)], "broadcast")
    document["model"] |= {"heads": 4}
    expected = reference(document)
    document["training"]["sequence_parallel"] = True
    assert_equal(crew.train(document), expected)


TIED = [
    ({"schedule": "gpipe", "microbatches": 2}, 1, 3, {"sharding": "parameters", "clip_norm": 0.5}),
    ({"schedule": "zb-v", "microbatches": 4}, 2, 2, {"sharding": "gradients", "clip_norm": 0.5}),
    ({"schedule": "chimera", "microbatches": 4}, 2, 2, {"sharding": "optimizer", "clip_norm": 0.5}),
    (
        {"schedule": "interleaved-1f1b", "microbatches": 4},
        *(2, 2, {"sharding": "parameters", "unsharded_stages": 1, "precision": "bf16", "optimizer": "sgd"}),
    ),
]
"""Cases whose head shares its weight with the embedding: a schedule, number of meshes, dp, and other settings."""


@pytest.mark.parametrize(("pipeline", "pp", "dp", "others"), thin_out(2, TIED), ids=case_name)
def test_a_tied_head_trains_like_one_process(
    pipeline: Document, pp: int, dp: int, others: Document, crew: Any, draw: Callable[..., Document]
) -> None:
    document = draw(pipeline, pp=pp, dp=dp, layers=layers_for(pipeline, pp), **others)
    document["model"] |= {**LLAMA, "tied_embeddings": True}
    assert_equal(crew.train(document), unsharded_reference(document), others.get("precision", "fp64"))


PREDICTING = [
    ({"schedule": "1f1b", "microbatches": 4}, 2, 1, 2, {"mtp_layers": 2}, {"sequence_parallel": True}),
    (
        {"schedule": "chimera", "microbatches": 4, "recompute": "full"},
        2,
        1,
        1,
        {"mtp_layers": 1, "tied_embeddings": True},
        {"precision": "bf16", "optimizer": "sgd"},
    ),
    (
        {"schedule": "1f1b", "microbatches": 4},
        2,
        1,
        1,
        {"mtp_layers": 1, "moe": {"experts": 4, "every": 1, "capacity_factor": None}},
        {},
    ),
    ({"schedule": "1f1b", "microbatches": 4}, 2, 2, 1, {"mtp_layers": 2}, {"sharding": "parameters"}),
    ({"schedule": "gpipe", "microbatches": 4}, 1, 2, 1, {"mtp_layers": 1}, {"sharding": "gradients"}),
    (
        {"schedule": "zb-v", "microbatches": 4},
        *(2, 2, 1, {"mtp_layers": 1, "tied_embeddings": True}, {"sharding": "parameters", "clip_norm": 0.5}),
    ),
]
"""A schedule, number of meshes, dp, tp, layers of multi-token prediction, and other settings."""


@pytest.mark.parametrize(("pipeline", "pp", "dp", "tp", "model", "others"), thin_out(2, PREDICTING), ids=case_name)
def test_multi_token_prediction_trains_like_one_process(
    pipeline: Document,
    pp: int,
    dp: int,
    tp: int,
    model: Document,
    others: Document,
    crew: Any,
    draw: Callable[..., Document],
) -> None:
    document = draw(pipeline, pp=pp, dp=dp, tp=tp, layers=layers_for(pipeline, pp), **others)
    document["model"] |= {**LLAMA, **model}
    assert_equal(crew.train(document), unsharded_reference(document), others.get("precision", "fp64"))
