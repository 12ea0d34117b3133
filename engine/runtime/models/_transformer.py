"""A pre-norm transformer in parts, so that a process builds and holds only its own stages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator, SeedSequence
from numpy.typing import NDArray
from torch import Tensor, nn

from engine.cost.flops import Model
from engine.runtime.deferred import Norm, Table
from engine.runtime.groups import ALONE, Group
from engine.runtime.tensor_parallel import ColumnLinear, RowLinear, VocabTable, cross_entropy, cut_of

Ints = NDArray[np.int64]

EMBEDDING, FIRST_LAYER, HEAD = 0, 1, 2**20  # where a part stands in the model: the key of its weights
EXPERTS = "experts."  # what the weights of a layer's experts begin with
COMPILER = "inductor"  # of torch.compile: Triton on a GPU, C++ on a CPU
IGNORED = -100  # the target of a token that no loss is taken of; cross_entropy's own default


MakeExperts = Callable[[int], nn.Module]
"""The experts of the layer at a place of the model, weights and all."""


class Shape(Model, Protocol):
    """What a model is built from; the ``model`` section of a design is one."""

    @property
    def kind(self) -> str: ...
    @property
    def moe(self) -> Any: ...  # which blocks have experts, where some have


class Embedding(nn.Module):
    """Tokens ``[batch, sequence]`` to ``[batch, sequence, hidden]``: token plus learned position."""

    def __init__(self, shape: Shape, group: Group = ALONE) -> None:
        super().__init__()
        self.token = VocabTable(shape.vocab, shape.hidden, group)
        self.position = Table(shape.sequence, shape.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.token(tokens) + self.position.first(tokens.shape[1])
        return embedded


class Attention(nn.Module):
    """Self-attention with the own heads of the group's."""

    def __init__(self, shape: Shape, *, causal: bool, group: Group = ALONE) -> None:
        super().__init__()
        self.heads, self.causal = shape.heads // group.size, causal
        self.qkv = ColumnLinear(shape.hidden, 3 * shape.hidden, group, pieces=3)
        self.out = RowLinear(shape.hidden, shape.hidden, group)

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, _ = x.shape
        qkv = self.qkv(x).view(batch, sequence, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, sequence, -1))
        return out


class Layer(nn.Module):
    """Attention, then a feed-forward block or experts, each normed before and added to what came in."""

    def __init__(self, shape: Shape, *, causal: bool, group: Group = ALONE, experts: nn.Module | None = None) -> None:
        super().__init__()
        self.is_plain = experts is None and group.size == 1  # nothing is exchanged inside
        self.attention_norm = Norm(shape.hidden)
        self.attention = Attention(shape, causal=causal, group=group)
        self.ffn_norm = Norm(shape.hidden)
        self.experts = experts
        if experts is None:
            self.ffn_in = ColumnLinear(shape.hidden, shape.ffn_hidden, group)
            self.ffn_out = RowLinear(shape.ffn_hidden, shape.hidden, group)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        normed = self.ffn_norm(x)
        more: Tensor = self.ffn_out(F.gelu(self.ffn_in(normed))) if self.experts is None else self.experts(normed)
        return x + more


class Head(nn.Module):
    """The last norm, the projection to the vocabulary, and the mean loss of a microbatch."""

    def __init__(self, shape: Shape, group: Group = ALONE) -> None:
        super().__init__()
        self.norm = Norm(shape.hidden)
        self.project = ColumnLinear(shape.hidden, shape.vocab, group, bias=False)
        self.group, self.own = group, group.part(shape.vocab)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return self.loss(self.logits(x), targets)

    def logits(self, x: Tensor) -> Tensor:
        """``[batch, sequence, vocab]``, the own columns of the vocabulary"""
        logits: Tensor = self.project(self.norm(x))
        return logits

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), self.own, self.group, IGNORED)


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
            x = self.embedding(x)
            if torch.is_autocast_enabled(x.device.type):
                # From here on the residual stream has the precision in which stages exchange
                # it, so that a cut between two stages changes no number.
                x = x.to(torch.get_autocast_dtype(x.device.type))
        return x


class Transformer(ABC):
    """A kind of model: what it is trained to do, and how its parts are made."""

    causal: ClassVar[bool]
    smallest_vocab: ClassVar[int]  # ids that bytes and the kind's own tokens take
    lookahead: ClassVar[int]  # bytes of text that an example needs beyond its sequence

    def __init__(self, shape: Shape, group: Group = ALONE, experts: MakeExperts | None = None) -> None:
        """``group`` are the processes that hold the model together, each a cut of it; ``experts`` makes the
        experts of a layer, with their weights, from its place in the model."""
        self.shape, self.group, self.experts = shape, group, experts

    @abstractmethod
    def example(self, window: NDArray[np.uint8], chance: Generator) -> tuple[Ints, Ints]:
        """Turn ``sequence + lookahead`` bytes into inputs and targets, ``[sequence]`` each.

        Every example has the same number of targets, so that the mean over microbatches of the
        mean loss is the mean over the global batch.
        """

    def embedding(self) -> nn.Module:
        return Embedding(self.shape, self.group)

    def layer(self, number: int) -> nn.Module:
        """Layer ``number`` of the model."""
        moe = self.shape.moe
        has_experts = moe is not None and number in moe.blocks(self.shape.layers)
        assert not has_experts or self.experts is not None, "a model with experts is told how to make them"
        experts = self.experts(FIRST_LAYER + number) if has_experts and self.experts else None
        return Layer(self.shape, causal=self.causal, group=self.group, experts=experts)

    def head(self) -> nn.Module:
        return Head(self.shape, self.group)

    def stage(self, layers_per_stage: Sequence[int], stage: int, seed: int, dtype: torch.dtype, device: Any) -> Stage:
        """Build one stage; see :func:`engine.runtime.models.build_stage`."""
        return Stage(*self.parts(layers_per_stage, stage, seed, dtype, device))

    def parts(
        self, layers_per_stage: Sequence[int], stage: int, seed: int, dtype: torch.dtype, device: Any
    ) -> tuple[nn.Module | None, dict[int, nn.Module], nn.Module | None]:
        """What a stage consists of: the embedding if it is the first, its layers, the head if it is the last."""

        def part(place: int) -> nn.Module:
            others = {EMBEDDING: self.embedding, HEAD: self.head}
            module = others[place]() if place in others else self.layer(place - FIRST_LAYER)
            return _initialise(module.to(device, dtype), (seed, place), self.shape.layers)

        first = sum(layers_per_stage[:stage])
        numbers = range(first, first + layers_per_stage[stage])
        return (
            part(EMBEDDING) if stage == 0 else None,
            {number: part(FIRST_LAYER + number) for number in numbers},
            part(HEAD) if stage == len(layers_per_stage) - 1 else None,
        )


@torch.no_grad()
def _initialise(part: nn.Module, key: tuple[int, int], layers: int) -> nn.Module:
    """GPT-2's initialisation: normal of 0.02, what is added to the residual stream scaled down.

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
            residual = name.endswith("out.weight")
            deviation = 0.02 / (2 * layers) ** 0.5 if residual else 0.02
            cut = cut_of(parameter)
            drawn = torch.empty(cut.shape(parameter.shape) if cut else parameter.shape)
            drawn.normal_(0.0, deviation, generator=chance)
            parameter.copy_(cut.of(drawn) if cut else drawn)
    return part
