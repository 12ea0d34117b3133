"""Unit tasks: one distinct slice each, all who own it, and all who need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

from meshwave.engine.resharding.boxes import (
    Box,
    Mesh,
    SpecError,
    addend_groups,
    boxes,
    is_empty,
    nth_piece,
    overlap,
    split_spec,
    volume,
)

Side = tuple[Mesh, Sequence[str]]
"""A mesh, and how a tensor lies on it."""
Holders = Mapping[Box, Mapping[int, tuple[int, ...]]]
"""Of each distinct slice the ranks that can send it, each with the ranks whose addends it needs; see UnitTask."""
Needers = Mapping[Box, Sequence[tuple[int, ...]]]
"""Of each distinct slice the ranks that need it, as rings; see UnitTask."""


@dataclass(frozen=True)
class Tensor:
    shape: tuple[int, ...]
    item_bytes: int

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.item_bytes


@dataclass(frozen=True)
class Load:
    """One tensor to transfer: where it lies and where it is wanted."""

    tensor: Tensor
    source: Side
    destination: Side
    name: str = ""

    @cached_property
    def owned(self) -> dict[int, Box]:
        """The box of each rank of the source."""
        return _boxes(self.source, self.tensor)

    @cached_property
    def needed(self) -> dict[int, Box]:
        """The box of each rank of the destination."""
        return _boxes(self.destination, self.tensor)


@dataclass(frozen=True)
class UnitTask:
    """A slice that goes from any of ``senders`` to all of ``receivers``; ranks ascending."""

    box: Box
    bytes: int
    elements: int
    senders: tuple[int, ...]
    receivers: tuple[int, ...]  # those that must get it, owners left out
    keepers: tuple[int, ...]  # ranks of both meshes that own it already: they copy it from themselves
    addends: tuple[tuple[int, ...], ...] = ()
    """For each sender the ranks, itself included, whose slices it adds in this order; none of a tensor that is whole."""
    rings: tuple[tuple[int, ...], ...] = ()
    """Receivers and keepers in rings: the first of each gets the slice and it is handed on; none: no rings."""
    tensor: int = 0
    """Its place among the tensors of the transfer."""

    def addends_of(self, sender: int) -> tuple[int, ...]:
        """Return the ranks whose slices ``sender`` adds, itself included; none of a tensor that is whole."""
        return self.addends[self.senders.index(sender)] if self.addends else ()


class Move(NamedTuple):
    """One message: elements ``start`` to ``stop`` of a unit task's slice, flattened row-major."""

    task: int
    source: int  # ranks
    target: int
    start: int
    stop: int

    @property
    def elements(self) -> int:
        return self.stop - self.start

    def is_addend(self, task: UnitTask) -> bool:
        """Whether it brings its sender's own part of a sum, and not the slice itself."""
        return bool(task.addends) and self.target in task.senders


def unit_tasks(
    tensor: Tensor, source: Mesh, source_spec: Sequence[str], destination: Mesh, destination_spec: Sequence[str]
) -> list[UnitTask]:
    """Every slice of the tensor once: destination box by destination box, source box by source box,
    each row-major by start (arXiv:2211.05322, section 3).

    Raises:
        SpecError: a spec does not fit its mesh or the tensor.
    """
    load = Load(tensor, (source, source_spec), (destination, destination_spec))
    return cut(load, holders(load), needers(load))


def holders(load: Load) -> Holders:
    """The slices that the source holds. Of a partial tensor each rank of a group of addends is to add one piece.

    Raises:
        SpecError: the spec does not fit its mesh or the tensor.
    """
    groups = addend_groups(*load.source) if split_spec(load.source[1])[1] else {}
    found: dict[Box, dict[int, tuple[int, ...]]] = {}
    for rank, box in load.owned.items():
        group = groups.get(rank, (rank,))
        piece = nth_piece(box, len(group), group.index(rank))
        if piece is not None:
            found.setdefault(piece, {})[rank] = group
    return found


def needers(load: Load) -> Needers:
    """The slices that the destination needs, each rank in a ring of its own.

    Raises:
        SpecError: the spec does not fit its mesh or the tensor, or is partial.
    """
    check_load(load)
    found: dict[Box, list[tuple[int, ...]]] = {}
    for rank, box in load.needed.items():
        if not is_empty(box):
            found.setdefault(box, []).append((rank,))
    return found


def check_load(load: Load) -> None:
    """Look whether both ends of a tensor can be.

    Raises:
        SpecError: a spec does not fit its mesh or the tensor, or the destination is partial.
    """
    _ = load.owned, load.needed  # made once, and refused where a spec does not fit
    if split_spec(load.destination[1])[1]:
        raise SpecError(len(load.tensor.shape), "partial_destination")


def cut(load: Load, held: Holders, needed: Needers, number: int = 0) -> list[UnitTask]:
    """The unit tasks of the ``number``-th tensor of a transfer: every slice that is both held and needed as one."""
    found = []
    for wanted, rings in sorted(needed.items()):
        for owned, groups in sorted(held.items()):
            shared = overlap(owned, wanted)
            if shared is not None or not load.tensor.shape:
                found.append(_task(load.tensor, number, shared or (), groups, rings))
    return found


def _task(
    tensor: Tensor, number: int, box: Box, groups: Mapping[int, tuple[int, ...]], rings: Sequence[tuple[int, ...]]
) -> UnitTask:
    wanted = {rank for ring in rings for rank in ring}
    senders = tuple(sorted(groups))
    is_partial = any(len(group) > 1 for group in groups.values())
    if is_partial and wanted.intersection(senders):
        senders = (min(wanted.intersection(senders)),)  # a sum is made in one place: where it is needed
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


def _boxes(side: Side, tensor: Tensor) -> dict[int, Box]:
    mesh, spec = side
    return dict(zip(mesh.ranks, boxes(mesh, spec, tensor.shape), strict=True))
