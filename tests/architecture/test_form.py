"""The form of the code: what ``make check`` says about it is nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("question", [("check", "--quiet"), ("format", "--check", "--quiet")], ids=["rules", "layout"])
def test_ruff_has_nothing_to_say(question: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "ruff", *question, "--output-format", "concise", "."]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
