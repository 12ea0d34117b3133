"""``meshwave run``: launch a design, follow the run and compare it with its prediction."""

from __future__ import annotations

import argparse
import re
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from meshwave.engine.cli.output import print_json, print_note
from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.document.validation_problems import validation_problems
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.files import expand_user, find_design
from meshwave.engine.findings import Refusal
from meshwave.engine.messages import render
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Options, Record, Run, State, format_step_time, loss_text, silence_text
from meshwave.engine.runs.accuracy import Comparison
from meshwave.engine.runs.accuracy.stragglers import find_stragglers
from meshwave.engine.runs.cancellation import cancel_runs_on
from meshwave.engine.runs.checkpoints import Checkpoints
from meshwave.engine.runs.dry_run import Rehearsal, limit_steps, wall_time_text
from meshwave.engine.runs.emulation.hosts import default_hosts, read_executed_bundle
from meshwave.engine.runs.launchers import default_launcher, specify_run
from meshwave.engine.runs.options import HANG_TIMEOUT_S
from meshwave.engine.runs.recording import read_recording
from meshwave.engine.runs.run_comparison import compare_run, comparison_lines
from meshwave.engine.runs.run_folder import RunSpec
from meshwave.engine.runs.targets import open_target
from meshwave.engine.runs.training_texts import training_text

STRAGGLERS_INTERVAL_S = 5.0
"""Interval, in seconds, between two searches for stragglers while a run is followed."""


def run(options: argparse.Namespace) -> int:
    """Launch a design, follow its run and print the comparison with its prediction; return the exit status."""
    design = with_steps(load_for_data(find_design(options.design), options.data), options.steps)
    how = run_options(design, options)
    if how.rehearse and options.steps is None:
        design = limit_steps(design)
    with closing(Record()) as record:
        if options.resume is not None:
            how = how.model_copy(update={"resume": record.find(options.resume).id})
        given = Path(options.data) if options.data else None
        data = None if how.rehearse else training_text(design, given, [Path(options.design).parent, Path.cwd()])
        return launch_and_follow(record, design, how, options.launcher, data, as_json=options.json)


def load_for_data(path: Path, data: str | None) -> Design:
    """Load a design to run on the data of ``--data``, whose file name it takes if it names a tokenizer and no data."""
    if data is None:
        return load_design(path)
    document = load_design(path, draft=True).model_dump(mode="json")
    training = document["training"]
    if training["tokenizer"] is not None and training["data"] is None:
        training["data"] = Path(data).name
    return parse_design(document)


def with_steps(design: Design, steps: int | None) -> Design:
    """Return the design with another number of steps, if one is given.

    Raises:
        Refusal: the number of steps is not positive.
    """
    if steps is None:
        return design
    if steps < 1:
        raise Refusal("too_few_steps", {"steps": steps}, "--steps")
    document = design.model_dump(mode="json")
    return parse_design({**document, "training": {**document["training"], "steps": steps}})


def launch_and_follow(
    record: Record, design: Design, how: Options, target: str | None, data: Path | None, *, as_json: bool
) -> int:
    """Launch a design, follow the run and print the comparison with its prediction; return the exit status.

    Args:
        record: the run database.
        design: the design to run.
        how: options of the run.
        target: the name of a launch target; None for the default.
        data: the training text; None for the text that comes with Meshwave.
        as_json: True to print one JSON object.
    """
    prediction = predict(design)
    _warn_about_profile(design, how)
    with closing(open_target(record, target or default_launcher(design, how))) as launcher:
        spec = specify_run(prediction, how)
        if how.rehearse:
            print_note(_expected_time(spec))
        started = launcher.submit(spec, data=data)
        manner = f", {started.entry.manner}" if started.entry.manner else ""
        print_note(f"run {started.id}: {design.name}, {started.entry.processes} processes{manner}")
        with cancel_runs_on(KeyboardInterrupt, [started]):
            state = started.wait(Progress())
        return print_outcome(started, state, as_json=as_json)


