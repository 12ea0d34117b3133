"""Accuracy of predictions on this machine: ``meshwave bench accuracy`` and ``meshwave bench rehearsal``.

Designs (``cases``, ``hanayo``) and results (``results``) are data. The page and the picture are made from the results
alone, and an interrupted benchmark keeps its results.
"""

from meshwave.engine.bench.accuracy.command import measure_accuracy, measure_dry_runs, to_text
