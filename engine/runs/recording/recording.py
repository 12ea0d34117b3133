"""Recording of a run, read from the run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.findings import RunRefusal
from meshwave.engine.program.action import RECEIVES
from meshwave.engine.program.timeline import Source, Timeline
from meshwave.engine.run_files import damaged_file, files_by_process
from meshwave.engine.runs.recording.clocks import Clocks, read_clocks
from meshwave.engine.runs.recording.memory import MeasuredMemory, read_memory
from meshwave.engine.runs.recording.spans import Spans, SpansHeader, Track, read_track
from meshwave.engine.runs.recording.timeline import step_timeline

WARM_UP_RATIO = 1.5
"""A step after the first one counts as warm-up if it takes longer than this factor times the median."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Recording:
    """Recorded spans of a run, with one track per rank: that of the first process of its mesh.

    All times are on the clock of process 0; those of a dry run are modelled times.
    """

    tracks: Mapping[int, Track]  # by rank; ranks without recorded steps are absent
    clocks: Clocks = field(default_factory=Clocks)
    memory: Mapping[int, MeasuredMemory] = field(default_factory=dict)  # by process
    folder: Path = Path()
    processes: Mapping[int, Track] = field(default_factory=dict)
    """Tracks of all processes."""

    @property
    def _header(self) -> SpansHeader:
        return next(iter(self.tracks.values())).header

    @property
    def digest(self) -> str:
        """Hash of the executed program."""
        return self._header.digest

    @property
    def source(self) -> Source:
        """Kind of run: "measured" for training, "rehearsed" for a dry run."""
        return self._header.source

    @property
    def scale(self) -> float:
        """Time-dilation factor of a dry run; 1 for training."""
        return self._header.scale

    @property
    def has_arrival_times(self) -> bool:
        """True if the end of a RECV is the arrival of the message, even if no action waited for it."""
        return self._header.arrivals

    @property
    def meshes(self) -> tuple[str, ...]:
        """Mesh names of all ranks."""
        return self._header.meshes

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Numbers of the recorded steps that every rank has completed, in ascending order."""
        if not self.tracks or len(self.tracks) < len(self.meshes):
            return ()
        finished = [set(track.steps.tolist()) for track in self.tracks.values()]
        return tuple(sorted(set.intersection(*finished)))

    @cached_property
    def makespans(self) -> Floats:
        """Seconds from the earliest start to the latest end over all ranks, ``[steps]``."""
        if not self.steps:
            return np.empty(0)
        shown = [
            track.step_spans(self.steps)[:, ~np.isin(track.spans["op"][0], RECEIVES)] for track in self.tracks.values()
        ]
        start = np.min([spans["start_ns"].min(axis=1) for spans in shown], axis=0)
        end = np.max([spans["end_ns"].max(axis=1) for spans in shown], axis=0)
        seconds: Floats = (end - start) / 1e9
        return seconds

    @cached_property
    def _steps_apart(self) -> frozenset[int]:
        """Numbers of the recorded steps with additional work; empty if there are no others."""
        apart = frozenset(self._header.apart).intersection(self.steps) if self.steps else frozenset()
        return apart if len(apart) < len(self.steps) else frozenset()

    @cached_property
    def timed_steps(self) -> tuple[int, ...]:
        """Numbers of the steps that count for the step time.

        Steps with additional work, such as measuring memory, are excluded. So are warm-up steps, unless nothing else is
        left: the first step, and slow steps right after it.
        """
        steps = [step for step in self.steps if step not in self._steps_apart]
        took = dict(zip(self.steps, self.makespans.tolist(), strict=True))
        later = sorted(took[step] for step in steps[len(steps) // 2 :])
        usual = later[len(later) // 2] if later else 0.0
        first = min(1, len(steps) - 1)
        while 0 < first < len(steps) // 2 and took[steps[first]] > WARM_UP_RATIO * usual:
            first += 1
        return tuple(steps[max(first, 0) :])

    @property
    def warm_up(self) -> int:
        """Number of recorded steps before the first timed one, except those with additional work."""
        return len(self.steps) - len(self.timed_steps) - self.memory_steps

    @property
    def memory_steps(self) -> int:
        """Number of steps that are not timed because they had additional work, namely measuring memory."""
        return len(self._steps_apart)

    @property
    def seconds(self) -> Floats:
        """Duration of each timed step in seconds, ``[timed steps]``."""
        found: Floats = self.makespans[np.searchsorted(self.steps, self.timed_steps)]
        return found

    @property
    def typical_step(self) -> int:
        """Number of the timed step with the median makespan.

        Raises:
            RunError: not all ranks have recorded a step yet.
        """
        if not self.steps:
            raise RunRefusal("no_recorded_step")
        by_makespan = np.argsort(self.seconds, kind="stable")
        return self.timed_steps[int(by_makespan[(len(by_makespan) - 1) // 2])]

    def rows(self, steps: Sequence[int]) -> Spans:
        """Return the spans of the given steps for every row of the executed program, ``[steps, rows]``."""
        return np.concatenate([self.tracks[rank].step_spans(steps) for rank in sorted(self.tracks)], axis=1)

    def timeline(self, step: int | None = None) -> Timeline:
        """Return the timeline of a step, by default of :attr:`typical_step`.

        Raises:
            RunError: the step was not recorded by all ranks.
        """
        if step is None:
            return self._typical_timeline
        if step not in self.steps:
            raise RunRefusal("step_not_recorded", {"step": step, "count": len(self.steps)})
        found = step_timeline([self.tracks[rank] for rank in sorted(self.tracks)], step)
        return replace(found, doubt_s=self.clocks.uncertainty_s / self.scale)

    @cached_property
    def _typical_timeline(self) -> Timeline:
        return self.timeline(self.typical_step)


def read_recording(folder: Path | str) -> Recording:
    """Read the recording of a run; the files of an active run may be incomplete.

    Raises:
        RunFolderError: a file is of another version, or damaged.
    """
    folder = Path(folder)
    by_rank: dict[int, Track] = {}
    clocks = read_clocks(folder)
    files = files_by_process(folder, "spans", ".bin")
    tracks = {process: track for process, path in files.items() if (track := read_track(path, clocks)) is not None}
    for process, track in tracks.items():
        if _run_key(track) != _run_key(next(iter(tracks.values()))):
            raise damaged_file(files[process], "it belongs to another run than the other files")
        by_rank.setdefault(track.header.rank, track)
    return Recording(by_rank, clocks, read_memory(folder), folder, tracks)


def _run_key(track: Track) -> tuple[object, ...]:
    """Return the values by which files are recognized as belonging to the same run."""
    header = track.header
    return header.digest, header.source, header.meshes, header.scale, header.arrivals
