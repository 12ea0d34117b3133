"""All-to-all that uses both directions of a link at once.

Gloo's own all-to-all posts each send before the receive from the same peer. The last member to arrive finds its peer
ready and sends all its data before it announces its receive, so that the two directions run one after the other;
between two nodes that takes up to twice as long. Here the receives of all large messages are posted first. NCCL starts
when all members are ready, so its own all-to-all is used.
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
"""Tag of these messages, which keeps them apart from others between the same two processes."""
SMALL_BYTES = 16_384
"""Row size below which gloo's own all-to-all is faster: many messages cost more than an idle direction."""


class PostedMessages(NamedTuple):
    """Sends and receives in flight."""

    works: list[Any]

    def wait(self) -> None:
        """Wait until all messages have arrived and are sent."""
        for work in self.works:
            work.wait()


def start_ring_shift(group: Group, output: Tensor, input: Tensor) -> Any:
    """Start to send ``input`` to the next member, and to receive ``output`` of equal shape from the previous one.

    Returns:
        A handle with ``wait()``; both tensors must stay alive until then.
    """
    peers = [(group.index + step) % group.size for step in (-1, 1)]
    rows = ([int(member == peer) for member in range(group.size)] for peer in peers)
    return start_all_to_all(group, output.view(1, -1), input.view(1, -1), *rows)


def start_all_to_all(
    group: Group, output: Tensor, input: Tensor, output_rows: Sequence[int], input_rows: Sequence[int]
) -> Any:
    """Start to send rows of ``input`` to each member and to receive rows of ``output`` from each member.

    Args:
        group: the group.
        output: rows in the order of the members that send them.
        input: rows in the order of the members that receive them; rows have the same size on all members.
        output_rows: the number of rows from each member.
        input_rows: the number of rows to each member.

    Returns:
        A handle with ``wait()``; both tensors must stay alive until then.
    """
    row_bytes = prod(input.shape[1:]) * input.element_size()
    if dist.get_backend(group.handle) != "gloo" or row_bytes < SMALL_BYTES:
        return dist.all_to_all_single(
            output, input, list(output_rows), list(input_rows), group=group.handle, async_op=True
        )
    received, sent = torch.split(output, list(output_rows)), torch.split(input, list(input_rows))
    received[group.index].copy_(sent[group.index])
    works = []
    for post, tensors, step in ((dist.irecv, received, -1), (dist.isend, sent, 1)):
        for turn in range(1, group.size):
            member = (group.index + step * turn) % group.size
            if tensors[member].numel():
                works.append(post(tensors[member], group.members[member], group=group.handle, tag=TAG))
    return PostedMessages(works)
