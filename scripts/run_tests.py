"""Run the tests, repeat failed ones alone, and report those that then pass as flaky.

A failure caused by a race should neither block an unrelated change nor be forgotten, so it is printed at the end. The
same holds for an internal error of pytest, which ends all tests: those that had not finished run afterwards.
Arguments are those of pytest. The exit status is that of the last run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".pytest_cache/v"
LAST_FAILED, INTERNAL_ERRORS = "cache/lastfailed", "meshwave/internal_errors"
"""Records in the cache: names of failed tests; texts of internal errors, which ``tests/resume.py`` writes."""
FAILED, INTERNAL_ERROR = 1, 3
"""Exit statuses of pytest: tests failed; pytest or a plugin failed."""
MANY = 20
"""Number of failures from which on tests are not repeated, because a race does not cause so many."""


def main(arguments: list[str]) -> int:
    """Run the tests, complete and repeat them where necessary, and return the exit status."""
    for record in (LAST_FAILED, INTERNAL_ERRORS):
        (CACHE / record).unlink(missing_ok=True)  # results of earlier runs
    status = run_pytest(arguments)
    errors = read_record(INTERNAL_ERRORS) if status == INTERNAL_ERROR else []
    if errors:
        print("\nrunning the tests that had not finished before the internal error", flush=True)
        status = run_pytest([*arguments, "--resume"])
    failed = sorted(read_record(LAST_FAILED))
    if failed and status in (0, FAILED):  # 0 if only tests before an internal error failed
        status = FAILED if len(failed) > MANY else repeat(failed)
    if errors and status != INTERNAL_ERROR:  # the first error is the cause of the others
        print(f"flaky: an internal error ended the first run of the tests\n{errors[0]}", flush=True)
    return status


def repeat(failed: list[str]) -> int:
    """Run failed tests once more, print those that pass, and return the exit status."""
    print(f"\nrunning {len(failed)} failed tests once more, alone", flush=True)
    status = run_pytest(["-p", "no:xdist", "--last-failed", "--last-failed-no-failures", "none"])
    still = read_record(LAST_FAILED) if status else []
    for name in failed:
        if name not in still:
            print(f"flaky: {name} failed, and passed when it ran alone", flush=True)
    return status


def run_pytest(arguments: list[str]) -> int:
    """Run pytest and return its exit status."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.resume", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def read_record(name: str) -> Any:
    """Return a record of the last run of pytest, or an empty list if there is none."""
    try:
        return json.loads((CACHE / name).read_bytes())
    except (OSError, ValueError):
        return []


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
