"""Documents that are padded: each sequence is one document, and a microbatch is as long as its longest sequence."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs.packed_documents import MAX_SEQUENCES
from meshwave.engine.document import Design
from meshwave.engine.document.model import LanguageModel

Integers = NDArray[np.int64]


def sequence_lengths(design: Design) -> Integers | None:
    """Return the tokens of each sequence without padding, ``[replicas, microbatches, rows]``; None if all are whole."""
    training = design.training
    if not training.pad_documents or training.document_lengths is None or not isinstance(design.model, LanguageModel):
        return None
    sizes = design.meshes[0].data_parallel, design.pipeline.microbatches, training.micro_batch_size
    return _sequence_lengths(training.document_lengths, design.model.sequence, *sizes)


@lru_cache(maxsize=8)
def _sequence_lengths(lengths: tuple[int, ...], sequence: int, replicas: int, microbatches: int, rows: int) -> Integers:
    rows = min(rows, max(1, MAX_SEQUENCES // microbatches))
    replicas = min(replicas, max(1, MAX_SEQUENCES // (microbatches * rows)))
    return np.minimum(np.resize(np.array(lengths, np.int64), (replicas, microbatches, rows)), sequence)


def padded_lengths(design: Design) -> Integers | None:
    """Return the tokens to which the sequences of each microbatch are padded, ``[microbatches]``.

    The microbatches are those of the data-parallel replica with the most tokens, for which the others wait at the end of
    a step. The result is None if all sequences are whole.
    """
    lengths = sequence_lengths(design)
    if lengths is None:
        return None
    multiple = length_multiple(design)
    longest = -(-lengths.max(axis=2) // multiple) * multiple
    return np.asarray(longest[longest.sum(axis=1).argmax()])


def length_multiple(design: Design) -> int:
    """Return the number of devices that divide the tokens of a sequence: padded lengths are multiples of it."""
    return design.meshes[0].tp if design.training.sequence_parallel else 1


def shorten_sequences(design: Design, length: int) -> Design:
    """Return the design with sequences of this length, each of which is one document."""
    training = design.training.model_copy(update={"document_lengths": None})
    model = design.model.resize_messages(length, design.model.hidden)
    return design.model_copy(update={"model": model, "training": training})
