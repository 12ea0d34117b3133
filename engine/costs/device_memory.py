"""Peak memory of every device of a design by category, for groups of equal devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from meshwave.engine.costs.cost_model import Costs, costs_of_device
from meshwave.engine.costs.expert_blocks import unequal_expert_devices
from meshwave.engine.costs.memory import PeakMemory, peak_memory
from meshwave.engine.document import Design
from meshwave.engine.program.program import Program


class DeviceMemory(NamedTuple):
    """Devices with equal peak memory, and the bytes of one of them by category at the time of the peak."""

    meshes: tuple[str, ...]
    devices: tuple[int, ...]
    by_category: Mapping[str, float]

    @property
    def total_bytes(self) -> float:
        """Peak bytes of one of the devices."""
        return sum(self.by_category.values())

    def as_data(self) -> dict[str, Any]:
        """Return the entry of ``meshwave simulate --json``."""
        return {
            "meshes": list(self.meshes),
            "devices": list(self.devices),
            "peak_memory_bytes": self.total_bytes,
            "memory_bytes": dict(self.by_category),
        }


def device_memory(design: Design, program: Program, costs: Costs, fullest: PeakMemory) -> list[DeviceMemory]:
    """Return the peak memory of all devices, as groups of equal devices of a mesh.

    The devices of a mesh hold equal parts of the model and of a microbatch, except for experts: a placement or a load
    gives them different numbers of experts, or of rows to compute.

    Args:
        design: the design.
        program: its program.
        costs: costs of the program.
        fullest: peak memory of the fullest device of each mesh.
    """
    return list(_groups(design, program, costs, fullest))


def _groups(design: Design, program: Program, costs: Costs, fullest: PeakMemory) -> Iterator[DeviceMemory]:
    known: dict[int, PeakMemory] = {}
    for rank, mesh in enumerate(design.meshes):
        groups = unequal_expert_devices(design, mesh)
        for indices in groups:
            first, peak = indices[0], fullest
            if len(groups) > 1:
                if first not in known:
                    known[first] = peak_memory(program, costs_of_device(design, program, costs, first))
                peak = known[first]
            held = {kind: float(sizes[rank]) for kind, sizes in peak.by_category.items()}
            yield DeviceMemory((mesh.name,), tuple(sorted(mesh.ordered_devices[each] for each in indices)), held)


def join_equal_devices(groups: Iterable[DeviceMemory]) -> list[DeviceMemory]:
    """Return the groups with those of different meshes joined if their devices hold the same bytes."""
    joined: dict[tuple[float, ...], DeviceMemory] = {}
    for group in groups:
        key = tuple(round(size) for size in group.by_category.values())
        meshes, devices, held = joined.get(key, ((), (), group.by_category))
        # a mesh is named once, though several of its groups may hold the same bytes, of different experts
        names = tuple(dict.fromkeys((*meshes, *group.meshes)))
        joined[key] = DeviceMemory(names, tuple(sorted((*devices, *group.devices))), held)
    return list(joined.values())
