"""Communication of one process with the other processes of a run, independent of the backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.program.acknowledgements import find_acknowledgements
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program
from meshwave.engine.resharding import Transfer
from meshwave.engine.runtime.communication.batching import MessageBatch, MessageBatches, batched_pairs, message_producer
from meshwave.engine.runtime.communication.process_layout import ProcessLayout
from meshwave.engine.runtime.device.clock import Stamp
from meshwave.engine.runtime.resharding import PendingReshard, Resharding, Transport

Work = Any  # torch.distributed's handle of an asynchronous operation


class MessageFormat(NamedTuple):
    """Format of the messages between stages: one tensor ``[micro_batch_size, sequence, hidden]``."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def message_shape(self, tensors: int) -> tuple[int, ...]:
        """Return the shape of a message with several tensors, which are concatenated along the last dim."""
        *rows, hidden = self.shape
        return *rows, tensors * hidden


GradientGroups = Sequence[tuple[int, tuple[int, ...]]]
"""Pairs of a stage and the processes that reduce its gradients together."""
BoundaryTransfers = Mapping[tuple[int, int, int, int], Transfer]
"""Transfers that reshard messages, by source rank, target rank, number of tensors, and tokens of each sequence in a
message of this process; the ranks of a transfer are processes. At a boundary without a transfer, process ``i`` of the
source mesh sends to process ``i`` of the target mesh.
"""


class PendingTensor(ABC):
    """Tensor in flight, from a message or a collective."""

    @abstractmethod
    def wait(self) -> Tensor:
        """Return the tensor on the run's device, ready for operations that are issued afterwards."""

    @property
    def arrival(self) -> Stamp | None:
        """Time at which the tensor arrived, which may be before the wait; None if unknown."""
        return None

    @property
    def departure(self) -> Stamp | None:
        """Time at which the tensor was sent, if it is known and later than the request; otherwise None."""
        return None


class PendingSend(Protocol):
    """Message that is being sent; its tensors must stay alive until the send is complete."""

    def wait(self) -> object:
        """Wait until the send is complete."""

    def is_complete(self) -> bool:
        """Return True if the send is known to be complete, without waiting for it."""


