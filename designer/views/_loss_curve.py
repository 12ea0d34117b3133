"""The losses of a run, reduced to the values that are drawn."""

from __future__ import annotations

SHOWN_LOSSES = 600


class LossCurve:
    """The losses of all steps, reduced to at most ``most`` values that draw the same line.

    Steps are divided into equal intervals, and the lowest and the highest loss of each are kept in order. The first
    and the last loss are always kept.
    """

    def __init__(self, most: int = SHOWN_LOSSES) -> None:
        self.steps = 0
        self._most = most
        self._intervals: list[list[float | None]] = []
        self._length = 1  # steps per interval
        self._first: float | None = None
        self._last: float | None = None
        self._diverged_after = 0  # steps

    def add(self, loss: float | None) -> None:
        """Add the loss of the next step; None if it is not a number."""
        if self.steps % self._length == 0:
            self._intervals.append([])
        self._intervals[-1] = _ends([*self._intervals[-1], loss])
        self._first = self._first if self.steps else loss
        self.steps, self._last = self.steps + 1, loss
        if loss is not None:
            self._diverged_after = self.steps
        if 2 * len(self._intervals) >= self._most and self.steps % (2 * self._length) == 0:
            pairs = zip(self._intervals[::2], self._intervals[1::2], strict=True)
            self._intervals, self._length = [_ends([*one, *other]) for one, other in pairs], 2 * self._length

    def values(self) -> list[float | None]:
        """Return the losses to draw, at equal distances over all steps."""
        losses = [loss for interval in self._intervals for loss in interval]
        return [self._first, *losses[1:-1], self._last] if self.steps > 1 else losses

    @property
    def notes(self) -> list[str]:
        """A note if the loss has diverged, with the step."""
        if not self.steps or self._last is not None:
            return []
        since = self._diverged_after + 1
        return [f"the loss has been NaN since step {since}: use a smaller training.lr, or set training.clip_norm"]


def _ends(interval: list[float | None]) -> list[float | None]:
    """Return the lowest and the highest of more than two losses, in their order."""
    if len(interval) < 3:
        return interval
    known = [(value, place) for place, value in enumerate(interval) if value is not None]
    ends = sorted((min(known), max(known)), key=lambda end: end[1]) if known else ((None, 0), (None, 0))
    return [value for value, _ in ends]
