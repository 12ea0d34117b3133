"""Seconds of the blocks of a U-Net, and of its stages, by the prices that a model of cost has of each mesh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Protocol, TypeVar

from meshwave.engine.costs.device_sizes import copies, workload
from meshwave.engine.costs.operators import Operator, Workload
from meshwave.engine.costs.u_net_blocks import block_operators, ends, stage_operators
from meshwave.engine.document import Design
from meshwave.engine.document.u_net import UNet
from meshwave.engine.program.program import Program


class PartSeconds(Protocol):
    """Of a part of the model."""

    def total(self, *, recomputed: bool) -> float: ...


Priced = TypeVar("Priced", bound=PartSeconds, covariant=True)


class Prices(Protocol[Priced]):
    """Of any operators on one mesh."""

    def part(self, operators: Iterable[Operator]) -> Priced: ...
    def unequal_stage(self, operators: Iterable[Operator], layers: int, *, first: bool, last: bool) -> Priced: ...


def stage_prices(
    design: Design, model: UNet, program: Program, layers: Sequence[int], prices: Sequence[Prices[Priced]]
) -> Iterator[tuple[int, int, Priced]]:
    """Each copy of a stage: its rank, its number and what a microbatch takes through it."""
    for rank, stage in copies(program):
        load, last = workload(design, design.meshes[rank]), stage == program.stages - 1
        operators = stage_operators(model, load, sum(layers[:stage]), layers[stage], last=last)
        yield rank, stage, prices[rank].unequal_stage(operators, layers[stage], first=stage == 0, last=last)


def block_seconds(
    design: Design, model: UNet, prices: Sequence[Prices[Priced]], holders: Sequence[Sequence[int]]
) -> tuple[list[list[float]], list[float]]:
    """[stages][blocks] seconds of each block, and [stages] of what the first and the last stage have besides, on the
    slowest of the meshes that hold the stage."""

    @cache
    def of_blocks(price: Any, load: Workload, again: bool) -> list[float]:
        operators = (block_operators(model, load, number) for number in range(model.layers))
        return [price.part(each).total(recomputed=again) for each in operators]

    blocks, extra = [], []
    for stage, ranks in enumerate(holders):
        again, first, last = design.pipeline.recomputes(stage), stage == 0, stage == len(holders) - 1
        held: list[tuple[Any, Workload]] = [(prices[rank], workload(design, design.meshes[rank])) for rank in ranks]
        blocks.append(
            [max(each) for each in zip(*(of_blocks(price, load, again) for price, load in held), strict=True)]
        )
        besides = ((price, ends(model, load, first=first, last=last)) for price, load in held)
        extra.append(max(price.part(operators).total(recomputed=again) for price, operators in besides))
    return blocks, extra
