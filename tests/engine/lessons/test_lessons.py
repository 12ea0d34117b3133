"""Lessons: what is read from a folder, what is refused, and that every lesson of the course can be taught."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from meshwave.engine.cli.main import main
from meshwave.engine.findings import DesignError
from meshwave.engine.lessons import (
    Choice,
    Lesson,
    NumberQuestion,
    Step,
    Task,
    fill_numbers,
    find_lesson,
    judge_choice,
    judge_number,
    judge_task,
    lesson_folders,
    read_lesson,
    right_answer,
)
from meshwave.engine.lessons.glossary import glossary
from meshwave.engine.lessons.progress import LessonProgress, load_progress, save_progress
from meshwave.engine.lessons.quantities import number_title
from meshwave.engine.lessons.reading import LARGEST_TEXT_BYTES
from meshwave.engine.lessons.walk import check_steps

COURSE = [name for name, folder in lesson_folders().items() if folder.parent.name == "course"]
FRONT = """+++
title = "A lesson"
summary = "It teaches."
minutes = 5
level = "beginner"
sources = ["a paper"]
[designs.start]
example = "08-gpipe-against-1f1b"
[designs.more]
base = "start"
set = { "pipeline.microbatches" = 16 }
+++
"""
QUESTION = """
## A question

Text about the [[bubble]], {{start: bubble_ratio %}}.

```toml
[check]
kind = "number"
ask = "How much?"
design = "more"
number = "bubble_ratio"
unit = "%"
wrong = 1
```

Because.
"""
TASK = """
## A task

