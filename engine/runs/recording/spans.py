"""The actions of one process: when each had its inputs, when it ended, and how long it waited."""

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
Spans = NDArray[np.void]  # of SPAN
Int64s = NDArray[np.int64]

SPAN = np.dtype(
    [
        ("step", "<i4"),
        ("op", "<i4"),
        ("stage", "<i4"),
        ("microbatch", "<i4"),
        ("peer", "<i4"),  # the other rank of a SEND or RECV, else -1
        ("start_ns", "<i8"),  # the action held its inputs; a RECV was posted
        ("end_ns", "<i8"),  # it was done; what a RECV or REDUCE_GRAD is for was in hand
        ("wait_ns", "<i8"),  # the rank stood still for the inputs; for a RECV its consumer did
    ]
)


class SpansHeader(RunFile):
    """The first line of a file of spans."""

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
            raise ValueError(f"rank {self.rank} is none of its {len(self.meshes)} meshes")
        if max((*self.fused, *(row for row, _ in self.others)), default=0) >= self.rows:
            raise ValueError(f"fused and others name rows beyond its {self.rows}")
        return self


class Recorder(Records):
    """Appends the spans of one process to ``spans-<process>.bin``, one write per step."""

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
        """``meshes`` are the names of all ranks.

        The seconds of a rehearsal are ``scale`` times as long as those that it stands for, and are read so.
        Steps that are ``apart`` had something to do that others have not, such as counting memory: they are
        recorded and say nothing of how long a step takes. With ``arrivals`` the end of a RECV is when the
        message was there, also where nobody waited for it.
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
        """Whether to record ``step``: the first hundred, then ninety in every decade.

        A long run does not fill the disk, and every process picks the same steps.
        """
        return step < 100 or step % 10 ** (len(str(step)) - 2) == 0

    def write(self, step: int, start: Int64s, end: Int64s, wait: Int64s) -> None:
        """Append a step: nanoseconds for each row of the program of this rank."""
        self._spans["step"] = step
        self._spans["start_ns"], self._spans["end_ns"], self._spans["wait_ns"] = start, end, wait
        self.append(self._spans)


@dataclass(frozen=True, eq=False)
class Track:
    """The recording of one process, whole steps only."""

    header: SpansHeader
    spans: Spans  # [steps, rows]

    @property
    def steps(self) -> Int64s:
        """The numbers of the recorded steps."""
        return self.spans["step"][:, 0].astype(np.int64)

    @property
    def fused(self) -> NDArray[np.bool_]:
        """``[rows]`` whether each shares its slot with the row before it."""
        return np.isin(np.arange(self.spans.shape[1]), self.header.fused)

    @property
    def other(self) -> NDArray[np.int32]:
        """``[rows]`` the stage at the other end of a message that skips stages, else -1."""
        found = np.full(self.spans.shape[1], -1, np.int32)
        for row, other in self.header.others:
            found[row] = other
        return found

    def at(self, steps: Sequence[int]) -> Spans:
        """Return ``[steps, rows]`` the spans of some steps."""
        return self.spans[np.searchsorted(self.steps, steps)]


def read_track(path: Path, clocks: Clocks) -> Track | None:
    """Return the recording of one process; None if its file ends within the first line.

    Raises:
        RunFolderError: the file is missing, of another version, or damaged.
    """
    found = read_records(path, SpansHeader)
    if found is None:
        return None
    header, body = found
    steps = len(body) // (SPAN.itemsize * header.rows)
    spans = np.frombuffer(body, SPAN, steps * header.rows).reshape(steps, header.rows)
    if problem := _problem(header, spans):
        raise damaged_file(path, problem)
    return Track(header, by_first(spans, clocks[header.process], header.scale))


def _problem(header: SpansHeader, spans: Spans) -> str:
    """Return the first inconsistency of spans; empty without any."""
    if not len(spans):
        return ""
    first, steps = spans[0], spans["step"]
    if any((spans[column] != first[column]).any() for column in ("op", "stage", "microbatch", "peer")):
        return "its steps have different actions"
    if not np.isin(first["op"], [*Op]).all() or np.isin(first["op"], RECEIVES).all():
        return "its actions are none that a rank can do"
    if min(first["stage"].min(), first["microbatch"].min(), first["peer"].min()) < -1:
        return "a stage, microbatch or peer is negative"
    if first["peer"].max() >= len(header.meshes):
        return f"an action has a peer beyond the {len(header.meshes)} meshes"
    if (steps != steps[:, :1]).any() or (np.diff(steps[:, 0], prepend=-1) <= 0).any():
        return "its steps do not ascend"
    if not are_clock_times(spans["start_ns"], spans["end_ns"], spans["wait_ns"]):
        return "a time is over 31 years"
    return ""


def by_first(rows: Spans, clock: ProcessClock, scale: float = 1.0) -> Spans:
    """Convert spans to the clock of process 0, and to the modelled time of a dry run."""
    if clock.same_host and scale == 1:
        return rows
    rows = rows.copy()
    for column in ("start_ns", "end_ns"):
        rows[column] = clock.to_first(rows[column]) / scale
    if scale != 1:
        rows["wait_ns"] = rows["wait_ns"] / scale
    return rows
