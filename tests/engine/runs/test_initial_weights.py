"""``meshwave run --init`` and ``meshwave runs weights --hugging-face``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from meshwave.engine.cli import main as cli
from meshwave.engine.document import parse_design
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.findings import DesignError, Refusal
from meshwave.engine.hugging_face import saving
from meshwave.engine.hugging_face.tensor_files import checkpoint_files, find_weights
from meshwave.engine.hugging_face.weights import map_weights, own_weights
from meshwave.engine.hugging_face.writing import write_config

LLAMA = {
    "kind": "transformer",
    "layers": 4,
    "hidden": 16,
    "heads": 4,
    "sequence": 12,
    "vocab": 257,
    "ffn": 24,
    "attention": {"kv_heads": 2, "qkv_bias": False, "out_bias": False},
    "mlp": {"gated": True, "activation": "silu", "bias": False},
    "norm": {"kind": "rmsnorm"},
    "positions": {"kind": "rope"},
}
MIXTRAL = {**LLAMA, "moe": {"experts": 4, "every": 1, "capacity_factor": None}}


def document(model: dict[str, Any], *, pp: int = 1, dp: int = 1, tp: int = 1, ep: int = 1) -> dict[str, Any]:
    link = {"latency_s": 1e-5, "bandwidth": 1e9}
    device = {"peak_flops": 1e10, "memory_bytes": 4e9, "memory_bandwidth": 1e10}
    return {
        "format": "meshwave/1",
        "cluster": {
            "nodes": 1,
            "devices_per_node": pp * dp * tp,
            "device": device,
            "intra_node": link,
            "inter_node": link,
        },
        "model": model,
        "meshes": [
            {
                "name": "AB"[rank],
                "devices": [*range(rank * dp * tp, (rank + 1) * dp * tp)],
                "axes": {"dp": dp, "tp": tp},
            }
            for rank in range(pp)
        ],
        "pipeline": {"schedule": "1f1b", "microbatches": 2},
        "experts": {"schedule": "parm-s2", "ep": ep},
        "training": {
            "steps": 2,
            "lr": 0.01,
            "sharding": "parameters" if dp > 1 else "none",
            "micro_batch_size": 2 // dp,
        },
    }


def language_model(section: dict[str, Any]) -> LanguageModel:
    model = parse_design(document(section)).model
    assert isinstance(model, LanguageModel)
    return model


def write_checkpoint(section: dict[str, Any], folder: Path, files: int = 1) -> dict[str, Any]:
    """Write random weights under the names of Hugging Face, to one file or to several with an index."""
    folder.mkdir()
    model, chance = language_model(section), np.random.default_rng(0)
    config = write_config(model)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {
        source.name: 0.5 * chance.standard_normal(source.shape, np.float32)
        for weight in map_weights(model, config["model_type"])
        for source in weight.sources
    }
    if files == 1:
        save_file(tensors, folder / "model.safetensors")
        return tensors
    places = {name: f"model-{number % files}.safetensors" for number, name in enumerate(tensors)}
    for file in {*places.values()}:
        save_file({name: tensors[name] for name in tensors if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return tensors


@pytest.mark.torch
@pytest.mark.parametrize(
    ("section", "layout"),
    [
        pytest.param(LLAMA, {"dp": 2, "tp": 2}, id="llama"),
        pytest.param(LLAMA, {"pp": 2, "tp": 2, "ep": 2}, id="llama, pipeline", marks=pytest.mark.nightly),
        pytest.param(MIXTRAL, {"pp": 2, "tp": 2, "ep": 2}, id="mixtral", marks=pytest.mark.nightly),
    ],
)
def test_initial_and_final_weights_are_usable_by_other_tools(
    section: dict[str, Any], layout: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On any layout, the first loss is the same, and without training the final weights equal the initial ones."""
    tensors = write_checkpoint(section, tmp_path / "first", files=3)
    config = tmp_path / "first" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 4096}))
    losses = []
    for axes in ({}, layout):
        design = document(section, **axes)
        design["training"] |= {"lr": 1e-30, "weight_decay": 0.0}
        (tmp_path / "design.json").write_text(json.dumps(design))
        arguments = ["--steps", "1", "--checkpoint-every", "1", "--init", str(tmp_path / "first"), "--json"]
        assert cli.main(["run", str(tmp_path / "design.json"), *arguments]) == 0
        found = json.loads(capsys.readouterr().out)
        losses.append(found["metrics"][0]["loss"])
        assert any("the weights start from config.json, model-0.safetensors" in note for note in found["notes"])
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5)
    assert losses[0] > np.log(257) + 0.01  # not a model whose weights were drawn

    assert cli.main(["runs", "weights", "--hugging-face", str(tmp_path / "last")]) == 0
    written = load_file(tmp_path / "last" / "model.safetensors")
    assert written.keys() == tensors.keys()
    assert all(np.array_equal(written[name], tensor) for name, tensor in tensors.items())
    saved = json.loads((tmp_path / "last" / "config.json").read_text())
    assert (saved["model_type"], saved["max_position_embeddings"]) == ("mixtral" if "moe" in section else "llama", 4096)


