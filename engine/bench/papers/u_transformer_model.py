"""U-Transformer of alpa's artifact: FLOPs of its layers, and tensors that cross stage boundaries.

A diffusion U-Net with attention (diffusers' ``UNet2DConditionModel``, one residual block per level) over images of 32 x
32, with ``c, 2c, 4c, 4c`` channels on 32, 16, 8 and 4 pixels a side. The artifact divides it into 13 layers: the first
convolution; four levels down, of which three end in a convolution of stride 2; the middle block with attention and the
one without; three levels up with attention, of which all but the first begin with an upsampling; two blocks of the
topmost level without attention; and the last convolution. Each level up takes the output of the last block of its level
down; these tensors cross every boundary between the two. A multiply-add counts as two FLOPs, in convolutions, linear
layers and attention scores; norms, activations and the embedding of the time step are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

IMAGE = 32  # pixels a side
CONTEXT = 16  # tokens of the attended text: (32 / 8)^2
COLOURS, OUTPUTS = 3, 4


class Work(NamedTuple):
    """FLOPs of the forward of one image, and number of parameters."""

    flops: float = 0.0
    parameters: float = 0.0

    def __add__(self, other: Work) -> Work:  # type: ignore[override]
        return Work(self.flops + other.flops, self.parameters + other.parameters)


class BlockTensor(NamedTuple):
    """Tensor of one image: channels on a square of pixels; ``last`` is the last layer that uses it."""

    channels: int
    side: int
    last: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.channels * self.side**2


@dataclass(frozen=True)
class Layer:
    """Layer of the model, with the tensors that later layers use."""

    work: Work
    made: tuple[BlockTensor, ...]


def convolution_work(kernel: int, inner: int, outer: int, side: int) -> Work:
    """Return the work of a convolution whose output has ``side`` pixels a side."""
    weights = kernel**2 * inner * outer
    return Work(2 * weights * side**2, weights)


def linear_work(inner: int, outer: int, tokens: int) -> Work:
    """Return the work of a linear layer applied to a number of tokens."""
    return Work(2 * inner * outer * tokens, inner * outer)


def residual_block_work(inner: int, outer: int, side: int, time: int) -> Work:
    """Return the work of a residual block: two convolutions, a shortcut if channels change, and the time projection."""
    work = (
        convolution_work(3, inner, outer, side) + convolution_work(3, outer, outer, side) + linear_work(time, outer, 1)
    )
    return work + convolution_work(1, inner, outer, side) if inner != outer else work


def transformer_block_work(width: int, side: int, context: int) -> Work:
    """Return the work of a transformer block between two projections.

    It has self-attention, attention to the text, and a gated feed-forward of four times the width.
    """
    tokens = side**2
    square = linear_work(width, width, tokens)
    work = square + square  # in and out
    work = work + square + square + square + square + Work(4 * tokens**2 * width)
    work = work + square + square + linear_work(context, width, CONTEXT) + linear_work(context, width, CONTEXT)
    work = work + Work(4 * tokens * CONTEXT * width)
    return work + linear_work(width, 8 * width, tokens) + linear_work(4 * width, width, tokens)


def model_layers(c: int) -> list[Layer]:
    """Return the 13 layers of the model with ``c`` base channels."""
    time, text = 4 * c, 4 * c
    embedding = linear_work(c, time, 1) + linear_work(time, time, 1)
    found = [Layer(embedding + convolution_work(3, COLOURS, c, IMAGE), (BlockTensor(c, IMAGE, 11),))]
    inner = c
    for level, (outer, taken_by) in enumerate(((c, 10), (2 * c, 9), (4 * c, 8))):
        side, number = IMAGE >> level, level + 1
        work = (
            residual_block_work(inner, outer, side, time)
            + transformer_block_work(outer, side, text)
            + convolution_work(3, outer, outer, side // 2)
        )
        found.append(Layer(work, (BlockTensor(outer, side, taken_by), BlockTensor(outer, side // 2, number + 1))))
        inner = outer
    found.append(Layer(residual_block_work(4 * c, 4 * c, 4, time), (BlockTensor(4 * c, 4, 7),)))
    found.append(
        Layer(
            residual_block_work(4 * c, 4 * c, 4, time) + transformer_block_work(4 * c, 4, text),
            (BlockTensor(4 * c, 4, 6),),
        )
    )
    found.append(Layer(residual_block_work(4 * c, 4 * c, 4, time), (BlockTensor(4 * c, 4, 7),)))
    below = 0  # channels of the previous layer, before upsampling
    for number, (before, skipped, outer, side) in enumerate(
        ((4 * c, 4 * c, 4 * c, 4), (4 * c, 4 * c, 4 * c, 8), (4 * c, 2 * c, 2 * c, 16)), 7
    ):
        work = convolution_work(3, below, below, side) if below else Work()
        work = (
            work + residual_block_work(before + skipped, outer, side, time) + transformer_block_work(outer, side, text)
        )
        found.append(Layer(work, (BlockTensor(outer, side, number + 1),)))
        below = outer
    up = convolution_work(3, 2 * c, 2 * c, IMAGE)
    found.append(Layer(up + residual_block_work(2 * c + c, c, IMAGE, time), (BlockTensor(c, IMAGE, 11),)))
    found.append(Layer(residual_block_work(c + c, c, IMAGE, time), (BlockTensor(c, IMAGE, 12),)))
    found.append(Layer(convolution_work(3, c, OUTPUTS, IMAGE), ()))
    return found


def crossing_tensors(model: list[Layer], cut: int) -> list[BlockTensor]:
    """Return the tensors that cross the boundary before layer ``cut``."""
    return [made for layer in model[:cut] for made in layer.made if made.last >= cut]


def forward_flops(model: list[Layer]) -> float:
    """Return the FLOPs of the forward of one image."""
    return sum(layer.work.flops for layer in model)
