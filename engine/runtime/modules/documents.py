"""Documents that are packed into the sequences of the current microbatch.

A token attends to tokens of its own document only, and learned positions restart with each document. Rotary positions
and ALiBi depend on distances only and need no restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate, pairwise

import torch
from torch import Tensor

DocumentLengths = Sequence[Sequence[int]]
"""Number of tokens of each document, for each sequence of a microbatch; their sum is the length of the sequence."""

_packed: ContextVar[DocumentLengths | None] = ContextVar("packed", default=None)
_target_counts: ContextVar[Tensor | None] = ContextVar("target_counts", default=None)


def packed_documents() -> DocumentLengths | None:
    """Return the documents of the current microbatch; None if each sequence is one document.

    Designs with compiled layers have no packed documents, and compilers cannot trace a context variable.
    """
    return None if torch.compiler.is_compiling() else _packed.get()


def target_counts() -> Tensor | None:
    """Return the targets of each sequence of a mean loss, ``[batch, sequences]``, for each sequence of the microbatch.

    None if the mean is that of the microbatch.
    """
    return None if torch.compiler.is_compiling() else _target_counts.get()


@contextmanager
def pack_documents(lengths: DocumentLengths | None, counts: Tensor | None = None) -> Iterator[None]:
    """Set the documents, and :func:`target_counts`, of the microbatch that is computed within the context."""
    token, of_counts = _packed.set(lengths), _target_counts.set(counts)
    try:
        yield
    finally:
        _packed.reset(token)
        _target_counts.reset(of_counts)


def documents_of_rows(documents: DocumentLengths | None, sequence: int) -> Iterator[tuple[slice, Sequence[int]]]:
    """Yield slices of the sequences of a microbatch, each with the lengths of its documents in tokens."""
    if documents is None:
        yield slice(None), (sequence,)
        return
    for row, lengths in enumerate(documents):
        yield slice(row, row + 1), lengths


def split_by_document(tokens: range, lengths: Sequence[int]) -> Iterator[tuple[range, range]]:
    """Yield the parts of consecutive tokens of a sequence that belong to one document, and the tokens of the document."""
    for start, stop in pairwise(accumulate(lengths, initial=0)):
        part = range(max(start, tokens.start), min(stop, tokens.stop))
        if part:
            yield part, range(start, stop)


def attend_by_document(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor, lengths: DocumentLengths
) -> Tensor:
    """Return the values of ``attend``, called for each document alone; the tensors are ``[batch, heads, tokens, dims]``."""
    rows = []
    for row, documents in enumerate(lengths):
        parts = (torch.split(each[row : row + 1], list(documents), 2) for each in (q, k, v))
        rows.append(torch.cat([attend(*part) for part in zip(*parts, strict=True)], 2))
    return torch.cat(rows)


def document_positions(lengths: DocumentLengths, device: torch.device) -> Tensor:
    """Return the position of each token in its document, ``[batch, tokens]``."""
    return torch.tensor([[place for each in row for place in range(each)] for row in lengths], device=device)
