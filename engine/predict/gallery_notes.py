"""Notes on a gallery of schedules: what its numbers say, in sentences, and which variant they recommend."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Any, NamedTuple

from meshwave.engine.predict.gallery import EQUAL_WITHIN, UNCHANGED_WITHIN, Entry
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.units import quantity


def describe_search(present: Prediction, found: Prediction) -> tuple[str, bool]:
    """Return a sentence about the order that a search found for the same stages, and whether it is better."""
    unit = present.costs.unit
    was, now = present.timeline.makespan, found.timeline.makespan
    fitted, fits = (bool(each.memory.fits.all()) for each in (present, found))
    taken = quantity(now, "s") if unit == "s" else f"{now:.4g} units"
    held = _relative_memory(*(float(each.memory.total_bytes.max()) for each in (found, present)))
    if fits and not fitted:
        return f"The search found an order of these stages that fits in memory and takes {taken}.", True
    if not fits or now > was * (1 - EQUAL_WITHIN):
        near = "as fast" if now > was * (1 - UNCHANGED_WITHIN) or not fits else f"{_reduction(now, was)} shorter"
        return (
            f"The search found no better order of these stages: its best is {near}{'' if fits else ', or does not fit'}.",
            False,
        )
    return (
        f"The search found an order of these stages that takes {taken}: {_reduction(now, was)} shorter, with {held}.",
        True,
    )


class Note(NamedTuple):
    """One observation about the numbers of a gallery."""

    title: str
    text: str
    advised: str = ""
    """Key of the variant that it recommends, where that is better than the present one."""
    advised_title: str = ""


def gallery_notes(entries: Iterable[Entry]) -> list[Note]:
    """Return the notes that apply to the entries of a gallery."""
    compared = _Comparison(tuple(entries))
    notes = (
        _advice("Fastest that fits", compared.fastest, compared.faster()),
        _advice("Auto with other options", compared.searching, compared.faster("auto")),
        Note("Hanayo or interleaved 1F1B", compared.interleaving),
        Note("Number of waves", compared.waves),
        Note("Split backward", compared.splitting),
    )
    return [note for note in notes if note.text]


def _advice(title: str, text: str, entry: Entry | None) -> Note:
    return Note(title, text, entry.variant.key, entry.variant.title) if entry else Note(title, text)


class _Comparison:
    """Comparisons between the entries of one design."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self._entries = entries

    @property
    def present(self) -> Entry | None:
        return next((entry for entry in self._entries if entry.variant.is_present), None)

    def faster(self, schedule: str | None = None) -> Entry | None:
        """Return the fastest entry that fits, of one schedule or of all; None if the present one is as good."""
        fitting = [entry for entry in self._entries if entry.fits and schedule in (None, entry.variant.schedule)]
        best, present = min(fitting, key=lambda each: each.makespan_s, default=None), self.present
        if best is None or present is None or best.variant.is_present:
            return None
        behind = present.makespan_s >= best.makespan_s * (1 + EQUAL_WITHIN)
        return best if behind or not present.fits else None

    @property
    def searching(self) -> str:
        """Gain of a search with other options, if the current schedule searches its order."""
        present, best = self.present, self.faster("auto")
        if present is None or best is None or present.variant.schedule != "auto":
            return ""
        change = _reduction(best.makespan_s, present.makespan_s)
        gain = (
            f"{change} shorter than {_name(present)}"
            if present.fits
            else f"a schedule that fits, unlike {_name(present)}"
        )
        return f"{_name(best)} is {gain}: {_time(best, best.makespan_s)}, with {_relative_memory(best.peak_bytes, present.peak_bytes)}."

    @property
    def fastest(self) -> str:
        """The fastest entry that fits, compared with the current one."""
        fitting = [entry for entry in self._entries if entry.fits]
        if not fitting:
            least = min(self._entries, key=lambda each: each.peak_bytes, default=None)
            if least is None:
                return ""
            words = f"{_bytes(least.peak_bytes)} of {_bytes(least.capacity_bytes)}"
            return f"No schedule fits in memory. {_name(least)} needs the least: {words}."
        best, present = min(fitting, key=lambda each: each.makespan_s), self.present
        words = f"{_name(best)}, {_time(best, best.makespan_s)}"
        if present is None:
            return f"{words}."
        if best.variant.is_present:
            return f"{words}: the current schedule."
        if not present.fits:
            return f"{words}; the current schedule does not fit."
        if present.makespan_s < best.makespan_s * (1 + EQUAL_WITHIN):
            return f"{words}; the current schedule is as fast."
        held = _relative_memory(best.peak_bytes, present.peak_bytes)
        return f"{words}, {_reduction(best.makespan_s, present.makespan_s)} shorter than the current schedule, with {held}."

    @property
    def interleaving(self) -> str:
        """Hanayo against interleaved 1F1B with equal chunks per mesh: which is faster, by how much and why."""
        pairs = [
            (fold, loop)
            for fold in self._entries_of("hanayo", backward="whole")
            for loop in self._entries_of("interleaved-1f1b")
            if loop.variant.options["chunks"] == 2 * fold.variant.options["waves"]
        ]
        if not pairs:
            return ""
        fold, loop = min(pairs, key=lambda pair: (sum(each.makespan_s for each in pair), pair[0].makespan_s))
        waves = fold.variant.options["waves"]
        times = f"With {2 * waves} chunks per mesh, {_name(fold)} takes {_time(fold, fold.makespan_s)} and interleaved 1F1B {_time(loop, loop.makespan_s)}"
        behind, bubble = fold.makespan_s - loop.makespan_s, fold.free_s - loop.free_s
        near = EQUAL_WITHIN * loop.makespan_s
        if abs(behind) < near:
            verdict = "they are equally fast"
        else:
            first, second = (loop, fold) if behind > 0 else (fold, loop)
            name = "Hanayo" if first is fold else "interleaved 1F1B"
            verdict = f"{name} is {_reduction(first.makespan_s, second.makespan_s)} shorter"
        return f"{times}: {verdict}. {self._reason(fold, loop, bubble, behind - bubble, near)}"

    def _reason(self, fold: Entry, loop: Entry, bubble: float, transfers: float, near: float) -> str:
        times = fold.backward_s / fold.forward_s if fold.forward_s else 1.0
        ahead = "interleaved 1F1B" if bubble > 0 else "Hanayo"
        if abs(bubble) < near / 5:
            first = "Without transfers they are equally fast"
        else:
            first = f"Without transfers, {ahead} is {_time(fold, abs(bubble))} shorter"
            if bubble > 0 and times > 1:
                first += (
                    f": a backward takes {times:.2g} times a forward, and Hanayo waits for it where a wave reverses"
                )
            elif bubble < 0 and fold.has_uneven_stages:
                first += ": the stages take different times; with equal stages interleaved 1F1B would be shorter"
        cost = f"cost Hanayo {_time(fold, abs(transfers))} {'less' if transfers < 0 else 'more'}"
        change = cost if abs(transfers) > near / 5 else "make little difference"
        sent = f"it sends {_bytes(fold.traffic_bytes)} against {_bytes(loop.traffic_bytes)}, since the stages at a reversal are on one mesh"
        held = f"Peak memory is {_bytes(fold.peak_bytes)} against {_bytes(loop.peak_bytes)}"
        return f"{first}; transfers {change} ({sent}). {held}."

    @property
    def waves(self) -> str:
        """The best number of waves: simulated, and by Hanayo's W* = sqrt(T_B / 4 T_C) (arXiv:2308.15762)."""
        fastest: dict[int, Entry] = {}
        for entry in self._entries_of("hanayo", backward="whole"):
            waves = entry.variant.options["waves"]
            if waves not in fastest or entry.makespan_s < fastest[waves].makespan_s:
                fastest[waves] = entry
        if len(fastest) < 2:
            return ""
        best = min(fastest, key=lambda waves: fastest[waves].makespan_s)
        entry, most = fastest[best], max(fastest)
        tried = ", ".join(map(str, sorted(fastest)))
        words = f"{best} of {tried} is the fastest in simulation ({_time(entry, entry.makespan_s)})"
        if not entry.transfer_s:
            return f"{words}. Transfers are free, so each doubling halves the bubble, up to the number of layers."
        law = sqrt(entry.backward_s / (4 * entry.transfer_s))
        times = f"T_B = {_time(entry, entry.backward_s)} and T_C = {_time(entry, entry.transfer_s)}"
        text = f"{words}. W* = sqrt(T_B / 4 T_C) gives {law:.2g} with {times}"
        if law > 1.5 * most and best == most:
            return f"{text}; the layers allow at most {most}."
        if not best / 2 < law < 2 * best:
            return f"{text}; the formula assumes equal stages and as many microbatches as meshes."
        return f"{text}."

    @property
    def splitting(self) -> str:
        """Speedup of the best schedule with split backwards over the best without."""
        fitting = [entry for entry in self._entries if entry.fits] or list(self._entries)
        split = [entry for entry in fitting if entry.splits_backward]
        whole = [entry for entry in fitting if not entry.splits_backward]
        if not split or not whole:
            return ""
        first, second = (min(group, key=lambda each: each.makespan_s) for group in (split, whole))
        if first.makespan_s > second.makespan_s * (1 - EQUAL_WITHIN):
            return ""
        span = (
            f"a span bubble ratio of {first.span_bubble_ratio:.1%}"
            if first.span_bubble_ratio < first.bubble_ratio / 2
            else ""
        )
        return (
            f"{_name(first)} is {_reduction(first.makespan_s, second.makespan_s)} shorter than "
            f"{_name(second)}, the best schedule with full backwards, with {_relative_memory(first.peak_bytes, second.peak_bytes)}{' and ' + span if span else ''}."
        )

    def _entries_of(self, schedule: str, **options: Any) -> list[Entry]:
        wanted = options.items()
        return [
            entry
            for entry in self._entries
            if entry.variant.schedule == schedule
            and all(entry.variant.options.get(key) == value for key, value in wanted)
        ]


def _name(entry: Entry) -> str:
    return entry.variant.title


def _time(entry: Entry, seconds: float) -> str:
    return quantity(seconds, "s") if entry.unit == "s" else f"{seconds:.4g} units"


def _bytes(value: float) -> str:
    return quantity(value, "B")


def _reduction(time: float, other: float) -> str:
    return f"{1 - time / other:.1%}"


def _relative_memory(held: float, other: float) -> str:
    """Return memory relative to another's, such as ``12% more memory`` or ``2.5 times the memory``."""
    ratio = held / other
    if ratio >= 2:
        return f"{ratio:.1f} times the memory"
    if abs(ratio - 1) < EQUAL_WITHIN:
        return "the same memory"
    return f"{abs(ratio - 1):.{0 if abs(ratio - 1) >= 0.1 else 1}%} {'more' if ratio > 1 else 'less'} memory"
