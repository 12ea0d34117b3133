"""Messages of errors."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from meshwave.engine.errors import InputError, MeshwaveError, RunError, unknown_word_hint
from meshwave.engine.findings import DesignError, Problem, Refusal, RunRefusal
from meshwave.engine.messages import LONGEST_LINE, LONGEST_NAME, fill_template


@pytest.mark.parametrize(
    ("word", "known", "told"),
    [
        ("g-pipe", ["gpipe", "1f1b"], "Did you mean 'gpipe'? Known: 1f1b, gpipe."),
        ("xyz", ["gpipe", "1f1b"], "Known: 1f1b, gpipe."),
        ("devcies", ["devices", "axes"], "Did you mean 'devices'? Known: axes, devices."),
        ("", ["a"], "Known: a."),
        ("picture.png", [], "Known: none."),
    ],
)
def test_the_nearest_known_word_is_suggested(word: str, known: list[str], told: str) -> None:
    assert unknown_word_hint(word, known) == told


def test_a_problem_states_its_location_and_message() -> None:
    message = Problem("", "stopped").message

    assert str(Problem("meshes[2].devices", "stopped")) == f"meshes[2].devices: {message}"
    assert str(Problem("", "stopped")) == message
    assert str(Problem("meshes[0]", "stopped", severity="warning")) == f"warning: meshes[0]: {message}"


def test_a_design_error_lists_every_problem_on_its_own_line() -> None:
    error = DesignError(Problem(where, "stopped") for where in ("a", "b"))

    assert str(error) == "\n".join(f"{where}: {Problem('', 'stopped').message}" for where in ("a", "b"))
    assert [problem.where for problem in error.problems] == ["a", "b"]


def test_invalid_input_and_failed_runs_are_distinguished() -> None:
    assert issubclass(DesignError, InputError)
    assert issubclass(InputError, MeshwaveError)
    assert issubclass(RunError, MeshwaveError)
    assert not issubclass(RunError, InputError)
    assert issubclass(Refusal, InputError)
    assert issubclass(RunRefusal, RunError)


def test_a_message_shortens_what_it_repeats_from_the_input() -> None:
    name = f"b{'9' * 1000}\n{'9' * 1000}"
    quoted = Problem("", "unknown_member", {"kind": "example", "name": name, "known": [], "suggestion": None}).message
    plain = Problem("", "lesson_unreadable", {"reason": name}).message

    assert quoted == f"there is no example called 'b{'9' * (LONGEST_NAME - 4)}...'. Known: none."
    assert plain == f"the file cannot be read: b{'9' * (LONGEST_LINE - 4)}...\n{'9' * (LONGEST_LINE - 3)}..."


@pytest.mark.parametrize("kind", [Refusal, RunRefusal])
def test_an_error_of_one_finding_keeps_it_when_it_is_pickled(kind: type[Refusal | RunRefusal]) -> None:
    error = pickle.loads(pickle.dumps(kind("unknown_action", {"cell": "0X0"}, "pipeline.actions[0][2]")))

    assert error.problem == Problem("pipeline.actions[0][2]", "unknown_action", {"cell": "0X0"})
    assert str(error).startswith("pipeline.actions[0][2]: '0X0' is not an action")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({}, "1F0 of rank 1, ranks 0 and 2"),
        ({"meshes": ["A", "B"]}, "1F0 of mesh B, meshes A and 2"),
        ({"cells": {"1F0": "C2"}}, "1F0 (C2) of row 2, rows 1 and 3"),
    ],
)
def test_ranks_and_actions_are_shown_by_the_names_in_the_parameters(names: dict[str, Any], text: str) -> None:
    template = "{action:action} of {rank:rank}, {others:rank}"

    assert fill_template(template, action="1F0", rank=1, others=[0, 2], **names) == text
