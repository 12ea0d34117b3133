"""Buckets of gradients: parts of a stage that are reduced one after the other, while its last backward continues.

A stage consists of blocks: the embedding, its layers, and the head. A backward runs them from the last to the first, and the
gradients of a block are final when the last backward of the stage has passed it. A bucket is a range of blocks; all buckets of
a stage have about equally many parameters, as in PyTorch DDP (Li et al., arXiv:2006.15704, section 3.2.3) and Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs import transformer_layers
from meshwave.engine.costs.block_models import BlockModel
from meshwave.engine.costs.device_sizes import Sizes, device_workload
from meshwave.engine.costs.expert_blocks import EXPERTS, ExpertBlock, expert_block
from meshwave.engine.costs.operators import Workload
from meshwave.engine.costs.stage_parts import StagePart, stage_blocks
from meshwave.engine.costs.stage_prices import MeshPrices
from meshwave.engine.document import Design
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program

Floats = NDArray[np.float64]
Buckets = list[range]
"""Blocks of each bucket of a stage, in the order of the reductions; the last bucket contains block 0."""


def uses_buckets(design: Design) -> bool:
    """Return True if the gradients of a stage are reduced in buckets."""
    return design.training.gradient_buckets > 1 and not design.training.scatters_blocks


def gradient_buckets(design: Design, layers: Sequence[int]) -> list[Buckets]:
    """Return the buckets of each stage; a stage with few blocks has fewer buckets than ``training.gradient_buckets``."""
    count = design.training.gradient_buckets
    return [
        _divide([sum(each) for each in _block_parameters(design, layers, stage)], count, _joined(design, layers, stage))
        for stage in range(len(layers))
    ]


def bucket_sizes(design: Design, layers: Sequence[int], held: Sizes) -> list[Sizes]:
    """Return the sizes of each bucket, ``[buckets]``: those of ``held``, with only the parameters of the bucket."""
    if not uses_buckets(design):
        return [held]
    buckets = gradient_buckets(design, layers)
    dense, experts = np.zeros((2, max(map(len, buckets)), len(layers)))
    for stage, found in enumerate(buckets):
        blocks = np.array(_block_parameters(design, layers, stage))
        shares = blocks / np.maximum(blocks.sum(axis=0), 1.0)
        for number, each in enumerate(found):
            dense[number, stage], experts[number, stage] = shares[each.start : each.stop].sum(axis=0)
    return [
        held._replace(
            parameters=(held.parameters - held.experts) * of_dense + held.experts * of_experts,
            gates=held.gates * of_experts,
            experts=held.experts * of_experts,
        )
        for of_dense, of_experts in zip(dense, experts, strict=True)
    ]


def remaining_shares(design: Design, program: Program, layers: Sequence[int], prices: Sequence[MeshPrices]) -> Floats:
    """Return the share of the last backward of each stage that follows the end of each bucket, ``[buckets, stages]``.

    In a split backward, that is the weight gradient (W). A recomputed stage begins its backward with a forward.
    """
    buckets = gradient_buckets(design, layers)
    found = np.zeros((max(map(len, buckets)), len(layers)))
    for stage, each in enumerate(buckets):
        rank = program.ranks_of(stage)[0]
        is_split = bool((program.op[program.stage == stage] == Op.W).any())
        seconds = _block_seconds(design, layers, stage, rank, prices[rank], Op.W if is_split else Op.B)
        again = design.pipeline.recomputes(stage) and not is_split
        first = sum(_block_seconds(design, layers, stage, rank, prices[rank], Op.F)) if again else 0.0
        whole = first + sum(seconds)
        for number, blocks in enumerate(each):
            found[number, stage] = sum(seconds[: blocks.start]) / whole if whole else 0.0
    return found


def _joined(design: Design, layers: Sequence[int], stage: int) -> int:
    """Return the number of last blocks of a stage that are in one bucket.

    Layers of multi-token prediction share the head with the main model, so that its gradients are final after theirs.
    """
    return 1 + (design.model.architecture.mtp_layers if stage == len(layers) - 1 else 0)


def _divide(sizes: Sequence[float], count: int, joined: int) -> Buckets:
    """Divide blocks into at most ``count`` ranges of about equal size, from the last block to the first one.

    Args:
        sizes: size of each block.
        count: largest number of ranges.
        joined: number of last blocks that must be in one range.
    """
    sizes = [*sizes[: len(sizes) - joined], sum(sizes[len(sizes) - joined :])]
    ends, whole = [*accumulate(reversed(sizes))], sum(sizes)
    numbers = [
        min(count - 1, int(count * (end - size / 2) / whole)) if whole else 0
        for size, end in zip(reversed(sizes), ends, strict=True)
    ]
    found, last = Buckets(), len(sizes)
    for number in sorted(set(numbers)):
        first = last - numbers.count(number)
        found.append(range(first, last if found else last + joined - 1))
        last = first
    return found


def _blocks(
    design: Design, layers: Sequence[int], stage: int, rank: int = 0
) -> tuple[Workload, ExpertBlock | None, list[list[StagePart]]]:
    mesh = design.meshes[rank]
    load = device_workload(design, mesh)
    block = expert_block(design, mesh, load)
    return load, block, list(stage_blocks(design, load, block, layers, stage))


def _block_parameters(design: Design, layers: Sequence[int], stage: int) -> list[tuple[float, float]]:
    """Return the parameters of each block of a stage on a device of the first mesh: those of experts, and all others."""
    load, block, blocks = _blocks(design, layers, stage)
    of_experts = block.expert_parameters if block else 0.0
    beside = sum(each.parameters for each in block.operators if each.name == EXPERTS) - of_experts if block else 0.0
    found = []
    for parts in blocks:
        layers_with_experts = sum(part.layer >= 0 for part in parts)
        dense = sum(operator.parameters for part in parts for operator in part.operators)
        found.append((dense + beside * layers_with_experts, of_experts * layers_with_experts))
    if (
        stage == 0 and len(layers) == 1 and not isinstance(design.model, BlockModel)
    ):  # a tied head has no table of its own
        ends = transformer_layers.end_operators(load, first=True, last=True)
        found[-1] = (max(0.0, sum(each.parameters for each in ends) - found[0][0]), 0.0)
    return found


def _block_seconds(
    design: Design, layers: Sequence[int], stage: int, rank: int, price: MeshPrices, op: Op
) -> list[float]:
    """Return the seconds of ``op`` in each block of a stage."""
    _, _, blocks = _blocks(design, layers, stage, rank)
    return [sum(sum(piece) for part in parts for piece in price.pieces(part, op)) for parts in blocks]
