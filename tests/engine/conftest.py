"""Tests compute with one thread each, and search an order for a moment only, except where that is what is tested."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from meshwave.engine.schedules import auto


@pytest.fixture(autouse=True, scope="module")
def short_search() -> Iterator[None]:
    """Orders of schedule ``auto`` come from the same search with fewer tries: sound, and not as good."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto, "GREEDY_TASKS", 1)
        patch.setattr(auto, "MAX_MOVES", 20)
        yield
    auto._results.clear()  # results of a short search do not apply to the full one


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    """Tests run side by side: threads of small tensors would only wait for each other, and burn a core while they do."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
