"""GPT: predict the next byte (Radford et al., 2019)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from meshwave.engine.runtime.models import models
from meshwave.engine.runtime.models._transformer import Ints, Transformer


@models.register("gpt")
class Gpt(Transformer):
    """A causal language model; each token sees those before it."""

    causal: ClassVar = True
    smallest_vocab: ClassVar = 256
    lookahead: ClassVar = 1

    def example(self, window: NDArray[np.uint8], chance: Generator) -> tuple[Ints, Ints]:
        tokens = window.astype(np.int64)
        return tokens[:-1], tokens[1:]
