"""Run the tests, repeat failed ones alone, and report those that then pass as flaky.

A failure caused by a race should neither block an unrelated change nor be forgotten, so it is printed at the end.
Arguments are those of pytest. The exit status is that of the second run, if there was one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / ".pytest_cache/v/cache/lastfailed"
FAILED = 1  # exit status of pytest if tests failed
MANY = 20
"""Number of failures from which on tests are not repeated, because a race does not cause so many."""


def main(arguments: list[str]) -> int:
    """Run the tests, repeat those that failed, and return the exit status."""
    RECORD.unlink(missing_ok=True)  # results of earlier runs
    status = run_pytest(arguments)
    failed = last_failed() if status == FAILED else []
    if not failed or len(failed) > MANY:
        return status
    print(f"\nrunning {len(failed)} failed tests once more, alone", flush=True)
    status = run_pytest(["-p", "no:xdist", "--last-failed", "--last-failed-no-failures", "none"])
    still = set(last_failed()) if status else set()
    for name in failed:
        if name not in still:
            print(f"flaky: {name} failed, and passed when it ran alone", flush=True)
    return status


def run_pytest(arguments: list[str]) -> int:
    """Run pytest and return its exit status."""
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, check=False).returncode


def last_failed() -> list[str]:
    """Return the names of the tests that failed in the last run."""
    try:
        return sorted(json.loads(RECORD.read_bytes()))
    except (OSError, ValueError):
        return []


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
