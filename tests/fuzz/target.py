"""What is fuzzed: a form of input, sound examples of it, how they are damaged, and the calls that read them."""

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
"""The targets, each a module of :mod:`tests.fuzz.targets`."""


class Target(ABC):
    """One form of input."""

    suffix: ClassVar[str] = ".json"
    is_guided: ClassVar[bool] = False
    """True to damage inputs further that ran new lines of the product, whose lines are counted for a share of them."""
    entrance: ClassVar[int] = 1
    """Calls that every input meets; an input that meets more was accepted."""

    @abstractmethod
    def seeds(self) -> Iterable[bytes]:
        """Return sound inputs, the first one at once, made by the library itself where it makes such."""

    def mutate(self, chance: Random, seeds: Sequence[bytes]) -> bytes:
        """Return a damaged copy of one of ``seeds``."""
        return mutate_json(chance, seeds)

    @abstractmethod
    def calls(self, path: Path) -> Iterator[tuple[str, Act]]:
        """Yield the name and the function of each call that reads the input at ``path``."""


class UnfitError(Exception):
    """The input is none of this target: an envelope around what is fuzzed was taken apart."""


@contextmanager
def envelope() -> Iterator[None]:
    """Read what a target wraps its inputs in.

    Raises:
        UnfitError: it is not of the target's form.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UnfitError from error


def target_called(name: str) -> Target:
    """Return a target, importing no other."""
    found: Target = import_module(f"tests.fuzz.targets.{name}").TARGET
    return found


def drawn(strategy: SearchStrategy[Any], count: int, number: int = 0) -> list[Any]:
    """Return ``count`` values of a strategy, the same every time."""
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
