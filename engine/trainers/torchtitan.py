"""Conversion of designs to the settings of torchtitan 0.2 (TOML), and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from meshwave.engine import messages
from meshwave.engine.document.cluster import MAX_DEVICES
from meshwave.engine.document.design import Design
from meshwave.engine.document.expert_layers import expert_group_sizes
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.schedules import schedules
from meshwave.engine.trainers.jobs import NO_EFFECT_CODE, Degrees, Job
from meshwave.engine.trainers.models import Json
from meshwave.engine.trainers.torchtitan_models import FLAVORS, find_flavor, flavor_names

SCHEDULES = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved-1f1b",
    "LoopedBFS": "looped-bfs",
    "InterleavedZeroBubble": "interleaved-zb",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipe-v",
}
"""Schedules by the names of torch."""
ONE_STAGE_PER_RANK = ("1F1B", "GPipe")
PRECISION = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "pure_bf16": "bfloat16",
    "fp64": "float32",
}  # torchtitan does not support fp64
ROTATIONS = {"all_gather": "allgather", "ring": "alltoall"}
RECOMPUTE = {"none": "none", "layers": "full", "full": "full", "operators": "selective"}
NO_EFFECT = (
    "job",
    "dataloader",
    "profiling",
    "metrics",
    "checkpoint",
    "comm",
    "experimental",
    "fault_tolerance",
    "memory_estimation",
    "quantize",
)
"""Sections that change neither the schedule of a design nor its predicted cost."""
NO_EFFECT_KEYS = (
    "debug.deterministic", "model.hf_assets_path", "optimizer.implementation", "parallelism.context_parallel_load_balancer",
    "training.dataset", "training.dataset_path", "training.gc_freq", "validation.dataset",
)  # fmt: skip
"""Other keys that do not affect a design."""

UNLIMITED_NORM = 1e9
"""Maximum gradient norm that stands for no limit, which torchtitan does not support."""

NODE_DEVICES = 8
"""Number of devices of a job that is divided among the rest of the devices, if that number is unknown."""


def write_settings(design: Design, schedule: str | None, layers: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Return the sections of the settings of a design with equal meshes.

    Args:
        design: a design whose model is a language model.
        schedule: the name of the schedule that determines the placement; None if there is only one mesh.
        layers: number of layers of each stage.
    """
    training, pipeline = design.training, design.pipeline
    assert isinstance(design.model, LanguageModel)
    found: dict[str, dict[str, Any]] = {}
    if flavor := find_flavor(design.model):
        found["model"] = {"name": flavor[0], "flavor": flavor[1]}
    if training.linear_precision == "fp8":
        found.setdefault("model", {})["converters"] = ["float8"]
    decay = training.weight_decay
    found["optimizer"] = {"name": "AdamW", "lr": training.lr, "weight_decay": decay, "beta2": 0.999, "eps": 1e-8}
    found["lr_scheduler"] = {"warmup_steps": training.warmup_steps}
    if training.lr_schedule == "constant":
        found["lr_scheduler"]["decay_ratio"] = 0.0
    else:
        found["lr_scheduler"] |= {"decay_type": training.lr_schedule, "min_lr_factor": training.min_lr_factor}
        if training.decay_steps is not None:
            found["lr_scheduler"]["decay_ratio"] = min(training.decay_steps, training.steps) / training.steps
    microbatches = design.pipe.microbatches
    found["training"] = {
        "local_batch_size": training.micro_batch_size * (microbatches if schedule else 1),
        "global_batch_size": design.sequences_per_step,
        "seq_len": design.model.sequence,
        "steps": training.steps,
        "mixed_precision_param": PRECISION[training.precision],
        **({"dtype": "bfloat16"} if training.precision == "pure_bf16" else {}),
        "max_norm": training.clip_norm or UNLIMITED_NORM,
    }
    found["parallelism"] = parallelism_settings(design, schedule)
    if schedule is not None:
        found["parallelism"]["pipeline_parallel_schedule_csv"] = "meshwave/schedule.csv"
        found["parallelism"]["module_fqns_per_model_part"] = module_names(layers, "output")
    mode = "full" if isinstance(pipeline.recompute, tuple) else RECOMPUTE.get(pipeline.recompute, "none")
    found["activation_checkpoint"] = {"mode": mode}
    if mode == "selective":
        found["activation_checkpoint"]["selective_ac_option"] = "op"
    found["compile"] = {"enable": training.compile, "components": ["model"]}
    if training.eval_every is not None:
        found["validation"] = {"enable": True, "freq": training.eval_every, "steps": training.eval_batches}
    found["debug"] = {"seed": training.seed}
    return found


