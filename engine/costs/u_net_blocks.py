"""What the blocks of a U-Net cost in FLOPs, bytes, parameters and kept activations, operator by operator.

Every formula counts what :mod:`meshwave.engine.runtime.models.u_net` builds. A convolution of kernel ``k`` from ``i`` to ``o``
channels is ``2 k^2 i o`` FLOPs for each pixel that it gives, and as many for each of its two gradients. What is
elementwise is counted by the bytes that it moves, as in :mod:`meshwave.engine.costs.flops`, which has the operators of the
attention: that of a transformer, with the pixels as tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from math import gcd

from meshwave.engine.costs.operators import Operator, Work, Workload, accumulated, mixing, pointwise, product
from meshwave.engine.document.u_net import Block, UNet, numbers_of

MOST_GROUPS = 32
"""Groups of a group norm (Wu and He, arXiv:1803.08494), where they divide the channels."""
KERNEL = 3
IMAGE_ITEM = 4
"""Bytes of a number of an image, as data has it."""


def groups_of(channels: int) -> int:
    """Groups of the norm of so many channels."""
    return gcd(MOST_GROUPS, channels)


def stage_operators(model: UNet, load: Workload, first: int, blocks: int, *, last: bool) -> tuple[Operator, ...]:
    """The operators of a stage of ``blocks`` blocks from ``first`` on; ``last``: it has the head and the loss."""
    own = [operator for n in range(first, first + blocks) for operator in block_operators(model, load, n)]
    return (*own, *ends(model, load, first=first == 0, last=last))


def ends(model: UNet, load: Workload, *, first: bool, last: bool) -> tuple[Operator, ...]:
    """What a stage has besides its blocks."""
    return (embedding(model, load) if first else ()) + (head(model, load) if last else ())


@lru_cache(maxsize=1024)
def block_operators(model: UNet, load: Workload, number: int) -> tuple[Operator, ...]:
    """One block: what it resamples, its residual blocks and its attention."""
    return tuple(_block(model, load, model.blocks[number]))


def _block(model: UNet, load: Workload, block: Block) -> Iterator[Operator]:
    outer, side = block.outer, block.side
    if block.way == "up" and block.resamples:
        grown = _pixels(load, block.inner, side)
        yield pointwise("upsampling", grown, block.inner, kept=0, read_and_written=(1.25, 1.25))
        yield _convolution("upsampling convolution", load, block.inner, block.inner, side)
    if block.skipped:
        width = block.inner + block.skipped
        yield pointwise("skip concatenation", _pixels(load, width, side), width, kept=0, read_and_written=(2, 2))
    yield from _residual(model, load, block.inner + block.skipped, outer, side)
    if block.attends:
        yield from _attention(model, load, outer, side)
    if block.way == "middle":
        yield from _residual(model, load, outer, outer, side)
    if block.way == "down" and block.resamples:
        yield _convolution("downsampling convolution", load, outer, outer, side // 2, stride=2)


def _residual(model: UNet, load: Workload, inner: int, outer: int, side: int) -> Iterator[Operator]:
    """Norm, SiLU, convolution, the embedding of the noise step, and norm, SiLU, convolution once more (Ho et al.,
    arXiv:2006.11239, appendix B), beside a convolution of kernel 1 where the channels change. That one takes what
    the first norm has kept, and gets the gradient that the second convolution gets too."""
    before, after = _pixels(load, inner, side), _pixels(load, outer, side)
    yield _group_norm("first norm", before, inner)
    yield pointwise("SiLU", before, inner, kept=1, read_and_written=(2, 3))
    yield _convolution("first convolution", load, inner, outer, side)
    yield _shared(product("noise step projection", _images(load), model.time_width, outer), load, outer)
    yield pointwise("noise step sum", after, outer, kept=0, read_and_written=(2, 1))
    yield _group_norm("second norm", after, outer)
    yield pointwise("SiLU", after, outer, kept=1, read_and_written=(2, 3))
    yield _convolution("second convolution", load, outer, outer, side)
    if inner != outer:
        shortcut = _convolution("shortcut convolution", load, inner, outer, side, kernel=1)
        yield shortcut._replace(kept_bytes=0.0, deferred_bytes=0.0)
    yield pointwise("residual", after, outer, kept=0, read_and_written=(3, 2))


def _shared(projection: Operator, load: Workload, outer: int) -> Operator:
    """All blocks of a stage take the same embedding of the noise step, which is kept with what the stage takes in."""
    return projection._replace(kept_bytes=0.0, deferred_bytes=load.batch * outer * load.precision.item)


def _attention(model: UNet, load: Workload, channels: int, side: int) -> Iterator[Operator]:
    """Self-attention of the pixels, normed before and added to what came in."""
    tokens = _pixels(load, channels, side)
    yield _group_norm("attention norm", tokens, channels)
    yield pointwise("pixels as tokens", tokens, channels, kept=0, read_and_written=(2, 2))
    yield product("query, key, value", tokens, channels, 3 * channels)
    yield mixing(tokens)
    yield product("attention output", tokens, channels, channels)
    yield pointwise("attention residual", tokens, channels, kept=0, read_and_written=(3, 2))


@lru_cache(maxsize=64)
def embedding(model: UNet, load: Workload) -> tuple[Operator, ...]:
    """The first convolution, and two linear maps of the noise step's sines and cosines."""
    size, item = float(model.image_channels * model.image_size**2), load.precision.item
    first = _convolution("input convolution", load, model.image_channels, model.base_channels, model.image_size)
    images = load.batch * (size + 1) * IMAGE_ITEM  # and the noise step
    copied = load.batch * size * item if item != IMAGE_ITEM else 0.0
    base, wide, samples = model.base_channels, model.time_width, _images(load)
    return (
        first._replace(input_gradient=Work(), kept_bytes=images + copied),
        product("noise step in", samples, base, wide),
        pointwise("SiLU", samples, wide, kept=1, read_and_written=(2, 3)),
        product("noise step out", samples, wide, wide),
        pointwise("SiLU", samples, wide, kept=2, read_and_written=(2, 3)),  # and the embedding, for all blocks
    )


