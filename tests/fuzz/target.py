"""Base class of fuzzing targets: a kind of input, valid examples, the way to damage them, and calls that read them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.fuzz.mutate import mutate_json
from tests.fuzz.oracle import Act

NAMES = (
    "designs", "transfers", "expert_layers", "schedules", "orders", "settings", "traces", "profiles", "run_folders",
    "archives", "gestures", "lessons", "workshops", "requests",
)  # fmt: skip
"""Names of the targets, each a module of :mod:`tests.fuzz.targets`."""


class Target(ABC):
    """A kind of input."""

    suffix: ClassVar[str] = ".json"
    is_guided: ClassVar[bool] = False
    """True if inputs that execute new lines of the product are damaged further."""
    entrance: ClassVar[int] = 1
    """Number of calls that every input gets; an input that gets more was accepted."""

    @abstractmethod
    def seeds(self) -> Iterable[bytes]:
        """Return valid inputs, made by the library itself if possible."""

    def mutate(self, chance: Random, seeds: Sequence[bytes]) -> bytes:
        """Return a damaged copy of one of ``seeds``."""
        return mutate_json(chance, seeds)

    @abstractmethod
    def calls(self, path: Path) -> Iterator[tuple[str, Act]]:
        """Yield the name and the function of each call that reads the input at ``path``."""


class UnfitError(Exception):
    """The input does not have the envelope of this target."""


@contextmanager
def envelope() -> Iterator[None]:
    """Convert errors inside this context, which reads the envelope of an input, to :class:`UnfitError`."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UnfitError from error


def target_called(name: str) -> Target:
    """Return a target by name, without importing the others."""
    found: Target = import_module(f"tests.fuzz.targets.{name}").TARGET
    return found


def draw_examples(strategy: SearchStrategy[Any], count: int, number: int = 0) -> list[Any]:
    """Return ``count`` values of a strategy, the same ones in each call."""
    found: list[Any] = []

    @seed(number)
    @settings(
        max_examples=count, database=None, phases=[Phase.generate], deadline=None, suppress_health_check=[*HealthCheck]
    )
    @given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found
