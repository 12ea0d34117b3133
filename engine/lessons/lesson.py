"""Parts of a lesson: its front matter, its designs, and steps with checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from meshwave.engine.document import Design
from meshwave.engine.errors import closest_word
from meshwave.engine.findings import Refusal
from meshwave.engine.frozen import FileName, Part, validation_error
from meshwave.engine.predict.prediction import Prediction, predict

MOST_STEPS = 40
MOST_HINTS = 3
LONGEST_TEXT = 2_000
"""Characters of a title, question, option or hint."""

Text = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=60)]
"""Name of a design within a lesson."""
Unit = Literal["", "%", "s", "ms", "us", "GB", "MB", "TFLOP/s"]
"""Unit in which a number is asked and shown."""


class DesignSource(Part):
    """Source of a design of a lesson: a file of its folder, an example, or another design of the lesson."""

    file: FileName | None = None
    """A JSON file in the folder of the lesson."""
    example: Text | None = None
    """The name of an example of Meshwave."""
    base: Name | None = None
    """Another design of the lesson."""
    set: Mapping[str, Any] = {}
    """Keys of the document that change, such as ``"pipeline.microbatches"``, with their values."""

    @property
    def origins(self) -> list[str]:
        """The origins that are given; exactly one is right."""
        return [each for each in (self.file, self.example, self.base) if each is not None]


class About(Part):
    """The front matter of a lesson."""

    title: Text
    """Title of the lesson."""
    summary: Text
    """Skill that a learner has afterwards, in a sentence."""
    minutes: Annotated[int, Field(ge=1, le=240)]
    """Duration in minutes."""
    level: Literal["beginner", "intermediate", "advanced"]
    """Knowledge that it expects."""
    sources: Annotated[tuple[Text, ...], Field(min_length=1, max_length=20)]
    """Papers and programs that it draws on, with their identifiers."""
    designs: Annotated[Mapping[Name, DesignSource], Field(max_length=60)] = {}
    """Designs by the names that steps use."""


class NumberQuestion(Part):
    """A question whose answer is a number of a prediction."""

    kind: Literal["number"]
    ask: Text
    """The question."""
    design: Name
    """The design whose prediction has the answer."""
    number: Text
    """A number of ``simulate --json``, such as ``bubble_ratio``; of a list, the largest, or one such as ``busy_s[0]``."""
    over: Name | None = None
    """A design whose number divides the first one; the answer is then a ratio."""
    unit: Unit = ""
    """The unit of the answer."""
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Accepted difference, as a share of the right answer."""
    wrong: float
    """An answer that is refused; ``meshwave lessons --check`` tries it."""


class Option(Part):
    """One option of a choice."""

    text: Text
    """Text of the option."""
    design: Name | None = None
    """The design that stands for it where the simulator decides."""
    same: bool = False
    """True for the option that is right if the designs of all others are equal, such as "no difference"."""
    why: str = ""
    """Explanation that is shown once the option is chosen."""


class Choice(Part):
    """A question with options; the simulator or the author determines the right one."""

    kind: Literal["choice"]
    ask: Text
    """The question."""
    options: Annotated[tuple[Option, ...], Field(min_length=2, max_length=6)]
    """The answers to choose from."""
    number: Text | None = None
    """The number of the designs that decides."""
    best: Literal["smallest", "largest"] | None = None
    """Choice of the right option: the design with the smallest or the largest number."""
    right: Annotated[int, Field(ge=1)] | None = None
    """The right option, counted from 1, where no number can decide."""

    @model_validator(mode="after")
    def _check_answer(self) -> Self:
        designs = all(option.design or option.same for option in self.options)
        computed = self.number is not None and self.best is not None and designs and self.right is None
        stated = self.number is None and self.best is None and self.right is not None
        if not computed and not (stated and self.right in range(1, len(self.options) + 1)):
            raise validation_error("", "lesson_choice_answer")
        return self


class Condition(Part):
    """A comparison of a number of a prediction, or of a key of its design, with a value."""

    number: Text
    """A number of ``simulate --json``, a key such as ``pipeline.schedule``, ``devices``, ``stages`` or ``sequences``."""
    op: Literal["<", "<=", "==", "!=", ">=", ">"]
    """Comparison that must hold between the number and the value."""
    value: bool | int | float | str | None = None
    """Value to compare the number with."""
    of: Name | None = None
    """A design whose number stands for the value."""
    times: float = 1.0
    """A factor of that number."""

    @model_validator(mode="after")
    def _check_value(self) -> Self:
        if (self.value is None) == (self.of is None):
            raise validation_error("", "lesson_condition_value")
        return self


class Task(Part):
    """A task for the open design, which is done once the design meets all conditions."""

    kind: Literal["task"]
    ask: Text
    """Description of the task."""
    conditions: Annotated[tuple[Condition, ...], Field(min_length=1, max_length=10)]
    """Conditions that the open design must meet."""
    solution: Name
    """A design that meets them."""


class Measurement(Part):
    """A run to launch, which is done once its median step time is close to the prediction."""

    kind: Literal["measurement"]
    ask: Text
    """Description of the run."""
    tolerance: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Accepted difference, as a share of the prediction."""
    dry_run: bool = True
    """True if a dry run counts as well as a real run."""


Check = Annotated[NumberQuestion | Choice | Task | Measurement, Field(discriminator="kind")]


class StepData(Part):
    """The TOML block of a step."""

    design: Name | None = None
    """The design that opens with the step; the open one stays where there is none."""
    reveal: Name | None = None
    """The design that opens with the explanation."""
    highlight: Text | None = None
    """The control to point at: a key of the document such as ``pipeline.waves``, or the label of a button."""
    hints: tuple[Text, ...] = ()
    """Up to three, each with more help than the one before."""
    check: Check | None = None
    """Question or task of the step."""

    @model_validator(mode="after")
    def _check_hints(self) -> Self:
        if len(self.hints) > MOST_HINTS:
            raise validation_error("hints", "lesson_hints", {"count": len(self.hints), "limit": MOST_HINTS})
        return self


@dataclass(frozen=True)
class Step:
    """One step of a lesson: an idea, a question or task about it, and the explanation that follows the answer."""

    title: str
    text: str
    explanation: str
    data: StepData

    def texts(self) -> Iterator[str]:
        """Yield all texts of the step that a learner reads."""
        check = self.data.check
        yield from (self.text, self.explanation, *self.data.hints)
        if check is not None:
            yield check.ask
        if isinstance(check, Choice):
            yield from (text for option in check.options for text in (option.text, option.why))


@dataclass(frozen=True)
class Lesson:
    """A lesson with its designs."""

    name: str
    folder: Path
    about: About
    steps: tuple[Step, ...]
    designs: Mapping[str, Design]
    _predictions: dict[str, Prediction] = field(default_factory=dict, compare=False)

    def prediction(self, design: str) -> Prediction:
        """Return the prediction of one of the designs, computed once."""
        if design not in self._predictions:
            self._predictions[design] = predict(self.designs[design])
        return self._predictions[design]


def unknown_name(noun: str, name: str, known: Iterable[str]) -> Refusal:
    """Return the refusal of a name that is not among the ``known`` ones."""
    names = sorted(known)
    params = {"noun": noun, "name": name, "known": names, "suggestion": closest_word(name, names)}
    return Refusal("lesson_unknown_name", params)
