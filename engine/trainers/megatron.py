"""Conversion of designs to arguments of Megatron-LM's ``pretrain_gpt.py``, and back."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from meshwave.engine import messages
from meshwave.engine.costs.flops import expert_parameters, model_parameters
from meshwave.engine.document.design import Design
from meshwave.engine.document.model import LanguageModel, model_families
from meshwave.engine.document.training import MAX_BUCKETS, MAX_STEPS, Training
from meshwave.engine.errors import shorten
from meshwave.engine.findings import DesignError
from meshwave.engine.trainers.argument_reader import ArgumentReader
from meshwave.engine.trainers.jobs import NO_EFFECT_CODE, Degrees, Job
from meshwave.engine.trainers.launch_script import Arguments, has_conditions, read_arguments
from meshwave.engine.trainers.megatron_arguments import (
    CONTEXT_EXCHANGES,
    FINAL_DECAYS,
    FLAGS,
    LR_STYLES,
    OPTIMIZERS,
    SINGLE_VALUES,
    STABLE_THEN_DECAY,
    TRAINING,
    TRAINING_FLAGS,
    has_no_effect,
)
from meshwave.engine.trainers.megatron_models import (
    read_flags,
    read_model,
    read_values,
    table_arguments,
    write_flags,
    write_model,
)
from meshwave.engine.trainers.megatron_pipelines import (
    degree_arguments,
    read_degrees,
    read_pipeline,
    recompute_arguments,
    stage_arguments,
)
from meshwave.engine.trainers.models import Json

SHARDINGS = {"no_shard": "none", "optim": "optimizer", "optim_grads": "gradients", "optim_grads_params": "parameters"}
ATTENTION_BACKENDS = {"flash_2": "flash", "flash_3": "flash", "cudnn": "fused", "unfused": "unfused"}
"""Value of ``--attention-backend`` for each attention kernel but the default one."""
ATTENTION_KERNELS = {"flash": "flash_2", "fused": "cudnn", "unfused": "unfused", "local": "unfused"}
TOKENS = ".bin"
BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_COPY = 40_000_000, 1_000_000
"""Smallest default of ``--ddp-bucket-size``, and the default for each data-parallel copy."""


def read_job(text: str, vocab: int | None = None, devices: int | None = None) -> Job:
    """Read the arguments in a launch script, or in a list with one argument per line.

    Args:
        text: the script.
        vocab: the vocabulary size if the arguments do not state it; None for that of Megatron-LM's default tokenizer.
        devices: the number of devices if the launch command does not state it; None for as few as possible.

    Raises:
        DesignError: the arguments cannot be represented in a design; the error lists all reasons.
    """
    reader = ArgumentReader(read_arguments(text, FLAGS, SINGLE_VALUES))
    model = read_model(reader, vocab)
    degrees = read_degrees(reader, devices)
    mtp_layers = model["mtp_layers"]
    pipeline = read_pipeline(reader, model["layers"] - mtp_layers, mtp_layers, degrees)
    training = _read_training(reader, degrees)
    buckets, bucket_size = reader.integer("--ddp-num-buckets"), reader.integer("--ddp-bucket-size")
    overlaps = reader.has_argument("--overlap-grad-reduce")
    reduces_buckets = overlaps and degrees.dp * degrees.cp > 1 and training["sharding"] in ("none", "optimizer")
    if has_conditions(text):
        reader.add_note("all_branches")
    _note_unused(reader)
    if reader.problems:
        raise DesignError(reader.problems)
    training["gradient_buckets"] = _bucket_count(model, degrees, buckets, bucket_size) if reduces_buckets else 1
    return Job(model, degrees, pipeline, training, reader.notes)


def write_arguments(design: Design, layers: Sequence[int]) -> Arguments:
    """Return the arguments of a design with equal meshes.

    Args:
        design: a design whose model is a causal language model.
        layers: number of layers of each stage.
    """
    assert isinstance(design.model, LanguageModel)
    mesh, training = design.meshes[0], design.training
    found = degree_arguments(design)
    found |= dict(stage_arguments(design, layers))
    found |= dict(recompute_arguments(design, layers))
    section = training.model_dump(mode="json")
    found |= table_arguments(TRAINING, section)
    found["--global-batch-size"] = (str(design.sequences_per_step),)
    found |= write_model(design.model)
    found |= write_flags(TRAINING_FLAGS, section)
    if mesh.cp > 1:
        found["--cp-comm-type"] = ("all_gather" if training.context_parallel == "all_gather" else "p2p",)
    found |= dict(_sharding_arguments(training, mesh.dp))
    found |= dict(_optimizer_arguments(design))
    found |= dict(_precision_arguments(design))
    found |= dict(_data_arguments(design))
    return found


# ---- training ----


def _read_training(reader: ArgumentReader, degrees: Degrees) -> Json:
    training: Json = {}
    read_values(reader, TRAINING, training)
    read_flags(reader, TRAINING_FLAGS, training)
    batch = max(reader.integer("--global-batch-size", training["micro_batch_size"] * degrees.dp), 1)
    steps, samples = reader.integer("--train-iters"), reader.integer("--train-samples")
    training["steps"] = _limit_steps(reader, steps or (samples or 0) // batch or 1)
    training["optimizer"] = reader.choice("--optimizer", OPTIMIZERS, "adam")
    training["clip_norm"] = reader.number("--clip-grad", 1.0) or None
    training["sharding"] = _read_sharding(reader)
    training |= _read_learning_rate(reader, training["steps"], batch)
    exchange = reader.choice("--cp-comm-type", CONTEXT_EXCHANGES, "p2p")
    training["context_parallel"] = exchange if degrees.cp > 1 else "ring"
    training |= _read_precision(reader)
    training |= _read_data(reader)
    if training["optimizer"] == "sgd" and reader.number("--sgd-momentum", 0.9):
        reader.add_note("left_out_momentum")
    return training


def _limit_steps(reader: ArgumentReader, steps: int) -> int:
    if steps > MAX_STEPS:
        reader.add_note("limited_steps", steps=steps, most=MAX_STEPS)
    return min(steps, MAX_STEPS)


def _read_sharding(reader: ArgumentReader) -> str:
    uses_optimizer = reader.has_argument("--use-distributed-optimizer")
    kind = reader.choice("--data-parallel-sharding-strategy", SHARDINGS, "optim_grads_params")
    frees = not reader.has_argument("--torch-fsdp2-no-reshard-after-forward")
    reader.has_argument("--overlap-param-gather")  # a design does not choose it
    if reader.has_argument("--use-megatron-fsdp"):
        return str(kind)
    if reader.has_argument("--use-torch-fsdp2"):
        return "parameters" if frees else "gradients"
    return "optimizer" if uses_optimizer else "none"


def _bucket_count(model: Json, degrees: Degrees, count: int | None, size: int | None) -> int:
    """Return the number of buckets in which the first pipeline rank reduces its gradients.

    Args:
        model: the model.
        degrees: the sizes of the parallel groups.
        count: number of buckets; None if the arguments do not state it.
        size: parameters of a bucket; None for the default of Megatron-LM.
    """
    if count is None:
        shape = model_families[model["kind"]](**model)
        assert isinstance(shape, LanguageModel)
        experts = expert_parameters(shape)
        dense = model_parameters(shape) - experts
        held = (dense / degrees.tp + experts / (degrees.ep * degrees.etp)) / degrees.pp
        count = math.ceil(held / (size or max(BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_COPY * degrees.dp * degrees.cp)))
    return min(max(count, 1), MAX_BUCKETS)


def _sharding_arguments(training: Training, dp: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    sharding = training.sharding
    if sharding in ("gradients", "parameters"):
        names = {ours: theirs for theirs, ours in SHARDINGS.items()}
        yield "--use-megatron-fsdp", ()
        yield "--data-parallel-sharding-strategy", (names[sharding],)
    if sharding != "none":
        yield "--use-distributed-optimizer", ()
    if dp > 1:
        yield "--overlap-grad-reduce", ()
        if training.gradient_buckets > 1 and sharding in ("none", "optimizer"):
            yield "--ddp-num-buckets", (str(training.gradient_buckets),)
        if sharding != "none":
            yield "--overlap-param-gather", ()


def _read_learning_rate(reader: ArgumentReader, steps: int, batch: int) -> Json:
    rate, least = reader.number("--lr"), reader.number("--min-lr", 0.0)
    style = reader.text("--lr-decay-style", "linear")
    final_steps = None
    if style == STABLE_THEN_DECAY:
        style, final_steps = _read_final_decay(reader, batch)
    elif style not in LR_STYLES:
        reader.add_note("other_lr_style", style=style)
        style = "constant"
    share, samples = reader.number("--lr-warmup-fraction"), reader.integer("--lr-warmup-samples", 0)
    decay_samples = reader.integer("--lr-decay-samples")
    decay = reader.integer("--lr-decay-iters", steps if decay_samples is None else decay_samples // batch)
    if decay != steps and style != "constant":
        reader.add_note("other_lr_end", decay=decay, steps=steps)
    warmup = reader.integer("--lr-warmup-iters", samples // batch)
    found: Json = {"lr_schedule": style, "warmup_steps": warmup if share is None else round(share * decay)}
    found["decay_steps"] = final_steps
    if rate:
        found |= {"lr": rate, "min_lr_factor": 0.0 if style == "constant" else float(f"{min(least / rate, 1.0):.12g}")}
    return found


def _read_final_decay(reader: ArgumentReader, batch: int) -> tuple[str, int | None]:
    """Return the schedule of a learning rate that decays in the last steps, and the number of these steps."""
    style = reader.text("--lr-wsd-decay-style", "exponential")
    samples = reader.integer("--lr-wsd-decay-samples")
    steps = reader.integer("--lr-wsd-decay-iters", None if samples is None else samples // batch)
    if style not in FINAL_DECAYS:
        reader.add_note("other_final_decay", style=style)
    return (FINAL_DECAYS.get(style, "linear"), steps) if steps else ("constant", None)


def _decay_arguments(training: Training) -> Iterator[tuple[str, tuple[str, ...]]]:
    if training.lr_schedule in LR_STYLES and (training.decay_steps is None or training.lr_schedule == "constant"):
        yield "--lr-decay-style", (training.lr_schedule,)
        return
    steps = training.decay_steps or max(training.steps - training.warmup_steps, 1)
    yield "--lr-decay-style", (STABLE_THEN_DECAY,)
    yield "--lr-wsd-decay-style", ({ours: theirs for theirs, ours in FINAL_DECAYS.items()}[training.lr_schedule],)
    yield "--lr-wsd-decay-iters", (str(steps),)


def _optimizer_arguments(design: Design) -> Iterator[tuple[str, tuple[str, ...]]]:
    training = design.training
    yield "--train-iters", (str(training.steps),)
    yield "--optimizer", ({ours: theirs for theirs, ours in OPTIMIZERS.items()}[training.optimizer],)
    if training.optimizer == "sgd":
        yield "--sgd-momentum", ("0.0",)
    yield "--clip-grad", (repr(training.clip_norm or 0.0),)
    yield "--lr", (repr(training.lr),)
    yield from _decay_arguments(training)
    yield "--lr-warmup-iters", (str(training.warmup_steps),)
    yield (
        "--min-lr",
        (repr(training.lr if training.lr_schedule == "constant" else training.lr * training.min_lr_factor),),
    )


def _read_precision(reader: ArgumentReader) -> Json:
    is_bf16, is_fp16 = reader.has_argument("--bf16"), reader.has_argument("--fp16")
    fp8, fp4 = reader.text("--fp8-format"), reader.text("--fp4-format")
    backend = reader.text("--attention-backend", "auto")
    if is_fp16:
        reader.add_note("fp16_as_bf16")
    return {
        "precision": "bf16" if is_bf16 or is_fp16 else "fp32",
        "linear_precision": "fp8" if fp8 else "fp4" if fp4 else "same",
        "attention_kernel": ATTENTION_KERNELS.get(backend, "default"),
    }


def _precision_arguments(design: Design) -> Iterator[tuple[str, tuple[str, ...]]]:
    training = design.training
    if training.product_precision == "bf16":
        yield "--bf16", ()
    if training.linear_precision == "fp8":
        yield "--fp8-format", ("hybrid",)
    elif training.linear_precision == "fp4":
        yield "--fp4-format", ("e2m1",)
    if training.attention_kernel != "default":
        yield "--attention-backend", (ATTENTION_BACKENDS[training.attention_kernel],)


# ---- data ----


def _read_data(reader: ArgumentReader) -> Json:
    reader.has_argument("--mock-data")
    paths = reader.words("--data-path")
    if len(paths) > 1:
        reader.add_note("several_datasets", count=len(paths))
    every, batches = reader.integer("--eval-interval"), reader.integer("--eval-iters", 100)
    shares = [float(share) for share in reader.text("--split").split(",") if share.replace(".", "", 1).isdecimal()]
    found: Json = {"eval_every": every if batches else None}
    if found["eval_every"]:
        found["eval_batches"] = batches
        if len(shares) > 1 and 0 < shares[1] < sum(shares):
            found["eval_share"] = float(f"{shares[1] / sum(shares):.12g}")
    if len(paths) == 1:
        found["data"] = f"{paths[0].rstrip('/').rpartition('/')[2]}{TOKENS}"
    return found


def _data_arguments(design: Design) -> Iterator[tuple[str, tuple[str, ...]]]:
    training = design.training
    if training.data is not None and training.data.endswith(TOKENS):
        yield "--data-path", (training.data.removesuffix(TOKENS),)
    else:
        yield "--mock-data", ()
    yield "--tokenizer-type", ("NullTokenizer",)
    share = 0.0 if training.eval_every is None else training.eval_share
    yield "--split", (",".join(f"{100 * each:.12g}" for each in (1 - share, share, 0)),)
    if training.eval_every is None:
        yield "--eval-iters", ("0",)
        return
    yield "--eval-interval", (str(training.eval_every),)
    yield "--eval-iters", (str(training.eval_batches),)


# ---- remarks ----


def _note_unused(reader: ArgumentReader) -> None:
    """Add notes on the arguments that were not read, separately for those that do not matter and unknown ones."""
    unused = reader.unused_arguments()
    unknown = [name for name in unused if not has_no_effect(name)]
    if unknown:
        reader.add_note("unknown_arguments", arguments=unknown)
    if len(unused) > len(unknown):
        reader.add_note(NO_EFFECT_CODE, arguments=[name for name in unused if name not in unknown])


def _join_names(arguments: list[str]) -> str:
    return ", ".join(shorten(each, messages.LONGEST_NAME) for each in arguments)


messages.add_messages(
    limited_steps="the job has {steps:,} steps; a design has at most {most:,}",
    all_branches="the script has conditions; the arguments of all their branches are read",
    left_out_momentum="the momentum of SGD is left out",
    other_lr_style="--lr-decay-style {style} cannot be represented in a design; its learning rate is constant",
    other_final_decay="--lr-wsd-decay-style {style} cannot be represented in a design; the learning rate decays linearly",
    other_lr_end="the learning rate decays over the {steps} steps of the design, and not over {decay} steps",
    fp16_as_bf16="--fp16 cannot be represented in a design; it uses bf16",
    several_datasets="a design has one dataset; the {count} words of --data-path are left out",
    unknown_arguments=lambda arguments: f"not used, and may change the model or its cost: {_join_names(arguments)}",
    arguments_without_effect=lambda arguments: (
        f"not used, and change neither the schedule nor its cost: {', '.join(arguments)}"
    ),
)
