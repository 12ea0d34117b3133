"""Recorded actions of one process: start, end and waiting time of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from meshwave.engine.program.action import RECEIVES, Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.timeline import Source
from meshwave.engine.run_files import Count, Records, RunFile, are_clock_times, damaged_file, read_records
from meshwave.engine.runs.recording.clocks import Clocks, ProcessClock

FORMAT = "meshwave-spans/1"
LARGEST_MODELLED_NS = 2.0**63
"""Limit of times that are divided by a time-dilation factor, so that they fit into 64 bits."""
Spans = NDArray[np.void]  # size of SPAN in bytes
Int64s = NDArray[np.int64]

SPAN = np.dtype(
    [
        ("step", "<i4"),
        ("op", "<i4"),
        ("stage", "<i4"),
        ("microbatch", "<i4"),
        ("peer", "<i4"),  # the other rank of a SEND or RECV; otherwise -1
        ("start_ns", "<i8"),  # the inputs of the action were available; a RECV was posted
        ("end_ns", "<i8"),  # the action ended; the result of a RECV or REDUCE_GRAD was available
        ("wait_ns", "<i8"),  # wait for the inputs; for a RECV, the wait of the action that consumes it
    ]
)


class SpansHeader(RunFile):
    """First line of a file of spans."""

    format: Literal["meshwave-spans/1"]
    source: Source
    digest: str
    process: Count
    rank: Count
    meshes: Annotated[tuple[str, ...], Field(min_length=1)]
    rows: Annotated[Count, Field(ge=1)]
    fused: tuple[Annotated[int, Field(ge=1)], ...] = ()
    others: tuple[tuple[Count, Count], ...] = ()
    apart: tuple[int, ...] = ()
    scale: Annotated[float, Field(ge=1e-9, le=1e9)] = 1.0
    arrivals: bool = False

    @model_validator(mode="after")
    def _is_consistent(self) -> SpansHeader:
        if self.rank >= len(self.meshes):
            raise ValueError(f"rank {self.rank} exceeds its {len(self.meshes)} meshes")
        if max((*self.fused, *(row for row, _ in self.others)), default=0) >= self.rows:
            raise ValueError(f"the columns 'fused' and 'other' refer to rows beyond its {self.rows} rows")
        return self


class Recorder(Records):
    """Writer of the spans of one process: appends to ``spans-<process>.bin``, with one write per step."""

    def __init__(
        self,
        folder: Path,
        program: Program,
        meshes: Sequence[str],
        process: int,
        rank: int,
        source: Source = "measured",
        *,
        scale: float = 1.0,
        apart: Sequence[int] = (),
        arrivals: bool = False,
    ) -> None:
        """Open the file of a process.

        Args:
            folder: the run folder.
            program: the program of the run.
            meshes: the mesh names of all ranks.
            process: the process number.
            rank: the rank of the process.
            source: "measured" for training, "rehearsed" for a dry run.
            scale: the time-dilation factor of a dry run; times are divided by it when they are read.
            apart: steps with additional work, such as measuring memory, which are not timed.
            arrivals: True if the end of a RECV is the arrival of the message, even if no action waited for it.
        """
        rows = program.rows(rank)
        self._spans = np.zeros(rows.stop - rows.start, SPAN)
        for column in ("op", "stage", "microbatch", "peer"):
            self._spans[column] = getattr(program, column)[rows]
        header = {
            "format": FORMAT,
            "source": source,
            "digest": program.digest,
            "process": process,
            "rank": rank,
            "meshes": list(meshes),
            "rows": len(self._spans),
            "fused": np.flatnonzero(program.fused[rows]).tolist(),
            "others": [[row, other] for row, other in enumerate(program.other[rows].tolist()) if other >= 0],
            "clock": "perf_counter_ns",
            "apart": list(apart),
            "scale": scale,
            "arrivals": arrivals,
        }
        super().__init__(folder / f"spans-{process}.bin", header)

    @staticmethod
    def is_due(step: int) -> bool:
        """Return True if a step is recorded: the first hundred steps, then ninety per decade.

        This limits the file size of long runs. Every process selects the same steps.
        """
        return step < 100 or step % 10 ** (len(str(step)) - 2) == 0

    def write(self, step: int, start: Int64s, end: Int64s, wait: Int64s) -> None:
        """Append a step; times are in nanoseconds for each row of the rank's program."""
        self._spans["step"] = step
        self._spans["start_ns"], self._spans["end_ns"], self._spans["wait_ns"] = start, end, wait
        self.append(self._spans)


