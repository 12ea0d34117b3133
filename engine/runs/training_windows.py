"""Windows of the training data: the tokens of each sequence, determined by the seed, the step and its index in the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from meshwave.engine.document import Design
from meshwave.engine.document.model import Model
from meshwave.engine.document.training import MAX_DOCUMENTS, Training
from meshwave.engine.findings import Refusal
from meshwave.engine.runs.training_data import document_lengths, has_documents, is_tokens, token_type

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

    def find_documents(self, end: int) -> NDArray[np.int64]:
        """Return the start and the length of each document with at least two tokens, ``[documents, 2]``.

        Raises:
            InputError: there is no such document.
        """
        starts = np.concatenate(([0], np.flatnonzero(self._tokens == end) + 1, [len(self._tokens)]))
        found = np.stack((starts[:-1], np.diff(starts)), axis=1)
        found = found[found[:, 1] > 1]
        if not len(found):
            raise Refusal("no_long_document", {"name": self._name})
        return found

    def draw_window(self, rng: Generator, documents: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """Return a random window of tokens, or the first tokens of a random document.

        Raises:
            InputError: a token is outside the vocabulary.
        """
        if documents is None:
            start, length = int(rng.integers(len(self._tokens) - self._window + 1)), self._window
        else:
            start, length = documents[rng.integers(len(documents))].tolist()
        window = np.asarray(self._tokens[start : start + min(length, self._window)])
        if self._vocab is not None and not 0 <= int(window.min()) <= int(window.max()) < self._vocab:
            params = {"name": self._name, "lowest": int(window.min()), "highest": int(window.max())}
            raise Refusal("token_outside_vocabulary", {**params, "vocab": self._vocab})
        return window


class Windows:
    """Random windows of a part of the data, drawn with a counter-based generator (Philox)."""

    def __init__(
        self, text: Path, model: Model, seed: int, part: DataPart = WHOLE, padded_end: int | None = None
    ) -> None:
        """Open the training text if the model needs one.

        Args:
            text: path of the training text.
            model: model that draws the examples.
            seed: seed of the random generator.
            part: part of the data that windows are taken from.
            padded_end: token that ends each document if a window is one document; otherwise None.

        Raises:
            InputError: the text is missing or too short.
        """
        self._text = Text(text, model.window, part, getattr(model, "vocab", None)) if model.window else None
        self._documents = None if padded_end is None or self._text is None else self._text.find_documents(padded_end)
        self._seed, self._stream = seed, int(part.is_held_out)

    def draw(self, step: int, sequence: int) -> tuple[NDArray[Any], Generator]:
        """Return the window of a sequence of the global batch, empty without a text, and its random generator."""
        rng = Generator(Philox(key=self._seed, counter=[0, self._stream, step, sequence]))
        return np.empty(0, np.uint8) if self._text is None else self._text.draw_window(rng, self._documents), rng


def training_part(training: Training) -> DataPart:
    """Return the part of the data that is trained on."""
    return DataPart(0.0 if training.eval_every is None else training.eval_share)


def padded_end(training: Training) -> int | None:
    """Return the token that ends each document if sequences are padded documents; otherwise None."""
    return training.document_end_id if training.pad_documents else None


def first_step_documents(design: Design, data: Path | None) -> tuple[int, ...] | None:
    """Return the lengths of the documents in the sequences of the first step; at most as many as a design can have.

    The result is None if the design has no documents, or if a launch first converts the data to tokens.

    Raises:
        InputError: the data is too short.
    """
    training, model, path, end = design.training, design.model, data or DEFAULT_TEXT, design.training.document_end_id
    is_converted = not is_tokens(path) and (training.tokenizer is not None or has_documents(path))
    if end is None or not model.window or is_converted:
        return None
    windows = Windows(path, model, training.seed, training_part(training), padded_end(training))
    found = list[int]()
    for sequence in range(design.sequences_per_step):
        window, _ = windows.draw(0, sequence)
        inputs = window[: len(window) - (model.window - model.sequence)]
        found += [len(inputs)] if training.pad_documents else document_lengths(inputs, end)
        if len(found) >= MAX_DOCUMENTS:
            break
    return tuple(found[:MAX_DOCUMENTS])
