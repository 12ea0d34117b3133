"""Convolutional U-Net that learns to remove noise from images (Ho et al., arXiv:2006.11239, NeurIPS 2020).

Noise is added according to the cosine schedule (Nichol and Dhariwal, arXiv:2102.09672, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from math import gcd
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field, model_validator

from meshwave.engine import messages
from meshwave.engine.costs.block_models import BlockModel
from meshwave.engine.costs.operators import Operator, Workload
from meshwave.engine.document.architecture import Size
from meshwave.engine.document.model import Example, model_families, nested_skips
from meshwave.engine.families._u_net_blocks import (
    IMAGE_ITEM,
    Block,
    block_operators,
    element_count,
    embedding_operators,
    head_operators,
)
from meshwave.engine.findings import set_key_fix
from meshwave.engine.frozen import validation_error

Floats = NDArray[np.float32]

MOST_FIGURES = 4


def draw_image(channels: int, side: int, chance: Generator) -> Floats:
    """Return a random image ``[channels, side, side]`` with values from -1 to 1: up to four shapes over a gradient."""
    at = (np.arange(side, dtype=np.float32) + 0.5) / side
    down, right = at[:, None], at[None, :]
    tilt, base = chance.uniform(-0.5, 0.5, (2, channels)), chance.uniform(-0.5, 0.5, channels)
    image = base[:, None, None] + tilt[0][:, None, None] * (down - 0.5) + tilt[1][:, None, None] * (right - 0.5)
    for _ in range(int(chance.integers(1, MOST_FIGURES + 1))):
        y, x, height, width = chance.uniform((0.1, 0.1, 0.05, 0.05), (0.9, 0.9, 0.35, 0.35))
        if chance.random() < 0.5:
            inside = ((down - y) / height) ** 2 + ((right - x) / width) ** 2 < 1
        else:
            inside = (abs(down - y) < height) & (abs(right - x) < width)
        image = np.where(inside, chance.uniform(-1, 1, (channels, 1, 1)), image)
    clipped: NDArray[np.float32] = np.clip(image, -1, 1).astype(np.float32)
    return clipped


ImageSide = Annotated[int, Field(ge=1, le=4096)]
Channels = Annotated[int, Field(ge=1, le=65_536)]
Multiplier = Annotated[int, Field(ge=1, le=1024)]

COSINE_OFFSET = 0.008


@model_families.register("u-net")
class UNet(BlockModel):
    """Diffusion U-Net for small images, trained to predict the noise added to them (Ho et al., arXiv:2006.11239).

    The U-Net has convolutional residual blocks, attention at low resolutions, and a skip connection from each block of the
    down path to the corresponding block of the up path. Each block counts as a layer; the images are generated
    from the seed.
    """

    title: ClassVar = "U-Net"

    kind: Literal["u-net"]
    """u-net predicts the noise that was added to an image."""
    image_size: ImageSide = 32
    """Side length of an image in pixels."""
    image_channels: Channels = 3
    """Number of colour channels of an image, such as 3 for RGB."""
    base_channels: Channels = 64
    """Number of channels at full resolution, before the channel multipliers are applied."""
    channel_multipliers: Annotated[tuple[Multiplier, ...], Field(min_length=1, max_length=12)] = (1, 2, 4)
    """Number of channels at each resolution, as multiples of the base channels. Each resolution has half the side
    length of the previous one."""
    blocks_per_level: Annotated[int, Field(ge=1, le=16)] = 1
    """Number of blocks per resolution in the down path; the up path has the same number."""
    attention_resolutions: Annotated[tuple[ImageSide, ...], Field(max_length=12)] = ()
    """Resolutions (side lengths) at which blocks have attention, such as 8, 4. The middle block always has attention."""
    heads: Size = 1
    """Number of attention heads; must divide the channels of every block with attention."""
    noise_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Number of diffusion steps from an image to noise."""

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks in model order."""
        return _list_blocks(
            self.image_size,
            self.base_channels,
            self.channel_multipliers,
            self.blocks_per_level,
            frozenset(self.attention_resolutions),
        )

    @property
    def layers(self) -> int:
        """Number of blocks: down path, middle block and up path."""
        return 2 * len(self.channel_multipliers) * self.blocks_per_level + 1

    @property
    def skips(self) -> tuple[tuple[int, int], ...]:
        """Skip connections as (source block, target block)."""
        return nested_skips(self.layers)

    @property
    def time_width(self) -> int:
        """Width of the noise-step embedding, which is an input of all blocks."""
        return 4 * self.base_channels

    # ---- messages between blocks, in message units ----

    @property
    def hidden(self) -> int:
        """Elements per message unit: the greatest common divisor of the sizes of all tensors between blocks."""
        return _message_unit_elements(self)

    @property
    def sequence(self) -> int:
        """Rows of a message per sample, which is 1. Rates in tokens count an image as one token."""
        return 1

    def onward_message_units(self, block: int) -> int:
        """Return the number of message units that a block passes to the next one, including the noise-step embedding."""
        return (element_count(self.blocks[block].shape_out) + self.time_width) // self.hidden

    def skip_message_units(self, block: int) -> int:
        """Return the number of message units in the skip connection of a block."""
        return element_count(self.blocks[block].shape_skipped) // self.hidden

    # ---- operators ----

    def block_operators(self, load: Workload, number: int) -> tuple[Operator, ...]:
        return block_operators(load, self.blocks[number], self.time_width, self.heads)

    def embedding_operators(self, load: Workload) -> tuple[Operator, ...]:
        return embedding_operators(load, self.image_channels, self.image_size, self.base_channels, self.time_width)

    def head_operators(self, load: Workload) -> tuple[Operator, ...]:
        return head_operators(load, self.blocks[-1].outer, self.image_channels, self.image_size)

    @property
    def example_bytes(self) -> tuple[float, float]:
        """Sizes in bytes of one input (an image and its noise step) and of its target (the noise)."""
        image = self.image_channels * self.image_size**2 * IMAGE_ITEM
        return image + IMAGE_ITEM, image

    def shared_bytes(self, load: Workload) -> float:
        """Return the size in bytes of the noise-step embedding, which is an input of all blocks of a stage."""
        return load.batch * self.time_width * load.precision.item

    def skips_its_output(self, block: int) -> bool:
        return not self.blocks[block].resamples

    # ---- training data ----

    def example(self, window: NDArray[np.uint8], chance: Generator) -> Example:
        """Return a noisy image with its noise step, ``[channels * side^2 + 1]``, and the noise, ``[channels, side, side]``."""
        image = draw_image(self.image_channels, self.image_size, chance)
        step = int(chance.integers(1, self.noise_steps + 1))
        noise = chance.standard_normal(image.shape, np.float32)
        left = _image_variance_left(step / self.noise_steps)
        noisy = math.sqrt(left) * image + math.sqrt(1 - left) * noise
        return np.append(noisy.ravel(), step).astype(np.float32), noise

    @classmethod
    def initial_values(cls) -> Mapping[str, Any]:
        """Return the sizes of a small model."""
        return {"heads": 4}

    @classmethod
    def stage_builder(cls) -> type[Any]:
        return resolve_name("meshwave.engine.runtime.models.u_net:DiffusionUNet")  # type: ignore[no-any-return]

    @model_validator(mode="after")
    def _check_image_size(self) -> Self:
        levels = len(self.channel_multipliers)
        factor = 2 ** (levels - 1)
        if self.image_size % factor:
            params = {"size": self.image_size, "halvings": levels - 1, "levels": levels, "factor": factor}
            nearest = max(1, round(self.image_size / factor)) * factor
            raise validation_error("image_size", "indivisible_image_size", params, set_key_fix("image_size", nearest))
        return self

    @model_validator(mode="after")
    def _check_attention_resolutions(self) -> Self:
        sides = [self.image_size >> level for level in range(len(self.channel_multipliers))]
        unknown = sorted(set(self.attention_resolutions) - set(sides))
        if unknown:
            known = [side for side in self.attention_resolutions if side in sides]
            params = {"unknown": unknown, "resolutions": sides}
            fix = set_key_fix("attention_resolutions", known)
            raise validation_error("attention_resolutions", "unknown_resolution", params, fix)
        return self

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        levels = enumerate(self.channel_multipliers)
        attending = [m for level, m in levels if self.image_size >> level in self.attention_resolutions]
        widths = [self.base_channels * multiplier for multiplier in (*attending, self.channel_multipliers[-1])]
        for channels in widths:
            if channels % self.heads:
                near = gcd(self.heads, *widths)
                params = {"heads": self.heads, "channels": channels, "near": near}
                raise validation_error("heads", "indivisible_channels", params, set_key_fix("heads", near))
        return self


messages.add_messages(
    indivisible_channels=(
        "{heads} heads do not divide the {channels} channels of a block with attention; use {near} heads"
    ),
    indivisible_image_size=(
        "images of {size} x {size} cannot be halved {halvings} times, once between {levels} channel_multipliers; "
        "use a multiple of {factor}, or fewer multipliers"
    ),
    unknown_resolution="the model has no resolution {unknown:list}; its resolutions are {resolutions:list}",
)


def _image_variance_left(progress: float) -> float:
    """Return the remaining fraction of an image's variance after the fraction ``progress`` of the noise steps."""

    def cosine_schedule(at: float) -> float:
        return math.cos((at + COSINE_OFFSET) / (1 + COSINE_OFFSET) * math.pi / 2) ** 2

    return cosine_schedule(progress) / cosine_schedule(0.0)


@lru_cache(maxsize=64)
def _message_unit_elements(model: UNet) -> int:
    sizes = [element_count(shape) for block in model.blocks for shape in (block.shape_out, block.shape_skipped)]
    return gcd(model.time_width, *sizes)


@lru_cache(maxsize=64)
def _list_blocks(
    image_size: int, base: int, multipliers: tuple[int, ...], per_level: int, attending: frozenset[int]
) -> tuple[Block, ...]:
    """Return the blocks in model order: the down path, the middle block, and the up path in mirrored order."""
    down, inner = [], base
    for level, multiplier in enumerate(multipliers):
        side, outer = image_size >> level, base * multiplier
        for number in range(per_level):
            halves = number == per_level - 1 and level < len(multipliers) - 1
            down.append(Block("down", inner, 0, outer, side, side in attending, halves))
            inner = outer
    middle = Block("middle", inner, 0, inner, down[-1].side, True, False)
    up = []
    for mirrored in reversed(down):
        up.append(mirrored._replace(way="up", inner=inner, skipped=mirrored.outer))
        inner = mirrored.outer
    return (*down, middle, *up)
