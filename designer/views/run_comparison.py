"""A comparison of a run with its prediction, and how the predictions of a design came out, as the page shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from meshwave.engine.program.action import WORDS
from meshwave.engine.runs.accuracy import Compared, Comparison, MeshMemory
from meshwave.engine.runs.run_comparison import Outcome, spread
from meshwave.engine.units import duration, quantity, when

MANY_TIMES = 10
"""From there on an error is told as a factor: +900 % says less than ten times."""
SHOWN_OUTCOMES = 12
MOST_TOLD = 8
"""Meshes whose memory is told by what it is for."""
MOST_ROWS = 24
"""Of one kind; those that are off the most."""

Row = list[str]
"""What it is, predicted, measured, error."""


def as_shown(found: Comparison) -> dict[str, Any]:
    """The iteration and each kind of action; then, to be unfolded, meshes, links, layers and memory; and in words where
    the error comes from, what kind of run it was and how its clocks were aligned."""
    iteration = found.iteration
    step = Compared(iteration.predicted_s, iteration.measured_s)
    kinds = {WORDS[op.name]: each for op, each in found.by_kind.items() if each.predicted_s or each.measured_s}
    meshes = found.timeline.meshes
    parts = {
        "Meshes, computing": {f"mesh {meshes[rank]}": each for rank, each in found.by_mesh.items()},
        "Waiting for communication": {
            f"mesh {mesh}": Compared(*waited)
            for mesh, *waited in zip(
                meshes,
                *(t.exposed_communication.tolist() for t in (found.prediction.timeline, found.timeline)),
                strict=True,
            )
        },
        "Links, a transfer": {
            f"{meshes[link.source]} to {meshes[link.target]}": each for link, each in found.by_link.items()
        },
        "Layers with experts": {f"{each.action} on {each.mesh}: {each.name}": each.compared for each in found.by_layer},
    }
    shown = [{"title": title, "rows": _rows(found, each)} for title, each in parts.items() if each]
    memory = [row for each in found.memory for row in _of_memory(each, whole=len(found.memory) > MOST_TOLD)]
    bubbles = [f"{each.bubble_ratio:.1%}" for each in (found.prediction.timeline, found.timeline)]
    return {
        "rows": [*_rows(found, {"iteration": step}), *_rows(found, kinds), ["bubble", *bubbles, ""]],
        "parts": [*shown, *([{"title": "Peak memory of a device", "rows": memory}] if memory else [])],
        "spread": f"Step time: {spread(found)}",
        "cause": _sentence(found.cause.words) if found.cause else "",
        "label": _sentence(found.label),
        "clocks": _sentence(found.doubts),
    }


def _rows(found: Comparison, named: dict[str, Compared]) -> list[Row]:
    worst = sorted(named, key=lambda name: -abs(named[name].measured_s - named[name].predicted_s))[:MOST_ROWS]
    return [[name, *_compared(found, each)] for name, each in named.items() if name in worst]


def _compared(found: Comparison, each: Compared) -> Row:
    expected, took = duration(each.predicted_s, found.prediction.costs.unit), duration(each.measured_s, found.unit)
    off = _error(each.predicted_s, each.measured_s) if found.comparable and each.error is not None else "-"
    return [expected, f"{'≤ ' if each.at_most else ''}{took}", off]


def _of_memory(found: MeshMemory, *, whole: bool) -> Iterable[Row]:
    """A mesh, and what it is for unless the ``whole`` is told alone."""
    named = {f"mesh {found.mesh}": (found.predicted_bytes, found.measured_bytes)}
    named |= {} if whole else {f"· {kind}": sizes for kind, sizes in found.by_category.items()}
    for name, (predicted, measured) in named.items():
        yield [name, quantity(predicted, "B"), quantity(measured, "B"), _error(predicted, measured)]


def _error(expected: float, took: float) -> str:
    if took <= 1e-7 or expected <= 1e-12:
        return "-"
    times = took / expected
    return f"× {times:.0f}" if times >= MANY_TIMES else f"{times - 1:+.0%}".replace("-0%", "+0%")


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}." if words else ""


def history_shown(outcomes: Sequence[Outcome], shown: str) -> list[dict[str, Any]]:
    """The latest runs of a design, the first one first: how far the prediction of each was off, of the largest error
    as a share, and in words."""
    known = [each for each in outcomes if each.error is not None][:SHOWN_OUTCOMES][::-1]
    most = max((abs(each.error or 0.0) for each in known), default=0.0)
    return [_outcome(each, most, each.run == shown) for each in known] if len(known) > 1 else []


def _outcome(each: Outcome, most: float, shown: bool) -> dict[str, Any]:
    error = each.error or 0.0
    return {
        "run": each.run,
        "shown": shown,
        "share": error / most if most else 0.0,
        "error": _error(1.0, 1.0 + error),
        "words": ", ".join(_words(each)),
    }


def _words(each: Outcome) -> Iterable[str]:
    yield when(each.created_s)
    yield f"{each.cost} costs"
    if each.manner:
        yield each.manner
