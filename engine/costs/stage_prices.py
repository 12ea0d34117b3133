"""Roofline prices of stages: seconds of the operators of a stage on a device of a mesh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from meshwave.engine.costs import transformer_layers
from meshwave.engine.costs.alpha_beta import CollectivePrice, collective_seconds
from meshwave.engine.costs.context_exchange import ContextCost
from meshwave.engine.costs.expert_blocks import EXPERTS, ExpertBlock, ExpertBlocks, ExpertCounts
from meshwave.engine.costs.kernels import recomputed_share, recomputes_experts, work_seconds
from meshwave.engine.costs.operators import Operator, Workload
from meshwave.engine.costs.overlapped_slots import Piece
from meshwave.engine.costs.profile import BlockKind
from meshwave.engine.costs.sharding import BlockTimes, StateCollectives, exposed_seconds, waiting_seconds
from meshwave.engine.costs.stage_parts import StagePart
from meshwave.engine.document import Cluster, Mesh
from meshwave.engine.document.expert_layers import COMMON
from meshwave.engine.program.action import Op


class Seconds(NamedTuple):
    """Seconds of one microbatch through a part of the model.

    A full backward takes the sum of its halves less ``hidden``, the weight gradients that overlap with messages.
    """

    forward: float = 0.0
    input_gradient: float = 0.0
    weight_gradient: float = 0.0
    hidden: float = 0.0
    again: float = 0.0
    """Additional seconds of a backward that recomputes the forward."""
    forward_waits: float = 0.0
    """Seconds for which a device waits for collectives inside the block in a forward."""
    input_waits: float = 0.0
    """Seconds of the same waits in the input gradient; weight gradients do not wait for collectives."""
    hidden_waits: float = 0.0
    """Part of ``input_waits`` in which a full backward computes weight gradients."""
    unshard: float = 0.0
    """Seconds to gather the weights, if the program does so."""
    gather: float = 0.0
    """Seconds to gather the sharded weights of all blocks beside a forward or a backward, if these do so."""
    scatter: float = 0.0
    """Seconds to scatter the gradients of all blocks beside a backward."""

    def __add__(self, other: Seconds) -> Seconds:  # type: ignore[override]
        return Seconds(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def scale(self, count: float) -> Seconds:
        """Return the seconds of ``count`` such parts together."""
        return Seconds(*(count * mine for mine in self))

    @property
    def backward(self) -> float:
        """Seconds of a full backward."""
        return self.input_gradient + self.weight_gradient - self.hidden

    @property
    def backward_waits(self) -> float:
        """Seconds for which a device waits for collectives in a full backward."""
        return max(0.0, self.input_waits - self.hidden_waits)

    def seconds_of(self, op: Op) -> float:
        """Return the seconds of a computation without recomputation."""
        return {Op.F: self.forward, Op.B: self.backward, Op.I: self.input_gradient, Op.W: self.weight_gradient}[op]

    def waiting_seconds_of(self, op: Op) -> float:
        """Return the part of the seconds of ``op`` for which the stage waits for collectives."""
        return {Op.F: self.forward_waits, Op.B: self.backward_waits, Op.I: self.input_waits}.get(op, 0.0)

    def total(self, *, recomputed: bool) -> float:
        """Return the seconds of forward and backward, plus those of a second forward if the stage is ``recomputed``."""
        return self.forward + self.backward + (self.again if recomputed else 0.0)


Blocks = tuple[int, Seconds, Sequence[Operator], float]
"""Equal blocks of a stage: their number, seconds and operators of one block, and its expert parameters."""


NO_EXPERTS: ExpertCounts = {}


class MeshPrices:
    """Seconds of the parts of a model on one mesh, including tensor-parallel and context-parallel collectives."""

    def __init__(
        self,
        cluster: Cluster,
        mesh: Mesh,
        load: Workload,
        experts: ExpertBlocks | None = None,
        collective: CollectivePrice = collective_seconds,
        state: StateCollectives | None = None,
    ) -> None:
        self._cluster, self._load, self._experts, self._collective = cluster, load, experts or {}, collective
        self._state = state
        self._expert_layers: dict[int, Seconds] = {}
        self._groups = mesh.groups("tp")
        self._context = ContextCost(cluster, mesh, load, collective)

    @cached_property
    def layer(self) -> Seconds:
        """Seconds of a dense layer."""
        return self._block_seconds("layer", transformer_layers.layer_operators(self._load))

    def expert_layer(self, number: int = COMMON) -> Seconds:
        """Return the seconds of a layer with experts."""
        if number not in self._expert_layers:
            self._expert_layers[number] = self._expert_layer_seconds(self._experts[number])
        return self._expert_layers[number]

    def _expert_layer_seconds(self, block: ExpertBlock) -> Seconds:
        around = [operator for operator in block.operators if operator.name != EXPERTS]
        again = recomputes_experts(self._load.kernels.recomputes)
        return self._sequential_seconds(around) + Seconds(
            block.forward_s,
            block.input_gradient_s + (block.forward_s if again else 0.0),
            block.weight_gradient_s,
            block.hidden_s,
            block.forward_s,
            block.forward_waits_s,
            block.input_waits_s + (block.forward_waits_s if again else 0.0),
            block.hidden_s,
        )

    @cached_property
    def joining_layer(self) -> Seconds:
        """Seconds of a layer in which a skip connection ends."""
        return self._block_seconds("joining", transformer_layers.joining_layer_operators(self._load))

    def ends(self, *, first: bool, last: bool) -> Seconds:
        """Return the seconds of the embedding for the first stage, and of head and loss for the last stage."""
        embedding = (
            self._block_seconds("embedding", transformer_layers.embedding_operators(self._load)) if first else Seconds()
        )
        return (
            embedding
            + self._block_seconds("head", transformer_layers.end_operators(self._load, first=False, last=True))
            if last
            else embedding
        )

    def stage(
        self, layers: int, *, first: bool, last: bool, experts: ExpertCounts = NO_EXPERTS, joins: int = 0
    ) -> Seconds:
        """Return the seconds of a stage of ``layers`` layers.

        ``experts`` are those of its layers with experts, and in ``joins`` of them a skip connection ends.
        """
        found = self.layer.scale(layers - sum(experts.values()) - joins) + self.ends(first=first, last=last)
        found = found + self.joining_layer.scale(joins) if joins else found
        for number, count in experts.items():
            found += self.expert_layer(number).scale(count)
        return (
            found + self._exposed_seconds(self._equal_blocks(layers, first, last, experts, joins))
            if self._state
            else found
        )

    def unequal_stage(self, operators: Iterable[Operator], layers: int, *, first: bool, last: bool) -> Seconds:
        """Return the seconds of a stage whose ``layers`` layers differ, from all its operators."""
        operators = [*operators]
        found = self.part(operators)
        blocks = [(1, found.scale(1 / layers), operators[number::layers], 0.0) for number in range(layers)]
        return found + self._exposed_seconds(blocks) if self._state else found

    def _equal_blocks(
        self, layers: int, first: bool, last: bool, experts: ExpertCounts, joins: int
    ) -> Iterator[Blocks]:
        """Yield the equal blocks of a stage, approximately in the order of the forward."""
        load, ends = self._load, transformer_layers.end_operators
        yield int(first), self.ends(first=True, last=False), transformer_layers.embedding_operators(load), 0.0
        yield layers - sum(experts.values()) - joins, self.layer, transformer_layers.layer_operators(load), 0.0
        yield joins, self.joining_layer, transformer_layers.joining_layer_operators(load), 0.0
        for number, count in experts.items():
            block = self._experts[number]
            yield count, self.expert_layer(number), block.operators, block.expert_parameters
        yield int(last), self.ends(first=False, last=True), ends(load, first=False, last=True), 0.0

    def _exposed_seconds(self, blocks: Iterable[Blocks]) -> Seconds:
        """Return the seconds for which the stage waits for sharded state, and those to unshard it."""
        state = self._state
        assert state is not None, "requires sharded state"
        times, unshard = [], 0.0
        for count, block, operators, experts in blocks:
            gather = state.gather_seconds(operators, experts) if count else 0.0
            inside = gather if state.gathers_blocks else 0.0
            unshard += count * (gather - inside)
            if count:
                times.append(BlockTimes(count, *block[:3], inside, state.scatter_seconds(operators, experts)))
        constants = self._cluster.device.constants
        if state.waits:
            again = self._load.kernels.recomputes in ("layers", "layers-early-stop")
            found = waiting_seconds(times, recomputes=again)
        else:
            found = exposed_seconds(times, constants.overlap if constants else 1.0)
        return Seconds(
            found.forward,
            found.input_gradient,
            found.weight_gradient,
            hidden=found.input_gradient + found.weight_gradient - found.backward,
            again=found.forward,
            unshard=unshard,
            gather=0.0 if state.waits else sum(each.blocks * each.gather for each in times),
            scatter=0.0 if state.waits else sum(each.blocks * each.scatter for each in times),
        )

    def pieces(self, part: StagePart, op: Op) -> Iterator[Piece]:
        """Yield the computation of a part of a stage, and its waits for collectives, in order of execution."""
        if part.layer >= 0:
            of_experts = self._experts[part.layer if part.layer in self._experts else COMMON].pieces
            if op in (Op.B, Op.I) and recomputes_experts(self._load.kernels.recomputes):
                yield from of_experts[Op.F]
            yield from of_experts[op]
            return
        for operator in part.operators if op == Op.F else reversed(part.operators):
            seconds = self.part([operator])
            yield Piece(seconds.seconds_of(op) - seconds.waiting_seconds_of(op), seconds.waiting_seconds_of(op))

    def part(self, operators: Iterable[Operator]) -> Seconds:
        """Return the seconds of a list of operators of a stage."""
        return self._sequential_seconds(operators)

    def _block_seconds(self, kind: BlockKind, operators: Iterable[Operator]) -> Seconds:
        """Return the seconds of a whole block; a subclass may return measured seconds of its ``kind``."""
        return self._sequential_seconds(operators)

    def _sequential_seconds(self, operators: Iterable[Operator]) -> Seconds:
        """Return the seconds of operators that run one after the other, without overlap of reductions."""
        return sum(map(self._operator_seconds, operators), start=Seconds())

    def _operator_seconds(self, operator: Operator) -> Seconds:
        works = operator.forward, operator.input_gradient, operator.weight_gradient
        forward, *backward = (
            work_seconds(work, self._cluster.device, self._load.kernels, operator.part) for work in works
        )
        share = recomputed_share(operator, self._load.kernels.recomputes)
        computed_again = forward * share
        computed = Seconds(
            forward,
            computed_again + backward[0],
            backward[1],
            again=forward,
        )
        reductions = self._reduction_seconds([operator])
        again = share * reductions.forward if forward else 0.0
        return computed + reductions + Seconds(input_gradient=again, input_waits=again)

    def _reduction_seconds(self, operators: Iterable[Operator]) -> Seconds:
        """Return the seconds of the collectives inside operators, for which the devices wait."""
        operators = [*operators]
        exchanges = [self._context.exposed_parts(each) for each in operators if each.context_bytes]
        forward, backward = (
            sum(getattr(each, way).seconds for each in exchanges)
            + self._collective_seconds((size for each in operators for size in getattr(each, f"{way}_reduced")), 2)
            + self._gathered_share
            * self._collective_seconds((size for each in operators for size in getattr(each, f"{way}_gathered")), 1)
            for way in ("forward", "backward")
        )
        return Seconds(forward, backward, again=forward, forward_waits=forward, input_waits=backward)

    @property
    def _gathered_share(self) -> float:
        """Exposed share of an all-gather or a reduce-scatter."""
        constants = self._cluster.device.constants
        hides = constants is not None and self._load.kernels.overlaps_tensor_parallel
        return 1 - constants.overlap if constants and hides else 1.0

    def _collective_seconds(self, messages: Iterable[float], rounds: int) -> float:
        return sum(self._collective(self._cluster, self._groups, size, rounds) for size in messages)
