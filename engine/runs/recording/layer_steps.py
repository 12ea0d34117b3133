"""Recorded steps of expert layers inside the actions of each process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import RootModel

from meshwave.engine.findings import RunRefusal
from meshwave.engine.program.action import Action, Op
from meshwave.engine.run_files import (
    Count,
    NotNegative,
    Records,
    RunFile,
    are_clock_times,
    damaged_file,
    files_by_process,
    read_document,
    read_records,
    write_document,
)
from meshwave.engine.runs.recording.clocks import Clocks, read_clocks
from meshwave.engine.runs.recording.spans import Track, align_spans, read_track

FORMAT = "meshwave-steps/1"
LayerSteps = NDArray[np.void]  # size of STEP in bytes

STEP = np.dtype(
    [
        ("step", "<i4"),  # training step
        ("layer", "<i4"),  # layer of the model
        ("op", "<i2"),  # index of the operation in the header
        ("way", "<i2"),  # a LayerPass
        ("chunk", "<i4"),  # chunk of the step; -1 if it is not divided
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),  # the result was available
    ]
)


class LayerPass(IntEnum):
    """Pass of an expert layer."""

    FORWARD = 0
    BACKWARD = 1
    WEIGHTS = 2  # weight gradients that are computed separately from the input gradients


class _Header(RunFile):
    format: Literal["meshwave-steps/1"]
    process: Count
    ops: tuple[str, ...]


class StepsRecorder(Records):
    """Writer of the expert-layer steps of one process: ``steps-<process>.bin``, with one write per training step."""

    def __init__(self, folder: Path, process: int, ops: Sequence[str]) -> None:
        """Open the file of a process; ``ops`` are the names of all kinds of layer steps."""
        header = {"format": FORMAT, "process": process, "ops": list(ops), "clock": "perf_counter_ns"}
        super().__init__(folder / f"steps-{process}.bin", header)

    @staticmethod
    def is_due(step: int) -> bool:
        """Return True if the layer steps of a training step are recorded: the first ten, then nine per decade.

        A training step has many more layer steps than actions. Every process selects the same training steps.
        """
        return bool(step % 10 ** (len(str(step)) - 1) == 0)

    def write(self, step: int, found: LayerSteps) -> None:
        """Append the layer steps of a training step."""
        found["step"] = step
        self.append(found)


@dataclass(frozen=True)
class MeasuredLayerSteps:
    """Layer steps inside one action of a rank, on some of its processes, in one training step."""

    step: int
    ops: tuple[str, ...]  # names of the kinds of layer steps; their index is the op
    start_ns: tuple[int, ...]  # start of the action on each process
    end_ns: tuple[int, ...]
    steps: tuple[LayerSteps, ...]  # layer steps of each process, in order of start


def read_layer_steps(folder: Path | str, processes: Sequence[int], action: Action) -> MeasuredLayerSteps:
    """Read the layer steps inside an action.

    They are from the recorded training step in which the action had its median duration on the first process.

    Raises:
        RunError: no training step was recorded with layer steps by all processes.
    """
    folder = Path(folder)
    clocks = read_clocks(folder)
    found = [read_track(folder / f"spans-{process}.bin", clocks) for process in processes]
    insides = [_read_layer_steps(folder / f"steps-{process}.bin", clocks) for process in processes]
    tracks = [track for track in found if track is not None and len(track.spans)]
    if not tracks or len(tracks) < len(found):
        raise RunRefusal("no_recorded_processes")
    at = [_action_row(track, action) for track in tracks]
    step = _median_step(tracks, at[0])
    spans = [track.step_spans([step])[0, row] for track, row in zip(tracks, at, strict=True)]
    within = [
        _layer_steps_within(rows[rows["step"] == step], span, action.op, alone=not _shares_slot(track, row))
        for (_, rows), span, track, row in zip(insides, spans, tracks, at, strict=True)
    ]
    start, end = (tuple(int(span[column]) for span in spans) for column in ("start_ns", "end_ns"))
    return MeasuredLayerSteps(step, insides[0][0], start, end, tuple(within))


def _action_row(track: Track, action: Action) -> int:
    """Return the row of an action in a track."""
    rows = track.spans[0]
    same = (rows["op"] == action.op) & (rows["stage"] == action.stage) & (rows["microbatch"] == action.microbatch)
    if not same.any():
        raise RunRefusal("no_recorded_action", {"action": str(action)})
    return int(np.argmax(same))


def _median_step(tracks: Sequence[Track], row: int) -> int:
    """Return the step, recorded by all tracks, in which a row had its median duration on the first track."""
    due = set.intersection(*({step for step in track.steps.tolist() if StepsRecorder.is_due(step)} for track in tracks))
    steps = sorted(due.difference(tracks[0].header.apart)) or sorted(due)
    if not steps:
        raise RunRefusal("no_recorded_inside")
    took = tracks[0].step_spans(steps)[:, row]
    order = np.argsort(took["end_ns"] - took["start_ns"], kind="stable")
    order = order[order > 0] if len(order) > 2 else order  # skip the first step, which is warm-up
    return int(steps[order[(len(order) - 1) // 2]])


def _shares_slot(track: Track, row: int) -> bool:
    """Return True if the action of a row shares its slot with another action."""
    return bool(track.fused[row : row + 2].any())


def _layer_steps_within(rows: LayerSteps, span: Any, op: Op, *, alone: bool) -> LayerSteps:
    """Return the layer steps within a span; in a shared slot, only those of the action ``op``."""
    inside = (rows["start_ns"] >= span["start_ns"]) & (rows["end_ns"] <= span["end_ns"])
    if not alone:
        inside &= (rows["way"] == LayerPass.FORWARD) == (op == Op.F)
    found: LayerSteps = rows[inside]
    return np.sort(found, order="start_ns", kind="stable")


def _read_layer_steps(path: Path, clocks: Clocks) -> tuple[tuple[str, ...], LayerSteps]:
    """Read the names of the layer steps, and the recorded layer steps of one process.

    Raises:
        RunFolderError: the file is missing, of another version, or damaged.
    """
    found = read_records(path, _Header)
    if found is None:
        raise damaged_file(path, "its header is incomplete")
    header, body = found
    rows = np.frombuffer(body, STEP, len(body) // STEP.itemsize)
    if not (
        np.isin(rows["op"], range(len(header.ops))) & np.isin(rows["way"], [*LayerPass]) & (rows["layer"] >= 0)
    ).all():
        raise damaged_file(path, "a step has a kind that its header does not name")
    if not are_clock_times(rows["start_ns"], rows["end_ns"]):
        raise damaged_file(path, "a time is over 31 years")
    return header.ops, align_spans(rows, clocks[header.process])


class _File(RunFile, RootModel[dict[Count, tuple[NotNegative, ...]]]):
    pass


def write_routing(folder: Path, process: int, routed: Mapping[int, Sequence[float]]) -> None:
    """Write the number of tokens that a process sent to each expert, by layer; writes nothing without experts."""
    if routed:
        write_document(folder / f"routing-{process}.json", routed)


def read_routing(folder: Path | str) -> dict[int, tuple[float, ...]]:
    """Read the share of tokens that each expert received, by layer of the model; empty if it was not recorded.

    Raises:
        RunFolderError: a file is damaged.
    """
    found: dict[int, NDArray[np.float64]] = {}
    sizes: set[int] = set()
    for path in files_by_process(Path(folder), "routing", ".json").values():
        document = read_document(path, _File)
        for layer, counts in document.root.items() if document else ():
            sizes.add(len(counts))
            if len(sizes) > 1:
                raise damaged_file(path, "its layers have different numbers of experts")
            found[layer] = found.get(layer, 0) + np.array(counts, np.float64)
    return {layer: tuple((counts / counts.sum()).tolist()) for layer, counts in sorted(found.items()) if counts.sum()}
