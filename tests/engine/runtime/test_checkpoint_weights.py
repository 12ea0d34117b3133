"""Checkpoints of other trainers: layers of multi-token prediction, and quantized weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch

from meshwave.engine.document.model import LanguageModel
from meshwave.engine.hugging_face import saving
from meshwave.engine.hugging_face.tensor_files import checkpoint_files, find_weights
from meshwave.engine.runtime.execution.initial_weights import WeightReader
from tests.engine.runs.test_initial_weights import LLAMA, language_model, write_checkpoint

pytestmark = pytest.mark.torch

DEEPSEEK = {
    **LLAMA,
    "attention": {
        "qkv_bias": False,
        "out_bias": False,
        "latent": {"q_rank": 8, "kv_rank": 8, "nope_dim": 4, "rope_dim": 4, "value_dim": 4},
    },
    "moe": {
        "experts": 4,
        "every": 1,
        "first_dense": 1,
        "shared_ffn": 24,
        "capacity_factor": None,
        "score": "sigmoid",
        "bias_correction": True,
    },
    "mtp_layers": 2,
}
GPT_OSS = {
    **LLAMA,
    "hidden": 32,
    "attention": {"kv_heads": 2, "sinks": True, "window": 128, "full_every": 2},
    "mlp": {"gated": True, "activation": "clamped_swish", "bias": True},
    "moe": {"experts": 4, "every": 1, "ffn": 24, "router_bias": True, "capacity_factor": None},
}


def test_layers_of_multi_token_prediction_are_read_and_written_under_the_names_of_deepseek(tmp_path: Path) -> None:
    tensors = write_checkpoint(DEEPSEEK, tmp_path / "first")
    names = [name for name in tensors if name.startswith("model.layers.3.")]
    added = {"eh_proj", "enorm", "hnorm", "shared_head.norm"}
    assert added <= {name.removeprefix("model.layers.3.").removesuffix(".weight") for name in names}
    config = json.loads((tmp_path / "first" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_nextn_predict_layers"]) == (2, 2)

    model = language_model(DEEPSEEK)
    weights, stored = find_weights(model, checkpoint_files(tmp_path / "first"))
    reader = WeightReader(stored.files)
    own = {weight.name: reader.read(weight).numpy() for weight in weights}
    theirs = tensors["model.layers.2.eh_proj.weight"]  # maps the embedding, then the hidden state
    assert np.array_equal(own["layers.2.join.weight"], np.hstack([theirs[:, 16:], theirs[:, :16]]))
    save_file({name: np.ascontiguousarray(weight) for name, weight in own.items()}, tmp_path / "own.safetensors")

    saving.save_checkpoint(model, tmp_path / "own.safetensors", tmp_path / "last")
    written = load_file(tmp_path / "last" / "model.safetensors")
    for number in (2, 3):  # as in the checkpoints of DeepSeek
        prefix = f"model.layers.{number}"
        assert np.array_equal(written.pop(f"{prefix}.embed_tokens.weight"), tensors["model.embed_tokens.weight"])
        assert np.array_equal(written.pop(f"{prefix}.shared_head.head.weight"), tensors["lm_head.weight"])
    assert written.keys() == tensors.keys()
    assert all(np.array_equal(written[name], tensor) for name, tensor in tensors.items())
    (tmp_path / "last" / "config.json").unlink()
    find_weights(model, checkpoint_files(tmp_path / "last"))


def torch_tensors(tensors: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(tensor) for name, tensor in tensors.items()}


def read_weight(model: LanguageModel, folder: Path, name: str) -> torch.Tensor:
    weights, stored = find_weights(model, checkpoint_files(folder))
    (weight,) = (each for each in weights if each.name == name)
    return WeightReader(stored.files).read(weight)


@pytest.mark.parametrize("has_config", [True, False])
def test_weights_in_fp8_are_multiplied_by_the_scales_of_their_blocks(has_config: bool, tmp_path: Path) -> None:
    section = {**LLAMA, "hidden": 136, "ffn": 300}
    tensors = torch_tensors(write_checkpoint(section, tmp_path / "weights"))
    name = "model.layers.1.mlp.down_proj.weight"
    scales = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])  # of blocks of 128 rows and columns
    expected = tensors[name].to(torch.float8_e4m3fn).float()
    for block, row in enumerate((slice(0, 128), slice(128, 136))):
        for column in range(3):
            expected[row, 128 * column : 128 * column + 128] *= scales[block, column]
    quantized = {name: tensors[name].to(torch.float8_e4m3fn), f"{name}_scale_inv": scales}
    save_torch({**tensors, **quantized}, tmp_path / "weights" / "model.safetensors")
    if not has_config:
        (tmp_path / "weights" / "config.json").unlink()

    assert torch.equal(read_weight(language_model(section), tmp_path / "weights", "layers.1.ffn_out.weight"), expected)


def test_experts_in_mxfp4_have_the_values_of_transformers(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors = torch_tensors(write_checkpoint(GPT_OSS, tmp_path / "weights"))
    name, chance = "model.layers.2.mlp.experts.gate_up_proj", torch.Generator().manual_seed(0)
    experts, inputs, outputs = tensors.pop(name).shape
    tensors[f"{name}_blocks"] = torch.randint(256, (experts, outputs, inputs // 32, 16), generator=chance).byte()
    tensors[f"{name}_scales"] = torch.randint(120, 135, (experts, outputs, inputs // 32), generator=chance).byte()
    save_torch(tensors, tmp_path / "weights" / "model.safetensors")

    found = read_weight(language_model(GPT_OSS), tmp_path / "weights", "layers.2.experts.3.w_in")
    parts = tensors[f"{name}_blocks"], tensors[f"{name}_scales"]
    expected = convert_moe_packed_tensors(*parts, dtype=torch.float32)[3]
    assert torch.equal(found, torch.cat([expected[:, ::2], expected[:, 1::2]], 1))  # gates, then values
