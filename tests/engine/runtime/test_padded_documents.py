"""Documents that are padded: each microbatch is as long as its longest one, on any layout."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from meshwave.engine.document import parse_design
from meshwave.engine.document.model import IGNORED
from meshwave.engine.findings import DesignError, Refusal
from meshwave.engine.runs.training_windows import DEFAULT_TEXT
from meshwave.engine.runtime.execution.data import Padding, TrainingBatches
from meshwave.engine.runtime.models import build_stage
from meshwave.engine.runtime.modules.documents import pack_documents
from tests.engine.runtime.equality import Document, assert_equal, reference
from tests.engine.runtime.test_equality_meshes import LLAMA, MOE

SPACE = 32
PADDED = {"document_end": SPACE, "pad_documents": True}


def batches(draw: Callable[..., Document], text: Path = DEFAULT_TEXT, **training: Any) -> TrainingBatches:
    model = parse_design(draw({"schedule": "gpipe", "microbatches": 2}, **PADDED)).model
    sizes = {"seed": 3, "microbatches": 6, "micro_batch_size": 3, "document_end": SPACE, "padding": Padding()}
    return TrainingBatches(text, model, **{**sizes, **training})


def test_each_sequence_is_one_document_and_a_microbatch_has_the_length_of_its_longest(
    draw: Callable[..., Document],
) -> None:
    drawn = batches(draw).step(0)
    for inputs, targets, documents, counts in drawn:
        assert documents is counts is None
        real = targets != IGNORED
        assert real.any(0).all(), "no column is padding alone"
        assert torch.equal(real.long().cummin(1).values, real.long()), "padding is at the end"
        assert not (inputs[real] == SPACE).any(), "the end of a document is a target only"
        assert torch.equal(targets[:, :-1][real[:, 1:]], inputs[:, 1:][real[:, 1:]])
    assert len({inputs.shape[1] for inputs, *_ in drawn}) > 1


@pytest.mark.parametrize(
    "model", [{"kind": "gpt"}, {"kind": "bert"}, {**LLAMA, "mtp_layers": 2}], ids=["gpt", "bert", "multi-token"]
)
def test_a_padded_microbatch_has_the_loss_and_the_gradients_of_its_documents_alone(
    model: Document, draw: Callable[..., Document]
) -> None:
    document = draw({"schedule": "gpipe", "microbatches": 2}, layers=4, **PADDED)
    document["model"] |= model
    shape = parse_design(document).model
    drawn = TrainingBatches(
        DEFAULT_TEXT,
        shape,
        seed=3,
        microbatches=6,
        micro_batch_size=3,
        document_end=SPACE,
        padding=Padding(counts_targets=True),
    ).microbatch(0, 1)
    padded, alone = (build_stage(shape, [4], 0, 1, torch.float64) for _ in range(2))
    with pack_documents(drawn.documents):
        loss = padded(drawn.inputs, drawn.targets)
        loss.backward()
    assert drawn.target_counts is not None
    lengths = [each[0] for each in drawn.documents] if drawn.documents else drawn.target_counts[0].tolist()
    total = 0.0
    for row, length in enumerate(lengths):
        own = slice(row, row + 1)
        with pack_documents(None, drawn.target_counts[own]):
            part = alone(drawn.inputs[own, :length], drawn.targets[own, :length]) / len(lengths)
            part.backward()
        total += float(part.detach())
    assert len(set(lengths)) > 1
    assert float(loss.detach()) == pytest.approx(total, rel=1e-12)
    expected = dict(alone.named_parameters())
    for name, parameter in padded.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-9, atol=1e-12)


def test_a_text_without_long_documents_is_refused(draw: Callable[..., Document], tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text(" " * 100)
    with pytest.raises(Refusal, match="no document of data.txt has two tokens"):
        batches(draw, tmp_path / "data.txt")


def test_padding_needs_the_end_of_documents(draw: Callable[..., Document]) -> None:
    document = draw({"schedule": "gpipe", "microbatches": 2}, pad_documents=True)
    with pytest.raises(DesignError) as refused:
        parse_design(document)
    assert [problem.code for problem in refused.value.problems] == ["padding_without_documents"]


FLOAT8 = {"precision": "fp32", "linear_precision": "fp8", "optimizer": "sgd", "lr": 0.1}
GATHERED = {"context_parallel": "all_gather", "sequence_parallel": True}
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
    "masked": ({"schedule": "1f1b"}, {"pp": 2, "dp": 2}, {}, {"kind": "bert"}),
    "skips": ({"schedule": "hanayo"}, {"pp": 2}, {}, {"kind": "u-transformer"}),
    "multi-token": ({"schedule": "zb-h1"}, {"pp": 2, "tp": 2}, {}, {**LLAMA, "mtp_layers": 2}),
    "ring": ({"schedule": "1f1b"}, {"pp": 2, "cp": 2}, {}, {**LLAMA}),
    "gathered": ({"schedule": "1f1b"}, {"pp": 1, "cp": 2, "tp": 2}, GATHERED, {"kind": "bert"}),
    "experts": ({"schedule": "1f1b"}, {"pp": 2, "dp": 2, "tp": 2}, {}, {"moe": MOE}),
    "experts-in-context": ({"schedule": "1f1b"}, {"dp": 2, "cp": 2}, {}, {"moe": {**MOE, "capacity_factor": None}}),
    "fp8": ({"schedule": "1f1b"}, {"pp": 2, "dp": 2}, FLOAT8, {"kind": "bert"}),
    "slices": ({"schedule": "1f1b"}, {"pp": 2, "dp": 2, "tp": 2}, {}, {"kind": "bert"}),
    "more-replicas": ({"schedule": "1f1b"}, {"pp": 2}, {}, {**LLAMA, "mtp_layers": 1}),
    "fewer-replicas": ({"schedule": "zb-h1"}, {"pp": 2}, {"eval_every": 2}, {"kind": "gpt"}),
    "more-context": ({"schedule": "1f1b"}, {"pp": 2}, {}, {"sequence": 16}),
}
"""Schedule, axes, training settings and model by the name of a case."""
OTHERS: dict[str, Document] = {
    "batched": {"transfer": {"batched": True}},
    "experts": {"experts": {"schedule": "parm-s2", "ep": 2, "esp": 2}},
    "experts-in-context": {"experts": {"schedule": "expert-parallel", "ep": 4}},
    "slices": {"transfer": {"boundary": "sequence"}},
}
"""Other sections by the name of a case."""
SHAPES: dict[str, list[dict[str, int]]] = {
    "more-replicas": [{"dp": 1, "tp": 2}, {"dp": 2, "tp": 2}],
    "fewer-replicas": [{"dp": 4}, {"dp": 1, "tp": 2}],
    "more-context": [{"dp": 2, "cp": 2}, {"dp": 1, "cp": 4}],
}
"""Axes of unequal meshes by the name of a case."""


@pytest.mark.parametrize("name", CASES)
def test_training_on_padded_documents_equals_one_process(name: str, crew: Any, draw: Callable[..., Document]) -> None:
    pipeline, axes, training, model = CASES[name]
    document = draw({"microbatches": 4, **pipeline}, layers=5, **PADDED, **axes, **training)
    document["model"] |= model
    document |= OTHERS.get(name, {})
    first = 0
    for mesh, shape in zip(document["meshes"], SHAPES.get(name, []), strict=False):
        mesh |= {"devices": [*range(first, first := first + prod(shape.values()))], "axes": shape}
        document["cluster"]["devices_per_node"] = first
    assert_equal(crew.train(document), reference(document), document["training"]["precision"])