class Communicator(ABC):
    """Sender and receiver of the messages of one process.

    A message is identified by its *producer*, the action that produces its tensor: ``forward(2, 0)`` is the output of
    stage 2, ``backward(2, 0)`` the gradient of its input. A tensor that skips stages also names the other stage.

    A sent message is kept until its acknowledgement, a later message from its consumer, has arrived, or until the end
    of the step, because gloo does not report that a message is sent. Waiting for the send then takes no time. If a
    transfer splits the message among the processes of the other mesh, some of them may still forward it to each other.
    This cannot deadlock: the messages that they need precede the acknowledgement in the program, and this process has
    sent its part.
    """

    _transport: Transport

    def __init__(
        self,
        layout: ProcessLayout,
        process: int,
        message: MessageFormat,
        device: torch.device,
        gradient_groups: GradientGroups,
        transfers: BoundaryTransfers,
        timeout: timedelta,
    ) -> None:
        """Prepare the messages of ``process``. All processes must pass the same gradient groups."""
        self._gradient_groups = gradient_groups
        self._layout = layout
        self._transfers = transfers
        self._process = process
        self._rank, self._lane = layout.rank(process), layout.index_in_rank(process)
        self._message = message
        self.tokens: Mapping[int, int] = {}
        """Tokens of each sequence in the messages of microbatches that are shorter than the message format."""
        self._device = device
        self._groups: dict[tuple[int, tuple[int, ...]], Any] = {}  # (stage, members) -> torch's process group
        self._sending: dict[Action, PendingSend] = {}
        self._forwarding: list[PendingReshard] = []  # received here, perhaps still being sent on to others
        self._batches = MessageBatches(layout.program, self._rank)
        self._acknowledged = _acknowledged_messages(layout.program, self._rank)
        self._reshardings: dict[tuple[int, int, int, int], Resharding] = {}
        self._resharded = {(source, target) for source, target, *_ in transfers}
        self._tags_per_transfer = max(map(_required_tags, transfers.values()), default=0)
        self._producers = layout.program.stages + len(layout.program.distant_skips)  # per microbatch and direction
        self._connect(timeout)

    @abstractmethod
    def _connect(self, timeout: timedelta) -> None:
        """Create the process groups and the transport."""

    def send_function(self, producer: Action, rank: int) -> Callable[[Tensor], None]:
        """Return a function that starts to send a tensor to a rank without waiting for the receivers."""
        start, sending = self._bind_send(producer, rank), self._sending

        def send(tensor: Tensor) -> None:
            sending[producer] = start(tensor)

        return send

    def _bind_send(self, producer: Action, rank: int) -> Callable[[Tensor], PendingSend]:
        if (self._rank, rank) not in self._resharded:
            bind = self._bind_batched_send if producer in self._batches else self._bind_direct_send
            return bind(producer, self._layout.process(rank, self._lane))
        assert producer not in self._batches, "a design that reshards at a boundary cannot be batched"
        tag, tensors, mb = self._first_tag(producer), self._tensor_count(producer), producer.microbatch

        def send(tensor: Tensor) -> PendingSend:
            resharding = self._resharding(self._rank, rank, tensors, mb)
            owned = resharding.planned.source_boxes.get(self._process, ())
            # Each device holds its sequences, whole in all other dims, but may be planned to send a slice of them.
            # With context parallelism, they hold one of equal parts of the tokens.
            starts = (
                (start % size, end - start) for (start, end), size in zip(owned[1:], tensor.shape[1:], strict=False)
            )
            part = slice(None), *(slice(start, start + length) for start, length in starts)
            return resharding.start(tensor[part], tag=tag)

        return send

    def receive_function(self, producer: Action, rank: int) -> Callable[[], PendingTensor]:
        """Return a function that starts to receive a tensor from a rank."""
        start, acknowledged = self._bind_receive(producer, rank), self._acknowledged.get(producer)
        return (
            start
            if acknowledged is None
            else lambda: _Acknowledgement(start(), partial(self._release_messages, acknowledged))
        )

    def _bind_receive(self, producer: Action, rank: int) -> Callable[[], PendingTensor]:
        if (rank, self._rank) not in self._resharded:
            bind = self._bind_batched_receive if producer in self._batches else self._bind_direct_receive
            return bind(producer, self._layout.process(rank, self._lane))
        tag, forwarding, host_stamps = self._first_tag(producer), self._forwarding, self._device.type == "cpu"
        tensors, mb = self._tensor_count(producer), producer.microbatch

        def receive() -> PendingTensor:
            forwarding[:] = [pending for pending in forwarding if not pending.is_complete()]
            forwarding.append(self._resharding(rank, self._rank, tensors, mb).start(tag=tag))
            return _ReshardedTensor(forwarding[-1], host_stamps)

        return receive

    def _release_messages(self, acknowledged: Sequence[Action]) -> None:
        """Release the sent messages whose consumers have acknowledged them."""
        for producer in acknowledged:
            if producer in self._sending:
                self._sending.pop(producer).wait()

    def _tensor_count(self, producer: Action) -> int:
        """Return the number of tensors in the message of an action."""
        return self._layout.program.tensors_from(producer)

    def _resharding(self, source: int, target: int, tensors: int, mb: int) -> Resharding:
        """Return the resharding of the message of a microbatch at a boundary."""
        key = source, target, tensors, self.tokens.get(mb, self._message.shape[1])
        if key not in self._reshardings:
            parts = self._transfers[key], self._process, self._message.dtype, self._transport, self._device
            self._reshardings[key] = Resharding(*parts)
        return self._reshardings[key]

    def _bind_shape(self, producer: Action) -> Callable[[], tuple[int, ...]]:
        """Return a function that returns the shape of a message in the current step."""
        rows, tokens, *rest = whole = self._message.message_shape(self._tensor_count(producer))
        mb = producer.microbatch
        return lambda: (rows, self.tokens.get(mb, tokens), *rest) if self.tokens else whole

    def tag(self, producer: Action) -> int:
        """Return the tag of a message, which is unique within a step."""
        program = self._layout.program
        skips = producer.other >= 0
        place = program.stages + program.distant_skips.index(_skipped_stages(producer)) if skips else producer.stage
        return ((producer.op == Op.B) * self._producers + place) * program.microbatches + producer.microbatch

    def _first_tag(self, producer: Action) -> int:
        """Return the first tag of a resharded message; it is above the tags of direct messages."""
        return self.tag_count + self.tag(producer) * self._tags_per_transfer

    @property
    def tag_count(self) -> int:
        """Maximum number of messages in a step."""
        return 2 * self._producers * self._layout.program.microbatches

    @abstractmethod
    def _bind_direct_send(self, producer: Action, process: int) -> Callable[[Tensor], PendingSend]:
        """Return a function that starts to send a tensor to a process."""

    @abstractmethod
    def _bind_direct_receive(self, producer: Action, process: int) -> Callable[[], PendingTensor]:
        """Return a function that starts to receive a tensor from a process."""

    def _bind_batched_send(self, producer: Action, process: int) -> Callable[[Tensor], PendingSend]:
        """Return a function that adds the send of a tensor to its batch."""

        def send(tensor: Tensor) -> PendingSend:
            return self._add_to_batch(producer, dist.isend, tensor.to(self._transport.device).contiguous(), process)

        return send

    def _bind_batched_receive(self, producer: Action, process: int) -> Callable[[], PendingTensor]:
        """Return a function that adds the receive of a tensor to its batch."""
        shape_of, dtype = self._bind_shape(producer), self._message.dtype

        def receive() -> PendingTensor:
            tensor = torch.empty(shape_of(), dtype=dtype, device=self._transport.device)
            return _BatchedTensor(self._add_to_batch(producer, dist.irecv, tensor, process), tensor, self._device)

        return receive

    @abstractmethod
    def _add_to_batch(self, producer: Action, start: Callable[..., Any], tensor: Tensor, process: int) -> MessageBatch:
        """Add a send or a receive to its batch, which starts the operation by calling ``start``."""

    @abstractmethod
    def start_all_reduce(self, stage: int, members: tuple[int, ...], flat: Tensor) -> PendingTensor:
        """Start an all-reduce that sums ``flat``, the gradients of ``stage``, over ``members``."""

    @abstractmethod
    def start_reduce_scatter(self, stage: int, members: tuple[int, ...], flat: Tensor) -> PendingTensor:
        """Start a reduce-scatter that sums ``flat``, gradients of ``stage``, over ``members``; each gets an equal part."""

    @abstractmethod
    def start_all_gather(self, stage: int, members: tuple[int, ...], part: Tensor, whole: Tensor) -> PendingTensor:
        """Start an all-gather of equal parts of the weights of ``stage`` from ``members`` into ``whole``."""

    @abstractmethod
    def sum_over_processes(self, values: Sequence[Tensor | float]) -> Tensor:
        """Return the float64 sum of each value over all processes of the run."""

    def flush(self) -> None:
        """Wait until all messages of this step are sent."""
        for pending in (*self._sending.values(), *self._forwarding):
            pending.wait()
        self._sending.clear()
        self._forwarding.clear()

    def _direct_pairs(self) -> list[tuple[int, int]]:
        """Return the pairs (source, target) of processes that exchange messages without resharding, in ascending order."""
        pairs = {(source, target) for source, target, _ in self._layout.message_sizes()} - self._resharded
        return sorted(
            pair
            for source, target in pairs
            for pair in zip(self._layout.mesh(source), self._layout.mesh(target), strict=True)
        )

    def _batched_pairs(self) -> list[tuple[int, int]]:
        """Return the pairs (lower, higher) of processes that exchange batches, in ascending order."""
        return sorted(
            (min(pair), max(pair))
            for ranks in batched_pairs(self._layout.program)
            for pair in zip(*map(self._layout.mesh, ranks), strict=True)
        )

    def _make_groups(self, backend: str, timeout: timedelta) -> None:
        """Create a process group for each gradient group, because ranks may reduce their stages in different orders.

        All processes create all groups in the same order, as torch.distributed requires.
        """
        for stage, members in self._gradient_groups:
            group = dist.new_group(list(members), timeout=timeout, backend=backend)
            if self._process in members:
                self._groups[stage, members] = group


