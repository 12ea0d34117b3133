"""Stages of a model, and the base class of their builders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.random import SeedSequence
from torch import Tensor, nn

from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.modules.context_share import ContextShare
from meshwave.engine.runtime.modules.tensor_parallel import weight_shard

EMBEDDING, FIRST_LAYER, HEAD = 0, 1, 2**20
"""Places of the parts of a model. The seed and the place of a part are the key of its random weights."""
EXPERTS_PREFIX = "experts."
"""Prefix of the names of a layer's expert weights."""
COMPILER = "inductor"
"""Backend of torch.compile: Triton on a GPU, C++ on a CPU."""

ExpertFactory = Callable[[int, int], nn.Module]
"""Function that builds the experts of a layer, with their weights, given its place in the model and its number."""
Parts = tuple[nn.Module | None, dict[int, nn.Module], nn.Module | None]
"""Embedding, layers by number, and head of a stage."""


class Stage(nn.Module):
    """Consecutive layers of a model, with the same names as in the whole model.

    The input of the first stage is tokens, the input of other stages ``[batch, sequence, hidden]``. The last stage
    returns the mean loss of its microbatch, other stages return ``[batch, sequence, hidden]``.
    """

    skip_sources: tuple[int, ...] = ()  # earlier stages, except the previous one, with skip connections to this stage
    skip_targets: tuple[int, ...] = ()  # later stages, except the next one, with skip connections from this stage

    def __init__(self, embedding: nn.Module | None, layers: dict[int, nn.Module], head: nn.Module | None) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleDict({str(number): layer for number, layer in layers.items()})
        self.main_layers = list(layers.values())
        self.head = head

    @property
    def is_first(self) -> bool:
        """True if the stage contains the embedding."""
        return self.embedding is not None

    @property
    def blocks(self) -> list[nn.Module]:
        """Embedding, layers and head, as far as the stage has them, in the order of the forward."""
        return [part for part in (self.embedding, *self.layers.values(), self.head) if part is not None]

    def compile_blocks(self) -> int:
        """Enable torch.compile for the blocks, which are compiled at their first call, and return their number.

        Equal blocks are compiled once. A block that communicates is not compiled, because it schedules its own overlap.
        """
        import torch._inductor.config as inductor

        inductor.compile_threads = 1  # so that a killed process leaves no compiler processes running
        local = [layer for layer in self.layers.values() if getattr(layer, "is_local", False)]
        for layer in local:
            layer.compile(backend=COMPILER, dynamic=False)
        return len(local)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Compute the stage; the last stage needs ``targets``."""
        x = self.forward_body(x)
        return x if self.head is None else self.head(x, targets)

    def forward_body(self, x: Tensor) -> Tensor:
        """Compute the stage without its head."""
        x = self.embed(x)
        for layer in self.main_layers:
            x = layer(x)
        return x

    def embed(self, x: Tensor) -> Tensor:
        """Return the input of the first layer of the stage."""
        if self.embedding is not None:
            x = to_message_dtype(self.embedding(x))
        return x


def to_message_dtype(x: Tensor) -> Tensor:
    """Return the output of the embedding in the dtype of messages between stages.

    The residual stream has this dtype after the embedding, so that results do not depend on the split into stages.
    """
    return x.to(torch.get_autocast_dtype(x.device.type)) if torch.is_autocast_enabled(x.device.type) else x


class StageBuilder(ABC):
    """Builder of the stages of a model family: the torch part of the family."""

    def __init__(
        self,
        shape: Any,
        group: Group = ALONE,
        experts: ExpertFactory | None = None,
        share: ContextShare | None = None,
    ) -> None:
        """See :func:`meshwave.engine.runtime.models.build_stage`; ``shape`` is the model section of a design."""
        self.shape, self.group, self.experts, self.share = shape, group, experts, share

    @abstractmethod
    def make_embedding(self) -> nn.Module:
        """Build the part of the first stage before its layers."""

    @abstractmethod
    def make_layer(self, number: int) -> nn.Module:
        """Build layer ``number`` of the model."""

    @abstractmethod
    def make_head(self) -> nn.Module:
        """Build the part of the last stage after its layers, including the loss."""

    @abstractmethod
    def weight_std(self, name: str, weight: Tensor) -> float:
        """Return the standard deviation of the initial values of a weight."""

    def build(self, layers_per_stage: Sequence[int], stage: int, seed: int, dtype: torch.dtype, device: Any) -> Stage:
        """Build one stage; see :func:`meshwave.engine.runtime.models.build_stage`."""
        return Stage(*self.make_parts(layers_per_stage, stage, seed, dtype, device))

    def make_parts(
        self, layers_per_stage: Sequence[int], stage: int, seed: int, dtype: torch.dtype, device: Any
    ) -> Parts:
        """Build the embedding if the stage is the first, its layers, and the head if it is the last."""

        def part(place: int) -> nn.Module:
            ends = {EMBEDDING: self.make_embedding, HEAD: self.make_head}
            module = ends[place]() if place in ends else self.make_layer(place - FIRST_LAYER)
            return initialize_weights(module.to(device, dtype), (seed, place), self)

        first = sum(layers_per_stage[:stage])
        numbers = range(first, first + layers_per_stage[stage])
        return (
            part(EMBEDDING) if stage == 0 else None,
            {number: part(FIRST_LAYER + number) for number in numbers},
            part(HEAD) if stage == len(layers_per_stage) - 1 else None,
        )


@torch.no_grad()
def initialize_weights(part: nn.Module, key: tuple[int, int], builder: StageBuilder) -> nn.Module:
    """Draw normal weights, and set biases to 0 and norm scales to 1.

    Weights are drawn on the CPU in float32 whatever the device and dtype, and as whole tensors even if the process
    holds a shard, so that all processes start with the same model.
    """
    generator = torch.Generator().manual_seed(int(SeedSequence(key).generate_state(1, np.uint64)[0] >> 1))
    for name, parameter in part.named_parameters():
        if name.startswith(EXPERTS_PREFIX):
            continue  # experts have drawn their weights already
        if name.endswith("bias"):
            parameter.zero_()
        elif "norm" in name:
            parameter.fill_(1.0)
        else:
            shard = weight_shard(parameter)
            whole = torch.empty(shard.whole_shape(parameter.shape) if shard else parameter.shape)
            whole.normal_(0.0, builder.weight_std(name, whole), generator=generator)
            parameter.copy_(shard.select_part(whole) if shard else whole)
    return part
