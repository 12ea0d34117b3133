"""How true predictions are on this machine: ``meshwave bench accuracy`` and ``meshwave bench rehearsal``.

Designs are data (``cases``, ``hanayo``), so are results (``results``): a table and a picture are made from these
alone, and those of a bench that was stopped are kept.
"""

from meshwave.engine.bench.accuracy.command import accuracy, rehearsal, to_text

__all__ = ["accuracy", "rehearsal", "to_text"]
