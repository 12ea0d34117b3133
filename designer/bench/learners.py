"""Benchmark of a workshop with simulated learners (``meshwave bench learners``).

The server is a process of its own, and the learners are websocket clients in this process. Each joins with the code,
answers every question of a lesson first incorrectly and then correctly, edits a design, solves its task, and launches a dry
run in the queue of the class.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tornado.httpclient import AsyncHTTPClient

from meshwave.designer.bench.page_client import PATIENCE_S, PageClient
from meshwave.designer.bench.sessions import LIFETIME_S, TOKEN, await_timed, quantiles, server_load, serving_process
from meshwave.designer.server.site import Place
from meshwave.designer.server.workshop import start_workshop
from meshwave.engine.bench.speed import Figures, Say
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.lessons import Choice, Lesson, NumberQuestion, Task, find_lesson, right_answer
from meshwave.engine.lessons.classroom import Classroom, workshop_folder
from meshwave.engine.lessons.workshop import Workshop, WorkshopPlan
from meshwave.engine.runs import Record, State

LEARNERS = 40
LESSON = "01-why-pipelines"
MICROBATCHES = 9
"""Number of microbatches that no design of the lesson has, so that the edit changes the timeline."""
TARGET = "threads"
"""Launch target of the dry runs, whose processes are threads."""
RUN_STEPS = 1
"""Steps of each dry run; the runs of a class wait for each other."""
RUNS_INTERVAL_S, RUNS_PATIENCE_S = 0.5, 600.0


class Act(NamedTuple):
    """A gesture of a learner."""

    kind: str
    """Name in the figures, such as ``answer``."""
    widget: str
    gesture: dict[str, Any]


def bench_learners(minutes: float, say: Say) -> Figures:
    """Let 40 learners join a workshop, go through a lesson and launch a dry run each, in --minutes."""
    return measure_class(LEARNERS, minutes, say)


def measure_class(count: int, minutes: float, say: Say) -> Figures:
    """Measure a class of ``count`` learners; one learner goes through the lesson before, as a warm-up.

    ``say`` reports each error.
    """
    workshop = Workshop("bench", WorkshopPlan(title="Benchmark", people=count + 1, lessons=(LESSON,)), {})
    with serving_process(_serve, workshop) as (link, code):
        measured = asyncio.run(_measure(link, code, count, minutes * 60, say))
        errors = [*_check_results(workshop), *_check_runs(workshop)]
    for error in errors:
        say(error)
    return {**measured, "errors": measured["errors"] + len(errors)}


async def _measure(link: str, code: str, count: int, seconds: float, say: Say) -> Figures:
    first = await _join(link, code, "Learner 0")  # loads modules and caches that stay in memory
    for act in _script(find_lesson(LESSON), "first learner"):
        await _perform(first, act)
    await first.leave()
    before = await server_load(link)
    scripts = [list(_script(find_lesson(LESSON), f"learner {place}")) for place in range(count)]
    opened = [await await_timed(_join(link, code, f"Learner {number}")) for number in range(1, count + 1)]
    pages = [page for page, _ in opened]
    there = await server_load(link)
    period_s, taken = seconds / len(scripts[0]), defaultdict[str, list[float]](list)
    errors: list[str] = []
    taken["join"] = [taken_s for _, taken_s in opened]

    async def learn(place: int, page: PageClient) -> None:
        for turn, act in enumerate(scripts[place]):
            await asyncio.sleep(max(0.0, began + (turn + place / count) * period_s - time.monotonic()))
            try:
                taken[act.kind].append((await await_timed(_perform(page, act)))[1])
            except (MeshwaveError, TimeoutError) as error:
                errors.append(f"learner {place + 1}, {act.kind}: {error or 'no answer'}")

    began = time.monotonic()
    await asyncio.gather(*(learn(place, page) for place, page in enumerate(pages)))
    for page in pages:
        await page.leave()
    for error in errors:
        say(error)
    after = await server_load(link)
    figures: Figures = {"learners": count, "errors": len(errors), "gestures": sum(map(len, taken.values()))}
    for kind, durations in taken.items():
        figures |= quantiles(kind, durations)
    return {
        **figures,
        "memory of a learner_bytes": (there["memory_bytes"] - before["memory_bytes"]) / count,
        **{f"after all have left: {name}": value for name, value in after.items()},
        "memory kept for a learner after all have left_bytes": (after["memory_bytes"] - before["memory_bytes"]) / count,
    }


def _script(lesson: Lesson, key: str) -> Iterator[Act]:
    """Yield the gestures of a learner in a lesson; ``key`` identifies the launch."""
    yield Act("open the lesson", "LessonPane", {"type": "start", "name": lesson.name})
    for number, step in enumerate(lesson.steps):
        if number:
            yield Act("next step", "LessonPane", {"type": "go", "step": number})
        match step.data.check:
            case NumberQuestion() as check:
                for given in (check.wrong, right_answer(lesson, check)):
                    yield Act("answer", "LessonPane", {"type": "answer", "given": str(given)})
            case Choice() as check:
                right = int(right_answer(lesson, check))
                for option in ((right + 1) % len(check.options), right):
                    yield Act("answer", "LessonPane", {"type": "answer", "given": str(option)})
            case Task() as check:
                yield Act("edit", "WaveCanvas", {"type": "microbatches", "value": MICROBATCHES})
                solved = lesson.designs[check.solution]
                short = solved.model_copy(update={"training": solved.training.model_copy(update={"steps": RUN_STEPS})})
                solution = {"file": "solution.json", "text": short.to_json()}
                yield Act("solve the task", "TopBar", {"type": "open", "files": [solution]})
    yield Act("choose a target", "LaunchBar", {"type": "choose", "place": TARGET})
    yield Act("launch", "LaunchBar", {"type": "rehearse", "key": key})
    yield Act("finish the lesson", "LessonPane", {"type": "finish"})


async def _join(link: str, code: str, name: str) -> PageClient:
    """Join as a learner and open the page of a design."""
    answer = await AsyncHTTPClient().fetch(
        f"{link}join", method="POST", body=urlencode({"code": code, "name": name}), follow_redirects=False,
        raise_error=False, request_timeout=PATIENCE_S,
    )  # fmt: skip
    return await PageClient.open(link, answer.headers["Set-Cookie"].partition(";")[0])


async def _perform(page: PageClient, act: Act) -> None:
    if act.kind == "edit":
        await page.edit(act.gesture["value"])
    else:
        await page.ask(act.widget, act.gesture)


# ---- results ----


def _check_results(workshop: Workshop) -> Iterator[str]:
    """Yield the learners who have not passed all checks."""
    checks = sum(step.data.check is not None for step in find_lesson(LESSON).steps)
    classroom = Classroom(workshop_folder(workshop.name), workshop)
    try:
        people: Sequence[dict[str, Any]] = classroom.results()["people"]
    finally:
        classroom.close()
    for person in people:
        done = person["lessons"].get(LESSON, {"done": 0})["done"]
        if done < checks:
            yield f"{person['name']} has passed {done} of {checks} checks"


def _check_runs(workshop: Workshop) -> Iterator[str]:
    """Wait for the dry runs, and yield those that did not succeed."""
    record = Record(workshop_folder(workshop.name))
    try:
        end = time.monotonic() + RUNS_PATIENCE_S
        while any(not entry.state.is_over for entry in record.entries()) and time.monotonic() < end:
            time.sleep(RUNS_INTERVAL_S)
        entries = record.entries()
    finally:
        record.close()
    people = {entry.person for entry in entries if entry.state == State.SUCCEEDED}
    missing = workshop.plan.people - len(people)
    if missing:
        yield f"{missing} dry runs have not succeeded: {sorted({str(entry.state) for entry in entries})}"


# ---- the server ----


def _serve(pipe: Connection, workshop: Workshop) -> None:
    server, place, classroom, studio = start_workshop(workshop, TOKEN, Place(), LIFETIME_S)

    def stop_with_benchmark() -> None:
        pipe.poll(None)
        server.io_loop.add_callback(server.io_loop.stop)

    pipe.send((f"{place.origin}/", classroom.code))
    Thread(target=stop_with_benchmark, daemon=True).start()
    try:
        server.io_loop.start()
    finally:
        server.stop()
        studio.close()
        classroom.close()
