"""Two computations at once: on two streams of a GPU; on a CPU one after the other."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.program.action import Action

Play = Callable[[], None]


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


def streams_of(device: torch.device) -> Streams:
    return CudaStreams(device) if device.type == "cuda" else Streams()