def parallelism_settings(design: Design, schedule: str | None) -> dict[str, Any]:
    """Return the sizes of the groups, and the settings of data parallelism and experts."""
    mesh, training = design.meshes[0], design.training
    dp = mesh.dp // mesh.cp
    is_sharded = training.shards_gradients
    found: dict[str, Any] = {
        "pipeline_parallel_degree": len(design.meshes),
        "data_parallel_replicate_degree": 1 if is_sharded else dp,
        "data_parallel_shard_degree": dp if is_sharded else 1,
        "tensor_parallel_degree": mesh.tp,
        "context_parallel_degree": mesh.cp,
    }
    if is_sharded:  # FSDP shards gradients, and parameters if it frees them
        found["fsdp_reshard_after_forward"] = "always" if training.sharding == "parameters" else "never"
    if mesh.cp > 1:
        found["context_parallel_rotate_method"] = ROTATIONS[training.context_parallel]
    if schedule is not None:
        found["pipeline_parallel_microbatch_size"] = training.micro_batch_size
        found["pipeline_parallel_schedule"] = schedule
    if design.model.moe is not None:
        ep, esp = expert_group_sizes(design, mesh)
        room = found["data_parallel_shard_degree"] * mesh.cp * (mesh.tp if esp == 1 else 1)
        if room % ep == 0 and esp in (1, mesh.tp):  # other groups are not supported
            found |= {"expert_parallel_degree": ep, "expert_tensor_parallel_degree": esp}
    if training.tensor_parallel_overlap:
        found["enable_async_tensor_parallel"] = True
    return found


def module_names(layers: Sequence[int], head: str) -> list[list[str]]:
    """Return the modules of torchtitan's language models on each stage: embedding, layers, norm and ``head``."""
    ends = [0, *accumulate(layers)]
    parts = [[f"layers.{layer}" for layer in range(start, end)] for start, end in pairwise(ends)]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", head]
    return parts


# ---- reading ----


class _Settings:
    """Values of a TOML document, which collects problems, remarks and used keys."""

    def __init__(self, sections: Mapping[str, Any]) -> None:
        self._sections = sections
        self._used: set[tuple[str, str]] = set()
        self.problems: list[Problem] = []
        self.notes: list[Problem] = []

    def get(self, section: str, key: str, default: Any) -> Any:
        """Return a value; a value whose type differs from that of the default is a problem."""
        self._used.add((section, key))
        part = self._sections.get(section, {})
        value = part.get(key, default) if isinstance(part, dict) else default
        wanted = (int, float) if isinstance(default, float) else type(default)
        if default is None or isinstance(value, wanted) and isinstance(value, bool) == isinstance(default, bool):
            return value
        self.problems.append(Problem("", "setting_type", {"section": section, "key": key, "value": str(value)}))
        return default

    def size(self, key: str) -> int:
        """Return a size of a parallel group."""
        value = self.get("parallelism", key, 1)
        if not 1 <= value <= MAX_DEVICES:
            self.problems.append(
                Problem("", "setting_type", {"section": "parallelism", "key": key, "value": str(value)})
            )
        return min(max(int(value), 1), MAX_DEVICES)

    def note(self, code: str, **params: Any) -> None:
        self.notes.append(Problem("", code, params, "warning"))

    def note_unused(self) -> None:
        """Add notes on the keys that were not read."""
        unused = [
            (section, f"{section}.{key}")
            for section, part in self._sections.items()
            for key in (part if isinstance(part, dict) else ())
            if (section, key) not in self._used
        ]
        unknown = [name for section, name in unused if section not in NO_EFFECT and name not in NO_EFFECT_KEYS]
        if unknown:
            self.note("unknown_arguments", arguments=unknown)
        if len(unused) > len(unknown):
            self.note(NO_EFFECT_CODE, arguments=[name for _, name in unused if name not in unknown])


def read_settings(sections: Json, model: LanguageModel | None, devices: int | None) -> Job:
    """Read the settings of a job.

    Args:
        sections: the sections of the settings, with the names of the TOML.
        model: the model if the settings name none that is known; its sequence length is replaced.
        devices: the number of devices; None for one node.

    Raises:
        DesignError: the settings cannot be represented in a design; the error lists all reasons.
    """
    settings = _Settings(sections)
    sequence = settings.get("training", "seq_len", 2048)
    section = _read_model(settings, model, sequence)
    degrees, sharding = _read_degrees(settings, devices)
    pipeline, micro_batch_size = _read_pipeline(settings, section, degrees)
    reduces_once = degrees.pp > 1 and sharding != "none"  # pipelines reduce sharded gradients by REDUCE_GRAD
    training = {
        **_read_training(settings, degrees),
        "sharding": sharding,
        "gradient_reduction": "step" if reduces_once else "microbatch",
        "micro_batch_size": micro_batch_size,
    }
    settings.note_unused()
    if settings.problems:
        raise DesignError(settings.problems)
    return Job(section, degrees, pipeline, training, settings.notes)


