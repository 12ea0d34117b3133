"""torchtitan export: the schedule CSV of a design, and the matching training settings.

The export is a zip file, because the settings name the CSV. It contains ``schedule.csv``, the Python configuration of
torchtitan since 0.3.0, and the TOML file of its releases up to 0.2.2. Both settings files define the placement of stages and their
layers, because torchtitan builds its stages before it reads the CSV, and places them by the *name* of a schedule.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from meshwave.engine.document import Design
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.document.reading import read_toml
from meshwave.engine.exports import torch_csv
from meshwave.engine.exports._base import Export, exports
from meshwave.engine.findings import Refusal
from meshwave.engine.program.program import Program
from meshwave.engine.trainers.jobs import find_omissions
from meshwave.engine.trainers.torchtitan import (
    PRECISION,
    RECOMPUTE,
    SCHEDULES,
    UNLIMITED_NORM,
    module_names,
    parallelism_settings,
    read_settings,
    write_settings,
)
from meshwave.engine.trainers.torchtitan_models import CONFIGS, find_flavor

if TYPE_CHECKING:
    from meshwave.engine.predict.prediction import Prediction

ANY_TIME = (1980, 1, 1, 0, 0, 0)  # date of every file in the zip, so that zips of equal designs are identical
DEBUG_MODEL = ("llama3", "llama3_debugmodel")
"""Module and configuration function of the model that stands for one that torchtitan does not name."""
OTHER_VERSIONS = ("context_parallel_rotate_method", "expert_tensor_parallel_degree", "enable_async_tensor_parallel")
"""Settings that only some versions have since 0.3.0."""


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
            for name, text in export_files(prediction.design, prediction.program, prediction.costs.layers).items():
                archive.writestr(zipfile.ZipInfo(f"meshwave/{name}", ANY_TIME), text, zipfile.ZIP_DEFLATED)
        return content.getvalue()


def export_files(design: Design, program: Program, layers: Sequence[int]) -> dict[str, str]:
    """Return the content of the exported files by name; a design with one mesh has no schedule.

    Args:
        design: the design.
        program: its program.
        layers: number of layers of each stage.

    Raises:
        InputError: torchtitan does not support the model or the stage placement, or the meshes are not equal.
    """
    if not isinstance(design.model, LanguageModel) or design.model.skips:
        raise Refusal("torchtitan_model")
    torch_csv.check_equal_meshes(design, "torchtitan")
    name = placement_name(program, design.pipeline.schedule) if program.ranks > 1 else None
    toml = list(_toml_lines(write_settings(design, name, layers)))
    missing = list(_missing_settings(design, layers, "\n".join(toml)))
    found = {"schedule.csv": "\n".join(torch_csv.schedule_rows(program)) + "\n"} if name else {}
    found["recipe.py"] = "\n".join(_recipe_lines(design, name, layers, missing)) + "\n"
    found["torchtitan-0.2.toml"] = "\n".join([*_toml_comments(design, missing), *toml]) + "\n"
    return found


def placement_name(program: Program, schedule: str) -> str:
    """Return the name of the torchtitan schedule with the same stage placement, if possible the same schedule.

    With a CSV the name determines only the placement. torchtitan supports a loop over the ranks, of any length, and a
    single V of two stages per rank.

    Raises:
        InputError: torchtitan does not support the placement.
    """
    ranks, places = program.ranks, program.placement[0].tolist()
    own = {ours: theirs for theirs, ours in SCHEDULES.items()}.get(schedule)
    if places == [stage % ranks for stage in range(len(places))] and len(places) % ranks == 0:
        return own or ("1F1B" if len(places) == ranks else "Interleaved1F1B")
    if places == [*range(ranks), *reversed(range(ranks))]:
        return "ZBVZeroBubble"
    shown = ", ".join(map(str, places[:12])) + (", ..." if len(places) > 12 else "")
    raise Refusal("torchtitan_placement", {"places": shown})


def _recipe_lines(design: Design, name: str | None, layers: Sequence[int], missing: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a configuration function, the form of settings since torchtitan 0.3.0.

    0.3.0 counts sequences, later versions tokens under other names. Setting a field that a version does not have is an
    error, so the function checks which fields exist.
    """
    package, function = DEBUG_MODEL
    assert isinstance(design.model, LanguageModel)
    if (flavor := find_flavor(design.model)) in CONFIGS:
        package, function = flavor[0], CONFIGS[flavor]
    policy = _recompute_policy(design)
    yield f'"""Settings for torchtitan of the design {_escape_docstring(design.name)}, written by Meshwave.'
    yield ""
    yield "Start it from torchtitan's folder, with the folder that holds meshwave/ on the path:"
    yield ""
    yield f"    PYTHONPATH=FOLDER NGPU={len(design.process_devices)} MODULE=meshwave.recipe CONFIG=recipe ./run_train.sh"
    yield ""
    yield "You can replace the model below; it must have the number of layers that the schedule distributes."
    yield ""
    yield "Properties of the design that these settings do not contain and the job must set:"
    yield from (f"- {_escape_docstring(each)[1:-1]}" for each in [*_recipe_omissions(design), *missing])
    yield '"""'
    yield ""
    yield "from pathlib import Path"
    yield ""
    if policy:
        yield f"from torchtitan.distributed.activation_checkpoint import {policy}"
    yield f"from torchtitan.models.{package}.config_registry import {function} as model"
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
    yield from _parallelism_lines(design, name)
    yield from _batch_lines(design, name)
    yield f"    training.steps = {design.training.steps}"
    yield f'    training.mixed_precision_param = "{PRECISION[design.training.precision]}"'
    if design.training.precision == "pure_bf16":
        yield '    training.dtype = "bfloat16"'
    yield f"    training.max_norm = {design.training.clip_norm or UNLIMITED_NORM!r}"
    yield f"    config.activation_checkpoint = {f'{policy}.Config()' if policy else 'None'}"
    if name is not None:
        yield "    training.disable_cuda_graphs = True  # incompatible with a pipeline"
    yield "    return config"


