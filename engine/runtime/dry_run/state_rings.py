"""Rings of processes that share training state in a dry run: in optimizer steps, and beside computations.

They run all-reduces that send as many bytes as the collectives of training: the reduce-scatter of gloo is an all-reduce, and
sends twice as many as that of other backends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from meshwave.engine.costs.collective_flows import gather_rings, reduction_rings, state_collective_counts, step_rings
from meshwave.engine.costs.device_sizes import device_sizes
from meshwave.engine.costs.expert_blocks import Sharing
from meshwave.engine.document import Design
from meshwave.engine.program.action import Action
from meshwave.engine.runtime.communication.groups import Group
from meshwave.engine.runtime.communication.process_layout import ProcessLayout
from meshwave.engine.runtime.communication.world import World


class RingCollective(NamedTuple):
    """All-reduce over a ring of processes."""

    group: Group
    size: float  # bytes


class StateRings:
    """Rings in which a process takes part; their groups are separate from those of exchanges, which run beside them."""

    def __init__(self, design: Design, layout: ProcessLayout, layers: tuple[int, ...], world: World) -> None:
        """Create the process groups."""
        self._design = design
        self._process_of = dict(zip(design.process_devices, range(layout.processes), strict=True))
        sizes = design, layout.program, device_sizes(design, layout.program, layers)
        steps = step_rings(*sizes)
        self._of_step = steps[layout.rank(world.process)]
        self._beside = (gather_rings(*sizes), reduction_rings(*sizes)) if design.training.shards_gradients else ()
        rings = [ring for of_rank in steps for ring, _ in of_rank]
        rings += [ring for stages in self._beside for of_stage in stages for ring in of_stage]
        self._groups = world.make_groups(map(self._members, rings))

    def step_collectives(self) -> list[RingCollective]:
        """Return the collectives of the optimizer step."""
        return [collective for ring, rounds in self._of_step for collective in self._own(ring, rounds)]

    def collectives_beside(self, action: Action) -> list[RingCollective]:
        """Return the collectives beside a computation."""
        counts = state_collective_counts(self._design, action.op, action.stage)
        return [
            collective
            for stages, count in zip(self._beside, counts, strict=True)
            if count
            for ring in stages[action.stage]
            for collective in self._own(ring, count)
        ]

    def _members(self, ring: Sharing) -> tuple[int, ...]:
        return tuple(self._process_of[device] for device in ring.devices)

    def _own(self, ring: Sharing, rounds: int) -> Iterator[RingCollective]:
        """Yield the collective of a ring, with the bytes of ``rounds`` gathers or scatters, if this process is part of it."""
        group = self._groups.get(self._members(ring))
        if group is not None:
            yield RingCollective(group, rounds / 2 * ring.share)
