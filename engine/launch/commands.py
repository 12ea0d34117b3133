"""``meshwave run`` and ``meshwave runs``."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from engine.design import Design, parse_design
from engine.errors import InputError, MeshwaveError
from engine.launch import Entry, Record, Run, State, launchers, loss_in_words, reconcile
from engine.launch.texts import text_of
from engine.palette import WORDS
from engine.predict import Prediction, predict
from engine.recording import read_recording
from engine.timeline import overlay
from engine.units import quantity

ENDING_S = 5.0
"""How long a run that is stopped may take to be written down; its processes end in a tenth of a second."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: a polite wish like Ctrl-C, of a service manager or a batch system."""


def run(design: Design, options: argparse.Namespace) -> int:
    """Launch a design, follow it to its end, and say how it compares; returns the exit status."""
    try:
        with _sigterm_interrupts():
            return _run(design, options)
    except Terminated:
        print("stopped", file=sys.stderr)
        return 128 + signal.SIGTERM


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # signals are not for us
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(design: Design, options: argparse.Namespace) -> int:
    if options.steps is not None:
        if options.steps < 1:
            raise InputError(f"--steps {options.steps}: a run has at least one step")
        document = design.model_dump(mode="json")
        design = parse_design({**document, "training": {**document["training"], "steps": options.steps}})
    prediction = predict(design)
    with closing(Record()) as record, closing(launchers[options.launcher](record)) as launcher:
        given = Path(options.data) if options.data else None
        data = text_of(design, given, [Path(options.design).parent, Path.cwd()])
        started = launcher.submit(design, prediction.program, prediction.costs.layers, data=data)
        print(f"run {started.id}: {design.name}, {started.entry.processes} processes", file=sys.stderr)
        try:
            state = started.wait(_Progress())
        except KeyboardInterrupt:
            started.cancel()
            started.wait(timeout_s=ENDING_S)
            raise
        if options.json:
            print(json.dumps(_summary(started, prediction), indent=2))
        else:
            print("\n".join(_told(started, prediction)))
        return 0 if state is State.SUCCEEDED else 1


class _Progress:
    """Says each step once."""

    def __init__(self) -> None:
        self._said = 0

    def __call__(self, run: Run) -> None:
        metrics = run.metrics()
        if len(metrics) == self._said:
            return
        self._said, last = len(metrics), metrics[-1]
        said = f"step {len(metrics)} of {run.progress.total}  loss {loss_in_words(last['loss'])}  {quantity(last['seconds'], 's')} a step"
        print(said, file=sys.stderr, flush=True)


def _summary(run: Run, prediction: Prediction) -> dict[str, Any]:
    """What ``meshwave run --json`` prints."""
    entry = run.entry
    return {
        "run": run.id,
        "state": str(entry.state),
        "reason": entry.reason,
        "folder": str(run.folder),
        "digest": prediction.program.digest,
        "notes": run.notes(),
        "metrics": run.metrics(),
        "comparison": _comparison(run, prediction),
    }


def _comparison(run: Run, prediction: Prediction) -> dict[str, Any] | None:
    try:
        measured = read_recording(run.folder).timeline()
        joined = overlay(prediction.timeline, measured)
    except MeshwaveError:
        return None  # it ended before its first step
    found = joined.summary()
    why = None
    if prediction.costs.unit != "s":
        why = "the prediction is in units, which are no seconds: there is nothing to be off by; use roofline costs"
        found["error"] = None
    for name, kind in found["by_kind"].items():
        kind["words"] = WORDS[name]
        if why:
            kind["error"] = None
    return {
        "unit": prediction.costs.unit,
        "error_is": "(measured - predicted) / predicted, above 0 where it took longer",
        "no_error_since": why,
        "bubble_ratio": {"predicted": prediction.timeline.bubble_ratio, "measured": measured.bubble_ratio},
        **found,
    }


