"""Run the tests; run those that failed once more, alone, and name as flaky what passes then.

A test that fails by a race should not hold up a change that has nothing to do with it, and should not be forgotten
either: it is printed at the end. Arguments are those of pytest. The exit status is that of the second run, if there
was one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / ".pytest_cache/v/cache/lastfailed"
FAILED = 1  # pytest's status where tests ran and some failed
MANY = 20
"""From this number of failures on, tests are not run again, since they are no race."""


def main(arguments: list[str]) -> int:
    """Run the tests, and once more those that failed; return the exit status."""
    RECORD.unlink(missing_ok=True)  # of earlier runs
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
    """Return the names of the tests that failed when they ran last."""
    try:
        return sorted(json.loads(RECORD.read_bytes()))
    except (OSError, ValueError):
        return []


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
