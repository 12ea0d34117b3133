"""Costs of the parts of a transformer: what each part changes against a GPT."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.engine.costs import flops
from meshwave.engine.costs.model_flops import model_flops, parameter_counts
from meshwave.engine.costs.operators import Workload
from meshwave.engine.costs.transformer_layers import attention_operators, layer_operators
from meshwave.engine.document import parse_design
from meshwave.engine.document.model import model_families
from meshwave.engine.document.problems import problems
from meshwave.engine.predict.prediction import predict
from tests._strategies import document

SIZES = {"layers": 4, "hidden": 64, "heads": 8, "sequence": 32, "vocab": 300}
PIPELINE = {"schedule": "1f1b", "microbatches": 4}


def model(**parts: Any) -> Any:
    return model_families["transformer"].model_validate({"kind": "transformer", **SIZES, **parts})


def attention_flops(**parts: Any) -> float:
    load = Workload.from_model(model(attention=parts), batch=1)
    return next(each.forward.flops for each in attention_operators(load) if each.name == "attention")


def test_the_defaults_cost_what_a_gpt_costs() -> None:
    gpt, transformer = (
        predict(parse_design(document(PIPELINE, 2, model={"kind": kind, **SIZES}, cost={"kind": "roofline"}))).numbers
        for kind in ("gpt", "transformer")
    )
    differing = {key for key in gpt if gpt[key] != transformer[key]}

    assert differing <= {"digest"}


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
def test_shared_key_value_heads_save_weights_and_kept_bytes_but_no_flops_of_attention(kv_heads: int) -> None:
    saved = 2 * (8 - kv_heads) * 8  # numbers a token of keys and values
    load, whole = (Workload.from_model(model(attention={"kv_heads": heads}), batch=3) for heads in (kv_heads, 8))

    parameters, kept = (
        sum(getattr(each, of) for each in layer_operators(whole))
        - sum(getattr(each, of) for each in layer_operators(load))
        for of in ("parameters", "kept_bytes")
    )
    assert parameters == saved * (64 + 1)
    assert kept == 3 * 32 * saved * 4
    assert attention_flops(kv_heads=kv_heads) == attention_flops()


def test_a_causal_window_bounds_the_flops_of_the_layers_that_have_it() -> None:
    kept = 1 / 4 * (2 - 1 / 4)  # a band beside a triangle, relative to the triangle of all tokens
    assert attention_flops(window=8) == attention_flops() * kept
    assert attention_flops(window=8, full_every=2) == attention_flops() * (kept + 1) / 2
    assert attention_flops(window=64) == attention_flops()


def test_a_tied_head_on_another_stage_is_a_copy() -> None:
    tied, untied = (model(tied_embeddings=each) for each in (True, False))
    load = Workload.from_model(tied, batch=1)

    assert parameter_counts(untied)[0] - parameter_counts(tied)[0] == 300 * 64
    first = flops.stage_parameters(load, 2, first=True, last=False)
    last = flops.stage_parameters(load, 2, first=False, last=True)
    assert first + last - parameter_counts(tied)[0] == 300 * 64
    assert model_flops(tied, 1) == model_flops(untied, 1)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_tensor_parallel_devices_divide_the_heads_of_keys_and_values(tp: int) -> None:
    given = document(PIPELINE, 1, model={"kind": "transformer", **SIZES, "attention": {"kv_heads": 2}})
    given["cluster"] |= {"nodes": 1, "devices_per_node": tp}
    given["meshes"][0] |= {"devices": list(range(tp)), "axes": {"dp": 1, "tp": tp}}

    found = [each.code for each in problems(parse_design(given, draft=True)) if each.severity == "error"]

    assert found == ([] if tp <= 2 else ["indivisible_heads"])


def test_active_parameters_are_those_of_the_experts_that_a_token_visits() -> None:
    moe = {"experts": 8, "top_k": 2, "every": 1, "first_dense": 1, "ffn": 32, "shared_ffn": 16}
    gated = {"mlp": {"gated": True, "bias": False, "activation": "silu"}}
    total, active = parameter_counts(model(moe=moe, **gated))

    assert total - active == 3 * (8 - 2) * 3 * 64 * 32
    without = parameter_counts(model(moe={**moe, "shared_ffn": 0}, **gated))[0]
    assert total - without == 3 * 3 * 64 * 16
