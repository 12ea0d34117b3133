"""Documents that are packed into sequences: the attention of each microbatch is that of its own documents."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.document import Design, Mesh
from meshwave.engine.document.model import LanguageModel

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MAX_SEQUENCES = 2**20
"""Number of sequences of a step, or of their chunks, above which further rows of a microbatch, and further replicas,
count as equal."""


def attended_shares(design: Design, mesh: Mesh | None = None) -> Floats | None:
    """Return the fraction of the sequence to which a token of each microbatch attends, ``[microbatches]``.

    It is averaged over layers, and over all tokens or those of the context-parallel device of ``mesh`` with the most
    attention in the microbatch; it ignores the causal mask. The microbatches are those of the data-parallel replica with
    the most attention, for which the others wait at the end of a step. The result is None if each sequence is one
    document.
    """
    model, training = design.model, design.training
    if training.document_end is None or training.document_lengths is None or training.pad_documents:
        return None
    if not isinstance(model, LanguageModel):
        return None
    sizes = design.meshes[0].data_parallel, design.pipeline.microbatches, training.micro_batch_size
    return _packed_shares(model, training.document_lengths, *sizes, 1 if mesh is None else mesh.cp)


def mean_attended_share(design: Design, mesh: Mesh | None = None) -> float:
    """Return the mean over the microbatches of :func:`attended_shares`."""
    shares, model = attended_shares(design, mesh), design.model
    if shares is not None:
        return float(shares.mean())
    return float(model.attended_share(model.sequence)) if isinstance(model, LanguageModel) else 1.0


def context_imbalance(design: Design, mesh: Mesh) -> float:
    """Return the attention of the context-parallel device with the most of it, relative to the mean of all devices."""
    return mean_attended_share(design, mesh) / mean_attended_share(design)


def pack_equal_documents(design: Design, share: float, *, pads: bool | None = None) -> Design:
    """Return the design with documents of one length, which is this fraction of a sequence; ``pads`` sets whether to pad."""
    lengths = (max(1, round(share * design.model.sequence)),)
    changes = {"document_lengths": lengths, **({} if pads is None else {"pad_documents": pads})}
    training = design.training.model_copy(update=changes)
    return design.model_copy(update={"training": training})


@lru_cache(maxsize=32)  # each mesh and each cost of a design needs them
def _packed_shares(
    model: LanguageModel, lengths: tuple[int, ...], replicas: int, microbatches: int, rows: int, cp: int
) -> Floats:
    chunks = 1 if cp == 1 else 2 * cp
    limit = max(1, MAX_SEQUENCES // chunks)
    rows = min(rows, max(1, limit // microbatches))
    replicas = min(replicas, max(1, limit // (microbatches * rows)))
    starts = np.arange(replicas * microbatches * rows)[:, None] * model.sequence
    borders = starts + model.sequence * np.arange(1, chunks + 1) // chunks
    attended = np.diff(_Documents(model, np.array(lengths)).attended_before(borders, starts), axis=1, prepend=0.0)
    if cp > 1:  # device i has the chunks i and 2 cp - 1 - i
        attended = (attended + attended[:, ::-1])[:, :cp]
    by_device = attended.reshape(replicas, microbatches, rows, cp).mean(axis=2) / (model.sequence / cp)
    by_replica = by_device.max(axis=2)
    return np.asarray(by_replica[by_replica.sum(axis=1).argmax()])


class _Documents(NamedTuple):
    """Consecutive documents, which repeat; windows of the model limit attention to them."""

    model: LanguageModel
    lengths: Integers  # [documents] tokens

    def attended_before(self, places: Integers, starts: Integers) -> Floats:
        """Return the sum of the attended shares of the tokens before places, ``[sequences, places]``.

        Args:
            places: [sequences, places] number of tokens before each place.
            starts: [sequences, 1] number of tokens before each sequence, which divides documents.
        """
        if self.model.causal:  # later tokens do not matter
            return self._attended(starts, places)
        _, document, inside = self._locate(places)
        ends = np.minimum(places - inside + self.lengths[document], starts + self.model.sequence)
        begins = np.maximum(places - inside, starts)
        low, high = self._attended(starts, begins), self._attended(starts, ends)
        return np.asarray(low + (high - low) * (places - begins) / np.maximum(ends - begins, 1))

    def _attended(self, first: Integers, last: Integers) -> Floats:
        """Return the sum, over the documents between two places, of their tokens times their attended share."""
        whole = np.concatenate(([0.0], np.cumsum(self._attended_keys(self.lengths))))
        (cycle, document, inside), (last_cycle, last_document, last_inside) = map(self._locate, (first, last))
        divided = self.lengths[document]
        before = (last_cycle - cycle) * whole[-1] + whole[last_document] - whole[document]
        found = before + self._attended_keys(divided - inside) - self._attended_keys(divided)
        is_one = (last_cycle == cycle) & (last_document == document)  # both places are in one document
        return np.where(is_one, self._attended_keys(last - first), found + self._attended_keys(last_inside))

    def _locate(self, places: Integers) -> tuple[Integers, Integers, Integers]:
        """Return the repetition of the list, the document, and the token in this document at each position of the data."""
        ends = np.cumsum(self.lengths)
        cycle, place = np.divmod(places, ends[-1])
        document = np.searchsorted(ends, place, "right")
        return cycle, document, place - (ends - self.lengths)[document]

    def _attended_keys(self, size: Integers) -> Floats:
        """Return the tokens of documents times their attended share."""
        return np.asarray(size * self.model.attended_share(size))
