"""Modules of plain loops, which are compiled if numba is installed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from meshwave.engine import compiled
from meshwave.engine.program import shared_links_loop, shared_links_simulation
from meshwave.engine.program.shared_links_simulation import compile_loop


def test_a_compiled_copy_leaves_the_module_as_it_is() -> None:
    module = compiled.compiled_module(shared_links_loop.__name__)

    assert module is not None
    assert type(shared_links_loop.compute_fair_rates).__name__ == "function"
    assert type(module.compute_fair_rates).__name__ == "CPUDispatcher"


def test_the_loop_is_compiled_before_a_large_program_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_modules", {})
    monkeypatch.setattr(shared_links_simulation, "_ready", threading.Event())

    assert compile_loop()

    module = compiled.compiled_module(shared_links_loop.__name__)
    assert module is not None
    assert len(module.simulate_flows.signatures) == 1


def test_the_loop_is_compiled_again_without_a_writable_cache() -> None:
    """A read-only installation of a user without a home folder."""
    asked: list[dict[str, Any]] = []

    def njit(**options: Any) -> Callable[[Any], Any]:
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    assert compiled._compile_function(njit, len) is len  # type: ignore[arg-type]
    assert [bool(options.get("cache")) for options in asked] == [True, False]


def test_without_numba_there_is_nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compiled.sys.modules, "numba", None)

    assert compiled._compile(shared_links_loop.__name__) is None
