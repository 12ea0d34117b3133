"""torchtitan export: the schedule CSV of a design, and the matching training settings.

They are zipped because the settings name the CSV: ``schedule.csv``, and the settings both as the Python configuration
of torchtitan since 0.3.0 and as the TOML of its releases up to 0.2.2. Both define the placement of stages and their
layers, because torchtitan builds its stages before it reads the CSV, and places them by the *name* of a schedule.
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
from meshwave.engine.exports import torch_csv
from meshwave.engine.exports._base import Export, exports
from meshwave.engine.findings import Refusal
from meshwave.engine.program.program import Program

if TYPE_CHECKING:
    from meshwave.engine.predict.prediction import Prediction

PRECISION = {"fp32": "float32", "bf16": "bfloat16", "fp64": "float32"}  # torchtitan does not support fp64
ANY_TIME = (1980, 1, 1, 0, 0, 0)  # date of every file in the zip, so that zips of equal designs are identical


@exports.register("torchtitan")
class Torchtitan(Export):
    """Schedule and settings for torchtitan."""

    title = "torchtitan"
    note = "schedule and settings, in a zip"
    suffix = ".torchtitan.zip"
    mime = "application/zip"

    @staticmethod
    def to_bytes(prediction: Prediction) -> bytes:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in files(prediction.design, prediction.program, prediction.costs.layers).items():
                archive.writestr(zipfile.ZipInfo(f"meshwave/{name}", ANY_TIME), text, zipfile.ZIP_DEFLATED)
        return content.getvalue()


def files(design: Design, program: Program, layers: Sequence[int]) -> dict[str, str]:
    """Return the content of the exported files by name.

    Args:
        design: the design.
        program: its program.
        layers: number of layers of each stage.

    Raises:
        InputError: torchtitan does not support the model or the stage placement, or the meshes are not equal.
    """
    if not isinstance(design.model, LanguageModel) or design.model.skips:
        raise Refusal("torchtitan_model")
    if design.model.moe is not None and design.model.expert_blocks:
        moe = design.model.moe
        raise Refusal("torchtitan_experts", {"experts": moe.experts, "every": torch_csv.ordinal(moe.every)})
    lines = torch_csv.schedule_rows(program)
    name = placement_name(program)
    dp, tp = torch_csv.common_mesh_shape(design, "torchtitan")
    return {
        "schedule.csv": "\n".join(lines) + "\n",
        "recipe.py": "\n".join(_recipe_lines(design, name, layers, dp, tp)) + "\n",
        "torchtitan-0.2.toml": "\n".join(_toml_lines(design, name, layers, dp, tp)) + "\n",
    }


def placement_name(program: Program) -> str:
    """Return the name of the torchtitan schedule with the same stage placement.

    With a CSV the name determines only the placement. torchtitan supports a loop over the ranks, of any length, and a
    single V of two stages per rank.

    Raises:
        InputError: torchtitan does not support the placement.
    """
    ranks, places = program.ranks, program.placement[0].tolist()
    if ranks == 1:
        raise Refusal("torchtitan_single_mesh")
    if places == [stage % ranks for stage in range(len(places))] and len(places) % ranks == 0:
        return "1F1B" if len(places) == ranks else "Interleaved1F1B"
    if places == [*range(ranks), *reversed(range(ranks))]:
        return "ZBVZeroBubble"
    shown = ", ".join(map(str, places[:12])) + (", ..." if len(places) > 12 else "")
    raise Refusal("torchtitan_placement", {"places": shown})


def module_names(layers: Sequence[int], head: str) -> list[list[str]]:
    """Return the modules of torchtitan's language models on each stage: embedding, layers, norm and ``head``."""
    ends = [0, *accumulate(layers)]
    parts = [[f"layers.{layer}" for layer in range(start, end)] for start, end in pairwise(ends)]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", head]
    return parts


def _recipe_lines(design: Design, name: str, layers: Sequence[int], dp: int, tp: int) -> Iterator[str]:
    """Yield the lines of a configuration function, the form of settings since torchtitan 0.3.0.

    0.3.0 counts sequences, later versions tokens under other names. Setting a field that a version does not have is an
    error, so the function checks which fields exist.
    """
    training, sequence = design.training, design.model.sequence
    tokens, recomputes = training.micro_batch_size * sequence, _recompute_comment(design, len(layers))
    yield f'"""Settings for torchtitan of the design {_escape_docstring(design.name)}, written by Meshwave.'
    yield ""
    yield "Start it from torchtitan's folder, with the folder that holds meshwave/ on the path:"
    yield ""
    yield f"    PYTHONPATH=FOLDER NGPU={len(design.meshes) * dp * tp} MODULE=meshwave.recipe CONFIG=recipe ./run_train.sh"
    yield ""
    yield "You can replace the model below; it must have the number of layers that the schedule distributes."
    yield ""
    yield "Properties of the design that these settings do not contain and the job must set:"
    yield from (f"- {each}" for each in _missing_settings(design, tp))
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
    yield '        raise ValueError(f"the schedule needs {LAYERS} layers, but the model has {found}; use another model")'
    yield "    parallelism, training = config.parallelism, config.training"
    yield f"    parallelism.pipeline_parallel_degree = {len(design.meshes)}"
    yield '    parallelism.pipeline_parallel_schedule_csv = str(Path(__file__).with_name("schedule.csv"))'
    yield f'    parallelism.pipeline_parallel_schedule = "{name}"  # determines only the mesh of each stage'
    yield "    parallelism.module_fqns_per_model_part = MODULES"
    yield from (f"    parallelism.{name} = {json.dumps(value)}" for name, value in _data_parallel_settings(design, dp))
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
    yield "    training.disable_cuda_graphs = True  # incompatible with a pipeline"
    yield "    return config"