def _read_model(settings: _Settings, model: LanguageModel | None, sequence: int) -> Json:
    name, flavor = settings.get("model", "name", ""), settings.get("model", "flavor", "")
    if (name, flavor) in FLAVORS:
        return {**FLAVORS[name, flavor], "sequence": sequence}
    if model is None:
        params = {"name": f"{name} {flavor}".strip(), "known": list(flavor_names())}
        settings.problems.append(Problem("", "unknown_flavor", params))
        return {**FLAVORS["llama3", "8B"], "sequence": sequence}
    settings.note("assumed_model", name=f"{name} {flavor}".strip())
    return {**model.model_dump(mode="json"), "sequence": sequence}


def _read_degrees(settings: _Settings, devices: int | None) -> tuple[Degrees, str]:
    """Return the sizes of the groups, and the sharding of data parallelism."""
    pp, tp, cp = (settings.size(f"{name}_parallel_degree") for name in ("pipeline", "tensor", "context"))
    ep, etp = settings.size("expert_parallel_degree"), settings.size("expert_tensor_parallel_degree")
    if ep == 1:
        etp = tp  # tensor parallelism also divides the experts
    copies = settings.size("data_parallel_replicate_degree")
    shards = settings.get("parallelism", "data_parallel_shard_degree", -1)
    if shards < 1:  # the rest of the devices
        shards = max((devices or NODE_DEVICES) // (copies * pp * tp * cp), -(-ep // (cp * (tp if etp == 1 else 1))), 1)
    reshard = settings.get("parallelism", "fsdp_reshard_after_forward", "default")
    frees = reshard == "always" or reshard == "default" and pp == 1
    if copies > 1 and shards > 1:
        settings.note("replicated_shards", copies=copies, shards=shards)
    degrees = Degrees(copies * shards, cp, tp, pp, ep, etp)
    if degrees.devices > MAX_DEVICES:
        params = {"section": "parallelism", "key": "data_parallel_shard_degree", "value": str(shards)}
        settings.problems.append(Problem("", "setting_type", params))
        degrees = Degrees(1, 1, 1, 1)
    return degrees, "none" if shards == 1 else "parameters" if frees else "gradients"


def _read_pipeline(settings: _Settings, section: Json, degrees: Degrees) -> tuple[Json, int]:
    """Return the pipeline section and the microbatch size."""
    local = max(settings.get("training", "local_batch_size", 8), 1)
    total = settings.get("training", "global_batch_size", -1)
    size = max(settings.get("parallelism", "pipeline_parallel_microbatch_size", 1), 1) if degrees.pp > 1 else local
    total = total if total > 0 else local * degrees.dp
    if total % (size * degrees.dp) or local % size:
        params = {"batch": total, "size": size, "dp": degrees.dp}
        settings.problems.append(Problem("", "indivisible_global_batch", params))
    name = settings.get("parallelism", "pipeline_parallel_schedule", "1F1B")
    known = {each.lower(): each for each in SCHEDULES}
    if name.lower() not in known:
        settings.problems.append(Problem("", "unknown_torch_schedule", {"name": name, "known": list(SCHEDULES)}))
    name = known.get(name.lower(), "1F1B")
    if settings.get("parallelism", "pipeline_parallel_schedule_csv", ""):
        settings.note("order_in_csv", schedule=SCHEDULES[name])
    pipeline: Json = {"schedule": SCHEDULES[name], "microbatches": max(total // (size * degrees.dp), 1)}
    stages = _read_stages(settings, section["layers"], degrees.pp, 1 if name in ONE_STAGE_PER_RANK else 2)
    pipeline["stages"] = stages if len(stages) > 1 and min(stages) > 0 else None
    if len(stages) > 1 and min(stages) < 1:
        settings.note("balanced_stages")
    if "chunks" in _option_words(SCHEDULES[name]):
        pipeline["chunks"] = max(len(stages) // degrees.pp, 1)
    pipeline["recompute"] = _read_recompute(settings)
    return pipeline, size


def _option_words(schedule: str) -> Sequence[str]:
    return list(schedules[schedule].model_fields)


def _read_stages(settings: _Settings, layers: int, pp: int, chunks: int) -> list[int]:
    """Return the number of layers of each stage; torchtitan balances the stages if the settings do not define them."""
    names = settings.get("parallelism", "module_fqns_per_model_part", [])
    per_stage = settings.get("parallelism", "pipeline_parallel_layers_per_stage", 0)
    first, last = (
        settings.get("parallelism", f"pipeline_parallel_{end}_stage_less_layers", 1) for end in ("first", "last")
    )
    if pp == 1:
        return [layers]
    if names:
        return [
            sum(str(name).startswith("layers.") for name in part) if isinstance(part, list) else 0 for part in names
        ]
    count = -(-(layers + first + last) // per_stage) if per_stage > 0 else pp * chunks
    share, rest = divmod(layers + first + last, count)
    stages = [share + (stage < rest) for stage in range(count)]
    stages[0] -= first
    stages[-1] -= last
    return stages


def _read_recompute(settings: _Settings) -> str:
    mode = settings.get("activation_checkpoint", "mode", "selective")
    option = settings.get("activation_checkpoint", "selective_ac_option", "2")
    used = {"none": "none", "full": "layers"}.get(mode, "operators")
    if used == "operators" and (mode, option) != ("selective", "op"):
        settings.note("other_recompute", argument=f"activation_checkpoint.mode {mode}", used=used)
    return used


def _read_training(settings: _Settings, degrees: Degrees) -> Json:
    found: Json = {"optimizer": "adamw", "steps": settings.get("training", "steps", 10_000)}
    if (name := settings.get("optimizer", "name", "AdamW")) != "AdamW":
        settings.note("other_optimizer", name=name)
    found["lr"] = settings.get("optimizer", "lr", 8e-4)
    found["weight_decay"] = settings.get("optimizer", "weight_decay", 0.1)
    for key, usual in (("beta1", 0.9), ("beta2", 0.95), ("eps", 1e-8)):
        settings.get("optimizer", key, usual)
    norm = settings.get("training", "max_norm", 1.0)
    found["clip_norm"] = None if norm >= UNLIMITED_NORM else norm
    is_bf16 = settings.get("training", "mixed_precision_param", "bfloat16") == "bfloat16"
    is_pure = settings.get("training", "dtype", "float32") == "bfloat16"
    found["precision"] = "pure_bf16" if is_pure else "bf16" if is_bf16 else "fp32"
    found["linear_precision"] = "fp8" if "float8" in settings.get("model", "converters", []) else "same"
    found |= _read_learning_rate(settings, found["steps"])
    found["sequence_parallel"] = degrees.tp > 1
    rotation = settings.get("parallelism", "context_parallel_rotate_method", "allgather")
    if degrees.cp > 1:
        found["context_parallel"] = "ring" if rotation == "alltoall" else "all_gather"
    found["tensor_parallel_overlap"] = settings.get("parallelism", "enable_async_tensor_parallel", False)
    components = settings.get("compile", "components", ["model", "loss"])
    found["compile"] = settings.get("compile", "enable", False) and "model" in components
    is_evaluated = settings.get("validation", "enable", False)
    every, batches = settings.get("validation", "freq", 10), settings.get("validation", "steps", 1)
    if is_evaluated:
        found |= {"eval_every": every, "eval_batches": max(batches, 1)}
    found["seed"] = settings.get("debug", "seed", None) or 0
    return found


def _read_learning_rate(settings: _Settings, steps: int) -> Json:
    style, least = (
        settings.get("lr_scheduler", "decay_type", "linear"),
        settings.get("lr_scheduler", "min_lr_factor", 0.0),
    )
    ratio = settings.get("lr_scheduler", "decay_ratio", None)
    if ratio is not None and (isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 <= ratio <= 1):
        params = {"section": "lr_scheduler", "key": "decay_ratio", "value": str(ratio)}
        settings.problems.append(Problem("", "setting_type", params))
        ratio = None
    found = {"warmup_steps": settings.get("lr_scheduler", "warmup_steps", 200), "decay_steps": None}
    decay = steps if ratio is None else round(steps * ratio)
    if not decay:
        return {**found, "lr_schedule": "constant"}
    return {**found, "lr_schedule": style, "min_lr_factor": least, "decay_steps": None if ratio is None else decay}


messages.add_messages(
    setting_type="{section}.{key} = {value} is not a valid value; correct it",
    unknown_flavor=(
        "the settings name no known model ({name:typed}); known: {known:list}. Name a design with this model with --into"
    ),
    assumed_model="the model {name:typed} is not known; the design keeps its model",
    unknown_torch_schedule="unknown pipeline_parallel_schedule {name:typed} (supported: {known:or})",
    order_in_csv="the order is in the CSV that the settings name: import it into this design; until then it uses {schedule}",
    replicated_shards="a design shards over all {copies} x {shards} replicas; replicas of shards are not supported",
    other_optimizer="the optimizer {name} cannot be represented in a design; it uses AdamW",
)
