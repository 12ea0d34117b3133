"""GPT: a model that predicts the next byte (Radford et al., 2019)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from meshwave.engine.document.model import Example, LanguageModel, model_families


class NextToken(LanguageModel):
    """Causal language model, trained to predict the next token."""

    takes_tokens: ClassVar = True

    @property
    def causal(self) -> bool:
        """Always True, because a token attends only to earlier tokens."""
        return True

    def example(self, window: NDArray[Any], chance: Generator) -> Example:
        tokens = window.astype(np.int64)
        return tokens[:-1], tokens[1:]


@model_families.register("gpt")
class Gpt(NextToken):
    """GPT: a causal language model of identical transformer layers, trained to predict the next token."""

    title: ClassVar = "GPT"

    kind: Literal["gpt"]
    """gpt predicts the next token."""
