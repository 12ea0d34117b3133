"""Boxes of a tensor that each rank owns under a sharding spec."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from meshwave.engine.findings import Problem

Box = tuple[tuple[int, int], ...]
"""Start and stop index in each dim, ``[dims]``; the box is empty if a start equals its stop."""

_ENTRY = re.compile(r"R|S\d+")
_PARTIAL = re.compile(r"P\d+")


class SpecError(ValueError):
    """Error in a sharding spec: the tensor dim of the wrong entry, or None for the whole spec, and the problem."""

    def __init__(self, dim: int | None, code: str, **params: Any) -> None:
        self.dim, self.problem = dim, Problem("", code, params)
        super().__init__(self.problem.message)


@dataclass(frozen=True)
class Mesh:
    """Grid of ranks, row-major over its axes, each with its host."""

    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    hosts: tuple[int, ...]  # host of each rank, in the same order

    def __post_init__(self) -> None:
        if prod(self.shape) != len(self.ranks) or len(self.ranks) != len(self.hosts):
            message = f"a mesh of {' x '.join(map(str, self.shape))} needs {prod(self.shape)} ranks and as many hosts"
            raise ValueError(message)

    def host(self, rank: int) -> int:
        """Return the host of a rank."""
        return self.hosts[self.ranks.index(rank)]


def split_spec(spec: Sequence[str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the entries of the tensor dims in a spec, and the mesh axes over which the tensor is partial.

    A spec may end with ``P`` and mesh axes: the ranks along them hold partial sums, and the tensor is the sum of these
    (``Partial`` in DTensor).
    """
    if spec and _PARTIAL.fullmatch(spec[-1]):
        return tuple(spec[:-1]), tuple(map(int, spec[-1][1:]))
    return tuple(spec), ()


def sharding_axes(spec: Sequence[str], mesh: Mesh, shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the mesh axes that shard each tensor dim, ``[dims]``, outer first.

    Raises:
        SpecError: an entry is neither ``R`` nor ``S`` with axes, an axis does not exist or is used twice, or the spec
            does not have one entry per dim.
    """
    entries, partial = split_spec(spec)
    if len(entries) != len(shape):
        raise SpecError(None, "spec_length", dims=len(shape), entries=len(entries))
    seen: dict[int, int] = {}
    found = []
    for dim, entry in enumerate(entries):
        if not _ENTRY.fullmatch(entry):
            raise SpecError(dim, "invalid_sharding", entry=entry)
        axes = tuple(map(int, entry[1:]))
        _check_axes(dim, entry, axes, mesh, seen)
        found.append(axes)
    _check_axes(len(entries), f"P{''.join(map(str, partial))}", partial, mesh, seen)
    return found


def _check_axes(dim: int, entry: str, axes: Sequence[int], mesh: Mesh, seen: dict[int, int]) -> None:
    """Check the axes of an entry, and add them to ``seen``.

    Args:
        dim: tensor dim of the entry; the number of dims for partial axes.
        entry: the entry as text.
        axes: mesh axes of the entry.
        mesh: the mesh.
        seen: dim in which each previous axis is used.

    Raises:
        SpecError: an axis does not exist or is already used.
    """
    for axis in axes:
        if axis >= len(mesh.shape):
            raise SpecError(dim, "unknown_axis", entry=entry, axis=axis, last=len(mesh.shape) - 1)
        if axis in seen:
            repeats = seen[axis] == dim
            code = "repeated_partial_axis" if repeats else "sharded_partial_axis"
            if entry[0] != "P":
                code = "repeated_axis" if repeats else "reused_axis"
            raise SpecError(dim, code, axis=axis, first=seen[axis], second=dim)
        seen[axis] = dim


def rank_boxes(mesh: Mesh, spec: Sequence[str], shape: Sequence[int]) -> list[Box]:
    """Return the box that each rank of ``mesh`` owns, ``[ranks]``.

    Each dim is split once per axis, outer first, into pieces of ``ceil(n / p)``, the last ones shorter or empty, like
    torch's ``Shard`` placements.

    Raises:
        SpecError: see :func:`sharding_axes`.
    """
    cuts = sharding_axes(spec, mesh, shape)
    owned = []
    for place in range(len(mesh.ranks)):
        at = coordinates(place, mesh.shape)
        owned.append(tuple(_piece_range(size, axes, at, mesh.shape) for size, axes in zip(shape, cuts, strict=True)))
    return owned


def coordinates(place: int, shape: Sequence[int]) -> list[int]:
    """Return the row-major coordinates of rank number ``place`` in a mesh of ``shape``."""
    found: list[int] = []
    for size in reversed(shape):
        place, at = divmod(place, size)
        found.insert(0, at)
    return found


def _piece_range(size: int, axes: Sequence[int], at: Sequence[int], shape: Sequence[int]) -> tuple[int, int]:
    start, stop = 0, size
    for axis in axes:
        start, stop = _part_range(start, stop, shape[axis], at[axis])
    return start, stop


def _part_range(start: int, stop: int, parts: int, number: int) -> tuple[int, int]:
    """Return start and stop of one of the pieces of ``ceil(n / parts)``; the last pieces are shorter or empty."""
    each = -(-(stop - start) // parts)
    first = min(start + number * each, stop)
    return first, min(first + each, stop)


def partial_sum_groups(mesh: Mesh, spec: Sequence[str]) -> dict[int, tuple[int, ...]]:
    """Return, for each rank, the ranks whose partial sums add up to its box, in the order of addition.

    A group contains the rank itself, and no other rank if the tensor is not partial.
    """
    partial = set(split_spec(spec)[1])
    groups: dict[tuple[int, ...], list[int]] = {}
    for place, rank in enumerate(mesh.ranks):
        at = coordinates(place, mesh.shape)
        groups.setdefault(tuple(-1 if axis in partial else at[axis] for axis in range(len(at))), []).append(rank)
    return {rank: tuple(group) for group in groups.values() for rank in group}


def nth_piece(box: Box, parts: int, number: int) -> Box | None:
    """Return piece ``number`` of ``parts`` pieces of a box; None if it is empty.

    The first dim that divides evenly is split, else the longest one; a box of one element is the first piece.
    """
    if parts == 1 or not box:
        return box if not number and not is_empty(box) else None
    lengths = [stop - start for start, stop in box]
    dim = next((dim for dim, length in enumerate(lengths) if length % parts == 0), lengths.index(max(lengths)))
    start, stop = box[dim]
    first, last = _part_range(start, stop, parts, number)
    piece = (*box[:dim], (first, last), *box[dim + 1 :])
    return None if is_empty(piece) else piece


def is_empty(box: Box) -> bool:
    """Return True if a box has no elements."""
    return any(start >= stop for start, stop in box)


def volume(box: Box) -> int:
    """Return the number of elements in a box; 1 for a tensor without dims."""
    return prod(stop - start for start, stop in box)


def intersect(one: Box, other: Box) -> Box | None:
    """Return the intersection of two boxes; None if it is empty."""
    shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return None if is_empty(shared) else shared
