"""Unit tasks: distinct slices of a tensor, each with all its owners and all ranks that need it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import NamedTuple

from meshwave.engine.resharding.boxes import (
    Box,
    Mesh,
    SpecError,
    intersect,
    is_empty,
    nth_piece,
    partial_sum_groups,
    rank_boxes,
    split_spec,
    volume,
)

Side = tuple[Mesh, Sequence[str]]
"""Mesh, and the sharding spec of a tensor on it."""
SliceOwners = Mapping[Box, Mapping[int, tuple[int, ...]]]
"""Ranks that can send each distinct slice, each with the ranks whose partial sums it adds; see :class:`UnitTask`."""
SliceReceivers = Mapping[Box, Sequence[tuple[int, ...]]]
"""Ranks that need each distinct slice, as rings; see :class:`UnitTask`."""


@dataclass(frozen=True)
class Tensor:
    """Shape of a tensor, and its bytes per element."""

    shape: tuple[int, ...]
    item_bytes: int

    @property
    def bytes(self) -> int:
        """Size of the whole tensor in bytes."""
        return prod(self.shape) * self.item_bytes


@dataclass(frozen=True)
class Load:
    """Tensor to be transferred, with its source and its destination."""

    tensor: Tensor
    source: Side
    destination: Side
    name: str = ""

    @cached_property
    def source_boxes(self) -> dict[int, Box]:
        """Box of the tensor on each rank of the source."""
        return _boxes_by_rank(self.source, self.tensor)

    @cached_property
    def destination_boxes(self) -> dict[int, Box]:
        """Box of the tensor on each rank of the destination."""
        return _boxes_by_rank(self.destination, self.tensor)


@dataclass(frozen=True)
class UnitTask:
    """Slice that any one of ``senders`` sends to all ``receivers``; ranks are in ascending order."""

    box: Box
    bytes: int
    elements: int
    senders: tuple[int, ...]
    receivers: tuple[int, ...]  # ranks that need the slice, without owners
    keepers: tuple[int, ...]  # ranks of both meshes that own the slice and copy it locally
    addends: tuple[tuple[int, ...], ...] = ()
    """For each sender the ranks, including itself, whose slices it sums in this order; empty if the tensor is not
    partial."""
    rings: tuple[tuple[int, ...], ...] = ()
    """Receivers and keepers of the slice, in rings; the first rank of a ring receives the slice and the ring forwards it."""
    tensor: int = 0
    """Index of the tensor in the transfer."""

    def ranks_summed_by(self, sender: int) -> tuple[int, ...]:
        """Return the ranks whose slices ``sender`` sums, including itself; empty if the tensor is not partial."""
        return self.addends[self.senders.index(sender)] if self.addends else ()


class Move(NamedTuple):
    """Message of a plan: elements ``start`` to ``stop`` of a unit task's slice, flattened row-major."""

    task: int
    source: int  # ranks
    target: int
    start: int
    stop: int

    @property
    def elements(self) -> int:
        """Number of elements in the message."""
        return self.stop - self.start

    def is_partial_sum(self, task: UnitTask) -> bool:
        """Return True if the message is a partial sum instead of the final slice."""
        return bool(task.addends) and self.target in task.senders


def unit_tasks(
    tensor: Tensor, source: Mesh, source_spec: Sequence[str], destination: Mesh, destination_spec: Sequence[str]
) -> list[UnitTask]:
    """Return one unit task for every distinct slice of a tensor.

    They are ordered by destination box, then by source box, each row-major by start (arXiv:2211.05322, section 3).

    Raises:
        SpecError: a spec does not fit its mesh or the tensor.
    """
    load = Load(tensor, (source, source_spec), (destination, destination_spec))
    return cut_tasks(load, slices_with_owners(load), slices_with_receivers(load))


def slices_with_owners(load: Load) -> SliceOwners:
    """Return the slices that the source can send.

    If the source holds partial sums, each rank of a group adds up one of the slices.

    Raises:
        SpecError: the spec does not fit its mesh or the tensor.
    """
    groups = partial_sum_groups(*load.source) if split_spec(load.source[1])[1] else {}
    found: dict[Box, dict[int, tuple[int, ...]]] = {}
    for rank, box in load.source_boxes.items():
        group = groups.get(rank, (rank,))
        piece = nth_piece(box, len(group), group.index(rank))
        if piece is not None:
            found.setdefault(piece, {})[rank] = group
    return found


def slices_with_receivers(load: Load) -> SliceReceivers:
    """Return the slices that the destination needs, each with rings of a single receiver.

    Raises:
        SpecError: the spec does not fit its mesh or the tensor, or is partial.
    """
    check_load(load)
    found: dict[Box, list[tuple[int, ...]]] = {}
    for rank, box in load.destination_boxes.items():
        if not is_empty(box):
            found.setdefault(box, []).append((rank,))
    return found


def check_load(load: Load) -> None:
    """Check the specs of both sides of a tensor.

    Raises:
        SpecError: a spec does not fit its mesh or the tensor, or the destination is partial.
    """
    _ = load.source_boxes, load.destination_boxes  # cached; raises an exception if a spec does not fit
    if split_spec(load.destination[1])[1]:
        raise SpecError(len(load.tensor.shape), "partial_destination")


def cut_tasks(load: Load, held: SliceOwners, needed: SliceReceivers, number: int = 0) -> list[UnitTask]:
    """Return the unit tasks of tensor ``number`` of a transfer: intersections of held and needed slices."""
    found = []
    owners = sorted(held.items())
    starts, ends = _first_dim(owned for owned, _ in owners)
    for wanted, rings in sorted(needed.items()):
        near = slice(bisect_right(ends, wanted[0][0]), bisect_left(starts, wanted[0][1])) if wanted else slice(None)
        for owned, groups in owners[near]:
            shared = intersect(owned, wanted)
            if shared is not None or not load.tensor.shape:
                found.append(_make_task(load.tensor, number, shared or (), groups, rings))
    return found


def _first_dim(boxes: Iterable[Box]) -> tuple[list[int], list[int]]:
    """Return the starts of sorted boxes in their first dim, and the largest end up to each box; both ascend."""
    ranges = [box[0] for box in boxes if box]
    return [start for start, _ in ranges], list(accumulate((stop for _, stop in ranges), max))


def _make_task(
    tensor: Tensor, number: int, box: Box, groups: Mapping[int, tuple[int, ...]], rings: Sequence[tuple[int, ...]]
) -> UnitTask:
    wanted = {rank for ring in rings for rank in ring}
    senders = tuple(sorted(groups))
    is_partial = any(len(group) > 1 for group in groups.values())
    if is_partial and wanted.intersection(senders):
        senders = (min(wanted.intersection(senders)),)  # a sum is computed once, on a rank that needs it
    own = tuple(sorted(wanted.intersection(senders)))
    need = tuple(sorted(wanted.difference(own)))
    elements = volume(box)
    return UnitTask(
        box,
        elements * tensor.item_bytes,
        elements,
        senders,
        need,
        own,
        tuple(groups[rank] for rank in senders) if is_partial else (),
        tuple(rings) if any(len(ring) > 1 for ring in rings) else (),
        number,
    )


def _boxes_by_rank(side: Side, tensor: Tensor) -> dict[int, Box]:
    mesh, spec = side
    return dict(zip(mesh.ranks, rank_boxes(mesh, spec, tensor.shape), strict=True))
