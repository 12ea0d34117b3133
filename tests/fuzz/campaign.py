"""Fuzz a target for some time: count inputs, and store each new failure reduced, with the command that replays it."""

from __future__ import annotations

import math
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.fuzz.oracle import ROOT
from tests.fuzz.reduce import reduced
from tests.fuzz.target import Target, target_called
from tests.fuzz.worker import Finding, Report, Worker

FOLDER = ROOT / "build" / "fuzz"
SEEDS = Path(__file__).parent / "seeds"
"""Inputs that failed in the past, by target; the test suite reads them."""
REDUCING_S = 60.0
"""Seconds in which all failures of a target are reduced."""
WATCHED_SHARE = 0.1
"""Fraction of the inputs of guided targets whose executed lines are counted, which takes up to twice as long."""
SLOW_S = 5.0
"""Processor time in seconds above which a call counts as slow; it fails only at the limit."""


@dataclass
class Tally:
    """Counts of the results of a target."""

    target: str
    inputs: int = 0
    accepted: int = 0
    calls: int = 0
    slow: int = 0
    slowest_s: float = 0.0
    new_lines: int = 0
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)

    def count(self, report: Report) -> None:
        self.inputs += 1
        self.accepted += report.accepted
        self.calls += report.calls
        self.new_lines += report.new_lines
        self.slow += report.seconds >= SLOW_S
        self.slowest_s = max(self.slowest_s, report.seconds)


class Limit(NamedTuple):
    """Number or time at which the inputs of a target end."""

    seconds: float = math.inf
    inputs: int | None = None


def fuzz(name: str, limit: Limit, seed: int, folder: Path = FOLDER) -> Tally:
    """Read damaged inputs of a target up to ``limit``, then reduce those that fail.

    Inputs that failed in the past come first.
    """
    tally, target, chance = Tally(name), target_called(name), Random(f"{seed} {name}")
    kept: dict[Path, Finding] = {}
    pool = [*target.seeds()]
    with Worker(name) as worker:
        end = time.monotonic() + limit.seconds
        for content in islice(_inputs(target, name, chance, pool), limit.inputs):
            if time.monotonic() > end:
                break
            report = worker.examine(content, target.is_guided and chance.random() < WATCHED_SHARE)
            tally.count(report)
            if report.new_lines and _can_be_damaged(target, content):
                pool.append(content)
            for finding in report.findings:
                tally.failures[finding.signature] += 1
                if tally.failures[finding.signature] == 1:
                    path = folder / name / f"{_slug(finding)}{target.suffix}"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                    kept[path] = finding
                    _print_finding(finding, path)
        for path, finding in kept.items():
            path.write_bytes(smallest(worker, path.read_bytes(), finding, REDUCING_S / len(kept)))
    return tally


def _inputs(target: Target, name: str, chance: Random, pool: Sequence[bytes]) -> Iterator[bytes]:
    """Yield inputs that failed in the past, then damaged copies of those in ``pool``, which may grow meanwhile."""
    damaged = (target.mutate(chance, pool) for _ in iter(int, 1))
    return chain((path.read_bytes() for path in kept_seeds(name)), damaged)


def _can_be_damaged(target: Target, content: bytes) -> bool:
    """Return whether an input still has the format that the target damages, such as JSON."""
    try:
        target.mutate(Random(0), [content])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False
    return True


def kept_seeds(name: str) -> list[Path]:
    """Return the stored inputs of a target that failed in the past."""
    return sorted((SEEDS / name).glob("*")) if (SEEDS / name).exists() else []


def smallest(worker: Worker, content: bytes, finding: Finding, seconds: float) -> bytes:
    """Return the smallest input that fails like ``finding``; a slow one is returned unchanged."""

    def fails(candidate: bytes) -> bool:
        return any(each.signature == finding.signature for each in worker.examine(candidate).findings)

    return content if finding.rule in ("hangs", "time limit") else reduced(content, fails, seconds)


def _slug(finding: Finding) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{finding.call} {finding.rule}".lower()).strip("-")[:100]


def _print_finding(finding: Finding, path: Path | None = None) -> None:
    detail = finding.detail.rstrip()[-1500:].encode("utf-8", "backslashreplace").decode()
    print(f"\nFAILED {finding.call}: {finding.rule}\n{detail}", flush=True)
    if path is not None:
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        print(f"replay: {Path(sys.executable).name} -m tests.fuzz --replay {shown}", flush=True)


def replay(path: Path) -> int:
    """Read one input again; the name of its folder is the target."""
    with Worker(path.resolve().parent.name) as worker:
        report = worker.examine(path.read_bytes())
    for finding in report.findings:
        _print_finding(finding)
    print(f"{path}: {report.calls} calls, {len(report.findings)} failures, slowest call {report.seconds:.1f} s")
    return 1 if report.findings else 0


def table(tallies: Iterable[Tally]) -> str:
    """Return the summary: a row for each target, and a line for each failure."""
    rows: list[Sequence[object]] = [("target", "inputs", "accepted", "calls", "failures", "slow", "slowest s", "lines")]
    tallies = list(tallies)
    for each in tallies:
        rows.append(
            (
                each.target,
                each.inputs,
                each.accepted,
                each.calls,
                len(each.failures),
                each.slow,
                f"{each.slowest_s:.1f}",
                each.new_lines or "",
            )
        )
    lines = ["".join(f"{cell!s:<16}" if not at else f"{cell!s:>10}" for at, cell in enumerate(row)) for row in rows]
    lines += [
        f"{each.target}: {call}: {rule} ({count} inputs)"
        for each in tallies
        for (call, rule), count in each.failures.most_common()
    ]
    return "\n".join(lines)
