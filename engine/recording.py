"""What a run measured, on disk: written a step at a time by each process, read back as timelines.

There are spans of actions, of which one process a rank speaks for all, and inside some of them the
steps of expert layers, of every process; besides them how the clocks of the processes stand to each
other, and the most memory that each of them held.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.errors import RunError
from engine.program.action import Action, Op
from engine.program.program import Program
from engine.timeline import Source, Timeline
from engine.units import quantity

FORMAT = "meshwave-spans/1"
Spans = NDArray[np.void]  # of SPAN
Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]

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

STEPS_FORMAT = "meshwave-steps/1"
LayerSteps = NDArray[np.void]  # of STEP

STEP = np.dtype(
    [
        ("step", "<i4"),  # of training
        ("layer", "<i4"),  # of the model
        ("op", "<i2"),  # its place among the header's ops
        ("way", "<i2"),  # of Way
        ("chunk", "<i4"),  # -1 where all slots go at once
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),  # what it is for was in hand
    ]
)


class Way(IntEnum):
    """What an expert layer is played for."""

    FORWARD = 0
    BACKWARD = 1
    WEIGHTS = 2  # their gradients, where these come later than those of the input


_RECEIVES = (Op.RECV_F, Op.RECV_B)
_SENDS = (Op.SEND_F, Op.SEND_B)
AT_ONCE_NS = 50_000
"""A wait shorter than this is the cost of asking: the input was there."""
SLOW = 1.5
"""So many times the usual length of a step, and right after the first one, a step still warms up."""


class Recorder:
    """Appends the spans of one process to ``spans-<process>.bin``, one write a step.

    The file is a line of JSON and then records of ``SPAN``, as many a step as the rank has
    actions. Cut short at any byte it is still readable, up to its last whole step.
    """

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
            "mesh": meshes[rank],
            "meshes": list(meshes),
            "stages": program.stages,
            "microbatches": program.microbatches,
            "rows": len(self._spans),
            "fused": np.flatnonzero(program.fused[rows]).tolist(),
            "clock": "perf_counter_ns",
            "apart": list(apart),
        }
        if scale != 1:
            header["scale"] = scale
        if arrivals:
            header["arrivals"] = True
        others = [[row, other] for row, other in enumerate(program.other[rows].tolist()) if other >= 0]
        if others:
            header["others"] = others
        self._file = (folder / f"spans-{process}.bin").open("wb", buffering=0)
        self._file.write(json.dumps(header).encode() + b"\n")

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
        self._file.write(self._spans.tobytes())

    def close(self) -> None:
        self._file.close()


class StepsRecorder:
    """Appends the steps of the expert layers of one process to ``steps-<process>.bin``, one write a step of
    training; the file is a line of JSON and then records of ``STEP``."""

    def __init__(self, folder: Path, process: int, ops: Sequence[str]) -> None:
        """``ops`` are the names of all that a layer can do."""
        self._file = (folder / f"steps-{process}.bin").open("wb", buffering=0)
        header = {"format": STEPS_FORMAT, "process": process, "ops": list(ops), "clock": "perf_counter_ns"}
        self._file.write(json.dumps(header).encode() + b"\n")

    @staticmethod
    def is_due(step: int) -> bool:
        """Whether to record the inside of ``step``: of the first ten, then of nine in every tenfold more.

        There is much more inside a step than there are actions; every process picks the same ones.
        """
        return bool(step % 10 ** (len(str(step)) - 1) == 0)

    def write(self, step: int, found: LayerSteps) -> None:
        """Append what was found in ``step``."""
        found["step"] = step
        self._file.write(found.tobytes())

    def close(self) -> None:
        self._file.close()


def write_routing(folder: Path, process: int, routed: Mapping[int, Sequence[float]]) -> None:
    """Write how many tokens a process has sent to each expert so far, by layer; nothing where there are no experts."""
    if routed:
        part = folder / f"routing-{process}.part"
        part.write_text(json.dumps(routed), "utf-8")
        part.rename(part.with_suffix(".json"))


def read_routing(folder: Path | str) -> dict[int, tuple[float, ...]]:
    """By layer of the model how often each expert was chosen in a run, as shares of 1; empty where none is known.

    Raises:
        RunError: what was written is damaged.
    """
    found: dict[int, Floats] = {}
    for path in sorted(Path(folder).glob("routing-*.json")):
        try:
            for layer, counts in json.loads(path.read_text("utf-8")).items():
                found[int(layer)] = found.get(int(layer), 0) + np.array(counts, np.float64)
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{path.name} is damaged: {error!r}") from None
    return {layer: tuple((counts / counts.sum()).tolist()) for layer, counts in sorted(found.items()) if counts.sum()}


# ---- clocks ----

CLOCKS_FORMAT = "meshwave-clocks/1"


class Sighting(NamedTuple):
    """How a clock stood to that of process 0, from the message that was answered soonest."""

    at_ns: int  # by that clock
    ahead_ns: int  # of the clock of process 0
    round_trip_ns: int


@dataclass(frozen=True)
class ProcessClock:
    """The clock of one process: that of process 0 too where both are on one host."""

    same_host: bool = True
    seen: tuple[Sighting, ...] = ()  # before the run, and after it

    @property
    def uncertainty_ns(self) -> float:
        """The answer was given somewhere in the round trip, so that the truth is within half of it; of one
        clock there is no doubt."""
        return 0.0 if self.same_host else max((each.round_trip_ns / 2 for each in self.seen), default=0.0)

    def to_first(self, ns: Int64s) -> Int64s:
        """Times of this clock by that of process 0; between two sightings the clock drifts evenly."""
        if self.same_host or not self.seen:
            return ns
        at, ahead, _ = zip(*self.seen, strict=True)
        by_first: Int64s = ns - np.interp(ns, at, ahead).astype(np.int64)
        return by_first


@dataclass(frozen=True)
class Clocks:
    """The clocks of all processes of a run; empty where they were not compared."""

    of: tuple[ProcessClock, ...] = ()

    def __getitem__(self, process: int) -> ProcessClock:
        return self.of[process] if process < len(self.of) else ProcessClock()

    @property
    def uncertainty_s(self) -> float:
        """How far two spans of different processes may be shifted against each other."""
        return max((clock.uncertainty_ns for clock in self.of), default=0.0) / 1e9

    @property
    def words(self) -> str:
        """How the clocks were aligned and how well, in a sentence; empty where they were not compared."""
        if len(self.of) < 2:
            return ""
        others = [clock for clock in self.of if not clock.same_host]
        if others:
            ahead = max(abs(each.ahead_ns) for clock in others for each in clock.seen)
            return (
                f"the clocks of {len(others)} of {len(self.of)} processes, up to {quantity(ahead / 1e9, 's')} apart, "
                f"were aligned to within {quantity(self.uncertainty_s, 's')}"
            )
        seen = [each for clock in self.of for each in clock.seen]
        off, trip = (max((abs(each[column]) for each in seen), default=0) / 1e9 for column in (1, 2))
        return (
            f"all processes read one clock (compared all the same: {quantity(off, 's')} apart at most, "
            f"and messages tell no better than {quantity(trip / 2, 's')})"
        )


def write_clocks(folder: Path, clocks: Clocks) -> None:
    """Keep how the clocks stand, whole or not at all."""
    processes = [{"same_host": clock.same_host, "seen": [list(each) for each in clock.seen]} for clock in clocks.of]
    _write_whole(folder / "clocks.json", {"format": CLOCKS_FORMAT, "processes": processes})


def read_clocks(folder: Path) -> Clocks:
    """
    Raises:
        RunError: what was written is damaged.
    """
    found = _read_whole(folder / "clocks.json", CLOCKS_FORMAT)
    if found is None:
        return Clocks()
    try:
        clocks = (
            ProcessClock(bool(each["same_host"]), tuple(Sighting(*map(int, seen)) for seen in each["seen"]))
            for each in found["processes"]
        )
        return Clocks(tuple(clocks))
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"clocks.json is damaged: {error!r}") from None


# ---- memory ----

MEMORY_FORMAT = "meshwave-memory/1"
WITHIN = "within the step"
"""The category of all that comes and goes: gradients, activations, messages and what an operation needs."""


@dataclass(frozen=True)
class MeasuredMemory:
    """The most that torch had allocated on the device of one process at once, in one step."""

    step: int
    peak_bytes: float
    by_category: Mapping[str, float]  # at that moment; those of a prediction, as far as they can be told apart
    how: str  # it was found out

    def write(self, folder: Path, process: int) -> None:
        _write_whole(folder / f"memory-{process}.json", {"format": MEMORY_FORMAT, **asdict(self)})


def read_memory(folder: Path) -> dict[int, MeasuredMemory]:
    """By process what was measured of its memory; those that have measured none are left out.

    Raises:
        RunError: what was written is damaged.
    """
    found = {}
    for path in folder.glob("memory-*.json"):
        document = _read_whole(path, MEMORY_FORMAT) or {}
        try:
            categories = {str(kind): float(size) for kind, size in document["by_category"].items()}
            peak, process = float(document["peak_bytes"]), int(path.stem.partition("-")[2])
            found[process] = MeasuredMemory(int(document["step"]), peak, categories, str(document["how"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{path.name} is damaged: {error!r}") from None
    return dict(sorted(found.items()))


def _write_whole(path: Path, document: Mapping[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document) + "\n", "utf-8")
    part.rename(path)


def _read_whole(path: Path, form: str) -> dict[str, Any] | None:
    """A document of a format; None where there is none.

    Raises:
        RunError: it is damaged, or of another version.
    """
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != form:
            raise RunError(f"{path.name} is of format {document['format']!r}; this version reads {form!r}")
        return dict(document)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path.name} is damaged: {error!r}") from None


# ---- spans ----


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


@dataclass(frozen=True, eq=False)
class Recording:
    """The spans of a run, a track a rank: the first process of each mesh speaks for it.

    All times are by the clock of process 0, and those of a rehearsal are what they stand for.
    """

    tracks: Mapping[int, Track]  # by rank; a rank that has not written yet has none
    clocks: Clocks = field(default_factory=Clocks)
    memory: Mapping[int, MeasuredMemory] = field(default_factory=dict)  # by process
    folder: Path = Path()

    @cached_property
    def _header(self) -> Mapping[str, Any]:
        return next(iter(self.tracks.values())).header

    @property
    def digest(self) -> str:
        """Of the program that was run."""
        return str(self._header["digest"])

    @property
    def source(self) -> Source:
        found: Source = self._header["source"]
        return found

    @property
    def scale(self) -> float:
        """How many times as long as what it stands for a rehearsal takes; 1 for a run."""
        return float(self._header.get("scale", 1.0))

    @property
    def knows_arrivals(self) -> bool:
        """Whether the end of a RECV is when the message was there, also where nobody waited for it."""
        return bool(self._header.get("arrivals", False))

    @property
    def meshes(self) -> tuple[str, ...]:
        return tuple(self._header["meshes"])

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
        shown = [track.at(self.steps)[:, ~_is_op(track.spans[0], *_RECEIVES)] for track in self.tracks.values()]
        start = np.min([spans["start_ns"].min(axis=1) for spans in shown], axis=0)
        end = np.max([spans["end_ns"].max(axis=1) for spans in shown], axis=0)
        seconds: Floats = (end - start) / 1e9
        return seconds

    @cached_property
    def timed(self) -> tuple[int, ...]:
        """The steps that say how long a step takes: without those apart, such as one whose memory was counted, and
        without those that warm up where others are left: the first, and what follows it that is as slow."""
        apart = set(self._header.get("apart", ())) if self.steps else set()
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

        A transfer lasts from its SEND to when its receiver had the tensor in hand. A message that
        came while its receiver was computing is in hand when the receiver turns to it.

        Raises:
            RunError: that step was not finished by all ranks.
        """
        return self._typical if step is None else self._timeline(step)

    @cached_property
    def _typical(self) -> Timeline:
        return self._timeline(self.typical_step)

    def _timeline(self, step: int) -> Timeline:
        if step not in self.steps:
            raise RunError(f"step {step} was not recorded by all ranks; there are {len(self.steps)} whole steps")
        found = _timeline([self.tracks[rank] for rank in sorted(self.tracks)], step, self._header)
        return replace(found, doubt_s=self.clocks.uncertainty_s / self.scale)


