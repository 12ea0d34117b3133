"""A run held against what was predicted of it: the comparison, what is kept of it, and the history of a design."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from meshwave.engine.costs.profile import Profile, ShapedRates
from meshwave.engine.costs.profile_store import keep
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.files import write_private
from meshwave.engine.machine import processor
from meshwave.engine.program.action import WORDS
from meshwave.engine.run_files import NotNegative, RunFile, RunFolderError, read_document
from meshwave.engine.runs.accuracy import AS_PREDICTED, Compared, Comparison, MeshMemory, compare, profile_of
from meshwave.engine.runs.emulation.hosts import Links, predicted_for, read_as_run, read_links
from meshwave.engine.runs.emulation.topology import read_topology
from meshwave.engine.runs.recording import Recording, read_recording
from meshwave.engine.runs.run import Run
from meshwave.engine.runs.run_database import Entry, Record
from meshwave.engine.runs.run_folder import Bundle, read_drawn
from meshwave.engine.units import duration, number, quantity

FORMAT = "meshwave-compared/1"
MOST_LINES = 8
"""Meshes or links that are told one by one: those that are off the most."""
THOUSANDS = 999
MANY_TIMES = 2.0
"""From there on an error is told as a factor: 900% longer says less than ten times."""
SHORT_TIMES = 10.0
"""The same in a list, where a factor is the exception."""
STEERS = frozenset({"steps", "seed", "lr"})
"""Of training, what changes no time of a step."""
LONGEST_NOTE = 200
"""Letters of what a profile says of its run, and of its network."""


def comparison_of(run: Run, bundle: Bundle, recording: Recording | None = None) -> Comparison | None:
    """What a run measured beside what was predicted of what was launched, on the links that it had; kept in its folder
    where the run is over. None where it ended before its first step. Where it was read already, ``recording`` is what
    it recorded.

    Raises:
        InputError: the profile that it is priced by is gone.
    """
    prediction = bundle.prediction
    try:
        found = compare(prediction, recording or read_recording(run.folder), predicted_for(bundle))
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
    entry, bundle = run.entry, read_as_run(run.folder)
    when = datetime.fromtimestamp(entry.created_s)
    words = ", ".join(filter(None, (entry.name, f"{when:%Y-%m-%d %H:%M}", entry.manner)))
    found = profile_of(compare(bundle.prediction, read_recording(run.folder)), words[:LONGEST_NOTE])
    return keep(_of_here(run, found), f"run-{run.id}.json").name


def _of_here(run: Run, profile: Profile) -> Profile:
    """The same, saying on which machine it ran, and over what links where these were emulated."""
    device = next((str(event["device"]) for event in run.events() if event.get("device")), "")
    where: dict[str, Any] = {"cores": os.cpu_count(), "processor": processor(), "device": device}
    if (network := read_topology(run.folder)) is None:
        return profile.model_copy(update={"machine": profile.machine.model_copy(update=where)})
    rates = ShapedRates(intra=network.intra, inter=network.inter * network.nics)
    machine = profile.machine.model_copy(update={**where, "network": network.note[:LONGEST_NOTE]})
    return profile.model_copy(update={"machine": machine, "rates": rates})


# ---- in words ----


def told(found: Comparison) -> list[str]:
    """The comparison as lines for a terminal."""
    iteration, timelines = found.iteration, (found.prediction.timeline, found.timeline)
    lines = [found.label] if found.label else []
    lines.append(f"iteration {pair(found, Compared(iteration.predicted_s, iteration.measured_s))}")
    lines.append(f"steps     {spread(found)}")
    bubbles = (f"{each.bubble_ratio:.1%}" for each in timelines)
    lines.append("bubble    {} predicted, {} measured".format(*bubbles))
    expected, took = (each.mean_exposed_communication for each in timelines)
    exposed = pair(found, Compared(expected, took))
    lines.append(f"exposed   {exposed} (communication, the mean over the meshes)")
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
    lines += [f"priced    {each}" for each in found.unmeasured]
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


class _File(RunFile):
    format: Literal["meshwave-compared/1"]
    cost: str
    unit: str
    predicted_s: NotNegative
    measured_s: NotNegative
    error: float | None
    memory_error: float | None
    cause: str


def outcome(entry: Entry, folder: Path) -> Outcome | None:
    """What was kept when a run was compared; None where it was not yet.

    It tells how the prediction came out that was made then: with other costs, or another version, it would be another.
    """
    try:
        found = read_document(folder / "compared.json", _File)
    except RunFolderError:
        return None
    if found is None:
        return None
    kept = found.model_dump(exclude={"format"})
    return Outcome(entry.id, entry.name, entry.manner, entry.created_s, entry.digest, **kept)


def history(record: Record, like: Entry, most: int = 1000) -> list[Outcome]:
    """The runs that are over of a design on the same links, the latest first: those of its name, and those of the same
    design under another one."""
    folder = record.folder(like.id)
    mine, links = _drawn(folder), _emulated(folder)
    entries = (entry for entry in record.all(most) if entry.state.is_over)
    named = (
        entry
        for entry in entries
        if entry.name == like.name or (entry.digest == like.digest and _drawn(record.folder(entry.id)) == mine)
    )
    alike = (entry for entry in named if _emulated(record.folder(entry.id)) == links)
    found = (outcome(entry, record.folder(entry.id)) or _compared_now(record, entry) for entry in alike)
    return [each for each in found if each is not None]


def _drawn(folder: Path) -> dict[str, Any]:
    """What was launched, without what it is called, what it is priced by and what changes no time of a step; empty
    where that cannot be read."""
    try:
        document = read_drawn(folder).model_dump(mode="json", exclude={"name", "cost"})
        training = document.pop("training").items()
        return {**document, "training": {key: value for key, value in training if key not in STEERS}}
    except RunFolderError:
        return {}


def _emulated(folder: Path) -> Links | None:
    """The links that a run met on emulated hosts; None where it was not on any, or that cannot be read."""
    try:
        return read_links(folder)
    except RunFolderError:
        return None


def _compared_now(record: Record, entry: Entry) -> Outcome | None:
    """Of a run that nobody has looked at yet."""
    run = Run(record, entry.id)
    if not any(run.folder.glob("spans-*.bin")):
        return None
    try:
        comparison_of(run, read_as_run(run.folder))
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
    with suppress(OSError):  # a full disk; it is compared anew at the next look
        write_private(folder / "compared.json", json.dumps(document) + "\n")


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
