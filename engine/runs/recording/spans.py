"""The actions of one process: when each held its inputs, when it was done, how long it stood still before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.program import Program
from meshwave.engine.program.timeline import Source
from meshwave.engine.runs.recording.clocks import Clocks, ProcessClock
from meshwave.engine.runs.recording.files import Records, damage_told, read_records

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


class Recorder(Records):
    """Appends the spans of one process to ``spans-<process>.bin``, one write a step: as many as its rank has actions."""

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
        """Whether to record ``step``: all of the first hundred, then ninety in every tenfold more.

        A long run so fills no disk, and every process picks the same steps.
        """
        return step < 100 or step % 10 ** (len(str(step)) - 2) == 0

    def write(self, step: int, start: Int64s, end: Int64s, wait: Int64s) -> None:
        """Append a step: a value a row of the program of this rank, nanoseconds."""
        self._spans["step"] = step
        self._spans["start_ns"], self._spans["end_ns"], self._spans["wait_ns"] = start, end, wait
        self.append(self._spans)


@dataclass(frozen=True, eq=False)
class Track:
    """What one process recorded, whole steps only."""

    header: Mapping[str, Any]
    spans: Spans  # [steps, rows]

    @property
    def steps(self) -> Int64s:
        return self.spans["step"][:, 0].astype(np.int64)

    @property
    def fused(self) -> NDArray[np.bool_]:
        """[rows] whether each runs in one slot with the row before it."""
        return np.isin(np.arange(self.spans.shape[1]), self.header.get("fused", ()))

    @property
    def other(self) -> NDArray[np.int32]:
        """[rows] the stage at the other end of a message that skips stages, else -1."""
        found = np.full(self.spans.shape[1], -1, np.int32)
        for row, other in self.header.get("others", ()):
            found[row] = other
        return found

    def at(self, steps: Sequence[int]) -> Spans:
        """[steps, rows] the spans of some of its steps."""
        return self.spans[np.searchsorted(self.steps, steps)]


def read_track(path: Path, clocks: Clocks) -> Track | None:
    """One process's file, or None if it was cut off within its first line; without steps if before the first was whole.

    Raises:
        RunError: it is of another version, or damaged, or there is none.
    """
    found = read_records(path, FORMAT)
    if found is None:
        return None
    header, body = found
    with damage_told(path):
        rows = header["rows"]
        steps = len(body) // (SPAN.itemsize * rows) if rows else 0
        spans = np.frombuffer(body, SPAN, steps * rows).reshape(steps, rows)
        return Track(header, by_first(spans, clocks[header["process"]], float(header.get("scale", 1.0))))


def by_first(rows: Spans, clock: ProcessClock, scale: float = 1.0) -> Spans:
    """The same by the clock of process 0, in the time that a rehearsal of that scale stands for."""
    if clock.same_host and scale == 1:
        return rows
    rows = rows.copy()
    for column in ("start_ns", "end_ns"):
        rows[column] = clock.to_first(rows[column]) / scale
    if scale != 1:
        rows["wait_ns"] = rows["wait_ns"] / scale
    return rows
