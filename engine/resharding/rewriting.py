"""Alpa's rule to send a tensor in smaller parts than its destination needs, and to gather them there.

The rule, taken from Alpa's released sources, shards the destination's spec further, so it applies per tensor instead of
per unit task. If nothing can be sharded further, every receiver is sent its whole box.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import NamedTuple

import numpy as np

from meshwave.engine.resharding.boxes import Mesh, is_empty, rank_boxes
from meshwave.engine.resharding.tasks import Load, SliceReceivers, check_load

MAX_AXES = 10
"""Maximum number of mesh axes, since an entry of a spec names each axis by one digit."""


class RewrittenDestination(NamedTuple):
    """Destination that is sharded further: the same ranks on a mesh with more axes."""

    mesh: Mesh
    spec: tuple[str, ...]
    parts: int  # number of parts of one rank's box, gathered by as many ranks; 1 if nothing was sharded
    groups: tuple[tuple[int, ...], ...] = ()  # rings of ranks that gather from each other


def rewrite_destination(mesh: Mesh, spec: Sequence[str], shape: Sequence[int]) -> RewrittenDestination:
    """Return the destination to which Alpa sends instead, or the given one if nothing can be sharded further.

    On a mesh over several hosts, a dim must be sharded by the first axis, because the gather must stay within a host.
    Then each dim, from left to right, is split into the largest number of additional parts that divides both its length
    on a rank and the remaining copies.
    """
    same = RewrittenDestination(mesh, tuple(spec), 1)
    used = {int(axis) for entry in spec for axis in entry[1:]}
    copied = [axis for axis, size in enumerate(mesh.shape) if axis not in used and size > 1]
    if not copied or _shards_by_first_axis(mesh, spec) < len(set(mesh.hosts)):
        return same
    left = prod(mesh.shape[axis] for axis in copied)
    parts = []
    for size, entry in zip(shape, spec, strict=True):
        more = gcd(left, size // prod(mesh.shape[int(axis)] for axis in entry[1:]))
        parts.append(more)
        left //= more
    if prod(parts) == 1:
        return same
    made = _split_copied_axes(mesh, spec, copied, [*parts, left])
    if len(made.mesh.shape) > MAX_AXES:
        return same
    # If axes do not follow hosts, a group of the rule may span two hosts.
    return made if all(len({mesh.host(rank) for rank in group}) == 1 for group in made.groups) else same


def rewritten_receivers(load: Load) -> SliceReceivers:
    """Return the slices of the rewritten destination, each with the rings of ranks that need it.

    A ring starts with the rank that receives the slice from its sender.
    """
    check_load(load)
    made = rewrite_destination(*load.destination, load.tensor.shape)
    part = dict(zip(made.mesh.ranks, rank_boxes(made.mesh, made.spec, load.tensor.shape), strict=True))
    found: dict[tuple[tuple[int, int], ...], list[tuple[int, ...]]] = {}
    for group in made.groups or tuple((rank,) for rank in made.mesh.ranks):
        for place, rank in enumerate(group):
            if not is_empty(part[rank]):
                found.setdefault(part[rank], []).append((*group[place:], *group[:place]))
    return found


def _shards_by_first_axis(mesh: Mesh, spec: Sequence[str]) -> int:
    """Return the number of shards of the dim that is sharded by the first axis; 1 if that axis replicates."""
    entry = next((entry for entry in spec if "0" in entry[1:]), "")
    return prod(mesh.shape[int(axis)] for axis in entry[1:])


def _split_copied_axes(
    mesh: Mesh, spec: Sequence[str], copied: Sequence[int], parts: Sequence[int]
) -> RewrittenDestination:
    """Return the destination with its replicating axes replaced by one axis per sharded dim and one for copies."""
    first = copied[0]
    behind = [axis for axis in range(first, len(mesh.shape)) if axis not in copied]
    order = [*range(first), *copied, *behind]
    ranks, hosts = (np.reshape(each, mesh.shape).transpose(order).ravel().tolist() for each in (mesh.ranks, mesh.hosts))
    cutting = [place for place, size in enumerate(parts) if size > 1]
    shape = (*mesh.shape[:first], *(parts[place] for place in cutting), *(mesh.shape[axis] for axis in behind))
    number = {axis: axis for axis in range(first)} | {axis: first + len(cutting) + n for n, axis in enumerate(behind)}
    entries = []
    for dim, entry in enumerate(spec):
        own = [number[int(axis)] for axis in entry[1:]] + [first + n for n, place in enumerate(cutting) if place == dim]
        entries.append(f"S{''.join(map(str, own))}" if own else "R")
    gathered = prod(parts[:-1])
    # [axes before, gathered, remaining copies and axes after]; a group is a row along the second dim
    grid = np.reshape(ranks, (prod(mesh.shape[:first]), gathered, -1)).swapaxes(1, 2).reshape(-1, gathered)
    groups = tuple(map(tuple, grid.tolist()))
    return RewrittenDestination(Mesh(shape, tuple(ranks), tuple(hosts)), tuple(entries), gathered, groups)
