"""Two computations at once: on two streams of a GPU; on a CPU one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from meshwave.engine.program.action import Action

Play = Callable[[], None]

APART = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "TORCH_NCCL_HIGH_PRIORITY": "1",
}
"""What keeps streams from waiting for each other by chance. A stream that waits for a message stands in a queue of the
device, of which it has eight unless told otherwise: with more streams than queues, one that another stream shares
with it waits too, perhaps with what the message is the answer to. And torch hands streams out of a pool of 32 in turn,
ours and NCCL's alike, unless NCCL's have a higher priority, which also lets messages pass what is queued."""


def keep_streams_apart() -> None:
    """Set up what CUDA and NCCL read when they start. To be called before the first look at a GPU; what a person has
    set stays."""
    for name, value in APART.items():
        os.environ.setdefault(name, value)


class Streams:
    """A CPU has one stream: what overlaps in the program runs one after the other."""

    def backward(self, made: Action, run: Play) -> None:
        """Run a backward of the forward ``made`` alone."""
        run()

    def overlap(self, made: Action | None, first: Play, other: Action, second: Play) -> None:
        """Run the forward ``made`` and a backward of the forward ``other`` in one slot.

        ``made`` is none where the forward leaves no graph, so that its stream does not matter.
        """
        first()
        second()


class CudaStreams(Streams):
    """A main stream, which everything else runs on, and one beside it for slots of two.

    autograd runs the backward of an operation on the stream that ran the operation. The forward
    of a slot therefore takes the stream that the forward of its backward did not take. Work on
    the side stream begins after all that the main stream was given before and ends before all
    that it is given after, so that memory which one of them has freed is never still in use by
    the other. The host issues the whole forward of a slot before its backward, which the program
    decides alike for all processes: collectives of one group come in one order on all of them,
    whichever streams they are on.
    """

    def __init__(self, device: torch.device) -> None:
        _expect_weights_on_both_streams()
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._beside: set[Action] = set()  # forwards on the side stream whose backward is to come

    def backward(self, made: Action, run: Play) -> None:
        if made in self._beside:
            self._beside.discard(made)
            self._joined(run)
        else:
            run()

    def overlap(self, made: Action | None, first: Play, other: Action, second: Play) -> None:
        def both() -> None:
            if other in self._beside:
                self._beside.discard(other)
                first()
            else:
                with torch.cuda.stream(self._side):
                    first()
                if made is not None:
                    self._beside.add(made)
            second()

        self._joined(both)

    def _joined(self, run: Play) -> None:
        main = torch.cuda.current_stream(self._device)
        self._side.wait_stream(main)
        run()
        main.wait_stream(self._side)


def _expect_weights_on_both_streams() -> None:
    """A gradient is added up on the stream that its weight was first used on, which autograd, rightly, waits for; from
    torch 2.10 on it also warns that this may be by mistake."""
    tell = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
    if tell is not None:
        tell(False)


def streams_of(device: torch.device) -> Streams:
    return CudaStreams(device) if device.type == "cuda" else Streams()
