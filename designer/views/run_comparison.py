"""The comparison of a run with its prediction, and the prediction errors of a design's runs, as the page shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from meshwave.designer.kit.memory_labels import memory_label
from meshwave.engine.messages import render
from meshwave.engine.program.action import WORDS
from meshwave.engine.runs.accuracy import ComparedDuration, Comparison, ErrorPart, MeshMemory
from meshwave.engine.runs.run import Contention
from meshwave.engine.runs.run_comparison import Outcome, step_time_text
from meshwave.engine.units import duration, format_time, percent, percent_change, quantity

MANY_TIMES = 10
"""Ratio from which an error is shown as a factor such as × 10, which is clearer than +900%."""
SHOWN_OUTCOMES = 12
MOST_MEMORY_DETAILS = 8
"""Largest number of meshes whose memory is shown by category."""
MOST_ROWS = 24
"""Largest number of rows of one kind; the rows with the largest errors are shown."""

Row = list[str]
"""Name, predicted value, measured value, error."""


def comparison_data(found: Comparison, contention: Contention | None = None) -> dict[str, Any]:
    """Return a comparison for the page.

    It has rows for the iteration and the kinds of actions; further tables of meshes, links, layers and memory; bars
    from the predicted to the measured step; and sentences about the spread, the cause of the error, the kind of run
    and its clocks. ``contention`` is the contention for cores during the run.
    """
    error_parts = found.error_parts(contention)
    iteration = found.iteration
    step = ComparedDuration(iteration.predicted_s, iteration.measured_s)
    kinds = {WORDS[op.name]: each for op, each in found.by_kind.items() if each.predicted_s or each.measured_s}
    meshes = found.timeline.meshes
    parts = {
        "Compute time per mesh": {f"mesh {meshes[rank]}": each for rank, each in found.by_mesh.items()},
        "Exposed communication per mesh": {
            f"mesh {mesh}": ComparedDuration(*waited)
            for mesh, *waited in zip(
                meshes,
                *(t.exposed_communication.tolist() for t in (found.prediction.timeline, found.timeline)),
                strict=True,
            )
        },
        "Transfer time per link": {
            f"{meshes[link.source]} to {meshes[link.target]}": each for link, each in found.by_link.items()
        },
        "Expert layers": {f"{each.action} on {each.mesh}: {each.name}": each.compared for each in found.by_layer},
    }
    shown = [{"title": title, "rows": _compared_rows(found, each)} for title, each in parts.items() if each]
    memory = [row for each in found.memory for row in _memory_rows(each, whole=len(found.memory) > MOST_MEMORY_DETAILS)]
    bubbles = [percent(each.bubble_ratio) for each in (found.prediction.timeline, found.timeline)]
    return {
        "rows": [*_compared_rows(found, {"iteration": step}), *_compared_rows(found, kinds), ["bubble", *bubbles, ""]],
        "parts": [*shown, *([{"title": "Peak memory per device", "rows": memory}] if memory else [])],
        "spread": f"Step time: {step_time_text(found)}",
        "waterfall": _waterfall(found, error_parts),
        "cause": _sentence(_main_cause(found, error_parts)),
        "label": _sentence(found.label),
        "clocks": _sentence(found.clock_note),
    }


def _main_cause(found: Comparison, parts: Sequence[ErrorPart]) -> str:
    """Return the main cause of the error: contention for cores if it is the largest part, else the simulated cause."""
    error_s = found.iteration.measured_s - found.iteration.predicted_s
    if error_s and parts and parts[0].code == "error_of_contention":
        return render("contention_of_error", {**parts[0].params, "share": parts[0].effect_s / error_s})
    return found.cause.description if found.cause else ""


def _waterfall(found: Comparison, parts: Sequence[ErrorPart]) -> list[dict[str, Any]]:
    """Return bars from the predicted to the measured step time: text, and both ends as shares of the axis."""
    iteration, ends = found.iteration, [found.iteration.predicted_s]
    for part in parts:
        ends.append(ends[-1] + part.effect_s)
    most = max(*ends, iteration.measured_s) or 1.0

    def bar(name: str, start: float, end: float, text: str, kind: str) -> dict[str, Any]:
        low, high = sorted((max(start, 0.0) / most, max(end, 0.0) / most))
        return {"name": name, "from": low, "to": high, "text": text, "kind": kind}

    if not parts:
        return []
    steps = []
    for part, start, end in zip(parts, ends, ends[1:], strict=False):
        sign = "+" if part.effect_s > 0 else "−"
        text = f"{sign}{duration(abs(part.effect_s), found.unit)}"
        steps.append(bar(part.name, start, end, text, "more" if part.effect_s > 0 else "less"))
    predicted, measured = (duration(each, found.unit) for each in iteration[:2])
    return [
        bar("Predicted", 0.0, iteration.predicted_s, predicted, "whole"),
        *steps,
        bar("Measured", 0.0, iteration.measured_s, measured, "whole"),
    ]


def _compared_rows(found: Comparison, named: dict[str, ComparedDuration]) -> list[Row]:
    worst = sorted(named, key=lambda name: -abs(named[name].measured_s - named[name].predicted_s))[:MOST_ROWS]
    return [[name, *_value_cells(found, each)] for name, each in named.items() if name in worst]


def _value_cells(found: Comparison, each: ComparedDuration) -> Row:
    expected, took = duration(each.predicted_s, found.prediction.costs.unit), duration(each.measured_s, found.unit)
    off = _format_error(each.predicted_s, each.measured_s) if found.is_comparable and each.error is not None else "-"
    return [expected, f"{'≤ ' if each.at_most else ''}{took}", off]


def _memory_rows(found: MeshMemory, *, whole: bool) -> Iterable[Row]:
    """Yield the row of a mesh and, unless ``whole``, a row per memory category."""
    named = {f"mesh {found.mesh}": (found.predicted_bytes, found.measured_bytes)}
    named |= {} if whole else {f"· {memory_label(kind)}": sizes for kind, sizes in found.by_category.items()}
    for name, (predicted, measured) in named.items():
        yield [name, quantity(predicted, "B"), quantity(measured, "B"), _format_error(predicted, measured)]


def _format_error(expected: float, took: float) -> str:
    if took <= 1e-7 or expected <= 1e-12:
        return "-"
    times = took / expected
    return f"× {times:.0f}" if times >= MANY_TIMES else percent_change(times - 1)


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}." if words else ""


def error_history(outcomes: Sequence[Outcome], shown: str) -> list[dict[str, Any]]:
    """Return the prediction errors of the latest runs of a design, oldest first.

    ``share`` is relative to the largest error; the list is empty unless there are two runs.
    """
    known = [each for each in outcomes if each.error is not None][:SHOWN_OUTCOMES][::-1]
    most = max((abs(each.error or 0.0) for each in known), default=0.0)
    return [_outcome_data(each, most, each.run == shown) for each in known] if len(known) > 1 else []


def _outcome_data(each: Outcome, most: float, shown: bool) -> dict[str, Any]:
    error = each.error or 0.0
    return {
        "run": each.run,
        "shown": shown,
        "share": error / most if most else 0.0,
        "error": _format_error(1.0, 1.0 + error),
        "words": ", ".join(_outcome_words(each)),
    }


def _outcome_words(each: Outcome) -> Iterable[str]:
    yield format_time(each.created_s)
    yield f"{each.cost} costs"
    if each.manner:
        yield each.manner
