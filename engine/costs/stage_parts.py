"""Parts of a stage in the order of its forward: embedding, layers or blocks, head and loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from meshwave.engine.costs import transformer_layers
from meshwave.engine.costs.block_models import BlockModel
from meshwave.engine.costs.expert_blocks import EXPERTS, ExpertBlock
from meshwave.engine.costs.operators import Operator, Workload
from meshwave.engine.document import Design


class StagePart(NamedTuple):
    """Part of a stage; the experts of a layer are a separate part."""

    name: str
    operators: tuple[Operator, ...]
    layer: int = -1  # number of the layer of these experts; -1 for other parts


def stage_parts(
    design: Design, load: Workload, block: ExpertBlock | None, layers: Sequence[int], stage: int
) -> Iterator[StagePart]:
    """Yield the parts of a stage; ``block`` has the costs of a layer with experts."""
    return chain.from_iterable(stage_blocks(design, load, block, layers, stage))


def stage_blocks(
    design: Design, load: Workload, block: ExpertBlock | None, layers: Sequence[int], stage: int
) -> Iterator[list[StagePart]]:
    """Yield the parts of each block of a stage: of the embedding, of each layer, and of the head."""
    model, first, last = design.model, stage == 0, stage == len(layers) - 1
    start = list(accumulate(layers, initial=0))[stage]
    numbers = range(start, start + layers[stage])
    if isinstance(model, BlockModel):
        ends = model.embedding_operators(load), model.head_operators(load)
        inside = ([StagePart(f"block {number}", tuple(model.block_operators(load, number)))] for number in numbers)
    else:
        ends = (
            transformer_layers.end_operators(load, first=True, last=False),
            transformer_layers.end_operators(load, first=False, last=True),
        )
        inside = (list(_layer_parts(design, load, block, number)) for number in numbers)
    if first:
        yield [StagePart("embedding", tuple(ends[0]))]
    yield from inside
    if last:
        yield [StagePart("head and loss", tuple(ends[1]))]


def _layer_parts(design: Design, load: Workload, block: ExpertBlock | None, number: int) -> Iterator[StagePart]:
    if block is not None and number in design.model.expert_blocks:
        yield StagePart(f"attention {number}", tuple(each for each in block.operators if each.name != EXPERTS))
        yield StagePart(f"experts {number}", (), number)
        return
    if any(number == target for _, target in design.model.skips):
        yield StagePart(f"join {number}", tuple(transformer_layers.join_operators(load)))
    yield StagePart(f"attention {number}", tuple(transformer_layers.attention_operators(load)))
    yield StagePart(f"feed-forward {number}", tuple(transformer_layers.mlp_operators(load)))