def refusals(section: dict[str, Any], path: Path) -> list[str]:
    with pytest.raises(DesignError) as refused:
        find_weights(language_model(section), checkpoint_files(path))
    return [problem.message for problem in refused.value.problems]


def test_missing_and_misshapen_tensors_are_refused_by_name(tmp_path: Path) -> None:
    tensors = write_checkpoint(LLAMA, tmp_path / "weights")
    del tensors["model.layers.2.self_attn.k_proj.weight"]
    tensors["lm_head.weight"] = np.zeros((300, 16), np.float32)
    save_file(tensors, tmp_path / "weights" / "model.safetensors")

    assert refusals(LLAMA, tmp_path / "weights") == [
        "tensor model.layers.2.self_attn.k_proj.weight is missing; its shape should be [8, 16]",
        "tensor lm_head.weight has shape [300, 16] instead of [257, 16]",
    ]


def test_quantized_tensors_are_refused(tmp_path: Path) -> None:
    tensors = write_checkpoint(LLAMA, tmp_path / "weights")
    tensors["model.layers.1.mlp.down_proj.weight"] = np.ones((16, 24), np.int8)
    tensors["model.layers.1.mlp.down_proj.weight_scale_inv"] = np.ones((1, 1), np.float32)
    save_file(tensors, tmp_path / "weights" / "model.safetensors")

    assert refusals(LLAMA, tmp_path / "weights") == [
        "tensor model.layers.1.mlp.down_proj.weight has the type I8, which is quantized "
        "(supported: F64, F32, F16, BF16, F8_E4M3 with scales and MXFP4); dequantize the checkpoint"
    ]


def test_weights_of_another_model_are_refused_by_key(tmp_path: Path) -> None:
    write_checkpoint({**LLAMA, "positions": {"kind": "rope", "theta": 5e5}, "ffn": 32}, tmp_path / "weights")

    with pytest.raises(DesignError) as refused:
        find_weights(language_model(LLAMA), checkpoint_files(tmp_path / "weights"))

    assert [problem.where for problem in refused.value.problems] == ["model.ffn", "model.positions.theta"]


def test_a_checkpoint_without_configuration_is_known_by_its_tensors(tmp_path: Path) -> None:
    write_checkpoint(MIXTRAL, tmp_path / "weights")
    (tmp_path / "weights" / "config.json").unlink()

    weights, _ = find_weights(language_model(MIXTRAL), checkpoint_files(tmp_path / "weights" / "model.safetensors"))

    assert any(
        source.name.endswith("block_sparse_moe.experts.3.w2.weight") for each in weights for source in each.sources
    )


