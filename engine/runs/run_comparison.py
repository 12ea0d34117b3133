"""Comparison of a run with its prediction, the stored outcome of a comparison, and the history of a design."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from meshwave.engine.costs.profile import Profile, ShapedRates
from meshwave.engine.costs.profile_store import store_profile
from meshwave.engine.document import Design
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.files import write_private
from meshwave.engine.machine import processor_name
from meshwave.engine.messages import fill_template
from meshwave.engine.program.action import WORDS
from meshwave.engine.run_files import NotNegative, RunFile, RunFolderError, read_document
from meshwave.engine.runs.accuracy import AS_PREDICTED, ComparedDuration, Comparison, MeshMemory, compare, run_profile
from meshwave.engine.runs.emulation.hosts import Links, prediction_links, read_executed_bundle, read_links
from meshwave.engine.runs.emulation.topology import read_topology
from meshwave.engine.runs.recording import Recording, read_recording
from meshwave.engine.runs.run import Run
from meshwave.engine.runs.run_database import Record
from meshwave.engine.runs.run_entry import Entry
from meshwave.engine.runs.run_folder import Bundle, read_launched_design
from meshwave.engine.units import duration, format_number, percent, percent_change, quantity

FORMAT = "meshwave-compared/1"
MOST_LINES = 8
"""Maximum number of meshes, links or layers that are listed; those with the largest errors."""
THOUSANDS = 999
MANY_TIMES = 2.0
"""Smallest ratio that is shown as a factor: "10 times" is clearer than "900% longer"."""
SHORT_TIMES = 10.0
"""Smallest ratio that is shown as a factor in a list."""
TIMELESS_KEYS = frozenset({"steps", "seed", "lr", "lr_schedule", "warmup_steps", "decay_steps", "min_lr_factor"})
"""Keys of the training section that do not affect the step time."""
LONGEST_NOTE = 200
"""Maximum number of characters of the notes on run and network in a profile."""


def compare_run(run: Run, bundle: Bundle, recording: Recording | None = None) -> Comparison | None:
    """Compare a run with its prediction on the links that the run used; return None if no step was recorded.

    The outcome of a finished run is stored in its folder.

    Args:
        run: the run.
        bundle: its run folder.
        recording: its recording, if it was already read.

    Raises:
        InputError: the calibration profile of the design no longer exists.
    """
    prediction = bundle.prediction
    try:
        found = compare(prediction, recording or read_recording(run.folder), prediction_links(bundle))
    except MeshwaveError:
        return None
    if run.state.is_over:
        _store_outcome(run.folder, found)
    return found


def save_run_profile(run: Run) -> str:
    """Save the measurements of a run as a calibration profile; return the name of the profile.

    Raises:
        RunError: no step of the run was recorded.
        InputError: the run was a dry run.
    """
    entry, bundle = run.entry, read_executed_bundle(run.folder)
    when = datetime.fromtimestamp(entry.created_s)
    source = ", ".join(filter(None, (entry.name, f"{when:%Y-%m-%d %H:%M}", entry.manner)))
    found = run_profile(compare(bundle.prediction, read_recording(run.folder)), source[:LONGEST_NOTE])
    return store_profile(_add_machine(run, found), f"run-{run.id}.json").name


def _add_machine(run: Run, profile: Profile) -> Profile:
    """Add the machine of a run and the rates of emulated links to its profile."""
    device = next((str(event["device"]) for event in run.events() if event.get("device")), "")
    where: dict[str, Any] = {"cores": os.cpu_count(), "processor": processor_name(), "device": device}
    if (network := read_topology(run.folder)) is None:
        return profile.model_copy(update={"machine": profile.machine.model_copy(update=where)})
    rates = ShapedRates(intra=network.intra, inter=network.inter * network.nics)
    machine = profile.machine.model_copy(update={**where, "network": network.note[:LONGEST_NOTE]})
    return profile.model_copy(update={"machine": machine, "rates": rates})


# ---- as text ----


def comparison_lines(found: Comparison) -> list[str]:
    """Return the comparison as lines for a terminal."""
    iteration, timelines = found.iteration, (found.prediction.timeline, found.timeline)
    lines = [found.label] if found.label else []
    lines.append(f"iteration {compared_text(found, ComparedDuration(iteration.predicted_s, iteration.measured_s))}")
    lines.append(f"steps     {step_time_text(found)}")
    bubbles = (percent(each.bubble_ratio) for each in timelines)
    lines.append("bubble    {} predicted, {} measured".format(*bubbles))
    expected, took = (each.mean_exposed_communication for each in timelines)
    exposed = compared_text(found, ComparedDuration(expected, took))
    lines.append(f"exposed   {exposed} (exposed communication, mean over the meshes)")
    lines += [
        f"  {WORDS[op.name]:<24}{compared_text(found, each)}"
        for op, each in found.by_kind.items()
        if each.predicted_s or each.measured_s
    ]
    meshes = found.timeline.meshes
    lines += _largest_errors(found, {f"mesh {meshes[rank]}": each for rank, each in found.by_mesh.items()}, "meshes")
    links = {f"{meshes[link.source]} to {meshes[link.target]}": each for link, each in found.by_link.items()}
    lines += _largest_errors(found, links, "links")
    layers = {f"{each.action} {each.name} on {each.mesh}": each.compared for each in found.by_layer}
    lines += _largest_errors(found, layers, "layers")
    lines += [_memory_line(memory) for memory in found.memory]
    if found.cause:
        lines.append(f"cause     {found.cause.description}")
    lines += [f"priced    {each}" for each in found.coverage_warnings]
    if found.clock_note:
        lines.append(f"clocks    {found.clock_note}")
    return lines


def _memory_line(memory: MeshMemory) -> str:
    """Return a line on the peak memory of a mesh, with the categories that were measured."""
    expected, took = (quantity(size, "B") for size in (memory.predicted_bytes, memory.measured_bytes))
    parts = (
        f"{kind} {quantity(predicted, 'B')} and {quantity(measured, 'B')}"
        for kind, (predicted, measured) in memory.by_category.items()
    )
    difference = error_text(memory.error, "more", "less")
    return f"memory    {expected} predicted, {took} measured{difference} on {memory.mesh} ({', '.join(parts)})"


def step_time_text(found: Comparison) -> str:
    """Return the step time, such as ``median 258 ms, IQR 225 ms-319 ms (18 steps, 1 warm-up step excluded)``."""
    iteration, unit = found.iteration, found.unit
    counted = fill_template("{count} {count:plural|step|steps}", count=iteration.steps)
    if iteration.warm_up:
        counted += fill_template(", {count} warm-up {count:plural|step|steps} excluded", count=iteration.warm_up)
    if iteration.memory_steps:
        text = ", {count} {count:plural|step|steps} that measured memory excluded"
        counted += fill_template(text, count=iteration.memory_steps)
    counted = f"({counted})"
    if iteration.steps < 2:
        return f"{duration(iteration.measured_s, unit)} {counted}"
    quartiles = f"{duration(iteration.low_s, unit)}-{duration(iteration.high_s, unit)}"
    return f"median {duration(iteration.measured_s, unit)}, IQR {quartiles} {counted}"


def _largest_errors(found: Comparison, by_name: dict[str, ComparedDuration], plural: str) -> Iterator[str]:
    """Yield a line for each of the largest errors, in the order of ``by_name``."""
    largest = sorted(by_name, key=lambda name: -abs(by_name[name].measured_s - by_name[name].predicted_s))[:MOST_LINES]
    yield from (f"  {name:<24}{compared_text(found, each)}" for name, each in by_name.items() if name in largest)
    if len(by_name) > MOST_LINES:
        yield f"  and {len(by_name) - MOST_LINES} more {plural}; --json lists all"


def compared_text(found: Comparison, compared: ComparedDuration) -> str:
    """Return predicted and measured value as text, such as ``3.2 ms predicted, 4.1 ms measured, 28% longer``."""
    expected, took = (
        duration(size, unit) for size, unit in zip(compared[:2], (found.prediction.costs.unit, found.unit), strict=True)
    )
    most = "at most " if compared.at_most else ""
    return f"{expected} predicted, {most}{took} measured{error_text(compared.error) if found.is_comparable else ''}"


def error_text(error: float | None, more: str = "longer", less: str = "shorter") -> str:
    """Return the error of a prediction as text, such as ``, 12.0% longer``; empty if it is unknown."""
    if error is None:
        return ""
    if error >= MANY_TIMES - 1:
        times = f"{1 + error:.3g}" if error < THOUSANDS else f"{1 + error:,.0f}"
        return f", {times} times as {'long' if more == 'longer' else 'much'}"
    if abs(error) < AS_PREDICTED:
        return ", as predicted"
    return f", {percent(abs(error))} {more if error > 0 else less}"


def short_error_text(error: float) -> str:
    """Return an error such as ``+12.0%``, or ``x 835`` for a large factor."""
    return f"x {format_number(1 + error)}" if error >= SHORT_TIMES - 1 else percent_change(error)


# ---- outcomes, and the history of a design ----


@dataclass(frozen=True)
class Outcome:
    """Prediction errors of one run."""

    run: str
    name: str
    manner: str  # text on how the run differs from plain training
    created_s: float
    digest: str  # hash of the program
    cost: str  # the cost model of the prediction
    unit: str
    predicted_s: float
    measured_s: float
    error: float | None  # None for costs in units
    memory_error: float | None  # largest error of all meshes; None if no memory was measured
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


def read_outcome(entry: Entry, folder: Path) -> Outcome | None:
    """Return the outcome that was stored when a run was first compared; None if it was not compared.

    It is not computed again, because later costs or versions would give other predictions.
    """
    try:
        found = read_document(folder / "compared.json", _File)
    except RunFolderError:
        return None
    if found is None:
        return None
    stored = found.model_dump(exclude={"format"})
    return Outcome(entry.id, entry.name, entry.manner, entry.created_s, entry.digest, **stored)


def design_history(record: Record, like: Entry, most: int = 1000) -> list[Outcome]:
    """Return the outcomes of finished runs of the design of ``like`` on the same links, latest first.

    A run belongs to the same design if the design has the same name, or the same content.
    """
    folder = record.folder(like.id)
    mine, links = _content_that_affects_times(folder), _emulated_links(folder)
    entries = (entry for entry in record.entries(most) if entry.state.is_over)
    named = (
        entry
        for entry in entries
        if entry.name == like.name
        or (entry.digest == like.digest and _content_that_affects_times(record.folder(entry.id)) == mine)
    )
    alike = (entry for entry in named if _emulated_links(record.folder(entry.id)) == links)
    found = (run_outcome(record, entry) for entry in alike)
    return [each for each in found if each is not None]


class ErrorRange(NamedTuple):
    """Lowest and highest error of the predictions of some runs: measured step time / predicted - 1."""

    low: float
    high: float
    runs: int


def error_range(record: Record, design: Design, digest: str, entries: Sequence[Entry]) -> ErrorRange | None:
    """Return the range of the stored errors of runs of a design with its cost model; None if there are none.

    Args:
        record: the database of the runs.
        design: the design.
        digest: hash of its program.
        entries: the runs among which those of the design are found.
    """
    mine = _timed_content(design)
    errors = [
        outcome.error
        for entry in entries
        if entry.digest == digest
        and not entry.is_rehearsal
        and (outcome := read_outcome(entry, record.folder(entry.id))) is not None
        and outcome.error is not None
        and outcome.cost == design.cost.kind
        and _content_that_affects_times(record.folder(entry.id)) == mine
        and _emulated_links(record.folder(entry.id)) is None
    ]
    return ErrorRange(min(errors), max(errors), len(errors)) if errors else None


def run_outcome(record: Record, entry: Entry) -> Outcome | None:
    """Return the outcome of a finished run, comparing it first if necessary; None if that is not possible."""
    return read_outcome(entry, record.folder(entry.id)) or _first_outcome(record, entry)


@lru_cache(maxsize=256)  # the page needs it for all runs of a design after each edit
def _content_that_affects_times(folder: Path) -> dict[str, Any]:
    """Return the content of the launched design that affects step times; empty if it cannot be read."""
    try:
        return _timed_content(read_launched_design(folder))
    except RunFolderError:
        return {}


def _timed_content(design: Design) -> dict[str, Any]:
    document = design.model_dump(mode="json", exclude={"name", "cost"})
    training = document.pop("training").items()
    return {**document, "training": {key: value for key, value in training if key not in TIMELESS_KEYS}}


def _emulated_links(folder: Path) -> Links | None:
    """Return the emulated links of a run; None if it has none, or they cannot be read."""
    try:
        return read_links(folder)
    except RunFolderError:
        return None


def _first_outcome(record: Record, entry: Entry) -> Outcome | None:
    """Compare a run for the first time, and return its outcome; None if that is not possible."""
    run = Run(record, entry.id)
    if not any(run.folder.glob("spans-*.bin")):
        return None
    try:
        compare_run(run, read_executed_bundle(run.folder))
    except MeshwaveError:
        return None  # launched by another version, or the profile no longer exists
    return read_outcome(entry, run.folder)


def _store_outcome(folder: Path, found: Comparison) -> None:
    """Store the outcome of the first comparison of a run."""
    if (folder / "compared.json").exists():
        return
    iteration, memory_errors = found.iteration, [each.error for each in found.memory if each.error is not None]
    document = {
        "format": FORMAT,
        "cost": found.prediction.design.cost.kind,
        "unit": found.unit,
        "predicted_s": iteration.predicted_s,
        "measured_s": iteration.measured_s,
        "error": iteration.error if found.is_comparable else None,
        "memory_error": max(memory_errors, key=abs, default=None),
        "cause": found.cause.description if found.cause else "",
    }
    with suppress(OSError):  # on a full disk the run is compared again later
        write_private(folder / "compared.json", json.dumps(document) + "\n")


def history_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Return lines on the prediction errors of the runs of a design; empty for a single run."""
    if len(outcomes) < 2:
        return []
    errors = ", ".join(_outcome_text(each) for each in outcomes[:MOST_LINES])
    return [f"history   {len(outcomes)} runs of this design, latest first: {errors}"]


def _outcome_text(each: Outcome) -> str:
    error = "in units" if each.error is None else short_error_text(each.error)
    return f"{error} ({each.cost}{', ' + each.manner if each.manner else ''})"


def outcomes_json(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return outcomes as JSON objects for ``--json``."""
    return [asdict(each) for each in outcomes]