```toml
design = "start"
[check]
kind = "task"
ask = "Lower it."
solution = "more"
conditions = [{ number = "bubble_ratio", op = "<", of = "start", times = 0.9 }]
```
"""


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lesson.md").write_text(text)
    return folder


def problems(folder: Path, text: str) -> list[str]:
    """Return the problems of a lesson, as lines."""
    with pytest.raises(DesignError) as refused:
        read_lesson(write(folder, text))
    return [str(problem) for problem in refused.value.problems]


@pytest.mark.parametrize(
    ("number", "title"),
    [
        ("makespan_s", "Step time"),
        ("peak_memory_bytes", "Peak memory"),
        ("peak_memory_bytes[0]", "Peak memory of rank 0"),
        ("peak_inflight[3]", "Peak activations in flight of rank 3"),
        ("meshes[0].axes.tp", "tp of rank 0"),
        ("fits", "Fits in memory"),
        ("mfu", "MFU"),
        ("tokens_per_s", "Tokens per second"),
        ("training.micro_batch_size", "Microbatch size"),
    ],
)
def test_a_number_has_a_title_that_is_no_key_of_the_document(number: str, title: str) -> None:
    assert number_title(number) == title


def test_a_step_has_text_a_check_and_an_explanation(tmp_path: Path) -> None:
    lesson = read_lesson(write(tmp_path / "mine", FRONT + QUESTION))

    [step] = lesson.steps
    assert (step.title, step.explanation) == ("A question", "Because.")
    assert fill_numbers(lesson, step.text) == "Text about the [[bubble]], 27.3%."
    assert fill_numbers(lesson, "{{ start / more : makespan_s }}") == "0.5789"
    assert lesson.about.minutes == 5


def test_the_simulator_answers_a_question(tmp_path: Path) -> None:
    lesson = read_lesson(write(tmp_path / "mine", FRONT + QUESTION))
    check = lesson.steps[0].data.check
    assert isinstance(check, NumberQuestion)

    assert right_answer(lesson, check) == pytest.approx(100 * 3 / 19)
    assert judge_number(lesson, check, 15.8).passed
    assert judge_number(lesson, check, 20).reply == "The right answer is smaller."
    assert judge_number(lesson, check, 3).reply == "The right answer is much larger."


def test_a_choice_is_decided_by_the_numbers_of_its_designs(tmp_path: Path) -> None:
    options = '{ text = "few", design = "start" }, { text = "many", design = "more" }'
    step = f'\n## Choose\n\n```toml\n[check]\nkind = "choice"\nask = "?"\nnumber = "bubble_ratio"\nbest = "smallest"\noptions = [{options}]\n```\n'
    lesson = read_lesson(write(tmp_path / "mine", FRONT + step))
    check = lesson.steps[0].data.check
    assert isinstance(check, Choice)

    assert right_answer(lesson, check) == 1
    assert judge_choice(lesson, check, 1).passed
    assert not judge_choice(lesson, check, 0).passed


def test_a_task_reports_each_condition_with_its_number(tmp_path: Path) -> None:
    lesson = read_lesson(write(tmp_path / "mine", FRONT + TASK))
    check = lesson.steps[0].data.check
    assert isinstance(check, Task)

    verdict = judge_task(lesson, check, lesson.prediction("start"))

    assert not verdict.passed
    assert [(each.text, each.value) for each in verdict.conditions] == [("Bubble ratio less than 24.5%", "27.3%")]
    assert judge_task(lesson, check, lesson.prediction("more")).passed


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# no front matter", "bad/lesson.md: the file has no front matter; put TOML between two +++ lines at the top"),
        (FRONT, "bad/lesson.md: the lesson has no steps; a heading such as '## First step' starts one"),
        (FRONT.replace("minutes", "minuten") + QUESTION, "bad/lesson.md, minuten: unknown key 'minuten'. Did you mean 'minutes'?"),
        (FRONT + QUESTION.replace('"more"', '"mroe"'), "bad/lesson.md, step 1, check.design: unknown design 'mroe'. Did you mean 'more'?"),
        (FRONT + QUESTION.replace("[[bubble]]", "[[buble]]"), "bad/lesson.md, step 1: unknown term 'buble'. Did you mean 'bubble'?"),
        (FRONT + QUESTION + "![a](other.png)", "bad/lesson.md, step 1: unknown picture 'other.png'."),
        (FRONT + QUESTION.replace('kind = "number"', 'kind = "numer"'), "bad/lesson.md, step 1, check.kind: unknown "),
        (FRONT + QUESTION + QUESTION + TASK.replace('design = "start"\n', ""), "bad/lesson.md, step 3, design: a task needs"),
        (FRONT.replace("example", "file") + QUESTION, "bad/lesson.md, designs.start: cannot read"),
        (FRONT.replace("microbatches", "microbatch") + QUESTION, "bad/lesson.md, designs.more, pipeline.microbatch: unknown key"),
        (FRONT.replace('"08', '"../08') + QUESTION, "bad/lesson.md, designs.start: there is no example called"),
        (FRONT.replace('example = "08-gpipe-against-1f1b"', 'file = "../x.json"') + QUESTION, "bad/lesson.md, designs.start.file: "),
        (FRONT.replace('example = "08-gpipe-against-1f1b"', 'base = "more"') + QUESTION, "bad/lesson.md, designs.start: the design 'start' is its own base"),
        (FRONT.replace("= 16", "= 100000") + QUESTION, "bad/lesson.md, designs.more"),
        (FRONT + QUESTION.replace("wrong = 1", "wrong = ["), "bad/lesson.md, step 1: the TOML is invalid"),
        ("+" * (LARGEST_TEXT_BYTES + 1), "bad/lesson.md: 200,001 bytes exceed the limit of 200,000 bytes"),
    ],
)  # fmt: skip
def test_a_problem_names_file_step_and_field(tmp_path: Path, text: str, found: str) -> None:
    assert any(line.startswith(found) for line in problems(tmp_path / "bad", text)), problems(tmp_path / "bad", text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (QUESTION.replace("wrong = 1", "wrong = 15.8"), "lesson_wrong_accepted"),
        (QUESTION.replace("bubble_ratio %", "bubble %"), "lesson_unknown_name"),
        (QUESTION.replace("{{start: ", "{{start "), "lesson_placeholder"),
        (TASK.replace("0.9", "1.1"), "lesson_start_passes"),
        (TASK.replace("0.9", "0.1"), "lesson_solution_fails"),
        (QUESTION.replace('"bubble_ratio"', '"mfu"'), "lesson_no_number"),
    ],
)
def test_a_walk_finds_the_problems_of_a_lesson(tmp_path: Path, text: str, code: str) -> None:
    lesson = read_lesson(write(tmp_path / "mine", FRONT + text))

    assert [problem.code for _, found in check_steps(lesson) for problem in found] == [code]


def test_a_folder_of_the_user_is_a_lesson(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    write(tmp_path / "lessons" / "mine", FRONT + QUESTION + TASK)

    assert "mine" in lesson_folders()
    assert find_lesson("mine").about.title == "A lesson"


def test_the_command_lists_and_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    write(tmp_path / "lessons" / "mine", FRONT + QUESTION)
    write(tmp_path / "lessons" / "bad", FRONT + QUESTION.replace("wrong = 1", "wrong = 15.8"))

    assert main(["lessons", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)["lessons"]}
    assert listed["mine"]["steps"] == 1 and listed["mine"]["title"] == "A lesson"
    assert main(["lessons", "--check", "mine"]) == 0
    assert capsys.readouterr().out == "mine: 1 steps, 1 checks, no problems\n"
    assert main(["lessons", "--check", "bad"]) == 2
    assert capsys.readouterr().out == "bad/lesson.md, step 1: the wrong answer, 15.8, is accepted\n"
    assert main(["lessons", "--check", "mien"]) == 2
    assert "Did you mean 'mine'?" in capsys.readouterr().out


def test_progress_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))

    save_progress("mine", LessonProgress().with_passed(0).with_passed(1, shown=True).with_step(2))

    assert load_progress().lessons["mine"] == LessonProgress(step=2, done=(0,), shown=(1,))
    (tmp_path / "progress.json").write_text("{")
    assert load_progress().lessons == {}


@pytest.mark.parametrize("content", [b"{", b"\xff", b'{"format": "meshwave-progress/2"}', b" " * 1_000_001])
def test_progress_that_cannot_be_read_is_kept_beside_the_new_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "progress.json"
    for _ in range(2):
        path.write_bytes(content)
        save_progress("mine", LessonProgress(step=2), tmp_path)

    assert load_progress(tmp_path).lessons == {"mine": LessonProgress(step=2)}
    assert (tmp_path / "progress.json.unreadable").read_bytes() == content
    assert (tmp_path / "progress.json.unreadable-2").read_bytes() == content


def test_the_glossary_has_a_meaning_for_each_term() -> None:
    assert glossary()["bubble ratio"].startswith("One minus the compute time")
    assert glossary()["backward"] == glossary()["B"]
    assert all(glossary().values())


def test_the_lesson_of_the_documentation_can_be_taught() -> None:
    lesson = read_lesson(Path(__file__).parents[3] / "docs/examples/lessons/first-lesson")

    assert [str(problem) for _, found in check_steps(lesson) for problem in found] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", COURSE)
def test_every_lesson_of_the_course_can_be_taught(name: str) -> None:
    lesson = find_lesson(name)

    assert [str(problem) for _, found in check_steps(lesson) for problem in found] == []
    assert len(lesson.steps) >= 4
    assert lesson.steps[-1].data.check is None, "a lesson ends with free play"
    for step in lesson.steps:
        assert step.data.check is None or len(step.data.hints) == 3, f"{step.title} has three hints"
        assert step.explanation or step.data.check is None or isinstance(step.data.check, Task), step.title
        assert hinted_answer_passes(lesson, step), f"the last hint of {step.title} tells another answer"


def test_a_check_names_the_lesson_that_is_unknown_or_not_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    write(tmp_path / "lessons" / "mine", "")
    (tmp_path / "lessons" / "mine" / "lesson.md").write_bytes(b"\xff\xfe+++")

    assert main(["lessons", "--check", "mine"]) == 2
    assert capsys.readouterr().out == "mine/lesson.md: the file is not text; save it as text in UTF-8\n"
    assert main(["lessons", "--check", "mien"]) == 2
    assert capsys.readouterr().out.startswith("mien: unknown lesson 'mien'. Did you mean 'mine'?")


ORDINALS = ("first", "second", "third", "fourth")


def hinted_answer_passes(lesson: Lesson, step: Step) -> bool:
    """Return whether the last hint of a question tells the right answer."""
    check = step.data.check
    if isinstance(check, NumberQuestion):
        typed = re.search(r"[Tt]ype ([\d.]*\d)", step.data.hints[-1])
        return typed is not None and judge_number(lesson, check, float(typed[1])).passed
    if isinstance(check, Choice):
        chosen = [place for place, word in enumerate(ORDINALS) if f"he {word} answer" in step.data.hints[-1]]
        return len(chosen) == 1 and judge_choice(lesson, check, chosen[0]).passed
    return True
