"""Exchange of keys and values between context-parallel devices: the seconds that it adds to attention, and its messages.

An all-gather precedes attention, and a reduce-scatter of the gradients follows its backward; no computation hides either.

In a ring of ``n`` devices, attention has ``n`` steps of equal work, since every device has a balanced part of a causal
mask. In each step but the last, the forward passes keys and values on, and a step takes as long as its computation or
its message, whichever is longer. The backward passes them on in the same way. Their gradients follow one step later, so
that the last of ``n`` messages with gradients is hidden by no computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwave.engine.costs.alpha_beta import CollectivePrice, Message, transfer_seconds
from meshwave.engine.costs.fabric import equal_ring_messages
from meshwave.engine.costs.kernels import work_seconds
from meshwave.engine.costs.operators import Operator, Workload
from meshwave.engine.document import Cluster, Mesh


class Exposed(NamedTuple):
    """Part of an exchange that no computation hides."""

    seconds: float
    messages: tuple[Message, ...]  # of equal size, one from each device

    @property
    def sent_bytes(self) -> float:
        """Bytes that each device sends."""
        return self.messages[0].bytes if self.messages else 0.0


NOTHING = Exposed(0.0, ())


class ContextCosts(NamedTuple):
    """Exposed parts of the context-parallel exchanges of an attention operator."""

    forward: Exposed
    backward: Exposed


class ContextCost:
    """Costs of the context-parallel exchanges of a mesh."""

    def __init__(self, cluster: Cluster, mesh: Mesh, load: Workload, collective: CollectivePrice) -> None:
        self._cluster, self._load, self._collective = cluster, load, collective
        self._groups, self._size = mesh.groups("cp"), mesh.cp

    def exposed_parts(self, operator: Operator) -> ContextCosts:
        """Return the exposed parts of the exchanges of an attention operator."""
        size, n = operator.context_bytes, self._size
        if n == 1:
            return ContextCosts(NOTHING, NOTHING)
        if self._load.context_exchange == "all_gather":
            return ContextCosts(*[self._gather(n * size)] * 2)
        works = operator.forward, operator.input_gradient
        forward_s, backward_s = (
            work_seconds(work, self._cluster.device, self._load.kernels, operator.part) / n for work in works
        )
        both = [(2 * size, backward_s)] * (n - 2)
        return ContextCosts(
            self._exposed_ring_part([(size, forward_s)] * (n - 1)),
            self._exposed_ring_part([(size, backward_s), *both, (size, backward_s), (size, 0.0)]),
        )

    def _gather(self, whole: float) -> Exposed:
        messages = equal_ring_messages(self._groups, whole, rounds=1)
        return Exposed(self._collective(self._cluster, self._groups, whole, rounds=1), tuple(messages))

    def _exposed_ring_part(self, steps: Sequence[tuple[float, float]]) -> Exposed:
        """Return the exposed part of a ring.

        A step has the bytes that a device passes on, and seconds of computation.
        """
        seconds_of = {
            size: transfer_seconds(self._cluster, self._messages(size)) for size in {size for size, _ in steps}
        }
        total, exposed = 0.0, 0.0
        for size, hidden_by in steps:
            seconds = seconds_of[size]
            exposed += max(0.0, seconds - hidden_by)
            total += seconds
        share = exposed / total if total else 0.0
        return Exposed(exposed, self._messages(share * sum(size for size, _ in steps)))

    def _messages(self, size: float) -> tuple[Message, ...]:
        """Return messages of ``size`` bytes from each device to the next one of its group."""
        pairs = (pair for group in self._groups for pair in zip(group, (*group[1:], group[0]), strict=True))
        return tuple(Message(*pair, size) for pair in pairs)
