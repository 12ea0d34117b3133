"""Pieces of the actions of a design (computation and waits), from the operators and experts of their stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwave.engine.costs.device_sizes import device_workload
from meshwave.engine.costs.expert_blocks import expert_block
from meshwave.engine.costs.overlapped_slots import Piece, Pieces, join_pieces
from meshwave.engine.costs.stage_parts import StagePart, stage_parts
from meshwave.engine.costs.stage_prices import MeshPrices
from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import COMMON
from meshwave.engine.program.action import Op


class SlotPieces:
    """Computations and waits of each action, by mesh, stage and op; equal parts of stages are priced only once."""

    def __init__(self, design: Design, prices: Sequence[MeshPrices], layers: Sequence[int]) -> None:
        self._design, self._prices, self._layers = design, prices, layers
        self._known: dict[tuple[MeshPrices, int, Op], Pieces] = {}
        self._of_parts: dict[tuple[MeshPrices, StagePart, Op], list[Piece]] = {}

    def find(self, rank: int, stage: int, op: Op) -> Pieces:
        """Return the pieces of an action of a stage on a mesh."""
        key = self._prices[rank], stage, op
        if key not in self._known:
            self._known[key] = join_pieces(self._pieces(rank, stage, op))
        return self._known[key]

    def _pieces(self, rank: int, stage: int, op: Op) -> Iterator[Piece]:
        mesh, price = self._design.meshes[rank], self._prices[rank]
        load = device_workload(self._design, mesh)
        parts = list(stage_parts(self._design, load, expert_block(self._design, mesh, load), self._layers, stage))
        again = self._design.pipeline.recomputes(stage) and op in (Op.B, Op.I)
        for each in [Op.F, op] if again else [op]:
            for part in parts if each == Op.F else reversed(parts):
                yield from self._part_pieces(price, part, each)

    def _part_pieces(self, price: MeshPrices, part: StagePart, op: Op) -> list[Piece]:
        number = part.layer if part.layer in self._design.experts.own_layers else COMMON
        key = price, part._replace(name="", layer=number), op
        if key not in self._of_parts:
            self._of_parts[key] = list(price.pieces(part, op))
        return self._of_parts[key]
