"""Cards of the gallery: every schedule for a design, predicted and drawn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from meshwave.designer.state.schedule_pictures import LANES, schedule_picture
from meshwave.engine.document import Design
from meshwave.engine.lowering.schedule_prices import priced_pipe
from meshwave.engine.predict.gallery import Entry, RefusedVariant, Variant, apply_variant, simulate_variants
from meshwave.engine.predict.gallery_notes import gallery_notes
from meshwave.engine.units import duration, format_count, percent, percent_change, quantity

BATCH_INTERVAL_S = 0.15
LONGEST_AXIS = 1.8
"""Largest end of the common time axis, relative to the fastest step."""


class Cards(NamedTuple):
    """A batch of cards, and the notes on all variants so far."""

    variants: list[Variant]
    message: dict[str, Any]  # for the page
    searched: list[tuple[Design, Any]]  # designs whose order was searched, with the results


def make_cards(design: Design) -> Iterator[Cards]:
    """Predict the variants of a design one after another, and yield their cards in batches."""
    entries: list[Entry] = []
    present: Entry | None = None
    batch, sent = Cards([], {"type": "found", "cards": []}, []), time.monotonic()
    for found in simulate_variants(design):
        batch.variants.append(found.variant)
        if isinstance(found, Entry):
            present = found if found.variant.is_present else present
            batch.message["cards"].append(variant_card(found, present))
            entries.append(replace(found, timeline=None))
            batch.searched.extend(_search_results(apply_variant(design, found.variant)))
        else:
            batch.message["cards"].append(refused_card(found))
        if time.monotonic() - sent > BATCH_INTERVAL_S:
            yield _add_summary(batch, entries)
            batch, sent = Cards([], {"type": "found", "cards": []}, []), time.monotonic()
    yield _add_summary(batch, entries)


def _add_summary(batch: Cards, entries: list[Entry]) -> Cards:
    batch.message.update(axis=common_axis(entries), notes=[note.as_data() for note in gallery_notes(entries)])
    return batch


def _search_results(design: Design) -> Iterator[tuple[Design, Any]]:
    result = design.pipeline.search_result(priced_pipe(design))
    if result is not None:
        yield design, result


def describe_gallery(design: Design) -> str:
    """Describe the design of the gallery."""
    meshes = format_count(design.ranks, "mesh", "meshes")
    words = f"{meshes}, {design.pipe.microbatches} microbatches, {design.model.layers} layers, this design's hardware"
    return f"{words}; thumbnails of large designs show only {LANES} meshes" if design.ranks > LANES else words


def common_axis(entries: list[Entry]) -> float:
    """Return the end of the common time axis of all pictures."""
    lengths = [entry.makespan_s for entry in entries]
    return min(max(lengths), LONGEST_AXIS * max(min(lengths), np.finfo(float).tiny)) if lengths else 1.0


def refused_card(refused: RefusedVariant) -> dict[str, Any]:
    """Return the card of a variant that cannot be predicted."""
    variant = refused.variant
    shown = {"key": variant.key, "schedule": variant.schedule, "title": variant.title, "present": variant.is_present}
    return {**shown, "reason": refused.reason, "choosable": variant.refusal is None and not variant.is_present}


def variant_card(entry: Entry, present: Entry | None) -> dict[str, Any]:
    """Return the card of a variant: texts, sort keys and a picture."""
    variant = entry.variant
    return {
        "key": variant.key,
        "schedule": variant.schedule,
        "title": variant.title,
        "present": variant.is_present,
        "reason": "",
        "choosable": True,
        "fits": entry.fits,
        "iteration": duration(entry.makespan_s, entry.unit),
        "change": _describe_change(entry, present),
        "better": _describe_change(entry, present).startswith("−"),
        "bubble": percent(entry.bubble_ratio),
        "span": percent(entry.span_bubble_ratio),
        "memory": quantity(entry.peak_bytes, "B"),
        "capacity": quantity(entry.capacity_bytes, "B"),
        "filled": entry.peak_bytes / entry.capacity_bytes,
        "traffic": quantity(entry.traffic_bytes, "B"),
        "copies": f"{entry.weight_copies:g} ×",
        "makespan": entry.makespan_s,
        "by": {
            "iteration": entry.makespan_s,
            "bubble": entry.bubble_ratio,
            "memory": entry.peak_bytes,
            "traffic": entry.traffic_bytes,
            "weights": entry.weight_copies,
        },
        "picture": schedule_picture(entry.timeline) if entry.timeline is not None else None,
    }


def _describe_change(entry: Entry, present: Entry | None) -> str:
    """Return the change of the step time from the current variant as text."""
    if present is None or entry is present or not present.makespan_s:
        return ""
    change = entry.makespan_s / present.makespan_s - 1
    if abs(change) < 5e-4:
        return "the same"
    if change > 1:
        return f"{change + 1:.2g} times"
    return percent_change(change)
