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

from pydantic import ValidationError

from engine.accuracy import Comparison
from engine.cost import estimate
from engine.cost.calibrated import profile_of
from engine.cost.profile import elsewhere, see_keepable
from engine.design import Design, parse_design
from engine.design.cost import CalibratedCost
from engine.design.refusals import from_validation
from engine.errors import InputError, MeshwaveError
from engine.launch import Entry, Options, Record, Run, State, launchers, loss_in_words, reconcile, step_time
from engine.launch._launcher import settled
from engine.launch.compared import as_data, comparison_of, history, in_short, keep_profile, outcome, told, told_history
from engine.launch.hosts import drawn, read_as_run
from engine.launch.texts import text_of
from engine.launch.threads import usual_rehearser
from engine.predict import Prediction, predict
from engine.rehearse import Lengths, Rehearsal, TooLongError, long_time, shortened, waited

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
    how = asked(design, options)
    if how.rehearse and options.steps is None:
        design = shortened(design)
    chosen = options.launcher or (usual_rehearser(design) if how.rehearse and not how.hosts else "local")
    prediction = predict(design)
    _warn_of_another_machine(design, how)
    with closing(Record()) as record, closing(launchers[chosen](record)) as launcher:
        given = Path(options.data) if options.data else None
        data = None if how.rehearse else text_of(design, given, [Path(options.design).parent, Path.cwd()])
        if how.rehearse:
            print(_foretold(prediction, how), file=sys.stderr)
        started = launcher.submit(design, prediction.program, prediction.costs.layers, data=data, options=how)
        manner = f", {started.entry.manner}" if started.entry.manner else ""
        print(f"run {started.id}: {design.name}, {started.entry.processes} processes{manner}", file=sys.stderr)
        try:
            state = started.wait(_Progress())
        except KeyboardInterrupt:
            started.cancel()
            started.wait(timeout_s=ENDING_S)
            raise
        found = _compared(started)
        if options.json:
            print(json.dumps(_summary(started, found), indent=2))
        else:
            print("\n".join(_told(started, found)))
        return 0 if state is State.SUCCEEDED else 1


def _warn_of_another_machine(design: Design, how: Options) -> None:
    if isinstance(design.cost, CalibratedCost) and how.rehearse is None and (why := elsewhere(profile_of(design))):
        print(
            f"the prediction is by {design.cost.profile}, {why}; meshwave calibrate measures this one", file=sys.stderr
        )


def _foretold(prediction: Prediction, how: Options) -> str:
    """How long a rehearsal will be, before it starts.

    Raises:
        InputError: nobody waits so long, or its hosts cannot be.
    """
    program, steps = prediction.program, prediction.design.training.steps
    try:
        as_run, how = settled(prediction.design, program, prediction.costs.layers, how)
        assert how.rehearse is not None and how.rehearse.scale is not None, "nothing is left open"
        step_s = waited(Lengths.of(program, estimate(as_run, program)), how.rehearse.scale)
    except TooLongError as error:
        raise InputError(f"--scale: {error}") from None
    together = f", all {steps} {long_time(steps * step_s)}" if steps > 1 else ""
    return f"a step should take {long_time(step_s)}{together}"


def asked(design: Design, options: argparse.Namespace) -> Options:
    """What the command line asks for besides the design.

    Raises:
        InputError: an option that needs another one stands alone, or a number makes no sense.
    """
    if options.scale is not None and not options.rehearse:
        raise InputError("--scale stretches the time of a rehearsal; add --rehearse")
    if options.hosts is None and (options.inter_bandwidth is not None or options.intra_bandwidth is not None):
        raise InputError("--inter-bandwidth and --intra-bandwidth are of emulated hosts; say how many with --hosts N")
    links = options.intra_bandwidth, options.inter_bandwidth
    try:
        return Options(
            rehearse=Rehearsal(scale=options.scale) if options.rehearse else None,
            hosts=None if options.hosts is None else drawn(design, options.hosts, *links),
        )
    except ValidationError as error:
        given = {"nodes": options.hosts, **vars(options)}
        first, *_ = from_validation(error, given, Options)
        raise InputError(f"--{first.where.replace('nodes', 'hosts').replace('_', '-')}: {first.message}") from None


class _Progress:
    """Says each step once."""

    def __init__(self) -> None:
        self._said = 0

    def __call__(self, run: Run) -> None:
        metrics = run.metrics()
        if len(metrics) == self._said:
            return
        self._said, last = len(metrics), metrics[-1]
        loss = f"  loss {loss_in_words(last['loss'])}" if "loss" in last else ""
        print(
            f"step {len(metrics)} of {run.progress.total}{loss}  {step_time(last)} a step", file=sys.stderr, flush=True
        )


