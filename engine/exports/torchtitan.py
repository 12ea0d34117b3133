"""What torchtitan needs to train with a design's schedule: the CSV, and the settings beside it.

A zip of files that belong together, since a setting without the file that it names is of no use:
``schedule.csv``, and the settings once as the Python configuration that torchtitan takes since 0.3.0, once as
the TOML of its releases up to 0.2.2. Both name where stages lie and how layers are cut, because torchtitan
builds its stages before it reads the CSV, and places them by the *name* of a schedule.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from meshwave.engine.document import Design
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.errors import InputError
from meshwave.engine.exports import torch_csv
from meshwave.engine.exports._base import Export, exports
from meshwave.engine.program.program import Program

if TYPE_CHECKING:
    from meshwave.engine.predict.prediction import Prediction

PRECISION = {"fp32": "float32", "bf16": "bfloat16", "fp64": "float32"}  # torchtitan knows no fp64
ANY_TIME = (1980, 1, 1, 0, 0, 0)  # of every file inside, so that one design makes one zip, byte for byte


@exports.register("torchtitan")
class Torchtitan(Export):
    """The schedule and its settings, for torchtitan."""

    title = "torchtitan"
    note = "schedule and settings, in a zip"
    suffix = ".torchtitan.zip"
    mime = "application/zip"

    @staticmethod
    def make(prediction: Prediction) -> bytes:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in files(prediction.design, prediction.program, prediction.costs.layers).items():
                archive.writestr(zipfile.ZipInfo(f"meshwave/{name}", ANY_TIME), text, zipfile.ZIP_DEFLATED)
        return content.getvalue()


def files(design: Design, program: Program, layers: Sequence[int]) -> dict[str, str]:
    """The files by name.

    Args:
        layers: of each stage.

    Raises:
        InputError: torchtitan has no such model, cannot place the stages, or its meshes are not as these; in words.
    """
    if not isinstance(design.model, LanguageModel) or design.model.skips:
        raise InputError(
            "torchtitan has models of equal transformer layers without skip connections alone; set the model's kind to "
            "gpt or bert to export it"
        )
    if design.model.moe is not None and design.model.expert_blocks:
        raise InputError(
            f"the settings for torchtitan have no place for experts, and this model has {design.model.moe.experts} in "
            f"every {torch_csv.ordinal(design.model.moe.every)}block; set model.moe to null to export it, or export "
            "script: it trains them wherever Meshwave is installed"
        )
    lines = torch_csv.rows(program)
    name = placement_name(program)
    dp, tp = torch_csv.one_shape(design, "torchtitan")
    return {
        "schedule.csv": "\n".join(lines) + "\n",
        "recipe.py": "\n".join(_recipe(design, name, layers, dp, tp)) + "\n",
        "torchtitan-0.2.toml": "\n".join(_toml(design, name, layers, dp, tp)) + "\n",
    }


def placement_name(program: Program) -> str:
    """The schedule's name under which torchtitan places stages as this program does.

    With a CSV the name says nothing else. torchtitan knows a loop over the ranks, of any length, and a
    single V of two stages a rank.

    Raises:
        InputError: the stages lie otherwise.
    """
    ranks, places = program.ranks, program.placement[0].tolist()
    if ranks == 1:
        raise InputError("torchtitan has no pipeline on one mesh; draw two or more to export it")
    if places == [stage % ranks for stage in range(len(places))] and len(places) % ranks == 0:
        return "1F1B" if len(places) == ranks else "Interleaved1F1B"
    if places == [*range(ranks), *reversed(range(ranks))]:
        return "ZBVZeroBubble"
    shown = ", ".join(map(str, places[:12])) + (", ..." if len(places) > 12 else "")
    raise InputError(
        "torchtitan places stages by the name of a schedule, and no name places them as here "
        f"(stage by stage on mesh {shown}): it knows a loop over the meshes (1f1b, interleaved-1f1b) and a single V "
        "(hanayo with one wave, zb-v, dualpipe-v). Use one of these, or export torch-csv: torch's own runtime reads the "
        "placement off the file"
    )


def module_names(layers: Sequence[int], head: str) -> list[list[str]]:
    """Per stage the modules of torchtitan's language models: the embedding, its layers, norm and ``head``."""
    ends = [0, *accumulate(layers)]
    parts = [[f"layers.{layer}" for layer in range(start, end)] for start, end in pairwise(ends)]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", head]
    return parts


