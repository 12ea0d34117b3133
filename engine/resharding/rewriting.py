"""alpa's rule to send a tensor in more parts than its destination asks for, to be gathered there (its released sources).

What is cut further is the destination's spec, so that the rule decides for a tensor and not for a unit task. Where
nothing can be cut further every receiver is sent the whole of its box.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import NamedTuple

import numpy as np

from meshwave.engine.resharding.boxes import Mesh, boxes, is_empty
from meshwave.engine.resharding.tasks import Load, Needers, check_load

MOST_AXES = 10
"""An entry of a spec names each axis by one digit."""


class Rewritten(NamedTuple):
    """A destination that is cut further: the same ranks under more axes."""

    mesh: Mesh
    spec: tuple[str, ...]
    parts: int  # that one rank's box was cut into: so many ranks gather it; 1 where nothing could be cut
    groups: tuple[tuple[int, ...], ...] = ()  # ranks that gather from each other, in the order of the ring


def rewrite(mesh: Mesh, spec: Sequence[str], shape: Sequence[int]) -> Rewritten:
    """Return the destination to which alpa sends instead, if there is one.

    A mesh over several hosts must cut a dim by its first axis, for the gather may not leave a host. Then each
    dim, left to right, is cut into as many further parts as divide both its length on a rank and the copies
    that are left.
    """
    same = Rewritten(mesh, tuple(spec), 1)
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
    made = _cut(mesh, spec, copied, [*parts, left])
    if len(made.mesh.shape) > MOST_AXES:
        return same
    # By hosts as they are: where axes do not follow them, a group of the rule may lie on two.
    return made if all(len({mesh.host(rank) for rank in group}) == 1 for group in made.groups) else same


def rewritten_needers(load: Load) -> Needers:
    """The slices of the rewritten destination, each with all ranks that need it in rings from who gets it on."""
    check_load(load)
    made = rewrite(*load.destination, load.tensor.shape)
    part = dict(zip(made.mesh.ranks, boxes(made.mesh, made.spec, load.tensor.shape), strict=True))
    found: dict[tuple[tuple[int, int], ...], list[tuple[int, ...]]] = {}
    for group in made.groups or tuple((rank,) for rank in made.mesh.ranks):
        for place, rank in enumerate(group):
            if not is_empty(part[rank]):
                found.setdefault(part[rank], []).append((*group[place:], *group[:place]))
    return found


def _shards_by_first_axis(mesh: Mesh, spec: Sequence[str]) -> int:
    """Into how many shards the dim is cut that the first axis cuts; 1 where that axis copies."""
    entry = next((entry for entry in spec if "0" in entry[1:]), "")
    return prod(mesh.shape[int(axis)] for axis in entry[1:])


def _cut(mesh: Mesh, spec: Sequence[str], copied: Sequence[int], parts: Sequence[int]) -> Rewritten:
    """Put the axes that copied side by side, and make of them one axis for each of ``parts``: those of the dims, and
    the copies that stay."""
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
    # [before, gathered, copies that stay and axes behind]: a group is a row of the second
    grid = np.reshape(ranks, (prod(mesh.shape[:first]), gathered, -1)).swapaxes(1, 2).reshape(-1, gathered)
    groups = tuple(map(tuple, grid.tolist()))
    return Rewritten(Mesh(shape, tuple(ranks), tuple(hosts)), tuple(entries), gathered, groups)
