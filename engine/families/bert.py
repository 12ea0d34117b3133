"""BERT: a model that predicts masked bytes (Devlin et al., arXiv:1810.04805)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from meshwave.engine.document.model import IGNORED, Example, LanguageModel, model_families

MASK = 256  # id of the mask token, after the 256 byte values
MASKED = 0.15  # fraction of masked tokens, as in the paper


def mask_tokens(window: NDArray[Any], chance: Generator, mask: int) -> Example:
    """Return tokens of which some are masked, and these tokens as the targets.

    Every sequence has the same number of masked tokens, so that the mean of the microbatches' mean losses is the mean
    over the global batch. All selected tokens are replaced by the token ``mask``; the random and the unchanged tokens of
    the paper (a tenth each) only serve fine-tuning.
    """
    inputs = window.astype(np.int64)
    targets = np.full_like(inputs, IGNORED)
    masked = chance.choice(len(inputs), size=max(1, round(MASKED * len(inputs))), replace=False)
    targets[masked] = inputs[masked]
    inputs[masked] = mask
    return inputs, targets


class MaskedModel(LanguageModel):
    """Masked language model; each token attends to all tokens."""

    @property
    def causal(self) -> bool:
        """Always False, because a token attends to all tokens."""
        return False

    @property
    def smallest_vocab(self) -> int:
        """Minimum size of the vocabulary: byte tokens and the mask token."""
        return MASK + 1

    def example(self, window: NDArray[Any], chance: Generator) -> Example:
        return mask_tokens(window, chance, MASK)


@model_families.register("bert")
class Bert(MaskedModel):
    """BERT: a masked language model of identical transformer layers, trained to predict the masked tokens."""

    title: ClassVar = "BERT"

    kind: Literal["bert"]
    """bert predicts the masked tokens."""
