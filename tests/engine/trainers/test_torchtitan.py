"""Settings of torchtitan: round trips, published job files, and what is refused or listed."""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

from meshwave.engine.costs.model_flops import parameter_counts
from meshwave.engine.costs.presets import preset
from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.meshes import equal_meshes
from meshwave.engine.document.reading import read_toml
from meshwave.engine.exports import exports
from meshwave.engine.findings import DesignError
from meshwave.engine.imports import load_import
from meshwave.engine.predict.prediction import predict
from meshwave.engine.trainers.jobs import EXPERT_SCHEDULE
from meshwave.engine.trainers.torchtitan import read_settings
from meshwave.engine.trainers.torchtitan_models import FLAVORS, flavor_section

PIPELINES = [
    {"schedule": "1f1b"},
    {"schedule": "gpipe"},
    {"schedule": "interleaved-1f1b", "chunks": 2},
    {"schedule": "looped-bfs", "chunks": 2},
    {"schedule": "zb-v"},
]


def draw_design(seed: int) -> Design:
    """Return a random design that the settings of torchtitan express."""
    chance = random.Random(seed)
    key = chance.choice([("llama3", "8B"), ("qwen3", "30B-A3B")])
    sharding = chance.choice(["none", "gradients", "parameters"])
    dp, cp, tp, pp = chance.choice([2, 4]), chance.choice([1, 2]), chance.choice([1, 2]), chance.choice([1, 2])
    model = flavor_section(*key, 2048)
    pipeline = chance.choice(PIPELINES) if pp > 1 else {"schedule": "1f1b"}
    count = pp * (2 if pipeline["schedule"] not in ("1f1b", "gpipe") else 1)
    stages = [model["layers"] // count] * count
    stages[0] += model["layers"] - sum(stages)
    style = chance.choice(["constant", "linear", "cosine", "sqrt"])
    training: dict[str, Any] = {
        "micro_batch_size": chance.choice([1, 2]),
        "steps": 100,
        "lr": 1e-4,
        "lr_schedule": style,
        "min_lr_factor": 0.0 if style == "constant" else 0.1,
        "warmup_steps": chance.choice([0, 10]),
        "decay_steps": chance.choice([None, 30]) if style != "constant" else None,
        "weight_decay": 0.1,
        "clip_norm": chance.choice([None, 1.0]),
        "precision": chance.choice(["fp32", "bf16"]),
        "linear_precision": chance.choice(["same", "fp8"]),
        "sharding": sharding,
        "gradient_reduction": "step" if pp > 1 and sharding != "none" else "microbatch",
        "sequence_parallel": tp > 1,
        "context_parallel": chance.choice(["ring", "all_gather"]) if cp > 1 else "ring",
        "tensor_parallel_overlap": chance.choice([True, False]),
        "compile": chance.choice([True, False]),
        "seed": chance.choice([0, 5]),
        **chance.choice([{}, {"eval_every": 50, "eval_batches": 4}]),
    }
    document = {
        "format": "meshwave/1",
        "name": "a test",
        "cluster": {**preset("dgx-h100").cluster.model_dump(mode="json"), "nodes": -(-dp * cp * tp * pp // 8)},
        "model": model,
        "meshes": equal_meshes(pp, {"dp": dp, **({"cp": cp} if cp > 1 else {}), "tp": tp}),
        "pipeline": {
            **pipeline,
            "microbatches": 8,
            "stages": stages if pp > 1 else None,
            "recompute": chance.choice(["none", "layers", "operators"]),
        },
        "training": training,
    }
    if model["moe"]:
        ep = chance.choice([1, dp * tp]) if sharding != "none" else 1
        document["experts"] = {"schedule": EXPERT_SCHEDULE, "ep": ep, "esp": tp if ep == 1 else 1, "degree": 1}
    return parse_design(document, draft=True)


def exported_folder(design: Design, folder: Path) -> Path:
    """Write the TOML of the exported zip to a folder, and return its path."""
    with zipfile.ZipFile(io.BytesIO(exports["torchtitan"].to_bytes(predict(design)))) as archive:
        path = folder / "torchtitan-0.2.toml"
        path.write_bytes(archive.read(f"meshwave/{path.name}"))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_settings_are_read_back_as_the_same_design(seed: int, tmp_path: Path) -> None:
    design = draw_design(seed)
    path = exported_folder(design, tmp_path)

    found, _ = load_import(path, into=design)

    assert found.to_json() == design.to_json()
    lines = path.read_text().split("\n\n")[0].splitlines()
    assert [line for line in lines if line.startswith("# - ")] == [
        "# - transfer: broadcast (torchtitan sends from each device to its counterpart)"
    ] * (design.meshes[0].tp > 1 and len(design.meshes) > 1)


LLAMA3_405B = """
[model]
name = "llama3"
flavor = "405B"
converters = ["float8"]
[optimizer]
name = "AdamW"
lr = 8e-5
[lr_scheduler]
warmup_steps = 600
[training]
local_batch_size = 2
seq_len = 8192
max_norm = 1.0
steps = 3000
dataset = "c4"
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
pipeline_parallel_degree = 1
context_parallel_degree = 1
[activation_checkpoint]
mode = "full"
[compile]
enable = true
components = ["model", "loss"]
[metrics]
log_freq = 10
"""


def test_a_published_job_file_has_the_published_model() -> None:
    job = read_settings(read_toml(LLAMA3_405B), None, 128)

    assert (job.degrees.dp, job.degrees.tp, job.training["sharding"]) == (16, 8, "parameters")
    assert (job.training["linear_precision"], job.pipeline["recompute"]) == ("fp8", "layers")
    assert {note.code: dict(note.params) for note in job.notes} == {
        "arguments_without_effect": {"arguments": ["training.dataset", "metrics.log_freq"]},
    }


@pytest.mark.parametrize(
    ("key", "parameters"),
    [
        (("llama3", "8B"), 8_030_261_248),
        (("llama3", "70B"), 70_553_706_496),
        (("llama3", "405B"), 405_853_388_800),
        (("qwen3", "14B"), 14_768_307_200),
        (("qwen3", "32B"), 32_762_123_264),
        (("deepseek_v3", "671B"), 671_026_419_200),
    ],
)
def test_flavours_have_the_published_number_of_parameters(key: tuple[str, str], parameters: int) -> None:
    toml = f'[model]\nname = "{key[0]}"\nflavor = "{key[1]}"\n'

    design = load_job(toml)

    assert parameter_counts(design.model)[0] == parameters


def load_job(toml: str) -> Design:
    from meshwave.engine.imports import imports

    return imports["torchtitan"].read(toml, "job").design


def test_layers_are_evened_out_as_torchtitan_does() -> None:
    toml = '[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\npipeline_parallel_degree = 4\n[training]\nlocal_batch_size = 8'

    assert load_job(toml).pipeline.stages == (8, 9, 8, 7)


@pytest.mark.parametrize(
    ("toml", "code"),
    [
        ("[model", "invalid_toml"),
        ('[model]\nname = "llama9"', "unknown_flavor"),
        ('[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\ntensor_parallel_degree = "8"', "setting_type"),
        (
            '[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\npipeline_parallel_schedule = "X"',
            "unknown_torch_schedule",
        ),
        ('[model]\nname = "llama3"\nflavor = "8B"\n[training]\nglobal_batch_size = 7', "indivisible_global_batch"),
    ],
)
def test_settings_that_a_design_cannot_represent_are_refused(toml: str, code: str) -> None:
    with pytest.raises(DesignError) as refused:
        load_job(toml)

    assert [problem.code for problem in refused.value.problems] == [code]


def test_every_flavour_is_a_complete_section() -> None:
    assert all(flavor_section(*key, 128)["sequence"] == 128 for key in FLAVORS)
