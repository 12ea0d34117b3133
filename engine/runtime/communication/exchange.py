"""An all-to-all that fills a link in both directions at once.

Gloo's own posts every send before the receive from the same peer. A member that comes last finds its
peer ready and sends all that it has before it says that it can receive, so that its two directions
follow each other: between two nodes that takes up to twice as long. Here all receives of large
messages are posted first. NCCL, which begins when all members are there, is asked for its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.runtime.communication.groups import Group

TAG = 1
"""Of its messages, so that none is taken for another's between the same two processes."""
SMALL_BYTES = 16_384
"""Rows below which gloo's own is used: so many messages cost more than a link that waits."""


class Posted(NamedTuple):
    """Messages that are on their way."""

    works: list[Any]

    def wait(self) -> None:
        for work in self.works:
            work.wait()


def all_to_all(group: Group, arriving: Tensor, leaving: Tensor, received: Sequence[int], sent: Sequence[int]) -> Any:
    """Begin to send ``sent`` rows of ``leaving`` to each member and to receive ``received`` from each.

    Rows are as large for all members. What comes back is waited for with ``wait``; both tensors must
    live as long.
    """
    row_bytes = prod(leaving.shape[1:]) * leaving.element_size()
    if dist.get_backend(group.handle) != "gloo" or row_bytes < SMALL_BYTES:
        return dist.all_to_all_single(arriving, leaving, list(received), list(sent), group=group.handle, async_op=True)
    sources, parts = torch.split(arriving, list(received)), torch.split(leaving, list(sent))
    sources[group.index].copy_(parts[group.index])
    works = []
    for post, tensors, way in ((dist.irecv, sources, -1), (dist.isend, parts, 1)):
        for turn in range(1, group.size):
            member = (group.index + way * turn) % group.size
            if tensors[member].numel():
                works.append(post(tensors[member], group.members[member], group=group.handle, tag=TAG))
    return Posted(works)
