"""The form of the code: every check of ``make check`` is clean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["rules", "layout", "types", "imports"])
def test_check_is_clean(name: str) -> None:
    command = [sys.executable, "scripts/check.py", name]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
