"""Buckets of gradients: each is reduced inside the last backward of its stage, and training equals one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from meshwave.engine.costs import layers_per_stage
from meshwave.engine.costs.gradient_buckets import gradient_buckets, last_operations, remaining_shares
from meshwave.engine.costs.models.roofline import mesh_prices
from meshwave.engine.document import parse_design
from meshwave.engine.document.model import LanguageModel, model_families
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import Op
from meshwave.engine.runtime.execution.stages import LocalStage
from meshwave.engine.runtime.models import build_stage
from meshwave.engine.runtime.modules.recomputation import recompute_layers
from tests.engine.runs import play
from tests.engine.runtime.equality import Document, assert_equal, layers_for, thin_out, unsharded_reference
from tests.engine.runtime.test_equality_meshes import LLAMA, MOE

pytestmark = pytest.mark.torch

TINY = {"kind": "transformer", "layers": 4, "hidden": 16, "heads": 2, "sequence": 12, "vocab": 260, "ffn": 32}
MODELS: dict[str, Document] = {
    "plain": {},
    "tied": {"tied_embeddings": True},
    "multi-token": {"mtp_layers": 1, "tied_embeddings": True},
    "u-transformer": {"kind": "u-transformer"},
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("precision", "splits_backward", "recompute"),
    [
        ("fp32", False, "none"),
        ("bf16", False, "none"),
        ("bf16", True, "none"),
        ("bf16", False, "layers"),
        ("fp32", False, "full"),
    ],
)
def test_gradients_of_a_bucket_are_final_when_they_are_reported(
    model: str, precision: str, splits_backward: bool, recompute: str
) -> None:
    document = {**TINY, **MODELS[model]}
    shape = model_families[document["kind"]](**document)
    assert isinstance(shape, LanguageModel)
    module = build_stage(shape, [shape.layers], 0, 1)
    if recompute == "layers":
        recompute_layers(module.layers.values(), "layers")
    blocks = len(module.blocks)
    last = 1 + shape.architecture.mtp_layers
    buckets = [range(blocks - last, blocks), range(2, blocks - last), range(2)]
    stage = LocalStage(
        module,
        precision,
        torch.device("cpu"),
        1.0,
        splits_backward=splits_backward,
        recomputes=recompute == "full",
        buckets=buckets,
    )
    reported: dict[int, list[Tensor]] = {}
    shared = {id(weight) for block in module.blocks[:2] for weight in block.parameters()}

    def own_weights(bucket: int) -> list[torch.nn.Parameter]:
        parts = (module.blocks[block] for block in buckets[bucket])
        return [weight for part in parts for weight in part.parameters() if bucket == 2 or id(weight) not in shared]

    def copy_gradients(bucket: int) -> None:
        reported[bucket] = [weight.grad.clone() for weight in own_weights(bucket) if weight.grad is not None]

    tokens = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(0))
    for microbatch in range(2):
        _, saved = stage.forward(tokens, tokens)
        stage.on_final_gradients = copy_gradients if microbatch else None
        if splits_backward:
            _, deferred = stage.input_gradient(saved, None)
            assert not reported, "weight gradients are not computed yet"
            stage.weight_gradient(deferred)
        else:
            stage.backward(saved, None)
    assert list(reported) == [0, 1], "the last bucket is final at the end"
    for bucket, early in reported.items():
        final = [weight.grad for weight in own_weights(bucket) if weight.grad is not None]
        assert len(early) == len(final) > 0
        assert all(map(torch.equal, early, final)), bucket


def test_a_full_backward_of_a_split_stage_finishes_buckets_when_predicted() -> None:
    """It computes the gradients of weights after that of its input; shares are those of the FLOPs."""
    drawn = play.draw(
        pp=2,
        dp=2,
        model={**TINY, "layers": 12, "hidden": 64, "ffn": 256, "sequence": 16},
        pipeline={"schedule": "dualpipe-v", "microbatches": 4},
        training={"steps": 1, "micro_batch_size": 4, "gradient_buckets": 3, "precision": "fp32"},
    )
    device = drawn.cluster.device.model_copy(update={"memory_bandwidth": 1e15})
    drawn = drawn.model_copy(update={"cluster": drawn.cluster.model_copy(update={"device": device})})
    program, layers = lower(drawn), layers_per_stage(drawn)
    number = program.stages - 1
    assert last_operations(program)[:, number].max() == Op.B and Op.W in program.op[program.stage == number]
    buckets = gradient_buckets(drawn, layers)[number]
    module = build_stage(drawn.model, [*layers], number, 1)
    stage = LocalStage(module, "fp32", torch.device("cpu"), 1.0, splits_backward=True, buckets=buckets)
    _, saved = stage.forward(torch.randn(4, 16, 64), torch.randint(0, 256, (4, 16)))
    passed: list[float] = []
    with FlopCounterMode(display=False) as counter:
        stage.on_final_gradients = lambda _: passed.append(counter.get_total_flops())
        stage.backward(saved, None)

    predicted = remaining_shares(drawn, program, layers, mesh_prices(drawn))[:, number]

    assert len(passed) == len(buckets) - 1 > 0
    remaining = [1 - flops / counter.get_total_flops() for flops in passed]
    assert predicted[: len(passed)].tolist() == pytest.approx(remaining, abs=0.05)


CASES: list[tuple[str, Document, Document, Document, Document]] = [
    ("none", {"schedule": "1f1b", "microbatches": 2}, {"pp": 1, "dp": 2}, {}, {"clip_norm": 0.5}),
    ("none", {"schedule": "zb-h1", "microbatches": 4}, {"dp": 2}, {"tied_embeddings": True}, {"gradient_buckets": 2}),
    ("none", {"schedule": "chimera", "microbatches": 4}, {"dp": 2}, {}, {}),
    ("none", {"schedule": "dualpipe-v", "microbatches": 4}, {"tp": 2, "dp": 2}, {}, {"gradient_buckets": 2}),
    ("none", {"schedule": "1f1b", "microbatches": 4}, {"pp": 1, "dp": 4}, {"moe": {**MOE, "every": 1}}, {}),
    ("none", {"schedule": "1f1b", "microbatches": 4}, {"dp": 2}, {}, {"precision": "bf16", "optimizer": "sgd"}),
    ("none", {"schedule": "gpipe", "microbatches": 2}, {"pp": 1, "dp": 2}, {"mtp_layers": 1}, {}),
    ("optimizer", {"schedule": "interleaved-1f1b", "microbatches": 4}, {"dp": 2}, {"tied_embeddings": True}, {}),
    (
        "optimizer",
        {"schedule": "1f1b", "microbatches": 2},
        {"pp": 1, "dp": 2},
        {},
        {"precision": "bf16", "optimizer": "sgd"},
    ),
    ("gradients", {"schedule": "zb-v", "microbatches": 4}, {"dp": 2}, {"moe": MOE}, {}),
    ("parameters", {"schedule": "1f1b", "microbatches": 2}, {"pp": 1, "dp": 2}, {}, {"unsharded_stages": 0}),
]
"""The sharded state, a schedule, sizes of meshes, the model and other settings."""

IDLE_STAGES: tuple[str, Document, Document, Document, Document] = (
    "none",
    {"schedule": "gems", "microbatches": 1},
    {},
    {},
    {},
)
"""Case in which each rank holds a stage whose gradients it reduces, but of which it computes no microbatch."""


@pytest.mark.parametrize(("sharding", "pipeline", "sizes", "model", "others"), [*thin_out(3, CASES), IDLE_STAGES])
def test_reductions_inside_the_last_backward_train_like_one_process(
    sharding: str,
    pipeline: Document,
    sizes: Document,
    model: Document,
    others: Document,
    crew: Any,
    draw: Callable[..., Document],
) -> None:
    settings = {"gradient_buckets": 3, "sharding": sharding, **others}
    settings |= {"gradient_reduction": "step"} if sharding in ("gradients", "parameters") else {}
    sizes = {"pp": 2, **sizes}
    document = draw(pipeline, layers=layers_for(pipeline, sizes["pp"]), **sizes, **settings)
    document["model"] |= {**LLAMA, **model}
    if "moe" in model:
        document["experts"] = {"schedule": "expert-parallel", "ep": sizes["dp"] // 2 or 1, "esp": 1}
    program = lower(parse_design(document))
    assert (program.bucket[program.op == Op.REDUCE_GRAD] > 0).any()

    outcomes = crew.train(document)

    assert_equal(outcomes, unsharded_reference(document), settings.get("precision", "fp64"))
