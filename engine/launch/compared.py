"""A run held against what was predicted of it: the comparison, what is kept of it, and the history of a design."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from engine.accuracy import AS_PREDICTED, Compared, Comparison, MeshMemory, compare, profile_of
from engine.cost.profile import keep
from engine.errors import MeshwaveError, RunError
from engine.launch._run import Run
from engine.launch.bundle import read_bundle, write_private
from engine.launch.record import Entry, Record
from engine.palette import WORDS
from engine.predict import Prediction, predict
from engine.recording import Recording, read_recording
from engine.units import duration, number, quantity

FORMAT = "meshwave-compared/1"
MOST_LINES = 8
"""Meshes or links that are told one by one: those that are off the most."""
THOUSANDS = 999
MANY_TIMES = 2.0
"""From there on an error is told as a factor: 900% longer says less than ten times."""
SHORT_TIMES = 10.0
"""The same in a list, where a factor is the exception."""


def comparison_of(run: Run, prediction: Prediction, recording: Recording | None = None) -> Comparison | None:
    """What a run measured beside what was predicted; kept in its folder where the run is over. None where it ended
    before its first step, or was of another program. Where it was read already, ``recording`` is what it recorded.
    """
    try:
        found = compare(prediction, recording or read_recording(run.folder))
    except MeshwaveError:
        return None
    if run.state.is_over:
        _keep(run.folder, found)
    return found


def keep_profile(run: Run) -> str:
    """Keep what a run measured as a profile that designs can name; returns its name.

    Raises:
        RunError: the run has measured no step.
        InputError: it was a rehearsal.
    """
    prediction = predict(read_bundle(run.folder).design)
    entry = run.entry
    when = datetime.fromtimestamp(entry.created_s)
    found = profile_of(compare(prediction, read_recording(run.folder)), f"{entry.name}, {when:%Y-%m-%d %H:%M}")
    return keep(found, f"run-{run.id}.json").name


# ---- in words ----


def told(found: Comparison) -> list[str]:
    """The comparison as lines for a terminal."""
    iteration, timelines = found.iteration, (found.prediction.timeline, found.timeline)
    lines = [found.label] if found.label else []
    lines.append(f"iteration {pair(found, Compared(iteration.predicted_s, iteration.measured_s))}")
    lines.append(f"steps     {spread(found)}")
    bubbles = (f"{each.bubble_ratio:.1%}" for each in timelines)
    lines.append("bubble    {} predicted, {} measured".format(*bubbles))
    expected, took = (max(each.exposed_communication.tolist(), default=0.0) for each in timelines)
    exposed = pair(found, Compared(expected, took))
    lines.append(f"exposed   {exposed} (communication, of the mesh that waits for it the longest)")
    lines += [
        f"  {WORDS[op.name]:<24}{pair(found, each)}"
        for op, each in found.by_kind.items()
        if each.predicted_s or each.measured_s
    ]
    meshes = found.timeline.meshes
    lines += _worst(found, {f"mesh {meshes[rank]}": each for rank, each in found.by_mesh.items()}, "meshes")
    links = {f"{meshes[link.source]} to {meshes[link.target]}": each for link, each in found.by_link.items()}
    lines += _worst(found, links, "links")
    layers = {f"{each.action} {each.name} on {each.mesh}": each.compared for each in found.by_layer}
    lines += _worst(found, layers, "layers")
    lines += [_of_memory(memory) for memory in found.memory]
    if found.cause:
        lines.append(f"because   {found.cause.words}")
    if found.doubts:
        lines.append(f"clocks    {found.doubts}")
    return lines


def _of_memory(memory: MeshMemory) -> str:
    """The peak on a mesh, and what it is for as far as that was measured."""
    expected, took = (quantity(size, "B") for size in (memory.predicted_bytes, memory.measured_bytes))
    parts = (
        f"{kind} {quantity(predicted, 'B')} and {quantity(measured, 'B')}"
        for kind, (predicted, measured) in memory.by_category.items()
    )
    off_by = off(memory.error, "more", "less")
    return f"memory    {expected} predicted, {took} measured{off_by} on {memory.mesh} ({', '.join(parts)})"


def spread(found: Comparison) -> str:
    """``half of 10 took 3.1 s to 3.9 s; 1 that warms up left out``: how the steps that are timed spread."""
    iteration = found.iteration
    ends = f"{duration(iteration.low_s, found.unit)} to {duration(iteration.high_s, found.unit)}"
    took = f"half of {iteration.steps} took {ends}" if iteration.steps > 1 else "1 is timed"
    return took + (f"; {iteration.warm_up} before them left out to warm up" if iteration.warm_up else "")


def _worst(found: Comparison, named: dict[str, Compared], what: str) -> Iterator[str]:
    """Those that are off the most, in the order that they came in."""
    worst = sorted(named, key=lambda name: -abs(named[name].measured_s - named[name].predicted_s))[:MOST_LINES]
    yield from (f"  {name:<24}{pair(found, each)}" for name, each in named.items() if name in worst)
    if len(named) > MOST_LINES:
        yield f"  and {len(named) - MOST_LINES} more {what}; --json tells all"


def pair(found: Comparison, compared: Compared) -> str:
    """``3.2 ms predicted, 4.1 ms measured, 28% longer``"""
    expected, took = (
        duration(size, unit) for size, unit in zip(compared[:2], (found.prediction.costs.unit, found.unit), strict=True)
    )
    most = "at most " if compared.at_most else ""
    return f"{expected} predicted, {most}{took} measured{off(compared.error) if found.comparable else ''}"


def off(error: float | None, more: str = "longer", less: str = "shorter") -> str:
    """``, 12% longer``: how far what was measured is off what was predicted; nothing where it is not known."""
    if error is None:
        return ""
    if error >= MANY_TIMES - 1:
        times = f"{1 + error:.3g}" if error < THOUSANDS else f"{1 + error:,.0f}"
        return f", {times} times as {'long' if more == 'longer' else 'much'}"
    if abs(error) < AS_PREDICTED:
        return ", as predicted"
    return f", {abs(error):.0%} {more if error > 0 else less}"


def in_short(error: float) -> str:
    """``+12%``, and ``x 835`` of what took many times as long."""
    return f"x {number(1 + error)}" if error >= SHORT_TIMES - 1 else f"{error:+.0%}"


# ---- what is kept, and the history of a design ----


@dataclass(frozen=True)
class Outcome:
    """How a prediction came out in one run."""

    run: str
    name: str
    manner: str  # how the run differs from plain training, in words
    created_s: float
    digest: str  # of its program
    cost: str  # the kind of costs that predicted it
    unit: str
    predicted_s: float
    measured_s: float
    error: float | None  # None where units are no seconds
    memory_error: float | None  # of the mesh that is off the most; None where none was measured
    cause: str


def outcome(entry: Entry, folder: Path) -> Outcome | None:
    """What was kept when a run was compared; None where it was not yet.

    It tells how the prediction came out that was made then: with other costs, or another version, it would be another.
    """
    try:
        document = json.loads((folder / "compared.json").read_bytes())
        if document.pop("format") != FORMAT:
            return None
        return Outcome(entry.id, entry.name, entry.manner, entry.created_s, entry.digest, **document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def history(record: Record, like: Entry, most: int = 1000) -> list[Outcome]:
    """The runs that are over of a design, the latest first: those of its name, and those of the same design under
    another one."""
    mine = _drawn(record.folder(like.id))
    entries = (entry for entry in record.all(most) if entry.state.is_over)
    alike = (
        entry
        for entry in entries
        if entry.name == like.name or (entry.digest == like.digest and _drawn(record.folder(entry.id)) == mine)
    )
    found = (outcome(entry, record.folder(entry.id)) or _compared_now(record, entry) for entry in alike)
    return [each for each in found if each is not None]


def _drawn(folder: Path) -> dict[str, Any]:
    """What was launched, without what it is called and what it is priced by; empty where that cannot be read."""
    try:
        document = json.loads((folder / "design.json").read_bytes())
        return {key: part for key, part in document.items() if key not in ("name", "cost")}
    except (OSError, ValueError, AttributeError):
        return {}


def _compared_now(record: Record, entry: Entry) -> Outcome | None:
    """Of a run that nobody has looked at yet."""
    run = Run(record, entry.id)
    if not any(run.folder.glob("spans-*.bin")):
        return None
    try:
        comparison_of(run, predict(read_bundle(run.folder).design))
    except MeshwaveError:
        return None  # of an earlier version, or its profile is gone
    return outcome(entry, run.folder)


def _keep(folder: Path, found: Comparison) -> None:
    """Keep the outcome of the first time that a run is compared."""
    if (folder / "compared.json").exists():
        return
    iteration, off = found.iteration, [each.error for each in found.memory if each.error is not None]
    document = {
        "format": FORMAT,
        "cost": found.prediction.design.cost.kind,
        "unit": found.unit,
        "predicted_s": iteration.predicted_s,
        "measured_s": iteration.measured_s,
        "error": iteration.error if found.comparable else None,
        "memory_error": max(off, key=abs, default=None),
        "cause": found.cause.words if found.cause else "",
    }
    try:
        write_private(folder / "compared.json", json.dumps(document) + "\n")
    except OSError as error:
        raise RunError(f"cannot keep the comparison in {folder}: {error.strerror}") from None


def told_history(outcomes: Sequence[Outcome]) -> list[str]:
    """The errors of a design's predictions, run by run."""
    if len(outcomes) < 2:
        return []
    errors = ", ".join(_short(each) for each in outcomes[:MOST_LINES])
    return [f"history   {len(outcomes)} runs of this design, the latest first: {errors}"]


def _short(each: Outcome) -> str:
    error = "in units" if each.error is None else in_short(each.error)
    return f"{error} ({each.cost}{', ' + each.manner if each.manner else ''})"


def as_data(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [asdict(each) for each in outcomes]
