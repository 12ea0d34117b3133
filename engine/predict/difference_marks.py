"""Marks at each place of a drawn design where it differs from another design: meshes, stages, layers, experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from meshwave.engine.document import Design
from meshwave.engine.document.differences import match_meshes, mesh_differences
from meshwave.engine.predict.prediction import Prediction


class MeshMark(NamedTuple):
    """A mesh that differs; ``devices`` are those of the other design, as the cluster of the drawn design numbers them."""

    kind: Literal["added", "removed", "moved", "resized", "axes"]
    name: str
    rank: int  # -1 if the drawn design does not have it
    devices: tuple[int, ...]
    words: str


class StageMark(NamedTuple):
    """A stage that differs; a stage can have a mark of each kind."""

    kind: Literal["added", "moved", "layers"]
    stage: int
    replica: int
    mesh: int  # rank of the mesh that holds it in the other design; -1 if the drawn design has no such mesh
    layers: int  # additional layers
    words: str


class ExpertMark(NamedTuple):
    """Replica of an expert that only one of two designs has at a place of the expert-parallel group."""

    kind: Literal["added", "removed"]
    expert: int
    place: int
    words: str


def mesh_marks(drawn: Design, other: Design) -> list[MeshMark]:
    """Return the marks of the meshes that differ from those of another design.

    Devices of the other design are at the same position in the same node; those outside the drawn cluster are left out.
    """
    nodes, columns, width = drawn.cluster.nodes, drawn.cluster.devices_per_node, other.cluster.devices_per_node

    def place(rank: int) -> tuple[int, ...]:
        found = (divmod(device, width) for device in other.meshes[rank].devices)
        return tuple(node * columns + column for node, column in found if node < nodes and column < columns)

    return [
        MeshMark(
            found.kind,
            found.name,
            found.ranks[1],
            place(found.ranks[0]) if found.ranks[0] >= 0 else (),
            f"mesh {found.name}: {found.before} -> {found.after}",
        )
        for found in mesh_differences(other, drawn)
    ]


def stage_marks(drawn: Prediction, other: Prediction) -> list[StageMark]:
    """Return the marks of the stages that are on another mesh, or have other layers, than in another design."""
    matched = match_meshes(other.design, drawn.design)
    routes = other.program.placement.tolist()
    names = [mesh.name for mesh in drawn.design.meshes]
    marks = []
    for replica, route in enumerate(drawn.program.placement.tolist()):
        known = routes[replica] if replica < len(routes) else []
        for stage, mesh in enumerate(route):
            name = f"stage {stage} of replica {replica}" if replica else f"stage {stage}"
            if stage >= len(known):
                marks.append(StageMark("added", stage, replica, -1, 0, f"{name}: none -> mesh {names[mesh]}"))
            elif matched.get(known[stage], -1) != mesh:
                before = other.design.meshes[known[stage]].name
                words = f"{name}: mesh {before} -> mesh {names[mesh]}"
                marks.append(StageMark("moved", stage, replica, matched.get(known[stage], -1), 0, words))
    return [*marks, *_layer_marks(drawn, other)]


def _layer_marks(drawn: Prediction, other: Prediction) -> Iterator[StageMark]:
    pairs = zip(other.costs.layers, drawn.costs.layers, strict=False)
    for stage, (before, now) in enumerate(pairs):
        if before != now:
            yield StageMark("layers", stage, 0, -1, now - before, f"stage {stage}: {before} -> {now} layers")


def expert_marks(
    drawn: Sequence[Sequence[int]], other: Sequence[Sequence[int]], names: Sequence[str]
) -> list[ExpertMark]:
    """Return the marks of the experts that are at different places in two designs.

    ``drawn`` and ``other`` are the experts of each place; ``names`` are the names of the places. Designs with different
    numbers of places have no marks.
    """
    if len(drawn) != len(other):
        return []
    marks = []
    for place, (now, before) in enumerate(zip(drawn, other, strict=True)):
        marks += [
            ExpertMark("added", each, place, f"expert {each}: added on {names[place]}")
            for each in now
            if each not in before
        ]
        marks += [
            ExpertMark("removed", each, place, f"expert {each}: removed from {names[place]}")
            for each in before
            if each not in now
        ]
    return marks
