"""The two parts of the bench: some designs measured into a file, and what is told of all that the file holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from meshwave.engine.bench.accuracy import cases, hanayo
from meshwave.engine.bench.accuracy.cases import Case
from meshwave.engine.bench.accuracy.machine_load import in_words
from meshwave.engine.bench.accuracy.measure import bench
from meshwave.engine.bench.accuracy.picture import svg
from meshwave.engine.bench.accuracy.results import Result, Results, read, write
from meshwave.engine.bench.accuracy.summary import summary
from meshwave.engine.bench.accuracy.table import emulated, markdown, real, rehearsed
from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.files import home, see_writable, write_whole

Say = Callable[[str], None]
MISSING = "missing"
"""Instead of a word: those of which there is no result yet."""


class Measures(Protocol):
    """Measures one design after the other."""

    def measure(self, case: Case) -> Result:
        """
        Raises:
            MeshwaveError: this one cannot be measured.
        """
        ...


def accuracy(only: Sequence[str], out: Path | None, say: Say) -> dict[str, Any]:
    """rehearse and run more than a hundred designs and hold them against their predictions; about half an hour"""
    return _part(cases.accuracy(), only, out, say)


def rehearsal(only: Sequence[str], out: Path | None, say: Say) -> dict[str, Any]:
    """rehearse Hanayo and its rivals as on each of the paper's clusters; about ten minutes"""
    return _part(hanayo.cases(), only, out, say)


def _part(known: Sequence[Case], only: Sequence[str], out: Path | None, say: Say) -> dict[str, Any]:
    path = out or home() / "accuracy.json"
    failed = measure_all(known, only, path, say, lambda: bench(say))
    return {**_as_data(read(path) or _no_results()), "failed": failed, "file": str(path)}


def measure_all(
    known: Sequence[Case],
    only: Sequence[str],
    path: Path,
    say: Say,
    opened: Callable[[], AbstractContextManager[Measures]],
) -> dict[str, str]:
    """Measure those of some designs that are wanted, on a bench that is opened for them. The file of results is written
    after each; page and picture at the end, also where that comes early.

    Returns why designs were left out, by their names.

    Raises:
        InputError: no design is meant by a word of ``only``, or the file holds something else or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot keep results in {path.parent}: {error.strerror}") from None
    see_writable(path)
    results = (read(path) or _no_results()).model_copy(update={"machine": in_words()})
    wanted = _wanted(known, only, results)
    failed: dict[str, str] = {}
    try:
        with opened() as measuring:
            for number, case in enumerate(wanted, start=1):
                where = f"{number} of {len(wanted)}  {case.name}"
                try:
                    found = measuring.measure(case)
                except MeshwaveError as error:
                    failed[case.name] = str(error)
                    say(f"{where}: left out: {error}")
                    continue
                results = results.with_one(found, f"{datetime.now(UTC):%Y-%m-%d}")
                write(results, path)
                say(f"{where}: {found.error:+.1%}")
    finally:
        draw(results, path)
    return failed


def _no_results() -> Results:
    return Results(machine="", date="")


def _wanted(known: Sequence[Case], only: Sequence[str], results: Results) -> list[Case]:
    """Those whose name or group holds one of the words; all where there is none.

    Raises:
        InputError: a word is in none of them.
    """
    done = {result.case for result in results.results}
    wanted = [case for case in known if not only or any(_is_meant(case, word, done) for word in only)]
    for word in only:
        if word != MISSING and not any(_is_meant(case, word, done) for case in known):
            groups = ", ".join(dict.fromkeys(case.group for case in known))
            raise InputError(f"no design of this bench has {word!r} in its name or group; the groups are: {groups}")
    return wanted


def _is_meant(case: Case, word: str, done: set[str]) -> bool:
    return case.name not in done if word == MISSING else word in case.name or word in case.group


def draw(results: Results, path: Path) -> None:
    """Write the page and the picture of a file of results beside it: of what stands in the file, where numbers are short."""
    results = read(path) or results
    write_whole(path.with_suffix(".md"), markdown(results).encode())
    if shown := [*emulated(results), *rehearsed(results), *real(results)]:
        write_whole(path.with_suffix(".svg"), svg(shown).encode())


def _as_data(results: Results) -> dict[str, Any]:
    known = {case.name for case in hanayo.cases()}
    papers = [result for result in results.results if result.case in known]
    return {
        "machine": results.machine,
        "on_hosts": summary(emulated(results)).as_data(),
        "rehearsals": summary(rehearsed(results)).as_data(),
        "real": summary(real(results)).as_data(),
        "papers": [each._asdict() for each in hanayo.speed_ups(papers)],
        "results": [{**result.model_dump(mode="json"), "error": result.error} for result in results.results],
    }


def to_text(figures: Mapping[str, Any]) -> list[str]:
    """The lines in which a terminal shows it: the page says the rest."""
    lines = [f"  measured on {figures['machine']}"]
    parts = {"rehearsals on emulated hosts": "on_hosts", "rehearsals without": "rehearsals", "real runs": "real"}
    for what, found in ((what, figures[key]) for what, key in parts.items()):
        if iteration := found["iteration"]:
            lines.append(
                f"  {iteration['designs']} {what}: error {iteration['median']:.1%} at the median, {iteration['tail']:.1%} at the "
                f"90th percentile, {iteration['worst']:.1%} at worst; bias {iteration['bias']:+.1%}"
            )
        if found["ranking"]["pairs"]:
            lines.append(
                f"  order of schedules right in {found['ranking']['right']} of {found['ranking']['pairs']} pairs"
            )
            lines += [f"    {sentence}" for sentence in found["ranking"]["wrong"]]
        if memory := found["memory"]:
            lines.append(f"  peak memory: {memory['median']:.1%} off at the median, {memory['worst']:.1%} at worst")
    for each in figures["papers"]:
        paper = "" if each["paper"] is None else f"{each['paper']:.2f}"
        where = f"{hanayo.place_of(each['cluster'], int(each['ranks']))}: {each['who']}"
        lines.append(
            f"  {where:<32}paper {paper:>5}  predicted {each['predicted']:.2f}  rehearsed {each['measured']:.2f}"
        )
    lines += [f"  left out: {name}: {why}" for name, why in figures["failed"].items()]
    return [*lines, f"  kept in {figures['file']}; beside it a page and a picture"]
