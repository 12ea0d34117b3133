"""Costs of the blocks of a U-Net in FLOPs, bytes, parameters and kept activations, operator by operator.

The formulas count the modules that :mod:`meshwave.engine.runtime.models.u_net` builds. A convolution with kernel size
``k`` from ``i`` to ``o`` channels takes ``2 k^2 i o`` FLOPs per output pixel, and the same number for each of its two
gradients. Elementwise operators are counted by the bytes that they read and write, as in
:mod:`meshwave.engine.costs.flops`. Attention has the operators of a transformer, with pixels as tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import gcd
from typing import Literal, NamedTuple

from meshwave.engine.costs.operators import (
    Operator,
    Work,
    Workload,
    accumulation_bytes,
    attention_product,
    elementwise_operator,
    product_operator,
)

MOST_GROUPS = 32
"""Maximum number of groups of a group norm (Wu and He, arXiv:1803.08494). The number of groups divides the channels."""
KERNEL = 3
IMAGE_ITEM = 4
"""Size of one image element in the training data, in bytes."""


Way = Literal["down", "middle", "up"]


class Block(NamedTuple):
    """U-Net block: a residual block, attention if ``attends``, and a change of resolution if ``resamples``.

    A resampling block of the down path ends with a convolution of stride 2; one of the up path begins by doubling the
    resolution. The middle block has a second residual block after its attention.
    """

    way: Way
    inner: int
    """Number of input channels from the previous block."""
    skipped: int
    """Number of input channels from a skip connection; 0 if no skip connection ends in the block."""
    outer: int
    """Number of output channels."""
    side: int
    """Side length in pixels of the images that the residual block processes."""
    attends: bool
    resamples: bool

    @property
    def shape_in(self) -> tuple[int, int]:
        """Channels and side length of the input from the previous block."""
        return self.inner, self.side // 2 if self.way == "up" and self.resamples else self.side

    @property
    def shape_out(self) -> tuple[int, int]:
        """Channels and side length of the output."""
        return self.outer, self.side // 2 if self.way == "down" and self.resamples else self.side

    @property
    def shape_skipped(self) -> tuple[int, int]:
        """Channels and side length of the tensor in its skip connection, which starts before the resolution is halved."""
        return self.outer, self.side


def element_count(shape: tuple[int, int]) -> int:
    """Return the number of elements of one image with these channels and this side length."""
    channels, side = shape
    return channels * side**2


def norm_group_count(channels: int) -> int:
    """Return the number of groups of a group norm over ``channels`` channels."""
    return gcd(MOST_GROUPS, channels)


@lru_cache(maxsize=1024)
def block_operators(load: Workload, block: Block, time_width: int, heads: int) -> tuple[Operator, ...]:
    """Return the operators of one block: resampling, residual blocks and attention."""
    return tuple(_iterate_block_operators(load, block, time_width, heads))


def _iterate_block_operators(load: Workload, block: Block, time_width: int, heads: int) -> Iterator[Operator]:
    outer, side = block.outer, block.side
    if block.way == "up" and block.resamples:
        grown = _per_pixel_workload(load, block.inner, side)
        yield elementwise_operator("upsampling", grown, block.inner, kept=0, read_and_written=(1.25, 1.25))
        yield _convolution_operator("upsampling convolution", load, block.inner, block.inner, side)
    if block.skipped:
        width = block.inner + block.skipped
        yield elementwise_operator(
            "skip concatenation", _per_pixel_workload(load, width, side), width, kept=0, read_and_written=(2, 2)
        )
    yield from _residual_operators(load, time_width, block.inner + block.skipped, outer, side)
    if block.attends:
        yield from _attention_operators(load, heads, outer, side)
    if block.way == "middle":
        yield from _residual_operators(load, time_width, outer, outer, side)
    if block.way == "down" and block.resamples:
        yield _convolution_operator("downsampling convolution", load, outer, outer, side // 2, stride=2)


def _residual_operators(load: Workload, time_width: int, inner: int, outer: int, side: int) -> Iterator[Operator]:
    """Yield the operators of a residual block (Ho et al., arXiv:2006.11239, appendix B).

    These are norm, SiLU, convolution, the projection of the noise-step embedding, and again norm, SiLU and convolution;
    if the number of channels changes, also a convolution of kernel size 1. The latter shares its input with the first
    norm and its output gradient with the second convolution.
    """
    before, after = _per_pixel_workload(load, inner, side), _per_pixel_workload(load, outer, side)
    yield _group_norm_operator("first norm", before, inner)
    yield elementwise_operator("SiLU", before, inner, kept=1, read_and_written=(2, 3))
    yield _convolution_operator("first convolution", load, inner, outer, side)
    yield _keep_once_per_stage(
        product_operator("noise step projection", _per_image_workload(load), time_width, outer), load, outer
    )
    yield elementwise_operator("noise step sum", after, outer, kept=0, read_and_written=(2, 1))
    yield _group_norm_operator("second norm", after, outer)
    yield elementwise_operator("SiLU", after, outer, kept=1, read_and_written=(2, 3))
    yield _convolution_operator("second convolution", load, outer, outer, side)
    if inner != outer:
        shortcut = _convolution_operator("shortcut convolution", load, inner, outer, side, kernel=1)
        yield shortcut._replace(kept_bytes=0.0, deferred_bytes=0.0)
    yield elementwise_operator("residual", after, outer, kept=0, read_and_written=(3, 2))


def _keep_once_per_stage(projection: Operator, load: Workload, outer: int) -> Operator:
    """Return a copy of the projection of the noise-step embedding whose input is kept once for all blocks of a stage."""
    return projection._replace(kept_bytes=0.0, deferred_bytes=load.batch * outer * load.precision.item)


def _attention_operators(load: Workload, heads: int, channels: int, side: int) -> Iterator[Operator]:
    """Yield the operators of self-attention over the pixels, with a norm before it and a residual sum after it."""
    tokens = _per_pixel_workload(load, channels, side)
    yield _group_norm_operator("attention norm", tokens, channels)
    yield elementwise_operator("pixels as tokens", tokens, channels, kept=0, read_and_written=(2, 2))
    yield product_operator("query, key, value", tokens, channels, 3 * channels)
    yield attention_product(replace(tokens, heads=heads))
    yield product_operator("attention output", tokens, channels, channels)
    yield elementwise_operator("attention residual", tokens, channels, kept=0, read_and_written=(3, 2))


@lru_cache(maxsize=64)
def embedding_operators(
    load: Workload, image_channels: int, side: int, base: int, time_width: int
) -> tuple[Operator, ...]:
    """Return the operators of the first convolution and of the two linear maps that embed the noise step."""
    size, item = float(image_channels * side**2), load.precision.item
    first = _convolution_operator("input convolution", load, image_channels, base, side)
    images = load.batch * (size + 1) * IMAGE_ITEM  # the last element is the noise step
    copied = load.batch * size * item if item != IMAGE_ITEM else 0.0
    samples = _per_image_workload(load)
    return (
        first._replace(input_gradient=Work(), kept_bytes=images + copied),
        product_operator("noise step in", samples, base, time_width),
        elementwise_operator("SiLU", samples, time_width, kept=1, read_and_written=(2, 3)),
        product_operator("noise step out", samples, time_width, time_width),
        elementwise_operator(
            "SiLU", samples, time_width, kept=2, read_and_written=(2, 3)
        ),  # the embedding is kept once for all blocks
    )


@lru_cache(maxsize=64)
def head_operators(load: Workload, channels: int, image_channels: int, side: int) -> tuple[Operator, ...]:
    """Return the operators of the last norm and convolution, and of the mean squared error of the predicted noise."""
    last = _per_pixel_workload(load, channels, side)
    size = load.batch * image_channels * side**2
    item, wide = load.precision.item, max(load.precision.item, load.precision.statistics)
    error = Operator(
        "loss",
        forward=Work(bytes=size * (item + wide)),
        input_gradient=Work(bytes=size * (2 * wide + item)),
        kept_bytes=2 * size * wide,
        transient_bytes=size * (wide + item),
    )
    return (
        _group_norm_operator("last norm", last, channels),
        elementwise_operator("SiLU", last, channels, kept=1, read_and_written=(2, 3)),
        _convolution_operator("output convolution", load, channels, image_channels, side),
        error,
    )


# ---- operators ----


def _per_pixel_workload(load: Workload, channels: int, side: int) -> Workload:
    """Return the workload of images with these channels and this side length, with pixels as tokens."""
    return replace(load, sequence=side**2, hidden=channels)


def _per_image_workload(load: Workload) -> Workload:
    """Return the workload of one row of elements per image."""
    return replace(load, sequence=1)


def _convolution_operator(
    name: str, load: Workload, inner: int, outer: int, side: int, *, kernel: int = KERNEL, stride: int = 1
) -> Operator:
    """Return a convolution with a bias, which keeps its input. ``side`` is the side length of its output in pixels."""
    item = load.precision.item
    weights = kernel**2 * inner * outer
    taken = load.batch * inner * (side * stride) ** 2 * item
    given = load.batch * outer * side**2 * item
    once = Work(2.0 * load.batch * weights * side**2, taken + weights * item + given)
    return Operator(
        name,
        forward=once,
        input_gradient=once,
        weight_gradient=Work(once.flops, taken + given + accumulation_bytes(weights, load)),
        parameters=weights + outer,
        copied=weights + outer,
        kept_bytes=taken,
        deferred_bytes=taken + given,
        transient_bytes=taken + given + weights * item,
    )


def _group_norm_operator(name: str, pixels: Workload, channels: int) -> Operator:
    """Return a group norm, which keeps its input and the mean and deviation of each group."""
    size = pixels.tokens * channels * pixels.precision.item
    statistics = 2 * pixels.batch * norm_group_count(channels) * max(pixels.precision.item, pixels.precision.statistics)
    return Operator(
        name,
        forward=Work(bytes=2 * size),
        input_gradient=Work(bytes=3 * size),
        parameters=2 * channels,
        kept_bytes=size + statistics,
        deferred_bytes=2 * size + statistics,
        transient_bytes=size,
    )
