"""What stages hand on once a model is cut into them: to the next one, and over skip connections to later ones."""

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
    """Stages (from, to) and how many units of a microbatch skip from one to the other, ascending.

    Raises:
        InputError: there are more stages than layers.
    """
    skips = design.model.skips
    found = between_stages(skips, layers_per_stage(design)) if skips else {}
    units = design.model.skip_units
    return tuple((*pair, sum(units(source) for source, _ in blocks)) for pair, blocks in found.items())


def onward_of(design: Design) -> tuple[int, ...]:
    """[stages - 1] how many units of a microbatch each stage hands to the next one, besides what skips.

    Empty where all hand on one, as those of a language model do, so that the layers need not be known.

    Raises:
        InputError: there are more stages than layers.
    """
    model = design.model
    if model.has_equal_blocks:
        return ()
    ends = accumulate(layers_per_stage(design)[:-1])
    return tuple(model.onward_units(end - 1) for end in ends)


def between_stages(skips: Sequence[Skip], layers: Sequence[int]) -> dict[tuple[int, int], list[Skip]]:
    """The skips of blocks from one stage to another, ascending, by those stages, with the ``layers`` of each stage;
    those within a stage are its own business."""
    ends = list(accumulate(layers))
    found: dict[tuple[int, int], list[Skip]] = defaultdict(list)
    for source, target in sorted(skips):
        found[bisect_right(ends, source), bisect_right(ends, target)].append((source, target))
    return {pair: found[pair] for pair in sorted(found) if pair[0] != pair[1]}
