"""``meshwave targets list | check | draw``: launch targets."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from typing import Any

from meshwave.engine.cli import designs
from meshwave.engine.cli.output import print_json, print_note
from meshwave.engine.findings import Refusal
from meshwave.engine.machine import package_versions
from meshwave.engine.runs import Record
from meshwave.engine.runs.launchers._node_counts import NodeCounts
from meshwave.engine.runs.recording import Clocks
from meshwave.engine.runs.target_check import (
    TargetReport,
    check_target,
    drawn_links,
    job_launcher,
    nodes_text,
    report_lines,
)
from meshwave.engine.runs.targets import Target, open_target, read_targets, target_files


def manage_targets(options: argparse.Namespace) -> int:
    """Run one action of ``meshwave targets``; return the exit status."""
    return {"list": _print_targets, "check": _check_target, "draw": _draw_target}[options.action](options)


def _print_targets(options: argparse.Namespace) -> int:
    with closing(Record()) as record:
        listed = [_target_json(target, record) for target in read_targets().values()]
    files = [str(file) for file in target_files()]
    if options.json:
        print_json({"targets": listed, "files": files})
        return 0
    for target in listed:
        print(f"{target['name']:<16} {target['launcher']:<12} {target['refusal'] or target['note']}")
    print_note(f"targets are read from {' and '.join(files)}")
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


def _check_target(options: argparse.Namespace) -> int:
    """Print the hardware, software and problems of a target; return 1 if it cannot be used."""
    drawn = designs.load(options.design).cluster if options.design else None
    report, clocks, counts = _measure_target(options)
    problems = [*report.problems(package_versions())]
    if options.json:
        found = report.model_dump(mode="json")
        nodes = counts._asdict() if counts else None
        print_json(
            {
                "report": found,
                "clocks": clocks.note,
                "nodes": nodes,
                "drawn": {name: each._asdict() for name, each in drawn_links(report, drawn).items()} if drawn else None,
                "problems": [each.to_json() for each in problems],
            }
        )
    else:
        print("\n".join([*report_lines(report, clocks, counts, drawn), *map(str, problems)]))
    return 1 if any(problem.severity == "error" for problem in problems) else 0


def _draw_target(options: argparse.Namespace) -> int:
    report, _, counts = _measure_target(options)
    nodes = options.nodes or (counts.total if counts else None)
    if counts:
        print_note(f"nodes of {options.target}: {nodes_text(counts)}")
    print(json.dumps({"cluster": report.cluster(nodes).model_dump(mode="json", exclude_none=True)}, indent=2))
    return 0


def _measure_target(options: argparse.Namespace) -> tuple[TargetReport, Clocks, NodeCounts | None]:
    for name in ("nodes", "devices"):
        count = getattr(options, name)
        if count is not None and count < 1:
            raise Refusal("too_few_nodes", {"count": count}, f"--{name}")
    with closing(Record()) as record, closing(open_target(record, options.target)) as launcher:
        report, clocks = check_target(launcher, options.nodes, options.devices)
        return report, clocks, job_launcher(launcher).count_nodes()
