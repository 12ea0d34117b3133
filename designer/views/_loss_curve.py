"""The losses of a run, as few values as are drawn."""

from __future__ import annotations

SHOWN_LOSSES = 600


class LossCurve:
    """The losses of all steps, as at most ``most`` values that draw the same line.

    Of every stretch of equally many steps the lowest and the highest stay, as they came; the first and the last value
    stay too.
    """

    def __init__(self, most: int = SHOWN_LOSSES) -> None:
        self.steps = 0
        self._most = most
        self._stretches: list[list[float | None]] = []
        self._length = 1  # steps of a stretch
        self._first: float | None = None
        self._last: float | None = None
        self._diverged_after = 0  # steps

    def add(self, loss: float | None) -> None:
        """Take in the loss of the next step; None where it is no number."""
        if self.steps % self._length == 0:
            self._stretches.append([])
        self._stretches[-1] = _ends([*self._stretches[-1], loss])
        self._first = self._first if self.steps else loss
        self.steps, self._last = self.steps + 1, loss
        if loss is not None:
            self._diverged_after = self.steps
        if 2 * len(self._stretches) >= self._most and self.steps % (2 * self._length) == 0:
            pairs = zip(self._stretches[::2], self._stretches[1::2], strict=True)
            self._stretches, self._length = [_ends([*one, *other]) for one, other in pairs], 2 * self._length

    def drawn(self) -> list[float | None]:
        """The values of the line, evenly over all steps."""
        values = [value for stretch in self._stretches for value in stretch]
        return [self._first, *values[1:-1], self._last] if self.steps > 1 else values

    @property
    def notes(self) -> list[str]:
        """The step since which the loss is no number, in words; empty where it is one."""
        if not self.steps or self._last is not None:
            return []
        since = self._diverged_after + 1
        return [f"the loss is not a number since step {since}: try a smaller training.lr, or a training.clip_norm"]


def _ends(stretch: list[float | None]) -> list[float | None]:
    """The lowest and the highest of more than two values, as they came."""
    if len(stretch) < 3:
        return stretch
    known = [(value, place) for place, value in enumerate(stretch) if value is not None]
    ends = sorted((min(known), max(known)), key=lambda end: end[1]) if known else ((None, 0), (None, 0))
    return [value for value, _ in ends]
