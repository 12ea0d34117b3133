"""Base class of transfer strategies: latency, number of chunks and messages of a unit task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from inspect import cleandoc
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.registry import Registry
from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.tasks import Load, UnitTask, cut_tasks, slices_with_owners, slices_with_receivers


class Latency(NamedTuple):
    """Duration of a unit task in seconds, and the number of chunks for which it holds."""

    seconds: float
    chunks: int = 1


class Leg(NamedTuple):
    """Message of a unit task: elements ``start`` to ``stop`` of the slice, flattened row-major."""

    source: int  # ranks
    target: int
    start: int
    stop: int


class Strategy(ABC):
    """Method to send a slice to all its receivers. A member is one file in this folder.

    The first sentence of its docstring is its help text.
    """

    title: ClassVar[str]

    @abstractmethod
    def latency(self, task: UnitTask, sender: int, links: Links, chunks: int | None = None) -> Latency:
        """Return the time until the last receiver has the slice; ``chunks`` None selects the best number."""

    @abstractmethod
    def legs(self, task: UnitTask, sender: int, links: Links, chunks: int = 1) -> Iterator[Leg]:
        """Yield all non-empty messages; a message that forwards a range follows the message that delivered it."""

    def unit_tasks(self, load: Load, number: int = 0) -> list[UnitTask]:
        """Return the unit tasks of tensor ``number`` of a transfer.

        Raises:
            SpecError: a spec does not fit its mesh or the tensor.
        """
        return cut_tasks(load, slices_with_owners(load), slices_with_receivers(load), number)

    def gather_seconds(self, tasks: Sequence[UnitTask], links: Links) -> float:
        """Return the duration in seconds of the gather of whole tensors after the last unit task."""
        return 0.0

    @classmethod
    def help(cls) -> str:
        return cleandoc(cls.__doc__ or "")


MAX_CHUNKS = 1024
"""Maximum number of chunks to try."""
strategies: Registry[type[Strategy]] = Registry("transfer strategy", "meshwave.engine.resharding.strategies")


def chunk_counts(task: UnitTask, chunks: int | None) -> NDArray[np.int64]:
    """Return the numbers of chunks to evaluate: the given one, limited by the elements of a slice, or all candidates."""
    most = max(1, task.elements)
    return np.array([min(chunks, most)]) if chunks else np.arange(1, min(MAX_CHUNKS, most) + 1)


def piece_bytes(task: UnitTask, parts: int) -> list[float]:
    """Return the sizes in bytes of ``parts`` pieces of ``ceil(elements / parts)`` elements; the last ones are shorter."""
    item = task.bytes / task.elements if task.elements else 0.0
    each = -(-task.elements // parts)
    return [max(0, min(each, task.elements - number * each)) * item for number in range(parts)]


def piece_spans(elements: int, parts: int) -> list[tuple[int, int]]:
    """Return the start and stop of each piece of :func:`piece_bytes`, in elements."""
    each = -(-elements // parts)
    return [(min(number * each, elements), min((number + 1) * each, elements)) for number in range(parts)]


def chunk_spans(elements: int, chunks: int) -> list[tuple[int, int]]:
    """Return start and stop of non-empty chunks that are as equal as possible; at most one chunk per element."""
    count = min(chunks, elements)
    return [(number * elements // count, (number + 1) * elements // count) for number in range(count)]


def scatter_legs(sender: int, ranks: Sequence[int], elements: int) -> Iterator[Leg]:
    """Yield the messages of a scatter: one piece to each rank, one after another."""
    for rank, (start, stop) in zip(ranks, piece_spans(elements, len(ranks)), strict=True):
        if start < stop:
            yield Leg(sender, rank, start, stop)


def ring_legs(ranks: Sequence[int], elements: int) -> Iterator[Leg]:
    """Yield the messages of a ring all-gather of ranks that have one piece each; each step forwards the last piece."""
    size = len(ranks)
    parts = piece_spans(elements, size)
    for step in range(size - 1):
        for place, rank in enumerate(ranks):
            start, stop = parts[(place - step) % size]
            if start < stop:
                yield Leg(rank, ranks[(place + 1) % size], start, stop)


def tree_legs(edges: Sequence[tuple[int, int]], elements: int, chunks: int) -> Iterator[Leg]:
    """Yield the messages of a chunked broadcast of ``elements`` down a tree; ``edges`` run from the root outwards."""
    for start, stop in chunk_spans(elements, chunks):
        for source, target in edges:
            yield Leg(source, target, start, stop)
