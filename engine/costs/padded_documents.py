"""Documents that are padded: each sequence is one document, and a microbatch is as long as its longest sequence."""

from __future__ import annotations

from functools import lru_cache
from math import lcm

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
    a step, unless all replicas have the same lengths. The result is None if all sequences are whole.
    """
    lengths = _slowest_replicas(design)
    return None if lengths is None else _pad_lengths(design, lengths.max(axis=(0, 2)))


def _slowest_replicas(design: Design) -> Integers | None:
    """Return the :func:`sequence_lengths` of the replica with the most tokens, or of all if they have one length."""
    lengths = sequence_lengths(design)
    if lengths is None or shares_lengths(design):
        return lengths
    slowest = _pad_lengths(design, lengths.max(axis=2)).sum(axis=1).argmax()
    return lengths[slowest : slowest + 1]


def _pad_lengths(design: Design, lengths: Integers) -> Integers:
    multiple = length_multiple(design)
    return np.asarray(np.minimum(-(-lengths // multiple) * multiple, design.model.sequence))


def masked_shares(design: Design) -> NDArray[np.float64] | None:
    """Return the fraction of the padded sequence to which a token of each microbatch attends, ``[microbatches]``.

    Tokens of a document do not attend to padding, and padding attends only to itself. The fraction is that of the
    replica with the most attention. The result is None if no token would attend to padding anyway, because later tokens are masked.
    """
    model, lengths, padded = design.model, _slowest_replicas(design), padded_lengths(design)
    if lengths is None or padded is None or not isinstance(model, LanguageModel) or model.causal:
        return None
    whole = padded[None, :, None]
    rest = whole - lengths
    attended = lengths * model.attended_share(lengths) + rest * model.attended_share(np.maximum(rest, 1))
    shares = (attended * model.sequence / whole**2).mean(axis=2)
    return np.asarray(shares[shares.sum(axis=1).argmax()])


def document_attended_share(design: Design) -> float | None:
    """Return the mean fraction of the sequence to which a token of a document attends; None without padded documents."""
    lengths, model = sequence_lengths(design), design.model
    if lengths is None or not isinstance(model, LanguageModel):
        return None
    return float((lengths * model.attended_share(lengths)).sum() / lengths.sum())


PLANNED_LENGTHS = 16
"""Number of lengths of padded sequences for which transfers between meshes are planned."""


def shares_lengths(design: Design) -> bool:
    """Return True if all replicas pad a microbatch to the same length, because they exchange tokens or messages follow a plan."""
    return design.model.moe is not None or _follows_plans(design)


def _follows_plans(design: Design) -> bool:
    """Return True if devices do not send to their counterparts on the next mesh; see :func:`.boundary_transfers.is_direct`."""
    sends_slices = design.transfer.boundary != "batch" and not design.training.sequence_parallel
    is_cut = sends_slices and any(mesh.tp > 1 for mesh in design.meshes)
    return is_cut or len({(mesh.dp, mesh.cp, mesh.tp) for mesh in design.meshes}) > 1


def length_parts(design: Design) -> int:
    """Return the number of equal parts into which devices divide the tokens of a sequence."""
    training, sizes = design.training, [mesh.cp for mesh in design.meshes]
    chunks = 2 * lcm(*sizes) if max(sizes) > 1 else 1
    divides = training.sequence_parallel or design.model.moe is not None or design.transfer.boundary == "sequence"
    return lcm(chunks, *(mesh.cp * mesh.tp for mesh in design.meshes if divides))


def length_multiple(design: Design) -> int:
    """Return the number of which padded lengths are multiples, unless a sequence is whole."""
    parts = length_parts(design)
    planned = PLANNED_LENGTHS if _follows_plans(design) else design.model.sequence
    return -(-design.model.sequence // (planned * parts)) * parts


def possible_lengths(design: Design) -> list[int]:
    """Return the tokens that a sequence of a microbatch can have with its padding."""
    sequence = design.model.sequence
    step = length_multiple(design) if design.training.pad_documents else sequence
    return [*range(step, sequence, step), sequence]


def shorten_sequences(design: Design, length: int) -> Design:
    """Return the design with sequences of this length, each of which is one document."""
    training = design.training.model_copy(update={"document_lengths": None})
    model = design.model.resize_messages(length, design.model.hidden)
    return design.model_copy(update={"model": model, "training": training})
