"""``meshwave run`` and ``meshwave runs``."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from datetime import datetime
from typing import Any

from meshwave.engine.cli.launch import _compared, _summary, _told
from meshwave.engine.costs.profile_store import see_keepable
from meshwave.engine.errors import InputError
from meshwave.engine.runs import Entry, Record, Run, reconcile
from meshwave.engine.runs.launchers import open_run
from meshwave.engine.runs.process_identity import stopped
from meshwave.engine.runs.run_comparison import as_data, history, in_short, keep_profile, outcome, told_history


def runs(options: argparse.Namespace) -> int:
    """``meshwave runs list | show | logs | cancel | profile``."""
    with closing(Record()) as record:
        reconcile(record)
        if options.action == "list":
            return _list(record, options)
        entry = _chosen(record, options.run)
        if options.action == "show":
            return _show(record, entry, options)
        run = open_run(record, entry.id) if options.action == "cancel" else Run(record, entry.id)
        return {"logs": _logs, "cancel": _cancel, "profile": _profile}[options.action](run, options)


def _chosen(record: Record, text: str | None) -> Entry:
    if text:
        return record.find(text)
    newest = record.all(1)
    if not newest:
        raise InputError("nothing ran yet; start a run by: meshwave run DESIGN")
    return newest[0]


def _list(record: Record, options: argparse.Namespace) -> int:
    entries = [entry if entry.state.is_over else Run(record, entry.id).entry for entry in record.all()]
    if options.json:
        listed = [{**_entry(entry), **_outcome(record, entry), "stopped": stopped(entry)} for entry in entries]
        print(json.dumps({"runs": listed}, indent=2))
        return 0
    for entry in entries:
        when, error = datetime.fromtimestamp(entry.created_s), _outcome(record, entry)["error"]
        print(
            f"{entry.id}  {str(entry.state).lower():<10} {when:%Y-%m-%d %H:%M}  {entry.processes:>3} processes  "
            f"{'' if error is None else in_short(error):>7}  {entry.name}{f' ({entry.manner})' if entry.manner else ''}"
        )
        for words in stopped(entry):
            print(f"  {words}")
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
