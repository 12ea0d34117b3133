"""Training data: bytes of a text, tokens of a file, or random examples of a model. Every process reads its share independently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwave.engine.document.model import IGNORED, Example, LanguageModel, Model
from meshwave.engine.runs.training_data import document_lengths
from meshwave.engine.runs.training_windows import WHOLE, DataPart, Windows
from meshwave.engine.runtime.modules.documents import DocumentLengths


class Microbatch(NamedTuple):
    """Microbatch of one data-parallel replica."""

    # for language models int64 [micro_batch_size, sequence]; shorter sequences have padding at their end
    inputs: Tensor
    targets: Tensor  # of the same shape
    documents: DocumentLengths | None = None  # None if each sequence is one document, or its padding needs no mask
    target_counts: Tensor | None = None  # see :func:`.documents.target_counts`


class Padding(NamedTuple):
    """Padding of sequences that are one document each to the longest one of a microbatch."""

    multiple: int = 1  # number of which padded lengths are multiples, unless sequences are whole
    rows: range | None = None  # sequences of all replicas, if these have one length; None for one of each replica
    counts_targets: bool = False  # True if the sequences of a mean loss are divided unlike those of the replicas


class TrainingBatches:
    """Microbatches of one data-parallel replica.

    A sequence is determined by the seed, the step and its index in the global batch (:class:`.Windows`). Processes exchange
    no data, a resumed run continues with the same sequences, and ``dp=1`` draws the same global batch as ``dp=8``.
    """

    def __init__(
        self,
        text: Path,
        model: Model,
        *,
        seed: int,
        microbatches: int,
        micro_batch_size: int,
        share: range | None = None,
        part: DataPart = WHOLE,
        document_end: int | None = None,
        padding: Padding | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Open the training text if the model needs one.

        Args:
            text: path of the training text, for models that need one.
            model: model that draws the examples.
            seed: seed of the random generator.
            microbatches: number of microbatches per replica and step.
            micro_batch_size: number of sequences per microbatch of a replica.
            share: indices of this replica's sequences among those of all replicas; None for the first replica.
            part: part of the data that windows are taken from; held-out data have random numbers of their own.
            document_end: token that ends each document; None if each sequence is one document.
            padding: draw one document per sequence, and pad a microbatch to its longest sequence; None to pack them.
            device: device of the returned tensors.

        Raises:
            InputError: the text is missing or too short.
        """
        self._windows = Windows(text, model, seed, part, None if padding is None else document_end)
        self._model = model
        self._micro_batch_size = micro_batch_size
        self._microbatches = microbatches
        self._share = range(micro_batch_size) if share is None else share
        self._document_end, self._device = document_end, device
        self._padding = padding

    def step(self, step: int) -> list[Microbatch]:
        """Return all microbatches of a step, ``[microbatches]``."""
        return [self.microbatch(step, mb) for mb in range(self._microbatches)]

    def microbatch(self, step: int, mb: int) -> Microbatch:
        """Return a microbatch of a step."""
        if self._padding is not None:
            return self._padded_microbatch(step, mb, self._padding)
        drawn = [self._draw(step, mb, row) for row in self._share]
        end, documents = self._document_end, None
        if end is not None:
            documents = [document_lengths(window[: self._model.sequence], end) for window, _ in drawn]
        inputs, targets = self._to_tensors([example for _, example in drawn])
        return Microbatch(inputs, targets, documents)

    def _padded_microbatch(self, step: int, mb: int, padding: Padding) -> Microbatch:
        examples = {row: self._draw(step, mb, row)[1] for row in padding.rows or self._share}
        longest = max(len(inputs) for inputs, _ in examples.values())
        common = min(ceil(longest / padding.multiple) * padding.multiple, self._model.sequence)
        own = [examples[row] for row in self._share]
        documents = counts = None
        if isinstance(self._model, LanguageModel) and not self._model.causal:  # later tokens see padding
            documents = [[len(inputs), *filter(None, [common - len(inputs)])] for inputs, _ in own]
        if padding.counts_targets:
            found = {row: int((targets != IGNORED).sum()) for row, (_, targets) in examples.items()}
            size = self._micro_batch_size
            groups = [range(row // size * size, (row // size + 1) * size) for row in self._share]
            counts = torch.tensor([[found[row] for row in group] for group in groups], device=self._device)
        inputs, targets = self._to_tensors([pad_example(each, common) for each in own])
        return Microbatch(inputs, targets, documents, counts)

    def _draw(self, step: int, mb: int, row: int) -> tuple[NDArray[Any], Example]:
        window, rng = self._windows.draw(step, self._sequence_index(mb, row))
        return window, self._model.example(window, rng)

    def _to_tensors(self, examples: Sequence[Example]) -> Iterator[Tensor]:
        columns = zip(*examples, strict=True)
        return (torch.from_numpy(np.stack(column)).to(self._device, non_blocking=True) for column in columns)

    def _sequence_index(self, mb: int, row: int) -> int:
        """Return the index in the global batch of a row of a microbatch.

        A replica's sequences are consecutive in the global batch. Each ``micro_batch_size`` rows of a microbatch belong
        to the next replica of the first mesh.
        """
        replica, place = divmod(row, self._micro_batch_size)
        return (replica * self._microbatches + mb) * self._micro_batch_size + place


def pad_example(example: Example, length: int) -> Example:
    """Return an example with ``length`` tokens; padding tokens have no loss."""
    inputs, targets = example
    added = 0, length - len(inputs)
    return np.pad(inputs, added), np.pad(targets, added, constant_values=IGNORED)
