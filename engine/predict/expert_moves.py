"""Cost of the moves of experts to other devices during training (``experts.rebalance_steps``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwave.engine.costs.alpha_beta import Message, collective_seconds, transfer_seconds
from meshwave.engine.costs.expert_blocks import expert_counts, expert_sharing
from meshwave.engine.costs.flops import optimizer_state_bytes
from meshwave.engine.costs.operators import element_sizes
from meshwave.engine.costs.sharding import expert_reduction_seconds
from meshwave.engine.document import Design, Mesh
from meshwave.engine.document.expert_layers import ResolvedLayer, resolve_expert_layer
from meshwave.engine.experts import Placement, expert_schedules
from meshwave.engine.program.program import Program


class ExpertMoves(NamedTuple):
    """Cost of a change of the placement after which every expert of every layer is on another device.

    No change costs more; which experts move depends on the load that training measures.
    """

    every_steps: int
    """Number of steps between two checks of the load."""
    expert_bytes: float
    """Weights and optimizer state of an expert, or of its shard, on one device."""
    exchange_s: float
    """Seconds in which two devices exchange one expert each, the smallest change."""
    largest_s: float
    """Seconds of the largest change."""
    largest_share: float
    """Seconds of the largest change relative to those of the steps between two checks."""


def find_expert_moves(design: Design, program: Program, layers: Sequence[int], makespan_s: float) -> ExpertMoves | None:
    """Return the cost of moves of experts; None if experts do not move.

    Args:
        design: the design, with the links that determine the duration of messages.
        program: its program.
        layers: number of layers of each stage.
        makespan_s: step time in seconds.
    """
    every = design.experts.rebalance_steps
    if every is None or design.model.moe is None:
        return None
    counts = expert_counts(design, layers)
    exchange_s, largest_s, size = 0.0, [0.0] * program.ranks, 0.0
    for rank, mesh in enumerate(design.meshes):
        for stage in program.stages_of(rank):
            copies = [design.meshes[other] for other in program.ranks_of(stage)]
            for number, count in counts[stage].items():
                resolved = resolve_expert_layer(design, mesh, number)
                one, every_other = _changes(expert_places(resolved))
                exchange_s = max(exchange_s, move_seconds(design, mesh, resolved, one, copies))
                largest_s[rank] += count * move_seconds(design, mesh, resolved, every_other, copies)
                size = _expert_bytes(design, resolved)
    return ExpertMoves(every, size, exchange_s, max(largest_s), max(largest_s) / (every * makespan_s))


def _changes(before: Placement) -> tuple[Placement, Placement]:
    """Return the placements after the smallest change, a swap of two experts, and after the largest, a move of all of them.

    Each moved expert moves by half of the number of places.
    """
    half = len(before) // 2
    one = [list(held) for held in before]
    one[0][0], one[half][0] = one[half][0], one[0][0]
    return tuple(map(tuple, one)), before[half:] + before[:half]


def expert_places(resolved: ResolvedLayer) -> Placement:
    """Return the experts of each place of a layer."""
    return resolved.layer.experts_by_place(resolved.layer.size(expert_schedules[resolved.schedule].places))


def move_seconds(
    design: Design, mesh: Mesh, resolved: ResolvedLayer, after: Placement, copies: Sequence[Mesh]
) -> float:
    """Return the seconds to move the experts of a layer on a mesh to other places.

    All messages are sent at once. Sharded states are gathered before, over the ``copies`` of the stage: the meshes that
    hold it.
    """
    size, before = _expert_bytes(design, resolved), expert_places(resolved)
    seconds = transfer_seconds(design.cluster, _messages(mesh, resolved, before, after, size))
    if design.training.sharding == "none":
        return seconds
    held, parts = size * max(map(len, before)), expert_sharing(design, copies)[0]
    return seconds + expert_reduction_seconds(design.cluster, parts, held, collective_seconds, rounds=1)


def _shards(resolved: ResolvedLayer) -> int:
    return resolved.layer.esp if expert_schedules[resolved.schedule].shards_experts else 1


def _expert_bytes(design: Design, resolved: ResolvedLayer) -> float:
    of_parameter = element_sizes(design.training).weights + optimizer_state_bytes(design.training)
    return resolved.layer.expert_parameters(_shards(resolved)) * of_parameter


def _messages(
    mesh: Mesh, resolved: ResolvedLayer, before: Placement, after: Placement, size: float
) -> Iterator[Message]:
    """Yield the messages of a change of the placement, in every block of devices that holds all experts."""
    places, shards = {expert: place for place, held in enumerate(after) for expert in held}, _shards(resolved)
    moves = [(place, places[expert]) for place, held in enumerate(before) for expert in held]
    for first in range(0, len(mesh.devices), resolved.layer.devices):
        block = mesh.ordered_devices[first : first + resolved.layer.devices]
        for source, target in moves:
            for shard in range(shards):
                yield Message(block[source * shards + shard], block[target * shards + shard], size)
