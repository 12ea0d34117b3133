"""Diffusion U-Net: predict the noise that was added to an image (Ho et al., arXiv:2006.11239, NeurIPS 2020).

The blocks are those of the paper: residual blocks of two convolutions with group norms and SiLU, attention at low
resolutions, and an embedding of the noise step that every residual block takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwave.engine.families._u_net_blocks import Block, groups_of, numbers_of
from meshwave.engine.families.u_net import UNet
from meshwave.engine.lowering.transfers import Skip, between_stages
from meshwave.engine.runtime.models.skip_connections import SkippingStage
from meshwave.engine.runtime.models.stages import Stage, StageBuilder, as_exchanged
from meshwave.engine.runtime.modules.deferred_gradients import ChannelNorm, Convolution, Linear

Places = tuple[int, int]
"""Channels and side of an image."""
SLOWEST_WAVE = 10_000.0
"""Of the sines and cosines that the noise step is told in, as in transformers."""


class Residual(nn.Module):
    """Two convolutions, each behind a group norm and SiLU; the noise step is added between them."""

    def __init__(self, inner: int, outer: int, time_width: int) -> None:
        super().__init__()
        self.first_norm = ChannelNorm(groups_of(inner), inner)
        self.first = Convolution(inner, outer, 3, padding=1)
        self.step = Linear(time_width, outer)
        self.second_norm = ChannelNorm(groups_of(outer), outer)
        self.out = Convolution(outer, outer, 3, padding=1)
        self.shortcut = Convolution(inner, outer, 1) if inner != outer else None

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        made = self.first(F.silu(self.first_norm(x))) + self.step(step)[:, :, None, None]
        made = self.out(F.silu(self.second_norm(made)))
        added: Tensor = made + (x if self.shortcut is None else self.shortcut(x))
        return added


class PixelAttention(nn.Module):
    """Self-attention of the pixels, normed before and added to what came in."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = ChannelNorm(groups_of(channels), channels)
        self.qkv = Linear(channels, 3 * channels)
        self.out = Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, *sides = x.shape
        tokens = self.norm(x).flatten(2).transpose(1, 2).contiguous()
        qkv = self.qkv(tokens).view(batch, -1, 3, self.heads, channels // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, -1, channels)
        added: Tensor = x + self.out(mixed).transpose(1, 2).reshape(batch, channels, *sides)
        return added


class UNetBlock(nn.Module):
    """One block, as :class:`meshwave.engine.families._u_net_blocks.Block` describes it."""

    is_plain = True  # nothing is exchanged inside

    def __init__(self, block: Block, heads: int, time_width: int) -> None:
        super().__init__()
        up, down = (block.resamples and block.way == way for way in ("up", "down"))
        self.up = Convolution(block.inner, block.inner, 3, padding=1) if up else None
        self.residual = Residual(block.inner + block.skipped, block.outer, time_width)
        self.attention = PixelAttention(block.outer, heads) if block.attends else None
        self.second = Residual(block.outer, block.outer, time_width) if block.way == "middle" else None
        self.down = Convolution(block.outer, block.outer, 3, stride=2, padding=1) if down else None

    def forward(self, x: Tensor, step: Tensor, skip: Tensor | None) -> tuple[Tensor, Tensor]:
        """What it hands on, and what its skip connection carries: the same unless the resolution is halved."""
        if self.up is not None:
            x = self.up(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        x = self.residual(x if skip is None else torch.cat([x, skip], 1), step)
        if self.attention is not None:
            x = self.attention(x)
        if self.second is not None:
            x = self.second(x, step)
        return (x if self.down is None else self.down(x)), x


class ImageEmbedding(nn.Module):
    """Noisy images with their noise steps, ``[batch, channels * side^2 + 1]``, to features of both."""

    def __init__(self, shape: UNet) -> None:
        super().__init__()
        self.image = shape.image_channels, shape.image_size
        self.input = Convolution(shape.image_channels, shape.base_channels, 3, padding=1)
        self.step_in = Linear(shape.base_channels, shape.time_width)
        self.step_out = Linear(shape.time_width, shape.time_width)
        self.waves = shape.base_channels

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        given = given.to(self.input.weight.dtype)
        channels, side = self.image
        images = given[:, :-1].view(-1, channels, side, side)
        waves = _waves(given[:, -1], self.waves)
        waves.requires_grad = torch.is_grad_enabled()  # a split backward finds what to put off by walking to it
        step = F.silu(self.step_out(F.silu(self.step_in(waves))))
        return self.input(images), step


class NoiseHead(nn.Module):
    """The last norm and convolution, and the mean squared error of the noise."""

    def __init__(self, shape: UNet) -> None:
        super().__init__()
        channels = shape.blocks[-1].outer
        self.norm = ChannelNorm(groups_of(channels), channels)
        self.project = Convolution(channels, shape.image_channels, 3, padding=1)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        predicted = self.project(F.silu(self.norm(x)))
        wide = predicted.float() if predicted.dtype is torch.bfloat16 else predicted
        return F.mse_loss(wide, noise.to(wide.dtype))


class UNetStage(SkippingStage):
    """A stage of a U-Net.

    Tensors of different shapes travel side by side in one message, ``[batch, 1, numbers]``: what the last block
    hands on, what skips to the next stage, and the embedding of the noise step.
    """

    def __init__(
        self,
        shape: UNet,
        parts: tuple[nn.Module | None, dict[int, nn.Module], nn.Module | None],
        stage: int,
        skips: Sequence[Skip],
        between: Mapping[tuple[int, int], Sequence[Skip]],
    ) -> None:
        super().__init__(*parts, stage, skips, between)
        self._shape = shape
        self._first_block = min(parts[1])

    def forward(  # type: ignore[override]
        self, x: Tensor, targets: Tensor | None = None, skips: Sequence[Tensor] = ()
    ) -> Tensor | tuple[Tensor, ...]:
        held: dict[int, Tensor] = {}
        if self.embedding is not None:
            x, step = (as_exchanged(each) for each in self.embedding(x))
        else:
            x, step = self._take(x, held)
        for blocks, message in zip(self._came.values(), skips, strict=True):
            held |= self._skipped(blocks, message)
        for name, block in self.layers.items():
            source = self._source.get(int(name))
            x, held[int(name)] = block(x, step, None if source is None else held.pop(source))
        if self.head is not None:
            loss: Tensor = self.head(x, targets)
            return loss
        onward = _packed([x, *(held[block] for block in self._goes_along), step])
        return onward, *(_packed([held[block] for block in blocks]) for blocks in self._goes.values())

    def _take(self, message: Tensor, held: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
        """What the block before made and the embedding of the noise step, out of what the stage before hands on."""
        shape, skips = self._shape, [self._shape.blocks[block].shape_skipped for block in self._came_along]
        places = [shape.blocks[self._first_block - 1].shape_out, *skips, (shape.time_width, 1)]
        x, *came, step = _unpacked(message, places)
        held.update(zip(self._came_along, came, strict=True))
        return x, step.flatten(1).contiguous()  # no view, so that it keeps no message alive

    def _skipped(self, blocks: Sequence[int], message: Tensor) -> dict[int, Tensor]:
        """What skip connections of these blocks carry."""
        places = [self._shape.blocks[block].shape_skipped for block in blocks]
        return dict(zip(blocks, _unpacked(message, places), strict=True))


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    """``[batch, 1, numbers]`` of all of them side by side."""
    flat = [tensor.flatten(1) for tensor in tensors]
    return (torch.cat(flat, 1) if len(flat) > 1 else flat[0]).unsqueeze(1)


def _unpacked(message: Tensor, places: Sequence[Places]) -> list[Tensor]:
    """The images ``[batch, channels, side, side]`` that lie side by side in a message."""
    ends = list(accumulate(map(numbers_of, places)))
    pieces = message[:, 0].tensor_split(ends[:-1], 1)
    return [
        piece.reshape(len(piece), c, side, side).contiguous() for piece, (c, side) in zip(pieces, places, strict=True)
    ]


def _waves(steps: Tensor, width: int) -> Tensor:
    """``[batch, width]`` sines and cosines of noise steps, of different wavelengths."""
    half = (width + 1) // 2
    rates = torch.exp(torch.arange(half, device=steps.device) * (-math.log(SLOWEST_WAVE) / half)).to(steps.dtype)
    angles = steps[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)[:, :width]


class DiffusionUNet(StageBuilder):
    """A denoising diffusion model of images that are drawn from the seed."""

    shape: UNet

    def embedding(self) -> nn.Module:
        return ImageEmbedding(self.shape)

    def layer(self, number: int) -> nn.Module:
        return UNetBlock(self.shape.blocks[number], self.shape.heads, self.shape.time_width)

    def head(self) -> nn.Module:
        return NoiseHead(self.shape)

    def deviation(self, name: str, weight: Tensor) -> float:
        """One over the root of a weight's inputs (LeCun), what is added to a residual scaled down as in GPT-2."""
        scale = (2 * self.shape.layers) ** -0.5 if name.endswith("out.weight") else 1.0
        return float(scale * weight[0].numel() ** -0.5)

    def stage(self, layers_per_stage: Sequence[int], stage: int, seed: int, dtype: torch.dtype, device: Any) -> Stage:
        parts = self.parts(layers_per_stage, stage, seed, dtype, device)
        skips = self.shape.skips
        return UNetStage(self.shape, parts, stage, skips, between_stages(skips, layers_per_stage))
