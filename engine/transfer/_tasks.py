"""Unit tasks: one distinct slice each, all who own it, and all who need it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from engine.transfer._boxes import Box, Mesh, boxes, is_empty, overlap, volume


@dataclass(frozen=True)
class Tensor:
    shape: tuple[int, ...]
    item_bytes: int

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.item_bytes


@dataclass(frozen=True)
class UnitTask:
    """A slice that goes from any of ``senders`` to all of ``receivers``; ranks ascending."""

    box: Box
    bytes: int
    elements: int
    senders: tuple[int, ...]
    receivers: tuple[int, ...]  # those that must get it, owners left out
    keepers: tuple[int, ...]  # ranks of both meshes that own it already: they copy it from themselves


def unit_tasks(
    tensor: Tensor, source: Mesh, source_spec: Sequence[str], destination: Mesh, destination_spec: Sequence[str]
) -> list[UnitTask]:
    """Every slice of the tensor once: destination box by destination box, source box by source box,
    each row-major by start (arXiv:2211.05322, section 3).

    Raises:
        SpecError: a spec does not fit its mesh or the tensor.
    """
    owners = _by_box(source, boxes(source, source_spec, tensor.shape))
    needers = _by_box(destination, boxes(destination, destination_spec, tensor.shape))
    found = []
    for needed, receivers in sorted(needers.items()):
        for owned, senders in sorted(owners.items()):
            shared = overlap(owned, needed)
            if shared is not None or not tensor.shape:
                box: Box = shared or ()
                own = tuple(sorted(set(senders) & set(receivers)))
                need = tuple(sorted(set(receivers) - set(own)))
                elements = volume(box)
                found.append(UnitTask(box, elements * tensor.item_bytes, elements, tuple(sorted(senders)), need, own))
    return found


def _by_box(mesh: Mesh, owned: Sequence[Box]) -> dict[Box, list[int]]:
    """The ranks that own each box; empty boxes are owned by nobody."""
    found: dict[Box, list[int]] = {}
    for rank, box in zip(mesh.ranks, owned, strict=True):
        if not is_empty(box):
            found.setdefault(box, []).append(rank)
    return found