def _recipe(design: Design, name: str, layers: Sequence[int], dp: int, tp: int) -> Iterator[str]:
    """A configuration function, as torchtitan takes its settings since 0.3.0.

    0.3.0 counts sequences and later versions tokens, under other names. The fields of its settings are fixed: to
    set one that a version does not have is an error there, so that the recipe asks which it has.
    """
    training, sequence = design.training, design.model.sequence
    tokens, recomputes = training.micro_batch_size * sequence, _recomputes(design, len(layers))
    yield f'"""Settings for torchtitan of the design {_in_a_docstring(design.name)}, written by Meshwave.'
    yield ""
    yield "Start it from torchtitan's folder, with the folder that holds meshwave/ on the path:"
    yield ""
    yield f"    PYTHONPATH=FOLDER NGPU={len(design.meshes) * dp * tp} MODULE=meshwave.recipe CONFIG=recipe ./run_train.sh"
    yield ""
    yield "Take another model than the one below if you like: its layers must be as many as the schedule cuts."
    yield ""
    yield "What the design has besides, and the job has to be told itself:"
    yield from (f"- {each}" for each in _besides(design, tp))
    yield '"""'
    yield ""
    yield "from pathlib import Path"
    yield ""
    if recomputes:
        yield "from torchtitan.distributed.activation_checkpoint import FullAC"
    yield "from torchtitan.models.llama3.config_registry import llama3_debugmodel as model"
    yield ""
    yield f"LAYERS = {sum(layers)}"
    yield "MODULES = ["
    yield from (f"    {json.dumps(part)}," for part in module_names(layers, "lm_head"))
    yield "]"
    yield ""
    yield ""
    yield "def recipe():"
    yield "    config = model()"
    yield "    found = len(config.model_spec.model.layers)"
    yield "    if found != LAYERS:"
    yield '        raise ValueError(f"the schedule cuts {LAYERS} layers and the model has {found}: take another model")'
    yield "    parallelism, training = config.parallelism, config.training"
    yield f"    parallelism.pipeline_parallel_degree = {len(design.meshes)}"
    yield '    parallelism.pipeline_parallel_schedule_csv = str(Path(__file__).with_name("schedule.csv"))'
    yield f'    parallelism.pipeline_parallel_schedule = "{name}"  # says only which mesh holds which stage'
    yield "    parallelism.module_fqns_per_model_part = MODULES"
    yield f"    parallelism.data_parallel_replicate_degree = {dp}"
    yield "    parallelism.data_parallel_shard_degree = 1"
    yield f"    parallelism.tensor_parallel_degree = {tp}"
    yield '    if hasattr(parallelism, "num_pp_microbatches"):  # later than 0.3.0'
    yield f"        parallelism.num_pp_microbatches = {design.pipe.microbatches}"
    yield f"        training.num_tokens_per_microbatch_per_dp_rank = {tokens}"
    yield f"        training.max_context_length = {sequence}"
    yield "    else:"
    yield f"        parallelism.pipeline_parallel_microbatch_size = {training.micro_batch_size}"
    yield f"        training.local_batch_size = {design.pipe.microbatches * training.micro_batch_size}"
    yield f"        training.seq_len = {sequence}"
    yield f"    training.steps = {training.steps}"
    yield f'    training.mixed_precision_param = "{PRECISION[training.precision]}"'
    if training.clip_norm is not None:
        yield f"    training.max_norm = {training.clip_norm!r}"
    yield f"    config.activation_checkpoint = {'FullAC.Config()' if recomputes else 'None'}{recomputes}"
    yield "    training.disable_cuda_graphs = True  # they do not go with a pipeline"
    yield "    return config"


def _toml(design: Design, name: str, layers: Sequence[int], dp: int, tp: int) -> Iterator[str]:
    """The sections of a job's file that a schedule decides, for torchtitan 0.2.2 and before."""
    training, recomputes = design.training, _recomputes(design, len(layers))
    yield f"# Settings for torchtitan up to 0.2.2 of the design {_in_a_comment(design.name)}, written by Meshwave."
    yield "# Put them into the file of a job in place of its own; the path of the CSV counts from where it is started."
    yield f"# The model of the job must have {sum(layers)} layers. What the design has besides, and the job has to be told:"
    yield from (f"# - {each}" for each in _besides(design, tp))
    yield ""
    yield "[training]"
    yield f"local_batch_size = {design.pipe.microbatches * training.micro_batch_size}"
    yield f"seq_len = {design.model.sequence}"
    yield f"steps = {training.steps}"
    yield f'mixed_precision_param = "{PRECISION[training.precision]}"'
    if training.clip_norm is not None:
        yield f"max_norm = {training.clip_norm!r}"
    yield ""
    yield "[parallelism]"
    yield f"pipeline_parallel_degree = {len(design.meshes)}"
    yield f"pipeline_parallel_microbatch_size = {training.micro_batch_size}"
    yield 'pipeline_parallel_schedule_csv = "meshwave/schedule.csv"'
    yield f'pipeline_parallel_schedule = "{name}"  # says only which mesh holds which stage'
    yield f"data_parallel_replicate_degree = {dp}"
    yield "data_parallel_shard_degree = 1"
    yield f"tensor_parallel_degree = {tp}"
    yield "module_fqns_per_model_part = ["
    yield from (f"    {json.dumps(part)}," for part in module_names(layers, "output"))
    yield "]"
    yield ""
    yield "[activation_checkpoint]"
    yield f'mode = "{"full" if recomputes else "none"}"{recomputes}'


def _besides(design: Design, tp: int) -> Iterator[str]:
    """What a design means that these settings do not say."""
    model, training = design.model, design.training
    assert isinstance(model, LanguageModel)
    yield (
        f"its model: {model.kind}, hidden {model.hidden}, {model.heads} heads, {model.ffn_hidden} inside the MLP, "
        f"{model.vocab} tokens known"
    )
    decay = f", weight decay {training.weight_decay:g}" if training.optimizer == "adamw" else ""
    yield f"its optimizer: {training.optimizer}, learning rate {training.lr:g}{decay}; its seed: {training.seed}"
    if training.precision == "fp64":
        yield "its precision: fp64, for which float32 is set here, since torchtitan knows no other that is as fine"
    if tp > 1:
        yield f"its transfers: {design.transfer.strategy}; torchtitan sends from each device to its like"


def _recomputes(design: Design, stages: int) -> str:
    """A comment on the stages that run their forward again; empty where there is none."""
    chosen = [stage for stage in range(stages) if design.pipeline.recomputes(stage)]
    if not chosen:
        return ""
    which = "all of them" if len(chosen) == stages else ", ".join(map(str, chosen))
    return f"  # every stage or none; the design recomputes {which}"


def _in_a_docstring(name: str) -> str:
    """A design's name as text that cannot end the docstring it stands in."""
    return json.dumps(name).replace('\\"', "'")


def _in_a_comment(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