def _parallelism_lines(design: Design, name: str | None) -> Iterator[str]:
    for key, value in parallelism_settings(design, name).items():
        if key == "pipeline_parallel_microbatch_size":
            continue
        indent = "    "
        if key in OTHER_VERSIONS:
            yield f'    if hasattr(parallelism, "{key}"):'
            indent += "    "
        comment = "  # determines only the mesh of each stage" if key == "pipeline_parallel_schedule" else ""
        yield f"{indent}parallelism.{key} = {_python_value(value)}{comment}"
    if name is not None:
        yield '    parallelism.pipeline_parallel_schedule_csv = str(Path(__file__).with_name("schedule.csv"))'
        yield "    parallelism.module_fqns_per_model_part = MODULES"


def _batch_lines(design: Design, name: str | None) -> Iterator[str]:
    """Yield the sizes of batches: microbatches of a pipeline, or accumulated gradients without one."""
    size, sequence, microbatches = design.training.micro_batch_size, design.model.sequence, design.pipe.microbatches
    yield '    if hasattr(parallelism, "num_pp_microbatches"):  # later than 0.3.0'
    if name is not None:
        yield f"        parallelism.num_pp_microbatches = {microbatches}"
    else:
        yield f"        training.num_tokens_per_train_step = {design.sequences_per_step * sequence}"
    yield f"        training.num_tokens_per_microbatch_per_dp_rank = {size * sequence}"
    yield f"        training.max_context_length = {sequence}"
    yield "    else:"
    if name is not None:
        yield f"        parallelism.pipeline_parallel_microbatch_size = {size}"
        yield f"        training.local_batch_size = {microbatches * size}"
    else:
        yield f"        training.local_batch_size = {size}"
        yield f"        training.global_batch_size = {design.sequences_per_step}"
    yield f"        training.seq_len = {sequence}"


