"""A convolutional U-Net that learns to remove noise from images, by its shape."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from meshwave.engine.document.model import Model, Size, nested_skips
from meshwave.engine.frozen import Part

ImageSide = Annotated[int, Field(ge=1, le=4096)]
Channels = Annotated[int, Field(ge=1, le=65_536)]
Multiplier = Annotated[int, Field(ge=1, le=1024)]

Way = Literal["down", "middle", "up"]


class Block(NamedTuple):
    """One block: a residual block, attention behind it where ``attends``, and a change of resolution.

    A block down ends with a convolution of stride 2 where it ``resamples``; a block up begins by doubling the
    resolution there. The middle block has a second residual block behind its attention.
    """

    way: Way
    inner: int
    """Channels that the block before hands on."""
    skipped: int
    """Channels that its skip connection brings; 0 where none ends in it."""
    outer: int
    """Channels that it hands on."""
    side: int
    """Pixels of a side of what its residual block works on."""
    attends: bool
    resamples: bool

    @property
    def shape_in(self) -> tuple[int, int]:
        """Channels and side of what the block before hands on."""
        return self.inner, self.side // 2 if self.way == "up" and self.resamples else self.side

    @property
    def shape_out(self) -> tuple[int, int]:
        """Channels and side of what it hands on."""
        return self.outer, self.side // 2 if self.way == "down" and self.resamples else self.side

    @property
    def shape_skipped(self) -> tuple[int, int]:
        """Channels and side of what its skip connection carries, of a block down: before the resolution is halved."""
        return self.outer, self.side


def numbers_of(shape: tuple[int, int]) -> int:
    """Numbers of one image in a tensor of so many channels and such a side."""
    channels, side = shape
    return channels * side**2


class UNet(Part):
    """A diffusion U-Net over small images: residual blocks of convolutions, attention at low resolutions, and a
    skip connection from each block down to its mirror image on the way up (Ho et al., arXiv:2006.11239). It
    predicts the noise that was added to images that are drawn from the seed. Its layers are its blocks."""

    has_equal_blocks: ClassVar = False
    reads_text: ClassVar = False
    supports_tensor_parallelism: ClassVar = False

    kind: Literal["u-net"]
    """u-net predicts the noise that was added to an image."""
    image_size: ImageSide = 32
    """Pixels of a side of an image."""
    image_channels: Channels = 3
    """Colours of a pixel."""
    base_channels: Channels = 64
    """Channels at full resolution, before they are multiplied."""
    channel_multipliers: Annotated[tuple[Multiplier, ...], Field(min_length=1, max_length=12)] = (1, 2, 4)
    """Channels of each resolution over base channels; each resolution has half the side of the one before."""
    blocks_per_level: Annotated[int, Field(ge=1, le=16)] = 1
    """Blocks of each resolution on the way down, and as many on the way up."""
    attention_resolutions: Annotated[tuple[ImageSide, ...], Field(max_length=12)] = ()
    """Sides at which blocks have attention, such as 8, 4; the middle block always has."""
    heads: Size = 1
    """Attention heads; they divide the channels wherever there is attention."""
    noise_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Steps of the diffusion, from an image to noise."""

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks in their order."""
        return _blocks(
            self.image_size,
            self.base_channels,
            self.channel_multipliers,
            self.blocks_per_level,
            frozenset(self.attention_resolutions),
        )

    @property
    def layers(self) -> int:
        """Its blocks: those on the way down, as many on the way up, and the middle one."""
        return 2 * len(self.channel_multipliers) * self.blocks_per_level + 1

    @property
    def skips(self) -> tuple[tuple[int, int], ...]:
        """Blocks (from, to) of its skip connections."""
        return nested_skips(self.layers)

    @property
    def time_width(self) -> int:
        """Width of the embedding of the noise step, which all blocks take."""
        return 4 * self.base_channels

    # ---- what passes between blocks, in units of a message ----

    @property
    def hidden(self) -> int:
        """Numbers of one unit of a message: the largest number that divides all that passes between blocks."""
        return _unit(self)

    @property
    def sequence(self) -> int:
        """Rows of a message a sample: an image is one. Rates in tokens count it as one token."""
        return 1

    def onward_units(self, block: int) -> int:
        """Units that a block hands to the next one, the embedding of the noise step beside them."""
        return (numbers_of(self.blocks[block].shape_out) + self.time_width) // self.hidden

    def skip_units(self, block: int) -> int:
        """Units that the skip connection of a block carries."""
        return numbers_of(self.blocks[block].shape_skipped) // self.hidden

    def with_message_unit(self, sequence: int, hidden: int) -> Model:
        """Return a language model whose messages have units of this size, which a dry run sends in place of its own."""
        return Model(kind="gpt", layers=self.layers, hidden=hidden, heads=1, sequence=sequence, vocab=1)

    # ---- what language models have, and it has not ----

    @property
    def vocab(self) -> int:
        """It knows no tokens."""
        return 0

    @property
    def ffn_hidden(self) -> int:
        """It has no feed-forward blocks."""
        return 0

    @property
    def moe(self) -> None:
        """It has no experts."""

    @property
    def expert_blocks(self) -> tuple[int, ...]:
        """It has no experts."""
        return ()

    @model_validator(mode="after")
    def _the_resolution_can_be_halved(self) -> Self:
        factor = 2 ** (len(self.channel_multipliers) - 1)
        if self.image_size % factor:
            raise PydanticCustomError(
                "image_size",
                "images of {size} x {size} cannot be halved {times} times, once between {levels} channel_multipliers; "
                "use a multiple of {factor}, or fewer multipliers",
                {
                    "size": self.image_size,
                    "times": len(self.channel_multipliers) - 1,
                    "levels": len(self.channel_multipliers),
                    "factor": factor,
                },
            )
        return self

    @model_validator(mode="after")
    def _attention_is_at_resolutions_that_it_has(self) -> Self:
        sides = [self.image_size >> level for level in range(len(self.channel_multipliers))]
        strange = sorted(set(self.attention_resolutions) - set(sides))
        if strange:
            raise PydanticCustomError(
                "attention_resolutions",
                "the model has no resolution of {strange}; it has {sides}",
                {"strange": ", ".join(map(str, strange)), "sides": ", ".join(map(str, sides))},
            )
        return self

    @model_validator(mode="after")
    def _heads_divide_the_channels(self) -> Self:
        levels = enumerate(self.channel_multipliers)
        attending = [m for level, m in levels if self.image_size >> level in self.attention_resolutions]
        for multiplier in (*attending, self.channel_multipliers[-1]):
            channels = self.base_channels * multiplier
            if channels % self.heads:
                raise PydanticCustomError(
                    "attention_heads",
                    "{heads} heads do not divide the {channels} channels of a block with attention; use {near} heads",
                    {"heads": self.heads, "channels": channels, "near": gcd(self.heads, channels)},
                )
        return self


@lru_cache(maxsize=64)
def _unit(model: UNet) -> int:
    sizes = [numbers_of(shape) for block in model.blocks for shape in (block.shape_out, block.shape_skipped)]
    return gcd(model.time_width, *sizes)


@lru_cache(maxsize=64)
def _blocks(
    image_size: int, base: int, multipliers: tuple[int, ...], per_level: int, attending: frozenset[int]
) -> tuple[Block, ...]:
    """Down, middle, and up in the mirrored order."""
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
