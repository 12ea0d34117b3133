"""Command ``workshop``: serve a course to a class, print its results, or reset it."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

from meshwave.engine.cli.output import print_result
from meshwave.engine.files import expand_user
from meshwave.engine.findings import Refusal
from meshwave.engine.lessons.classroom import Classroom, workshop_folder
from meshwave.engine.lessons.workshop import read_workshop


def workshop(options: argparse.Namespace) -> int:
    """Serve the workshop; with ``--results`` or ``--reset``, print or delete its results instead."""
    if options.home:
        os.environ["MESHWAVE_HOME"] = str(expand_user(options.home).absolute())
    if not (options.results or options.reset):
        return int(options.serve(options))
    plan = read_workshop(options.plan)
    folder = workshop_folder(plan.name)
    if not folder.is_dir():
        raise Refusal("workshop_not_begun", {"name": plan.name})
    with closing(Classroom(folder, plan)) as classroom:
        if not options.reset:
            return print_result(options, classroom.results(), _to_lines)
        classroom.reserve()
    shutil.rmtree(folder)
    print(f"deleted {folder}")
    return 0


def _to_lines(results: Mapping[str, Any]) -> Iterable[str]:
    yield results["title"]
    for person in results["people"]:
        passed = sum(lesson["done"] for lesson in person["lessons"].values())
        yield f"{person['name']}: {passed} checks passed in {len(person['lessons'])} lessons"
    for name, board in results["challenges"].items():
        for each in board:
            measured = f" (dry run: {each['result']})" if each["result"] else ""
            yield f"{name}: {each['rank']}. {each['name']}, {each['text']}{measured}"
