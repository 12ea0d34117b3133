"""Benchmarks of a server with many open pages."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from meshwave.designer.bench import learners, soak
from meshwave.designer.bench import sessions as sessions_bench
from meshwave.designer.server.serve import read_design, serve_in_thread
from meshwave.engine.bench import speed as bench
from meshwave.engine.errors import InputError


@pytest.fixture(autouse=True)
def shorten_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"EDIT_INTERVAL_S": 0.0, "LEAST_EDITS": 0, "IDLE_S": 0.1}.items():
        monkeypatch.setattr(sessions_bench, name, value)


def run(coroutine: Coroutine[Any, Any, bench.Figures]) -> bench.Figures:
    with ThreadPoolExecutor(1) as elsewhere:  # playwright's loop, if a test before used it, runs in this thread
        return elsewhere.submit(asyncio.run, coroutine).result()


@pytest.mark.slow
def test_the_benchmark_of_sessions_reports_times_and_leaves_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    with serve_in_thread(read_design(None), sessions_bench.TOKEN, session_lifetime_s=0.2) as link:
        figures = run(sessions_bench._measure(link, 3))

    assert (figures["sessions"], figures["after the pages closed: sessions"]) == (3, 0)
    assert 0 < figures["open, median_s"] <= figures["open, 95th percentile_s"]
    assert 0 < figures["edit, median_s"] <= figures["edit, 95th percentile_s"]
    assert figures["memory_bytes"] > 20e6 and figures["after the pages closed: memory_bytes"] > 20e6
    assert figures["after the pages closed: idle processor_share"] >= 0


@pytest.mark.slow
@pytest.mark.nightly
def test_simulated_learners_go_through_a_lesson_without_an_error() -> None:
    said: list[str] = []
    with ThreadPoolExecutor(1) as elsewhere:  # as in run()
        figures = elsewhere.submit(learners.measure_class, 2, 0.01, said.append).result()

    assert said == []
    assert (figures["learners"], figures["errors"]) == (2, 0)
    assert 0 < figures["answer, median_s"] <= figures["answer, 95th percentile_s"]
    assert figures["memory of a learner_bytes"] > 0


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.nightly
def test_after_edits_launches_and_killed_processes_the_server_holds_no_more_than_before() -> None:
    said: list[str] = []

    with ThreadPoolExecutor(1) as elsewhere:  # as in run()
        figures = elsewhere.submit(soak.bench_soak, 2.0, said.append).result()

    before, *_, after = (each.partition(":")[0] for each in said)
    assert before.startswith("after 0.0 min, 0 sessions") and "and 0 killed" not in after
    assert sum(count for name, count in figures.items() if name.startswith(f"{after}: meshwave_runs")) >= 4
    for held in ("processes", "threads", "listening ports", "file locks", "temporary files"):
        assert figures[f"{after}: {held}"] <= figures[f"{before}: {held}"], held
    assert figures[f"{after}: open files"] <= figures[f"{before}: open files"] + 2  # of the log and the run database


def test_minutes_apply_to_the_parts_that_take_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure_nothing(minutes: float, say: bench.Say) -> bench.Figures:
        """Measure nothing."""
        return {"minutes": minutes}

    monkeypatch.setattr(bench, "TIMED_PARTS", {"soak": measure_nothing})
    said: list[str] = []

    assert bench.run_benchmarks(["soak"], said.append, minutes=2)["soak"] == {"minutes": 2}
    assert bench.run_benchmarks(["soak"], said.append)["soak"] == {"minutes": bench.DEFAULT_MINUTES}
    assert said == ["soak: Measure nothing."] * 2
    with pytest.raises(InputError, match="--minutes applies only to soak"):
        bench.run_benchmarks(["command"], said.append, minutes=2)
    with pytest.raises(InputError, match="--minutes: -1 should be more than 0"):
        bench.run_benchmarks(["soak"], said.append, minutes=-1)


def test_memory_is_reported_in_bytes() -> None:
    assert "120 MB" in bench.to_text({"soak": {"memory_bytes": 120e6}})[-1]
