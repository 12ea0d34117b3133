"""End of a step: gradients are reduced and clipped, and weights are updated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn

from meshwave.engine.document.training import Training
from meshwave.engine.runtime.communication.communicator import Communicator, PendingTensor
from meshwave.engine.runtime.execution.checkpoint import WEIGHTS, Part
from meshwave.engine.runtime.execution.optimizers import OPTIMIZERS
from meshwave.engine.runtime.models import Stage
from meshwave.engine.runtime.modules.load_balance import is_balance_bias, update_balance_bias
from meshwave.engine.runtime.modules.tensor_parallel import weight_shard

MESSAGE_ELEMENTS = 2**23
"""Maximum number of gradient elements that one message reduces."""
TIED_WEIGHT, COPIES = "embedding.token.weight", ("head.table.weight", "head.project.weight")
"""Names of the embedding table, and of a copy in the head. A head with a table of its own is tied by that."""
GradientObserver = Callable[[Mapping[str, Tensor]], None]
Members = tuple[int, ...]
BlockBuckets = Mapping[int, Sequence[range]]
"""Blocks of each bucket of gradients in the order of their reductions, by stage."""
NO_BUCKETS: BlockBuckets = MappingProxyType({})
WeightGroup = Callable[[int, nn.Parameter], tuple[Members, int]]
"""Function that returns the processes that reduce the gradient of a weight, and the one that counts it in the norm,
given the stage and the weight."""


class OptimizerUpdate:
    """Reduction of the gradients of a rank's stages and update of their weights."""

    def __init__(
        self,
        stages: Mapping[int, Stage],
        weight_group: WeightGroup,
        process: int,
        communicator: Communicator,
        training: Training,
        observer: GradientObserver | None = None,
        tied: Members | None = None,
        buckets: BlockBuckets = NO_BUCKETS,
    ) -> None:
        """Prepare the update.

        Args:
            stages: the stages of this rank.
            weight_group: returns the processes that hold a weight.
            process: this process.
            communicator: reduces the gradients.
            training: the optimizer and its options.
            observer: receives the reduced gradients by name in the whole model, before clipping; None for no observer.
            tied: the processes that hold the embedding table, or its copy on the last stage.
            buckets: blocks of each bucket of gradients, by stage; empty to reduce stages as a whole.
        """
        self._named = named_weights(stages.values(), tied)
        self._tied = [parameter for name, parameter in self._named if tied and name == TIED_WEIGHT]
        self._tied_members = tied
        self._groups = {
            (stage, bucket): _weights_by_group(stage, parameters, weight_group, self._tied)
            for stage, module in stages.items()
            for bucket, parameters in _weights_by_bucket(module, buckets.get(stage, ())).items()
        }
        self._counted = [
            parameter
            for groups in self._groups.values()
            for weights in groups.values()
            for parameter, counting_process in weights
            if counting_process == process and not is_balance_bias(parameter)
        ]
        self._counted += self._tied if tied and tied[0] == process else []
        self._communicator = communicator
        self._clip_norm = training.clip_norm
        self._observer = observer
        self._balances = [parameter for _, parameter in self._named if is_balance_bias(parameter)]
        self._trained = [pair for pair in self._named if not is_balance_bias(pair[1])]
        self._parameters = [parameter for _, parameter in self._trained]
        self.optimizer = OPTIMIZERS[training.optimizer](self._parameters, training.lr, training.weight_decay)
        self._reducing: list[tuple[tuple[int, int], list[nn.Parameter], PendingTensor]] = []
        self.squared_norm = torch.zeros(
            (), dtype=torch.float64
        )  # squared norm of this process's share of the gradients

    @property
    def state(self) -> list[Tensor]:
        """Optimizer tensors that persist between steps."""
        return self.optimizer.state

    @property
    def named_parameters(self) -> Sequence[tuple[str, nn.Parameter]]:
        """Weights of this process with their names in the whole model."""
        return self._named

    @property
    def resident_weights(self) -> list[Tensor]:
        """Weights that stay allocated between steps."""
        return list(self.whole_weights().values())

    def parts(self) -> dict[str, Part]:
        """Return the parts of the training state that this process holds: weights, and the optimizer's moments."""
        weights = {f"{WEIGHTS}{name}": Part(weight.detach(), weight_shard(weight)) for name, weight in self._named}
        return weights | {
            f"{moment}/{name}": Part(tensor.detach(), weight_shard(parameter))
            for moment, tensors in self.optimizer.moments.items()
            for (name, parameter), tensor in zip(self._trained, tensors, strict=True)
        }

    def whole_state(self, prefix: str) -> dict[str, Tensor]:
        """Return weights and moments whose names in the whole model start with ``prefix``."""
        return {name: part.tensor for name, part in self.parts().items() if name.partition("/")[2].startswith(prefix)}

    def set_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Set weights and moments."""
        parts = self.parts()
        for name, tensor in tensors.items():
            parts[name].set_whole(tensor)

    def rename(self, names: Mapping[nn.Parameter, str]) -> None:
        """Change the names of weights in the whole model."""
        self._named, self._trained = (
            [(names.get(parameter, name), parameter) for name, parameter in named]
            for named in (self._named, self._trained)
        )

    def whole_weights(self) -> dict[str, Tensor]:
        """Return the weights by their names in the whole model."""
        return {name: parameter.detach() for name, parameter in self._named}

    def sharded_stage(self, stage: int) -> None:
        """Return None, because the state is not sharded."""

    def resume(self, steps: int) -> None:
        """Continue as if ``steps`` steps had been taken."""
        self.optimizer.resume(steps)

    def start_reduction(self, stage: int, bucket: int = -1) -> None:
        """Start to sum the gradients of a stage, or of one of its buckets, over all processes that hold its weights."""
        for members, weights in self._groups[stage, bucket].items():
            for joined in _join_gradients([parameter for parameter, _ in weights]):
                flat = torch.cat([_gradient_or_zeros(parameter).detach().flatten() for parameter in joined])
                reduction = self._communicator.start_all_reduce(stage, members, flat)
                self._reducing.append(((stage, bucket), joined, reduction))

    def collect_gradients(self) -> dict[tuple[int, int], PendingTensor]:
        """Wait for all reductions, and return the last reduction of each stage and bucket."""
        for _, joined, reduction in self._reducing:
            pieces = torch.split(reduction.wait(), [parameter.numel() for parameter in joined])
            for parameter, piece in zip(joined, pieces, strict=True):
                parameter.grad = piece.view_as(parameter)
        for parameter in self._tied:
            assert self._tied_members is not None, "they hold it"
            total = self._communicator.start_all_reduce(
                0, self._tied_members, _gradient_or_zeros(parameter).flatten()
            ).wait()
            parameter.grad = total.view_as(parameter)
        last = {reduced: reduction for reduced, _, reduction in self._reducing}
        self._reducing.clear()
        self.squared_norm = torch.nn.utils.get_total_norm(map(_gradient_or_zeros, self._counted)).double() ** 2
        if self._clip_norm is not None:
            self._norm = self._communicator.sum_over_processes([self.squared_norm])[0].sqrt()
        return last

    def apply(self) -> None:
        """Clip the gradients, update the weights, and clear the gradients."""
        if self._observer is not None:
            self._observer({name: _gradient_or_zeros(parameter) for name, parameter in self._named})
        gradients = [_gradient_or_zeros(parameter) for parameter in self._parameters]
        if self._clip_norm is not None and gradients:
            scale = (self._clip_norm / (self._norm + 1e-6)).clamp(max=1.0)  # like torch.nn.utils.clip_grad_norm_
            torch._foreach_mul_(gradients, scale.to(gradients[0]))
        self.optimizer.step(gradients)
        for balance in self._balances:
            update_balance_bias(balance, _gradient_or_zeros(balance))
        for _, parameter in self._named:
            parameter.grad = None


def named_weights(stages: Iterable[nn.Module], tied: Members | None = None) -> list[tuple[str, nn.Parameter]]:
    """Return the distinct weights of stages with their names in the whole model.

    A copy of the embedding table of another stage has the name of the embedding table.
    """
    named = [pair for module in stages for pair in module.named_parameters()]
    names = {name for name, _ in named}
    copy = next((name for name in COPIES if tied and name in names), TIED_WEIGHT)
    found = {parameter: TIED_WEIGHT if name == copy else name for name, parameter in named}
    return [(name, parameter) for parameter, name in found.items()]


def _weights_by_bucket(module: Stage, buckets: Sequence[range]) -> dict[int, list[nn.Parameter]]:
    """Return the weights of a stage by bucket, whose blocks are given; all in bucket -1 without buckets.

    A weight that several blocks use is in the bucket of the first block, whose gradients are final last.
    """
    block_of = {weight: block for block, part in reversed([*enumerate(module.blocks)]) for weight in part.parameters()}
    numbers = {block: number for number, blocks in enumerate(buckets) for block in blocks}
    found: dict[int, list[nn.Parameter]] = {number: [] for number in range(len(buckets))} or {-1: []}
    for weight in module.parameters():
        found[numbers[block_of[weight]] if buckets else -1].append(weight)
    return found


def _weights_by_group(
    stage: int, parameters: Iterable[nn.Parameter], weight_group: WeightGroup, tied: Sequence[nn.Parameter]
) -> dict[Members, list[tuple[nn.Parameter, int]]]:
    """Return the weights of a stage by group, each with the process that counts it, in the same order on all processes."""
    found: dict[Members, list[tuple[nn.Parameter, int]]] = {}
    for parameter in parameters:
        if any(parameter is each for each in tied):
            continue
        members, counting_process = weight_group(stage, parameter)
        found.setdefault(members, []).append((parameter, counting_process))
    return dict(sorted(found.items()))


def _gradient_or_zeros(parameter: nn.Parameter) -> Tensor:
    """Return the gradient of a weight, which is zero if this replica ran no microbatch."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _join_gradients(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield the weights whose gradients one message reduces."""
    joined: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if joined and size + parameter.numel() > MESSAGE_ELEMENTS:
            yield joined
            joined, size = [], 0
        joined.append(parameter)
        size += parameter.numel()
    if joined:
        yield joined