def _python_value(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _toml_comments(design: Design, missing: Sequence[str]) -> Iterator[str]:
    yield f"# Settings for torchtitan up to 0.2.2 of the design {_escape_comment(design.name)}, written by Meshwave."
    yield "# Replace these sections in a job file; the path of the CSV is relative to the working directory."
    yield f"# The model of the job must have {design.model.layers} layers. The job must also set:"
    yield from (f"# - {_escape_comment(each)[1:-1]}" for each in missing)


def _toml_lines(settings: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the sections of a job file, for torchtitan up to 0.2.2."""
    for section, values in settings.items():
        yield ""
        yield f"[{section}]"
        for key, value in values.items():
            if isinstance(value, list) and value and isinstance(value[0], list):
                yield f"{key} = ["
                yield from (f"    {json.dumps(part)}," for part in value)
                yield "]"
            else:
                yield f"{key} = {json.dumps(value)}"


# ---- properties without settings ----


def _missing_settings(design: Design, layers: Sequence[int], toml: str) -> Iterator[str]:
    """Yield properties of a design that the settings do not contain; the CSV contains the order of its schedule."""
    model = design.model
    assert isinstance(model, LanguageModel)
    if find_flavor(model) is None:
        kind = model.kind if model.causal else f"{model.kind} with a masked objective"
        yield (
            f"its model: {kind}, hidden size {model.hidden}, {model.heads} heads, MLP width {model.ffn_hidden}, "
            f"vocabulary size {model.vocab}"
        )
    job = read_settings(read_toml(toml), model, len(design.process_devices))
    job = job._replace(pipeline={**_order_keys(design), **{key: job.pipeline[key] for key in ("stages", "recompute")}})
    hidden = ("order_in_csv", "assumed_model")
    found = find_omissions(design, layers, job, "torchtitan")
    yield from (problem.message for problem in found if problem.code not in hidden)


def _order_keys(design: Design) -> dict[str, Any]:
    """Return the keys of the order, which the CSV contains."""
    section = design.pipeline.model_dump(mode="json")
    return {key: value for key, value in section.items() if key not in ("stages", "recompute", "placement")}


def _recipe_omissions(design: Design) -> Iterator[str]:
    """Yield properties that only the TOML contains."""
    training = design.training
    decay = f", weight decay {training.weight_decay:g}" if training.optimizer == "adamw" else ""
    yield f"its optimizer: {training.optimizer}, learning rate {training.lr:g}{decay}; its seed: {training.seed}"
    least = "" if training.lr_schedule == "constant" else f", at least {training.min_lr_factor:g} of the peak rate"
    last = "" if training.decay_steps is None else f" in the last {training.decay_steps} steps"
    last = "" if training.lr_schedule == "constant" else last
    yield f"its learning-rate schedule: {training.warmup_steps} warm-up steps, then {training.lr_schedule}{last}{least}"
    if training.compile:
        yield "its compiled blocks"
    if training.linear_precision == "fp8":
        yield "its linear layers in fp8"
    if training.eval_every is not None:
        batches = "1 batch" if training.eval_batches == 1 else f"{training.eval_batches} batches"
        yield f"its evaluations: {batches} every {training.eval_every} steps"


def _recompute_policy(design: Design) -> str:
    """Return the class of torchtitan's activation checkpointing; empty for none."""
    recompute = design.pipeline.recompute
    kind = "full" if isinstance(recompute, tuple) else RECOMPUTE.get(recompute, "none")
    return {"full": "FullAC", "selective": "SelectiveAC"}.get(kind, "")


def _escape_docstring(text: str) -> str:
    """Return a text in quotes that cannot end a docstring."""
    return json.dumps(text).replace('\\"', "'")


def _escape_comment(text: str) -> str:
    """Return a text in quotes that stays on one line."""
    return json.dumps(text, ensure_ascii=not text.isprintable())
