"""Two computations at once: on two streams of an accelerator; in turn on a CPU."""

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

A stream that waits for a message occupies a hardware queue, of which a device has eight by default. With more streams
than queues, a stream that shares the queue waits too, perhaps with the work that the message answers. And torch assigns
its own streams and NCCL's from one pool of 32 in turn, unless NCCL's have a higher priority, which also lets messages
overtake queued work."""


def set_stream_environment() -> None:
    """Set the variables that CUDA and NCCL read when they start, unless the user has set them.

    To be called before the first use of an accelerator.
    """
    for name, value in STREAM_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


class Streams:
    """The single stream of a CPU: of two computations in a slot, one computes while the other waits for a collective."""

    def __init__(self, *, alternates: bool = True) -> None:
        """Set up the stream; without ``alternates``, the computations of a slot run one after the other."""
        self._turns = Turns() if alternates else None

    def backward(self, forward: Action, compute: Compute) -> None:
        """Run the backward of the action ``forward`` by itself."""
        compute()

    def overlap(self, forward: Action | None, run_forward: Compute, backward_of: Action, run_backward: Compute) -> None:
        """Run a forward and a backward in one slot.

        Args:
            forward: the action of the forward; None if it leaves no graph, so that its stream does not matter.
            run_forward: computes it.
            backward_of: the forward that the backward belongs to.
            run_backward: computes the backward.
        """
        if self._turns is None:
            run_forward()
            run_backward()
        else:
            self._turns.run(run_forward, run_backward)


class AcceleratorStreams(Streams):
    """A main stream, which runs everything else, and a side stream for slots of two computations.

    autograd runs the backward of an operation on the stream that ran the operation. The forward
    of a slot therefore takes the stream that the forward of its backward did not take. Work on
    the side stream begins after all earlier work of the main stream and ends before all later work
    of the main stream, so that memory which one of them has freed is never still in use by
    the other. The host issues the whole forward of a slot before its backward. The program
    decides this alike for all processes, so that collectives of one group are issued in one order by all of them,
    whichever streams they are on.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(alternates=False)
        _expect_weights_on_both_streams()
        self._device = device
        self._side = torch.Stream(device)
        self._on_side: set[Action] = set()  # forwards that ran on the side stream and whose backward is to come

    def backward(self, forward: Action, compute: Compute) -> None:
        """Run the backward of the action ``forward`` by itself."""
        if forward in self._on_side:
            self._on_side.discard(forward)
            self._run_joined(compute)
        else:
            compute()

    def overlap(self, forward: Action | None, run_forward: Compute, backward_of: Action, run_backward: Compute) -> None:
        """Run a forward and a backward on two streams; see :meth:`Streams.overlap`."""

        def both() -> None:
            if backward_of in self._on_side:
                self._on_side.discard(backward_of)
                run_forward()
            else:
                with use_stream(self._side):
                    run_forward()
                if forward is not None:
                    self._on_side.add(forward)
            run_backward()

        self._run_joined(both)

    def _run_joined(self, compute: Compute) -> None:
        """Let the side stream start after the main stream's work so far, and the main stream go on after it."""
        main = torch.accelerator.current_stream(self._device)
        self._side.wait_stream(main)
        compute()
        main.wait_stream(self._side)


def _expect_weights_on_both_streams() -> None:
    """Silence torch's warning about gradients that are accumulated on another stream.

    A gradient is accumulated on the stream that first used its weight, and autograd waits for it. Since torch 2.10 it
    also warns that this may be a mistake, which it is not here.
    """
    set_warning = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
    if set_warning is not None:
        set_warning(False)


def make_streams(device: torch.device, *, alternates: bool = True) -> Streams:
    """Return the streams that a process computes on; see :class:`Streams` for ``alternates``."""
    return AcceleratorStreams(device) if is_accelerator(device) else Streams(alternates=alternates)
