"""From a mesh and a sharding spec to the box of the tensor that each rank owns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from meshwave.engine.findings import Problem

Box = tuple[tuple[int, int], ...]
"""``[dims]`` start and stop of an index rectangle; empty where a start is its stop."""

_ENTRY = re.compile(r"R|S\d+")
_PARTIAL = re.compile(r"P\d+")


class SpecError(ValueError):
    """An invalid sharding spec: the tensor dim that is wrong, or None for the whole spec, and the problem."""

    def __init__(self, dim: int | None, code: str, **params: Any) -> None:
        self.dim, self.problem = dim, Problem("", code, params)
        super().__init__(self.problem.message)


@dataclass(frozen=True)
class Mesh:
    """Ranks in a grid, row-major over its axes, each on a host."""

    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    hosts: tuple[int, ...]  # of each rank, in the same order

    def __post_init__(self) -> None:
        if prod(self.shape) != len(self.ranks) or len(self.ranks) != len(self.hosts):
            message = f"a mesh of {' x '.join(map(str, self.shape))} has {prod(self.shape)} ranks, each with a host"
            raise ValueError(message)

    def host(self, rank: int) -> int:
        return self.hosts[self.ranks.index(rank)]


def split_spec(spec: Sequence[str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Split a spec into the entries of tensor dims and the mesh axes over which the tensor is partial.

    A spec may end with ``P`` and mesh axes: ranks along them hold addends, and the tensor is their sum.
    """
    if spec and _PARTIAL.fullmatch(spec[-1]):
        return tuple(spec[:-1]), tuple(map(int, spec[-1][1:]))
    return tuple(spec), ()


def axes_of(spec: Sequence[str], mesh: Mesh, shape: Sequence[int]) -> list[tuple[int, ...]]:
    """``[dims]`` the mesh axes that cut each tensor dim, outer first.

    Raises:
        SpecError: an entry is no ``R`` or ``S`` with axes, an axis is not there or is used twice, or the
            spec has not one entry a dim.
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
    """
    Raises:
        SpecError: an axis is not there, or ``seen`` before; the dim after the last one stands for partial axes.
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


def boxes(mesh: Mesh, spec: Sequence[str], shape: Sequence[int]) -> list[Box]:
    """``[ranks]`` what each rank of ``mesh`` owns.

    Each dim is cut once an axis, outer first, and the piece is cut again: pieces of ``ceil(n / p)``, the
    last ones shorter or empty. That is the rule of torch's ``Shard`` placements.

    Raises:
        SpecError: see :func:`axes_of`.
    """
    cuts = axes_of(spec, mesh, shape)
    owned = []
    for place in range(len(mesh.ranks)):
        at = coordinates(place, mesh.shape)
        owned.append(tuple(_piece(size, axes, at, mesh.shape) for size, axes in zip(shape, cuts, strict=True)))
    return owned


def coordinates(place: int, shape: Sequence[int]) -> list[int]:
    """Return where in a mesh of ``shape`` its ``place``-th rank stands, row-major."""
    found: list[int] = []
    for size in reversed(shape):
        place, at = divmod(place, size)
        found.insert(0, at)
    return found


def _piece(size: int, axes: Sequence[int], at: Sequence[int], shape: Sequence[int]) -> tuple[int, int]:
    start, stop = 0, size
    for axis in axes:
        start, stop = _nth(start, stop, shape[axis], at[axis])
    return start, stop


def _nth(start: int, stop: int, parts: int, number: int) -> tuple[int, int]:
    """Pieces of ``ceil(n / parts)``, the last ones shorter or empty."""
    each = -(-(stop - start) // parts)
    first = min(start + number * each, stop)
    return first, min(first + each, stop)


def addend_groups(mesh: Mesh, spec: Sequence[str]) -> dict[int, tuple[int, ...]]:
    """Return for each rank the ranks whose addends make up its box of the tensor, in the order in which they are added.

    A group holds the rank itself, and it alone where the tensor is not partial.
    """
    partial = set(split_spec(spec)[1])
    groups: dict[tuple[int, ...], list[int]] = {}
    for place, rank in enumerate(mesh.ranks):
        at = coordinates(place, mesh.shape)
        groups.setdefault(tuple(-1 if axis in partial else at[axis] for axis in range(len(at))), []).append(rank)
    return {rank: tuple(group) for group in groups.values() for rank in group}


def nth_piece(box: Box, parts: int, number: int) -> Box | None:
    """Cut a box into ``parts`` and return one piece; none where it is empty.

    The first dim that divides evenly is cut, or the longest; one element cannot be cut and is in the first piece.
    """
    if parts == 1 or not box:
        return box if not number and not is_empty(box) else None
    lengths = [stop - start for start, stop in box]
    dim = next((dim for dim, length in enumerate(lengths) if length % parts == 0), lengths.index(max(lengths)))
    start, stop = box[dim]
    first, last = _nth(start, stop, parts, number)
    piece = (*box[:dim], (first, last), *box[dim + 1 :])
    return None if is_empty(piece) else piece


def is_empty(box: Box) -> bool:
    return any(start >= stop for start, stop in box)


def volume(box: Box) -> int:
    """Elements; 1 of a tensor without dims."""
    return prod(stop - start for start, stop in box)


def overlap(one: Box, other: Box) -> Box | None:
    """What two boxes share; none where that is empty."""
    shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return None if is_empty(shared) else shared
