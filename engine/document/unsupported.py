"""What a sound design may ask for that can be planned and priced, but not run by this version."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from meshwave.engine.document.design import Design
from meshwave.engine.document.expert_layers import folded, group_sizes
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.findings import Problem


def runnable(design: Design) -> list[Problem]:
    """Every reason why a sound design cannot run anywhere, at its place; empty where it can."""
    return [
        *_torn_experts(design),
        *_torn_microbatches(design),
        *_replicas_cut_otherwise(design),
        *_batches_that_are_cut(design),
        *_vocabulary(design),
        *_copies_at_the_gate(design),
    ]


def _torn_experts(design: Design) -> Iterator[Problem]:
    asked = (design.experts.ep, design.experts.esp)
    if design.model.moe is None or folded(design):
        return
    for mesh in design.meshes:
        if group_sizes(design, mesh) != asked:
            here = "ep={} x esp={}".format(*group_sizes(design, mesh))
            message = f"groups of ep={asked[0]} x esp={asked[1]} devices would cross the border of mesh {mesh.name}; set {here}"
            yield Problem("experts.ep", "experts_mesh", message)
            return


def _torn_microbatches(design: Design) -> Iterator[Problem]:
    """Copies of a mesh take the same number of sequences, so that the mean of their losses is the mean of all."""
    rows = design.training.micro_batch_size * design.meshes[0].dp
    for number, mesh in enumerate(design.meshes):
        if rows % mesh.dp:
            more = mesh.dp // gcd(mesh.dp, design.meshes[0].dp)
            message = (
                f"a microbatch has {rows} sequences (micro_batch_size x dp of mesh {design.meshes[0].name}), which the "
                f"dp={mesh.dp} copies of mesh {mesh.name} cannot share evenly; set training.micro_batch_size to a "
                f"multiple of {more}, or change dp"
            )
            yield Problem(f"meshes[{number}].axes.dp", "torn_microbatches", message)


def _replicas_cut_otherwise(design: Design) -> Iterator[Problem]:
    """Replicas of a stage add up their gradients cut by cut."""
    pipeline = design.pipeline
    if len(pipeline.routes(design.pipe)) > 1 and len({mesh.tp for mesh in design.meshes}) > 1:
        drawn = ", ".join(f"tp={mesh.tp} on {mesh.name}" for mesh in design.meshes)
        message = f"{pipeline.schedule} keeps stages on several meshes, which must cut them alike ({drawn}); give all the same tp"
        yield Problem("meshes", "unequal_replicas", message)


def _batches_that_are_cut(design: Design) -> Iterator[Problem]:
    """A batch is one message each way between two processes; what is cut anew on its way is more than that."""
    first, *others = design.meshes
    if design.transfer.batched and (first.tp > 1 or any((mesh.dp, mesh.tp) != (first.dp, 1) for mesh in others)):
        drawn = ", ".join(f"dp={mesh.dp} tp={mesh.tp} on {mesh.name}" for mesh in design.meshes)
        message = (
            f"transfers can be batched only between meshes with tp=1 and equal dp ({drawn}); "
            "change the axes, or set transfer.batched to false"
        )
        yield Problem("transfer.batched", "batched_resharding", message)


def rehearsable(design: Design) -> list[Problem]:
    """Every reason why a design can run but not be played by a dry run."""
    if design.transfer.batched:
        message = "a dry run cannot wait for batched transfers; set transfer.batched to false, or run the design itself"
        return [Problem("transfer.batched", "batched_dry_run", message)]
    if design.cost.transfer_model in ("batched", "half-duplex"):
        message = (
            f"a dry run cannot wait as the transfer model {design.cost.transfer_model} does; "
            "set cost.transfer_model to latency, sender-blocking or link-serial"
        )
        return [Problem("cost.transfer_model", "transfer_model_dry_run", message)]
    return []


def _copies_at_the_gate(design: Design) -> Iterator[Problem]:
    """A gate behind the gather sees an input as often as devices hold it, and drops of the later copies more."""
    moe, esp = design.model.moe, design.experts.esp
    copied = design.experts.member == "deepspeed-pregate" and esp > 1 and any(mesh.tp > 1 for mesh in design.meshes)
    if moe is not None and moe.capacity_factor is not None and copied:
        message = (
            "gathering before the gate brings together copies of one input, of which others are dropped than of "
            "the first; set model.moe.capacity_factor to null, or the variant to paper"
        )
        yield Problem("experts.variant", "pregate_copies", message)


def _vocabulary(design: Design) -> Iterator[Problem]:
    model = design.model
    if isinstance(model, LanguageModel) and model.vocab < (least := model.smallest_vocab):
        message = f"a {model.kind} reads text as bytes and needs at least {least} tokens, not {model.vocab}; set vocab to {least} or more"
        yield Problem("model.vocab", "vocabulary", message)