def _told(run: Run, prediction: Prediction) -> list[str]:
    entry, metrics, found = run.entry, run.metrics(), _comparison(run, prediction)
    lines = [f"{str(entry.state).lower()}: {entry.reason}" if entry.reason else str(entry.state).lower()]
    if metrics:
        first, last = (loss_in_words(metrics[row]["loss"]) for row in (0, -1))
        lines.append(f"loss      {first} at the first step, {last} at the last of {len(metrics)}")
    if found:
        seconds = found["unit"] == "s"
        expected = quantity(found["predicted_s"], "s") if seconds else f"{found['predicted_s']:g} units"
        lines.append(f"iteration {expected} predicted, {quantity(found['measured_s'], 's')} measured{_off(found)}")
        bubble = found["bubble_ratio"]
        lines.append(f"bubble    {bubble['predicted']:.1%} predicted, {bubble['measured']:.1%} measured")
        lines += [_of_kind(kind, seconds) for kind in found["by_kind"].values()]
    lines += [f"note      {note}" for note in run.notes()]
    return [*lines, f"folder    {run.folder}"]


def _off(compared: dict[str, Any]) -> str:
    """``, 12% longer``: how far what was measured is off what was predicted."""
    error = compared["error"]
    if error is None:
        return ""
    if error >= 1:
        return f", {1 + error:.3g} times as long"
    return f", {abs(error):.0%} {'longer' if error > 0 else 'shorter'}"


def _of_kind(kind: dict[str, Any], seconds: bool) -> str:
    expected = quantity(kind["predicted_s"], "s") if seconds else f"{kind['predicted_s']:g} units"
    return f"  {kind['words']:<24}{expected} predicted, {quantity(kind['measured_s'], 's')} measured{_off(kind)}"


def runs(options: argparse.Namespace) -> int:
    """``meshwave runs list | show | logs | cancel``."""
    with closing(Record()) as record:
        reconcile(record)
        if options.action == "list":
            return _list(record, options)
        entry = _chosen(record, options.run)
        return {"show": _show, "logs": _logs, "cancel": _cancel}[options.action](Run(record, entry.id), options)


def _chosen(record: Record, text: str | None) -> Entry:
    if text:
        return record.find(text)
    newest = record.all(1)
    if not newest:
        raise InputError("nothing ran yet; start a run by: meshwave run DESIGN")
    return newest[0]


def _list(record: Record, options: argparse.Namespace) -> int:
    entries = record.all()
    if options.json:
        print(json.dumps({"runs": [_entry(entry) for entry in entries]}, indent=2))
        return 0
    for entry in entries:
        when = datetime.fromtimestamp(entry.created_s)
        print(
            f"{entry.id}  {str(entry.state).lower():<10} {when:%Y-%m-%d %H:%M}  {entry.processes:>3} processes  {entry.name}"
        )
    if not entries:
        print("nothing ran yet; start a run by: meshwave run DESIGN", file=sys.stderr)
    return 0


def _entry(entry: Entry) -> dict[str, Any]:
    columns = (
        "id",
        "name",
        "reason",
        "launcher",
        "digest",
        "processes",
        "steps",
        "created_s",
        "started_s",
        "finished_s",
    )
    return {**{column: getattr(entry, column) for column in columns}, "state": str(entry.state)}


def _show(run: Run, options: argparse.Namespace) -> int:
    from engine.launch import read_bundle

    prediction = predict(read_bundle(run.folder).design)
    if options.json:
        print(json.dumps({**_entry(run.entry), **_summary(run, prediction)}, indent=2))
    else:
        print("\n".join([f"{run.id}  {run.entry.name}", *_told(run, prediction)]))
    return 0


def _logs(run: Run, options: argparse.Namespace) -> int:
    lines = run.log(10_000)
    if options.json:
        print(json.dumps({"log": [{"process": line.process, "text": line.text} for line in lines]}, indent=2))
    else:
        print("\n".join(map(str, lines)))
    return 0


def _cancel(run: Run, options: argparse.Namespace) -> int:
    run.cancel()
    state = run.wait(timeout_s=5)
    if options.json:
        print(json.dumps({"run": run.id, "state": str(state)}))
    else:
        print(f"{run.id}: {str(state).lower()}")
    return 0 if state.is_over else 1