def _compared(run: Run) -> Comparison | None:
    """A run beside its prediction; None where there is nothing to compare, and where it cannot be predicted that is said."""
    try:
        bundle = read_as_run(run.folder)
        _ = bundle.prediction
    except MeshwaveError as error:  # its profile or its folder is gone; or it is of another version
        print(f"nothing is predicted of this run any more: {error}", file=sys.stderr)
        return None
    return comparison_of(run, bundle)


def _summary(run: Run, found: Comparison | None) -> dict[str, Any]:
    """What ``meshwave run --json`` prints."""
    entry = run.entry
    return {
        "run": run.id,
        "state": str(entry.state),
        "reason": entry.reason,
        "folder": str(run.folder),
        "digest": entry.digest,
        "notes": run.notes(),
        "metrics": run.metrics(),
        "comparison": found.as_data() if found else None,
    }


def _told(run: Run, found: Comparison | None) -> list[str]:
    entry, metrics = run.entry, run.metrics()
    lines = [f"{str(entry.state).lower()}: {entry.reason}" if entry.reason else str(entry.state).lower()]
    if metrics and "loss" in metrics[0]:  # a rehearsal has none
        first, last = (loss_in_words(metrics[row]["loss"]) for row in (0, -1))
        lines.append(f"loss      {first} at the first step, {last} at the last of {len(metrics)}")
    lines += told(found) if found else []
    lines += [f"note      {note}" for note in run.notes()]
    return [*lines, f"folder    {run.folder}"]


def runs(options: argparse.Namespace) -> int:
    """``meshwave runs list | show | logs | cancel | profile``."""
    with closing(Record()) as record:
        reconcile(record)
        if options.action == "list":
            return _list(record, options)
        entry = _chosen(record, options.run)
        if options.action == "show":
            return _show(record, entry, options)
        return {"logs": _logs, "cancel": _cancel, "profile": _profile}[options.action](Run(record, entry.id), options)


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
        print(json.dumps({"runs": [{**_entry(entry), **_outcome(record, entry)} for entry in entries]}, indent=2))
        return 0
    for entry in entries:
        when, error = datetime.fromtimestamp(entry.created_s), _outcome(record, entry)["error"]
        print(
            f"{entry.id}  {str(entry.state).lower():<10} {when:%Y-%m-%d %H:%M}  {entry.processes:>3} processes  "
            f"{'' if error is None else in_short(error):>7}  {entry.name}{f' ({entry.manner})' if entry.manner else ''}"
        )
    if not entries:
        print("nothing ran yet; start a run by: meshwave run DESIGN", file=sys.stderr)
    return 0


def _entry(entry: Entry) -> dict[str, Any]:
    columns = (
        "id",
        "name",
        "reason",
        "manner",
        "launcher",
        "digest",
        "processes",
        "steps",
        "created_s",
        "started_s",
        "finished_s",
    )
    return {**{column: getattr(entry, column) for column in columns}, "state": str(entry.state)}


def _title(entry: Entry) -> str:
    return f"{entry.id}  {entry.name}" + (f" ({entry.manner})" if entry.manner else "")


def _outcome(record: Record, entry: Entry) -> dict[str, Any]:
    """How the prediction of a run came out, where it was compared."""
    found = outcome(entry, record.folder(entry.id))
    return {key: getattr(found, key, None) for key in ("predicted_s", "measured_s", "error", "memory_error")}


def _show(record: Record, entry: Entry, options: argparse.Namespace) -> int:
    run = Run(record, entry.id)
    found = _compared(run)  # first: it keeps what the history tells
    if options.json:
        summary = _summary(run, found)
        print(json.dumps({**_entry(entry), **summary, "history": as_data(history(record, entry))}, indent=2))
    else:
        lines = _told(run, found)
        print("\n".join([_title(entry), *lines, *told_history(history(record, entry))]))
    return 0


def _profile(run: Run, options: argparse.Namespace) -> int:
    """Keep what a run measured as a profile, for designs to be priced by."""
    see_keepable()
    name = keep_profile(run)
    if options.json:
        print(json.dumps({"run": run.id, "profile": name, "cost": {"kind": "calibrated", "profile": name}}))
    else:
        print(f'{name}: price a design by it with "cost": {{"kind": "calibrated", "profile": "{name}"}}')
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