def read_recording(folder: Path | str) -> Recording:
    """Read what the processes of a run have recorded so far; none of it need be complete.

    Raises:
        RunError: a file is of another version, or damaged.
    """
    folder = Path(folder)
    speakers: dict[int, Track] = {}
    clocks = read_clocks(folder)
    for path in folder.glob("spans-*.bin"):
        track = _read_track(path, clocks)
        if track is not None:
            rank = track.header["rank"]
            if rank not in speakers or track.header["process"] < speakers[rank].header["process"]:
                speakers[rank] = track
    return Recording(speakers, clocks, read_memory(folder), folder)


# ---- inside an action ----


@dataclass(frozen=True)
class MeasuredInside:
    """One action of a rank from within, on some of its processes; of one step of training."""

    step: int
    ops: tuple[str, ...]  # what the numbers of ops mean
    start_ns: tuple[int, ...]  # of the action, on each process
    end_ns: tuple[int, ...]
    steps: tuple[LayerSteps, ...]  # of the expert layers, on each process, as they began


def read_inside(folder: Path | str, processes: Sequence[int], action: Action) -> MeasuredInside:
    """The inside of an action in the recorded step in which it took the median time on the first of ``processes``.

    Raises:
        RunError: no step of training was recorded with its inside by all of them.
    """
    folder = Path(folder)
    clocks = read_clocks(folder)
    tracks = [_read_track(folder / f"spans-{process}.bin", clocks) for process in processes]
    insides = [_read_steps(folder / f"steps-{process}.bin", clocks) for process in processes]
    known = [track for track in tracks if track is not None]
    if not known or len(known) < len(tracks):
        raise RunError("not all processes of this mesh have recorded a step")
    due = [set(track.steps[[StepsRecorder.is_due(step) for step in track.steps.tolist()]].tolist()) for track in known]
    apart = set(known[0].header.get("apart", ()))
    whole = sorted(set.intersection(*due) - apart) or sorted(set.intersection(*due))
    at = [_row_of(track, action) for track in known]
    if not whole:
        raise RunError("no step was recorded with the inside of its actions")
    took = known[0].at(whole)[:, at[0]]
    order = np.argsort(took["end_ns"] - took["start_ns"], kind="stable")
    order = order[order > 0] if len(order) > 2 else order  # the first step warms up
    step = whole[int(order[(len(order) - 1) // 2])]
    spans = [track.at([step])[0, row] for track, row in zip(known, at, strict=True)]
    shares = [bool(_shares_its_slot(track)[row]) for track, row in zip(known, at, strict=True)]
    within = [
        _within(rows[rows["step"] == step], span, action.op, alone=not shared)
        for (_, rows), span, shared in zip(insides, spans, shares, strict=True)
    ]
    start, end = (tuple(int(span[column]) for span in spans) for column in ("start_ns", "end_ns"))
    return MeasuredInside(step, insides[0][0], start, end, tuple(within))


def _row_of(track: Track, action: Action) -> int:
    """Where an action stands among those of a track."""
    rows = track.spans[0]
    same = (rows["op"] == action.op) & (rows["stage"] == action.stage) & (rows["microbatch"] == action.microbatch)
    if not same.any():
        raise RunError(f"the run has no {action} on this mesh")
    return int(np.argmax(same))


def _shares_its_slot(track: Track) -> NDArray[np.bool_]:
    """[rows] whether a forward and a backward share their time there."""
    shares: NDArray[np.bool_] = track.fused | np.append(track.fused[1:], False)
    return shares


def _within(rows: LayerSteps, span: Any, op: Op, *, alone: bool) -> LayerSteps:
    """The steps that were played in a span; in a slot that two actions share those of this one."""
    inside = (rows["start_ns"] >= span["start_ns"]) & (rows["end_ns"] <= span["end_ns"])
    if not alone:
        inside &= (rows["way"] == Way.FORWARD) == (op == Op.F)
    found: LayerSteps = rows[inside]
    return np.sort(found, order="start_ns", kind="stable")


def _read_steps(path: Path, clocks: Clocks) -> tuple[tuple[str, ...], LayerSteps]:
    """The names of what a layer does, and what one process has recorded of it.

    Raises:
        RunError: it is of another version, or no such file, or there is none.
    """
    try:
        header_line, _, body = path.read_bytes().partition(b"\n")
        header = json.loads(header_line)
        if header["format"] != STEPS_FORMAT:
            raise RunError(f"{path.name} is of format {header['format']!r}; this version reads {STEPS_FORMAT!r}")
        found = np.frombuffer(body, STEP, len(body) // STEP.itemsize)
        return tuple(header["ops"]), _by_first(found, clocks[header["process"]])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path.name} is damaged: {error!r}") from None


def _by_first(rows: Spans, clock: ProcessClock, scale: float = 1.0) -> Spans:
    """The same by the clock of process 0, in the time that a rehearsal of that scale stands for."""
    if clock.same_host and scale == 1:
        return rows
    rows = rows.copy()
    for column in ("start_ns", "end_ns"):
        rows[column] = clock.to_first(rows[column]) / scale
    if scale != 1:
        rows["wait_ns"] = rows["wait_ns"] / scale
    return rows


def _read_track(path: Path, clocks: Clocks) -> Track | None:
    """One process's file, or None if it was cut off before its first step.

    Raises:
        RunError: it is of another version, or no such file.
    """
    try:
        header_line, newline, body = path.read_bytes().partition(b"\n")
        if not newline:
            return None
        header = json.loads(header_line)
        if header["format"] != FORMAT:
            raise RunError(f"{path.name} is of format {header['format']!r}; this version reads {FORMAT!r}")
        rows = header["rows"]
        steps = len(body) // (SPAN.itemsize * rows) if rows else 0
        spans = np.frombuffer(body, SPAN, steps * rows).reshape(steps, rows)
        return Track(header, _by_first(spans, clocks[header["process"]], float(header.get("scale", 1.0))))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path.name} is damaged: {error!r}") from None


def _timeline(tracks: Sequence[Track], step: int, header: Mapping[str, Any]) -> Timeline:
    """Join what the ranks wrote down of one step."""
    blocks = [track.at([step])[0] for track in tracks]
    spans = np.concatenate(blocks)
    rank = np.repeat(np.arange(len(blocks), dtype=np.int32), [len(block) for block in blocks])
    fused = np.concatenate([track.fused for track in tracks])
    other = np.concatenate([track.other for track in tracks])
    receives = np.flatnonzero(_is_op(spans, *_RECEIVES)).tolist()
    in_hand = {_message(spans[row], other[row]): spans["end_ns"][row] for row in receives}
    shown = ~_is_op(spans, *_RECEIVES)
    spans, rank, fused, other = spans[shown], rank[shown], fused[shown], other[shown]
    end = spans["end_ns"].copy()
    for row in np.nonzero(_is_op(spans, *_SENDS))[0].tolist():
        end[row] = in_hand.get(_message(spans[row], other[row]), end[row])
    zero = spans["start_ns"].min()
    return Timeline(
        source=header["source"],
        digest=header["digest"],
        meshes=tuple(header["meshes"]),
        rank=rank,
        peer=spans["peer"].astype(np.int32),
        op=spans["op"].astype(np.int8),
        stage=spans["stage"].astype(np.int32),
        microbatch=spans["microbatch"].astype(np.int32),
        fused=fused,
        start=(spans["start_ns"] - zero) / 1e9,
        end=(end - zero) / 1e9,
        cause=_causes(spans, rank, end, fused, other),
        other=other,
    )


def _is_op(spans: Spans, *ops: Op) -> NDArray[np.bool_]:
    return np.isin(spans["op"], ops)


_FORWARD = (Op.F, Op.SEND_F, Op.RECV_F)

Message = tuple[bool, int, int, int]
"""Forward or not, the stages that it comes from and goes to, and its microbatch."""


def _message(span: Any, other: int) -> Message:
    """Names what a SEND sends and a RECV receives."""
    op, stage = Op(int(span["op"])), int(span["stage"])
    onward = 1 if op in _FORWARD else -1
    sent = op in _SENDS
    end = int(other) if other >= 0 else stage + (onward if sent else -onward)
    return op in _FORWARD, *((stage, end) if sent else (end, stage)), int(span["microbatch"])


def _causes(
    spans: Spans, rank: NDArray[np.int32], end: Int64s, fused: NDArray[np.bool_], other: NDArray[np.int32]
) -> Int64s:
    """[spans] what each waited for: what its rank stood still for, or what it did before."""
    transfers = _is_op(spans, *_SENDS)
    sent = _last_for_each(spans, end, other)
    cause = np.full(len(spans), -1, np.int64)
    before, previous, reduction, at = -1, -1, -1, -1
    for row, op in enumerate(spans["op"].tolist()):
        if rank[row] != at:
            before, previous, reduction, at = -1, -1, -1, rank[row]
        if fused[row]:
            previous = before  # it began with the row before, not after it
        needed = reduction if op == Op.STEP else -1
        if op < Op.W:
            needed = sent.get((op == Op.F, int(spans["stage"][row]), int(spans["microbatch"][row])), -1)
        stood_still = needed >= 0 and (spans["wait_ns"][row] > AT_ONCE_NS or previous < 0)
        cause[row] = needed if stood_still else previous
        if op == Op.REDUCE_GRAD:  # goes on beside what follows
            reduction = row if reduction < 0 or end[row] > end[reduction] else reduction
        elif not transfers[row]:
            before, previous = previous, row
    return cause


def _last_for_each(spans: Spans, end: Int64s, other: NDArray[np.int32]) -> dict[tuple[bool, int, int], int]:
    """The transfer that came last of those to each computation: forward or not, its stage and its microbatch."""
    last: dict[tuple[bool, int, int], int] = {}
    for row in np.flatnonzero(_is_op(spans, *_SENDS)).tolist():
        forward, _, taker, mb = _message(spans[row], other[row])
        best = last.get((forward, taker, mb), -1)
        if best < 0 or end[row] > end[best]:
            last[forward, taker, mb] = row
    return last
