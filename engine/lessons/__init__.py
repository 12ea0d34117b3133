"""Lessons: folders of text, designs and checks that teach with the simulator.

A lesson is data: Markdown with blocks of TOML, designs in JSON, and pictures. Its numbers, including those of answers,
are computed from its designs.
"""

from meshwave.engine.lessons.checks import (
    Verdict,
    judge_choice,
    judge_measurement,
    judge_number,
    judge_task,
    right_answer,
)
from meshwave.engine.lessons.lesson import Choice, Lesson, Measurement, NumberQuestion, Step, Task
from meshwave.engine.lessons.quantities import fill_numbers
from meshwave.engine.lessons.reading import find_lesson, lesson_folders, read_lesson
