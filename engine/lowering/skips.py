"""Which stages the skip connections of a model lead from and to, once it is cut into stages."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

from engine.cost import layers_per_stage
from engine.design import Design

Skip = tuple[int, int]
"""A block and a later one that takes what it makes."""


def skips_of(design: Design) -> tuple[tuple[int, int, int], ...]:
    """Stages (from, to) and how many tensors of a microbatch skip from one to the other, ascending.

    Raises:
        InputError: there are more stages than layers.
    """
    skips = design.model.skips
    found = between_stages(skips, layers_per_stage(design)) if skips else {}
    return tuple((*pair, len(blocks)) for pair, blocks in found.items())


def between_stages(skips: Sequence[Skip], layers: Sequence[int]) -> dict[tuple[int, int], list[Skip]]:
    """The skips of blocks from one stage to another, ascending, by those stages, with the ``layers`` of each stage;
    those within a stage are its own business."""
    ends = list(accumulate(layers))
    found: dict[tuple[int, int], list[Skip]] = defaultdict(list)
    for source, target in sorted(skips):
        found[bisect_right(ends, source), bisect_right(ends, target)].append((source, target))
    return {pair: found[pair] for pair in sorted(found) if pair[0] != pair[1]}
