"""The parts of a design that a profile has not measured."""

from __future__ import annotations

from collections.abc import Iterator

from meshwave.engine.costs.device_sizes import workload
from meshwave.engine.costs.profile import Block, BlockKind, Profile
from meshwave.engine.costs.profile_prices import _blocks
from meshwave.engine.document import Design
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.findings import Problem

Told = tuple[str, str, str]
"""Where, code and message."""
BEYOND = 1.25
"""How far from what was measured a size may lie before it is told of."""


def outside(design: Design, profile: Profile) -> list[Problem]:
    """Warnings of the parts of a design that lie outside of what a profile has measured."""
    computed = _outside_of_blocks(design, profile) if profile.blocks else _outside_of_a_run(design, profile)
    sent = (*_outside_of_links(design, profile), *_outside_of_collectives(design, profile))
    found = (*computed, *(sent if _goes_over_measured_links(design) else ()))
    return [Problem(*each, "warning") for each in found]


def _goes_over_measured_links(design: Design) -> bool:
    """Not where somebody says that the cluster's links are others."""
    return not design.cost.profile_name or not design.cost.links_are_drawn


def _outside_of_blocks(design: Design, profile: Profile) -> Iterator[Told]:
    model, training = design.model, design.training
    blocks = {block.kind: block for block in _blocks(profile, training.precision)}
    known = {block.precision for block in profile.blocks}
    if training.precision not in known:
        message = (
            f"the profile has blocks in {' and '.join(sorted(known))} only; {training.precision} is priced as those"
        )
        yield "training.precision", "unmeasured", message
    if not any(line.optimizer == training.optimizer for line in profile.optimizer):
        yield (
            "training.optimizer",
            "unmeasured",
            f"the profile has no {training.optimizer}; its update is priced by bytes",
        )
    if not isinstance(model, LanguageModel):
        message = f"the profile has no blocks of a {model.kind}; their products are priced as those of dense layers"
        yield "model.kind", "unmeasured", message
        return
    wanted: dict[BlockKind, tuple[bool, str, str]] = {
        "experts": (model.moe is not None, "model.moe", "layers with experts"),
        "joining": (bool(model.skips), "model.kind", "layers that skip connections end in"),
    }
    for kind, (asked, where, words) in wanted.items():
        if asked and kind not in blocks:
            yield where, "unmeasured", f"the profile has no {words}; their products are priced as those of dense layers"
    if "layer" in blocks:
        yield from _sizes_outside(design, blocks["layer"])
    if "head" in blocks:
        yield from _size_outside("model.vocab", "vocabulary", model.vocab, blocks["head"].span("vocab"))


def _sizes_outside(design: Design, layers: Block) -> Iterator[Told]:
    model = design.model
    yield from _size_outside("model.hidden", "hidden size", model.hidden, layers.span("hidden"))
    yield from _size_outside("model.sequence", "sequence", model.sequence, layers.span("sequence"))
    tokens = max(workload(design, mesh).tokens for mesh in design.meshes)
    yield from _size_outside("training.micro_batch_size", "microbatch in tokens", tokens, layers.span("tokens"))


def _size_outside(where: str, words: str, size: float, span: tuple[float, float]) -> Iterator[Told]:
    least, most = span
    if not least / BEYOND <= size <= most * BEYOND:
        message = (
            f"a {words} of {size:g} lies outside of what was measured ({least:g} to {most:g}); "
            "its seconds are the line's, drawn further"
        )
        yield where, "unmeasured", message


def _outside_of_a_run(design: Design, profile: Profile) -> Iterator[Told]:
    if not profile.actions:
        yield "cost.profile", "unmeasured", "the profile has no blocks and no run; computations are priced by roofline"
        return
    known = {each.tp for each in profile.actions}
    for number, mesh in enumerate(design.meshes):
        if mesh.tp not in known:
            listed = " and ".join(map(str, sorted(known)))
            yield f"meshes[{number}].axes.tp", "unmeasured", f"the run had tp={listed}; tp={mesh.tp} is priced as that"
            return


def _outside_of_links(design: Design, profile: Profile) -> Iterator[Told]:
    known = {line.pair for line in profile.links}
    nodes = {design.cluster.node_of(device) for mesh in design.meshes for device in mesh.devices}
    if len(nodes) > 1 and "across_nodes" not in known:
        yield "cluster.inter_node", "unmeasured", "no link between nodes was measured; messages there are as drawn"
    if sum(len(mesh.devices) for mesh in design.meshes) > len(nodes) and "same_node" not in known:
        yield "cluster.intra_node", "unmeasured", "no link inside a node was measured; messages there are as drawn"


def _outside_of_collectives(design: Design, profile: Profile) -> Iterator[Told]:
    """Of the cuts of layers, which wait for each other several times a layer; those of copies come once a step."""
    known = {each.size for each in profile.collectives if each.collective == "all_reduce"}
    for number, mesh in enumerate(design.meshes):
        if profile.blocks and mesh.tp > 1 and mesh.tp not in known:
            message = f"no all-reduce of {mesh.tp} devices was measured; it is priced as a ring over the links"
            yield f"meshes[{number}].axes.tp", "unmeasured", message
            return
