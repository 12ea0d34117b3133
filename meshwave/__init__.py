"""Meshwave: design, predict and run distributed training.

``meshwave.engine`` plans, predicts and runs; ``meshwave.designer`` is the page.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).absolute().parent
if not (_HERE / "engine").is_dir():  # a checkout keeps engine/ and designer/ beside this folder, a wheel inside it
    __path__.append(str(_HERE.parent))

__version__ = "0.1.0"
