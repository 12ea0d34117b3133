"""What a strategy is: the seconds of one unit task, in how many chunks, and the messages that it is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from inspect import cleandoc
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.registry import Registry
from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.tasks import Load, UnitTask, cut, holders, needers


class Latency(NamedTuple):
    seconds: float
    chunks: int = 1


class Leg(NamedTuple):
    """One message of a unit task: elements ``start`` to ``stop`` of the slice, flattened row-major."""

    source: int  # ranks
    target: int
    start: int
    stop: int


class Strategy(ABC):
    """How a slice reaches all its receivers. A member is one file in this folder.

    The first sentence of its docstring is its help text.
    """

    title: ClassVar[str]

    @abstractmethod
    def latency(self, task: UnitTask, sender: int, links: Links, chunks: int | None = None) -> Latency:
        """Seconds until the last receiver has the slice; ``chunks`` none: the best number of them."""

    @abstractmethod
    def legs(self, task: UnitTask, sender: int, links: Links, chunks: int = 1) -> Iterator[Leg]:
        """Every message, none of them empty: one that hands a range on comes after the one that brought it."""

    def unit_tasks(self, load: Load, number: int = 0) -> list[UnitTask]:
        """The unit tasks of the ``number``-th tensor of a transfer.

        Raises:
            SpecError: a spec does not fit its mesh or the tensor.
        """
        return cut(load, holders(load), needers(load), number)

    def gather_seconds(self, tasks: Sequence[UnitTask], links: Links) -> float:
        """Seconds after the last unit task, for what receivers gather of whole tensors."""
        return 0.0

    @classmethod
    def help(cls) -> str:
        return cleandoc(cls.__doc__ or "")


MOST_CHUNKS = 1024
"""Numbers of chunks among which the best is sought."""
strategies: Registry[type[Strategy]] = Registry("transfer strategy", "meshwave.engine.resharding.strategies")


def chunk_counts(task: UnitTask, chunks: int | None) -> NDArray[np.int64]:
    """Return the numbers of chunks to price: the one that is wanted, never more than a slice has elements, or all."""
    most = max(1, task.elements)
    return np.array([min(chunks, most)]) if chunks else np.arange(1, min(MOST_CHUNKS, most) + 1)


def pieces(task: UnitTask, parts: int) -> list[float]:
    """Bytes of ``parts`` pieces of ``ceil(elements / parts)`` elements, the last ones shorter or empty."""
    item = task.bytes / task.elements if task.elements else 0.0
    each = -(-task.elements // parts)
    return [max(0, min(each, task.elements - number * each)) * item for number in range(parts)]


def spans(elements: int, parts: int) -> list[tuple[int, int]]:
    """Start and stop of each of :func:`pieces`, in elements."""
    each = -(-elements // parts)
    return [(min(number * each, elements), min((number + 1) * each, elements)) for number in range(parts)]


def chunked(elements: int, chunks: int) -> list[tuple[int, int]]:
    """``elements`` in chunks as equal as can be, none empty; fewer where there are fewer elements."""
    count = min(chunks, elements)
    return [(number * elements // count, (number + 1) * elements // count) for number in range(count)]


def dealt(sender: int, ranks: Sequence[int], elements: int) -> Iterator[Leg]:
    """A piece to each rank, one after another."""
    for rank, (start, stop) in zip(ranks, spans(elements, len(ranks)), strict=True):
        if start < stop:
            yield Leg(sender, rank, start, stop)


def gathered(ranks: Sequence[int], elements: int) -> Iterator[Leg]:
    """A ring of ranks that hold a piece each: in each step every rank hands on what it got last."""
    size = len(ranks)
    parts = spans(elements, size)
    for step in range(size - 1):
        for place, rank in enumerate(ranks):
            start, stop = parts[(place - step) % size]
            if start < stop:
                yield Leg(rank, ranks[(place + 1) % size], start, stop)


def flowing(edges: Sequence[tuple[int, int]], elements: int, chunks: int) -> Iterator[Leg]:
    """Chunk by chunk down a tree, whose ``edges`` of source and target go outwards."""
    for start, stop in chunked(elements, chunks):
        for source, target in edges:
            yield Leg(source, target, start, stop)
