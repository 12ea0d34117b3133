"""Parts of a lesson: front matter, designs, and steps with checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from meshwave.engine.document import Design
from meshwave.engine.errors import closest_word
from meshwave.engine.findings import Refusal
from meshwave.engine.frozen import FileName, Part, text_form, validation_error
from meshwave.engine.predict.prediction import Prediction, predict

MOST_STEPS = 40
MOST_HINTS = 3
LONGEST_TEXT = 2_000
"""Maximum number of characters of a title, question, option or hint."""

Text = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]
Name = Annotated[
    str, text_form(r"^[a-z0-9][a-z0-9_-]*$", "a name of lower-case letters, digits, _ and -"), Field(max_length=60)
]
"""Name of a design within a lesson."""
Unit = Literal["", "%", "s", "ms", "us", "GB", "MB", "TFLOP/s"]
"""Unit in which a number is asked for and shown."""


class DesignSource(Part):
    """Source of a design of a lesson: a file in its folder, an example, or another design of the lesson."""

    file: FileName | None = None
    """Name of a JSON file in the folder of the lesson."""
    example: Text | None = None
    """Name of an example of Meshwave."""
    base: Name | None = None
    """Name of another design of the lesson."""
    set: Mapping[str, Any] = {}
    """Changed keys of the document, such as ``"pipeline.microbatches"``, with their new values."""

    @property
    def origins(self) -> list[str]:
        """Sources that are given; exactly one is valid."""
        return [each for each in (self.file, self.example, self.base) if each is not None]


class About(Part):
    """Front matter of a lesson."""

    title: Text
    """Title of the lesson."""
    summary: Text
    """Sentence on the skill that a learner acquires."""
    minutes: Annotated[int, Field(ge=1, le=240)]
    """Duration in minutes."""
    level: Literal["beginner", "intermediate", "advanced"]
    """Expected knowledge of the learner."""
    sources: Annotated[tuple[Text, ...], Field(min_length=1, max_length=20)]
    """Papers and programs on which the lesson is based, with their identifiers."""
    designs: Annotated[Mapping[Name, DesignSource], Field(max_length=60)] = {}
    """Designs by the names that steps use."""


class NumberQuestion(Part):
    """Question whose answer is a number of a prediction."""

    kind: Literal["number"]
    ask: Text
    """Text of the question."""
    design: Name
    """Name of the design whose prediction has the answer."""
    number: Text
    """Number of ``simulate --json``, such as ``bubble_ratio``; of a list, the largest, or one such as ``busy_s[0]``."""
    over: Name | None = None
    """Name of the design whose number divides the first one; the answer is then a ratio."""
    unit: Unit = ""
    """Unit of the answer."""
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Accepted difference, as a fraction of the right answer."""
    wrong: float
    """Wrong answer, which ``meshwave lessons --check`` tries."""


class Option(Part):
    """Option of a choice."""

    text: Text
    """Text of the option."""
    design: Name | None = None
    """Name of the design that represents the option, if the simulator determines the answer."""
    same: bool = False
    """True for the option that is right if the designs of all other options are equal, such as "no difference"."""
    why: str = ""
    """Explanation that is shown when the option is chosen."""


class Choice(Part):
    """Question with options; the simulator or the author determines the right one."""

    kind: Literal["choice"]
    ask: Text
    """Text of the question."""
    options: Annotated[tuple[Option, ...], Field(min_length=2, max_length=6)]
    """Options to choose from."""
    number: Text | None = None
    """Number of the designs that determines the right option."""
    best: Literal["smallest", "largest"] | None = None
    """Selection of the right option: the design with the smallest or the largest number."""
    right: Annotated[int, Field(ge=1)] | None = None
    """Right option, counted from 1, if no number determines it."""

    @model_validator(mode="after")
    def _check_answer(self) -> Self:
        designs = all(option.design or option.same for option in self.options)
        computed = self.number is not None and self.best is not None and designs and self.right is None
        stated = self.number is None and self.best is None and self.right is not None
        if not computed and not (stated and self.right in range(1, len(self.options) + 1)):
            raise validation_error("", "lesson_choice_answer")
        return self


class Condition(Part):
    """Comparison of a number of a prediction, or of a key of its design, with a value."""

    number: Text
    """Number of ``simulate --json``, a key such as ``pipeline.schedule``, ``devices``, ``stages`` or ``sequences``."""
    op: Literal["<", "<=", "==", "!=", ">=", ">"]
    """Comparison between the number and the value."""
    value: bool | int | float | str | None = None
    """Value with which the number is compared."""
    of: Name | None = None
    """Name of a design whose number is used as the value."""
    times: float = 1.0
    """Factor of that number."""

    @model_validator(mode="after")
    def _check_value(self) -> Self:
        if (self.value is None) == (self.of is None):
            raise validation_error("", "lesson_condition_value")
        return self


class Task(Part):
    """Task for the open design, which is done when the design meets all conditions."""

    kind: Literal["task"]
    ask: Text
    """Description of the task."""
    conditions: Annotated[tuple[Condition, ...], Field(min_length=1, max_length=10)]
    """Conditions that the open design must meet."""
    solution: Name
    """Name of a design that meets the conditions."""


class Measurement(Part):
    """Run to launch, which is done when its median step time is close to the prediction."""

    kind: Literal["measurement"]
    ask: Text
    """Description of the run."""
    tolerance: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Accepted difference, as a fraction of the prediction."""
    dry_run: bool = True
    """True if a dry run counts, as well as a training run."""


Check = Annotated[NumberQuestion | Choice | Task | Measurement, Field(discriminator="kind")]


class StepData(Part):
    """Content of the TOML block of a step."""

    design: Name | None = None
    """Name of the design that opens with the step; without it, the open design stays."""
    reveal: Name | None = None
    """Name of the design that opens with the explanation."""
    highlight: Text | None = None
    """Control to highlight: a key of the document such as ``pipeline.waves``, or the label of a button."""
    hints: tuple[Text, ...] = ()
    """Up to three hints, each with more help than the previous one."""
    check: Check | None = None
    """Question or task of the step."""

    @model_validator(mode="after")
    def _check_hints(self) -> Self:
        if len(self.hints) > MOST_HINTS:
            raise validation_error("hints", "lesson_hints", {"count": len(self.hints), "limit": MOST_HINTS})
        return self


@dataclass(frozen=True)
class Step:
    """Step of a lesson: an idea, a question or task about it, and the explanation that follows the answer."""

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
    """Lesson with its designs."""

    name: str
    folder: Path
    about: About
    steps: tuple[Step, ...]
    designs: Mapping[str, Design]
    _predictions: dict[str, Prediction] = field(default_factory=dict, compare=False)

    def prediction(self, design: str) -> Prediction:
        """Return the prediction of one of the designs; it is computed only once."""
        if design not in self._predictions:
            self._predictions[design] = predict(self.designs[design])
        return self._predictions[design]


def unknown_name_refusal(noun: str, name: str, known: Iterable[str]) -> Refusal:
    """Return the refusal of a name that is not among the ``known`` names."""
    names = sorted(known)
    params = {"noun": noun, "name": name, "known": names, "suggestion": closest_word(name, names)}
    return Refusal("lesson_unknown_name", params)
