"""What all models have in common: stages of parts whose weights are drawn by their place in the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.random import SeedSequence
from torch import Tensor, nn

from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.modules.tensor_parallel import weight_shard

EMBEDDING, FIRST_LAYER, HEAD = 0, 1, 2**20  # where a part stands in the model: the key of its weights
EXPERTS = "experts."  # what the weights of a layer's experts begin with
COMPILER = "inductor"  # of torch.compile: Triton on a GPU, C++ on a CPU

MakeExperts = Callable[[int], nn.Module]
"""The experts of the layer at a place of the model, weights and all."""


class Stage(nn.Module):
    """Consecutive layers of a model, under the names that they have in the whole model.

    The first stage takes tokens, the others ``[batch, sequence, hidden]``; the last returns the
    mean loss of its microbatch, the others ``[batch, sequence, hidden]``.
    """

    takes: tuple[int, ...] = ()  # stages before the one before, of which it also takes something
    gives: tuple[int, ...] = ()  # stages after the next that also take something of it

    def __init__(self, embedding: nn.Module | None, layers: dict[int, nn.Module], head: nn.Module | None) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleDict({str(number): layer for number, layer in layers.items()})
        self.head = head

    @property
    def is_first(self) -> bool:
        return self.embedding is not None

    @property
    def is_last(self) -> bool:
        return self.head is not None

    def compile_blocks(self) -> int:
        """Let torch fuse the kernels of the blocks when they are first called; returns how many it may.

        Equal blocks are compiled once. A block that exchanges something inside runs as it is: what
        overlaps there is timed by hand.
        """
        import torch._inductor.config as inductor

        inductor.compile_threads = 1  # a process that is ended leaves no others behind
        plain = [layer for layer in self.layers.values() if getattr(layer, "is_plain", False)]
        for layer in plain:
            layer.compile(backend=COMPILER, dynamic=False)
        return len(plain)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.body(x)
        return x if self.head is None else self.head(x, targets)

    def body(self, x: Tensor) -> Tensor:
        """All but the head."""
        x = self.embedded(x)
        for layer in self.layers.values():
            x = layer(x)
        return x

    def embedded(self, x: Tensor) -> Tensor:
        """What the layers take."""
        if self.embedding is not None:
            x = as_exchanged(self.embedding(x))
        return x


def as_exchanged(x: Tensor) -> Tensor:
    """In the precision in which stages exchange it, which the residual stream has from the embedding on, so that a
    cut between two stages changes no number."""
    return x.to(torch.get_autocast_dtype(x.device.type)) if torch.is_autocast_enabled(x.device.type) else x


class StageBuilder(ABC):
    """The torch half of a family of models: how its parts are made."""

    def __init__(self, shape: Any, group: Group = ALONE, experts: MakeExperts | None = None) -> None:
        """``shape`` is the model section of a design; ``group`` are the processes that hold the model together, each
        a cut of it; ``experts`` makes the experts of a layer, with their weights, from its place in the model."""
        self.shape, self.group, self.experts = shape, group, experts

    @abstractmethod
    def embedding(self) -> nn.Module:
        """What the first stage has before its layers."""

    @abstractmethod
    def layer(self, number: int) -> nn.Module:
        """Layer ``number`` of the model."""

    @abstractmethod
    def head(self) -> nn.Module:
        """What the last stage has after its layers, the loss included."""

    @abstractmethod
    def deviation(self, name: str, weight: Tensor) -> float:
        """The standard deviation that a weight is drawn with."""

    def stage(self, layers_per_stage: Sequence[int], stage: int, seed: int, dtype: torch.dtype, device: Any) -> Stage:
        """Build one stage; see :func:`meshwave.engine.runtime.models.build_stage`."""
        return Stage(*self.parts(layers_per_stage, stage, seed, dtype, device))

    def parts(
        self, layers_per_stage: Sequence[int], stage: int, seed: int, dtype: torch.dtype, device: Any
    ) -> tuple[nn.Module | None, dict[int, nn.Module], nn.Module | None]:
        """What a stage consists of: the embedding if it is the first, its layers, the head if it is the last."""

        def part(place: int) -> nn.Module:
            others = {EMBEDDING: self.embedding, HEAD: self.head}
            module = others[place]() if place in others else self.layer(place - FIRST_LAYER)
            return _initialise(module.to(device, dtype), (seed, place), self.deviation)

        first = sum(layers_per_stage[:stage])
        numbers = range(first, first + layers_per_stage[stage])
        return (
            part(EMBEDDING) if stage == 0 else None,
            {number: part(FIRST_LAYER + number) for number in numbers},
            part(HEAD) if stage == len(layers_per_stage) - 1 else None,
        )


@torch.no_grad()
def _initialise(part: nn.Module, key: tuple[int, int], deviation: Callable[[str, Tensor], float]) -> nn.Module:
    """Weights are normal of the ``deviation`` that their model names, biases 0 and scales of norms 1.

    Drawn on the CPU in float32 whatever device and precision, and whole where only a cut is held,
    so that all start alike.
    """
    chance = torch.Generator().manual_seed(int(SeedSequence(key).generate_state(1, np.uint64)[0] >> 1))
    for name, parameter in part.named_parameters():
        if name.startswith(EXPERTS):
            continue  # drawn expert by expert, wherever each lies
        if name.endswith("bias"):
            parameter.zero_()
        elif "norm" in name:
            parameter.fill_(1.0)
        else:
            cut = weight_shard(parameter)
            drawn = torch.empty(cut.whole_shape(parameter.shape) if cut else parameter.shape)
            drawn.normal_(0.0, deviation(name, drawn), generator=chance)
            parameter.copy_(cut.select(drawn) if cut else drawn)
    return part
