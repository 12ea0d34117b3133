"""Documents that are packed into sequences: the attention of each microbatch is that of its own documents."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.document import Design
from meshwave.engine.document.model import LanguageModel

Floats = NDArray[np.float64]

MAX_SEQUENCES = 2**20
"""Number of sequences of a step above which further rows of a microbatch, and further replicas, count as equal."""


def attended_shares(design: Design) -> Floats | None:
    """Return the fraction of the sequence to which a token of each microbatch attends, ``[microbatches]``.

    It is averaged over tokens and layers, and ignores the causal mask. The microbatches are those of the data-parallel
    replica with the most attention, for which the others wait at the end of a step. The result is None if each sequence
    is one document.
    """
    model, training = design.model, design.training
    if not isinstance(model, LanguageModel) or training.document_end is None or training.document_lengths is None:
        return None
    sizes = design.meshes[0].data_parallel, design.pipeline.microbatches, training.micro_batch_size
    return _packed_shares(model, training.document_lengths, *sizes)


def mean_attended_share(design: Design) -> float:
    """Return the fraction of the sequence to which a token attends, averaged over the microbatches."""
    shares, model = attended_shares(design), design.model
    if shares is not None:
        return float(shares.mean())
    return float(model.attended_share(model.sequence)) if isinstance(model, LanguageModel) else 1.0


def pack_equal_documents(design: Design, share: float) -> Design:
    """Return the design with documents of one length, which is this fraction of a sequence."""
    lengths = (max(1, round(share * design.model.sequence)),)
    training = design.training.model_copy(update={"document_lengths": lengths})
    return design.model_copy(update={"training": training})


@lru_cache(maxsize=8)  # each mesh and each cost of a design needs them
def _packed_shares(
    model: LanguageModel, lengths: tuple[int, ...], replicas: int, microbatches: int, rows: int
) -> Floats:
    rows = min(rows, max(1, MAX_SEQUENCES // microbatches))
    replicas = min(replicas, max(1, MAX_SEQUENCES // (microbatches * rows)))
    borders = np.arange(replicas * microbatches * rows + 1) * model.sequence
    shares = _attended_tokens(model, np.array(lengths), borders) / model.sequence
    by_replica = shares.reshape(replicas, microbatches, rows).mean(axis=2)
    return np.asarray(by_replica[by_replica.sum(axis=1).argmax()])


def _attended_tokens(model: LanguageModel, lengths: NDArray[np.int64], borders: NDArray[np.int64]) -> Floats:
    """Return the sum over the documents of each sequence of their tokens times their attended share, ``[sequences]``.

    Args:
        model: the model, whose windows limit attention.
        lengths: tokens of consecutive documents, which repeat.
        borders: [sequences + 1] number of tokens before each sequence, and of all tokens.
    """

    def attended(size: NDArray[np.int64]) -> Floats:
        return np.asarray(size * model.attended_share(size))

    ends = np.cumsum(lengths)
    whole = np.concatenate(([0.0], np.cumsum(attended(lengths))))
    cycle, place = np.divmod(borders, ends[-1])
    document = np.searchsorted(ends, place, "right")  # the document that each border divides, or that starts there
    before = cycle * whole[-1] + whole[document]
    inside = place - (ends - lengths)[document]  # tokens of this document before the border
    divided = lengths[document]
    first = attended(divided - inside) - attended(divided)
    found = np.diff(before) + first[:-1] + attended(inside)[1:]
    is_one = (np.diff(cycle) == 0) & (np.diff(document) == 0)  # a sequence inside one document
    return np.where(is_one, attended(np.diff(borders)), found)
