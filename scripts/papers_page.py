"""Rewrite the computed section of ``docs/papers.md``: ``python scripts/papers_page.py``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from meshwave.engine.bench.papers.hanayo_page import refresh  # noqa: E402

PAGE = ROOT / "docs" / "papers.md"

if __name__ == "__main__":
    PAGE.write_text(refresh(PAGE.read_text("utf-8")), "utf-8")
