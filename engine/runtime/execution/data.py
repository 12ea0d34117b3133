"""Training data: bytes of a text file, or what a model draws by chance, such that any process finds its share alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator, Philox
from numpy.typing import NDArray
from torch import Tensor

from meshwave.engine.document.model import Model
from meshwave.engine.errors import InputError

DEFAULT_TEXT = Path(__file__).parent / "texts" / "default.txt"


class Text:
    """A file as bytes, mapped, so that processes of a machine share its pages."""

    def __init__(self, path: Path, window: int) -> None:
        """Open ``path`` for windows of ``window`` bytes.

        Raises:
            InputError: the file is missing or shorter than one window.
        """
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            raise InputError(
                f"the training text {path} is not there; launch the design again, which brings its text along"
            )
        if size < window:
            raise InputError(
                f"the training text {path.name} holds {size} bytes, but one sequence needs {window}; "
                "take a longer text or a shorter model.sequence"
            )
        self._window = window
        self._bytes: NDArray[np.uint8] = np.memmap(path, np.uint8, "r")

    def window(self, chance: Generator) -> NDArray[np.uint8]:
        start = int(chance.integers(len(self._bytes) - self._window + 1))
        return np.asarray(self._bytes[start : start + self._window])


class Batches:
    """The microbatches of one data-parallel copy.

    A sequence is drawn from a counter-based generator (Philox) keyed by the seed, the step and
    the sequence's number in the global batch: nothing is handed around, a resumed run goes on
    where it was, and ``dp=1`` draws the same global batch as ``dp=8``.
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
        device: torch.device | str = "cpu",
    ) -> None:
        """``share`` are the rows of a microbatch of all copies that this copy takes, by default the first
        ``micro_batch_size``.

        Raises:
            InputError: the text is missing or too short.
        """
        self._text = Text(text, model.window) if model.window else None
        self._model = model
        self._seed = seed
        self._rows = micro_batch_size
        self._microbatches = microbatches
        self._share = range(micro_batch_size) if share is None else share
        self._device = device

    def step(self, step: int) -> list[tuple[Tensor, Tensor]]:
        """Inputs and targets of each microbatch: of a language model int64 ``[rows of the share, sequence]`` each."""
        return [self.microbatch(step, mb) for mb in range(self._microbatches)]

    def microbatch(self, step: int, mb: int) -> tuple[Tensor, Tensor]:
        """One of them: a process that holds neither the first nor the last stage needs none."""
        examples = [self._example(step, self._sequence(mb, row)) for row in self._share]
        inputs, targets = (torch.from_numpy(np.stack(column)) for column in zip(*examples, strict=True))
        return inputs.to(self._device, non_blocking=True), targets.to(self._device, non_blocking=True)

    def _sequence(self, mb: int, row: int) -> int:
        """The number in the global batch of a row of a microbatch: each ``micro_batch_size`` rows are of another
        copy of the first mesh, whose sequences follow each other."""
        copy, place = divmod(row, self._rows)
        return (copy * self._microbatches + mb) * self._rows + place

    def _example(self, step: int, sequence: int) -> tuple[NDArray[Any], NDArray[Any]]:
        chance = Generator(Philox(key=self._seed, counter=[0, 0, step, sequence]))
        window = np.empty(0, np.uint8) if self._text is None else self._text.window(chance)
        return self._model.example(window, chance)
