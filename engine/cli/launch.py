"""``meshwave run`` and ``meshwave runs``."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import ValidationError

from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.validation_problems import from_validation
from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.runs import Options, Record, Run, State, loss_in_words, step_time
from meshwave.engine.runs.accuracy import Comparison
from meshwave.engine.runs.checkpoints import Checkpoints
from meshwave.engine.runs.dry_run import Rehearsal, TooLongError, long_time, shortened
from meshwave.engine.runs.emulation.hosts import drawn, read_as_run
from meshwave.engine.runs.launchers import launchers, specify_run, usual_launcher
from meshwave.engine.runs.run_comparison import comparison_of, told
from meshwave.engine.runs.run_folder import RunSpec
from meshwave.engine.runs.training_texts import text_of

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
    chosen = options.launcher or usual_launcher(design, how)
    prediction = predict(design)
    _warn_of_another_machine(design, how)
    with closing(Record()) as record, closing(launchers[chosen](record)) as launcher:
        if options.resume is not None:
            how = how.model_copy(update={"resume": record.find(options.resume).id})
        given = Path(options.data) if options.data else None
        data = None if how.rehearse else text_of(design, given, [Path(options.design).parent, Path.cwd()])
        spec = _specify(prediction, how)
        if how.rehearse:
            print(_foretold(spec), file=sys.stderr)
        started = launcher.submit(spec, data=data)
        manner = f", {started.entry.manner}" if started.entry.manner else ""
        print(f"run {started.id}: {design.name}, {started.entry.processes} processes{manner}", file=sys.stderr)
        try:
            state = started.wait(Progress())
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
    if how.rehearse is None and (why := design.cost.machine_warning()):
        print(
            f"the prediction is by {design.cost.profile_name}, {why}; meshwave calibrate measures this one",
            file=sys.stderr,
        )


def _specify(prediction: Prediction, how: Options) -> RunSpec:
    try:
        return specify_run(prediction, how)
    except TooLongError as error:
        raise InputError(f"--scale: {error}") from None


def _foretold(spec: RunSpec) -> str:
    """Return how long a dry run will take, as a sentence."""
    assert spec.options.rehearse is not None and spec.options.rehearse.scale is not None, "nothing is left open"
    steps = spec.design.training.steps
    step_s = spec.prediction.timeline.makespan * spec.options.rehearse.scale
    together = f", all {steps} {long_time(steps * step_s)}" if steps > 1 else ""
    return f"a step should take {long_time(step_s)}{together}"


TIME_UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0}


def checkpoints_asked(options: argparse.Namespace) -> Checkpoints | None:
    """Return when the command line asks for checkpoints; None if it does not.

    Raises:
        InputError: an option needs another one, or cannot be read.
    """
    every, keep = options.checkpoint_every, options.keep_checkpoints
    if every is None:
        if keep is not None:
            raise InputError("--keep-checkpoints applies to runs that write checkpoints; add --checkpoint-every")
        return None
    found = re.fullmatch(rf"(\d+(?:\.\d+)?)\s*({'|'.join(TIME_UNITS_S)})?", every)
    if found is None or not float(found[1]) or (found[2] is None and "." in found[1]):
        raise InputError(f"--checkpoint-every {every}: use a number of steps, such as 50, or a time, such as 10min")
    if keep is not None and keep < 1:
        raise InputError(f"--keep-checkpoints {keep}: keep at least 1")
    more = {} if keep is None else {"keep": keep}
    if found[2] is None:
        return Checkpoints(every_steps=int(found[1]), **more)
    return Checkpoints(every_s=float(found[1]) * TIME_UNITS_S[found[2]], **more)


def asked(design: Design, options: argparse.Namespace) -> Options:
    """What the command line asks for besides the design.

    Raises:
        InputError: an option that needs another one stands alone, or a number makes no sense.
    """
    if options.scale is not None and not options.rehearse:
        raise InputError("--scale stretches the time of a rehearsal; add --rehearse")
    if options.hosts is None and (options.inter_bandwidth is not None or options.intra_bandwidth is not None):
        raise InputError("--inter-bandwidth and --intra-bandwidth are of emulated hosts; say how many with --hosts N")
    if options.rehearse and (options.checkpoint_every is not None or options.resume is not None):
        raise InputError("a dry run has no state; leave out --checkpoint-every and --resume, or --rehearse")
    links = options.intra_bandwidth, options.inter_bandwidth
    try:
        return Options(
            rehearse=Rehearsal(scale=options.scale) if options.rehearse else None,
            hosts=None if options.hosts is None else drawn(design, options.hosts, *links),
            checkpoints=checkpoints_asked(options),
        )
    except ValidationError as error:
        given = {"nodes": options.hosts, **vars(options)}
        first, *_ = from_validation(error, given, Options)
        raise InputError(f"--{first.where.replace('nodes', 'hosts').replace('_', '-')}: {first.message}") from None


class Progress:
    """Says each step once, and that a process is stopped."""

    def __init__(self) -> None:
        self._said = 0
        self._stopped: set[str] = set()

    def __call__(self, run: Run) -> None:
        stopped = {*run.stopped()}
        for words in stopped - self._stopped:
            print(words, file=sys.stderr, flush=True)
        self._stopped = stopped
        last = run.latest()
        if last is None or last["step"] < self._said:
            return
        self._said = last["step"] + 1
        loss = f"  loss {loss_in_words(last['loss'])}" if "loss" in last else ""
        print(f"step {self._said} of {run.progress.total}{loss}  {step_time(last)} a step", file=sys.stderr, flush=True)


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
        first, last = (loss_in_words(metrics[row].get("loss")) for row in (0, -1))
        lines.append(f"loss      {first} at the first step, {last} at the last of {len(metrics)}")
    lines += told(found) if found else []
    lines += [f"note      {note}" for note in run.notes()]
    return [*lines, f"folder    {run.folder}"]