@dataclass(frozen=True, eq=False)
class Track:
    """Complete recorded steps of one process."""

    header: SpansHeader
    spans: Spans  # [steps, rows]

    @property
    def steps(self) -> Int64s:
        """Numbers of the recorded steps."""
        return self.spans["step"][:, 0].astype(np.int64)

    @property
    def fused(self) -> NDArray[np.bool_]:
        """Mask of the rows that share a slot with the previous row, ``[rows]``."""
        return np.isin(np.arange(self.spans.shape[1]), self.header.fused)

    @property
    def other(self) -> NDArray[np.int32]:
        """Stage at the other end of each message that skips stages; otherwise -1, ``[rows]``."""
        found = np.full(self.spans.shape[1], -1, np.int32)
        for row, other in self.header.others:
            found[row] = other
        return found

    def step_spans(self, steps: Sequence[int]) -> Spans:
        """Return the spans of the given steps, ``[steps, rows]``."""
        return self.spans[np.searchsorted(self.steps, steps)]


def read_track(path: Path, clocks: Clocks) -> Track | None:
    """Return the recording of one process; None if the header of its file is incomplete.

    Raises:
        RunFolderError: the file is missing, of another version, or damaged.
    """
    found = read_records(path, SpansHeader)
    if found is None:
        return None
    header, body = found
    steps = len(body) // (SPAN.itemsize * header.rows)
    spans = np.frombuffer(body, SPAN, steps * header.rows).reshape(steps, header.rows)
    if problem := _describe_inconsistency(header, spans):
        raise damaged_file(path, problem)
    return Track(header, align_spans(spans, clocks[header.process], header.scale))


def _describe_inconsistency(header: SpansHeader, spans: Spans) -> str:
    """Return a text on the first inconsistency of recorded spans; empty if there is none."""
    if not len(spans):
        return ""
    first, steps = spans[0], spans["step"]
    if any((spans[column] != first[column]).any() for column in ("op", "stage", "microbatch", "peer")):
        return "its steps have different actions"
    if not np.isin(first["op"], [*Op]).all() or np.isin(first["op"], RECEIVES).all():
        return "it contains unknown actions, or nothing but receives"
    if min(first["stage"].min(), first["microbatch"].min(), first["peer"].min()) < -1:
        return "a stage, microbatch or peer is negative"
    if first["peer"].max() >= len(header.meshes):
        return f"an action has a peer beyond the {len(header.meshes)} meshes"
    if (steps != steps[:, :1]).any() or (np.diff(steps[:, 0], prepend=-1) <= 0).any():
        return "its step numbers are not in ascending order"
    times = [spans[column] for column in ("start_ns", "end_ns", "wait_ns")]
    if not are_clock_times(*times) or max(np.abs(each).max() for each in times) / header.scale >= LARGEST_MODELLED_NS:
        return "a time is over 31 years"
    return ""


def align_spans(rows: Spans, clock: ProcessClock, scale: float = 1.0) -> Spans:
    """Convert spans to the clock of process 0, and to modelled time for a dry run."""
    if clock.same_host and scale == 1:
        return rows
    rows = rows.copy()
    for column in ("start_ns", "end_ns"):
        rows[column] = clock.convert(rows[column]) / scale
    if scale != 1:
        rows["wait_ns"] = rows["wait_ns"] / scale
    return rows
