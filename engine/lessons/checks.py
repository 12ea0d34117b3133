"""Checks of lessons: right answers, and verdicts on answers, designs and runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from meshwave.engine.findings import Refusal
from meshwave.engine.lessons.lesson import Choice, Condition, Lesson, Measurement, NumberQuestion, Task
from meshwave.engine.lessons.quantities import (
    SCALES,
    design_number,
    format_quantity,
    format_value,
    look_up_number,
    number_title,
)
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.units import percent

_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">=": operator.ge, ">": operator.gt,
}  # fmt: skip
_TEXTS: Final[Mapping[str, str]] = {
    "<": "{title} less than {value}", "<=": "{title} at most {value}", "==": "{title} = {value}",
    "!=": "{title} ≠ {value}", ">=": "{title} at least {value}", ">": "{title} more than {value}",
}  # fmt: skip
"""Texts of conditions by comparison."""
EQUAL_WITHIN = 1e-3
"""Relative difference up to which numbers of designs count as equal; it is smaller than the rounding in texts."""


@dataclass(frozen=True)
class ConditionResult:
    """Condition of a task, and the value that the open design has for it."""

    text: str
    value: str
    is_met: bool


@dataclass(frozen=True)
class Verdict:
    """Verdict on a check: True if it is passed, an explanation, and the conditions of a task."""

    passed: bool
    reply: str
    conditions: Sequence[ConditionResult] = ()


def right_answer(lesson: Lesson, check: NumberQuestion | Choice) -> float | int:
    """Return the right answer: a number in the unit of the question, or the index of an option.

    Raises:
        Refusal: the simulator cannot determine the answer.
    """
    if isinstance(check, NumberQuestion):
        return design_number(lesson, check.design, check.number, check.over) / SCALES[check.unit]
    if check.right is not None:
        return check.right - 1
    assert check.number is not None
    values = {
        index: design_number(lesson, option.design, check.number)
        for index, option in enumerate(check.options)
        if option.design is not None
    }
    pick = min if check.best == "smallest" else max
    best = pick(values.values())
    near = [index for index, value in values.items() if abs(value - best) <= EQUAL_WITHIN * abs(best)]
    if len(near) == 1:
        return near[0]
    same = [index for index, option in enumerate(check.options) if option.same]
    if not same or len(near) < len(values):
        raise Refusal("lesson_choice_tie")
    return same[0]


def judge_number(lesson: Lesson, check: NumberQuestion, given: float) -> Verdict:
    """Return the verdict on an answer in the unit of the question."""
    right = right_answer(lesson, check)
    passed = abs(given - right) <= check.tolerance * abs(right) + 1e-9
    exact = format_value(right * SCALES[check.unit], check.unit)
    return Verdict(passed, f"The simulator says {exact}." if passed else _direction_hint(given, right))


def _direction_hint(given: float, right: float) -> str:
    direction = "smaller" if given > right else "larger"
    is_far = abs(given - right) > 0.5 * abs(right)
    return f"The right answer is much {direction}." if is_far else f"The right answer is {direction}."


def judge_choice(lesson: Lesson, check: Choice, given: int) -> Verdict:
    """Return the verdict on the option with index ``given``."""
    passed = given == right_answer(lesson, check)
    return Verdict(passed, check.options[given].why or ("That is right." if passed else "That is not right."))


def judge_task(lesson: Lesson, check: Task, prediction: Prediction) -> Verdict:
    """Return the verdict on the open design."""
    results = judge_conditions(lesson, check.conditions, prediction)
    passed = all(result.is_met for result in results)
    return Verdict(passed, "The design meets every condition." if passed else "", results)


def judge_conditions(
    lesson: Lesson | None, conditions: Sequence[Condition], prediction: Prediction
) -> list[ConditionResult]:
    """Return the result of each condition for a design.

    ``lesson`` is required for conditions that name one of its designs.
    """
    return [_judge_condition(lesson, condition, prediction) for condition in conditions]


def _judge_condition(lesson: Lesson | None, condition: Condition, prediction: Prediction) -> ConditionResult:
    value = look_up_number(prediction, condition.number)
    wanted: Any = condition.value
    if condition.of is not None and lesson is not None:
        wanted = condition.times * design_number(lesson, condition.of, condition.number)
    text = _TEXTS[condition.op].format(
        title=number_title(condition.number), value=format_quantity(prediction, condition.number, wanted)
    )
    is_met = are_comparable(value, wanted) and _COMPARE[condition.op](value, wanted)
    return ConditionResult(text, format_quantity(prediction, condition.number, value), is_met)


def are_comparable(value: Any, wanted: Any) -> bool:
    """Return True if two values can be compared: both are numbers, or both have the same type."""
    are_numbers = all(isinstance(each, int | float) for each in (value, wanted))
    return are_numbers or type(value) is type(wanted)


def judge_measurement(check: Measurement, predicted_s: float, measured_s: float) -> Verdict:
    """Return the verdict on the median step time of a run."""
    share = measured_s / predicted_s - 1
    passed = abs(share) <= check.tolerance
    return Verdict(
        passed,
        f"The measured step is {percent(abs(share))} {'longer' if share > 0 else 'shorter'} than predicted; "
        f"accepted: {percent(check.tolerance)}.",
    )
