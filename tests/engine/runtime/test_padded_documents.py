"""Documents that are padded: each microbatch is as long as its longest one, on any layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from meshwave.engine.document import parse_design
from meshwave.engine.document.model import IGNORED
from meshwave.engine.document.problems import problems
from meshwave.engine.document.unsupported import run_problems
from meshwave.engine.findings import DesignError, Refusal
from meshwave.engine.runs.training_windows import DEFAULT_TEXT
from meshwave.engine.runtime.execution.data import TrainingBatches
from meshwave.engine.runtime.models import build_stage
from tests.engine.runtime.equality import Document, assert_equal, reference
from tests.engine.runtime.test_equality_meshes import LLAMA

SPACE = 32
PADDED = {"document_end": SPACE, "pad_documents": True}


def batches(draw: Callable[..., Document], text: Path = DEFAULT_TEXT, **training: Any) -> TrainingBatches:
    model = parse_design(draw({"schedule": "gpipe", "microbatches": 2}, **PADDED)).model
    sizes = {"seed": 3, "microbatches": 6, "micro_batch_size": 3, "document_end": SPACE, "pads": True}
    return TrainingBatches(text, model, **{**sizes, **training})


def test_each_sequence_is_one_document_and_a_microbatch_has_the_length_of_its_longest(
    draw: Callable[..., Document],
) -> None:
    drawn = batches(draw).step(0)
    for inputs, targets, documents in drawn:
        assert documents is None
        real = targets != IGNORED
        assert real.any(0).all(), "no column is padding alone"
        assert torch.equal(real.long().cummin(1).values, real.long()), "padding is at the end"
        assert not (inputs[real] == SPACE).any(), "the end of a document is a target only"
        assert torch.equal(targets[:, :-1][real[:, 1:]], inputs[:, 1:][real[:, 1:]])
    assert len({inputs.shape[1] for inputs, *_ in drawn}) > 1


def test_a_padded_microbatch_has_the_loss_and_the_gradients_of_its_documents_alone(
    draw: Callable[..., Document],
) -> None:
    shape = parse_design(draw({"schedule": "gpipe", "microbatches": 2}, layers=2)).model
    inputs, targets, _ = batches(draw).microbatch(0, 1)
    padded, alone = (build_stage(shape, [2], 0, 1, torch.float64) for _ in range(2))
    loss = padded(inputs, targets)
    loss.backward()
    real = targets != IGNORED
    for row, length in enumerate(real.sum(1).tolist()):
        part = alone(inputs[row : row + 1, :length], targets[row : row + 1, :length]) * length / real.sum()
        part.backward()
    assert int(real.sum()) < real.numel()
    expected = dict(alone.named_parameters())
    for name, parameter in padded.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-9, atol=1e-12)


def test_a_text_without_long_documents_is_refused(draw: Callable[..., Document], tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text(" " * 100)
    with pytest.raises(Refusal, match="no document of data.txt has two tokens"):
        batches(draw, tmp_path / "data.txt")


def test_padding_needs_documents_and_a_dense_causal_model(draw: Callable[..., Document]) -> None:
    document = draw({"schedule": "gpipe", "microbatches": 2}, pad_documents=True)
    with pytest.raises(DesignError) as refused:
        parse_design(document)
    assert [problem.code for problem in refused.value.problems] == ["padding_without_documents"]
    design = parse_design(draw({"schedule": "gpipe", "microbatches": 2}, kind="bert", cp=2, **PADDED))
    (problem,) = run_problems(design)
    assert (problem.code, problem.params["parts"]) == ("unsupported_padding", ["model.kind", "cp"])
    assert problems(design) == []
    assert json.dumps(problem.fixes[0].edits) == json.dumps([["training.pad_documents", False]])


CASES: dict[str, tuple[Document, Document, Document, Document]] = {
    "1f1b": ({"schedule": "1f1b"}, {"pp": 3}, {"eval_every": 2}, {"kind": "gpt"}),
    "split-backward": ({"schedule": "zb-h1"}, {"pp": 2, "dp": 2}, {}, {**LLAMA}),
    "slots": ({"schedule": "dualpipe"}, {"pp": 2}, {"clip_norm": 0.5}, {"kind": "gpt"}),
    "wave": ({"schedule": "hanayo", "recompute": "full"}, {"pp": 2}, {}, {"kind": "gpt"}),
    "replicas": ({"schedule": "chimera"}, {"pp": 2}, {}, {"kind": "gpt"}),
    "tensor-parallel": ({"schedule": "1f1b"}, {"pp": 2, "tp": 2}, {"clip_norm": 0.5}, {"kind": "gpt"}),
    "divided-tokens": ({"schedule": "zb-v"}, {"pp": 2, "tp": 2}, {"sequence_parallel": True}, {**LLAMA}),
    "sharded": ({"schedule": "interleaved-1f1b"}, {"pp": 2, "dp": 2}, {"sharding": "parameters"}, {"kind": "gpt"}),
    "batched": ({"schedule": "1f1b"}, {"pp": 2}, {}, {"kind": "gpt"}),
}
"""Schedule, axes, training settings and model by the name of a case."""


@pytest.mark.parametrize("name", CASES)
def test_training_on_padded_documents_equals_one_process(name: str, crew: Any, draw: Callable[..., Document]) -> None:
    pipeline, axes, training, model = CASES[name]
    document = draw({"microbatches": 4, **pipeline}, layers=5, **PADDED, **axes, **training)
    document["model"] |= model
    document["transfer"] = {"batched": name == "batched"}
    assert_equal(crew.train(document), reference(document))
