"""Plan of a workshop: a TOML file with the lessons, challenges and limits of a class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from meshwave.engine.document import Design
from meshwave.engine.document.reading import parse_toml
from meshwave.engine.files import read_whole
from meshwave.engine.findings import DesignError, Refusal
from meshwave.engine.frozen import Part, validation_error
from meshwave.engine.lessons.checks import judge_conditions
from meshwave.engine.lessons.lesson import Condition, DesignSource, Name, Text, unknown_name_refusal
from meshwave.engine.lessons.quantities import document_value, format_quantity, look_up_number
from meshwave.engine.lessons.reading import lesson_folders, read_designs
from meshwave.engine.people.limits import Limits
from meshwave.engine.predict.prediction import Prediction

LARGEST_BYTES = 200_000


class Challenge(Part):
    """Task for the whole class: among the designs that meet the conditions, the one with the best score leads."""

    name: Name
    """Name of the challenge in results."""
    title: Text
    """Title on the page."""
    text: Text
    """Description of the task."""
    design: Name
    """Name of the initial design."""
    number: Text
    """Number of ``simulate --json`` that is the score, such as ``samples_per_s``."""
    best: Literal["smallest", "largest"]
    """Score that leads: the smallest or the largest."""
    fixed: Annotated[tuple[Text, ...], Field(max_length=20)] = ("cluster", "cost", "model")
    """Keys of the document that must stay as in the initial design, so that nobody wins with faster devices."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=10)] = ()
    """Conditions that a design must meet; they compare with values, not with other designs."""

    @model_validator(mode="after")
    def _check_conditions(self) -> Self:
        if any(condition.of is not None for condition in self.conditions):
            raise validation_error("conditions", "workshop_condition_of")
        return self


class WorkshopPlan(Part):
    """Content of the TOML file of a workshop."""

    title: Text
    """Title of the workshop."""
    people: Annotated[int, Field(ge=1, le=200)] = 40
    """Maximum number of learners."""
    lessons: Annotated[tuple[Text, ...], Field(max_length=60)] = ()
    """Names of the lessons in order; all lessons if the list is empty."""
    limits: Limits = Limits()
    """Limits on the runs that each learner launches."""
    challenges: Annotated[tuple[Challenge, ...], Field(max_length=20)] = ()
    """Challenges with a leaderboard."""
    designs: Annotated[Mapping[Name, DesignSource], Field(max_length=20)] = {}
    """Start designs of challenges, defined as in a lesson."""


class Score(NamedTuple):
    """Score of a design in a challenge."""

    value: float
    text: str


@dataclass(frozen=True)
class Workshop:
    """Plan of a workshop with its designs."""

    name: str
    plan: WorkshopPlan
    designs: Mapping[str, Design]

    @property
    def lessons(self) -> list[str]:
        """Names of the lessons in order."""
        return list(self.plan.lessons) or list(lesson_folders())

    def challenge(self, name: str) -> Challenge:
        """Return the challenge with the given name.

        Raises:
            Refusal: no challenge has this name.
        """
        found = {each.name: each for each in self.plan.challenges}
        if name not in found:
            raise unknown_name_refusal("challenge", name, found)
        return found[name]


def score_design(challenge: Challenge, start: Design, prediction: Prediction) -> Score:
    """Return the score of a design in a challenge whose initial design is ``start``.

    Raises:
        Refusal: a fixed key differs from that of ``start``, a condition is not met, or the score is not available.
    """
    design = prediction.design
    changed = [key for key in challenge.fixed if document_value(design, key) != document_value(start, key)]
    if changed:
        raise Refusal("workshop_fixed_key", {"key": changed[0]})
    failed = [each for each in judge_conditions(None, challenge.conditions, prediction) if not each.is_met]
    if failed:
        raise Refusal("workshop_condition_unmet", {"condition": failed[0].text, "value": failed[0].value})
    value = look_up_number(prediction, challenge.number)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refusal("workshop_no_score", {"number": challenge.number})
    return Score(float(value), format_quantity(prediction, challenge.number, value))


def read_workshop(path: Path) -> Workshop:
    """Read the plan and the designs of a workshop.

    Raises:
        Refusal: the file cannot be read.
        DesignError: the plan or a design has problems.
    """
    plan = parse_toml(read_whole(path, "workshop", LARGEST_BYTES).decode("utf-8", "replace"), WorkshopPlan, path.name)
    problems = [
        unknown_name_refusal("lesson", name, lesson_folders()).problem.replace(where=f"{path.name}, lessons")
        for name in plan.lessons
        if name not in lesson_folders()
    ] + [
        unknown_name_refusal("design", each.design, plan.designs).problem.replace(
            where=f"{path.name}, challenges.{each.name}"
        )
        for each in plan.challenges
        if each.design not in plan.designs
    ]
    if problems:
        raise DesignError(problems)
    workshop = Workshop(path.stem, plan, read_designs(path.parent, plan, path.name))
    for challenge in plan.challenges:
        for key in challenge.fixed:
            try:
                document_value(workshop.designs[challenge.design], key)
            except Refusal as refusal:
                place = f"{path.name}, challenges.{challenge.name}.fixed"
                raise DesignError([refusal.problem.replace(where=place)]) from None
    return workshop
