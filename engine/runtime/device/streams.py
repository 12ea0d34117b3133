"""Execution of two computations at once: on two streams of an accelerator, or in turns on a CPU."""

from __future__ import annotations

import os

import torch

from meshwave.engine.program.action import Action
from meshwave.engine.runtime.device.accelerator import is_accelerator, use_stream
from meshwave.engine.runtime.device.turns import Compute, Turns

STREAM_ENVIRONMENT = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "TORCH_NCCL_HIGH_PRIORITY": "1",
}
"""Settings of CUDA and NCCL that keep independent streams from blocking each other.

A stream that waits for a message occupies a hardware queue, of which a device has eight by default. If there are more
streams than queues, a stream that shares the queue waits too, possibly with the work that must run before the message
can be sent. Torch also assigns its own streams and NCCL's from one pool of 32 in turn, unless NCCL's have a higher
priority, which also allows messages to overtake queued work.
"""


def set_stream_environment() -> None:
    """Set the environment variables that CUDA and NCCL read when they start, unless the user has set them.

    Must be called before the first use of an accelerator.
    """
    for name, value in STREAM_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


class Streams:
    """The single stream of a CPU.

    The computations of a slot take turns: one computes while the other waits for a collective.
    """

    def __init__(self, *, alternates: bool = True) -> None:
        """Set up the stream. If ``alternates`` is False, the computations of a slot run one after the other."""
        self._turns = Turns() if alternates else None

    def run_backward(self, forward: Action, compute: Compute) -> None:
        """Run the backward of the action ``forward`` alone."""
        compute()

    def run_overlapped(
        self, forward: Action | None, run_forward: Compute, backward_of: Action, run_backward: Compute
    ) -> None:
        """Run a forward and a backward in one slot.

        Args:
            forward: the action of the forward; None if it leaves no graph, so that its stream is irrelevant.
            run_forward: computes the forward.
            backward_of: the action whose backward is run.
            run_backward: computes the backward.
        """
        if self._turns is None:
            run_forward()
            run_backward()
        else:
            self._turns.run(run_forward, run_backward)


class AcceleratorStreams(Streams):
    """Main stream of an accelerator, and a side stream for shared slots.

    Autograd runs the backward of an operation on the stream of its forward. The forward of a slot therefore uses the
    stream that the forward of the slot's backward did not use. Work on the side stream begins after all earlier work of
    the main stream and ends before all later work of the main stream, so that memory freed on one stream is never still
    in use by the other. The host issues the whole forward of a slot before its backward. The program fixes this order
    for all processes, so that they issue the collectives of a group in the same order on any stream.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(alternates=False)
        _silence_stream_warning()
        self._device = device
        self._side = torch.Stream(device)
        self._on_side: set[Action] = set()  # forwards on the side stream whose backward has not run

    def run_backward(self, forward: Action, compute: Compute) -> None:
        """Run the backward of the action ``forward`` alone."""
        if forward in self._on_side:
            self._on_side.discard(forward)
            self._run_joined(compute)
        else:
            compute()

    def run_overlapped(
        self, forward: Action | None, run_forward: Compute, backward_of: Action, run_backward: Compute
    ) -> None:
        """Run a forward and a backward on two streams; see :meth:`Streams.run_overlapped`."""

        def run_both() -> None:
            if backward_of in self._on_side:
                self._on_side.discard(backward_of)
                run_forward()
            else:
                with use_stream(self._side):
                    run_forward()
                if forward is not None:
                    self._on_side.add(forward)
            run_backward()

        self._run_joined(run_both)

    def _run_joined(self, compute: Compute) -> None:
        """Run ``compute`` with the side stream ordered after all earlier and before all later work of the main stream."""
        main = torch.accelerator.current_stream(self._device)
        self._side.wait_stream(main)
        compute()
        main.wait_stream(self._side)


def _silence_stream_warning() -> None:
    """Silence torch's warning about gradients that are accumulated on another stream.

    A gradient is accumulated on the stream that first used its weight, and autograd waits for it. Since torch 2.10
    autograd warns that this may be a mistake, which does not apply here.
    """
    set_warning = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
    if set_warning is not None:
        set_warning(False)


def make_streams(device: torch.device, *, alternates: bool = True) -> Streams:
    """Return the streams on which a process computes; see :class:`Streams` for ``alternates``."""
    return AcceleratorStreams(device) if is_accelerator(device) else Streams(alternates=alternates)
