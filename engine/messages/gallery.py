"""Messages about a gallery of schedules, and about the search for a better order."""

from __future__ import annotations

from collections.abc import Sequence

from meshwave.engine.messages import Message, fill_template
from meshwave.engine.units import duration, percent, quantity

EQUAL_MEMORY_WITHIN = 0.005
"""Relative difference of memory up to which it is reported as equal."""
TWICE = 2.0
"""Smallest ratio of memory that is reported as a factor."""


def _relative_memory(ratio: float) -> str:
    """Return memory relative to another's, such as ``12.0% more memory`` or ``2.5 times the memory``."""
    if ratio >= TWICE:
        return f"{ratio:.1f} times the memory"
    difference = abs(ratio - 1)
    if difference < EQUAL_MEMORY_WITHIN:
        return "the same memory"
    return f"{percent(difference)} {'more' if ratio > 1 else 'less'} memory"


def _variant_name(title: str) -> str:
    """Return the title of a variant for a sentence: ``Hanayo (2 waves, ungrouped)``."""
    schedule, _, options = title.partition(", ")
    return f"{schedule} ({options})" if options else schedule


# ---- the search for an order ----


def _search_fits(step: float, unit: str) -> str:
    return f"The search found an order of these stages that fits in memory and takes {duration(step, unit)}."


def _search_no_better(fits: bool, reduction: float, is_equal: bool) -> str:
    best = "is as fast" if is_equal else f"is only {percent(reduction)} shorter"
    found = best if fits else "does not fit in memory"
    return f"The search found no better order of these stages: its best order {found}."


def _search_better(step: float, unit: str, reduction: float, memory_ratio: float) -> str:
    return (
        f"The search found an order of these stages that takes {duration(step, unit)}: {percent(reduction)} shorter, with "
        f"{_relative_memory(memory_ratio)}."
    )


# ---- notes on a gallery ----


def _no_fitting_schedule(schedule: str, peak_bytes: float, capacity_bytes: float) -> str:
    template = "No schedule fits in memory. {name} needs the least: {peak:quantity|B} of {capacity:quantity|B}."
    return fill_template(template, name=_variant_name(schedule), peak=peak_bytes, capacity=capacity_bytes)


def _fastest_schedule(schedule: str, step: float, unit: str, current: str = "") -> str:
    known = {
        "": "",
        "fastest": ": it is the current schedule",
        "equal": "; the current schedule is as fast",
        "too_large": "; the current schedule does not fit in memory",
    }
    return f"{_variant_name(schedule)} takes {duration(step, unit)}{known[current]}."


def _faster_schedule(schedule: str, step: float, unit: str, reduction: float, memory_ratio: float) -> str:
    return (
        f"{_variant_name(schedule)} takes {duration(step, unit)}: {percent(reduction)} shorter than the current schedule, with "
        f"{_relative_memory(memory_ratio)}."
    )


def _other_options(
    schedule: str, current: str, current_fits: bool, step: float, unit: str, reduction: float, memory_ratio: float
) -> str:
    gain = (
        f"{percent(reduction)} shorter than {_variant_name(current)}"
        if current_fits
        else f"and fits, unlike {_variant_name(current)}"
    )
    separator = ": " if current_fits else " "
    return f"{_variant_name(schedule)} takes {duration(step, unit)}{separator}{gain}, with {_relative_memory(memory_ratio)}."


def _hanayo_or_interleaved(
    hanayo: str,
    chunks: int,
    steps: Sequence[float],
    unit: str,
    faster: str,
    reduction: float,
    bubble_difference: float,
    transfer_difference: float,
    negligible: float,
    backward_ratio: float,
    has_uneven_stages: bool,
    traffic_bytes: Sequence[float],
    peak_bytes: Sequence[float],
) -> str:
    """Compare Hanayo with interleaved 1F1B; pairs are in this order, and differences positive if Hanayo takes longer."""
    own, other = (duration(step, unit) for step in steps)
    verdict = f"it is {percent(reduction)} shorter with {faster}" if faster else "they are equally fast"
    bubble, transfers = (duration(abs(each), unit) for each in (bubble_difference, transfer_difference))
    if abs(bubble_difference) < negligible:
        free = "Without transfers they are equally fast"
    elif bubble_difference > 0:
        reason = (
            f", because a backward takes {backward_ratio:.2g} times as long as a forward, and Hanayo waits for it where a wave "
            "reverses"
        )
        free = f"Without transfers, the step is {bubble} shorter with interleaved 1F1B{reason if backward_ratio > 1 else ''}"
    else:
        reason = ", because stages take different times; with equal stages it would be shorter with interleaved 1F1B"
        free = f"Without transfers, the step is {bubble} shorter with Hanayo{reason if has_uneven_stages else ''}"
    cost = f"cost Hanayo {transfers} {'less' if transfer_difference < 0 else 'more'}"
    change = cost if abs(transfer_difference) > negligible else "make little difference"
    sent, received = (quantity(each, "B") for each in traffic_bytes)
    peak, other_peak = (quantity(each, "B") for each in peak_bytes)
    return (
        f"With {chunks} chunks per mesh, the step takes {own} with {_variant_name(hanayo)} and {other} with interleaved 1F1B: "
        f"{verdict}. {free}; transfers {change} (Hanayo sends {sent} and interleaved 1F1B {received}, because the two "
        f"stages at a reversal are on one mesh). Peak memory is {peak} with Hanayo and {other_peak} with interleaved "
        "1F1B."
    )


def _number_of_waves(
    best: int,
    tried: Sequence[int],
    step: float,
    unit: str,
    formula: float | None,
    backward: float,
    transfer: float,
    deviation: str,
) -> str:
    words = fill_template(
        "The fastest number of waves in simulation is {best} (tried: {tried:list}), with a step of {step}",
        best=best,
        tried=tried,
        step=duration(step, unit),
    )
    if formula is None:
        return (
            f"{words}. Transfers are free, so each doubling of the waves halves the bubble, as long as there are enough "
            "layers."
        )
    reasons = {
        "": "",
        "layers": f"; the layers allow at most {best}",
        "assumptions": "; the formula assumes equal stages and as many microbatches as meshes",
    }
    times = f"T_B = {duration(backward, unit)} (backward) and T_C = {duration(transfer, unit)} (transfer)"
    formula_text = "The Hanayo paper's formula for the best number of waves, W* = sqrt(T_B / 4 T_C),"
    return f"{words}. {formula_text} gives {formula:.2g} for {times}{reasons[deviation]}."


def _split_backward(
    schedule: str, other: str, reduction: float, memory_ratio: float, span_bubble_ratio: float | None
) -> str:
    bubble = "" if span_bubble_ratio is None else f" and a span bubble ratio of {percent(span_bubble_ratio)}"
    return (
        f"The best schedule with full backwards is {_variant_name(other)}. The step is {percent(reduction)} shorter with "
        f"{_variant_name(schedule)}, with {_relative_memory(memory_ratio)}{bubble}."
    )


MESSAGES: dict[str, Message] = {
    "search_fits": _search_fits,
    "search_no_better": _search_no_better,
    "search_better": _search_better,
    "no_fitting_schedule": _no_fitting_schedule,
    "fastest_schedule": _fastest_schedule,
    "faster_schedule": _faster_schedule,
    "other_options": _other_options,
    "hanayo_or_interleaved": _hanayo_or_interleaved,
    "number_of_waves": _number_of_waves,
    "split_backward": _split_backward,
}
