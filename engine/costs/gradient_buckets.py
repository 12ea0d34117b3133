"""Buckets of gradients: parts of a stage that are reduced one after the other, while its last backward continues.

A stage consists of blocks: the embedding, its layers, and the head. A backward runs them from the last to the first, and the
gradients of a block are final when the last backward of the stage has passed it. A bucket is a range of blocks; all buckets of
a stage have about equally many parameters, as in PyTorch DDP (Li et al., arXiv:2006.15704, section 3.2.3) and Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs import transformer_layers
from meshwave.engine.costs.block_models import BlockModel
from meshwave.engine.costs.device_sizes import Sizes, device_workload, table_of_step
from meshwave.engine.costs.expert_blocks import EXPERTS, ExpertBlock, expert_block
from meshwave.engine.costs.operators import Operator, Workload
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
    return _divide_stages(design, _block_parameters(design, layers))


def bucket_sizes(design: Design, layers: Sequence[int], held: Sizes) -> list[Sizes]:
    """Return the sizes of each bucket, ``[buckets]``: those of ``held``, with only the reduced parameters of the bucket."""
    if not uses_buckets(design):
        return [held]
    parameters = _block_parameters(design, layers)
    buckets = _divide_stages(design, parameters)
    dense, experts = np.zeros((2, max(map(len, buckets)), len(layers)))
    for stage, found in enumerate(buckets):
        blocks = np.array(parameters[stage])
        shares = blocks / np.maximum(blocks.sum(axis=0), 1.0)
        for number, each in enumerate(found):
            dense[number, stage], experts[number, stage] = shares[each.start : each.stop].sum(axis=0)
    return [
        held._replace(
            reduced=(held.reduced - held.experts) * of_dense + held.experts * of_experts,
            partial=held.partial * of_dense,
            gates=held.gates * of_experts,
            experts=held.experts * of_experts,
        )
        for of_dense, of_experts in zip(dense, experts, strict=True)
    ]


def last_operations(program: Program) -> NDArray[np.int8]:
    """Return the kind of the last computation of each stage on each rank, ``[ranks, stages]``; -1 if there is none."""
    found = np.full((program.ranks, program.stages), -1, np.int8)
    rows = np.flatnonzero(program.is_compute)
    found[program.rank[rows], program.stage[rows]] = program.op[rows]  # rows ascend: the last assignment wins
    return found


def remaining_shares(design: Design, program: Program, layers: Sequence[int], prices: Sequence[MeshPrices]) -> Floats:
    """Return the share of the last computation of each stage that follows the end of each bucket, ``[buckets, stages]``.

    A stage whose backward is split computes the gradients of weights in W, or at the end of a full backward (B), after
    the gradient of its input. A recomputed stage begins its backward with a forward. If the replicas of a stage end
    with different computations, the share is the smallest one.
    """
    buckets, last = gradient_buckets(design, layers), last_operations(program)
    has_weight_half = np.unique(program.stage[program.op == Op.W])
    block_seconds = _price_blocks(design, layers, prices)
    found = np.ones((max(map(len, buckets)), len(layers)))
    for stage, each in enumerate(buckets):
        found[len(each) :, stage] = 0.0
        for rank in np.flatnonzero(last[:, stage] >= 0).tolist():
            op = Op(int(last[rank, stage]))
            whole = sum(block_seconds(rank, stage, op))
            if op == Op.B and design.pipeline.recomputes(stage):
                whole += sum(block_seconds(rank, stage, Op.F))
            seconds = block_seconds(rank, stage, Op.W if stage in has_weight_half else op)
            for number, blocks in enumerate(each):
                share = min(1.0, sum(seconds[: blocks.start]) / whole) if whole else 0.0
                found[number, stage] = min(found[number, stage], share)
    return found


def _divide_stages(design: Design, parameters: Sequence[Sequence[tuple[float, float]]]) -> list[Buckets]:
    """Return the buckets of each stage from the parameters of its blocks."""
    count, last = design.training.gradient_buckets, len(parameters) - 1
    return [
        _divide([sum(each) for each in blocks], count, _blocks_with_head(design) if stage == last else 1)
        for stage, blocks in enumerate(parameters)
    ]


def _blocks_with_head(design: Design) -> int:
    """Return the number of last blocks of the last stage that are in one bucket with the head.

    Layers of multi-token prediction share the head with the main model, so that its gradients are final after theirs.
    """
    return 1 + design.model.architecture.mtp_layers


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


def _block_parameters(design: Design, layers: Sequence[int]) -> list[list[tuple[float, float]]]:
    """Return the parameters of each block on a device of the first mesh, ``[stages][blocks]``.

    They are those of experts, and all others whose gradients REDUCE_GRAD sums.
    """
    load = device_workload(design, design.meshes[0])
    block = expert_block(design, design.meshes[0], load)
    of_experts = block.expert_parameters if block else 0.0
    beside = sum(each.parameters for each in block.operators if each.name == EXPERTS) - of_experts if block else 0.0

    def count(parts: list[StagePart]) -> tuple[float, float]:
        layers_with_experts = sum(part.layer >= 0 for part in parts)
        dense = sum(operator.parameters for part in parts for operator in part.operators)
        return dense + beside * layers_with_experts, of_experts * layers_with_experts

    found = [[*map(count, stage_blocks(design, load, block, layers, stage))] for stage in range(len(layers))]
    table = table_of_step(design, len(layers), load)
    if table:
        for blocks, place in ((found[0], 0), (found[-1], -1)):  # embedding and head
            dense, routed = blocks[place]
            blocks[place] = max(0.0, dense - table), routed
    # The only stage of a language model has embedding and head: if they are tied, the head has no table of its own.
    may_tie_head = len(layers) == 1 and not isinstance(design.model, BlockModel)
    if may_tie_head:
        ends = transformer_layers.end_operators(load, first=True, last=True)
        found[0][-1] = (max(0.0, sum(each.parameters for each in ends) - found[0][0][0]), 0.0)
    return found


def _price_blocks(
    design: Design, layers: Sequence[int], prices: Sequence[MeshPrices]
) -> Callable[[int, int, Op], list[float]]:
    """Return a function that maps a rank, a stage and a kind to the seconds of each block; equal parts are priced once."""

    @cache
    def load_of(rank: int) -> tuple[Workload, ExpertBlock | None]:
        load = device_workload(design, design.meshes[rank])
        return load, expert_block(design, design.meshes[rank], load)

    @cache
    def part_seconds(price: MeshPrices, operators: tuple[Operator, ...], layer: int, op: Op) -> float:
        return sum(map(sum, price.pieces(StagePart("", operators, layer), op)))

    def block_seconds(rank: int, stage: int, op: Op) -> list[float]:
        return [
            sum(part_seconds(prices[rank], part.operators, part.layer, op) for part in parts)
            for parts in stage_blocks(design, *load_of(rank), layers, stage)
        ]

    return block_seconds
