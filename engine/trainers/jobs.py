"""Jobs of other trainers: the sections of a design that their settings describe, and the keys that they leave out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwave.engine import messages
from meshwave.engine.costs.presets import preset
from meshwave.engine.document.design import Design
from meshwave.engine.document.differences import Difference, list_differences
from meshwave.engine.document.expert_layers import expert_group_sizes
from meshwave.engine.document.experts import Experts
from meshwave.engine.document.loading import parse_design
from meshwave.engine.document.meshes import Axis, equal_meshes
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.document.training import Training
from meshwave.engine.findings import Problem
from meshwave.engine.trainers.models import Json, transformer_section

EXPERT_SCHEDULE = "a2a-allgather"
"""Expert schedule of Megatron-LM and torchtitan: each tensor-parallel device exchanges its part of the tokens."""


NO_EFFECT_CODE = "arguments_without_effect"
"""Code of the remark that names settings without a counterpart in a design."""


class Degrees(NamedTuple):
    """Sizes of the parallel groups of a job."""

    dp: int
    cp: int
    tp: int
    pp: int
    ep: int = 1
    etp: int = 1

    @property
    def devices(self) -> int:
        """Number of devices of the job."""
        return self.dp * self.cp * self.tp * self.pp


class Job(NamedTuple):
    """Sections of a design that the settings of a trainer describe."""

    model: Json
    degrees: Degrees
    pipeline: Json
    training: Json
    """All keys of the training section that the settings determine."""
    notes: Sequence[Problem] = ()


def job_design(job: Job, name: str, into: Design | None, *, draft: bool = False) -> Design:
    """Return a design for a job.

    Args:
        job: the job.
        name: the name of a new design.
        into: the design that provides the cluster, and all keys that the job does not determine; None for a new design.
        draft: True if the parts of the design may be inconsistent.

    Raises:
        DesignError: the job is not a valid design.
    """
    document = _job_document(job, name, into)
    model = parse_design(document, draft=draft).model
    assert isinstance(model, LanguageModel)
    return parse_design({**document, "model": transformer_section(model)}, draft=draft)


def _job_document(job: Job, name: str, into: Design | None) -> Json:
    degrees = job.degrees
    axes = _mesh_axes(degrees.dp, degrees.cp, degrees.tp)
    document = _new_document(name, degrees.devices) if into is None else into.model_dump(mode="json")
    names = [mesh["name"] for mesh in document["meshes"]]
    meshes = equal_meshes(degrees.pp, axes, names if len(names) == degrees.pp else ())
    found = {**document, "model": job.model, "meshes": meshes, "pipeline": job.pipeline}
    found["training"] = {**document["training"], **job.training}
    if job.model.get("moe") is not None:
        groups = {"ep": degrees.ep, "esp": degrees.etp, "degree": 1}
        experts: Json = {"schedule": EXPERT_SCHEDULE, **groups, "placement": None, "layers": []}
        found["experts"] = {**document["experts"], **experts}
    else:
        found["experts"] = {}
    if "cost" in document:
        found["cost"] = {**document["cost"], "stage_costs": None}
    return found


def _mesh_axes(dp: int, cp: int, tp: int) -> dict[Axis, int]:
    return {"dp": dp, "tp": tp} if cp == 1 else {"dp": dp, "cp": cp, "tp": tp}


def _new_document(name: str, devices: int) -> Json:
    cluster = preset("dgx-h100").cluster.model_dump(mode="json")
    cluster["nodes"] = -(-devices // cluster["devices_per_node"])
    cluster["devices_per_node"] = min(devices, cluster["devices_per_node"])
    return {"format": "meshwave/1", "name": name, "cluster": cluster, "meshes": [], "experts": {}, "training": {}}


# ---- omissions ----


def find_omissions(design: Design, layers: Sequence[int], job: Job, tool: str) -> list[Problem]:
    """Return the properties of a design that the settings of a trainer leave out or change.

    Args:
        design: the design.
        layers: number of layers of each stage.
        job: the settings, read back.
        tool: name of the trainer.
    """
    plain = design.model_copy(update={"training": Training(), "experts": Experts()})
    read = job_design(job, design.name, plain, draft=True)
    changed = list_differences(_normalize_for_comparison(design, layers), read)
    notes = (note for note in job.notes if note.code != NO_EFFECT_CODE)
    return [*(_make_omission(each, tool) for each in changed), *_transfer_omissions(design, tool), *notes]


def _make_omission(difference: Difference, tool: str) -> Problem:
    name, before, after = difference
    params = {"name": name, "value": before, "tool": tool, "read": after}
    return Problem(name, "changed_by_export", params, "warning")


def _transfer_omissions(design: Design, tool: str) -> list[Problem]:
    if design.meshes[0].tp == 1 or len(design.meshes) == 1:
        return []
    return [
        Problem("transfer", "counterpart_transfers", {"strategy": design.transfer.strategy, "tool": tool}, "warning")
    ]


def _normalize_for_comparison(design: Design, layers: Sequence[int]) -> Design:
    """Return a design in the form that importing its job gives, so that both can be compared."""
    document, mesh = design.model_dump(mode="json"), design.meshes[0]
    assert isinstance(design.model, LanguageModel)
    document["model"] = transformer_section(design.model)
    document["pipeline"] |= {"stages": list(layers) if len(layers) > 1 else None, "placement": None}
    if document["pipeline"].get("group") == len(design.meshes):
        document["pipeline"]["group"] = None
    axes = _mesh_axes(mesh.dp // mesh.cp, mesh.cp, mesh.tp)
    for each, drawn in zip(document["meshes"], design.meshes, strict=True):
        each |= {"axes": axes, "devices": list(drawn.ordered_devices)}
    if design.model.moe is not None:
        ep, esp = expert_group_sizes(design, mesh)
        document["experts"] |= {"ep": ep, "esp": esp, "degree": document["experts"]["degree"] or 1}
    else:
        document["experts"] = {}
    training = document["training"]
    if training["eval_every"] is None:
        usual = Training()
        training |= {"eval_batches": usual.eval_batches, "eval_share": usual.eval_share}
    if training["lr_schedule"] == "constant":
        training |= {"min_lr_factor": 0.0, "decay_steps": None}
    if training["precision"] != "bf16":
        training["bf16_gradients"] = False
    if mesh.dp == 1:
        training["gradient_buckets"] = 1
    if mesh.cp == 1:
        training["context_parallel"] = Training().context_parallel
    document["cost"]["stage_costs"] = None
    return parse_design(document, draft=True)


messages.add_messages(
    changed_by_export="{name}: {value} ({tool}: {read})",
    counterpart_transfers="transfer: {strategy} ({tool} sends from each device to its counterpart)",
)
