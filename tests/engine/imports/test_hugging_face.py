"""Import of models from Hugging Face configurations: their parameters, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwave.engine.costs.model_flops import parameter_counts
from meshwave.engine.document import parse_design
from meshwave.engine.document.model import model_families
from meshwave.engine.findings import DesignError
from meshwave.engine.hugging_face.config import read_model
from meshwave.engine.hugging_face.keys import MODEL_TYPES
from meshwave.engine.hugging_face.published_models import published_models
from meshwave.engine.imports import find_format, is_import, load_import
from meshwave.engine.predict.prediction import predict

CONFIGURATIONS: dict[str, Any] = {
    row["name"]: row for row in json.loads(Path(__file__).with_name("model_configs.json").read_text())
} | {
    name: {**each.config, "params_computed": each.parameters, "params_active_computed": each.active_parameters}
    for name, each in published_models().items()
}
"""Configurations of models with their published parameter counts, by the name of the checkpoint."""
READABLE = [name for name, row in CONFIGURATIONS.items() if row["model_type"] in MODEL_TYPES]
MEGATRON = [name for name, row in CONFIGURATIONS.items() if row["model_type"] == "gpt" and name != "BLOOM-176B"]
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 160,
    "vocab_size": 300,
}
QWEN3_MOE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


def parameter_counts_of(model: Any) -> tuple[int, int]:
    return parameter_counts(model_families["transformer"].model_validate({"kind": "transformer", **model}))


def published_counts(row: dict[str, Any]) -> tuple[int, int]:
    count = row["params_computed"]
    return count, row.get("params_active_computed", count)


@pytest.mark.parametrize("name", READABLE)
def test_an_imported_model_has_the_published_number_of_parameters(name: str) -> None:
    model, _ = read_model(CONFIGURATIONS[name])

    assert parameter_counts_of(model) == published_counts(CONFIGURATIONS[name])


@pytest.mark.parametrize("name", MEGATRON)
def test_models_of_the_megatron_paper_have_its_number_of_weights(name: str) -> None:
    """These counts include weight matrices only, without biases and norms. OPT has two more positions than tokens."""
    row = CONFIGURATIONS[name]
    model = {
        **shape(row),
        "attention": {
            "kv_heads": row["num_key_value_heads"],
            "head_dim": row["head_dim"],
            "qkv_bias": False,
            "out_bias": False,
        },
        "mlp": {"bias": False, "activation": row["hidden_act"]},
        "norm": {"weight": False, "bias": False},
        "positions": {"kind": row["position_embedding"], "table": 2050 if name == "OPT-175B" else 2048},
        "tied_embeddings": row["tie_word_embeddings"],
    }

    assert parameter_counts_of(model)[0] == row["params_computed"]


def shape(row: dict[str, Any]) -> dict[str, Any]:
    names = {
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "vocab": "vocab_size",
        "ffn": "intermediate_size",
    }
    return {"sequence": 2048, **{key: row[name] for key, name in names.items()}}


def test_bloom_has_the_published_number_of_parameters() -> None:
    row = CONFIGURATIONS["BLOOM-176B"]
    model = {**shape(row), "positions": {"kind": "alibi"}, "tied_embeddings": True, "embedding_norm": True}

    assert parameter_counts_of(model)[0] == row["params_computed"]


def test_grok_has_the_number_of_weights_of_its_recipe() -> None:
    row = CONFIGURATIONS["Grok-1"]
    model = {
        **shape(row),
        "attention": {"kv_heads": 8, "head_dim": 128, "qkv_bias": False, "out_bias": False},
        "mlp": {"gated": True, "activation": "gelu", "bias": False},
        "norm": {"kind": "rmsnorm", "weight": False},
        "positions": {"kind": "rope"},
        "tied_embeddings": True,
        "moe": {"experts": 8, "top_k": 2, "every": 1, "capacity_factor": None},
    }

    assert parameter_counts_of(model) == published_counts(row)


def test_an_unsupported_model_type_is_refused_by_name() -> None:
    row = CONFIGURATIONS["Grok-1"]
    with pytest.raises(DesignError) as refused:
        read_model(row)

    (problem,) = refused.value.problems
    assert (problem.code, problem.params["model_type"]) == ("hf_model_type", row["model_type"])


@pytest.mark.parametrize(
    ("change", "code", "where"),
    [
        ({"hidden_act": "snake"}, "hf_unsupported", "hidden_act"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, "hf_unsupported", "rope_scaling"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": "2"}}, "hf_unsupported", "rope_scaling"),
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, "hf_unsupported", "layer_types"),
        ({"hidden_size": None}, "hf_missing_key", "hidden_size"),
        ({"num_hidden_layers": "4"}, "hf_unsupported", "num_hidden_layers"),
        ({"rope_scaling": "linear"}, "hf_unsupported", "rope_scaling"),
        ({"layer_types": ["full_attention", ["sliding_attention"]]}, "hf_unsupported", "layer_types"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "hf_unsupported", "use_sliding_window"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [1]}, "hf_unsupported", "mlp_only_layers"),
        (
            {
                "model_type": "deepseek_v3",
                "n_routed_experts": 8,
                "n_shared_experts": 2,
                "moe_intermediate_size": None,
            },
            "hf_missing_key",
            "moe_intermediate_size",
        ),
    ],
)
def test_an_unsupported_setting_is_refused_by_name(change: dict[str, Any], code: str, where: str) -> None:
    with pytest.raises(DesignError) as refused:
        read_model({**QWEN3_MOE, "model_type": "llama", **change})

    assert (code, where) in [(problem.code, problem.where) for problem in refused.value.problems]


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": "meshwave/1"}', "3", "{"])
def test_a_file_without_a_configuration_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)

    with pytest.raises(DesignError):
        load_import(path)


@pytest.mark.parametrize("configuration", [LLAMA, QWEN3_MOE], ids=["llama", "qwen3_moe"])
def test_an_imported_model_is_predicted_at_once(configuration: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(configuration))

    design, _ = load_import(path)
    numbers = predict(design).numbers

    assert design.ranks == configuration["num_hidden_layers"]
    assert (numbers["parameters"], numbers["active_parameters"]) == parameter_counts(design.model)
    assert numbers["makespan_s"] > 0


def test_an_imported_model_replaces_that_of_the_open_design(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    costs = {"forward": [1.0] * 4, "input": [1.0] * 4, "weight": [1.0] * 4}
    document = load_import(path).design.model_dump(mode="json")
    first = parse_design({**document, "cost": {**document["cost"], "stage_costs": costs}})

    path.write_text(json.dumps({**LLAMA, "num_hidden_layers": 6}))
    found = load_import(path, into=first).design

    assert found.model.layers == 6
    assert found.meshes == first.meshes
    assert found.cost.stage_costs is None, "they were those of the other model"


def test_ignored_settings_are_named() -> None:
    _, notes = read_model({**LLAMA, "attention_dropout": 0.1, "max_position_embeddings": 1 << 17})

    assert {note.code: dict(note.params) for note in notes} == {
        "hf_unused_keys": {"keys": ["attention_dropout"]},
        "hf_sequence": {"sequence": 4096, "longest": 1 << 17},
    }


def test_sliding_windows_are_read_from_the_layer_types() -> None:
    types = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    gemma = {**LLAMA, "model_type": "gemma3_text", "num_hidden_layers": 6, "sliding_window": 128, "layer_types": types}

    model, _ = read_model(gemma)

    assert (model["attention"]["window"], model["attention"]["full_every"]) == (128, 3)


def test_the_rotary_scaling_of_older_configurations_is_read_under_its_present_name() -> None:
    scaling = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    phi = {**LLAMA, "model_type": "phi3", "original_max_position_embeddings": 4096, "max_position_embeddings": 8192}

    older, newer = (read_model({**phi, "rope_scaling": {"type": kind, **scaling}}) for kind in ("su", "longrope"))

    assert older == newer


def test_a_design_is_not_recognized_as_a_configuration() -> None:
    assert is_import("config.json", json.dumps(LLAMA))
    assert not is_import("design.json", '{"format": "meshwave/1"}')
    assert find_format("config.json", json.dumps(LLAMA)) == "hugging-face"
