"""Numbers in lessons: looked up in predictions, compared, formatted, and inserted into texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from meshwave.engine.document import Design
from meshwave.engine.document.fixes import parse_path
from meshwave.engine.findings import Refusal
from meshwave.engine.lessons.lesson import Lesson, unknown_name_refusal
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.units import format_number as format_number
from meshwave.engine.units import format_units, percent, quantity

SCALES: dict[str, float] = {
    "": 1.0, "%": 0.01, "s": 1.0, "ms": 1e-3, "us": 1e-6, "GB": 1e9, "MB": 1e6, "TFLOP/s": 1e12,
}  # fmt: skip
"""Value of one unit in SI units."""
OTHERS: dict[str, Callable[[Prediction], float]] = {
    "devices": lambda prediction: sum(len(mesh.devices) for mesh in prediction.design.meshes),
    "stages": lambda prediction: prediction.design.stages,
    "sequences": lambda prediction: prediction.costs.samples,
    "mean_busy_s": lambda prediction: float(prediction.timeline.busy.mean()),
}
"""Additional numbers of a prediction: used devices, stages, sequences per step, and computing time of a mesh."""
_PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}")
_CONTENT = re.compile(r"\s*([\w-]+)(?:\s*/\s*([\w-]+))?\s*:\s*([\w.\[\]-]+)(?:\s+(\S+))?\s*")


def look_up_number(prediction: Prediction, name: str) -> Any:
    """Return a number of a prediction (of a list, the largest), or the value of a key of its design.

    Raises:
        Refusal: the number does not exist.
    """
    first, *rest = parse_path(name) or [name]
    if name in OTHERS:
        return OTHERS[name](prediction)
    numbers = prediction.numbers
    values: Any = prediction.design.model_dump(mode="json") if first in Design.model_fields else numbers
    if first not in values:
        raise unknown_name_refusal("number", name, [*numbers, *OTHERS])
    try:
        value = _value_at(values, [first, *rest])
    except LookupError:
        raise unknown_name_refusal("number", name, [*numbers, *OTHERS]) from None
    return max(value) if isinstance(value, list) and all(isinstance(each, int | float) for each in value) else value


def document_value(design: Design, key: str) -> Any:
    """Return the value of a key in a design's document, such as ``pipeline.microbatches``.

    Raises:
        Refusal: the document has no such key.
    """
    try:
        return _value_at(design.model_dump(mode="json"), parse_path(key))
    except LookupError:
        raise unknown_name_refusal("key", key, Design.model_fields) from None


def _value_at(value: Any, steps: Sequence[str | int]) -> Any:
    """Return the value at a path of keys and indices.

    Raises:
        LookupError: the path does not exist.
    """
    for step in steps:
        try:
            value = value[step]
        except TypeError as error:  # the value is not a section or list, or the step does not fit it
            raise LookupError(step) from error
    return value


def design_number(lesson: Lesson, design: str, name: str, over: str | None = None) -> float:
    """Return a number of a design of the lesson, divided by that of the design ``over`` if one is given.

    Raises:
        Refusal: the prediction has no such number.
    """
    value = look_up_number(lesson.prediction(design), name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refusal("lesson_no_number", {"name": name, "design": design})
    return value / design_number(lesson, over, name) if over else float(value)


def format_value(value: float, unit: str) -> str:
    """Format a value with its unit, such as ``33.3%`` or ``41.5 GB``."""
    text = format_number(value / SCALES[unit], 3 if unit else 4)
    return text + ("%" if unit == "%" else f" {unit}" if unit else "")


def fill_numbers(lesson: Lesson, text: str) -> str:
    """Replace the placeholders in a text, such as ``{{start: bubble_ratio %}}``, by numbers of the lesson's designs.

    ``{{one / other: makespan_s}}`` is the ratio of two designs.

    Raises:
        Refusal: a placeholder is malformed, or names an unknown design or number.
    """
    return _PLACEHOLDER.sub(lambda found: _fill_placeholder(lesson, found[0], found[1]), text)


def _fill_placeholder(lesson: Lesson, text: str, content: str) -> str:
    match = _CONTENT.fullmatch(content)
    if not match or (match[4] or "") not in SCALES:
        raise Refusal("lesson_placeholder", {"text": text})
    design, over, name, unit = match.groups()
    for each in filter(None, (design, over)):
        if each not in lesson.designs:
            raise unknown_name_refusal("design", each, lesson.designs)
    return format_value(design_number(lesson, design, name, over), unit or "")


def format_quantity(prediction: Prediction, name: str, value: Any) -> str:
    """Format a number of a prediction with its unit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("bandwidth"):
        return quantity(value, "B/s")
    if name.endswith("_ratio") or name == "mfu":
        return percent(value)
    if "bytes" in name:
        return quantity(value, "B")
    if re.search(r"_s(\[\d+\])?$", name) and "per_s" not in name:
        return quantity(value, "s") if prediction.costs.unit == "s" else format_units(value)
    return format_number(value)


_TITLES = {
    "makespan_s": "Step time",
    "fits": "Fits in memory",
    "mfu": "MFU",
    "peak_inflight": "Peak activations in flight",
    "mean_busy_s": "Mean busy time",
    "sequences": "Sequences per step",
    "samples_per_s": "Samples per second",
    "tokens_per_s": "Tokens per second",
    "energy_j": "Energy in joules",
    "cluster.device.memory_bytes": "Memory per device",
    "cluster.inter_node.bandwidth": "Bandwidth between nodes",
    "experts.ep": "Degree ep of the experts",
    "experts.esp": "Degree esp of the experts",
    "experts.schedule": "Schedule of the experts",
    "model.moe.capacity_factor": "Capacity factor",
    "model.moe.top_k": "Experts per token",
    "pipeline.microbatches": "Microbatches",
    "pipeline.recompute": "Recomputation",
    "pipeline.schedule": "Schedule",
    "pipeline.waves": "Waves",
    "training.micro_batch_size": "Microbatch size",
}
"""Titles of numbers whose key does not read as a title."""
_PLACE = re.compile(r"(?:meshes\[(?P<mesh>\d+)\]\.axes\.)?(?P<name>.+?)(?:\[(?P<rank>\d+)\])?")


def number_title(name: str) -> str:
    """Return the title of a number, such as "Peak memory" for ``peak_memory_bytes``, or "tp of rank 0"."""
    place = _PLACE.fullmatch(name)
    assert place is not None
    key, rank = place["name"], place["mesh"] or place["rank"]
    words = re.sub(r"_(s|bytes)$", "", key).replace("_", " ").replace(".", " ")
    title = words if place["mesh"] else _TITLES.get(key, words[:1].upper() + words[1:])
    return f"{title} of rank {rank}" if rank else title
