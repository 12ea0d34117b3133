"""Configuration functions of torchtitan are read as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwave.engine.cli import main as cli
from meshwave.engine.document import load_design
from meshwave.engine.document.reading import read_toml
from meshwave.engine.findings import DesignError
from meshwave.engine.imports import Imported, imports, load_import
from meshwave.engine.trainers.torchtitan import read_settings
from meshwave.engine.trainers.torchtitan_python import read_sections
from tests.engine.trainers.test_torchtitan import LLAMA3_405B

REGISTRY = """
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.trainer import Trainer

from . import model_registry

open("executed", "w")


def llama3_405b() -> Trainer.Config:
    return Trainer.Config(
        hf_assets_path="./assets/hf/Llama-3.1-405B",
        metrics=MetricsProcessor.Config(log_freq=10),
        model_spec=model_registry("405B"),
        model_converters=ModelConvertersContainer.Config(
            converters=[Float8LinearConverter.Config(filter_fqns=["output"])],
        ),
        optimizer=OptimizersContainer.Config(lr=8e-5),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=600),
        training=TrainingConfig(local_batch_size=2, seq_len=8192, steps=3000),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        parallelism=ParallelismConfig(tensor_parallel_degree=8, enable_async_tensor_parallel=True),
        activation_checkpoint=ActivationCheckpointConfig(mode="full"),
        compile=CompileConfig(enable=True),
        validator=Validator.Config(freq=500, steps=1200),
    )


def llama3_8b() -> Trainer.Config:
    spec = model_registry("8B", attn_backend="flex")
    spec.model.layers[0].mask_type = open("executed", "w")
    config = Trainer.Config(
        model_spec=spec,
        training=TrainingConfig(
            max_context_length=4096, num_tokens_per_microbatch_per_dp_rank=8192, steps=len("executed"), max_norm=0.5
        ),
        parallelism=ParallelismConfig(num_pp_microbatches=8),
        activation_checkpoint=SelectiveAC.Config(),
    )
    return config


def llama3_8b_pipeline() -> Trainer.Config:
    \"\"\"Llama 3 8B on four stages.\"\"\"
    config = llama3_8b()
    config.parallelism.pipeline_parallel_degree = 4
    config.training.steps = 20
    config.activation_checkpoint = None
    return config


def endless():
    return endless()
"""


def read(name: str) -> Imported:
    return imports["torchtitan-python"].read(REGISTRY, name)


def test_a_function_has_the_settings_of_the_equal_job_file() -> None:
    sections, notes = read_sections(REGISTRY, "llama3_405b")

    python, toml = (read_settings(each, None, 128) for each in (sections, read_toml(LLAMA3_405B)))
    assert python[:-1] == toml[:-1]
    assert notes == []
    assert [note.code for note in python.notes] == ["arguments_without_effect"]


def test_a_function_changes_the_configuration_of_another_one() -> None:
    design, notes = read("llama3_8b_pipeline")

    assert design.model.layers == 32 and design.model.sequence == 4096
    assert (design.ranks, design.pipeline.microbatches, design.training.micro_batch_size) == (4, 8, 2)
    assert (design.training.steps, design.training.clip_norm, design.pipeline.recompute) == (20, 0.5, "none")
    first = REGISTRY[: REGISTRY.index("spec.model.layers")].count("\n") + 1
    unread = [note.params["lines"] for note in notes if note.code == "unread_lines"]
    assert unread == [[first, first + 4]]  # the line with code, and the value with a call


def test_one_of_several_functions_is_named_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config_registry.py").write_text(REGISTRY)

    assert cli.main(["import", "config_registry.py:llama3_405b", "--out", "design.json"]) == 0
    design = load_design("design.json")
    assert (design.name, design.model.layers) == ("llama3_405b", 126)
    with pytest.raises(DesignError, match="it has llama3_405b, llama3_8b and llama3_8b_pipeline"):
        load_import("config_registry.py")
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def torchtitan(:", "unreadable_python"),
        ("torchtitan = 1", "no_torchtitan_function"),
        ("def f():\n    return Config(training=" + "[" * 500 + "]" * 500 + ")", "unreadable_python"),
        ("def f():\n    return f()", "no_torchtitan_function"),
    ],
    ids=["no Python", "no function", "deep", "endless"],
)
def test_other_files_are_refused(text: str, code: str) -> None:
    with pytest.raises(DesignError) as refused:
        read_sections(text, "f")

    assert [problem.code for problem in refused.value.problems] == [code]
