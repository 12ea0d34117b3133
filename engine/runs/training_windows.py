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


class Windows:
    """Random windows of a part of the data, drawn with a counter-based generator (Philox)."""

    def __init__(self, text: Path, model: Model, seed: int, part: DataPart = WHOLE) -> None:
        """Open the training text if the model needs one.

        Raises:
            InputError: the text is missing or too short.
        """
        self._text = Text(text, model.window, part, getattr(model, "vocab", None)) if model.window else None
        self._seed, self._stream = seed, int(part.is_held_out)

    def draw(self, step: int, sequence: int) -> tuple[NDArray[Any], Generator]:
        """Return the window of a sequence of the global batch, empty without a text, and its random generator."""
        rng = Generator(Philox(key=self._seed, counter=[0, self._stream, step, sequence]))
        return np.empty(0, np.uint8) if self._text is None else self._text.draw_window(rng), rng


def training_part(training: Training) -> DataPart:
    """Return the part of the data that is trained on."""
    return DataPart(0.0 if training.eval_every is None else training.eval_share)


def first_step_documents(design: Design, data: Path | None) -> tuple[int, ...] | None:
    """Return the lengths of the documents in the sequences of the first step; at most as many as a design can have.

    The result is None if the design has no documents, or if a launch first converts the data to tokens.

    Raises:
        InputError: the data is too short.
    """
    training, model, path = design.training, design.model, data or DEFAULT_TEXT
    is_converted = not is_tokens(path) and (training.tokenizer is not None or has_documents(path))
    if training.document_end is None or not model.window or is_converted:
        return None
    windows, found = Windows(path, model, training.seed, training_part(training)), list[int]()
    for sequence in range(design.sequences_per_step):
        window, _ = windows.draw(0, sequence)
        found += document_lengths(window[: model.sequence], training.document_end)
        if len(found) >= MAX_DOCUMENTS:
            break
    return tuple(found[:MAX_DOCUMENTS])
