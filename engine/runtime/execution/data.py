"""Training data: bytes of a text, tokens of a file, or random examples of a model. Every process reads its share independently."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator, Philox
from numpy.typing import NDArray
from torch import Tensor

from meshwave.engine.document.model import Model
from meshwave.engine.findings import Refusal
from meshwave.engine.runs.training_data import document_lengths, token_type
from meshwave.engine.runtime.modules.documents import DocumentLengths

DEFAULT_TEXT = Path(__file__).parent / "texts" / "default.txt"


class DataPart(NamedTuple):
    """A part of the data: the training part, or the held-out part at the end."""

    held_share: float = 0.0
    is_held_out: bool = False

    def select(self, whole: NDArray[Any]) -> NDArray[Any]:
        """Return this part of an array of tokens."""
        border = len(whole) - round(self.held_share * len(whole))
        return whole[border:] if self.is_held_out else whole[:border]


WHOLE = DataPart()
"""All data."""


class Text:
    """Memory-mapped tokens of a file, which are bytes of a text, so that the processes of a machine share its pages."""

    def __init__(self, path: Path, window: int, part: DataPart = WHOLE, vocab: int | None = None) -> None:
        """Open a part of ``path`` for random windows of ``window`` tokens, all of which are below ``vocab``.

        Raises:
            InputError: the file is missing, or the part shorter than one window.
        """
        if not path.is_file():
            raise Refusal("copied_text_missing", {"path": str(path)})
        kind = token_type(path)
        whole: NDArray[Any] = np.memmap(path, kind, "r") if path.stat().st_size >= kind.itemsize else np.empty(0, kind)
        self._tokens = part.select(whole)
        if len(self._tokens) < window:
            raise Refusal("text_too_short", {"name": path.name, "size": len(self._tokens), "window": window})
        self._window, self._name, self._vocab = window, path.name, vocab

    def draw_window(self, rng: Generator) -> NDArray[Any]:
        """Return a random window of tokens.

        Raises:
            InputError: a token is outside the vocabulary.
        """
        start = int(rng.integers(len(self._tokens) - self._window + 1))
        window = np.asarray(self._tokens[start : start + self._window])
        if self._vocab is not None and not 0 <= int(window.min()) <= int(window.max()) < self._vocab:
            params = {"name": self._name, "lowest": int(window.min()), "highest": int(window.max())}
            raise Refusal("token_outside_vocabulary", {**params, "vocab": self._vocab})
        return window


class Microbatch(NamedTuple):
    """Microbatch of one data-parallel replica."""

    inputs: Tensor  # for language models int64 [micro_batch_size, sequence]
    targets: Tensor  # of the same shape
    documents: DocumentLengths | None = None  # None if each sequence is one document


class TrainingBatches:
    """Microbatches of one data-parallel replica.

    A sequence is drawn with a counter-based generator (Philox), keyed by the seed, the step and the sequence's index in
    the global batch. Processes exchange no data, a resumed run continues with the same sequences, and ``dp=1`` draws
    the same global batch as ``dp=8``.
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
            device: device of the returned tensors.

        Raises:
            InputError: the text is missing or too short.
        """
        self._text = Text(text, model.window, part, getattr(model, "vocab", None)) if model.window else None
        self._stream = int(part.is_held_out)
        self._model = model
        self._seed = seed
        self._micro_batch_size = micro_batch_size
        self._microbatches = microbatches
        self._share = range(micro_batch_size) if share is None else share
        self._document_end, self._device = document_end, device

    def step(self, step: int) -> list[Microbatch]:
        """Return all microbatches of a step, ``[microbatches]``."""
        return [self.microbatch(step, mb) for mb in range(self._microbatches)]

    def microbatch(self, step: int, mb: int) -> Microbatch:
        """Return a microbatch of a step."""
        examples, documents = [], []
        for row in self._share:
            rng = Generator(Philox(key=self._seed, counter=[0, self._stream, step, self._sequence_index(mb, row)]))
            window = np.empty(0, np.uint8) if self._text is None else self._text.draw_window(rng)
            examples.append(self._model.example(window, rng))
            if self._document_end is not None:
                documents.append(document_lengths(window[: self._model.sequence], self._document_end))
        inputs, targets = (
            torch.from_numpy(np.stack(column)).to(self._device, non_blocking=True)
            for column in zip(*examples, strict=True)
        )
        return Microbatch(inputs, targets, documents or None)

    def _sequence_index(self, mb: int, row: int) -> int:
        """Return the index in the global batch of a row of a microbatch.

        A replica's sequences are consecutive in the global batch. Each ``micro_batch_size`` rows of a microbatch belong
        to the next replica of the first mesh.
        """
        replica, place = divmod(row, self._micro_batch_size)
        return (replica * self._microbatches + mb) * self._micro_batch_size + place
