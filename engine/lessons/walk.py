"""Walk through a lesson without a page: checks that right answers pass, wrong ones fail, and all texts can be shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwave.engine.errors import MeshwaveError
from meshwave.engine.findings import Problem, problems_of
from meshwave.engine.lessons.checks import judge_choice, judge_measurement, judge_number, judge_task, right_answer
from meshwave.engine.lessons.lesson import Choice, Lesson, Measurement, NumberQuestion, Step, Task
from meshwave.engine.lessons.quantities import fill_numbers


def check_steps(lesson: Lesson) -> Iterator[tuple[Step, list[Problem]]]:
    """Yield each step of a lesson with its problems."""
    for number, step in enumerate(lesson.steps):
        place = f"{lesson.name}/lesson.md, step {number + 1}"
        yield step, [problem.replace(where=place) for problem in _step_problems(lesson, step)]


def _step_problems(lesson: Lesson, step: Step) -> list[Problem]:
    try:
        for text in step.texts():
            fill_numbers(lesson, text)
        for design in filter(None, (step.data.design, step.data.reveal)):
            lesson.prediction(design)
        return list(_check_problems(lesson, step))
    except MeshwaveError as error:
        return list(problems_of(error))


def _check_problems(lesson: Lesson, step: Step) -> Iterator[Problem]:
    match step.data.check:
        case NumberQuestion() as check:
            right = right_answer(lesson, check)
            accepted = [judge_number(lesson, check, given).passed for given in (right, check.wrong)]
            yield from _answer_problems(accepted, right, check.wrong)
        case Choice() as check:
            right = int(right_answer(lesson, check))
            wrong = (right + 1) % len(check.options)
            accepted = [judge_choice(lesson, check, given).passed for given in (right, wrong)]
            yield from _answer_problems(accepted, check.options[right].text, check.options[wrong].text)
        case Task() as check:
            yield from _task_problems(lesson, check, str(step.data.design))
        case Measurement() as check:
            too_long = 1.0 + 2 * check.tolerance
            accepted = [judge_measurement(check, 1.0, measured_s).passed for measured_s in (1.0, too_long)]
            yield from _answer_problems(accepted, 1.0, too_long)


def _answer_problems(accepted: Sequence[bool], right: object, wrong: object) -> Iterator[Problem]:
    accepts_right, accepts_wrong = accepted
    if not accepts_right:
        yield Problem("", "lesson_right_refused", {"answer": right})
    if accepts_wrong:
        yield Problem("", "lesson_wrong_accepted", {"answer": wrong})


def _task_problems(lesson: Lesson, check: Task, start: str) -> Iterator[Problem]:
    if judge_task(lesson, check, lesson.prediction(start)).passed:
        yield Problem("", "lesson_start_passes", {"design": start})
    solved = judge_task(lesson, check, lesson.prediction(check.solution))
    if not solved.passed:
        failed = "; ".join(f"{each.text}, but is {each.value}" for each in solved.conditions if not each.is_met)
        yield Problem("", "lesson_solution_fails", {"design": check.solution, "conditions": failed})
