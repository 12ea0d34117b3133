"""Finding lessons, and reading their folders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.fixes import apply_edits
from meshwave.engine.document.reading import parse_toml, read_json
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.files import data_folder, example, read_whole
from meshwave.engine.findings import DesignError, Problem, Refusal, problems_of
from meshwave.engine.lessons.glossary import glossary, linked_terms
from meshwave.engine.lessons.lesson import (
    MOST_STEPS,
    About,
    Choice,
    DesignSource,
    Lesson,
    Step,
    StepData,
    Task,
    unknown_name_refusal,
)
from meshwave.engine.lessons.pictures import linked_pictures, read_picture

FILE = "lesson.md"
LARGEST_TEXT_BYTES = 200_000
LARGEST_DESIGN_BYTES = 1_000_000
MOST_COMPUTATIONS = 20_000
"""Maximum number of computations of a design of a lesson, which the page simulates in less than 0.1 s."""
_ENTRY_POINTS = "meshwave.engine.lessons"
_FRONT_MATTER = re.compile(r"\A\+\+\+\n(.*?)\n\+\+\+\n", re.DOTALL)
_HEADING = re.compile(r"^## +(.+?)\s*$", re.MULTILINE)
_BLOCK = re.compile(r"^```toml\n(.*?)^```[ ]*$", re.DOTALL | re.MULTILINE)


# ---- finding lessons ----


def lesson_folders() -> dict[str, Path]:
    """Return the folders of all lessons by name: those of Meshwave, of installed packages, and of the user."""
    roots = [Path(__file__).with_name("course"), *_installed_roots(), user_folder()]
    found = {
        path.parent.name: path.parent for root in roots for path in sorted(root.glob(f"*/{FILE}")) if path.is_file()
    }
    return dict(sorted(found.items()))


def user_folder() -> Path:
    """Return the folder that contains the folders of the user's own lessons."""
    return data_folder() / "lessons"


@cache
def _installed_roots() -> tuple[Path, ...]:
    """Return the folders of packages that entry points name; the packages themselves are not imported."""
    specs = [find_spec(entry.module) for entry in entry_points(group=_ENTRY_POINTS)]
    return tuple(Path(folder) for spec in specs for folder in (spec and spec.submodule_search_locations) or ())


def find_lesson(name: str) -> Lesson:
    """Read the lesson with the given name.

    Raises:
        Refusal: no lesson has this name.
        DesignError: the lesson has problems.
    """
    folders = lesson_folders()
    if name not in folders:
        raise unknown_name_refusal("lesson", name, folders)
    return read_lesson(folders[name])


# ---- reading lessons ----


def read_lesson(folder: Path) -> Lesson:
    """Read the lesson in a folder.

    Raises:
        DesignError: the lesson has problems; each names the file, the step and the field.
    """
    file = f"{folder.name}/{FILE}"
    text = _read_text(folder / FILE, file)
    match = _FRONT_MATTER.match(text)
    if not match:
        raise DesignError([Problem(file, "lesson_without_front_matter")])
    about = parse_toml(match[1], About, file)
    steps = _read_steps(text[match.end() :], file)
    lesson = Lesson(folder.name, folder, about, steps, read_designs(folder, about, file))
    if problems := [_add_location(found, _step_place(file, step)) for step, found in _link_problems(lesson)]:
        raise DesignError(problems)
    return lesson


def _read_text(path: Path, file: str) -> str:
    try:
        content = path.read_bytes() if path.stat().st_size <= LARGEST_TEXT_BYTES else b""
        if not content:
            params = {"size": path.stat().st_size, "limit": LARGEST_TEXT_BYTES}
            raise DesignError([Problem(file, "lesson_too_large", params)])
        return content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise DesignError([Problem(file, "lesson_not_text")]) from None
    except OSError as error:
        raise DesignError([Problem(file, "lesson_unreadable", {"reason": error.strerror or str(error)})]) from None


def _step_place(file: str, step: int) -> str:
    return f"{file}, step {step + 1}"


def _add_location(problem: Problem, place: str) -> Problem:
    return problem.replace(where=f"{place}, {problem.where}" if problem.where else place, fixes=())


def _read_steps(text: str, file: str) -> tuple[Step, ...]:
    """Return the steps in the Markdown below the front matter."""
    _, *parts = _HEADING.split(text)
    found = list(zip(parts[::2], parts[1::2], strict=True))
    if not found:
        raise DesignError([Problem(file, "lesson_without_steps")])
    if len(found) > MOST_STEPS:
        raise DesignError([Problem(file, "lesson_too_many_steps", {"count": len(found), "limit": MOST_STEPS})])
    return tuple(_read_step(title, body, _step_place(file, number)) for number, (title, body) in enumerate(found))


