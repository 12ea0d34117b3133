"""torchtitan's settings: placement of stages, assignment of layers, and refusals."""

from __future__ import annotations

import io
import sys
import tomllib
import zipfile
from dataclasses import asdict, field, make_dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from meshwave.engine.document import load_design
from meshwave.engine.errors import InputError
from meshwave.engine.exports import exports, torch_csv
from meshwave.engine.exports.torchtitan import export_files, placement_name
from meshwave.engine.files import example
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.prediction import predict
from meshwave.engine.trainers.torchtitan import module_names
from tests._strategies import Drawn

LAYERS = 12
MODEL = {"kind": "gpt", "layers": LAYERS, "hidden": 64, "heads": 4, "sequence": 32, "vocab": 256}


def export_and_unpack(drawn: Drawn, **sections: Any) -> dict[str, str]:
    content = exports["torchtitan"].to_bytes(predict(drawn.design(**{"model": MODEL, **sections})))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


BOTH = {
    "parallelism": (
        "pipeline_parallel_degree", "pipeline_parallel_schedule_csv", "pipeline_parallel_schedule",
        "module_fqns_per_model_part", "data_parallel_replicate_degree", "data_parallel_shard_degree",
        "tensor_parallel_degree", "context_parallel_degree", "fsdp_reshard_after_forward",
    ),
    "training": ("steps", "mixed_precision_param", "max_norm", "disable_cuda_graphs"),
}  # fmt: skip
SEQUENCES = {  # torchtitan 0.3.0
    "parallelism": ("pipeline_parallel_microbatch_size", "context_parallel_rotate_method"),
    "training": ("local_batch_size", "global_batch_size", "seq_len"),
}  # fmt: skip
TOKENS = {  # later
    "parallelism": ("num_pp_microbatches",),
    "training": ("num_tokens_per_microbatch_per_dp_rank", "num_tokens_per_train_step", "max_context_length"),
}


def settings_of(part: str, version: dict[str, tuple[str, ...]]) -> Any:
    """Return a part of the configuration with slots, like torchtitan's: fields that it lacks cannot be set."""
    fields = [(name, Any, field(default=None)) for name in (*BOTH[part], *version[part])]
    return make_dataclass(part, fields, slots=True)()


def set_in(part: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(part).items() if value is not None}


