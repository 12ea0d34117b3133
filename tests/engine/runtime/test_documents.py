"""Documents that are packed into sequences: each is computed as if it were alone, on any layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from meshwave.engine.document import parse_design
from meshwave.engine.document.model import model_families
from meshwave.engine.document.unsupported import run_problems
from meshwave.engine.runtime.models import build_stage
from meshwave.engine.runtime.modules.documents import pack_documents
from meshwave.engine.runtime.modules.recomputation import recompute_layers
from tests.engine.runtime.equality import Document, assert_equal, reference
from tests.engine.runtime.test_equality_meshes import DEEPSEEK, GPT_OSS, LLAMA

SPACE = 32
MODELS = {
    "learned positions": {"kind": "gpt"},
    "rotary positions": LLAMA,
    "window and sinks": {"kind": "transformer", **GPT_OSS, "moe": None},
    "alibi": {**LLAMA, "positions": {"kind": "alibi"}},
    "latent": {"kind": "transformer", **DEEPSEEK, "moe": None},
    "both directions": {"kind": "bert"},
}


@pytest.mark.parametrize("recomputed", [None, "attention", "layers"])
@pytest.mark.parametrize("name", MODELS)
def test_each_document_has_the_loss_and_the_gradients_of_the_document_alone(name: str, recomputed: str | None) -> None:
    sizes = {"layers": 2, "hidden": 16, "heads": 2, "sequence": 12, "vocab": 257, "ffn": 32}
    shape = model_families[str(MODELS[name]["kind"])].model_validate({**sizes, **MODELS[name]})
    rows = [(5, 1, 6), (12,)]
    tokens, targets = torch.randint(256, (2, 2, 12), generator=torch.Generator().manual_seed(1))

    packed, alone = (build_stage(shape, [2], 0, 1, torch.float64) for _ in range(2))
    if recomputed:
        recompute_layers(packed.layers.values(), recomputed)
    with pack_documents(rows):
        loss = packed(tokens, targets)
    loss.backward()
    parts = zip(*(torch.split(each.view(-1), [5, 1, 6, 12]) for each in (tokens, targets)), strict=True)
    losses = [alone(inputs[None], wanted[None]) * len(inputs) / 24 for inputs, wanted in parts]
    torch.stack(losses).sum().backward()

    assert loss.item() == pytest.approx(sum(each.item() for each in losses), rel=1e-12)
    expected = dict(alone.named_parameters())
    for weight, parameter in packed.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[weight].grad, rtol=1e-9, atol=1e-12)


def test_compilation_for_one_length_is_refused(draw: Callable[..., Document]) -> None:
    design = parse_design(draw({"schedule": "gpipe", "microbatches": 2}, document_end=SPACE, compile=True))
    assert [problem.code for problem in run_problems(design)] == ["documents_with_compile"]


CASES: dict[str, tuple[Document, Document, Document]] = {
    "inner-stages": ({"schedule": "1f1b", "recompute": "full"}, {"pp": 3}, {}),
    "overlapped-slots": ({"schedule": "dualpipe", "recompute": "layers"}, {"pp": 2}, {}),
    "sharded-dp": ({"schedule": "interleaved-1f1b"}, {"pp": 1, "dp": 2}, {"sharding": "parameters"}),
    "ring-dp": ({"schedule": "interleaved-1f1b"}, {"pp": 1, "cp": 2, "dp": 2}, {"sharding": "gradients"}),
    "gathered": ({"schedule": "zb-h1"}, {"pp": 2, "cp": 2}, {"context_parallel": "all_gather", "eval_every": 2}),
    "gathered-tp": (
        {"schedule": "gpipe", "recompute": "full"},
        {"pp": 1, "cp": 2, "tp": 2},
        {"context_parallel": "all_gather", "sequence_parallel": True},
    ),
    "ring-slots": ({"schedule": "dualpipe"}, {"pp": 2, "cp": 2}, {}),
}
"""Schedule, axes, and training settings by the name of a case."""


@pytest.mark.parametrize("name", CASES)
def test_training_on_documents_equals_one_process(name: str, crew: Any, draw: Callable[..., Document]) -> None:
    pipeline, axes, training = CASES[name]
    document = draw({"microbatches": 4, **pipeline}, layers=5, document_end=SPACE, **axes, **training)
    assert_equal(crew.train(document), reference(document))
