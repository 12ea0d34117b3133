"""What a strategy is: the seconds of one unit task, and in how many chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from inspect import cleandoc
from typing import ClassVar, NamedTuple

from engine.registry import Registry
from engine.transfer._links import Links
from engine.transfer._tasks import UnitTask


class Latency(NamedTuple):
    seconds: float
    chunks: int = 1


class Strategy(ABC):
    """How a slice reaches all its receivers. A member is one file in this folder.

    The first sentence of its docstring is its help text.
    """

    title: ClassVar[str]

    @abstractmethod
    def latency(self, task: UnitTask, sender: int, links: Links, chunks: int | None = None) -> Latency:
        """Seconds until the last receiver has the slice; ``chunks`` none: the best number of them."""

    @classmethod
    def help(cls) -> str:
        return cleandoc(cls.__doc__ or "")


strategies: Registry[type[Strategy]] = Registry("transfer strategy", "engine.transfer.strategies")


def pieces(task: UnitTask, parts: int) -> list[float]:
    """Bytes of ``parts`` pieces of ``ceil(elements / parts)`` elements, the last ones shorter or empty."""
    item = task.bytes / task.elements if task.elements else 0.0
    each = -(-task.elements // parts)
    return [max(0, min(each, task.elements - number * each)) * item for number in range(parts)]
