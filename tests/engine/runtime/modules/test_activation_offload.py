"""Activation offload: the same gradients, and the moved bytes of the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from meshwave.engine.document import parse_design
from meshwave.engine.predict.block_timeline import predict_block
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Op
from meshwave.engine.runtime.execution.stages import DTYPES, MESSAGE_DTYPES, LocalStage
from meshwave.engine.runtime.experts.build import single_process_factory
from meshwave.engine.runtime.experts.feed_forward import FeedForward
from meshwave.engine.runtime.models import build_stage
from meshwave.engine.runtime.modules import activation_offload
from meshwave.engine.runtime.modules.recomputation import recompute_layers

pytestmark = pytest.mark.torch

MODEL = {"kind": "transformer", "layers": 4, "hidden": 64, "heads": 4, "sequence": 64, "vocab": 260}


@pytest.fixture
def moved_bytes(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return the bytes that were copied to the host, and back."""
    found = {"store": 0, "restore": 0}
    copy = activation_offload.HostCopy._start_copy

    def counted_copy(own: Any, target: Tensor, *others: Any) -> Any:
        found["store" if target is own._host else "restore"] += target.nbytes
        return copy(own, target, *others)

    monkeypatch.setattr(activation_offload.HostCopy, "_start_copy", counted_copy)
    return found


def train(precision: str, offload: float, part: str | None = None, *, splits: bool = False) -> list[Tensor | None]:
    """Return the gradients of two microbatches of the last of two stages, whose forwards both precede the backwards."""
    module = build_stage(draw(offload).model, [2, 2], 1, 1, dtype=DTYPES[precision])
    if part is not None:
        recompute_layers(module.layers.values(), part)
    local = LocalStage(module, precision, torch.device("cpu"), 1.0, splits_backward=splits, offload=offload)
    chance = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 64, 64, generator=chance).to(MESSAGE_DTYPES[precision]) for _ in range(2)]
    saved = [local.forward(x, torch.randint(0, 256, (2, 64), generator=chance))[1] for x in inputs]
    return [local.backward(each, None) for each in saved] + [weight.grad for weight in module.parameters()]


def draw(offload: float, **cluster: float) -> Any:
    device = {"peak_flops": 1e12, "memory_bytes": 1e9, "memory_bandwidth": 1e11, **cluster}
    link = {"latency_s": 0.0, "bandwidth": 1e9}
    return parse_design(
        {
            "format": "meshwave/1",
            "cluster": {"nodes": 1, "devices_per_node": 2, "device": device, "intra_node": link, "inter_node": link},
            "model": MODEL,
            "meshes": [{"name": name, "devices": [number], "axes": {}} for number, name in enumerate("AB")],
            "pipeline": {"schedule": "gpipe", "microbatches": 2, "stages": [2, 2]},
            "training": {"micro_batch_size": 2, "activation_offload": offload},
            "cost": {"kind": "roofline"},
        }
    )


@pytest.mark.parametrize(
    ("precision", "offload", "part", "splits"),
    [
        ("fp32", 1.0, None, False),
        ("bf16", 0.5, None, True),
        ("fp64", 1.0, "layers", False),
        ("bf16", 1.0, "attention", False),
    ],
)
def test_offload_changes_no_bit_of_the_gradients(
    precision: str, offload: float, part: str | None, splits: bool, moved_bytes: dict[str, int]
) -> None:
    kept = train(precision, 0.0, part, splits=splits)
    assert moved_bytes["store"] == 0
    offloaded = train(precision, offload, part, splits=splits)

    assert all(one is other is None or torch.equal(one, other) for one, other in zip(offloaded, kept, strict=True))
    assert moved_bytes["restore"] == moved_bytes["store"] > 0


@pytest.mark.parametrize("offload", [1.0, 0.5])
def test_the_predicted_bytes_are_moved(offload: float, moved_bytes: dict[str, int]) -> None:
    train("fp32", offload)

    kept, left = (predict(draw(share)).costs.activation_bytes[1] for share in (0.0, offload))
    assert moved_bytes["store"] / 2 == pytest.approx(kept - left, rel=0.02 if offload == 1 else 0.1)


TOKENS = torch.randint(0, 256, (2, 64), generator=torch.Generator().manual_seed(0))


def draw_experts(offload: float) -> Any:
    document = draw(offload).model_dump(mode="json")
    document["model"]["moe"] = {"experts": 4, "top_k": 2, "every": 2, "capacity_factor": None}
    document["meshes"], document["pipeline"]["stages"] = document["meshes"][:1], [4]
    return parse_design(document)


def experts_stage(offload: float, part: str | None = None) -> LocalStage:
    design = draw_experts(offload)
    experts = single_process_factory(design, 1.0, torch.float32)
    module = build_stage(design.model, [4], 0, 1, torch.float32, experts=experts)
    if part is not None:
        recompute_layers(module.layers.values(), part)
    return LocalStage(module, "fp32", torch.device("cpu"), 1.0, offload=offload)


@pytest.mark.parametrize("offload", [1.0, 0.5])
def test_the_predicted_bytes_of_experts_are_moved(offload: float, moved_bytes: dict[str, int]) -> None:
    """The tensors that experts need for their backward are among them."""
    local = experts_stage(offload)
    local.backward(local.forward(TOKENS, TOKENS)[1], None)

    kept, left = (predict(draw_experts(share)).costs.activation_bytes[0] for share in (0.0, offload))
    assert moved_bytes["store"] == pytest.approx(kept - left, rel=0.02 if offload == 1 else 0.1)


def test_recomputed_layers_keep_no_activations_of_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    storages = []
    compute = FeedForward.forward

    def watched_offload(own: FeedForward, x: Tensor, counts: Sequence[int]) -> Any:
        y, saved = compute(own, x, counts)
        storages.extend(activation_offload._storage_key(tensor) for each in saved for tensor in each.tensors[1:])
        return y, saved

    monkeypatch.setattr(FeedForward, "forward", watched_offload)
    local = experts_stage(0.0, "layers")
    saved = local.forward(TOKENS, TOKENS)[1]
    assert storages
    assert all(storage.expired() for storage in storages)
    local.backward(saved, None)


def test_copies_that_take_longer_than_computation_are_exposed() -> None:
    fast, slow = (predict(draw(1.0, host_bandwidth=rate)).costs for rate in (1e15, 1e6))
    without = predict(draw(0.0)).costs
    assert (fast.seconds == without.seconds).all()

    offloaded_bytes = without.activation_bytes - slow.activation_bytes
    assert slow.seconds.max() == pytest.approx(offloaded_bytes.max() / 1e6)
    assert (slow.working_bytes > without.working_bytes).all()
    block = predict_block(draw(1.0, host_bandwidth=1e6), 1, 1, Op.B)
    assert block.labels[-1] == "activation offload"
    assert block.timeline.end.max() == pytest.approx((without.activation_bytes - slow.activation_bytes)[1] / 1e6)
