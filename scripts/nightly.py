"""Run long checks: many more examples, more sizes, other Python versions, newest releases of dependencies.

An argument selects parts: ``explore`` runs every property test with new seeds and 25 times as many examples; ``full``
runs the tests that are marked nightly; ``latency`` runs those of the page through a slow connection; ``fuzz`` reads 1000
damaged inputs of each kind; ``pythons`` runs the tests on each installed Python from 3.11 to 3.14, with the newest
releases of all dependencies. Failed commands are listed at the end, with the command that reproduces the failure. The
exit status is 1 if any command failed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/nightly"
PARTS = ("explore", "full", "latency", "fuzz", "pythons")
MINORS = range(11, 15)
PARALLEL = ["-n", "2", "--dist", "loadfile"]


class Job(NamedTuple):
    """Command of the nightly checks."""

    name: str
    command: list[str]
    environment: dict[str, str]

    def run(self) -> bool:
        """Run the command and return True if it succeeded."""
        print(f"\nnightly: {self.name}: {self}", flush=True)
        return (
            subprocess.run(self.command, cwd=ROOT, env={**os.environ, **self.environment}, check=False).returncode == 0
        )

    def __str__(self) -> str:
        return " ".join([*(f"{name}={value}" for name, value in self.environment.items()), *self.command])


def main() -> int:
    """Run the selected parts and list failed commands."""
    parser = argparse.ArgumentParser(description="Run the nightly tests.")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas: %(default)s")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="seed to explore from")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    failed = [job for part in parts for job in jobs(part, options.seed) if not job.run()]
    for job in failed:
        print(f"nightly: failed: {job.name}. To reproduce: {job}", flush=True)
    return 1 if failed else 0


def jobs(part: str, seed: int) -> Iterator[Job]:
    """Yield the commands of a part."""
    python, tests = sys.executable, ["-m", "pytest", *PARALLEL]
    if part == "explore":
        properties = [python, *tests, "-m", "not torch and not browser", f"--hypothesis-seed={seed}"]
        yield Job("explore", properties, {"HYPOTHESIS_PROFILE": "nightly"})
    elif part == "full":
        yield Job("full", [python, *tests, "--nightly", "-m", "nightly"], {"MESHWAVE_GESTURES": f"{seed}:300"})
    elif part == "latency":
        yield Job("latency", [python, *tests, "-p", "tests.latency", "tests/browser"], {})
    elif part == "fuzz":
        yield Job("fuzz", [python, "-m", "tests.fuzz", "--inputs", "1000", "--seed", str(seed)], {})
    else:
        for minor in MINORS:
            yield from newest_releases(f"python3.{minor}")


def newest_releases(name: str) -> Iterator[Job]:
    """Yield the commands that install the newest releases for a Python, without pins, and run the tests there."""
    found = shutil.which(name)
    if found is None or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        print(f"nightly: {name} is not installed here; left out", flush=True)
        return
    folder = BUILD / name
    python = str(folder / "bin/python")
    yield Job(f"environment of {name}", [found, "-m", "venv", "--clear", str(folder)], {})
    newest = [python, "-m", "pip", "install", "--quiet", "--upgrade", "torch", "--editable", f"{ROOT}[test]"]
    yield Job(f"newest releases for {name}", newest, {})
    yield Job(f"tests on {name}", [python, "-m", "pytest", *PARALLEL], {})


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
