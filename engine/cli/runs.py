"""``meshwave runs list | show | follow | resume | ...``: manage runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from meshwave.engine.cli.launch import (
    Progress,
    compare_if_possible,
    launch_and_follow,
    print_outcome,
    run_lines,
    run_summary,
    with_steps,
)
from meshwave.engine.cli.output import print_json, print_note, print_result, write_output
from meshwave.engine.costs.profile_store import check_can_store
from meshwave.engine.exports.perfetto import trace_events
from meshwave.engine.findings import Refusal, RunRefusal
from meshwave.engine.messages import render
from meshwave.engine.runs import Entry, Record, Run, reconcile, silence_text
from meshwave.engine.runs.archives import delete_run, export_run, import_run, remove_leftovers
from meshwave.engine.runs.final_weights import save_final_weights
from meshwave.engine.runs.launchers import check_place, open_run, remove_from_hosts, restore_entries, resumed_launch
from meshwave.engine.runs.process_identity import stopped_process_lines
from meshwave.engine.runs.recording import read_recording
from meshwave.engine.runs.run_comparison import (
    design_history,
    history_lines,
    outcomes_json,
    read_outcome,
    save_run_profile,
    short_error_text,
)
from meshwave.engine.runs.tensorboard import write_events


def manage_runs(options: argparse.Namespace) -> int:
    """Run one action of ``meshwave runs``; return the exit status."""
    with closing(Record()) as record:
        if options.action in _ACTIONS_OF_ALL:
            reconcile(record)
            return _ACTIONS_OF_ALL[options.action](record, options)
        if record.is_new:
            restore_entries(record)
        entry = _find_entry(record, options.run)
        if not entry.state.is_over:
            check_place(record, entry.place)  # not the others, which may take seconds to respond
        return _ACTIONS[options.action](record, record.get(entry.id), options)


def _find_entry(record: Record, text: str | None) -> Entry:
    if text:
        return record.find(text)
    newest = record.entries(1)
    if not newest:
        raise Refusal("no_runs")
    return newest[0]


def _print_runs(record: Record, options: argparse.Namespace) -> int:
    entries = [entry if entry.state.is_over else Run(record, entry.id).entry for entry in record.entries()]
    waiting = ["" if entry.state.is_over else Run(record, entry.id).waiting_reason for entry in entries]
    if options.json:
        listed = [
            {
                **_entry_json(entry),
                **_run_outcome(record, entry),
                "waiting": why,
                "no_answer": silence_text(entry),
                "stopped": stopped_process_lines(entry),
            }
            for entry, why in zip(entries, waiting, strict=True)
        ]
        print_json({"runs": listed})
        return 0
    for entry, why in zip(entries, waiting, strict=True):
        when, error = datetime.fromtimestamp(entry.created_s), _run_outcome(record, entry)["error"]
        print(
            f"{entry.id}  {str(entry.state).lower():<10} {when:%Y-%m-%d %H:%M}  {entry.processes:>3} processes  "
            f"{'' if error is None else short_error_text(error):>7}  {entry.name}{f' ({entry.manner})' if entry.manner else ''}"
        )
        for line in filter(None, (why, silence_text(entry), *stopped_process_lines(entry))):
            print(f"  {line}")
    if not entries:
        print_note(render("no_runs", {}))
    return 0


def _entry_json(entry: Entry) -> dict[str, Any]:
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


def _run_title(entry: Entry) -> str:
    return f"{entry.id}  {entry.name}" + (f" ({entry.manner})" if entry.manner else "")


def _run_outcome(record: Record, entry: Entry) -> dict[str, Any]:
    """Return the prediction errors of a run; None if it was not compared."""
    found = read_outcome(entry, record.folder(entry.id))
    return {key: getattr(found, key, None) for key in ("predicted_s", "measured_s", "error", "memory_error")}


def _print_run(record: Record, entry: Entry, options: argparse.Namespace) -> int:
    run = Run(record, entry.id)
    found = compare_if_possible(run)  # first, because it stores the outcome that the history shows
    if options.json:
        summary = run_summary(run, found)
        print_json({**_entry_json(entry), **summary, "history": outcomes_json(design_history(record, entry))})
    else:
        lines = run_lines(run, found)
        print("\n".join([_run_title(entry), *lines, *history_lines(design_history(record, entry))]))
    return 0


def _follow_run(record: Record, entry: Entry, options: argparse.Namespace) -> int:
    """Print each step of a run until it ends; an interrupt does not affect the run."""
    run = open_run(record, entry.id)
    return print_outcome(run, run.wait(Progress()), as_json=options.json)


def _resume_run(record: Record, entry: Entry, options: argparse.Namespace) -> int:
    """Launch the design of a run again from the newest checkpoint of the run, on the target of the run by default."""
    design, how, text = resumed_launch(record.folder(entry.id))
    design = with_steps(design, options.steps)
    target = options.launcher or entry.place.target
    return launch_and_follow(record, design, how, target, text, as_json=options.json)


def _export_run(record: Record, entry: Entry, options: argparse.Namespace) -> int:
    if options.to == "perfetto":
        file = Path(options.out or f"{entry.id}.trace.json")
        write_output(str(file), json.dumps(trace_events(read_recording(record.folder(entry.id)).timeline())).encode())
    elif options.to == "tensorboard":
        file = write_events(Run(record, entry.id), Path(options.out or entry.id))
    else:
        file = export_run(record, entry, Path(options.out) if options.out else None)
    return _print_value({"run": entry.id, "file": str(file)}, str(file), options)


def _export_weights(record: Record, entry: Entry, options: argparse.Namespace) -> int:
    """Write the final weights of a run as a checkpoint of Hugging Face."""
    files = save_final_weights(record.folder(entry.id), Path(options.hugging_face))
    return _print_value({"run": entry.id, "files": [*map(str, files)]}, "\n".join(map(str, files)), options)


def _import_runs(record: Record, options: argparse.Namespace) -> int:
    entry = import_run(record, Path(options.file))
    return _print_value(_entry_json(entry), _run_title(entry), options)


def _rebuild_record(record: Record, options: argparse.Namespace) -> int:
    """Add all run folders that are missing from the run database, and remove what killed imports and deletions left."""
    remove_leftovers(record)
    found = restore_entries(record)
    return _print_value({"entered": found}, f"added {len(found)} {'run' if len(found) == 1 else 'runs'}", options)


def _delete_run(record: Record, entry: Entry, options: argparse.Namespace) -> int:
    has_started = delete_run(record, entry)
    status = _print_value({"run": entry.id, "deleted": True}, f"deleted {_run_title(entry)}", options)
    try:
        if has_started:
            remove_from_hosts(record, entry)
    except RunRefusal as error:
        print_note(error)
        status = 1
    return status


def _print_value(value: dict[str, Any], text: str, options: argparse.Namespace) -> int:
    """Print a result as JSON if ``--json`` is given, otherwise as text; return status 0."""
    return print_result(options, value, lambda _: [text])


def _save_profile(record: Record, entry: Entry, options: argparse.Namespace) -> int:
    """Save the measurements of a run as a calibration profile."""
    check_can_store()
    run = Run(record, entry.id)
    name = save_run_profile(run)
    cost = {"kind": "calibrated", "profile": name}
    value = {"run": run.id, "profile": name, "cost": cost}
    return _print_value(value, f'{name}: use it in a design with "cost": {json.dumps(cost)}', options)


def _print_logs(record: Record, entry: Entry, options: argparse.Namespace) -> int:
    lines = Run(record, entry.id).log(10_000)
    value = {"log": [{"process": line.process, "text": line.text} for line in lines]}
    return _print_value(value, "\n".join(map(str, lines)), options)


def _cancel_run(record: Record, entry: Entry, options: argparse.Namespace) -> int:
    run = open_run(record, entry.id)
    run.cancel()
    state = run.wait(timeout_s=5)
    _print_value({"run": run.id, "state": str(state)}, f"{run.id}: {str(state).lower()}", options)
    return 0 if state.is_over else 1


_ACTIONS_OF_ALL: dict[str, Callable[[Record, argparse.Namespace], int]] = {
    "list": _print_runs,
    "import": _import_runs,
    "rebuild": _rebuild_record,
}
_ACTIONS: dict[str, Callable[[Record, Entry, argparse.Namespace], int]] = {
    "show": _print_run,
    "follow": _follow_run,
    "logs": _print_logs,
    "cancel": _cancel_run,
    "resume": _resume_run,
    "export": _export_run,
    "weights": _export_weights,
    "delete": _delete_run,
    "profile": _save_profile,
}
