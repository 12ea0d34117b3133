"""What alpa did before broadcast: plain sends, and the local all-gather of a whole tensor.

The strategy ``local-allgather`` gathers slice by slice, as the paper describes it. alpa does something else
(its released sources): it rewrites the destination's spec to one that is cut further, sends to that, and
gathers the tensor inside the hosts once it is there. What cannot be cut further is sent to every receiver
whole. That is a comparison of its own and no strategy: it decides for a tensor, not for a unit task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from math import gcd, prod
from typing import NamedTuple

from engine.transfer import Job, Links, Mesh, Tensor, UnitTask, boxes, run_in_order, unit_tasks

Side = tuple[Mesh, Sequence[str]]
"""A mesh, and how the tensor lies on it."""


class Cut(NamedTuple):
    """A destination that is cut further: the same ranks under more axes."""

    mesh: Mesh
    spec: tuple[str, ...]
    parts: int  # that one rank's box was cut into: so many ranks gather it; 1 where nothing could be cut


def send_recv_seconds(tensor: Tensor, source: Side, destination: Side, links: Links) -> float:
    """Receiver by receiver, and for each slice by slice, in the order of the destination's boxes; each message comes
    from the device that has sent the fewest bytes so far, the lowest of equals (the released code takes any)."""
    sent: dict[int, int] = defaultdict(int)
    jobs: list[Job] = []
    order: list[tuple[int, int]] = []
    for task, receiver in _messages(unit_tasks(tensor, *source, *destination)):
        sender = min(task.senders, key=lambda rank: (sent[rank], rank))
        sent[sender] += task.bytes
        host = links.host[sender]
        took = links.between(sender, receiver).seconds(task.bytes)
        order.append((len(jobs), host))
        jobs.append(Job(task.bytes, {host: took}, (links.host[receiver],)))
    return max((placed.end for placed in run_in_order(jobs, order, links.nics)), default=0.0)


def _messages(tasks: Sequence[UnitTask]) -> Iterator[tuple[UnitTask, int]]:
    for receivers, same in groupby(tasks, key=lambda task: task.receivers):
        slices = list(same)
        yield from ((task, receiver) for receiver in receivers for task in slices)


def seconds(tensor: Tensor, source: Side, destination: Side, links: Links) -> float:
    """The same to the rewritten spec, then a ring all-gather of every rank's box among those that share it."""
    cut = rewritten(*destination, tensor.shape)
    gathered = 0.0
    if cut.parts > 1:
        largest = max(prod(stop - start for start, stop in box) for box in boxes(cut.mesh, cut.spec, tensor.shape))
        gathered = (cut.parts - 1) * links.intra_node.seconds(largest * tensor.item_bytes)
    return send_recv_seconds(tensor, source, (cut.mesh, cut.spec), links) + gathered


def rewritten(mesh: Mesh, spec: Sequence[str], shape: Sequence[int]) -> Cut:
    """The spec to which alpa sends instead, if there is one.

    A mesh over several hosts must cut a dim by its first axis, for the gather may not leave a host. Then each
    dim, left to right, is cut into as many further parts as divide both its length on a rank and the copies
    that are left.
    """
    used = {int(axis) for entry in spec for axis in entry[1:]}
    copied = [axis for axis, size in enumerate(mesh.shape) if axis not in used and size > 1]
    if not copied or _shards_by_first_axis(mesh, spec) < len(set(mesh.hosts)):
        return Cut(mesh, tuple(spec), 1)
    left = prod(mesh.shape[axis] for axis in copied)
    parts = []
    for size, entry in zip(shape, spec, strict=True):
        more = gcd(left, size // prod(mesh.shape[int(axis)] for axis in entry[1:]))
        parts.append(more)
        left //= more
    if prod(parts) == 1:
        return Cut(mesh, tuple(spec), 1)
    return _cut(mesh, spec, copied, [*parts, left])


def _shards_by_first_axis(mesh: Mesh, spec: Sequence[str]) -> int:
    """Into how many shards the dim is cut that the first axis cuts; 1 where that axis copies."""
    entry = next((entry for entry in spec if "0" in entry[1:]), "")
    return prod(mesh.shape[int(axis)] for axis in entry[1:])


def _cut(mesh: Mesh, spec: Sequence[str], copied: Sequence[int], parts: Sequence[int]) -> Cut:
    """The axes that copied, which lie side by side in a mesh of two, become one axis for each of ``parts``: those
    of the dims, and the copies that stay."""
    first, behind = copied[0], copied[-1] + 1
    axes = (*mesh.shape[:first], *parts, *mesh.shape[behind:])
    moved = len(parts) - (behind - first)
    entries = []
    for dim, entry in enumerate(spec):
        own = [int(axis) + (moved if int(axis) >= behind else 0) for axis in entry[1:]]
        own += [first + dim] * (parts[dim] > 1)
        entries.append(f"S{''.join(map(str, own))}" if own else "R")
    return Cut(Mesh(axes, mesh.ranks, mesh.hosts), tuple(entries), prod(parts[:-1]))
