"""Meshwave: design, predict and run distributed training.

The names in ``__all__`` are the public Python API; the code is in ``meshwave.engine`` and ``meshwave.designer``.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

_HERE = Path(__file__).absolute().parent
if not (_HERE / "engine").is_dir():  # engine/ and designer/ are beside this folder in a checkout, inside it in a wheel
    __path__.append(str(_HERE.parent))

if TYPE_CHECKING:
    from meshwave.api import Design, Picture, Prediction, Run, compare, example, load, predict, run, sweep
    from meshwave.designer.notebook import Designer as designer

__version__ = "0.1.0"
__all__ = [
    "Design",
    "Picture",
    "Prediction",
    "Run",
    "compare",
    "designer",
    "example",
    "load",
    "predict",
    "run",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """Import the API when one of its names is first used, because the command line does not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "designer":
        return import_module("meshwave.designer")
    return getattr(import_module("meshwave.api"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
