"""Multi-token prediction: its loss, its weights and its cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding, layer_norm

from meshwave.engine.costs import flops
from meshwave.engine.costs.model_flops import model_flops, parameter_counts
from meshwave.engine.costs.operators import Workload
from meshwave.engine.costs.transformer_layers import layer_operators
from meshwave.engine.document import parse_design
from meshwave.engine.document.model import LanguageModel, model_families
from meshwave.engine.document.problems import problems
from meshwave.engine.hugging_face.config import read_model
from meshwave.engine.hugging_face.weights import own_weights
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runtime.models import Stage, build_stage
from tests._strategies import document
from tests.engine.imports.test_hugging_face import LLAMA

pytestmark = pytest.mark.torch

SIZES = {"layers": 4, "hidden": 16, "heads": 2, "sequence": 8, "vocab": 260}


def model(**changes: Any) -> LanguageModel:
    found = model_families["transformer"].model_validate({"kind": "transformer", **SIZES, "mtp_layers": 2, **changes})
    assert isinstance(found, LanguageModel)
    return found


def whole_stage(shape: LanguageModel) -> Stage:
    return build_stage(shape, [shape.layers], 0, 1, torch.float64)


def plain_loss(stage: Stage, tokens: Tensor, weight: float) -> Tensor:
    """Return the loss of a sequence ``tokens [batch, sequence + 1]``, written with functions of torch."""
    named = dict(stage.named_parameters())

    def norm(name: str, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], named[f"{name}.weight"], named[f"{name}.bias"], 1e-5)

    def loss(x: Tensor, ahead: int) -> Tensor:
        logits = x @ stage.head.project.weight.T  # type: ignore[union-attr, operator]
        return cross_entropy(logits[:, : tokens.shape[1] - ahead].flatten(0, 1), tokens[:, ahead:].flatten())

    x = norm("head.norm", stage.forward_body(tokens[:, :-1]))
    found = loss(x, 1)
    for number, ahead in ((2, 2), (3, 3)):
        name = f"layers.{number}"
        following = torch.cat([tokens[:, ahead - 1 :], tokens.new_zeros(len(tokens), ahead - 2)], 1)
        embedded = embedding(following, named["embedding.token.weight"])
        joined = torch.cat([norm(f"{name}.hidden_norm", x), norm(f"{name}.embedding_norm", embedded)], -1)
        block = stage.layers[str(number)]
        x = super(type(block), block).forward(joined @ named[f"{name}.join.weight"].T)  # type: ignore[misc]
        x = norm(f"{name}.last_norm", x)
        found = found + weight / 2 * loss(x, ahead)
    return found


@pytest.mark.parametrize("tied", [False, True])
def test_the_loss_is_that_of_the_next_token_and_of_the_tokens_after_it(tied: bool) -> None:
    stage = whole_stage(model(tied_embeddings=tied, mtp_loss_weight=0.5))
    tokens = torch.randint(0, 256, (3, 9), generator=torch.Generator().manual_seed(0))

    found = stage(tokens[:, :-1], tokens[:, 1:])
    expected = plain_loss(stage, tokens, 0.5)
    gradients = [torch.autograd.grad(each, list(stage.parameters())) for each in (found, expected)]

    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*gradients)


def test_an_evaluation_reports_the_loss_of_the_next_token() -> None:
    stage, other = whole_stage(model()), whole_stage(model(mtp_loss_weight=0.0))
    tokens = torch.randint(0, 256, (3, 9), generator=torch.Generator().manual_seed(0))

    stage.training = False
    torch.testing.assert_close(stage(tokens[:, :-1], tokens[:, 1:]), other(tokens[:, :-1], tokens[:, 1:]))


@pytest.mark.parametrize("tied", [False, True])
def test_the_weights_are_those_that_are_counted_and_named(tied: bool) -> None:
    shape = model(tied_embeddings=tied)
    weights = {name: tuple(weight.shape) for name, weight in whole_stage(shape).named_parameters()}

    assert weights == own_weights(shape)
    assert parameter_counts(shape)[0] == sum(torch.Size(size).numel() for size in weights.values())


@pytest.mark.parametrize("tied", [False, True])
def test_the_last_stage_has_a_copy_of_the_embedding_table(tied: bool) -> None:
    shape = model(tied_embeddings=tied)
    load = Workload.from_model(shape, batch=1)

    for stage, ends in enumerate(({"first": True, "last": False}, {"first": False, "last": True})):
        built = build_stage(shape, [2, 2], stage, 1)
        assert flops.stage_parameters(load, 2, **ends) == sum(each.numel() for each in built.parameters())


def test_a_prediction_costs_its_layer_its_projection_and_the_head() -> None:
    with_it, without = model(mtp_layers=1), model(mtp_layers=0)
    load = Workload.from_model(with_it, batch=1)
    projection, logits = 2 * 8 * 32 * 16, 2 * 8 * 16 * 260

    assert model_flops(with_it, 1) - model_flops(without, 1) == 3 * (projection + logits)
    assert model_flops(model(mtp_layers=0, layers=5), 1) - model_flops(without, 1) == 3 * sum(
        each.forward.flops for each in layer_operators(load)
    )


def test_layers_of_multi_token_prediction_are_on_the_last_stage() -> None:
    made = document({"schedule": "1f1b", "microbatches": 4}, 2, model={"kind": "transformer", **SIZES, "mtp_layers": 3})

    assert predict(parse_design(made)).costs.layers == (1, 3)
    made["pipeline"]["stages"] = [2, 2]
    assert [each.code for each in problems(parse_design(made, draft=True))] == ["divided_mtp_layers"]


def test_an_imported_configuration_names_the_predictions_that_it_leaves_out() -> None:
    _, notes = read_model({**LLAMA, "num_nextn_predict_layers": 1})

    assert "hf_mtp" in {note.code for note in notes}