def print_outcome(run: Run, state: State, *, as_json: bool) -> int:
    """Print the result of a run and the comparison with its prediction; return the exit status."""
    found = compare_if_possible(run)
    if as_json:
        print_json(run_summary(run, found))
    else:
        print("\n".join(run_lines(run, found)))
    return 0 if state is State.SUCCEEDED else 1


def sweep(options: argparse.Namespace) -> int:
    """Launch several designs and wait for all of them; return 1 if any does not succeed."""
    designs = [with_steps(load_design(find_design(name)), options.steps) for name in options.designs]
    with closing(Record()) as record, closing(open_target(record, options.launcher or "local")) as launcher:
        runs = launcher.submit_all([specify_run(predict(design)) for design in designs])
        with cancel_runs_on(KeyboardInterrupt, runs):
            for run in runs:
                print_note(f"run {run.id}: {run.entry.name}")
            states = [run.wait(Progress()) for run in runs]
        if options.json:
            print_json({"runs": [run_summary(run, compare_if_possible(run)) for run in runs]})
        else:
            for run in runs:
                print("\n".join([f"{run.id}  {run.entry.name}", *run_lines(run, compare_if_possible(run))]))
    return 0 if all(state is State.SUCCEEDED for state in states) else 1


def _warn_about_profile(design: Design, how: Options) -> None:
    if how.rehearse is None and (why := design.cost.machine_warning()):
        params = {"profile": design.cost.profile_name, "reason": why}
        print_note(render("calibrated_elsewhere", params))


def _expected_time(spec: RunSpec) -> str:
    """Return a sentence with the expected duration of a dry run."""
    assert spec.options.rehearse is not None and spec.options.rehearse.scale is not None, "nothing is left open"
    steps = spec.design.training.steps
    step_s = spec.prediction.timeline.makespan * spec.options.rehearse.scale
    together = f", all {steps} {wall_time_text(steps * step_s)}" if steps > 1 else ""
    return f"a step should take {wall_time_text(step_s)}{together}"


TIME_UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0}


def checkpoint_options(options: argparse.Namespace) -> Checkpoints | None:
    """Return the checkpoint options given on the command line; None if there are none.

    Raises:
        Refusal: an option needs another one, or cannot be read.
    """
    every, keep = options.checkpoint_every, options.keep_checkpoints
    if every is None:
        if keep is not None:
            raise Refusal("keep_without_checkpoints")
        return None
    number, unit = _number_and_unit(every)
    if not number or (unit is None and not number.is_integer()):
        raise Refusal("unknown_interval", {"value": every}, "--checkpoint-every")
    if keep is not None and keep < 1:
        raise Refusal("too_few_checkpoints", {"count": keep}, "--keep-checkpoints")
    more = {} if keep is None else {"keep": keep}
    if unit is None:
        return Checkpoints(every_steps=int(number), **more)
    return Checkpoints(every_s=number * TIME_UNITS_S[unit], **more)


def _number_and_unit(text: str) -> tuple[float, str | None]:
    """Return the number and unit of time of a text such as ``50`` or ``10min``; the number is 0 if it is invalid."""
    found = re.fullmatch(rf"(\d+(?:\.\d+)?)\s*({'|'.join(TIME_UNITS_S)})?", text)
    return (float(found[1]), found[2]) if found else (0.0, None)


def _hang_timeout_s(text: str | None) -> float:
    """Return the seconds of a text such as ``30`` or ``10min``; the default if there is no text.

    Raises:
        Refusal: the text is not a duration.
    """
    if text is None:
        return HANG_TIMEOUT_S
    number, unit = _number_and_unit(text)
    if not number:
        raise Refusal("unknown_time", {"value": text}, "--hang-timeout")
    return number * TIME_UNITS_S[unit or "s"]


