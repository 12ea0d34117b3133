"""Stragglers of a run: slow processes, slow links, and steps that become slower over time.

A process is compared with the others of its mesh, which do the same work. Meshes and links are compared with their own
first steps. No prediction is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.document import Design
from meshwave.engine.findings import Problem
from meshwave.engine.predict.questions import Slowdown
from meshwave.engine.program.action import Op
from meshwave.engine.runs.recording import Recording
from meshwave.engine.runs.recording.spans import Track

LEAST_STEPS = 10
"""Minimum number of timed steps of a run that is examined."""
WINDOW_STEPS = 20
"""Maximum number of steps at the start, and at the end, whose medians are compared."""
SLOW_PROCESS, SLOW_MESH, SLOW_LINK, SLOW_STEPS = 1.25, 1.25, 2.0, 1.2
"""Ratios of durations above which a straggler is reported."""
LEAST_LINK_S = 1e-3
"""Minimum duration of messages that are compared, in seconds; shorter ones vary with the load of the hosts."""


def find_stragglers(recording: Recording) -> list[Problem]:
    """Return the processes, meshes and links that slow a run down, most specific first; empty if it has few steps."""
    steps = _common_steps(recording)
    if len(steps) < LEAST_STEPS:
        return []
    count = min(WINDOW_STEPS, len(steps) // 2)
    first, last = steps[:count], steps[-count:]
    found = [
        *_slow_processes(recording, last),
        *_slow_meshes(recording, first, last),
        *_slow_links(recording, first, last),
    ]
    return found or [*_slow_steps(recording, count)]


def _common_steps(recording: Recording) -> list[int]:
    """Return the timed steps that all processes have recorded; during a run, a slow process is behind the others."""
    steps = np.array(recording.timed_steps, np.int64)
    for track in recording.processes.values():
        steps = steps[np.isin(steps, track.steps)]
    return [*map(int, steps)]


def straggler_meshes(straggler: Problem) -> tuple[str, ...]:
    """Return the names of the meshes of a straggler: both ends of a link, empty for steps that become slower."""
    return tuple(straggler.params[key] for key in ("mesh", "source", "target") if key in straggler.params)


def straggler_slowdown(straggler: Problem, design: Design) -> Slowdown | None:
    """Return the slowdown that simulates a straggler; None for steps that become slower, which have no location."""
    params = straggler.params
    match straggler.code:
        case "slow_process":
            devices = [device for mesh in design.meshes for device in mesh.devices]
            return Slowdown({devices[params["process"]]: params["ratio"]})
        case "slow_mesh":
            slow = next(mesh for mesh in design.meshes if mesh.name == params["mesh"])
            return Slowdown({slow.devices[0]: params["ratio"]})
        case "slow_link_of_run":
            return Slowdown(links={(params["source"], params["target"]): params["ratio"]})
    return None


def _slow_processes(recording: Recording, steps: Sequence[int]) -> Iterator[Problem]:
    by_rank: dict[int, dict[int, float]] = defaultdict(dict)
    for process, track in recording.processes.items():
        by_rank[track.header.rank][process] = _compute_s(track, steps)
    for rank, seconds in by_rank.items():
        for process, own in seconds.items():
            others = [each for other, each in seconds.items() if other != process]
            ratio = own / max(float(np.median(others)), 1e-9) if others else 0.0
            if ratio > SLOW_PROCESS:
                yield _straggler_problem(
                    "slow_process", rank, mesh=recording.meshes[rank], process=process, ratio=ratio
                )


def _slow_meshes(recording: Recording, first: Sequence[int], last: Sequence[int]) -> Iterator[Problem]:
    for rank, track in sorted(recording.tracks.items()):
        ratio = _compute_s(track, last) / max(_compute_s(track, first), 1e-9)
        if ratio > SLOW_MESH:
            yield _straggler_problem("slow_mesh", rank, mesh=recording.meshes[rank], ratio=ratio)


def _slow_links(recording: Recording, first: Sequence[int], last: Sequence[int]) -> Iterator[Problem]:
    before, after = _link_seconds(recording, first), _link_seconds(recording, last)
    for (rank, peer), seconds in sorted(after.items()):
        ratio = seconds / max(before[rank, peer], LEAST_LINK_S)
        if seconds > LEAST_LINK_S and ratio > SLOW_LINK:
            ends = {"source": recording.meshes[rank], "target": recording.meshes[peer]}
            yield _straggler_problem("slow_link_of_run", rank, **ends, ratio=ratio)


def _slow_steps(recording: Recording, count: int) -> Iterator[Problem]:
    seconds = recording.seconds
    before, after = float(np.median(seconds[:count])), float(np.median(seconds[-count:]))
    if before > 0 and after / before > SLOW_STEPS:
        params = {"before_s": before, "after_s": after, "ratio": after / before}
        yield Problem("", "slower_steps", params, "warning")


def _straggler_problem(code: str, rank: int, **params: object) -> Problem:
    return Problem(f"meshes[{rank}]", code, params, "warning")


def _compute_s(track: Track, steps: Sequence[int]) -> float:
    """Return the median computing time of a process per step, in seconds."""
    spans = track.step_spans(steps)
    computes = spans["op"][0] <= Op.W
    taken: NDArray[np.int64] = (spans["end_ns"] - spans["start_ns"])[:, computes].sum(axis=1)
    return float(np.median(taken)) / 1e9


def _link_seconds(recording: Recording, steps: Sequence[int]) -> Mapping[tuple[int, int], float]:
    """Return the median message duration of each link in seconds, by source and destination rank."""
    ranks, links, seconds = len(recording.meshes), [], []
    for step in steps:
        timeline = recording.timeline(step)
        sent = timeline.is_transfer
        links.append(timeline.rank[sent].astype(np.int64) * ranks + timeline.peer[sent])
        seconds.append((timeline.end - timeline.start)[sent])
    link, taken = np.concatenate(links), np.concatenate(seconds)
    return {divmod(number, ranks): float(np.median(taken[link == number])) for number in np.unique(link).tolist()}
