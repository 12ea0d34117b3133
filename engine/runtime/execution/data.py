"""Training data: bytes of a text, tokens of a file, or random examples of a model. Every process reads its share independently."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from meshwave.engine.document.model import IGNORED, Example, Model
from meshwave.engine.runs.training_data import document_lengths
from meshwave.engine.runs.training_windows import WHOLE, DataPart, Windows
from meshwave.engine.runtime.modules.documents import DocumentLengths


class Microbatch(NamedTuple):
    """Microbatch of one data-parallel replica."""

    # for language models int64 [micro_batch_size, sequence]; shorter sequences have padding at their end
    inputs: Tensor
    targets: Tensor  # of the same shape
    documents: DocumentLengths | None = None  # None if each sequence is one document


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
        pads: bool = False,
        multiple: int = 1,
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
            pads: True to draw one document per sequence, and to pad a microbatch to its longest sequence.
            multiple: number of which the length of a padded microbatch is a multiple.
            device: device of the returned tensors.

        Raises:
            InputError: the text is missing or too short.
        """
        self._windows = Windows(text, model, seed, part, document_end if pads else None)
        self._model = model
        self._micro_batch_size = micro_batch_size
        self._microbatches = microbatches
        self._share = range(micro_batch_size) if share is None else share
        self._document_end, self._device = None if pads else document_end, device
        self._multiple = multiple if pads else 1

    def step(self, step: int) -> list[Microbatch]:
        """Return all microbatches of a step, ``[microbatches]``."""
        return [self.microbatch(step, mb) for mb in range(self._microbatches)]

    def microbatch(self, step: int, mb: int) -> Microbatch:
        """Return a microbatch of a step."""
        examples, documents = [], []
        for row in self._share:
            window, rng = self._windows.draw(step, self._sequence_index(mb, row))
            examples.append(self._model.example(window, rng))
            if self._document_end is not None:
                documents.append(document_lengths(window[: self._model.sequence], self._document_end))
        inputs, targets = (
            torch.from_numpy(np.stack(column)).to(self._device, non_blocking=True)
            for column in zip(*_pad_examples(examples, self._multiple), strict=True)
        )
        return Microbatch(inputs, targets, documents or None)

    def _sequence_index(self, mb: int, row: int) -> int:
        """Return the index in the global batch of a row of a microbatch.

        A replica's sequences are consecutive in the global batch. Each ``micro_batch_size`` rows of a microbatch belong
        to the next replica of the first mesh.
        """
        replica, place = divmod(row, self._micro_batch_size)
        return (replica * self._microbatches + mb) * self._micro_batch_size + place


def _pad_examples(examples: Sequence[Example], multiple: int) -> Sequence[Example]:
    """Return the examples with a common length, a multiple of ``multiple``; padding tokens have no loss."""
    lengths = [len(inputs) for inputs, _ in examples]
    common = ceil(max(lengths) / multiple) * multiple
    if all(length == common for length in lengths):
        return examples
    missing = [(0, common - length) for length in lengths]
    return [
        (np.pad(inputs, added), np.pad(targets, added, constant_values=IGNORED))
        for (inputs, targets), added in zip(examples, missing, strict=True)
    ]
