"""Roofline costs: seconds from the shapes of the model and what the cluster's data sheets promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from meshwave.engine.costs import operators
from meshwave.engine.costs.alpha_beta import ring_all_reduce_seconds
from meshwave.engine.costs.expert_blocks import EXPERTS, ExpertBlock
from meshwave.engine.costs.operators import Operator, Work, Workload
from meshwave.engine.costs.profile import BlockKind
from meshwave.engine.document import Cluster, Device, Mesh


class Seconds(NamedTuple):
    """One microbatch through a part of the model; a whole backward is the sum of its halves, less what
    of the second runs beside the messages of the first."""

    forward: float = 0.0
    input_gradient: float = 0.0
    weight_gradient: float = 0.0
    hidden: float = 0.0
    again: float = 0.0
    """What a backward takes more where the forward is run again before it."""
    forward_waits: float = 0.0
    """Of a forward: a device computes nothing until messages inside the block are there."""
    input_waits: float = 0.0
    """The same of the backward for the input; that for the weights waits for none."""
    hidden_waits: float = 0.0
    """What of these a whole backward fills with weight gradients."""

    def __add__(self, other: Seconds) -> Seconds:  # type: ignore[override]
        return Seconds(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, count: int) -> Seconds:
        return Seconds(*(count * mine for mine in self))

    @property
    def backward(self) -> float:
        return self.input_gradient + self.weight_gradient - self.hidden

    @property
    def backward_waits(self) -> float:
        return max(0.0, self.input_waits - self.hidden_waits)

    def total(self, *, recomputed: bool) -> float:
        """Of a training step."""
        return self.forward + self.backward + (self.again if recomputed else 0.0)


def work_seconds(work: Work, device: Device) -> float:
    """The longer of computing and moving bytes (Williams, Waterman and Patterson, "Roofline", 2009).

    ``efficiency`` lowers the peak to what large matrix products reach.
    """
    return max(work.flops / (device.peak_flops * device.efficiency), work.bytes / device.memory_bandwidth)


AllReduce = Callable[[Cluster, Sequence[Sequence[int]], float], float]
"""Seconds for groups of devices of a cluster that each all-reduce so many bytes at the same time."""


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
        return self._block_of("layer", operators.layer(self._load))

    @cached_property
    def expert_layer(self) -> Seconds:
        """A layer with experts; as any other where the model has none."""
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
        """A layer that a skip connection ends in."""
        return self._block_of("joining", operators.joining_layer(self._load))

    def ends(self, *, first: bool, last: bool) -> Seconds:
        """Embedding, or head and loss."""
        embedding = self._block_of("embedding", operators.embedding(self._load)) if first else Seconds()
        return (
            embedding + self._block_of("head", operators.ends(self._load, first=False, last=True))
            if last
            else embedding
        )

    def stage(self, layers: int, *, first: bool, last: bool, experts: int = 0, joins: int = 0) -> Seconds:
        """``experts`` of its layers have experts, and in ``joins`` of the others a skip connection ends."""
        dense = self.layer.times(layers - experts - joins) + self.ends(first=first, last=last)
        dense = dense + self.joining_layer.times(joins) if joins else dense
        return dense + self.expert_layer.times(experts) if experts else dense

    def unequal_stage(self, operators: Iterable[Operator], layers: int, *, first: bool, last: bool) -> Seconds:
        """A stage of ``layers`` that differ, by all its operators."""
        return self.part(operators)

    def part(self, operators: Iterable[Operator]) -> Seconds:
        """Any operators of a stage."""
        return self._price(operators)

    def _block_of(self, kind: BlockKind, operators: Iterable[Operator]) -> Seconds:
        """A whole block."""
        return self._price(operators)

    def _price(self, operators: Iterable[Operator]) -> Seconds:
        """Operators run one after the other, each bound by its own roof; reductions are not overlapped."""
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
        """Those of tensor-parallel operators, for which their devices wait."""
        operators = [*operators]
        forward, backward = (
            self._reduced(size for each in operators for size in getattr(each, way))
            for way in ("forward_reduced", "backward_reduced")
        )
        return Seconds(forward, backward, again=forward, forward_waits=forward, input_waits=backward)

    def _reduced(self, messages: Iterable[float]) -> float:
        return sum(self._all_reduce(self._cluster, self._groups, size) for size in messages)
