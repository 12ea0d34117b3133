"""Check the code: style (ruff), types (mypy), imports (import-linter).

``make check`` runs all checks; an argument selects one. The exit status is 1 if any check has findings.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINKS = ROOT / "build/links"
CHECKS = {
    "rules": ["ruff", "check", "--quiet", "--output-format", "concise", "."],
    "layout": ["ruff", "format", "--check", "--quiet", "."],
    "types": ["mypy", "--no-error-summary"],
    "imports": ["lint-imports", "--config", str(ROOT / "pyproject.toml")],
}


def main(names: list[str]) -> int:
    """Run the named checks, by default all; return 1 if any has findings."""
    link_packages()
    return max([run_check(name) for name in names or CHECKS])


def run_check(name: str) -> int:
    """Run one check, print its findings to standard output, and return 1 if it has any."""
    program, *arguments = CHECKS[name]
    folder = LINKS if name == "imports" else ROOT  # import-linter looks for packages in its own folder first
    done = subprocess.run([Path(sys.executable).with_name(program), *arguments], cwd=folder, check=False)
    print(f"{name}: {'clean' if done.returncode == 0 else 'findings above'}", flush=True)
    return min(abs(done.returncode), 1)


def link_packages() -> None:
    """Link the packages into ``meshwave`` as in an installation, because checkers do not execute its import hook."""
    package = LINKS / "meshwave"
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir(parents=True)
    for name in ("engine", "designer"):
        (package / name).symlink_to(ROOT / name)
    for file in (ROOT / "meshwave").glob("*.*"):
        (package / file.name).symlink_to(file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
