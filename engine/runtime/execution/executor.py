"""Execution of a rank's program: one method per kind of action, one table of bound actions, one loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from torch import Tensor

from meshwave.engine.program.action import RECEIVES, Action, Op, backward, format_cells, forward
from meshwave.engine.runtime.communication.batching import message_producer
from meshwave.engine.runtime.communication.communicator import PendingTensor
from meshwave.engine.runtime.communication.process_layout import ProcessLayout
from meshwave.engine.runtime.device.clock import Clock, Stamp
from meshwave.engine.runtime.device.streams import Streams
from meshwave.engine.runtime.execution.data import Microbatch
from meshwave.engine.runtime.execution.protocols import ComputeStage, Messenger, WeightUpdate
from meshwave.engine.runtime.execution.stages import Saved
from meshwave.engine.runtime.execution.step_progress import ExecutionError, Progress, StepTimes
from meshwave.engine.runtime.modules.deferred_gradients import DeferredGradient
from meshwave.engine.runtime.modules.documents import pack_documents

Batch = Mapping[int, Microbatch]
"""Microbatches whose first or last stage is on this rank, or all that it computes if they have documents."""

FORWARD_OPS = (Op.F, Op.SEND_F, Op.RECV_F, Op.UNSHARD, Op.RESHARD)
"""Actions of an evaluation. They keep their order, so that they cannot deadlock if the program cannot."""

RunAction = Callable[[], None]

Inputs = tuple[Any, tuple[Tensor, ...]]
"""Inputs of a computation: the tensor of the adjacent stage (None for the backward of a loss), and those of skip
connections."""


class Computation(NamedTuple):
    """Action that takes input tensors, possibly after a wait, and computes."""

    forward: Action  # the action, or for a backward the forward that it belongs to
    take_inputs: Callable[[], Inputs]
    compute: Callable[[Inputs], None]


class Slot(NamedTuple):
    """Actions that a rank executes together: one action, or a forward overlapped with a backward."""

    row: int
    last: int  # last row of the slot: row, or row + 1
    run: RunAction


class Executor:
    """Executor of the actions of a rank, step by step.

    A tensor is identified by the action that produces it, whether it stays on this rank or arrives in a message.
    Look-ups that are the same in every step, such as the receiver of a message, are bound to the actions once.
    """

    def __init__(
        self,
        layout: ProcessLayout,
        process: int,
        stages: Mapping[int, ComputeStage],
        messenger: Messenger,
        update: WeightUpdate,
        clock: Clock,
        streams: Streams,
        *,
        forwards_only: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Bind the actions of the rank of ``process``.

        Args:
            layout: the program and its processes.
            process: number of this process.
            stages: stages of this process by number.
            messenger: sends and receives the tensors of other ranks.
            update: reduces the gradients and updates the weights.
            clock: takes the times of actions.
            streams: runs backward passes.
            forwards_only: True to run the forwards and their messages only.
            progress: position that the executor updates; None for a new one.
        """
        self._layout = layout
        self._rank = layout.rank(process)
        self._actions = layout.program.actions(self._rank)
        self._ops = FORWARD_OPS if forwards_only else tuple(Op)
        self._row_of = {action._replace(fused=0): row for row, action in enumerate(self._actions)}
        receives = (row for row, action in enumerate(self._actions) if action.op in RECEIVES)
        self._receive_row_of = {message_producer(self._actions[row])[0]: row for row in receives}
        self._last_stage = layout.program.stages - 1
        self._stages = stages
        self._messenger = messenger
        self._update = update
        self._clock = clock
        self._stamp = clock.stamp
        self._streams = streams

        self._batch: Batch = {}
        self._tensors: dict[Action, Tensor] = {}  # produced and not yet consumed on this rank
        self._receiving: dict[Action, PendingTensor] = {}
        self._saved: dict[Action, Saved] = {}
        self._unsharding: dict[int, tuple[int, PendingTensor]] = {}  # row and gather by stage
        self._deferred: dict[Action, list[DeferredGradient]] = {}  # deferred gradients of W actions
        self._losses: list[Tensor] = []
        self._reductions = [row for row, action in enumerate(self._actions) if action.op == Op.REDUCE_GRAD]
        self._early_reductions = {} if forwards_only else _early_reductions(self._actions)
        self._final: set[int] = set()  # rows of reductions whose gradients are final
        self._reducing: dict[int, Stamp] = {}  # start of each reduction that has started, by row
        rows = len(self._actions)
        self.progress = Progress() if progress is None else progress
        self._start: list[Stamp] = [0] * rows
        self._end, self._requested, self._ready = self._start.copy(), self._start.copy(), self._start.copy()
        self._slots = self._bind_actions()

    def run(self, batch: Batch) -> StepTimes:
        """Run one step over ``batch`` and return its measured times.

        Raises:
            ExecutionError: an action failed.
        """
        self._batch = batch
        self._losses = []
        for store in (self._tensors, self._receiving, self._saved, self._unsharding, self._deferred, self._reducing):
            store.clear()
        self._final.clear()
        start, end, requested, ready, stamp = self._start, self._end, self._requested, self._ready, self._stamp
        self._clock.begin()
        now = stamp()
        row = last = 0
        progress = self.progress
        try:
            for row, last, run in self._slots:
                progress.row = row
                start[row] = requested[row] = ready[row] = now
                run()
                end[row] = end[last] = now = stamp()
        except Exception as error:
            (cell,) = format_cells(self._actions[row : last + 1])
            where = f"rank {self._rank}, action {row + 1} of {len(self._actions)}, {cell}"
            raise ExecutionError(f"{where}: {error!r}", self._rank, self._actions[row]) from error
        progress.row = len(self._actions)
        self._messenger.flush()
        return self._step_times()

    # ---- binding of actions ----

    def _bind_actions(self) -> list[Slot]:
        bind: dict[Op, Callable[[int, int, int], Any]] = {  # to a RunAction or a Computation
            Op.F: self._bind_forward,
            Op.B: self._bind_backward,
            Op.I: self._bind_input_gradient,
            Op.W: self._bind_weight_gradient,
            Op.SEND_F: lambda row, stage, mb: self._bind_send(self._actions[row]),
            Op.SEND_B: lambda row, stage, mb: self._bind_send(self._actions[row]),
            Op.RECV_F: lambda row, stage, mb: self._bind_receive(self._actions[row]),
            Op.RECV_B: lambda row, stage, mb: self._bind_receive(self._actions[row]),
            Op.REDUCE_GRAD: lambda row, stage, mb: lambda: self._reduce(row),
            Op.STEP: lambda row, stage, mb: lambda: self._update_weights(row),
            Op.UNSHARD: lambda row, stage, mb: self._bind_unshard(row, stage),
            Op.RESHARD: lambda row, stage, mb: self._stages[stage].reshard,
        }
        bound = {
            row: bind[op](row, stage, mb) for row, (op, stage, mb, *_) in enumerate(self._actions) if op in self._ops
        }
        unsharded = {stage for op, stage, *_ in self._actions if op == Op.UNSHARD}
        for row, run in bound.items():
            if self._actions[row].op.is_compute and self._actions[row].stage in unsharded:
                bound[row] = self._bind_unsharded(row, run)
        for row in self._early_reductions:
            bound[row] = self._bind_last(row, bound[row])
        slots: list[Slot] = []
        for row, run in bound.items():
            action = self._actions[row]
            if action.fused:
                slots[-1] = Slot(row - 1, row, self._bind_overlap(row, bound[row - 1], run))
            else:
                slots.append(Slot(row, row, run if callable(run) else self._bind_alone(action.op, run)))
        return slots

    def _bind_forward(self, row: int, stage: int, mb: int) -> Computation:
        producer, local, is_last = forward(stage, mb), self._stages[stage], stage == self._last_stage
        skip_outputs = [producer._replace(other=target) for target in local.skip_targets]
        saved, tensors = self._saved, self._tensors

        def compute(inputs: Inputs) -> None:
            x, skips = inputs
            with self._documents_of(mb):
                y, kept = local.forward(x, self._batch[mb].targets if is_last else None, skips)
            if is_last:
                self._losses.append(y)
            else:
                tensors[producer] = y
            for name, tensor in zip(skip_outputs, kept.skip_outputs, strict=True):
                tensors[name] = tensor.detach()
            saved[producer] = kept._replace(skip_outputs=()) if local.recomputes else kept

        take = self._bind_tensor(row, forward(stage - 1, mb)) if stage else lambda: self._batch[mb].inputs
        skips = [forward(source, mb)._replace(other=stage) for source in local.skip_sources]
        return Computation(producer, self._bind_inputs(row, take, skips), compute)

    def _bind_backward(self, row: int, stage: int, mb: int) -> Computation:
        made, run, put = forward(stage, mb), self._stages[stage].backward, self._bind_gradients(stage, mb)
        saved = self._saved

        def compute(gradients: Inputs) -> None:
            kept = saved.pop(made)
            with self._documents_of(mb):
                put(run(kept, *gradients), kept)

        return Computation(made, self._bind_gradient_inputs(row, stage, mb), compute)

    def _bind_input_gradient(self, row: int, stage: int, mb: int) -> Computation:
        made, run, put = forward(stage, mb), self._stages[stage].input_gradient, self._bind_gradients(stage, mb)
        saved, deferred = self._saved, self._deferred

        def compute(gradients: Inputs) -> None:
            kept = saved.pop(made)
            with self._documents_of(mb):
                gradient, deferred[made] = run(kept, *gradients)
            put(gradient, kept)

        return Computation(made, self._bind_gradient_inputs(row, stage, mb), compute)

    def _documents_of(self, mb: int) -> AbstractContextManager[None]:
        """Return a context that sets the documents of a microbatch."""
        microbatch = self._batch.get(mb)
        return nullcontext() if microbatch is None else pack_documents(microbatch.documents, microbatch.target_counts)

    def _bind_weight_gradient(self, row: int, stage: int, mb: int) -> RunAction:
        made, deferred, run = forward(stage, mb), self._deferred, self._stages[stage].weight_gradient
        return lambda: run(deferred.pop(made))

    def _bind_last(self, row: int, run: RunAction | Computation) -> RunAction | Computation:
        """Return the last computation of a stage, inside which reductions of its gradients start."""
        stage, reductions = self._stages[self._actions[row].stage], self._early_reductions[row]

        def run_last(compute: RunAction) -> None:
            stage.on_final_gradients = lambda bucket: self._finish_gradients(reductions[bucket])
            try:
                compute()
            finally:
                stage.on_final_gradients = None

        if isinstance(run, Computation):
            compute = run.compute
            return run._replace(compute=lambda inputs: run_last(lambda: compute(inputs)))
        return lambda: run_last(run)

    def _bind_unshard(self, row: int, stage: int) -> RunAction:
        """Return a function that starts to gather the weights of a stage; the next computation of it waits for them."""
        start = self._stages[stage].unshard_function(row)

        def run() -> None:
            self._unsharding[stage] = row, start()

        return run

    def _bind_unsharded(self, row: int, run: RunAction | Computation) -> RunAction | Computation:
        """Return a computation that first waits until its stage is unsharded."""
        stage, unsharding = self._actions[row].stage, self._unsharding
        start, ready, stamp = self._start, self._ready, self._stamp

        def wait() -> None:
            if stage in unsharding:
                unshard_row, pending = unsharding.pop(stage)
                requested = ready[row]
                pending.wait()
                start[row] = ready[row] = stamp()
                self._record_arrival(row, unshard_row, pending, requested)

        if isinstance(run, Computation):
            take = run.take_inputs

            def take_unsharded() -> Inputs:
                wait()
                return take()

            return run._replace(take_inputs=take_unsharded)

        def run_unsharded() -> None:
            wait()
            run()

        return run_unsharded

    def _bind_send(self, message: Action) -> RunAction:
        producer, consumer = message_producer(message)
        target, tensors = self._layout.rank_of(consumer, producer.microbatch), self._tensors
        send = self._messenger.send_function(producer, target)
        return lambda: send(tensors.pop(producer))

    def _bind_receive(self, message: Action) -> RunAction:
        """Return a function that posts the receive; the action that consumes the tensor waits for it."""
        producer, _ = message_producer(message)
        source, receiving = self._layout.rank_of(producer.stage, producer.microbatch), self._receiving
        receive = self._messenger.receive_function(producer, source)

        def run() -> None:
            receiving[producer] = receive()

        return run

    def _bind_alone(self, op: Op, computation: Computation) -> RunAction:
        made, take, compute = computation
        if op == Op.F:
            return lambda: compute(take())

        def run() -> None:
            gradients = take()
            self._streams.run_backward(made, lambda: compute(gradients))

        return run

    def _bind_overlap(self, row: int, first: Computation, second: Computation) -> RunAction:
        """Return a function that runs the forward at ``row - 1`` and the backward at ``row`` together."""
        start, requested, ready = self._start, self._requested, self._ready
        made = None if self._stages[first.forward.stage].recomputes else first.forward

        def run() -> None:
            inputs = first.take_inputs()
            requested[row] = ready[row] = ready[row - 1]
            gradients = second.take_inputs()
            start[row - 1] = start[row] = ready[row]
            self._streams.run_overlapped(
                made, lambda: first.compute(inputs), second.forward, lambda: second.compute(gradients)
            )

        return run

    # ---- inputs and outputs ----

    def _bind_tensor(self, row: int, producer: Action) -> Callable[[], Tensor]:
        """Return a function that takes a tensor produced on this rank, or waits for the message that contains it."""
        received = self._receive_row_of.get(producer)
        if received is None:
            tensors = self._tensors
            return lambda: tensors.pop(producer)
        receiving, start, ready, stamp = self._receiving, self._start, self._ready, self._stamp
        progress = self.progress

        def take() -> Tensor:
            pending, requested = receiving.pop(producer), ready[row]
            progress.awaited_row = received
            tensor = pending.wait()
            progress.awaited_row = None
            start[row] = ready[row] = stamp()  # the time before is idle time of the rank
            self._record_arrival(row, received, pending, requested)
            return tensor

        return take

    def _bind_inputs(self, row: int, take: Callable[[], Any], skips: list[Action]) -> Callable[[], Inputs]:
        """Return a function that takes the tensor of the adjacent stage, then the tensors of skip connections."""
        if not skips:
            return lambda: (take(), ())
        takes = [self._bind_tensor(row, producer) for producer in skips]
        return lambda: (take(), tuple(each() for each in takes))

    def _bind_gradient_inputs(self, row: int, stage: int, mb: int) -> Callable[[], Inputs]:
        take = (lambda: None) if stage == self._last_stage else self._bind_tensor(row, backward(stage + 1, mb))
        targets = self._stages[stage].skip_targets
        return self._bind_inputs(row, take, [backward(target, mb)._replace(other=stage) for target in targets])

    def _bind_gradients(self, stage: int, mb: int) -> Callable[[Tensor | None, Saved], None]:
        """Return a function that stores the gradients of a stage's inputs, or nothing for the first stage."""
        producer, tensors = backward(stage, mb), self._tensors
        names = [producer._replace(other=source) for source in self._stages[stage].skip_sources]

        def put(gradient: Tensor | None, kept: Saved) -> None:
            if gradient is not None:
                tensors[producer] = gradient
            for name, skip in zip(names, kept.skips, strict=True):
                assert skip.grad is not None, "the backward computes the gradients of all inputs"
                tensors[name] = skip.grad

        return put

    # ---- the end of a step ----

    def _reduce(self, row: int) -> None:
        """Start the reduction at ``row``, unless it has started inside the last computation of its stage."""
        self._finish_gradients(row)
        self._start[row] = self._reducing[row]

    def _finish_gradients(self, row: int) -> None:
        """Note that the gradients of a reduction are final, and start the reductions that no earlier one delays.

        All ranks start the reductions in the order of the program, so that the members of a group agree.
        """
        self._final.add(row)
        for at in self._reductions[len(self._reducing) :]:
            if at not in self._final:
                break
            self._reducing[at] = self._stamp()
            self._update.start_reduction(self._actions[at].stage, self._actions[at].microbatch)

    def _update_weights(self, row: int) -> None:
        reductions = self._update.collect_gradients()
        self._start[row] = self._ready[row] = self._stamp()
        for reduced, reduction in reductions.items():
            reduce_row = self._row_of[Action(Op.REDUCE_GRAD, *reduced)]
            self._record_arrival(row, reduce_row, reduction, self._requested[row])
        self._update.apply()
        for local in self._stages.values():
            local.drop_cast_weights()

    def _record_arrival(self, row: int, receive_row: int, pending: PendingTensor, requested: Stamp) -> None:
        """Record the times of a receive or reduction, whose tensor the action at ``row`` has just waited for."""
        self._end[receive_row] = pending.arrival or self._ready[row]
        self._start[receive_row] = pending.departure or self._start[receive_row]
        self._requested[receive_row], self._ready[receive_row] = requested, self._ready[row]

    def _step_times(self) -> StepTimes:
        stamps = (self._start, self._end, self._requested, self._ready)
        start, end, requested, ready = map(self._clock.nanoseconds, stamps)
        return StepTimes(start, end, ready - requested, self._losses)


def _early_reductions(actions: Sequence[Action]) -> dict[int, list[int]]:
    """Return the reductions of the buckets of each stage in order, by the row of the last computation of the stage.

    A stage without computations on this rank is left out: its reductions start in their own rows.
    """
    found: dict[int, list[int]] = {}
    last = {action.stage: row for row, action in enumerate(actions) if action.op.is_compute}
    for row, action in enumerate(actions):
        if action.op == Op.REDUCE_GRAD and action.microbatch >= 0 and action.stage in last:
            found.setdefault(last[action.stage], []).append(row)
    return found