def _toml_lines(design: Design, name: str, layers: Sequence[int], dp: int, tp: int) -> Iterator[str]:
    """Yield the sections of a job file that depend on the schedule, for torchtitan up to 0.2.2."""
    training, recomputes = design.training, _recompute_comment(design, len(layers))
    yield f"# Settings for torchtitan up to 0.2.2 of the design {_escape_comment(design.name)}, written by Meshwave."
    yield "# Replace these sections in a job file; the path of the CSV is relative to the working directory."
    yield f"# The model of the job must have {sum(layers)} layers. The job must also set:"
    yield from (f"# - {each}" for each in _missing_settings(design, tp))
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
    yield f'pipeline_parallel_schedule = "{name}"  # determines only the mesh of each stage'
    yield from (f"{name} = {json.dumps(value)}" for name, value in _data_parallel_settings(design, dp))
    yield f"tensor_parallel_degree = {tp}"
    yield "module_fqns_per_model_part = ["
    yield from (f"    {json.dumps(part)}," for part in module_names(layers, "output"))
    yield "]"
    yield ""
    yield "[activation_checkpoint]"
    yield f'mode = "{"full" if recomputes else "none"}"{recomputes}'


def _data_parallel_settings(design: Design, dp: int) -> Iterator[tuple[str, int | str]]:
    """Yield the settings of data parallelism; FSDP shards gradients, and parameters if it frees them."""
    sharding = design.training.sharding
    yield "data_parallel_replicate_degree", 1 if design.training.shards_gradients else dp
    yield "data_parallel_shard_degree", dp if design.training.shards_gradients else 1
    if design.training.shards_gradients:
        yield "fsdp_reshard_after_forward", "always" if sharding == "parameters" else "never"


def _missing_settings(design: Design, tp: int) -> Iterator[str]:
    """Yield properties of a design that these settings do not contain."""
    model, training = design.model, design.training
    assert isinstance(model, LanguageModel)
    yield (
        f"its model: {model.kind}, hidden size {model.hidden}, {model.heads} heads, MLP width {model.ffn_hidden}, "
        f"vocabulary size {model.vocab}"
    )
    decay = f", weight decay {training.weight_decay:g}" if training.optimizer == "adamw" else ""
    yield f"its optimizer: {training.optimizer}, learning rate {training.lr:g}{decay}; its seed: {training.seed}"
    least = "" if training.lr_schedule == "constant" else f", at least {training.min_lr_factor:g} of the peak rate"
    yield f"its learning-rate schedule: {training.warmup_steps} warm-up steps, then {training.lr_schedule}{least}"
    yield from _missing_data(design)
    if training.precision == "fp64":
        yield "its precision: fp64; these settings use float32, the highest precision of torchtitan"
    if training.sharding == "optimizer":
        yield "its sharded optimizer states, which torchtitan supports only with sharded gradients or parameters"
    if tp > 1:
        yield f"its transfers: {design.transfer.strategy}; torchtitan sends from each device to its counterpart"


def _missing_data(design: Design) -> Iterator[str]:
    """Yield the data, evaluations and device placement of a design, which these settings do not contain."""
    training = design.training
    if training.data is not None:
        names = filter(None, (training.data, training.tokenizer))
        yield f"its data: {', '.join(map(_escape_docstring, names))}"
    if training.eval_every is not None:
        yield f"its evaluations: every {training.eval_every} steps, on {training.eval_share:.0%} of the data"
    if list(design.process_devices) != sorted(design.process_devices):
        yield "its placement on devices; torchtitan numbers processes by pipeline rank, then dp, then tp"


def _recompute_comment(design: Design, stages: int) -> str:
    """Return a comment that names the recomputed stages; empty if there are none."""
    chosen = [stage for stage in range(stages) if design.pipeline.recomputes(stage)]
    if not chosen:
        return ""
    which = "all of them" if len(chosen) == stages else ", ".join(map(str, chosen))
    return f"  # every stage or none; the design recomputes {which}"


def _escape_docstring(name: str) -> str:
    """Return a name as text that cannot end a docstring."""
    return json.dumps(name).replace('\\"', "'")


def _escape_comment(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
