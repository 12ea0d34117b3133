"""Accuracy of predictions on this machine: ``meshwave bench accuracy`` and ``meshwave bench rehearsal``.

Designs are data (``cases``, ``hanayo``), and so are results (``results``). The page and the picture are made from the
results alone, and a benchmark that was stopped keeps its results.
"""

from meshwave.engine.bench.accuracy.command import accuracy, rehearsal, to_text

__all__ = ["accuracy", "rehearsal", "to_text"]
