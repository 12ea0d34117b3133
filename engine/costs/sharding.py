"""State that data-parallel replicas share: the part of each device, and the time of its collectives.

``optimizer``, ``gradients`` and ``parameters`` are the stages 1 to 3 of ZeRO (Rajbhandari et al., arXiv:1910.02054,
section 5); ``parameters`` is also FSDP (Zhao et al., arXiv:2304.11277). Each divides the state over the devices with
the same weights:

- ``optimizer``: gradients are reduce-scattered once per step instead of all-reduced, and the updated weights gathered;
- ``gradients``: each block of each microbatch reduce-scatters its gradients in the backward, while the next block
  computes, or the program does so for a whole stage by REDUCE_GRAD, as for ``optimizer``;
- ``parameters``: the weights are also gathered before they are needed, and the updated weights are not. Either the
  program gathers whole stages by UNSHARD, while it computes, or each block gathers its weights before its forward
  and again before its backward, while the block before it computes.

The unit of the last two is a block: the embedding, a layer, or the head.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs.alpha_beta import CollectivePrice
from meshwave.engine.costs.expert_blocks import Sharing as ExpertGroup
from meshwave.engine.costs.expert_blocks import expert_sharing
from meshwave.engine.costs.flops import optimizer_state_bytes
from meshwave.engine.costs.operators import Operator, Precision, element_sizes
from meshwave.engine.document import Cluster, Design, Mesh
from meshwave.engine.document.training import Training

Floats = NDArray[np.float64]
LEAST_GATHERED_PARAMETERS = 100_000
"""Elements of the smallest matrix that ZeRO-3 of DeepSpeed gathers (``stage3_param_persistence_threshold``)."""


def weight_groups(meshes: Sequence[Mesh]) -> list[list[int]]:
    """Return the groups of devices that reduce gradients of the same weights: one group per tensor-parallel shard."""
    cuts = max(mesh.tp for mesh in meshes)
    return [
        [device for mesh in meshes for device in mesh.ordered_devices[cut % mesh.tp :: mesh.tp]] for cut in range(cuts)
    ]


def expert_reduction_seconds(
    cluster: Cluster, parts: Sequence[ExpertGroup], size: float, collective: CollectivePrice, rounds: int = 2
) -> float:
    """Return the seconds of all expert reductions; reductions without a common device run concurrently."""
    concurrent: list[list[ExpertGroup]] = []
    for part in parts:
        busy = set(part.devices)
        free = (each for each in concurrent if all(busy.isdisjoint(other.devices) for other in each))
        found = next(free, None)
        if found is None:
            concurrent.append(found := [])
        found.append(part)
    return sum(
        collective(cluster, [part.devices for part in each], size * max(part.share for part in each), rounds)
        for each in concurrent
    )


class Shares(NamedTuple):
    """Fraction of the state that a device of a mesh holds."""

    dense: float
    experts: float


def state_shares(design: Design, meshes: Sequence[Mesh], device: int | None = None) -> Shares:
    """Return the state fractions of a device that holds a stage on ``meshes``, relative to its compute parameters.

    These are the fractions of the device with the largest state, or of a ``device`` of the group that shares the experts.
    """
    if design.training.sharding == "none":
        return Shares(1.0, 1.0)
    copies = sum(mesh.dp for mesh in meshes)
    if design.model.moe is None:
        return Shares(1 / copies, 1.0)
    computed, held = defaultdict[int, float](float), defaultdict[int, float](float)
    for part in expert_sharing(design, meshes)[0]:
        for each in part.devices:
            computed[each] += part.share
            held[each] += part.share / len(part.devices)
    if device is None:
        return Shares(1 / copies, max(held.values()))
    own = meshes[0].ordered_devices[device % len(meshes[0].devices)]
    return Shares(1 / copies, held[own] / computed[own] if computed[own] else 0.0)


def reduction_rounds(design: Design) -> int:
    """Return the ring rounds of REDUCE_GRAD: 2 for an all-reduce, 1 for its half, the reduce-scatter."""
    return 2 if design.training.sharding == "none" else 1


class StateBytes(NamedTuple):
    """Bytes of the training state of a device."""

    weights: float
    gradients: float
    optimizer: float


def state_bytes(training: Training, parameters: float, copied: float, own: float, own_copied: float) -> StateBytes:
    """Return the bytes of the training state of a device.

    Args:
        training: the training section.
        parameters: number of parameters with which the device computes.
        copied: number of these of which mixed precision keeps a copy besides the master weights.
        own: number of parameters whose state is on this device; equals ``parameters`` without sharding.
        own_copied: number of these of which mixed precision keeps a copy; equals ``copied`` without sharding.
    """
    size = element_sizes(training)
    computed = (own, own_copied) if training.sharding == "parameters" else (parameters, copied)
    return StateBytes(
        weights=size.computed_bytes(*computed) + (own_copied * size.weights if size.copy else 0.0),
        gradients=(own if training.scatters_blocks else parameters) * size.gradients,
        optimizer=own * optimizer_state_bytes(training),
    )


def unsharded_bytes(design: Design, mesh: Mesh, parameters: float, copied: float) -> float:
    """Return the bytes of the gathered weights and unscattered gradients of blocks with ``parameters`` parameters.

    Weights that the program gathers are not included.
    """
    training, size = design.training, element_sizes(design.training)
    if mesh.dp == 1 or not training.shards_gradients:
        return 0.0
    gathered = size.computed_bytes(parameters, copied) if design.gathers_blocks else 0.0
    return gathered + (parameters * size.gradients if training.scatters_blocks else 0.0)


# ---- collectives of blocks ----


class BlockTimes(NamedTuple):
    """Seconds of equal blocks of a stage: computation of each block, and collectives of its state."""

    blocks: int
    forward: float
    input_gradient: float
    weight_gradient: float
    gather: float
    scatter: float


class Exposed(NamedTuple):
    """Seconds of the collectives of a stage that its computation does not hide."""

    forward: float = 0.0
    input_gradient: float = 0.0
    weight_gradient: float = 0.0
    backward: float = 0.0


def waiting_seconds(blocks: Sequence[BlockTimes], *, recomputes: bool) -> Exposed:
    """Return the exposed seconds of a stage whose collectives are not overlapped; ``recomputes`` adds a gather.

    Weight gradients that are computed separately also gather the weights, as in :func:`exposed_seconds`.
    """
    gather = sum(each.blocks * each.gather for each in blocks)
    scatter = sum(each.blocks * each.scatter for each in blocks)
    again = 2 * gather if recomputes else gather
    return Exposed(gather, again, gather + scatter, again + scatter)


def exposed_seconds(blocks: Sequence[BlockTimes], overlap: float = 1.0) -> Exposed:
    """Return the exposed seconds of a stage's blocks, in the order of the forward.

    A block is gathered while the previous block computes, and scattered while the next block computes. The share
    ``overlap`` of that computation hides them. The first gather and the last scatter are not hidden. Weight gradients
    that are computed separately also gather the weights, which some kernels read.
    """
    count, forward, inputs, weights, gather, scatter = np.array(blocks).reshape(-1, 6).T
    forward, inputs, weights = overlap * forward, overlap * inputs, overlap * weights
    forward, inputs, weights, gather, scatter = (
        np.repeat(each, count.astype(int)) for each in (forward, inputs, weights, gather, scatter)
    )
    none = np.zeros_like(gather)
    inputs, weights, reverse_gather, scatter = (each[::-1] for each in (inputs, weights, gather, scatter))
    return Exposed(
        forward=_exposed_seconds(forward, gather, none),
        input_gradient=_exposed_seconds(inputs, reverse_gather, none),
        weight_gradient=_exposed_seconds(weights, reverse_gather, scatter),
        backward=_exposed_seconds(inputs + weights, reverse_gather, scatter),
    )


def _exposed_seconds(compute: Floats, gather: Floats, scatter: Floats) -> float:
    """Return the exposed seconds of blocks that run one after the other; the arguments are ``[blocks]``.

    ``compute`` has the seconds of computation that can hide collectives.
    """
    beside = np.append(gather, 0.0)[1:] + np.insert(scatter, 0, 0.0)[:-1]
    return float(gather[:1].sum() + np.maximum(0.0, beside - compute).sum() + scatter[-1:].sum())


@dataclass(frozen=True)
class StateCollectives:
    """Collectives by which the devices of a mesh share training state."""

    cluster: Cluster
    dense: Sequence[Sequence[int]]
    experts: Sequence[ExpertGroup]
    precision: Precision
    shards_weights: bool
    scatters_blocks: bool
    """True if the backward scatters the gradients; False if the program does."""
    gathers_blocks: bool
    """True if the computations gather the weights; False if the program does, or if the weights are not sharded."""
    collective: CollectivePrice
    waits: bool = False
    """True if the device waits for the collective of each weight matrix, so that computation hides none of them."""
    copy_s: float = 0.0
    """Seconds to copy the part of one device of a matrix, if the device waits."""

    def gather_seconds(self, operators: Sequence[Operator], experts: float) -> float:
        """Return the seconds to gather the weights of a block, ``experts`` of whose parameters belong to experts."""
        if not self.shards_weights:
            return 0.0
        parameters, copied = sum(each.parameters for each in operators), sum(each.copied for each in operators)
        expert_bytes = self.precision.computed_bytes(experts, experts)
        dense_bytes = self.precision.computed_bytes(parameters, copied) - expert_bytes
        return self._exchange_seconds(dense_bytes, expert_bytes) + self._copy_seconds(operators)

    def scatter_seconds(self, operators: Sequence[Operator], experts: float) -> float:
        """Return the seconds to reduce-scatter the gradients of a block in the backward."""
        if not self.scatters_blocks:
            return 0.0
        parameters, size = sum(each.parameters for each in operators), self.precision.gradients
        return self._exchange_seconds((parameters - experts) * size, experts * size) + self._copy_seconds(operators)

    def _copy_seconds(self, operators: Sequence[Operator]) -> float:
        """Return the seconds to copy the parts of all devices of each matrix, which a kernel per part does."""
        matrices = sum(each.parameters >= LEAST_GATHERED_PARAMETERS for each in operators)
        return matrices * max(map(len, self.dense)) * self.copy_s

    def _exchange_seconds(self, dense: float, experts: float) -> float:
        """Return the seconds to gather or reduce-scatter these bytes of dense and expert state."""
        seconds = self.collective(self.cluster, self.dense, dense, rounds=1)
        return seconds + expert_reduction_seconds(self.cluster, self.experts, experts, self.collective, rounds=1)


def block_collectives(design: Design, mesh: Mesh, collective: CollectivePrice) -> StateCollectives | None:
    """Return the collectives that exchange the sharded state of the blocks of a mesh; None without sharding."""
    training = design.training
    if not training.shards_gradients:
        return None
    experts = expert_sharing(design, [mesh])[0] if design.model.moe is not None else []
    groups, sizes = weight_groups([mesh]), element_sizes(training)
    constants, waits = design.cluster.device.constants, training.blocking_gathers and design.gathers_blocks
    return StateCollectives(
        design.cluster,
        groups,
        experts,
        sizes,
        shards_weights=training.sharding == "parameters",
        scatters_blocks=training.scatters_blocks,
        gathers_blocks=design.gathers_blocks,
        collective=collective,
        waits=waits,
        # the host selects the part, and a kernel copies it
        copy_s=2 * constants.kernel_s if constants and waits else 0.0,
    )
