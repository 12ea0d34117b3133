"""Command ``lessons``: list the lessons, or check them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from meshwave.engine.cli.output import print_result, with_progress
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.findings import problems_of
from meshwave.engine.lessons.lesson import Lesson
from meshwave.engine.lessons.reading import find_lesson, lesson_folders
from meshwave.engine.lessons.walk import check_steps


@with_progress
def list_or_check_lessons(options: argparse.Namespace) -> int:
    """List the lessons; with ``--check``, walk through them and return 2 if any has a problem."""
    if options.check is None:
        return print_result(options, {"lessons": [_lesson_entry(name) for name in lesson_folders()]}, _to_lines)
    names = [options.check] if options.check else list(lesson_folders())
    results = [_check_lesson(name) for name in names]
    print_result(options, {"lessons": results}, _to_check_lines)
    return 2 if any(result["problems"] for result in results) else 0


def _lesson_entry(name: str) -> dict[str, Any]:
    try:
        lesson = find_lesson(name)
    except MeshwaveError as error:
        return {"name": name, "problems": [problem.to_json() for problem in problems_of(error)]}
    about = lesson.about.model_dump(mode="json", exclude={"designs"})
    return {"name": name, **about, "steps": len(lesson.steps), "problems": []}


def _check_lesson(name: str) -> dict[str, Any]:
    try:
        lesson = find_lesson(name)
        problems = [problem.to_json() for _, found in check_steps(lesson) for problem in found]
        return {"name": name, "steps": len(lesson.steps), "checks": _check_count(lesson), "problems": problems}
    except MeshwaveError as error:
        return {"name": name, "steps": 0, "checks": 0, "problems": [each.to_json() for each in problems_of(error)]}


def _check_count(lesson: Lesson) -> int:
    return sum(step.data.check is not None for step in lesson.steps)


def _to_lines(result: Mapping[str, Any]) -> Iterable[str]:
    entries = result["lessons"]
    width = max((len(entry["name"]) for entry in entries), default=0)
    for entry in entries:
        about = f"{entry['minutes']:3} min  {entry['title']}" if "title" in entry else "not readable; see --check"
        yield f"{entry['name']:{width}}  {about}"
    minutes = sum(entry.get("minutes", 0) for entry in entries)
    yield f"{len(entries)} lessons, {minutes} minutes. Open one in the designer: Help, Lessons."


def _to_check_lines(result: Mapping[str, Any]) -> Iterable[str]:
    for entry in result["lessons"]:
        found = [f"{problem['where'] or entry['name']}: {problem['message']}" for problem in entry["problems"]]
        yield from found or [f"{entry['name']}: {entry['steps']} steps, {entry['checks']} checks, no problems"]
