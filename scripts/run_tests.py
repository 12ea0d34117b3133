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
FAILED, INTERNAL_ERROR = 1, 3
"""Exit statuses of pytest: tests failed; pytest or a plugin failed."""
MANY = 20
"""Number of failures from which on tests are not repeated, because a race does not cause so many."""


def main(arguments: list[str]) -> int:
    """Run the tests, complete and repeat them where necessary, and return the exit status."""
    for record in ("cache/lastfailed", "meshwave/internal_errors"):
        (CACHE / record).unlink(missing_ok=True)  # results of earlier runs
    status = run_pytest(arguments)
    errors = recorded("meshwave/internal_errors") if status == INTERNAL_ERROR else []
    if errors:
        print("\nrunning the tests that had not finished before the internal error", flush=True)
        status = run_pytest([*arguments, "--resume"])
    failed = sorted(recorded("cache/lastfailed"))
    if failed and status in (0, FAILED):  # 0 if only tests before an internal error failed
        status = FAILED if len(failed) > MANY else repeat(failed)
    for error in errors[:1]:  # others follow from it
        print(f"flaky: an internal error ended the first run of the tests\n{error}", flush=True)
    return status


def repeat(failed: list[str]) -> int:
    """Run failed tests once more, print those that pass, and return the exit status."""
    print(f"\nrunning {len(failed)} failed tests once more, alone", flush=True)
    status = run_pytest(["-p", "no:xdist", "--last-failed", "--last-failed-no-failures", "none"])
    still = recorded("cache/lastfailed") if status else []
    for name in failed:
        if name not in still:
            print(f"flaky: {name} failed, and passed when it ran alone", flush=True)
    return status


def run_pytest(arguments: list[str]) -> int:
    """Run pytest and return its exit status."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.resume", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def recorded(name: str) -> Any:
    """Return what the last run of pytest recorded under this name of its cache, or an empty list."""
    try:
        return json.loads((CACHE / name).read_bytes())
    except (OSError, ValueError):
        return []


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
