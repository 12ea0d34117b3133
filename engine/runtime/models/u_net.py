"""Diffusion U-Net that predicts the noise added to an image (Ho et al., arXiv:2006.11239, NeurIPS 2020).

The blocks are those of the paper: residual blocks of two convolutions with group norms and SiLU, attention at low
resolutions, and an embedding of the noise step as an input of every residual block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwave.engine.families._u_net_blocks import Block, element_count, norm_group_count
from meshwave.engine.families.u_net import UNet
from meshwave.engine.lowering.transfers import Skip, skips_by_stages
from meshwave.engine.runtime.models.skip_connections import SkippingStage
from meshwave.engine.runtime.models.stages import Stage, StageBuilder, to_message_dtype
from meshwave.engine.runtime.modules.deferred_gradients import ChannelNorm, Convolution, Linear

ImageShape = tuple[int, int]
"""Number of channels and side length of an image in pixels."""
LONGEST_WAVELENGTH = 10_000.0
"""Longest wavelength of the sines and cosines that encode the noise step, as in transformers."""


class Residual(nn.Module):
    """Residual block of two convolutions, each after a group norm and SiLU; the step embedding is added between them."""

    def __init__(self, inner: int, outer: int, time_width: int) -> None:
        super().__init__()
        self.first_norm = ChannelNorm(norm_group_count(inner), inner)
        self.first = Convolution(inner, outer, 3, padding=1)
        self.step = Linear(time_width, outer)
        self.second_norm = ChannelNorm(norm_group_count(outer), outer)
        self.out = Convolution(outer, outer, 3, padding=1)
        self.shortcut = Convolution(inner, outer, 1) if inner != outer else None

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        """Return images ``[batch, outer, side, side]``, given images ``x`` and the embedded noise steps ``step``."""
        update = self.first(F.silu(self.first_norm(x))) + self.step(step)[:, :, None, None]
        update = self.out(F.silu(self.second_norm(update)))
        y: Tensor = update + (x if self.shortcut is None else self.shortcut(x))
        return y


class PixelAttention(nn.Module):
    """Self-attention among pixels, with a norm before it and a residual connection."""

    attend = staticmethod(F.scaled_dot_product_attention)

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = ChannelNorm(norm_group_count(channels), channels)
        self.qkv = Linear(channels, 3 * channels)
        self.out = Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Apply attention to the pixels of ``x [batch, channels, side, side]``; the output has the same shape."""
        batch, channels, *sides = x.shape
        tokens = self.norm(x).flatten(2).transpose(1, 2).contiguous()
        qkv = self.qkv(tokens).view(batch, -1, 3, self.heads, channels // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        values = self.attend(q, k, v).transpose(1, 2).reshape(batch, -1, channels)
        y: Tensor = x + self.out(values).transpose(1, 2).reshape(batch, channels, *sides)
        return y


class UNetBlock(nn.Module):
    """Block of a U-Net, built from its :class:`meshwave.engine.families._u_net_blocks.Block`."""

    is_local = True  # the block does not communicate

    def __init__(self, block: Block, heads: int, time_width: int) -> None:
        super().__init__()
        up, down = (block.resamples and block.way == way for way in ("up", "down"))
        self.up = Convolution(block.inner, block.inner, 3, padding=1) if up else None
        self.residual = Residual(block.inner + block.skipped, block.outer, time_width)
        self.attention = PixelAttention(block.outer, heads) if block.attends else None
        self.second = Residual(block.outer, block.outer, time_width) if block.way == "middle" else None
        self.down = Convolution(block.outer, block.outer, 3, stride=2, padding=1) if down else None

    def forward(self, x: Tensor, step: Tensor, skip: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the output and the skip tensor, which are equal unless the block halves the resolution."""
        if self.up is not None:
            x = self.up(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        x = self.residual(x if skip is None else torch.cat([x, skip], 1), step)
        if self.attention is not None:
            x = self.attention(x)
        if self.second is not None:
            x = self.second(x, step)
        return (x if self.down is None else self.down(x)), x


class ImageEmbedding(nn.Module):
    """Embedding of noisy images and of their noise steps."""

    def __init__(self, shape: UNet) -> None:
        super().__init__()
        self.image = shape.image_channels, shape.image_size
        self.input = Convolution(shape.image_channels, shape.base_channels, 3, padding=1)
        self.step_in = Linear(shape.base_channels, shape.time_width)
        self.step_out = Linear(shape.time_width, shape.time_width)
        self.waves = shape.base_channels

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embedded images ``[batch, base_channels, side, side]`` and noise steps ``[batch, time_width]``.

        ``samples [batch, channels * side^2 + 1]`` contains the pixels of each image and its noise step.
        """
        samples = samples.to(self.input.weight.dtype)
        channels, side = self.image
        images = samples[:, :-1].view(-1, channels, side, side)
        waves = _encode_steps(samples[:, -1], self.waves)
        waves.requires_grad = torch.is_grad_enabled()  # so that a split backward reaches the gradients to defer
        step = F.silu(self.step_out(F.silu(self.step_in(waves))))
        return self.input(images), step


class NoiseHead(nn.Module):
    """Head of a U-Net: final norm and convolution, and the mean squared error of the predicted noise."""

    def __init__(self, shape: UNet) -> None:
        super().__init__()
        channels = shape.blocks[-1].outer
        self.norm = ChannelNorm(norm_group_count(channels), channels)
        self.project = Convolution(channels, shape.image_channels, 3, padding=1)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        """Return the loss of ``x [batch, channels, side, side]``, given the true noise."""
        predicted = self.project(F.silu(self.norm(x)))
        wide = predicted.float() if predicted.dtype is torch.bfloat16 else predicted
        return F.mse_loss(wide, noise.to(wide.dtype))


class UNetStage(SkippingStage):
    """Stage of a U-Net.

    Tensors of different shapes share one message, ``[batch, 1, elements]``: the output of the last block, the tensors
    that skip to the next stage, and the embedding of the noise step.
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
        """Compute the stage; see :meth:`SkippingStage.forward`."""
        by_block: dict[int, Tensor] = {}
        if self.embedding is not None:
            x, step = (to_message_dtype(each) for each in self.embedding(x))
        else:
            x, step = self._unpack_input(x, by_block)
        for blocks, message in zip(self._received.values(), skips, strict=True):
            by_block |= self._unpack_skips(blocks, message)
        for name, block in self.layers.items():
            source = self._source.get(int(name))
            x, by_block[int(name)] = block(x, step, None if source is None else by_block.pop(source))
        if self.head is not None:
            loss: Tensor = self.head(x, targets)
            return loss
        y = _pack([x, *(by_block[block] for block in self._sent_with_y), step])
        return y, *(_pack([by_block[block] for block in blocks]) for blocks in self._sent.values())

    def _unpack_input(self, message: Tensor, by_block: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the output of the previous block and the embedding of the noise step; add its skips to ``by_block``."""
        shape, skips = self._shape, [self._shape.blocks[block].shape_skipped for block in self._received_with_x]
        shapes = [shape.blocks[self._first_block - 1].shape_out, *skips, (shape.time_width, 1)]
        x, *received, step = _unpack(message, shapes)
        by_block.update(zip(self._received_with_x, received, strict=True))
        return x, step.flatten(1).contiguous()  # a copy, because a view would keep the message in memory

    def _unpack_skips(self, blocks: Sequence[int], message: Tensor) -> dict[int, Tensor]:
        """Return the skip tensors of ``blocks`` in a message, by block."""
        shapes = [self._shape.blocks[block].shape_skipped for block in blocks]
        return dict(zip(blocks, _unpack(message, shapes), strict=True))


def _pack(tensors: Sequence[Tensor]) -> Tensor:
    """Return a message ``[batch, 1, elements]`` that contains several tensors."""
    flat = [tensor.flatten(1) for tensor in tensors]
    return (torch.cat(flat, 1) if len(flat) > 1 else flat[0]).unsqueeze(1)


def _unpack(message: Tensor, shapes: Sequence[ImageShape]) -> list[Tensor]:
    """Return the images ``[batch, channels, side, side]`` in a message, one for each shape."""
    ends = list(accumulate(map(element_count, shapes)))
    pieces = message[:, 0].tensor_split(ends[:-1], 1)
    return [
        piece.reshape(len(piece), c, side, side).contiguous() for piece, (c, side) in zip(pieces, shapes, strict=True)
    ]


def _encode_steps(steps: Tensor, width: int) -> Tensor:
    """Return sines and cosines of different wavelengths that encode noise steps, ``[batch, width]``."""
    half = (width + 1) // 2
    rates = torch.exp(torch.arange(half, device=steps.device) * (-math.log(LONGEST_WAVELENGTH) / half)).to(steps.dtype)
    angles = steps[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)[:, :width]


class DiffusionUNet(StageBuilder):
    """Builder of denoising diffusion models, which are trained on images drawn from the seed."""

    shape: UNet

    def make_embedding(self) -> nn.Module:
        """Build the embedding."""
        return ImageEmbedding(self.shape)

    def make_layer(self, number: int) -> nn.Module:
        """Build block ``number``."""
        return UNetBlock(self.shape.blocks[number], self.shape.heads, self.shape.time_width)

    def make_head(self) -> nn.Module:
        """Build the head."""
        return NoiseHead(self.shape)

    def weight_std(self, name: str, weight: Tensor) -> float:
        """Return 1 / sqrt(inputs) for a weight (LeCun), and less for residual outputs as in GPT-2."""
        scale = (2 * self.shape.layers) ** -0.5 if name.endswith("out.weight") else 1.0
        return float(scale * weight[0].numel() ** -0.5)

    def build(self, layers_per_stage: Sequence[int], stage: int, seed: int, dtype: torch.dtype, device: Any) -> Stage:
        """Build one stage; see :func:`meshwave.engine.runtime.models.build_stage`."""
        parts = self.make_parts(layers_per_stage, stage, seed, dtype, device)
        skips = self.shape.skips
        return UNetStage(self.shape, parts, stage, skips, skips_by_stages(skips, layers_per_stage))
