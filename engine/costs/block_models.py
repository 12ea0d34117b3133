"""Models that are described block by block: memory and work of their stages from the operators of each block."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate

from meshwave.engine.costs.operators import PRECISIONS, Operator, Workload
from meshwave.engine.costs.stage_memory import block_size, largest_pair
from meshwave.engine.document.model import Model


class BlockModel(Model):
    """Model whose blocks may differ; a stage runs its blocks one after the other.

    Blocks pass on messages of ``[batch, sequence, n hidden]``, where ``n`` is :meth:`onward_message_units`. The devices of a
    mesh exchange nothing inside a stage.
    """

    @property
    def moe(self) -> None:
        """Always None: the blocks have no experts."""

    @property
    def skips(self) -> tuple[tuple[int, int], ...]:
        """Skip connections as pairs of source block and target block."""
        return ()

    @abstractmethod
    def block_operators(self, load: Workload, number: int) -> tuple[Operator, ...]:
        """Return the operators of a block."""

    @abstractmethod
    def embedding_operators(self, load: Workload) -> tuple[Operator, ...]:
        """Return the operators of the first stage that precede its blocks."""

    @abstractmethod
    def head_operators(self, load: Workload) -> tuple[Operator, ...]:
        """Return the operators of the last stage that follow its blocks, including the loss."""

    @property
    @abstractmethod
    def example_bytes(self) -> tuple[float, float]:
        """Bytes of the inputs, and of the targets, of one sample in the data types of the dataset."""

    def shared_bytes(self, load: Workload) -> float:
        """Return the bytes of inputs that all blocks of a stage read, besides the output of the previous block."""
        return 0.0

    def skips_its_output(self, block: int) -> bool:
        """Return True if the skip connection of a block carries the block's own output tensor."""
        return True

    # ---- derived ----

    def block_output_units(self, block: int) -> int:
        """Return the message units of the tensors that a block makes for the next block and for its skip connection."""
        has_own_skip = any(source == block for source, _ in self.skips) and not self.skips_its_output(block)
        return self.onward_message_units(block) + (self.skip_message_units(block) if has_own_skip else 0)

    def workload(self, batch: float, precision: str = "fp32") -> Workload:
        """Return the work of one device for a microbatch of ``batch`` samples."""
        return Workload(self.sequence, self.hidden, batch, PRECISIONS[precision])

    def end_operators(self, load: Workload, *, first: bool, last: bool) -> tuple[Operator, ...]:
        """Return the operators of a stage other than its blocks."""
        return (self.embedding_operators(load) if first else ()) + (self.head_operators(load) if last else ())

    def stage_operators(self, load: Workload, first: int, blocks: int, *, last: bool) -> tuple[Operator, ...]:
        """Return the operators of ``blocks`` blocks starting at ``first``, with head and loss if ``last``."""
        own = [operator for n in range(first, first + blocks) for operator in self.block_operators(load, n)]
        return (*own, *self.end_operators(load, first=first == 0, last=last))

    def largest_neighbours(self, load: Workload, first: int, blocks: int, *, last: bool) -> tuple[float, float]:
        """Return the numbers of parameters and of copied parameters of the two largest adjacent blocks of a stage."""
        own = [self.block_operators(load, number) for number in range(first, first + blocks)]
        ends = self.end_operators(load, first=first == 0, last=False), self.end_operators(load, first=False, last=last)
        return largest_pair([*map(block_size, [ends[0], *own, ends[1]])])

    def all_operators(self, samples: float) -> tuple[Operator, ...]:
        """Return the operators of the whole model."""
        return self.stage_operators(self.workload(samples), 0, self.layers, last=True)

    @property
    def parameters(self) -> float:
        """Number of parameters of the whole model."""
        return sum(operator.parameters for operator in self.all_operators(1))

    def flops(self, samples: float) -> float:
        """Return the FLOPs of forward and backward of ``samples`` samples: three times those of the forward."""
        return 3.0 * sum(operator.forward.flops for operator in self.all_operators(samples))

    def input_units(self, layers: Sequence[int], stage: int, skips: Sequence[Sequence[int]]) -> int:
        """Return the number of message units that a stage receives from the previous stage and over skip connections.

        The first stage receives none, because it reads samples.
        """
        before = sum(layers[:stage])
        came = sum(units for _, target, units in skips if target == stage)
        return came + (self.onward_message_units(before - 1) if stage else 0)

    def output_units(self, layers: Sequence[int], stage: int, skips: Sequence[Sequence[int]]) -> int:
        """Return the message units of the output tensors that a stage keeps for its backward.

        These are the output for the next stage, skip tensors that are sent with it, and skip tensors for later stages
        unless another kept tensor shares their storage.
        """
        end = sum(layers[: stage + 1])
        goes = [(target, units) for source, target, units in skips if source == stage]
        if stage == len(layers) - 1:
            return 0
        beside = sum(units for target, units in goes if target == stage + 1)
        beyond = sum(
            units for target, units in goes if target > stage + 1 and self._needs_storage(layers, stage, target)
        )
        return self.onward_message_units(end - 1) + beside + beyond

    def _needs_storage(self, layers: Sequence[int], stage: int, target: int) -> bool:
        """Return True if the skip tensors between two stages need separate storage."""
        ends = list(accumulate(layers))
        own = range(ends[stage] - layers[stage], ends[stage])
        there = range(ends[target] - layers[target], ends[target])
        blocks = [source for source, end in self.skips if source in own and end in there]
        return len(blocks) > 1 or (blocks == [own[-1]] and self.skips_its_output(own[-1]))

    def input_bytes(self, load: Workload, taken: float, *, first: bool, last: bool) -> float:
        """Return the bytes that a device keeps for a recomputed stage: its input; targets if it has the loss."""
        inputs, targets = self.example_bytes
        return (load.batch * inputs if first else taken) + (load.batch * targets if last else 0.0)