def _read_step(title: str, body: str, place: str) -> Step:
    blocks = list(_BLOCK.finditer(body))
    if len(blocks) > 1:
        raise DesignError([Problem(place, "lesson_second_block", {"count": len(blocks)})])
    if not blocks:
        return Step(title, body.strip(), "", StepData())
    [block] = blocks
    return Step(
        title, body[: block.start()].strip(), body[block.end() :].strip(), parse_toml(block[1], StepData, place)
    )


# ---- designs ----


class DesignSources(Protocol):
    """Named sources of designs, as in the front matter of a lesson or the plan of a workshop."""

    @property
    def title(self) -> str:
        """Prefix of the names of the designs."""

    @property
    def designs(self) -> Mapping[str, DesignSource]:
        """Sources of the designs by name."""


def read_designs(folder: Path, about: DesignSources, file: str) -> dict[str, Design]:
    """Read the designs of a lesson or workshop.

    Raises:
        DesignError: a design cannot be read, or has problems.
    """
    documents: dict[str, Mapping[str, Any]] = {}
    designs = {}
    for name in about.designs:
        try:
            document = _read_document(folder, about, name, documents, ())
            designs[name] = parse_design({**document, "name": f"{about.title}: {name}"})
            _check_size(designs[name])
        except MeshwaveError as error:
            raise DesignError(_add_location(each, f"{file}, designs.{name}") for each in problems_of(error)) from None
    return designs


def _read_document(
    folder: Path, about: DesignSources, name: str, known: dict[str, Mapping[str, Any]], above: tuple[str, ...]
) -> Mapping[str, Any]:
    """Return the document of a design; ``above`` are the designs that are based on it."""
    if name in above:
        raise Refusal("lesson_design_cycle", {"name": name})
    if name not in known:
        source = about.designs.get(name)
        if source is None:
            raise unknown_name_refusal("design", name, about.designs)
        if len(source.origins) != 1:
            raise Refusal("lesson_design_source", {"name": name, "count": len(source.origins)})
        if source.base is not None:
            document = _read_document(folder, about, source.base, known, (*above, name))
        else:
            document = _source_document(folder, source)
        known[name] = apply_edits(document, source.set.items())
    return known[name]


def _source_document(folder: Path, source: DesignSource) -> Mapping[str, Any]:
    path = example(source.example) if source.example is not None else folder / str(source.file)
    document = read_json(read_whole(path, "design", LARGEST_DESIGN_BYTES), "design")
    if not isinstance(document, Mapping):
        raise Refusal("not_a_design", {"file": path.name})
    return document


def _check_size(design: Design) -> None:
    computations = 2 * design.stages * design.pipeline.microbatches
    if computations > MOST_COMPUTATIONS:
        raise Refusal("lesson_design_size", {"computations": computations, "limit": MOST_COMPUTATIONS})


# ---- names in steps ----


def _link_problems(lesson: Lesson) -> Iterator[tuple[int, Problem]]:
    """Yield problems of names in steps that do not exist, with the number of the step."""
    for number, step in enumerate(lesson.steps):
        for field, name in _design_names(step):
            if name not in lesson.designs:
                yield number, unknown_name_refusal("design", name, lesson.designs).problem.replace(where=field)
        if isinstance(step.data.check, Task) and step.data.design is None:
            yield number, Problem("design", "lesson_task_without_start")
        texts = "\n".join(step.texts())
        for term in linked_terms(texts):
            if term not in glossary():
                yield number, unknown_name_refusal("term", term, glossary()).problem
        for picture in linked_pictures(texts):
            try:
                read_picture(lesson.folder, picture)
            except MeshwaveError as error:
                yield from ((number, problem) for problem in problems_of(error))


def _design_names(step: Step) -> Iterator[tuple[str, str]]:
    """Yield the designs that a step names, and the fields that name them."""
    data, check = step.data, step.data.check
    named: dict[str, str | None] = {"design": data.design, "reveal": data.reveal}
    if check is not None:
        named |= {f"check.{key}": getattr(check, key, None) for key in ("design", "over", "solution")}
    if isinstance(check, Choice):
        named |= {f"check.options[{place}].design": option.design for place, option in enumerate(check.options)}
    if isinstance(check, Task):
        named |= {f"check.conditions[{place}].of": each.of for place, each in enumerate(check.conditions)}
    return ((field, name) for field, name in named.items() if name is not None)
