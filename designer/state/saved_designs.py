"""Number and size of the designs that people have saved on a server, and their limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import NamedTuple, Self

from meshwave.designer.state.library import DELETED
from meshwave.engine.files import folder_bytes
from meshwave.engine.findings import Refusal
from meshwave.engine.people.limits import MEGABYTE, Limits

MEASURE_INTERVAL_S = 10.0
"""Time for which the measured size of a library is used, unless it exceeds a limit."""


class Saved(NamedTuple):
    """Number and disk space of saved designs."""

    designs: int
    """Number of designs without deleted ones."""
    bytes: int
    """Disk space of the designs with their histories, and of deleted designs that can be restored."""

    @classmethod
    def sum(cls, parts: Iterable[Saved]) -> Self:
        """Return the sum of several libraries."""
        found = list(parts)
        return cls(sum(each.designs for each in found), sum(each.bytes for each in found))


class SavedDesigns:
    """The libraries of all people of a server, each of which is the folder ``PERSON/designs``."""

    def __init__(
        self,
        folder: Path,
        limits: Callable[[], Limits],
        unlimited: Callable[[], Container[str]] = frozenset,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the record of the libraries.

        Args:
            folder: the folder with a folder for each person.
            limits: returns the current limits.
            unlimited: returns the IDs of people without limits.
            clock: returns the time in seconds.
        """
        self._folder, self._unlimited, self._clock = folder, unlimited, clock
        self.limits = limits
        self._measured: dict[str, tuple[float, int]] = {}  # time and size in bytes by person

    def people(self) -> list[str]:
        """Return the IDs of all people who have a library."""
        return sorted(path.parent.name for path in self._folder.glob("*/designs"))

    def saved(self, person: str, *, is_fresh: bool = False) -> Saved:
        """Return the saved designs of a person; ``is_fresh`` measures their size even if it was measured just now."""
        library = self._folder / person / "designs"
        measured_s, size = self._measured.get(person, (float("-inf"), 0))
        if is_fresh or self._clock() - measured_s > MEASURE_INTERVAL_S:
            size = folder_bytes(library)
            self._measured[person] = self._clock(), size
        kept = (path for path in library.glob("*/design.json") if path.parent.suffix != DELETED)
        return Saved(sum(1 for _ in kept), size)

    def check(self, library: Path, is_new: bool) -> None:
        """Check that a design, or an edit of a design unless ``is_new``, may be saved in a library.

        Raises:
            Refusal: the designs of the person, or of all people, are too many or too large.
        """
        person, limits = library.parent.name, self.limits()
        if library.parent.parent != self._folder or person in self._unlimited():
            return

        def own(is_fresh: bool) -> Saved:
            return self.saved(person, is_fresh=is_fresh)

        def total(is_fresh: bool) -> Saved:
            return Saved.sum(self.saved(each, is_fresh=is_fresh) for each in self.people())

        codes = "saved_designs", "saved_designs_disk"
        _check(own, limits.designs, limits.designs_megabytes, is_new, codes)
        if limits.total.designs is not None or limits.total.designs_megabytes is not None:
            codes = "saved_designs_total", "saved_designs_total_disk"
            _check(total, limits.total.designs, limits.total.designs_megabytes, is_new, codes)


def _check(
    measure: Callable[[bool], Saved],
    most: int | None,
    most_megabytes: float | None,
    is_new: bool,
    codes: tuple[str, str],
) -> None:
    """Check the limits of number and size; ``codes`` are those of the two refusals."""
    number_code, size_code = codes
    saved = measure(False)
    if is_new and most is not None and saved.designs >= most:
        raise Refusal(number_code, {"designs": saved.designs})
    if most_megabytes is None or saved.bytes <= most_megabytes * MEGABYTE:
        return
    used_bytes = measure(True).bytes
    if used_bytes > most_megabytes * MEGABYTE:
        raise Refusal(size_code, {"used_bytes": used_bytes, "most_bytes": most_megabytes * MEGABYTE})