@pytest.fixture(params=[TOKENS, SEQUENCES], ids=["later", "0.3.0"])
def torchtitan(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Provide the two modules of torchtitan that a recipe imports, and return the configuration that it changes."""
    model = SimpleNamespace(model=SimpleNamespace(layers=[None] * LAYERS))
    parts = {part: settings_of(part, request.param) for part in BOTH}
    config = SimpleNamespace(**parts, model_spec=model, counts_tokens=request.param is TOKENS)
    registry, checkpoint = "torchtitan.models.llama3.config_registry", "torchtitan.distributed.activation_checkpoint"
    for name in (*_parents(registry), *_parents(checkpoint)):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    setattr(sys.modules[registry], "llama3_debugmodel", lambda: config)  # noqa: B010
    setattr(sys.modules[checkpoint], "FullAC", SimpleNamespace(Config=lambda: "full"))  # noqa: B010
    return config


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def run(recipe: str) -> None:
    space: dict[str, Any] = {"__file__": "/somewhere/meshwave/recipe.py"}
    exec(compile(recipe, "recipe.py", "exec"), space)
    space["recipe"]()


def test_the_zip_contains_the_schedule_and_both_kinds_of_settings() -> None:
    drawn = Drawn({"schedule": "hanayo", "microbatches": 4, "waves": 1}, 2)

    found = export_and_unpack(drawn)

    assert list(found) == ["meshwave/schedule.csv", "meshwave/recipe.py", "meshwave/torchtitan-0.2.toml"]
    assert found["meshwave/schedule.csv"].splitlines() == torch_csv.schedule_rows(lower(drawn.design()))


def test_equal_designs_give_identical_zips() -> None:
    prediction = predict(Drawn({"schedule": "1f1b", "microbatches": 4}, 2).design(model=MODEL))

    assert exports["torchtitan"].to_bytes(prediction) == exports["torchtitan"].to_bytes(prediction)


def test_the_recipe_sets_the_options_that_the_schedule_determines(torchtitan: SimpleNamespace) -> None:
    training = {"micro_batch_size": 3, "steps": 7, "clip_norm": 0.5, "precision": "bf16"}
    drawn = Drawn({"schedule": "hanayo", "microbatches": 4, "waves": 1, "stages": [1, 2, 3, 6]}, 2)

    run(export_and_unpack(drawn, dp=2, training=training)["meshwave/recipe.py"])

    tokens = torchtitan.counts_tokens
    assert set_in(torchtitan.parallelism) == {
        "pipeline_parallel_degree": 2,
        **({"num_pp_microbatches": 4} if tokens else {"pipeline_parallel_microbatch_size": 3}),
        "pipeline_parallel_schedule_csv": "/somewhere/meshwave/schedule.csv",
        "pipeline_parallel_schedule": "ZBVZeroBubble",
        "module_fqns_per_model_part": module_names([1, 2, 3, 6], "lm_head"),
        "data_parallel_replicate_degree": 2,
        "data_parallel_shard_degree": 1,
        "tensor_parallel_degree": 1,
        "context_parallel_degree": 1,
    }
    counted = {"num_tokens_per_microbatch_per_dp_rank": 3 * 32, "max_context_length": 32}
    assert set_in(torchtitan.training) == {
        **(counted if tokens else {"local_batch_size": 12, "seq_len": 32}),
        "steps": 7,
        "mixed_precision_param": "bfloat16",
        "max_norm": 0.5,
        "disable_cuda_graphs": True,
    }
    assert torchtitan.activation_checkpoint is None


def test_the_recipe_refuses_a_model_with_another_number_of_layers(torchtitan: SimpleNamespace) -> None:
    """torchtitan would silently omit layers that no stage names."""
    torchtitan.model_spec.model.layers.append(None)

    with pytest.raises(ValueError, match="the schedule needs 12 layers, but the model has 13"):
        run(export_and_unpack(Drawn({"schedule": "1f1b", "microbatches": 4}, 2))["meshwave/recipe.py"])


@pytest.mark.parametrize(
    ("recompute", "words"),
    [("full", "recompute: full (torchtitan: layers)"), ([1], "recompute: 1 (torchtitan: layers)"), ("layers", "")],
)
def test_torchtitan_recomputes_all_layers_or_none(torchtitan: SimpleNamespace, recompute: Any, words: str) -> None:
    found = export_and_unpack(Drawn({"schedule": "1f1b", "microbatches": 4, "recompute": recompute}, 2))

    run(found["meshwave/recipe.py"])

    assert torchtitan.activation_checkpoint == "full"
    assert words in found["meshwave/recipe.py"]
    assert tomllib.loads(found["meshwave/torchtitan-0.2.toml"])["activation_checkpoint"] == {"mode": "full"}


def test_the_toml_sets_the_same_options_under_the_names_of_its_release() -> None:
    drawn = Drawn({"schedule": "interleaved-1f1b", "microbatches": 4, "chunks": 3}, 2)

    found = tomllib.loads(export_and_unpack(drawn, training={"micro_batch_size": 2})["meshwave/torchtitan-0.2.toml"])

    assert found["training"]["local_batch_size"] == 8
    assert found["parallelism"]["pipeline_parallel_microbatch_size"] == 2
    assert found["parallelism"]["pipeline_parallel_schedule"] == "Interleaved1F1B"
    parts = found["parallelism"]["module_fqns_per_model_part"]
    assert [parts[0][0], parts[-1][-2:]] == ["tok_embeddings", ["norm", "output"]]
    assert [name for part in parts for name in part if name.startswith("layers.")] == [
        f"layers.{n}" for n in range(LAYERS)
    ]


@pytest.mark.parametrize("name", ['"""; import os', "a\\", "\u2028[training] steps = 9", "' + \"", "波"])
def test_a_design_name_cannot_end_a_string_or_comment(torchtitan: SimpleNamespace, name: str) -> None:
    found = export_and_unpack(Drawn({"schedule": "1f1b", "microbatches": 4}, 2), name=name)

    run(found["meshwave/recipe.py"])

    assert torchtitan.training.steps == 20
    assert tomllib.loads(found["meshwave/torchtitan-0.2.toml"])["training"]["steps"] == 20


@pytest.mark.torch
@pytest.mark.parametrize(
    ("pipeline", "ranks", "style"),
    [
        ({"schedule": "gpipe"}, 3, "loop"),
        ({"schedule": "interleaved-1f1b", "chunks": 3}, 2, "loop"),
        ({"schedule": "hanayo", "waves": 1}, 3, "v"),
        ({"schedule": "zb-v"}, 3, "v"),
        ({"schedule": "dualpipe-v"}, 2, "v"),
    ],
)
def test_the_name_places_stages_as_the_design_does(pipeline: dict[str, Any], ranks: int, style: str) -> None:
    """torchtitan uses the V placement for two schedules only, and the loop for all others."""
    from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping
    from torch.distributed.pipelining.schedules import get_schedule_class

    program = lower(Drawn({**pipeline, "microbatches": 6}, ranks).design())

    name = placement_name(program, pipeline["schedule"])

    assert get_schedule_class(name)
    assert style == ("v" if name in ("ZBVZeroBubble", "DualPipeV") else "loop")
    assert list(generate_stage_to_rank_mapping(ranks, program.stages, style).values()) == program.placement[0].tolist()


def test_two_waves_are_refused_with_a_message() -> None:
    with pytest.raises(InputError) as refused:
        export_and_unpack(Drawn({"schedule": "hanayo", "microbatches": 4, "waves": 2}, 2))

    assert str(refused.value) == (
        "torchtitan derives the stage placement from the schedule name, and no schedule has this placement (0, 1, 1, 0, 0, "
        "1, 1, 0); it supports looped placement (1f1b, interleaved-1f1b) and a single V (hanayo with one wave, zb-v, "
        "dualpipe-v). Use one of these, or export torch-csv, which contains the placement"
    )


