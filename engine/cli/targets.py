"""``meshwave targets list``: launch targets."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

from meshwave.engine.cli.output import print_json
from meshwave.engine.runs import Record
from meshwave.engine.runs.targets import Target, read_targets, target_files


def targets(options: argparse.Namespace) -> int:
    """Run one action of ``meshwave targets``; return the exit status."""
    return _list(options)


def _list(options: argparse.Namespace) -> int:
    with closing(Record()) as record:
        listed = [_target_json(target, record) for target in read_targets().values()]
    files = [str(file) for file in target_files()]
    if options.json:
        print_json({"targets": listed, "files": files})
        return 0
    for target in listed:
        print(f"{target['name']:<16} {target['launcher']:<12} {target['refusal'] or target['note']}")
    print(f"targets are read from {' and '.join(files)}")
    return 0


def _target_json(target: Target, record: Record) -> dict[str, Any]:
    with closing(target.open(record)) as launcher:
        can = launcher.probe()
    return {
        "name": target.name,
        "launcher": target.launcher,
        "options": target.options.model_dump(mode="json") if target.options else {},
        "can_launch": can.can_launch,
        "refusal": can.refusal.message if can.refusal else None,
        "most_processes": can.most_processes,
        "note": can.note,
    }
