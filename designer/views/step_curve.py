"""A value of each step of a run, reduced to the values that are drawn."""

from __future__ import annotations

SHOWN_VALUES = 600


class StepCurve:
    """The values of all steps, reduced to at most ``most`` values that give the same picture.

    Steps are divided into equal intervals; of each interval, the lowest and the highest value are kept in their order. The
    first and the last value are always kept.
    """

    def __init__(self, most: int = SHOWN_VALUES) -> None:
        self.steps = 0
        self._most = most
        self._intervals: list[list[float | None]] = []
        self._length = 1  # steps per interval
        self._first: float | None = None
        self._last: float | None = None
        self._diverged_after = 0  # steps

    def add(self, value: float | None) -> None:
        """Add the value of the next step; None if it is not a number."""
        if self.steps % self._length == 0:
            self._intervals.append([])
        self._intervals[-1] = _ends([*self._intervals[-1], value])
        self._first = self._first if self.steps else value
        self.steps, self._last = self.steps + 1, value
        if value is not None:
            self._diverged_after = self.steps
        if 2 * len(self._intervals) >= self._most and self.steps % (2 * self._length) == 0:
            pairs = zip(self._intervals[::2], self._intervals[1::2], strict=True)
            self._intervals, self._length = [_ends([*one, *other]) for one, other in pairs], 2 * self._length

    def values(self) -> list[float | None]:
        """Return the values to draw, at equal distances over all steps."""
        values = [value for interval in self._intervals for value in interval]
        return [self._first, *values[1:-1], self._last] if self.steps > 1 else values

    @property
    def diverged_after(self) -> int | None:
        """The last step with a number, counted from 1; None if no step after it lacks a number."""
        return self._diverged_after if self.steps and self._last is None else None


def _ends(interval: list[float | None]) -> list[float | None]:
    """Return the lowest and the highest of more than two values, in their order."""
    if len(interval) < 3:
        return interval
    known = [(value, place) for place, value in enumerate(interval) if value is not None]
    ends = sorted((min(known), max(known)), key=lambda end: end[1]) if known else ((None, 0), (None, 0))
    return [value for value, _ in ends]
