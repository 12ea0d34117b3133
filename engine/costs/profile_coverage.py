"""Coverage of a design by a calibration profile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwave.engine.costs.device_sizes import device_workload
from meshwave.engine.costs.profile import Block, BlockKind, Profile
from meshwave.engine.costs.profile_prices import block_lines
from meshwave.engine.document import Design
from meshwave.engine.document.architecture import PLAIN
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.findings import Problem

Place = tuple[str, str, dict[str, Any]]
"""Location, code and parameters of a warning."""
TOLERANCE = 1.25
"""Largest factor by which a size may lie outside the measured range without a warning."""


def coverage_warnings(design: Design, profile: Profile) -> list[Problem]:
    """Return a warning for each part of a design that a profile does not cover."""
    computed = _uncovered_blocks(design, profile) if profile.blocks else _uncovered_actions(design, profile)
    sent = (*_uncovered_links(design, profile), *_uncovered_collectives(design, profile))
    found = (*computed, *(sent if _uses_measured_links(design) else ()))
    return [Problem(*each, "warning") for each in found]


def _uses_measured_links(design: Design) -> bool:
    """Return True if the measured links are used; a design can disable them."""
    return not design.cost.profile_name or not design.cost.links_are_drawn


def _uncovered_blocks(design: Design, profile: Profile) -> Iterator[Place]:
    model, training = design.model, design.training
    blocks = {block.kind: block for block in block_lines(profile, training.product_precision)}
    known = {block.precision for block in profile.blocks}
    if training.product_precision not in known:
        measured = {"measured": sorted(known), "precision": training.product_precision}
        yield "training.precision", "unmeasured_precision", measured
    if not any(line.optimizer == training.optimizer for line in profile.optimizer):
        yield "training.optimizer", "unmeasured_optimizer", {"optimizer": training.optimizer}
    if not isinstance(model, LanguageModel):
        yield "model.kind", "unmeasured_blocks", {"blocks": f"blocks of a {model.kind}"}
        return
    if model.architecture != PLAIN:
        yield "model.kind", "unmeasured_blocks", {"blocks": "layers of this architecture"}
    wanted: dict[BlockKind, tuple[bool, str, str]] = {
        "experts": (model.moe is not None, "model.moe", "layers with experts"),
        "joining": (bool(model.skips), "model.kind", "layers with incoming skip connections"),
    }
    for kind, (is_used, where, blocks_of_kind) in wanted.items():
        if is_used and kind not in blocks:
            yield where, "unmeasured_blocks", {"blocks": blocks_of_kind}
    if "layer" in blocks:
        yield from _uncovered_sizes(design, blocks["layer"])
    if "head" in blocks:
        yield from _uncovered_size("model.vocab", "vocabulary", model.vocab, blocks["head"].value_range("vocab"))


def _uncovered_sizes(design: Design, layers: Block) -> Iterator[Place]:
    model = design.model
    yield from _uncovered_size("model.hidden", "hidden size", model.hidden, layers.value_range("hidden"))
    yield from _uncovered_size("model.sequence", "sequence", model.sequence, layers.value_range("sequence"))
    tokens = max(device_workload(design, mesh).tokens for mesh in design.meshes)
    yield from _uncovered_size(
        "training.micro_batch_size", "microbatch in tokens", tokens, layers.value_range("tokens")
    )


def _uncovered_size(where: str, quantity: str, size: float, span: tuple[float, float]) -> Iterator[Place]:
    least, most = span
    if not least / TOLERANCE <= size <= most * TOLERANCE:
        yield where, "unmeasured_size", {"quantity": quantity, "size": size, "least": least, "most": most}


def _uncovered_actions(design: Design, profile: Profile) -> Iterator[Place]:
    if not profile.actions:
        yield "cost.profile", "unmeasured_computations", {}
        return
    known = {each.tp for each in profile.actions}
    for number, mesh in enumerate(design.meshes):
        if mesh.tp not in known:
            params = {"measured": sorted(known), "tp": mesh.tp}
            yield f"meshes[{number}].axes.tp", "unmeasured_tensor_parallelism", params
            return


def _uncovered_links(design: Design, profile: Profile) -> Iterator[Place]:
    known = {line.pair for line in profile.links}
    nodes = {design.cluster.node_of(device) for device in design.process_devices}
    if len(nodes) > 1 and "across_nodes" not in known:
        yield "cluster.inter_node", "unmeasured_inter_node_link", {}
    if sum(len(mesh.devices) for mesh in design.meshes) > len(nodes) and "same_node" not in known:
        yield "cluster.intra_node", "unmeasured_intra_node_link", {}


def _uncovered_collectives(design: Design, profile: Profile) -> Iterator[Place]:
    """Yield the tensor-parallel all-reduces that were not measured; they occur several times per layer."""
    known = {each.size for each in profile.collectives if each.collective == "all_reduce"}
    for number, mesh in enumerate(design.meshes):
        if profile.blocks and mesh.tp > 1 and mesh.tp not in known:
            yield f"meshes[{number}].axes.tp", "unmeasured_all_reduce", {"devices": mesh.tp}
            return
