"""Language models in stages, and the batches that they are trained on."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwave.engine.document.architecture import Architecture
from meshwave.engine.document.model import IGNORED, LanguageModel, model_families
from meshwave.engine.errors import InputError
from meshwave.engine.families.bert import MASK
from meshwave.engine.runs.training_windows import DEFAULT_TEXT
from meshwave.engine.runtime.execution.data import TrainingBatches
from meshwave.engine.runtime.execution.optimizers import OPTIMIZERS
from meshwave.engine.runtime.models import build_stage
from tests._strategies import examples

LANGUAGE_MODELS = [kind for kind, family in model_families.items() if issubclass(family, LanguageModel)]


def shape(**changes: Any) -> Any:
    sizes = {"kind": "gpt", "layers": 4, "hidden": 8, "heads": 2, "sequence": 20, "vocab": 257, "ffn": 16, **changes}
    return model_families[sizes["kind"]].model_validate(sizes)


def batches(
    kind: str = "gpt", *, microbatches: int = 2, rows: int = 3, share: range | None = None, seed: int = 5
) -> TrainingBatches:
    model = shape(kind=kind)
    return TrainingBatches(
        DEFAULT_TEXT, model, seed=seed, microbatches=microbatches, micro_batch_size=rows, share=share
    )


@pytest.mark.parametrize("kind", LANGUAGE_MODELS)
@settings(max_examples=examples(20))
@given(cuts=st.lists(st.integers(0, 4), max_size=4), seed=st.integers(0, 2**62))
def test_any_split_has_the_weights_of_the_whole_model(kind: str, cuts: list[int], seed: int) -> None:
    edges = [0, *sorted(cuts), 4]
    layers = [end - start for start, end in pairwise(edges)]
    whole = build_stage(shape(kind=kind), [4], 0, seed).state_dict()

    parts = [build_stage(shape(kind=kind), layers, stage, seed).state_dict() for stage in range(len(layers))]

    assert sum(map(len, parts)) == len(whole)
    for part in parts:
        for name, weight in part.items():
            assert torch.equal(weight, whole[name]), name


def test_initial_weights_depend_on_the_seed_and_not_on_the_precision() -> None:
    single, double = (build_stage(shape(), [4], 0, 1, dtype).state_dict() for dtype in (torch.float32, torch.float64))
    other = build_stage(shape(), [4], 0, 2).state_dict()
    assert all(torch.equal(single[name].double(), double[name]) for name in single)
    assert not torch.equal(single["layers.0.ffn_in.weight"], other["layers.0.ffn_in.weight"])
    assert not torch.equal(single["layers.0.ffn_in.weight"], single["layers.1.ffn_in.weight"])


@pytest.mark.parametrize("kind", LANGUAGE_MODELS)
def test_the_copies_together_train_on_the_batch_of_one_process(kind: str) -> None:
    whole = batches(kind, microbatches=6).step(3)
    shared = [mb for copy in range(3) for mb in batches(kind, share=range(3 * copy, 3 * copy + 3)).step(3)]
    for one, other in zip(whole, shared, strict=True):
        assert all(map(torch.equal, one[:2], other[:2]))


@pytest.mark.parametrize("copies", [1, 2, 4, 8])
def test_a_mesh_with_another_number_of_copies_trains_on_the_same_rows(copies: int) -> None:
    """A microbatch of eight rows in all."""
    rows = 8 // copies
    shares = [batches(rows=2, share=range(rows * copy, rows * (copy + 1))) for copy in range(copies)]
    whole = batches(rows=2, share=range(8))

    for mb in (0, 1):
        drawn = [share.microbatch(1, mb)[0] for share in shares]
        assert torch.equal(torch.cat(drawn), whole.microbatch(1, mb)[0])


def test_sequences_differ_between_steps_and_seeds() -> None:
    drawn = [batches(seed=seed).step(step)[0][0] for seed, step in ((5, 0), (5, 1), (6, 0))]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_gpt_predicts_the_next_byte_of_the_text() -> None:
    inputs, targets, *_ = batches().step(0)[0]
    assert inputs.shape == targets.shape == (3, 20)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert bytes(inputs[0].tolist()) in DEFAULT_TEXT.read_bytes()


def test_bert_masks_equally_many_tokens_in_every_sequence() -> None:
    for inputs, targets, *_ in batches("bert").step(0):
        masked = inputs == MASK
        assert masked.sum(dim=1).tolist() == [3, 3, 3]
        assert torch.equal(masked, targets != IGNORED)


def test_the_bundled_text_is_ascii() -> None:
    text = DEFAULT_TEXT.read_text("ascii")
    assert 30_000 < len(text) < 60_000


@pytest.mark.parametrize(("text", "message"), [(None, "does not exist"), (b"", "holds 0 bytes"), (b"abc", "needs 21")])
def test_an_unusable_text_is_rejected(text: bytes | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "text").write_bytes(text)
    with pytest.raises(InputError, match=message):
        TrainingBatches(tmp_path / "text", shape(), seed=0, microbatches=1, micro_batch_size=1)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_an_optimizer_equals_that_of_torch(name: str) -> None:
    torch_optimizer = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(size, generator=generator, dtype=torch.float64) for size in ((3, 4), (5,))]
    ours, theirs = ([torch.nn.Parameter(tensor.clone()) for tensor in start] for _ in range(2))
    our_optimizer, their_optimizer = OPTIMIZERS[name](ours, 0.1, 0.2), torch_optimizer(theirs, lr=0.1, weight_decay=0.2)
    for _ in range(5):
        gradients = [torch.randn(tensor.shape, generator=generator, dtype=torch.float64) for tensor in start]
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        our_optimizer.step(gradients)
        their_optimizer.step()
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.detach(), other.detach(), rtol=1e-12)


def test_the_defaults_of_a_transformer_are_a_gpt() -> None:
    sizes = {"layers": 2, "hidden": 16, "heads": 2, "sequence": 8, "vocab": 256}
    gpt, transformer = (
        build_stage(model_families[kind].model_validate({"kind": kind, **sizes}), [2], 0, 1).state_dict()
        for kind in ("gpt", "transformer")
    )

    assert Architecture() == model_families["transformer"].model_validate({"kind": "transformer", **sizes}).architecture
    assert gpt.keys() == transformer.keys()
    assert all(torch.equal(gpt[name], transformer[name]) for name in gpt)