def _acknowledged_messages(program: Program, rank: int) -> dict[Action, list[Action]]:
    """Return, for each message that ``rank`` receives, the sent messages that it acknowledges; keys are producers."""
    messages, answer = find_acknowledgements(program)
    found: dict[Action, list[Action]] = {}
    for number in np.flatnonzero((answer >= 0) & (program.rank[messages.send] == rank)).tolist():
        rows = (int(messages.send[each]) for each in (number, answer[number]))
        sent, acknowledgement = (message_producer(program.row(row))[0] for row in rows)
        found.setdefault(acknowledgement, []).append(sent)
    return found


def _skipped_stages(producer: Action) -> tuple[int, int]:
    """Return the lower and the higher stage of a skip connection, given the producer of its tensor or gradient."""
    return min(producer.stage, producer.other), max(producer.stage, producer.other)


def _required_tags(transfer: Transfer) -> int:
    """Return the largest number of messages between any pair of processes of a transfer."""
    return max(Counter((move.source, move.target) for move in transfer.moves).values(), default=0)


class _Acknowledgement(PendingTensor):
    """Received message whose arrival acknowledges messages that this process sent before."""

    def __init__(self, pending: PendingTensor, release: Callable[[], None]) -> None:
        self._pending, self._release = pending, release

    def wait(self) -> Tensor:
        tensor = self._pending.wait()
        self._release()
        return tensor

    @property
    def arrival(self) -> Stamp | None:
        return self._pending.arrival

    @property
    def departure(self) -> Stamp | None:
        return self._pending.departure


class _ReshardedTensor(PendingTensor):
    """Shard of a resharded message that this process receives."""

    def __init__(self, pending: PendingReshard, host_stamps: bool) -> None:
        """Wrap a transfer. ``host_stamps`` is True if the run reads time stamps from the host's clock, not the GPU's."""
        self._pending, self._host_stamps = pending, host_stamps

    def wait(self) -> Tensor:
        shard = self._pending.wait_received()
        assert shard is not None, "this process is in the destination mesh"
        return shard

    @property
    def arrival(self) -> Stamp | None:
        arrival = self._pending.arrival
        return None if isinstance(arrival, int) and not self._host_stamps else arrival


class _BatchedTensor(PendingTensor):
    """Received tensor that arrives together with its batch."""

    def __init__(self, batch: MessageBatch, tensor: Tensor, device: torch.device) -> None:
        self._batch, self._tensor, self._device = batch, tensor, device

    def wait(self) -> Tensor:
        self._batch.wait()
        return self._tensor.to(self._device)

    @property
    def arrival(self) -> Stamp | None:
        return self._batch.arrival
