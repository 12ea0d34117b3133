"""All that was recorded of a run, read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.errors import RunError
from meshwave.engine.program.action import RECEIVES
from meshwave.engine.program.timeline import Source, Timeline
from meshwave.engine.run_files import damaged_file, files_by_process
from meshwave.engine.runs.recording.clocks import Clocks, read_clocks
from meshwave.engine.runs.recording.memory import MeasuredMemory, read_memory
from meshwave.engine.runs.recording.spans import Spans, SpansHeader, Track, read_track
from meshwave.engine.runs.recording.timeline import joined

SLOW = 1.5
"""So many times the usual length of a step, and right after the first one, a step still warms up."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Recording:
    """The spans of a run, a track a rank: the first process of each mesh speaks for it.

    All times are by the clock of process 0, and those of a rehearsal are what they stand for.
    """

    tracks: Mapping[int, Track]  # by rank; a rank that has not written yet has none
    clocks: Clocks = field(default_factory=Clocks)
    memory: Mapping[int, MeasuredMemory] = field(default_factory=dict)  # by process
    folder: Path = Path()

    @property
    def _header(self) -> SpansHeader:
        return next(iter(self.tracks.values())).header

    @property
    def digest(self) -> str:
        """Of the program that was run."""
        return self._header.digest

    @property
    def source(self) -> Source:
        return self._header.source

    @property
    def scale(self) -> float:
        """How many times as long as what it stands for a rehearsal takes; 1 for a run."""
        return self._header.scale

    @property
    def knows_arrivals(self) -> bool:
        """Whether the end of a RECV is when the message was there, also where nobody waited for it."""
        return self._header.arrivals

    @property
    def meshes(self) -> tuple[str, ...]:
        return self._header.meshes

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The recorded steps that every rank has finished, ascending."""
        if not self.tracks or len(self.tracks) < len(self.meshes):
            return ()
        finished = [set(track.steps.tolist()) for track in self.tracks.values()]
        return tuple(sorted(set.intersection(*finished)))

    @cached_property
    def makespans(self) -> Floats:
        """[steps] seconds from the earliest start to the latest end over all ranks."""
        if not self.steps:
            return np.empty(0)
        shown = [track.at(self.steps)[:, ~np.isin(track.spans["op"][0], RECEIVES)] for track in self.tracks.values()]
        start = np.min([spans["start_ns"].min(axis=1) for spans in shown], axis=0)
        end = np.max([spans["end_ns"].max(axis=1) for spans in shown], axis=0)
        seconds: Floats = (end - start) / 1e9
        return seconds

    @cached_property
    def timed(self) -> tuple[int, ...]:
        """The steps that say how long a step takes: without those apart, such as one whose memory was counted, and
        without those that warm up where others are left: the first, and what follows it that is as slow."""
        apart = self._header.apart if self.steps else ()
        steps = [step for step in self.steps if step not in apart] or list(self.steps)
        took = dict(zip(self.steps, self.makespans.tolist(), strict=True))
        later = sorted(took[step] for step in steps[len(steps) // 2 :])
        usual = later[len(later) // 2] if later else 0.0
        first = min(1, len(steps) - 1)
        while 0 < first < len(steps) // 2 and took[steps[first]] > SLOW * usual:
            first += 1
        return tuple(steps[max(first, 0) :])

    @property
    def warm_up(self) -> int:
        """How many of the recorded steps came before the first that counts."""
        return self.steps.index(self.timed[0]) if self.timed else 0

    @property
    def seconds(self) -> Floats:
        """[timed steps] how long each took."""
        found: Floats = self.makespans[np.searchsorted(self.steps, self.timed)]
        return found

    @property
    def typical_step(self) -> int:
        """The step of median makespan, of those that are timed.

        Raises:
            RunError: no step was finished by all ranks yet.
        """
        if not self.steps:
            raise RunError("no training step has been recorded by all ranks yet")
        by_makespan = np.argsort(self.seconds, kind="stable")
        return self.timed[int(by_makespan[(len(by_makespan) - 1) // 2])]

    def rows(self, steps: Sequence[int]) -> Spans:
        """[steps, rows] the spans of some steps, for every row of the program that was run."""
        return np.concatenate([self.tracks[rank].at(steps) for rank in sorted(self.tracks)], axis=1)

    def timeline(self, step: int | None = None) -> Timeline:
        """The timeline of a step, of the typical one if none is named.

        Raises:
            RunError: that step was not finished by all ranks.
        """
        if step is None:
            return self._typical
        if step not in self.steps:
            raise RunError(f"step {step} was not recorded by all ranks; there are {len(self.steps)} whole steps")
        found = joined([self.tracks[rank] for rank in sorted(self.tracks)], step)
        return replace(found, doubt_s=self.clocks.uncertainty_s / self.scale)

    @cached_property
    def _typical(self) -> Timeline:
        return self.timeline(self.typical_step)


def read_recording(folder: Path | str) -> Recording:
    """Read what the processes of a run have recorded so far; none of it need be complete.

    Raises:
        RunFolderError: a file is of another version, or damaged.
    """
    folder = Path(folder)
    speakers: dict[int, Track] = {}
    clocks = read_clocks(folder)
    files = files_by_process(folder, "spans", ".bin")
    tracks = {process: track for process, path in files.items() if (track := read_track(path, clocks)) is not None}
    for process, track in tracks.items():
        if _run_of(track) != _run_of(next(iter(tracks.values()))):
            raise damaged_file(files[process], "it is of another run than the others")
        speakers.setdefault(track.header.rank, track)
    return Recording(speakers, clocks, read_memory(folder), folder)


def _run_of(track: Track) -> tuple[object, ...]:
    """All that the files of one run have in common."""
    header = track.header
    return header.digest, header.source, header.meshes, header.scale, header.arrivals
