"""Shares of context parallelism: the processes of a group divide the tokens of every sequence.

A causal token attends to all earlier tokens, so that consecutive shares of equal length would have unequal work. The
sequence is therefore cut into ``2 n`` chunks, and member ``i`` of ``n`` holds the chunks ``i`` and ``2 n - 1 - i``
(Llama 3, arXiv:2407.21783, section 3.3.2). Meshes of different sizes use the chunks of the least common multiple of the
sizes in the same order, so that a boundary between them moves consecutive chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from meshwave.engine.document.training import ContextExchange
from meshwave.engine.runtime.communication.groups import Group


def balanced_chunks(sequence: int, degree: int) -> tuple[range, ...]:
    """Return the tokens of the ``2 degree`` chunks of a sequence, in the order in which ``degree`` devices hold them."""
    size, last = sequence // (2 * degree), 2 * degree - 1
    places = (place for pair in range(degree) for place in (pair, last - pair))
    return tuple(range(place * size, (place + 1) * size) for place in places)


@dataclass(frozen=True)
class ContextShare:
    """Tokens of each sequence that this process computes, and the processes that compute the others."""

    group: Group
    chunks: tuple[range, ...]
    """Tokens of all chunks of a sequence; equal numbers of consecutive chunks belong to each member, in order."""
    exchange: ContextExchange = "ring"

    @cached_property
    def sequence(self) -> int:
        """Number of tokens of a whole sequence."""
        return sum(map(len, self.chunks))

    @property
    def chunk_length(self) -> int:
        """Number of tokens of a chunk."""
        return len(self.chunks[0])

    def chunks_of(self, member: int) -> Sequence[range]:
        """Return the tokens of the chunks that a member of the group holds."""
        each = len(self.chunks) // self.group.size
        return self.chunks[member * each : (member + 1) * each]

    def resize(self, own_tokens: int) -> ContextShare:
        """Return the share of sequences of which each member has ``own_tokens``, such as padded documents."""
        sequence = own_tokens * self.group.size
        return (
            self
            if sequence == self.sequence
            else replace(self, chunks=balanced_chunks(sequence, len(self.chunks) // 2))
        )

    def select_own(self, whole: Tensor, dim: int) -> Tensor:
        """Return this process's share of the tokens of whole sequences, which are along a dim."""
        own = self.resize(whole.shape[dim] // self.group.size).chunks_of(self.group.index)
        return torch.cat([whole.narrow(dim, chunk.start, len(chunk)) for chunk in own], dim)

    def restore_order(self, whole: Tensor, dim: int) -> Tensor:
        """Return the tokens of all members, given in the order of the members, in the order of the sequence."""
        chunks = self.resize(whole.shape[dim] // self.group.size).chunks
        parts = torch.split(whole, len(chunks[0]), dim)
        order = sorted(range(len(parts)), key=lambda number: chunks[number].start)
        return torch.cat([parts[number] for number in order], dim)