@lru_cache(maxsize=64)
def head(model: UNet, load: Workload) -> tuple[Operator, ...]:
    """The last norm and convolution, and the mean squared error of the noise that it predicts."""
    channels, side = model.blocks[-1].outer, model.image_size
    last = _pixels(load, channels, side)
    size = load.batch * model.image_channels * side**2
    item, wide = load.precision.item, max(load.precision.item, load.precision.statistics)
    error = Operator(
        "loss",
        forward=Work(bytes=size * (item + wide)),
        input_gradient=Work(bytes=size * (2 * wide + item)),
        kept_bytes=2 * size * wide,
        transient_bytes=size * (wide + item),
    )
    return (
        _group_norm("last norm", last, channels),
        pointwise("SiLU", last, channels, kept=1, read_and_written=(2, 3)),
        _convolution("output convolution", load, channels, model.image_channels, side),
        error,
    )


# ---- a stage, and the model ----


def embedding_bytes(model: UNet, load: Workload) -> float:
    """Bytes of the embedding of the noise step, which all blocks of a stage take."""
    return load.batch * model.time_width * load.precision.item


def taken_units(model: UNet, layers: Sequence[int], stage: int, skips: Sequence[Sequence[int]]) -> int:
    """Units that a stage takes in, of its neighbour and of skip connections; none of the first, which takes images."""
    before = sum(layers[:stage])
    came = sum(units for _, target, units in skips if target == stage)
    return came + (model.onward_units(before - 1) if stage else 0)


def given_units(model: UNet, layers: Sequence[int], stage: int, skips: Sequence[Sequence[int]]) -> int:
    """Units that a stage hands on in tensors of their own, which are held for its backward: what the next stage
    takes, what skips further side by side, and a single tensor that nothing else of the stage keeps."""
    end = sum(layers[: stage + 1])
    goes = [(target, units) for source, target, units in skips if source == stage]
    if stage == len(layers) - 1:
        return 0
    beside = sum(units for target, units in goes if target == stage + 1)
    beyond = sum(units for target, units in goes if target > stage + 1 and _is_held(model, layers, stage, target))
    return model.onward_units(end - 1) + beside + beyond


def _is_held(model: UNet, layers: Sequence[int], stage: int, target: int) -> bool:
    """Whether what skips from a stage to another is no view of something that is kept anyway."""
    ends = list(accumulate(layers))
    own = range(ends[stage] - layers[stage], ends[stage])
    there = range(ends[target] - layers[target], ends[target])
    blocks = [source for source, end in model.skips if source in own and end in there]
    return len(blocks) > 1 or (blocks == [own[-1]] and not model.blocks[own[-1]].resamples)


def input_bytes(model: UNet, load: Workload, taken: float, *, first: bool, last: bool) -> float:
    """Bytes a device keeps of a stage that is recomputed: what it takes in, and the targets if it has the loss."""
    size = load.batch * model.image_channels * model.image_size**2 * IMAGE_ITEM
    return (size + load.batch * IMAGE_ITEM if first else taken) + (size if last else 0.0)


def model_parameters(model: UNet) -> float:
    """Parameters of the whole model."""
    return sum(operator.parameters for operator in _whole(model, 1))


def model_flops(model: UNet, images: float) -> float:
    """FLOPs of ``images`` through the whole model, forward and backward: three times the forward."""
    return 3.0 * sum(operator.forward.flops for operator in _whole(model, images))


def _whole(model: UNet, images: float) -> tuple[Operator, ...]:
    return stage_operators(model, Workload.of(model, batch=images), 0, model.layers, last=True)


# ---- operators ----


def _pixels(load: Workload, channels: int, side: int) -> Workload:
    """Work on images of so many channels and such a side, with their pixels as tokens."""
    return replace(load, sequence=side**2, hidden=channels)


def _images(load: Workload) -> Workload:
    """Work on one row of numbers an image."""
    return replace(load, sequence=1)


def _convolution(
    name: str, load: Workload, inner: int, outer: int, side: int, *, kernel: int = KERNEL, stride: int = 1
) -> Operator:
    """With a bias; ``side`` is that of what it gives. It keeps its input."""
    item = load.precision.item
    weights = kernel**2 * inner * outer
    taken = load.batch * numbers_of((inner, side * stride)) * item
    given = load.batch * numbers_of((outer, side)) * item
    once = Work(2.0 * load.batch * weights * side**2, taken + weights * item + given)
    return Operator(
        name,
        forward=once,
        input_gradient=once,
        weight_gradient=Work(once.flops, taken + given + accumulated(weights, load)),
        parameters=weights + outer,
        copied=weights + outer,
        kept_bytes=taken,
        deferred_bytes=taken + given,
        transient_bytes=taken + given + weights * item,
    )


def _group_norm(name: str, pixels: Workload, channels: int) -> Operator:
    """Reads and writes its input, and keeps it, with a mean and a deviation of each group."""
    size = pixels.tokens * channels * pixels.precision.item
    statistics = 2 * pixels.batch * groups_of(channels) * max(pixels.precision.item, pixels.precision.statistics)
    return Operator(
        name,
        forward=Work(bytes=2 * size),
        input_gradient=Work(bytes=3 * size),
        parameters=2 * channels,
        kept_bytes=size + statistics,
        deferred_bytes=2 * size + statistics,
        transient_bytes=size,
    )
