"""From a mesh and a sharding spec to the box of the tensor that each rank owns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

Box = tuple[tuple[int, int], ...]
"""``[dims]`` start and stop of an index rectangle; empty where a start is its stop."""

_ENTRY = re.compile(r"R|S\d+")


class SpecError(ValueError):
    """A spec that cannot be: the tensor dim that is wrong, and why."""

    def __init__(self, dim: int | None, message: str) -> None:
        super().__init__(message)
        self.dim = dim


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


def axes_of(spec: Sequence[str], mesh: Mesh, shape: Sequence[int]) -> list[tuple[int, ...]]:
    """``[dims]`` the mesh axes that cut each tensor dim, outer first.

    Raises:
        SpecError: an entry is no ``R`` or ``S`` with axes, an axis is not there or cuts twice, or the
            spec has not one entry a dim.
    """
    if len(spec) != len(shape):
        raise SpecError(None, f"the tensor has {len(shape)} dims and the spec {len(spec)} entries; give one a dim")
    seen: dict[int, int] = {}
    found = []
    for dim, entry in enumerate(spec):
        if not _ENTRY.fullmatch(entry):
            raise SpecError(dim, f"{entry!r} is no sharding; use R, or S with mesh axes such as S0 or S01")
        axes = tuple(map(int, entry[1:]))
        for axis in axes:
            if axis >= len(mesh.shape):
                raise SpecError(dim, f"{entry} names axis {axis}, and the mesh has axes 0 to {len(mesh.shape) - 1}")
            if axis in seen:
                again = "twice" if seen[axis] == dim else f"dims {seen[axis]} and {dim}"
                raise SpecError(dim, f"axis {axis} cuts {again}; an axis cuts one dim once")
            seen[axis] = dim
        found.append(axes)
    return found


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
        at = _coordinates(place, mesh.shape)
        owned.append(tuple(_piece(size, axes, at, mesh.shape) for size, axes in zip(shape, cuts, strict=True)))
    return owned


def _coordinates(place: int, shape: Sequence[int]) -> list[int]:
    found: list[int] = []
    for size in reversed(shape):
        place, at = divmod(place, size)
        found.insert(0, at)
    return found


def _piece(size: int, axes: Sequence[int], at: Sequence[int], shape: Sequence[int]) -> tuple[int, int]:
    start, stop = 0, size
    for axis in axes:
        each = -(-(stop - start) // shape[axis])
        first = min(start + at[axis] * each, stop)
        start, stop = first, min(first + each, stop)
    return start, stop


def is_empty(box: Box) -> bool:
    return any(start >= stop for start, stop in box)


def volume(box: Box) -> int:
    """Elements; 1 of a tensor without dims."""
    return prod(stop - start for start, stop in box)


def overlap(one: Box, other: Box) -> Box | None:
    """What two boxes share; none where that is empty."""
    shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return None if is_empty(shared) else shared
