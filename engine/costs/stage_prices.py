"""Roofline prices of stages: seconds of a stage's operators on a device of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from meshwave.engine.costs import transformer_layers
from meshwave.engine.costs.alpha_beta import ring_all_reduce_seconds
from meshwave.engine.costs.expert_blocks import EXPERTS, ExpertBlock
from meshwave.engine.costs.operators import Operator, Work, Workload
from meshwave.engine.costs.profile import BlockKind
from meshwave.engine.document import Cluster, Device, Mesh


class Seconds(NamedTuple):
    """Seconds of one microbatch through a part of the model.

    A whole backward takes the sum of its halves less ``hidden``, the weight gradients that run beside messages.
    """

    forward: float = 0.0
    input_gradient: float = 0.0
    weight_gradient: float = 0.0
    hidden: float = 0.0
    again: float = 0.0
    """Additional time of a backward that recomputes the forward."""
    forward_waits: float = 0.0
    """Time of a forward in which a device waits for collectives inside the block."""
    input_waits: float = 0.0
    """The same for the input gradient; weight gradients wait for no collective."""
    hidden_waits: float = 0.0
    """Part of ``input_waits`` that a whole backward fills with weight gradients."""

    def __add__(self, other: Seconds) -> Seconds:  # type: ignore[override]
        return Seconds(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def scale(self, count: int) -> Seconds:
        """Return the seconds of ``count`` such parts."""
        return Seconds(*(count * mine for mine in self))

    @property
    def backward(self) -> float:
        """Seconds of a whole backward."""
        return self.input_gradient + self.weight_gradient - self.hidden

    @property
    def backward_waits(self) -> float:
        """Seconds of a whole backward in which a device waits for collectives."""
        return max(0.0, self.input_waits - self.hidden_waits)

    def total(self, *, recomputed: bool) -> float:
        """Return the seconds of forward and backward."""
        return self.forward + self.backward + (self.again if recomputed else 0.0)


def work_seconds(work: Work, device: Device) -> float:
    """Return the longer of compute and memory time (Williams, Waterman and Patterson, "Roofline", 2009).

    ``efficiency`` is the share of the peak rate that large matrix products reach.
    """
    return max(work.flops / (device.peak_flops * device.efficiency), work.bytes / device.memory_bandwidth)


AllReduce = Callable[[Cluster, Sequence[Sequence[int]], float], float]
"""Returns the seconds in which groups of devices of a cluster concurrently all-reduce that many bytes each."""


class MeshPrices:
    """Seconds of the parts of a model on one mesh, tensor-parallel all-reduces included."""

    def __init__(
        self,
        cluster: Cluster,
        mesh: Mesh,
        load: Workload,
        block: ExpertBlock | None = None,
        all_reduce: AllReduce = ring_all_reduce_seconds,
    ) -> None:
        self._cluster, self._load, self._block, self._all_reduce = cluster, load, block, all_reduce
        self._groups = [mesh.devices[first : first + mesh.tp] for first in range(0, len(mesh.devices), mesh.tp)]

    @cached_property
    def layer(self) -> Seconds:
        """Seconds of a dense layer."""
        return self._block_seconds("layer", transformer_layers.layer(self._load))

    @cached_property
    def expert_layer(self) -> Seconds:
        """Seconds of a layer with experts; of a dense layer where the model has none."""
        block = self._block
        if block is None:
            return self.layer
        around = [operator for operator in block.operators if operator.name != EXPERTS]
        return self._price(around) + Seconds(
            block.forward_s,
            block.input_gradient_s,
            block.weight_gradient_s,
            block.hidden_s,
            block.forward_s,
            block.forward_waits_s,
            block.input_waits_s,
            block.hidden_s,
        )

    @cached_property
    def joining_layer(self) -> Seconds:
        """Seconds of a layer in which a skip connection ends."""
        return self._block_seconds("joining", transformer_layers.joining_layer(self._load))

    def ends(self, *, first: bool, last: bool) -> Seconds:
        """Return the seconds of the embedding, or of head and loss."""
        embedding = self._block_seconds("embedding", transformer_layers.embedding(self._load)) if first else Seconds()
        return (
            embedding
            + self._block_seconds("head", transformer_layers.end_operators(self._load, first=False, last=True))
            if last
            else embedding
        )

    def stage(self, layers: int, *, first: bool, last: bool, experts: int = 0, joins: int = 0) -> Seconds:
        """Return the seconds of a stage of ``layers``, of which ``experts`` have experts and ``joins`` end a skip."""
        dense = self.layer.scale(layers - experts - joins) + self.ends(first=first, last=last)
        dense = dense + self.joining_layer.scale(joins) if joins else dense
        return dense + self.expert_layer.scale(experts) if experts else dense

    def unequal_stage(self, operators: Iterable[Operator], layers: int, *, first: bool, last: bool) -> Seconds:
        """Return the seconds of a stage whose ``layers`` differ, from all its operators."""
        return self.part(operators)

    def part(self, operators: Iterable[Operator]) -> Seconds:
        """Return the seconds of any operators of a stage."""
        return self._price(operators)

    def _block_seconds(self, kind: BlockKind, operators: Iterable[Operator]) -> Seconds:
        """Return the seconds of a whole block; a subclass may have measured them by ``kind``."""
        return self._price(operators)

    def _price(self, operators: Iterable[Operator]) -> Seconds:
        """Return the seconds of operators that run one after the other, without overlap of reductions."""
        return sum(map(self._operator, operators), start=Seconds())

    def _operator(self, operator: Operator) -> Seconds:
        device = self._cluster.device
        forward = work_seconds(operator.forward, device)
        computed = Seconds(
            forward,
            work_seconds(operator.input_gradient, device),
            work_seconds(operator.weight_gradient, device),
            again=forward,
        )
        return computed + self._reductions([operator])

    def _reductions(self, operators: Iterable[Operator]) -> Seconds:
        """Return the tensor-parallel reductions of operators, for which their devices wait."""
        operators = [*operators]
        forward, backward = (
            self._all_reduce_seconds(size for each in operators for size in getattr(each, way))
            for way in ("forward_reduced", "backward_reduced")
        )
        return Seconds(forward, backward, again=forward, forward_waits=forward, input_waits=backward)

    def _all_reduce_seconds(self, messages: Iterable[float]) -> float:
        return sum(self._all_reduce(self._cluster, self._groups, size) for size in messages)