def test_surplus_tensors_without_a_configuration_are_refused_by_name(tmp_path: Path) -> None:
    """Biases would change the function of the model; stored constants do not."""
    tensors = write_checkpoint(LLAMA, tmp_path / "weights")
    (tmp_path / "weights" / "config.json").unlink()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(2, np.float32)
    tensors["model.layers.1.self_attn.k_proj.bias"] = np.zeros(8, np.float32)
    save_file(tensors, tmp_path / "weights" / "model.safetensors")

    assert refusals(LLAMA, tmp_path / "weights") == [
        "tensor model.layers.1.self_attn.k_proj.bias with shape [8] is not part of the model; import the config.json of "
        "the checkpoint, or put it beside the tensors"
    ]


@pytest.mark.parametrize(("stored", "saved"), [(4096, 4096), (8, 12), ("long", 12), (None, 12)])
def test_the_longest_sequence_of_the_initial_checkpoint_is_kept(stored: Any, saved: int, tmp_path: Path) -> None:
    model = language_model(LLAMA)
    save_file(
        {name: np.zeros(shape, np.float32) for name, shape in own_weights(model).items()}, tmp_path / "own.safetensors"
    )

    saving.save_checkpoint(model, tmp_path / "own.safetensors", tmp_path / "saved", {"max_position_embeddings": stored})

    assert json.loads((tmp_path / "saved" / "config.json").read_text())["max_position_embeddings"] == saved


def test_a_model_without_hugging_face_names_is_refused_with_the_differences() -> None:
    model = language_model({**LLAMA, "positions": {"kind": "alibi"}, "head_bias": True})

    with pytest.raises(Refusal) as refused:
        write_config(model)

    assert "head_bias" in str(refused.value) and "positions.kind" in str(refused.value)


def test_a_header_without_the_place_of_a_tensor_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}).encode()
    (tmp_path / "damaged.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)

    with pytest.raises(Refusal, match="is damaged"):
        find_weights(language_model(LLAMA), checkpoint_files(tmp_path / "damaged.safetensors"))


@pytest.mark.parametrize(("kind", "difference"), [("bert", "objective"), ("u-transformer", "kind")])
def test_a_masked_model_is_not_saved_as_a_causal_one(kind: str, difference: str) -> None:
    sizes = {"layers": 2, "hidden": 16, "heads": 4, "sequence": 12, "vocab": 257}

    with pytest.raises(Refusal, match=f"the nearest, gpt2, differs in .*{difference}"):
        write_config(language_model({"kind": kind, **sizes}))
    assert write_config(language_model({"kind": "gpt", **sizes}))["model_type"] == "gpt2"


@pytest.mark.parametrize("name", ["nothing", "text.txt", "broken.safetensors", "index.safetensors.index.json"])
def test_files_that_are_no_checkpoint_are_refused(name: str, tmp_path: Path) -> None:
    if name != "nothing":
        (tmp_path / name).write_text("{}")

    with pytest.raises(Refusal):
        find_weights(language_model(LLAMA), checkpoint_files(tmp_path / name))


def test_a_large_model_is_saved_to_several_files_and_never_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "MOST_FILE_BYTES", 4000)
    model, chance = language_model(MIXTRAL), np.random.default_rng(0)
    own = {name: chance.standard_normal(shape, np.float32) for name, shape in own_weights(model).items()}
    save_file(own, tmp_path / "own.safetensors")

    found = saving.save_checkpoint(model, tmp_path / "own.safetensors", tmp_path / "saved")

    assert {*found} == {*(tmp_path / "saved").iterdir()} and len(found) > 10
    weights, stored = find_weights(model, checkpoint_files(tmp_path / "saved"))
    assert {weight.name: weight.shape for weight in weights} == own_weights(model)
    sizes = [sum(4 * np.prod(stored.shapes[name]) for name in load_file(file)) for file in {*stored.files.values()}]
    assert sum(sizes) == sum(tensor.nbytes for tensor in own.values())
    with pytest.raises(Refusal, match="name another folder"):
        saving.save_checkpoint(model, tmp_path / "own.safetensors", tmp_path / "saved")


@pytest.mark.parametrize("options", [["--rehearse"], ["--resume", "x"]])
def test_initial_weights_are_refused_for_a_resumed_run(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "01-first-wave", "--init", "weights", *options]) == 2
    assert "remove --init, or the other option" in capsys.readouterr().err
