"""Sharding of weights, gradients and optimizer states among the processes that use the same weights (ZeRO, FSDP).

Rajbhandari et al., arXiv:1910.02054, section 5; Zhao et al., arXiv:2304.11277. Each process owns an equal part of the
flat weights of a block, with their gradients and optimizer states. ``training.sharding`` determines what a process
stores in addition to its own part:

- ``optimizer``: all weights and all gradients, in the dtype of the optimizer. The reduction of a stage returns to each
  process the gradients of its part, and an optimizer step ends with an all-gather of the weights.
- ``gradients``: all weights. The backward of each microbatch returns to each process the gradients of its part; or, with
  ``training.gradient_reduction: step``, the reduction of a stage does.
- ``parameters``: nothing. The program gathers the weights of a stage by UNSHARD and frees them by RESHARD. If it does
  not, each block's weights are gathered before its forward and again before its backward, while the previous block
  computes, and are freed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from meshwave.engine.document.training import Training
from meshwave.engine.runtime.communication.communicator import Communicator, PendingTensor
from meshwave.engine.runtime.execution.checkpoint import WEIGHTS, Part
from meshwave.engine.runtime.execution.flat_weights import FlatWeights, NamedWeight
from meshwave.engine.runtime.execution.optimizers import OPTIMIZERS
from meshwave.engine.runtime.execution.sharded_stages import ShardedStage
from meshwave.engine.runtime.execution.update import (
    NO_BUCKETS,
    TIED_WEIGHT,
    BlockBuckets,
    GradientObserver,
    Members,
    WeightGroup,
    named_weights,
)
from meshwave.engine.runtime.experts.build import expert_layers
from meshwave.engine.runtime.experts.feed_forward import Expert
from meshwave.engine.runtime.models import Stage
from meshwave.engine.runtime.models.transformer import Head
from meshwave.engine.runtime.modules.deferred_gradients import CastModule
from meshwave.engine.runtime.modules.load_balance import is_balance_bias, update_balance_bias
from meshwave.engine.runtime.modules.tensor_parallel import weight_shard


class ShardedUpdate:
    """Reduction of gradients and update of the part of the weights that this process owns."""

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
        *,
        gathers_blocks: bool,
    ) -> None:
        """Shard the state of the stages of this rank.

        See :class:`OptimizerUpdate` for the other arguments. ``tied`` are the processes that own the same part of the
        embedding table as this one. ``gathers_blocks`` is True if the blocks gather sharded weights themselves, because
        the program does not.
        """
        self._weight_group, self._process, self._communicator = weight_group, process, communicator
        self._training, self._observer, self._buckets = training, observer, buckets
        self._names = {parameter: name for name, parameter in named_weights(stages.values(), tied)}
        self._is_tied = tied is not None
        self.stages = {
            stage: ShardedStage(
                module,
                partial(self._flat_weights, stage),
                scatters=training.scatters_blocks,
                gathers_blocks=gathers_blocks,
                accumulates=training.precision == "bf16" and not training.bf16_gradients,
            )
            for stage, module in stages.items()
        }
        self._flats = [each for stage in self.stages.values() for each in stage.weights]
        self._tied = TiedWeights([each for each in self._flats if self._holds_table(each)], tied)
        self._weights = [each for each in self._flats if each is not self._tied.copy]
        for module in stages.values():
            for layer in expert_layers(module):
                layer.use_weights_in_place()
        self._balances = {
            parameter: (stage, weight_group(stage, parameter)[0])
            for stage, module in stages.items()
            for parameter in module.parameters()
            if is_balance_bias(parameter)
        }
        if training.sharding == "parameters":
            for each in self._flats:
                each.free()
        self.optimizer = OPTIMIZERS[training.optimizer](
            [each.part for each in self._weights], training.lr, training.weight_decay
        )
        self._reductions: dict[tuple[int, int], PendingTensor] = {}
        self.squared_norm = torch.zeros(
            (), dtype=torch.float64
        )  # squared norm of this process's share of the gradients

    def _flat_weights(self, stage: int, part: nn.Module) -> list[FlatWeights]:
        """Return the flat weights of a block, one for each set of processes that shares weights.

        All processes return them in the same order. Weights that a tensor-parallel group replicates are separate, so
        that all members of the group divide them equally.
        """
        training = self._training
        short = _matmul_weights(part) if training.precision == "bf16" else set()
        found: dict[tuple[Members, bool, bool, bool, bool], list[NamedWeight]] = {}
        for parameter in part.parameters():
            if is_balance_bias(parameter):
                continue  # the load of a step updates it, instead of an optimizer
            members, counting_process = self._weight_group(stage, parameter)
            is_cut = weight_shard(parameter) is not None
            is_tied = self._is_tied and self._names[parameter] == TIED_WEIGHT
            is_counted = counting_process in members and (stage == 0 or not is_tied)
            key = members, is_cut, is_counted, parameter in short, is_tied
            found.setdefault(key, []).append((self._names[parameter], parameter))
        return [
            FlatWeights(
                named,
                stage,
                members,
                self._process,
                self._communicator,
                dtype=torch.bfloat16 if is_short else named[0][1].dtype,
                gradient_dtype=torch.bfloat16 if training.bf16_gradients and is_short else named[0][1].dtype,
                is_counted=is_counted,
                frees=training.sharding == "parameters",
            )
            for (members, _, is_counted, is_short, _), named in sorted(found.items(), key=lambda item: item[0])
        ]

    @property
    def state(self) -> list[Tensor]:
        """Optimizer tensors that persist between steps."""
        return self.optimizer.state

    @property
    def named_parameters(self) -> Sequence[NamedWeight]:
        """Weights of this process with their names in the whole model."""
        return [(name, parameter) for parameter, name in self._names.items()]

    @property
    def resident_weights(self) -> list[Tensor]:
        """Weights that stay allocated between steps."""
        balances = [parameter.detach() for parameter in self._balances]
        return [tensor for each in self._flats for tensor in each.resident_tensors] + balances

    def parts(self) -> dict[str, Part]:
        """Return the parts of the training state that this process owns: weights, and the optimizer's moments."""
        balances = {f"{WEIGHTS}{self._names[each]}": Part(each.detach()) for each in self._balances}
        return balances | {
            f"{group}{own.name}": Part(tensor[own.at.start : own.at.stop], weight_shard(own.parameter), own.elements)
            for group, weights, tensor in self._own_tensors()
            for own in weights.own_parts()
        }

    def _own_tensors(self) -> Iterator[tuple[str, FlatWeights, Tensor]]:
        """Yield the own parts of flat weights, and those of their moments, with the prefix of their names."""
        moments = {f"{moment}/": tensors for moment, tensors in self.optimizer.moments.items()}
        for group, tensors in {WEIGHTS: [each.part for each in self._weights], **moments}.items():
            yield from ((group, *each) for each in zip(self._weights, tensors, strict=True))

    def whole_state(self, prefix: str) -> dict[str, Tensor]:
        """Return weights and moments whose names in the whole model start with ``prefix``; all owners call it together."""
        return {
            f"{group}{name}": whole
            for group, weights, tensor in self._own_tensors()
            if any(name.startswith(prefix) for name in weights.names)
            for name, whole in weights.gather_named(tensor).items()
            if name.startswith(prefix)
        }

    def set_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Set weights and moments; all owners call it together."""
        for name, part in self.parts().items():
            if name in tensors:
                part.set_whole(tensors[name])
        self._gather_updated_weights()

    def rename(self, names: Mapping[nn.Parameter, str]) -> None:
        """Change the names of weights in the whole model."""
        self._names |= names
        for each in self._flats:
            each.rename(self._names)

    def sharded_stage(self, stage: int) -> ShardedStage:
        """Return the sharded blocks of a stage."""
        return self.stages[stage]

    def whole_weights(self) -> dict[str, Tensor]:
        """Return the whole weights of this rank by name; all processes of the rank call this method together."""
        balances = {self._names[each]: each.detach() for each in self._balances}
        return balances | {name: weight for each in self._weights for name, weight in each.whole_weights().items()}

    def resume(self, steps: int) -> None:
        """Continue from the loaded parts as if ``steps`` steps had been taken."""
        self.optimizer.resume(steps)
        self._gather_updated_weights()

    def start_reduction(self, stage: int, bucket: int = -1) -> None:
        """Start to reduce-scatter the gradients of a stage, or of one of its buckets."""
        sharded = self.stages[stage]
        blocks = range(len(sharded.blocks)) if bucket < 0 else self._buckets[stage][bucket]
        for each in sharded.weights_of_blocks(blocks):
            self._reductions[stage, bucket] = each.start_reduce_scatter()

    def collect_gradients(self) -> dict[tuple[int, int], PendingTensor]:
        """Wait for all gradients, and return the last reduction of each stage and bucket."""
        reduced = {stage for stage, _ in self._reductions}
        for stage, sharded in self.stages.items():
            if not self._training.scatters_blocks and stage not in reduced:
                self.start_reduction(stage)
                del self._reductions[stage, -1]
            for each in sharded.weights:
                each.collect_gradients()
        self._tied.sum_gradients()
        for balance, (stage, members) in self._balances.items():
            load = torch.zeros_like(balance) if balance.grad is None else balance.grad
            balance.grad = self._communicator.start_all_reduce(stage, members, load).wait()
        found, self._reductions = self._reductions, {}
        counted = [each.gradient for each in self._weights if each.is_counted and each.gradient is not None]
        self.squared_norm = torch.nn.utils.get_total_norm(counted).double() ** 2
        if self._training.clip_norm is not None:
            self._norm = self._communicator.sum_over_processes([self.squared_norm])[0].sqrt()
        return found

    def apply(self) -> None:
        """Clip the gradients, update the weights, and clear the gradients."""
        if self._observer is not None:
            whole = (each.whole_gradients() for each in self._weights)
            self._observer({name: gradient for named in whole for name, gradient in named.items()})
        gradients = [each.gradient for each in self._weights if each.gradient is not None]
        if self._training.clip_norm is not None and gradients:
            scale = (self._training.clip_norm / (self._norm + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(gradients, scale.to(gradients[0]))
        self.optimizer.step(gradients)
        for each in self._weights:
            each.gradient = None
        for balance in self._balances:
            assert balance.grad is not None, "the loads are collected"
            update_balance_bias(balance, balance.grad)
            balance.grad = None
        self._gather_updated_weights()

    def _gather_updated_weights(self) -> None:
        """Gather the weights that other processes have updated, unless weights are sharded between steps."""
        if self._training.sharding != "parameters":
            for each in self._flats:
                each.refresh()
            for each in self._flats:
                each.finish_gather()

    def _holds_table(self, weights: FlatWeights) -> bool:
        return self._is_tied and weights.names == [TIED_WEIGHT]


class TiedWeights:
    """Embedding table on the first stage and its copy on the last one, each sharded over the copies of its stage.

    The same part of both has one gradient, the sum of both. If this process holds both, it owns one part for both.
    """

    copy: FlatWeights | None = None
    """Copy that uses the part of another one."""

    def __init__(self, tables: Sequence[FlatWeights], owners: Members | None) -> None:
        """Tie the tables of this process, and those of all ``owners`` of the same part."""
        self._tables, self._owners = tables, owners or ()
        if len(tables) > 1:
            first, self.copy = tables
            self.copy.use_part_of(first)

    def sum_gradients(self) -> None:
        """Sum the gradients of the table and its copy, which are collected."""
        if self.copy is not None:
            self._tables[0].add_gradient_of(self.copy)
        elif len(self._owners) > 1:
            self._tables[0].gradient = self._tables[0].start_sum(self._owners).wait()


def separate_tied_weight(modules: Mapping[int, Stage]) -> None:
    """Give a head that is tied to the embedding of its own stage a copy, since both are sharded block by block."""
    for module in modules.values():
        if module.is_first and isinstance(module.head, Head):
            table = next(weight for name, weight in module.named_parameters() if name == TIED_WEIGHT)
            copy = nn.Parameter(table.detach().clone())
            copy.__dict__.update(table.__dict__)  # its shard
            module.head.tie_weights(copy)


def _matmul_weights(part: nn.Module) -> set[nn.Parameter]:
    """Return the weights of matrix products and experts, which mixed precision computes in 16 bits."""
    return {
        parameter
        for module in part.modules()
        if isinstance(module, (CastModule, Expert))
        for parameter in module.parameters(recurse=False)
    }
