"""Benchmarks ``accuracy`` and ``rehearsal``: measure designs, and summarize the result file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from meshwave.engine.bench.accuracy import cases, hanayo, host_cases
from meshwave.engine.bench.accuracy.cases import Case
from meshwave.engine.bench.accuracy.machine_load import describe_machine
from meshwave.engine.bench.accuracy.measure import Bench, open_bench
from meshwave.engine.bench.accuracy.picture import draw_svg
from meshwave.engine.bench.accuracy.results import Results, read_results, write_results
from meshwave.engine.bench.accuracy.summary import summarize
from meshwave.engine.bench.accuracy.table import dry_run_results, host_results, markdown_page, training_results
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.files import check_writable, data_folder, write_whole
from meshwave.engine.findings import Refusal

Say = Callable[[str], None]
MISSING = "missing"
"""Word that selects the cases without a result."""


def measure_accuracy(only: Sequence[str], out: Path | None, say: Say) -> dict[str, Any]:
    """Compare predictions with dry runs and training runs of more than a hundred designs (half an hour)."""
    return _measure_and_summarize(all_cases(), only, out, say)


def all_cases() -> list[Case]:
    """Return the cases of ``accuracy``."""
    return [*cases.dry_run_cases(), *host_cases.host_cases(), *cases.limit_cases(), *cases.training_cases()]


def measure_dry_runs(only: Sequence[str], out: Path | None, say: Say) -> dict[str, Any]:
    """Compare predictions with dry runs of Hanayo and its baselines on the clusters of the paper (ten minutes)."""
    return _measure_and_summarize(hanayo.paper_cases(), only, out, say)


def _measure_and_summarize(known: Sequence[Case], only: Sequence[str], out: Path | None, say: Say) -> dict[str, Any]:
    path = out or data_folder() / "accuracy.json"
    failed = measure_all(known, only, path, say, lambda: open_bench(say))
    return {**_collect_figures(read_results(path) or _no_results()), "failed": failed, "file": str(path)}


def measure_all(
    known: Sequence[Case],
    only: Sequence[str],
    path: Path,
    say: Say,
    open_bench: Callable[[], AbstractContextManager[Bench]],
) -> dict[str, str]:
    """Measure the selected cases, and write the result file after each of them.

    The page and the picture are written at the end, even after an interruption.

    Args:
        known: all cases.
        only: words that select cases by name or group, or :data:`MISSING`; empty selects all.
        path: the result file.
        say: function that reports progress.
        open_bench: returns a context manager of the object that measures.

    Returns:
        The reasons why cases were skipped, by case name.

    Raises:
        InputError: a word of ``only`` selects nothing, or the result file is invalid or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal("folder_not_made", {"folder": str(path.parent), "reason": error.strerror}) from None
    check_writable(path)
    results = (read_results(path) or _no_results()).move_to_machine(describe_machine())
    selected = _select_cases(known, only, results)
    failed: dict[str, str] = {}
    try:
        with open_bench() as measuring:
            for number, case in enumerate(selected, start=1):
                progress = f"{number} of {len(selected)}  {case.name}"
                try:
                    found = measuring.measure(case)
                except MeshwaveError as error:
                    failed[case.name] = str(error)
                    say(f"{progress}: skipped: {error}")
                    continue
                results = results.replace_result(found, f"{datetime.now(UTC):%Y-%m-%d}")
                write_results(results, path)
                say(f"{progress}: {found.error:+.1%}")
    finally:
        write_page(results, path)
    return failed


def _no_results() -> Results:
    return Results(machine="", date="")


def _select_cases(known: Sequence[Case], only: Sequence[str], results: Results) -> list[Case]:
    """Return the cases whose name or group contains one of the words; all cases if there are no words.

    Raises:
        InputError: a word selects nothing.
    """
    done = {result.case for result in results.results}
    selected = [case for case in known if not only or any(_matches_options(case, word, done) for word in only)]
    for word in only:
        if word != MISSING and not any(_matches_options(case, word, done) for case in known):
            groups = list(dict.fromkeys(case.group for case in known))
            raise Refusal("no_matching_case", {"word": word, "groups": groups})
    return selected


def _matches_options(case: Case, word: str, done: set[str]) -> bool:
    return case.name not in done if word == MISSING else word in case.name or word in case.group


def write_page(results: Results, path: Path) -> None:
    """Write the page and the picture next to the result file."""
    results = read_results(path) or results  # use the rounded values of the file
    write_whole(path.with_suffix(".md"), markdown_page(results).encode())
    if shown := [*host_results(results), *dry_run_results(results), *training_results(results)]:
        write_whole(path.with_suffix(".svg"), draw_svg(shown).encode())


def _collect_figures(results: Results) -> dict[str, Any]:
    known = {case.name for case in hanayo.paper_cases()}
    papers = [result for result in results.results if result.case in known]
    return {
        "machine": results.machine,
        "on_hosts": summarize(host_results(results)).to_json(),
        "rehearsals": summarize(dry_run_results(results)).to_json(),
        "real": summarize(training_results(results)).to_json(),
        "papers": [each._asdict() for each in hanayo.measured_speed_ups(papers)],
        "results": [{**result.model_dump(mode="json"), "error": result.error} for result in results.results],
    }


def to_text(figures: Mapping[str, Any]) -> list[str]:
    """Return a summary as lines for a terminal; details are on the page."""
    lines = [f"  measured on {figures['machine']}"]
    parts = {"dry runs on emulated hosts": "on_hosts", "other dry runs": "rehearsals", "training runs": "real"}
    for title, found in ((title, figures[key]) for title, key in parts.items()):
        if iteration := found["iteration"]:
            lines.append(
                f"  {iteration['designs']} {title}: median error {iteration['median']:.1%}, 90th percentile "
                f"{iteration['tail']:.1%}, maximum {iteration['worst']:.1%}; bias {iteration['bias']:+.1%}"
            )
        if found["ranking"]["pairs"]:
            lines.append(
                f"  order of schedules correct in {found['ranking']['right']} of {found['ranking']['pairs']} pairs"
            )
            lines += [f"    {sentence}" for sentence in found["ranking"]["wrong"]]
        if memory := found["memory"]:
            lines.append(f"  peak memory: median error {memory['median']:.1%}, maximum {memory['worst']:.1%}")
    for each in figures["papers"]:
        paper = "" if each["paper"] is None else f"{each['paper']:.2f}"
        where = f"{hanayo.place_title(each['cluster'], int(each['ranks']))}: {each['who']}"
        lines.append(
            f"  {where:<32}paper {paper:>5}  predicted {each['predicted']:.2f}  dry run {each['measured']:.2f}"
        )
    lines += [f"  skipped: {name}: {reason}" for name, reason in figures["failed"].items()]
    return [*lines, f"  results in {figures['file']}, with a page and a picture next to it"]
