"""Notes on a gallery of schedules: observations about its results, and the variants that they recommend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

from meshwave.engine.messages import render
from meshwave.engine.predict.gallery import EQUAL_WITHIN, UNCHANGED_WITHIN, Entry
from meshwave.engine.predict.prediction import Prediction


class SearchSummary(NamedTuple):
    """Result of an order search, compared with the current order."""

    code: str
    params: Mapping[str, Any]
    is_better: bool

    @property
    def text(self) -> str:
        """Sentence that states the result."""
        return render(self.code, self.params)


def summarize_search(present: Prediction, found: Prediction) -> SearchSummary:
    """Compare the order found by a search for the same stages with the current order."""
    was, now = present.timeline.makespan, found.timeline.makespan
    fitted, fits = (bool(each.memory.fits.all()) for each in (present, found))
    step = {"step": now, "unit": present.costs.unit}
    if fits and not fitted:
        return SearchSummary("search_fits", step, True)
    reduction = 1 - now / was
    if not fits or now > was * (1 - EQUAL_WITHIN):
        is_equal = now > was * (1 - UNCHANGED_WITHIN)
        return SearchSummary("search_no_better", {"fits": fits, "reduction": reduction, "is_equal": is_equal}, False)
    held, before = (float(each.memory.total_bytes.max()) for each in (found, present))
    return SearchSummary("search_better", {**step, "reduction": reduction, "memory_ratio": held / before}, True)


@dataclass(frozen=True)
class Note:
    """Observation about the results of a gallery."""

    title: str
    code: str
    params: Mapping[str, Any]
    advised: Entry | None = None
    """Recommended variant, if it is better than the present one; otherwise None."""

    @property
    def text(self) -> str:
        """Sentences that state the observation."""
        return render(self.code, self.params)

    def as_data(self) -> dict[str, str]:
        """Return the note as JSON data for the page."""
        variant = self.advised.variant if self.advised else None
        return {
            "title": self.title,
            "text": self.text,
            "advised": variant.key if variant else "",
            "advised_title": variant.title if variant else "",
        }


def gallery_notes(entries: Iterable[Entry]) -> list[Note]:
    """Return the notes that apply to the entries of a gallery."""
    compared = _Comparison(tuple(entries))
    notes = (
        compared.note_fastest(),
        compared.note_other_options(),
        compared.note_interleaving(),
        compared.note_waves(),
        compared.note_split_backward(),
    )
    return [note for note in notes if note is not None]


class _Comparison:
    """Comparisons between the variants of one design."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self._entries = entries

    @property
    def current_entry(self) -> Entry | None:
        return next((entry for entry in self._entries if entry.variant.is_present), None)

    def find_faster_variant(self, schedule: str | None = None) -> Entry | None:
        """Return the fastest variant that fits, of one schedule or of all; None if the current one is as good."""
        fitting = [entry for entry in self._entries if entry.fits and schedule in (None, entry.variant.schedule)]
        best, present = min(fitting, key=lambda each: each.makespan_s, default=None), self.current_entry
        if best is None or present is None or best.variant.is_present:
            return None
        behind = present.makespan_s >= best.makespan_s * (1 + EQUAL_WITHIN)
        return best if behind or not present.fits else None

    def note_fastest(self) -> Note | None:
        """Compare the fastest variant that fits with the current one."""
        title, advised = "Fastest that fits", self.find_faster_variant()
        best = min((entry for entry in self._entries if entry.fits), key=lambda each: each.makespan_s, default=None)
        if best is None:
            least = min(self._entries, key=lambda each: each.peak_bytes, default=None)
            if least is None:
                return None
            sizes = {"peak_bytes": least.peak_bytes, "capacity_bytes": least.capacity_bytes}
            return Note(title, "no_fitting_schedule", {"schedule": least.variant.title, **sizes})
        present, params = self.current_entry, _step_params(best)
        if present is None:
            return Note(title, "fastest_schedule", params, advised)
        is_slower = present.makespan_s >= best.makespan_s * (1 + EQUAL_WITHIN)
        if best.variant.is_present or not present.fits or not is_slower:
            current = "fastest" if best.variant.is_present else "equal" if present.fits else "too_large"
            return Note(title, "fastest_schedule", {**params, "current": current}, advised)
        return Note(title, "faster_schedule", {**params, **_gain_params(best, present)}, advised)

    def note_other_options(self) -> Note | None:
        """Note the gain of other options, if the current schedule searches its order."""
        present, best = self.current_entry, self.find_faster_variant("auto")
        if present is None or best is None or present.variant.schedule != "auto":
            return None
        params = {"current": present.variant.title, "current_fits": present.fits}
        params |= {**_step_params(best), **_gain_params(best, present)}
        return Note("Auto with other options", "other_options", params, best)

    def note_interleaving(self) -> Note | None:
        """Compare Hanayo with interleaved 1F1B at equal chunks per mesh: speed, difference and its cause."""
        pairs = [
            (fold, loop)
            for fold in self._entries_of("hanayo", backward="whole")
            for loop in self._entries_of("interleaved-1f1b")
            if loop.variant.options["chunks"] == 2 * fold.variant.options["waves"]
        ]
        if not pairs:
            return None
        fold, loop = min(pairs, key=lambda pair: (sum(each.makespan_s for each in pair), pair[0].makespan_s))
        behind, bubble = fold.makespan_s - loop.makespan_s, fold.free_s - loop.free_s
        near = EQUAL_WITHIN * loop.makespan_s
        first, second = (loop, fold) if behind > 0 else (fold, loop)
        params = {
            "hanayo": fold.variant.title,
            "chunks": loop.variant.options["chunks"],
            "steps": [fold.makespan_s, loop.makespan_s],
            "unit": fold.unit,
            "faster": "" if abs(behind) < near else "Hanayo" if first is fold else "interleaved 1F1B",
            "reduction": 1 - first.makespan_s / second.makespan_s,
            "bubble_difference": bubble,
            "transfer_difference": behind - bubble,
            "negligible": near / 5,
            "backward_ratio": fold.backward_s / fold.forward_s if fold.forward_s else 1.0,
            "has_uneven_stages": fold.has_uneven_stages,
            "traffic_bytes": [fold.traffic_bytes, loop.traffic_bytes],
            "peak_bytes": [fold.peak_bytes, loop.peak_bytes],
        }
        return Note("Hanayo or interleaved 1F1B", "hanayo_or_interleaved", params)

    def note_waves(self) -> Note | None:
        """Note the best number of waves: simulated, and by Hanayo's W* = sqrt(T_B / 4 T_C) (arXiv:2308.15762)."""
        fastest: dict[int, Entry] = {}
        for entry in self._entries_of("hanayo", backward="whole"):
            waves = entry.variant.options["waves"]
            if waves not in fastest or entry.makespan_s < fastest[waves].makespan_s:
                fastest[waves] = entry
        if len(fastest) < 2:
            return None
        best = min(fastest, key=lambda waves: fastest[waves].makespan_s)
        entry = fastest[best]
        formula = sqrt(entry.backward_s / (4 * entry.transfer_s)) if entry.transfer_s else None
        params = {
            "best": best,
            "tried": sorted(fastest),
            "step": entry.makespan_s,
            "unit": entry.unit,
            "formula": formula,
            "backward": entry.backward_s,
            "transfer": entry.transfer_s,
            "deviation": "" if formula is None else _wave_deviation(best, max(fastest), formula),
        }
        return Note("Number of waves", "number_of_waves", params)

    def note_split_backward(self) -> Note | None:
        """Note the gain of the best schedule with split backwards over the best one without."""
        fitting = [entry for entry in self._entries if entry.fits] or list(self._entries)
        split = [entry for entry in fitting if entry.splits_backward]
        whole = [entry for entry in fitting if not entry.splits_backward]
        if not split or not whole:
            return None
        first, second = (min(group, key=lambda each: each.makespan_s) for group in (split, whole))
        if first.makespan_s > second.makespan_s * (1 - EQUAL_WITHIN):
            return None
        has_short_idle = first.span_bubble_ratio < first.bubble_ratio / 2
        params = {
            "schedule": first.variant.title,
            "other": second.variant.title,
            **_gain_params(first, second),
            "span_bubble_ratio": first.span_bubble_ratio if has_short_idle else None,
        }
        return Note("Split backward", "split_backward", params)

    def _entries_of(self, schedule: str, **options: Any) -> list[Entry]:
        wanted = options.items()
        return [
            entry
            for entry in self._entries
            if entry.variant.schedule == schedule
            and all(entry.variant.options.get(key) == value for key, value in wanted)
        ]


def _step_params(entry: Entry) -> dict[str, Any]:
    return {"schedule": entry.variant.title, "step": entry.makespan_s, "unit": entry.unit}


def _gain_params(entry: Entry, other: Entry) -> dict[str, float]:
    reduction, ratio = 1 - entry.makespan_s / other.makespan_s, entry.peak_bytes / other.peak_bytes
    return {"reduction": reduction, "memory_ratio": ratio}


def _wave_deviation(best: int, most: int, formula: float) -> str:
    """Return the reason why the best number of waves differs from the formula: too few layers, or its assumptions."""
    if formula > 1.5 * most and best == most:
        return "layers"
    return "" if best / 2 < formula < 2 * best else "assumptions"