def run_options(design: Design, options: argparse.Namespace) -> Options:
    """Return the run options given on the command line.

    Raises:
        Refusal: an option needs another one, or a number is out of range.
    """
    if options.scale is not None and not options.rehearse:
        raise Refusal("scale_without_dry_run")
    if options.hosts is None and (options.inter_bandwidth is not None or options.intra_bandwidth is not None):
        raise Refusal("bandwidth_without_hosts")
    if options.rehearse and (options.checkpoint_every is not None or options.resume is not None):
        raise Refusal("checkpoints_of_dry_run")
    if options.init is not None and (options.rehearse or options.resume is not None):
        raise Refusal("unused_initial_weights")
    links = options.intra_bandwidth, options.inter_bandwidth
    try:
        return Options(
            rehearse=Rehearsal(scale=options.scale) if options.rehearse else None,
            hosts=None if options.hosts is None else default_hosts(design, options.hosts, *links),
            checkpoints=checkpoint_options(options),
            initial_weights=None if options.init is None else str(expand_user(options.init).absolute()),
            restarts=options.restarts,
            hang_timeout_s=_hang_timeout_s(options.hang_timeout),
        )
    except ValidationError as error:
        given = {"nodes": options.hosts, **vars(options)}
        first, *_ = validation_problems(error, given, Options)
        where = f"--{first.where.replace('nodes', 'hosts').replace('_', '-')}"
        raise Refusal(first.code, first.params, where) from None


class Progress:
    """Progress output of a run: prints each step once, and stopped processes."""

    def __init__(self) -> None:
        self._printed = 0
        self._stopped: set[str] = set()
        self._stragglers: set[str] = set()
        self._searched_s = time.monotonic()

    def __call__(self, run: Run) -> None:
        """Print the steps since the last call."""
        stopped = {*run.stopped_process_lines()}
        for line in stopped - self._stopped:
            print_note(line)
        self._stopped = stopped
        waits = run.waiting_reason and f"waits: {run.waiting_reason}"
        for line in filter(None, (waits, run.trouble, silence_text(run.entry))):
            print_note(line)
        self._print_stragglers(run)
        last = run.latest_metrics()
        if last is None or last["step"] < self._printed:
            return
        self._printed = last["step"] + 1
        loss = f"  loss {loss_text(last['loss'])}" if "loss" in last else ""
        print_note(f"step {self._printed} of {run.progress.total}{loss}  {format_step_time(last)} per step")

    def _print_stragglers(self, run: Run) -> None:
        """Print each straggler once.

        Stragglers are searched at intervals, because the search reads the recordings.
        """
        if time.monotonic() - self._searched_s < STRAGGLERS_INTERVAL_S:
            return
        with suppress(MeshwaveError):  # the recordings are damaged, or of another version
            found = {problem.message for problem in find_stragglers(read_recording(run.folder))}
            for line in sorted(found - self._stragglers):
                print_note(line)
            self._stragglers |= found
        self._searched_s = time.monotonic()


def compare_if_possible(run: Run) -> Comparison | None:
    """Compare a run with its prediction; if that is not possible, print the reason and return None."""
    try:
        bundle = read_executed_bundle(run.folder)
        _ = bundle.prediction
    except MeshwaveError as error:  # the profile or folder no longer exists, or is of another version
        print_note(render("not_predictable", {"reason": str(error)}))
        return None
    return compare_run(run, bundle)


def run_summary(run: Run, found: Comparison | None) -> dict[str, Any]:
    """Return the object that ``meshwave run --json`` prints."""
    entry = run.entry
    return {
        "run": run.id,
        "state": str(entry.state),
        "reason": entry.reason,
        "folder": str(run.folder),
        "digest": entry.digest,
        "notes": run.notes(),
        "metrics": run.metrics(),
        "comparison": found.to_json() if found else None,
    }


def run_lines(run: Run, found: Comparison | None) -> list[str]:
    """Return the lines that ``meshwave run`` prints."""
    entry, metrics = run.entry, run.metrics()
    lines = [f"{str(entry.state).lower()}: {entry.reason}" if entry.reason else str(entry.state).lower()]
    if metrics and "loss" in metrics[0]:  # dry runs have no loss
        first, last = (loss_text(metrics[row].get("loss")) for row in (0, -1))
        lines.append(f"loss      {first} at the first step, {last} at the last of {len(metrics)}")
    lines += comparison_lines(found) if found else []
    lines += [f"slow      {problem.message}" for problem in find_stragglers(found.recording)] if found else []
    lines += [f"note      {note}" for note in run.notes()]
    return [*lines, f"folder    {run.folder}"]
