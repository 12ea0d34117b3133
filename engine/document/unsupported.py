"""Problems of a valid design that this version can plan and predict, but cannot run."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, lcm

from meshwave.engine.document.design import Design
from meshwave.engine.document.expert_layers import expert_group_sizes, uses_tensor_parallel_groups
from meshwave.engine.document.expert_problems import expert_group_problem
from meshwave.engine.document.model import LanguageModel, Model
from meshwave.engine.document.training import Training
from meshwave.engine.findings import Fix, Problem, set_key_fix


def run_problems(design: Design) -> list[Problem]:
    """Return all reasons why a valid design cannot be run."""
    return [
        *_expert_group_problems(design),
        *_micro_batch_problems(design),
        *_replica_problems(design),
        *_batched_transfer_problems(design),
        *_vocabulary_problems(design),
        *_gate_problems(design),
        *_architecture_problems(design),
        *_training_problems(design),
        *_kernel_problems(design),
        *_context_problems(design),
        *_document_problems(design),
        *_recompute_problems(design),
        *_evaluation_problems(design),
    ]


def _expert_group_problems(design: Design) -> Iterator[Problem]:
    if design.model.moe is None or uses_tensor_parallel_groups(design):
        return
    for mesh in design.meshes:
        if expert_group_sizes(design, mesh) != (design.experts.ep, design.experts.esp):
            yield expert_group_problem(design, mesh)
            return


def _micro_batch_problems(design: Design) -> Iterator[Problem]:
    """Yield a problem if replicas get unequal numbers of sequences: their mean loss is then not the global mean."""
    first = design.meshes[0]
    size = design.training.micro_batch_size
    sequences = size * first.data_parallel
    for number, mesh in enumerate(design.meshes):
        dp = mesh.data_parallel
        if sequences % dp:
            multiple = dp // gcd(dp, first.data_parallel)
            params = {
                "sequences": sequences,
                "first": first.name,
                "dp": dp,
                "mesh": mesh.name,
                "multiple": multiple,
            }
            fixes = [set_key_fix("training.micro_batch_size", -(-size // multiple) * multiple)]
            yield Problem(f"meshes[{number}].axes.dp", "indivisible_micro_batch", params, fixes=fixes)


def _replica_problems(design: Design) -> Iterator[Problem]:
    """Yield a problem if replicas of a stage have unequal tp, since they reduce their gradients shard by shard."""
    sizes = {mesh.tp for mesh in design.meshes}
    if len(design.pipeline.routes(design.pipe)) > 1 and len(sizes) > 1:
        tp = gcd(*sizes)
        edits = tuple(
            (f"meshes[{number}].axes", {"dp": len(mesh.devices) // tp, "tp": tp})
            for number, mesh in enumerate(design.meshes)
        )
        params = {"schedule": design.pipeline.schedule, "axes": {mesh.name: {"tp": mesh.tp} for mesh in design.meshes}}
        fixes = [Fix("use_axes_everywhere", {"tp": tp}, edits)]
        yield Problem("meshes", "unequal_replicas", params, fixes=fixes)


def _batched_transfer_problems(design: Design) -> Iterator[Problem]:
    """Yield a problem if a batch is more than one message each way between two processes, as with resharding."""
    sizes = {mesh.name: {"dp": mesh.data_parallel, "cp": mesh.cp, "tp": mesh.tp} for mesh in design.meshes}
    first, *others = sizes.values()
    if design.transfer.batched and (first["tp"] > 1 or any(other != first for other in others)):
        shown = ("dp", "tp") if all(axes["cp"] == 1 for axes in sizes.values()) else ("dp", "cp", "tp")
        params = {"axes": {name: {axis: axes[axis] for axis in shown} for name, axes in sizes.items()}}
        where = "transfer.batched"
        yield Problem(where, "batched_resharding", params, fixes=[set_key_fix(where, False)])


def _gate_problems(design: Design) -> Iterator[Problem]:
    """Yield a problem if a gate follows a gather: it sees inputs several times, and drops more of the later copies."""
    moe, esp = design.model.moe, design.experts.esp
    has_copies = design.experts.member == "deepspeed-pregate" and esp > 1 and any(mesh.tp > 1 for mesh in design.meshes)
    if moe is not None and moe.capacity_factor is not None and has_copies:
        fixes = [set_key_fix("model.moe.capacity_factor", None), set_key_fix("experts.variant", "paper")]
        yield Problem("experts.variant", "gathered_copies", fixes=fixes)


def _vocabulary_problems(design: Design) -> Iterator[Problem]:
    model = design.model
    if isinstance(model, LanguageModel) and model.vocab < model.smallest_vocab:
        params = {"model": model.kind, "minimum": model.smallest_vocab, "vocab": model.vocab}
        yield Problem("model.vocab", "vocabulary", params, fixes=[set_key_fix("model.vocab", model.smallest_vocab)])


def _architecture_problems(design: Design) -> Iterator[Problem]:
    """Yield a problem if the runtime does not support a combination of parts of a transformer."""
    if parts := sorted(_unsupported_parts(design.model)):
        yield Problem("model", "unsupported_architecture", {"parts": parts})


def _unsupported_parts(model: Model) -> Iterator[str]:
    """Yield the paths of keys whose value the runtime does not support together with the values of other keys."""
    architecture = model.architecture
    attention, norm, scaling = architecture.attention, architecture.norm, architecture.positions.scaling
    if attention.qk_norm != "none" and norm.kind != "rmsnorm":
        yield "attention.qk_norm"
    if not norm.weight and (norm.kind != "layernorm" or norm.bias):
        yield "norm.weight"
    if scaling is not None and scaling.kind != "linear" and scaling.original_context is None:
        yield "positions.scaling.original_context"
    if isinstance(model, LanguageModel) and scaling is not None and scaling.kind == "longrope":
        sizes = {"short_factors": len(scaling.short_factors), "long_factors": len(scaling.long_factors)}
        yield from (f"positions.scaling.{key}" for key, size in sizes.items() if 2 * size != model.rotated_dims)
    if norm.placement == "post" and architecture.residual != "sequential":
        yield "residual"
    if architecture.mtp_layers and not (norm.is_final and isinstance(model, LanguageModel) and model.causal):
        yield "mtp_layers"
    if attention.latent is not None and (attention.window or attention.soft_cap or attention.sinks):
        yield "attention.latent"
    if attention.latent is not None and architecture.positions.kind == "alibi":
        yield "positions.kind"


def _training_problems(design: Design) -> Iterator[Problem]:
    """Yield problems of training settings that the runtime does not support."""
    training = design.training
    model = design.model
    keys = [] if isinstance(model, LanguageModel) else ["sequence_parallel"]
    keys += ["bf16_gradients"] if training.sharding == "none" else []
    yield from _linear_precision_problems(design)
    for key in (*keys, "blocking_gathers", "blocking_launches", "cuda_graphs", "tensor_parallel_overlap"):
        usual = Training.model_fields[key].default
        value, where = getattr(training, key), f"training.{key}"
        if value != usual:
            yield Problem(
                where, "unsupported_training", {"key": key, "value": value}, fixes=[set_key_fix(where, usual)]
            )
    if training.activation_offload and (clash := _offload_conflict(design)):
        where, fixes = "training.activation_offload", [set_key_fix("training.activation_offload", 0.0), clash]
        yield Problem(where, "unsupported_offload", {"path": clash.edits[0][0]}, fixes=fixes)
    if training.sequence_parallel:
        yield from _token_problems(design)
    copies = {mesh.dp for mesh in design.meshes}
    if model.architecture.copies_embedding and training.sharding != "none" and len(copies) > 1:
        params = {"value": training.sharding, "copies": sorted(copies)}
        yield Problem("training.sharding", "tied_sharding", params, fixes=[set_key_fix("training.sharding", "none")])
    if model.architecture.copies_embedding and len({mesh.tp for mesh in design.meshes}) > 1:
        yield Problem("meshes", "unequal_tied_meshes", {"sizes": sorted({mesh.tp for mesh in design.meshes})})


def _linear_precision_problems(design: Design) -> Iterator[Problem]:
    """Yield a problem of matrix products in 8 or 4 bits that the runtime does not have."""
    training, where = design.training, "training.linear_precision"
    conflicts = {
        "model.kind": not isinstance(design.model, LanguageModel),
        "training.compile": training.compile,
        "training.precision": training.precision == "fp64",
    }
    found = [path for path, conflicts_with_fp8 in conflicts.items() if conflicts_with_fp8]
    if training.linear_precision == "fp4":
        yield Problem(where, "fp4_products", fixes=[set_key_fix(where, each) for each in ("fp8", "same")])
    elif training.linear_precision == "fp8" and found:
        yield Problem(where, "fp8_products", {"parts": found}, fixes=[set_key_fix(where, "same")])


def _kernel_problems(design: Design) -> Iterator[Problem]:
    """Yield a problem if the chosen attention kernel does not support the attention of the model."""
    attention, training, where = design.model.architecture.attention, design.training, "training.attention_kernel"
    if training.attention_kernel in ("default", "unfused"):
        return
    parts = {
        "model.attention.soft_cap": attention.soft_cap is not None,
        "model.attention.sinks": attention.sinks,
        "training.context_parallel": training.context_parallel == "ring" and any(mesh.cp > 1 for mesh in design.meshes),
    }
    if found := [part for part, is_set in parts.items() if is_set]:
        params = {"parts": found, "kernel": training.attention_kernel}
        yield Problem(where, "unfused_attention", params, fixes=[set_key_fix(where, "default")])


def _offload_conflict(design: Design) -> Fix | None:
    """Return the fix for a setting that cannot be combined with activation offload; None if there is none.

    Compiled blocks and selective recomputation keep tensors that are not saved through autograd's hooks; stages that are
    recomputed as a whole save none.
    """
    if design.training.compile:
        return set_key_fix("training.compile", False)
    return set_key_fix("pipeline.recompute", "layers") if design.pipeline.recompute in ("full", "operators") else None


def _context_problems(design: Design) -> Iterator[Problem]:
    """Yield problems of context parallelism: a model without tokens, or a sequence that has no equal chunks."""
    model, degree = design.model, lcm(*(mesh.cp for mesh in design.meshes))
    if degree == 1:
        return
    number, mesh = next(each for each in enumerate(design.meshes) if each[1].cp > 1)
    if not isinstance(model, LanguageModel):
        where = f"meshes[{number}].axes"
        names = {"mesh": mesh.name, "model": model.kind}
        fixes = [set_key_fix(where, {"dp": mesh.dp, "tp": mesh.tp})]
        yield Problem(where, "unsupported_context_parallelism", names, fixes=fixes)
    elif model.sequence % (chunks := 2 * degree):
        sizes = {"sequence": model.sequence, "chunks": chunks, "cp": degree}
        fixes = [set_key_fix("model.sequence", -(-model.sequence // chunks) * chunks)]
        yield Problem("model.sequence", "indivisible_chunks", sizes, fixes=fixes)


def _document_problems(design: Design) -> Iterator[Problem]:
    """Yield a problem if sequences contain several documents and blocks are compiled, which fixes the length."""
    where = "training.document_end"
    if design.training.document_end is not None and design.training.compile:
        fixes = [set_key_fix("training.compile", False), set_key_fix(where, None)]
        yield Problem(where, "documents_with_compile", fixes=fixes)


def _recompute_problems(design: Design) -> Iterator[Problem]:
    """Yield a problem if compiled blocks are recomputed in part, which can be predicted but not run."""
    if design.pipeline.recomputed_part is not None and design.training.compile:
        fixes = [set_key_fix("training.compile", False), set_key_fix("pipeline.recompute", "full")]
        yield Problem("pipeline.recompute", "compiled_recompute", fixes=fixes)


def _evaluation_problems(design: Design) -> Iterator[Problem]:
    """Yield a problem if messages are batched: an evaluation sends forwards only, so that batches stay incomplete."""
    if design.transfer.batched and design.training.eval_every is not None:
        fixes = [set_key_fix("transfer.batched", False), set_key_fix("training.eval_every", None)]
        yield Problem("training.eval_every", "batched_evaluation", fixes=fixes)


def _token_problems(design: Design) -> Iterator[Problem]:
    """Yield a problem if tensor-parallel devices get unequal numbers of tokens."""
    for number, mesh in enumerate(design.meshes):
        if design.model.sequence // mesh.cp % mesh.tp:
            params = {"sequence": design.model.sequence // mesh.cp, "tp": mesh.tp, "mesh": mesh.name}
            multiple = mesh.cp * mesh.tp
            fixes = [set_key_fix("model.sequence", -(-design.model.sequence // multiple) * multiple)]
            yield Problem(f"meshes[{number}].axes.tp", "indivisible_sequence", params, fixes=fixes)


DRY_RUN_TRANSFER_MODELS = ("latency", "sender-blocking", "link-serial")
"""Transfer models that are suggested in place of one that a dry run cannot simulate."""


def dry_run_problems(design: Design) -> list[Problem]:
    """Return all reasons why a runnable design cannot be run as a dry run."""
    if design.transfer.batched:
        where = "transfer.batched"
        return [Problem(where, "batched_dry_run", fixes=[set_key_fix(where, False)])]
    if design.cost.transfer_model in ("batched", "half-duplex"):
        where, supported = "cost.transfer_model", list(DRY_RUN_TRANSFER_MODELS)
        params = {"transfer_model": design.cost.transfer_model, "supported": supported}
        return [
            Problem(where, "transfer_model_dry_run", params, fixes=[set_key_fix(where, model) for model in supported])
        ]
    return []
