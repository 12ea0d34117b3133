"""Every schedule for one design, side by side: what each takes, holds and sends, and what is to be learned of it.

A variant is a schedule with values for its options. It is judged as any design is: lowered, priced
and simulated with the design's own meshes, model, links and microbatches.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Any, NamedTuple

from meshwave.engine.predict.gallery import EQUAL_WITHIN, UNCHANGED_WITHIN, Entry
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.units import quantity


def describe_search(present: Prediction, found: Prediction) -> tuple[str, bool]:
    """What a search for the order of the same stages gained, in a sentence, and whether that is to be taken."""
    unit = present.costs.unit
    was, now = present.timeline.makespan, found.timeline.makespan
    fitted, fits = (bool(each.memory.fits.all()) for each in (present, found))
    taken = quantity(now, "s") if unit == "s" else f"{now:.4g} units"
    held = _relative_memory(*(float(each.memory.total_bytes.max()) for each in (found, present)))
    if fits and not fitted:
        return f"Auto finds an order of these stages that fits in memory, in {taken}.", True
    if not fits or now > was * (1 - EQUAL_WITHIN):
        near = "as fast" if now > was * (1 - UNCHANGED_WITHIN) or not fits else f"{_reduction(now, was)} shorter"
        return (
            f"Auto finds nothing better for these stages: its best is {near}{'' if fits else ' or does not fit'}.",
            False,
        )
    return f"Auto finds an order of these stages in {taken}: {_reduction(now, was)} shorter, with {held}.", True


# ---- what is to be learned of them ----


class Note(NamedTuple):
    """One thing that the numbers say."""

    title: str
    text: str
    advised: str = ""
    """The key of the variant that it speaks for, where that is better than the present one."""
    advised_title: str = ""


def gallery_notes(entries: Iterable[Entry]) -> list[Note]:
    """What the numbers say; fewer where there is less to say."""
    lesson = _Comparison(tuple(entries))
    told = (
        _advice("The fastest that fits", lesson.fastest, lesson.faster()),
        _advice("Auto with other options", lesson.searching, lesson.faster("auto")),
        Note("Hanayo or interleaved 1F1B", lesson.interleaving),
        Note("How many waves", lesson.waves),
        Note("A split backward", lesson.splitting),
    )
    return [note for note in told if note.text]


def _advice(title: str, text: str, entry: Entry | None) -> Note:
    return Note(title, text, entry.variant.key, entry.variant.title) if entry else Note(title, text)


class _Comparison:
    """Some entries of one design, and what they teach."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self._entries = entries

    @property
    def present(self) -> Entry | None:
        return next((entry for entry in self._entries if entry.variant.present), None)

    def faster(self, schedule: str | None = None) -> Entry | None:
        """The fastest that fits, of one schedule or of all, where what one has is slower or does not fit."""
        fitting = [entry for entry in self._entries if entry.fits and schedule in (None, entry.variant.schedule)]
        best, present = min(fitting, key=lambda each: each.makespan_s, default=None), self.present
        if best is None or present is None or best.variant.present:
            return None
        behind = present.makespan_s >= best.makespan_s * (1 + EQUAL_WITHIN)
        return best if behind or not present.fits else None

    @property
    def searching(self) -> str:
        """What a search gains on another path or with other chunks, where one searches already."""
        present, best = self.present, self.faster("auto")
        if present is None or best is None or present.variant.schedule != "auto":
            return ""
        change = _reduction(best.makespan_s, present.makespan_s)
        gain = f"{change} shorter than {_name(present)}" if present.fits else f"and fits, as {_name(present)} does not"
        return f"{_name(best)} is {gain}: {_time(best, best.makespan_s)}, with {_relative_memory(best.peak_bytes, present.peak_bytes)}."

    @property
    def fastest(self) -> str:
        """Who is ahead of those that fit, and of the present one."""
        fitting = [entry for entry in self._entries if entry.fits]
        if not fitting:
            least = min(self._entries, key=lambda each: each.peak_bytes, default=None)
            if least is None:
                return ""
            words = f"{_bytes(least.peak_bytes)} of {_bytes(least.capacity_bytes)}"
            return f"None fits in memory. The leanest is {_name(least)} with {words}."
        best, present = min(fitting, key=lambda each: each.makespan_s), self.present
        words = f"{_name(best)}, {_time(best, best.makespan_s)}"
        if present is None:
            return f"{words}."
        if best.variant.present:
            return f"{words}: what you have."
        if not present.fits:
            return f"{words}; what you have does not fit."
        if present.makespan_s < best.makespan_s * (1 + EQUAL_WITHIN):
            return f"{words}; what you have is as fast."
        held = _relative_memory(best.peak_bytes, present.peak_bytes)
        return f"{words}, {_reduction(best.makespan_s, present.makespan_s)} shorter than what you have, with {held}."

    @property
    def interleaving(self) -> str:
        """Hanayo beside interleaved 1F1B at equal chunks a mesh: who wins, by how much and why."""
        pairs = [
            (fold, loop)
            for fold in self._of("hanayo", backward="whole")
            for loop in self._of("interleaved-1f1b")
            if loop.variant.options["chunks"] == 2 * fold.variant.options["waves"]
        ]
        if not pairs:
            return ""
        fold, loop = min(pairs, key=lambda pair: (sum(each.makespan_s for each in pair), pair[0].makespan_s))
        waves = fold.variant.options["waves"]
        told = f"With {2 * waves} chunks a mesh {_name(fold)} takes {_time(fold, fold.makespan_s)} and interleaved 1F1B {_time(loop, loop.makespan_s)}"
        behind, bubble = fold.makespan_s - loop.makespan_s, fold.free_s - loop.free_s
        near = EQUAL_WITHIN * loop.makespan_s
        if abs(behind) < near:
            verdict = "they are equal"
        else:
            first, second = (loop, fold) if behind > 0 else (fold, loop)
            name = "Hanayo" if first is fold else "interleaved 1F1B"
            verdict = f"{name} is {_reduction(first.makespan_s, second.makespan_s)} shorter"
        return f"{told}: {verdict}. {self._why(fold, loop, bubble, behind - bubble, near)}"

    def _why(self, fold: Entry, loop: Entry, bubble: float, transfers: float, near: float) -> str:
        times = fold.backward_s / fold.forward_s if fold.forward_s else 1.0
        ahead = "the loop" if bubble > 0 else "the fold"
        if abs(bubble) < near / 5:
            first = "Without transfers they are equal"
        else:
            first = f"Without transfers {ahead} is {_time(fold, abs(bubble))} ahead"
            if bubble > 0 and times > 1:
                first += f", as a backward takes {times:.2g} times a forward and the fold waits for it where it turns"
            elif bubble < 0 and fold.uneven:
                first += ", as stages take different times; were they equal, the loop would be"
        cost = f"cost Hanayo {_time(fold, abs(transfers))} {'less' if transfers < 0 else 'more'}"
        change = cost if abs(transfers) > near / 5 else "make little difference"
        sent = f"{_bytes(fold.traffic_bytes)} cross links against {_bytes(loop.traffic_bytes)}, since a turn stays on its mesh"
        held = f"The fullest device holds {_bytes(fold.peak_bytes)} against {_bytes(loop.peak_bytes)}"
        return f"{first}; transfers {change} ({sent}). {held}."

    @property
    def waves(self) -> str:
        """The best number of waves: simulated, and by the law W* = sqrt(T_B / 4 T_C)."""
        fastest: dict[int, Entry] = {}
        for entry in self._of("hanayo", backward="whole"):
            waves = entry.variant.options["waves"]
            if waves not in fastest or entry.makespan_s < fastest[waves].makespan_s:
                fastest[waves] = entry
        if len(fastest) < 2:
            return ""
        best = min(fastest, key=lambda waves: fastest[waves].makespan_s)
        entry, most = fastest[best], max(fastest)
        tried = ", ".join(map(str, sorted(fastest)))
        words = f"{best} of {tried} is best, simulated ({_time(entry, entry.makespan_s)})"
        if not entry.transfer_s:
            return f"{words}. Transfers are free here, so every doubling halves the bubble: the layers set the end."
        law = sqrt(entry.backward_s / (4 * entry.transfer_s))
        shares = (
            f"a mesh's backward of {_time(entry, entry.backward_s)} and a transfer of {_time(entry, entry.transfer_s)}"
        )
        told = f"{words}. The law W* = sqrt(T_B / 4 T_C) gives {law:.2g}, from {shares}"
        if law > 1.5 * most and best == most:
            return f"{told}; the layers allow no more than {most}."
        if not best / 2 < law < 2 * best:
            return f"{told}: it takes equal stages, and as many microbatches as meshes, for granted."
        return f"{told}."

    @property
    def splitting(self) -> str:
        """What the best split backward gains over the best whole one."""
        fitting = [entry for entry in self._entries if entry.fits] or list(self._entries)
        split = [entry for entry in fitting if entry.splits]
        whole = [entry for entry in fitting if not entry.splits]
        if not split or not whole:
            return ""
        first, second = (min(group, key=lambda each: each.makespan_s) for group in (split, whole))
        if first.makespan_s > second.makespan_s * (1 - EQUAL_WITHIN):
            return ""
        span = (
            f"a bubble of {100 * first.span_bubble_ratio:.1f} % in its own span"
            if first.span_bubble_ratio < first.bubble_ratio / 2
            else ""
        )
        return (
            f"It pays: {_name(first)} is {_reduction(first.makespan_s, second.makespan_s)} shorter than "
            f"{_name(second)}, the best that does not, with {_relative_memory(first.peak_bytes, second.peak_bytes)}{' and ' + span if span else ''}."
        )

    def _of(self, schedule: str, **options: Any) -> list[Entry]:
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
    return f"{100 * (1 - time / other):.1f} %"


def _relative_memory(held: float, other: float) -> str:
    """Memory against another's: ``12 % more memory``."""
    more = held / other - 1
    return (
        "as much memory"
        if abs(more) < EQUAL_WITHIN
        else f"{100 * abs(more):.2g} % {'more' if more > 0 else 'less'} memory"
    )