@pytest.mark.parametrize(
    ("drawn", "words"),
    [
        (Drawn({"schedule": "chimera", "microbatches": 4}, 2), "has 2 replicas of every stage"),
        (
            Drawn({"schedule": "1f1b", "microbatches": 4, "placement": [1, 0]}, 2),
            r"no schedule has this placement \(1, 0\)",
        ),
    ],
)
def test_properties_that_torchtitan_does_not_support_are_refused(drawn: Drawn, words: str) -> None:
    with pytest.raises(InputError, match=words):
        export_and_unpack(drawn)


def test_experts_are_distributed_as_in_the_design() -> None:
    content = exports["torchtitan"].to_bytes(predict(load_design(example("16-gpt2-moe"))))

    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parallelism = tomllib.loads(archive.read("meshwave/torchtitan-0.2.toml").decode())["parallelism"]
    assert (parallelism["expert_parallel_degree"], parallelism["expert_tensor_parallel_degree"]) == (4, 1)


def test_one_mesh_accumulates_gradients_without_a_schedule(torchtitan: SimpleNamespace) -> None:
    found = export_and_unpack(
        Drawn({"schedule": "1f1b", "microbatches": 4}, 1), dp=2, training={"sharding": "parameters"}
    )

    run(found["meshwave/recipe.py"])

    assert list(found) == ["meshwave/recipe.py", "meshwave/torchtitan-0.2.toml"]
    batches = {"num_tokens_per_train_step": 8 * 32, "num_tokens_per_microbatch_per_dp_rank": 32}
    batches = batches if torchtitan.counts_tokens else {"local_batch_size": 1, "global_batch_size": 8}
    assert batches.items() <= set_in(torchtitan.training).items()
    assert "pipeline_parallel_schedule" not in set_in(torchtitan.parallelism)


def test_properties_without_a_setting_are_listed_in_both_files() -> None:
    training = {"optimizer": "sgd", "lr": 0.1, "precision": "fp64", "seed": 7, "data": "a.txt", "eval_every": 10}
    design = Drawn({"schedule": "1f1b", "microbatches": 4}, 2).design(dp=2, model=MODEL, training=training)
    cut = tuple(
        mesh.model_copy(update={"axes": {"dp": 1, "tp": 2}, "devices": mesh.devices[::-1]}) for mesh in design.meshes
    )
    design = design.model_copy(update={"meshes": cut})

    found = export_files(design, lower(design), (6, 6))

    common = [
        "its model: gpt, hidden size 64, 4 heads, MLP width 256, vocabulary size 256",
        "mesh m0: devices 1, 0 (dp 1 x tp 2) (torchtitan: 2 devices from 0 (dp 1 x tp 2))",
        "mesh m1: devices 3, 2 (dp 1 x tp 2) (torchtitan: 2 devices from 2 (dp 1 x tp 2))",
        "training.optimizer: sgd (torchtitan: adamw)",
        "training.precision: fp64 (torchtitan: fp32)",
        "training.sequence_parallel: off (torchtitan: on)",
        "training.data: a.txt (torchtitan: the built-in sample text)",
        "transfer: broadcast (torchtitan sends from each device to its counterpart)",
    ]
    in_toml = [
        "its optimizer: sgd, learning rate 0.1; its seed: 7",
        "its learning-rate schedule: 0 warm-up steps, then constant",
        "its evaluations: 1 batch every 10 steps",
    ]
    for name, start, listed in (("recipe.py", "- ", [*in_toml, *common]), ("torchtitan-0.2.toml", "# - ", common)):
        assert [line.removeprefix(start) for line in found[name].splitlines() if line.startswith(start)] == listed


def test_meshes_of_different_shapes_are_refused() -> None:
    design = Drawn({"schedule": "1f1b", "microbatches": 4}, 2).design(dp=2, model=MODEL)
    turned = design.meshes[1].model_copy(update={"axes": {"dp": 1, "tp": 2}})
    design = design.model_copy(update={"meshes": (design.meshes[0], turned)})

    with pytest.raises(InputError, match=r"m0 dp=2 x tp=1 and m1 dp=1 x tp=2 differ; use the same axes on all meshes"):
        export_files(design, lower(design), (6, 6))


@pytest.mark.parametrize(("sharding", "resharded"), [("gradients", "never"), ("parameters", "always")])
def test_sharded_state_is_sharded_by_torchtitan(sharding: str, resharded: str, torchtitan: SimpleNamespace) -> None:
    drawn = Drawn({"schedule": "1f1b", "microbatches": 4, "stages": [6, 6]}, 2)
    files = export_and_unpack(drawn, dp=2, training={"sharding": sharding})

    run(files["meshwave/recipe.py"])

    found = set_in(torchtitan.parallelism)
    names = ("data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward")
    assert [found[name] for name in names] == [1, 2, resharded]
    assert f'fsdp_reshard_after_forward = "{resharded}"' in files["meshwave/torchtitan-0.2.toml"]
