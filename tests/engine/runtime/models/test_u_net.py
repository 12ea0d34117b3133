"""A U-Net, whose stages exchange tensors of different shapes, trains like one process."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwave.engine.document import parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.runs.training_windows import DEFAULT_TEXT
from meshwave.engine.runtime.execution.data import TrainingBatches
from meshwave.engine.runtime.execution.stages import LocalStage
from meshwave.engine.runtime.models import build_stage
from tests._strategies import examples
from tests.engine.runtime.equality import assert_equal, assert_same_bits, case_name, reference

Document = dict[str, Any]

MODEL = {"kind": "u-net", "image_size": 8, "base_channels": 4, "channel_multipliers": [1, 2], "heads": 2}
SMALL = {**MODEL, "blocks_per_level": 2, "attention_resolutions": [4]}  # 9 blocks

CASES: list[tuple[Document, int, int, Document]] = [
    ({"schedule": "1f1b", "microbatches": 4}, 2, 1, {}),
    ({"schedule": "1f1b", "microbatches": 4}, 3, 2, {"clip_norm": 0.5, "steps": 3}),
    ({"schedule": "1f1b", "microbatches": 4, "recompute": "full"}, 3, 1, {}),
    ({"schedule": "gpipe", "microbatches": 3, "stages": [1, 1, 1, 6]}, 4, 1, {}),
    ({"schedule": "gpipe", "microbatches": 2, "stages": [2, 2, 5]}, 3, 1, {"optimizer": "sgd"}),
    ({"schedule": "interleaved-1f1b", "chunks": 2, "microbatches": 4}, 2, 1, {}),
    ({"schedule": "eager-1f1b", "backward": "split", "microbatches": 5}, 4, 1, {}),
    ({"schedule": "hanayo", "waves": 1, "microbatches": 4}, 2, 2, {}),
    ({"schedule": "hanayo", "waves": 2, "microbatches": 4}, 2, 1, {}),
    ({"schedule": "chimera", "microbatches": 4}, 4, 1, {"clip_norm": 0.5}),
    ({"schedule": "zb-h1", "microbatches": 6}, 4, 1, {}),
    ({"schedule": "zb-v", "microbatches": 4, "recompute": "full"}, 2, 1, {}),
    ({"schedule": "dualpipe", "microbatches": 4}, 2, 1, {}),
    ({"schedule": "hanayo", "waves": 1, "microbatches": 4}, 3, 1, {"precision": "fp32", "optimizer": "sgd"}),
]  # fmt: skip
"""A pipeline, the number of meshes, of copies, and options of training."""


@pytest.fixture
def draw_u_net(draw: Callable[..., Document]) -> Callable[..., Document]:
    def draw_u_net(pipeline: Document, *, model: Document = SMALL, **options: Any) -> Document:
        return {**draw(pipeline, **options), "model": model, "cost": {"kind": "roofline"}}

    return draw_u_net


@pytest.mark.parametrize(("pipeline", "pp", "dp", "options"), CASES, ids=case_name)
def test_a_u_net_trains_like_one_process(
    pipeline: Document, pp: int, dp: int, options: Document, crew: Any, draw_u_net: Callable[..., Document]
) -> None:
    document = draw_u_net(pipeline, pp=pp, dp=dp, **options)

    assert_equal(crew.train(document), reference(document), options.get("precision", "fp64"))


def test_a_u_net_trains_like_one_process_in_mixed_precision(crew: Any, draw_u_net: Callable[..., Document]) -> None:
    """All blocks use the embedding of the noise step.

    Its gradients in bf16 are summed stage by stage, in another order than in one process, so that they differ by a
    unit in the last place.
    """
    document = draw_u_net({"schedule": "zb-h1", "microbatches": 4}, pp=3, precision="bf16", optimizer="sgd")

    assert_equal(crew.train(document), reference(document), tolerance=4e-3)


def test_the_messages_of_a_u_net_differ_in_size(draw_u_net: Callable[..., Document]) -> None:
    program = lower(parse_design(draw_u_net({"schedule": "gpipe", "microbatches": 2, "stages": [1, 1, 1, 6]}, pp=4)))

    # in units of 16 elements: 4 x 8 x 8, 4 x 4 x 4 and 8 x 4 x 4, each with the 16 of the noise step
    assert program.onward_units.tolist() == [17, 5, 9]
    assert program.skips.tolist() == [[0, 3, 16], [1, 3, 16], [2, 3, 8]]
    assert set(program.tensors.tolist()) == {0, 17, 5, 9 + 8, 16}


def test_a_u_net_trains_like_one_process_on_meshes_of_different_shapes(
    crew: Any, draw_u_net: Callable[..., Document]
) -> None:
    document = draw_u_net({"schedule": "zb-h1", "microbatches": 4, "stages": [3, 2, 4]}, pp=3)
    for mesh, devices in zip(document["meshes"], ([0, 1], [2], [3, 4]), strict=True):
        mesh |= {"devices": devices, "axes": {"dp": len(devices), "tp": 1}}
    document["cluster"] |= {"nodes": 3, "devices_per_node": 2}

    assert_equal(crew.train(document), reference(document))


def test_recomputation_of_a_u_net_changes_no_bit(crew: Any, draw_u_net: Callable[..., Document]) -> None:
    kept, recomputed = (
        crew.train(draw_u_net({"schedule": "1f1b", "microbatches": 4, "recompute": how}, pp=3))
        for how in ("none", "full")
    )

    assert_same_bits(recomputed, kept)


def test_a_split_backward_of_a_u_net_changes_no_bit(crew: Any, draw_u_net: Callable[..., Document]) -> None:
    whole, split = (
        crew.train(draw_u_net({"schedule": "eager-1f1b", "backward": how, "microbatches": 4}, pp=3))
        for how in ("whole", "split")
    )

    assert_same_bits(split, whole)


def _batches(seed: int = 3, **model: Any) -> TrainingBatches:
    design: Any = parse_design(_DESIGN | {"model": {**SMALL, **model}})
    return TrainingBatches(DEFAULT_TEXT, design.model, seed=seed, microbatches=2, micro_batch_size=16)


_LINK = {"latency_s": 0.0, "bandwidth": 1.0}
_DESIGN = {
    "format": "meshwave/1",
    "cluster": {
        "nodes": 1,
        "devices_per_node": 1,
        "device": {"peak_flops": 1.0, "memory_bytes": 1.0, "memory_bandwidth": 1.0},
        "intra_node": _LINK,
        "inter_node": _LINK,
    },
    "meshes": [{"name": "A", "devices": [0]}],
    "pipeline": {"schedule": "gpipe", "microbatches": 1},
}


def test_images_are_determined_by_the_seed_and_differ() -> None:
    inputs, noise, *_ = _batches().microbatch(0, 0)
    again = _batches().microbatch(0, 0)
    different = [_batches(seed=4).microbatch(0, 0)[0], _batches().microbatch(1, 0)[0], _batches().microbatch(0, 1)[0]]

    assert inputs.shape == (16, 3 * 8 * 8 + 1)
    assert noise.shape == (16, 3, 8, 8)
    assert torch.equal(inputs, again.inputs)
    assert not any(torch.equal(inputs, other) for other in different)
    assert len(torch.unique(inputs, dim=0)) == 16


def test_an_example_is_an_image_with_noise() -> None:
    """Without the noise it is an image between -1 and 1; after the last noise step only noise is left."""
    inputs, noise = (each.double() for each in _batches(noise_steps=1000).microbatch(0, 0)[:2])
    steps = inputs[:, -1].numpy()
    assert steps.min() >= 1
    assert steps.max() <= 1000

    left = (np.cos((steps / 1000 + 0.008) / 1.008 * np.pi / 2) / np.cos(0.008 / 1.008 * np.pi / 2)) ** 2
    keep = left > 0.05  # less is lost in rounding
    rest = inputs[:, :-1].numpy() - np.sqrt(1 - left)[:, None] * noise.flatten(1).numpy()
    images = rest[keep] / np.sqrt(left[keep])[:, None]

    assert keep.sum() > 4
    assert np.abs(images).max() <= 1 + 1e-5
    assert images.std() > 0.1
    assert noise.std() == pytest.approx(1.0, abs=0.05)


@given(cuts=st.sets(st.integers(1, 8)), seed=st.integers(0, 2**62))
@settings(max_examples=examples(15))
def test_any_split_of_a_u_net_has_the_weights_of_the_whole_model(cuts: set[int], seed: int) -> None:
    design: Any = parse_design(_DESIGN | {"model": SMALL})
    layers = [end - start for start, end in pairwise([0, *sorted(cuts), 9])]
    whole = build_stage(design.model, [9], 0, seed).state_dict()

    parts = [build_stage(design.model, layers, stage, seed).state_dict() for stage in range(len(layers))]

    assert sum(map(len, parts)) == len(whole)
    assert all(torch.equal(weight, whole[name]) for part in parts for name, weight in part.items())


@pytest.mark.nightly
def test_the_blocks_of_a_u_net_compile_without_a_graph_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend runs the traced graph without compiling it."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr("meshwave.engine.runtime.models.stages.COMPILER", "aot_eager")
    design: Any = parse_design(_DESIGN | {"model": SMALL})
    inputs, noise, *_ = _batches().microbatch(0, 0)
    torch._dynamo.reset()
    counters.clear()
    found = []
    for compiled in (False, True):
        module = build_stage(design.model, [9], 0, 0, torch.float64)
        local = LocalStage(module, "fp64", torch.device("cpu"), 1.0, compiles=compiled)
        assert local.compiled_blocks == 9 * compiled
        loss, saved = local.forward(inputs, noise)
        assert local.backward(saved, None) is None, "the gradient of images is not computed"
        found.append([loss, *(parameter.grad for parameter in module.parameters())])

    assert all(torch.allclose(mine, theirs, rtol=1e-9, atol=1e-9) for mine, theirs in zip(*found, strict=True))
    assert not counters["graph_break"]


def test_a_u_net_learns() -> None:
    """The mean squared error starts near 1, that of predicting zero, and falls well below it."""
    design: Any = parse_design(_DESIGN | {"model": {**SMALL, "base_channels": 16}})
    model, batches = build_stage(design.model, [9], 0, 0), _batches(base_channels=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(60):
        optimizer.zero_grad()
        loss = model(*batches.microbatch(step, 0)[:2])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))

    assert losses[0] > 0.8
    assert np.mean(losses[-10:]) < 0.6 * losses[0]
