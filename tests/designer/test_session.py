"""The session of a tab: edits, undo, drafts, and edits that fail without a change."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.designer.state import predictions
from meshwave.designer.state.design_session import LONGEST_HISTORY, Session
from meshwave.engine.document import Design, load_design
from meshwave.engine.errors import InputError
from meshwave.engine.files import example
from meshwave.engine.findings import DesignError, Refusal


def test_an_edit_is_one_undo_step(session: Session, design: Design) -> None:
    session.edit("pipeline.microbatches", 8, "8 microbatches")

    assert (session.design.pipeline.microbatches, session.history) == (8, ("8 microbatches", ""))
    session.undo()
    assert (session.design, session.history) == (design, ("", "8 microbatches"))
    session.redo()
    assert session.history == ("8 microbatches", "")


def test_an_edit_that_makes_a_section_invalid_changes_nothing(session: Session, design: Design) -> None:
    with pytest.raises(DesignError, match="7 heads do not divide"):
        session.edit("model.heads", 7, "7 heads")

    assert (session.design, session.history) == (design, ("", ""))


def test_an_edit_whose_prediction_raises_changes_nothing(
    session: Session, design: Design, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions, "KEPT_ROWS_LIMIT", 0)
    session.edit("training.steps", 3, "3 steps")
    edited = session.design

    def raise_error(_: Design) -> Any:
        raise KeyError(4)

    monkeypatch.setattr(predictions, "predict", raise_error)
    for act in (lambda: session.edit("training.steps", 4, "4 steps"), session.undo):
        with pytest.raises(KeyError):
            act()

    assert (session.design, session.history) == (edited, ("3 steps", ""))
    monkeypatch.undo()
    session.undo()
    assert (session.design, session.history) == (design, ("", "3 steps"))


def test_an_unchanged_design_adds_no_undo_step(session: Session, design: Design) -> None:
    session.replace(design.model_copy(), "the same")

    assert session.history == ("", "")


@pytest.mark.slow
def test_the_history_is_limited(session: Session) -> None:
    for step in range(LONGEST_HISTORY + 2):
        session.edit("name", f"design {step}", f"rename {step}")
    for _ in range(LONGEST_HISTORY + 2):
        session.undo()

    assert session.design.name == "design 1"


def test_a_draft_keeps_the_last_valid_prediction_and_lists_its_problems(session: Session) -> None:
    good = session.prediction

    session.edit("model.layers", 3, "3 layers")

    assert session.is_stale
    assert session.prediction is good
    assert [problem.where for problem in session.errors] == ["model.layers"]
    with pytest.raises(InputError, match=r"cannot launch: .* model\.layers"):
        session.current_prediction("launch")


def test_a_custom_order_has_no_placement(session: Session) -> None:
    orders = [["0F0", "0B0"], ["1F0", "1B0"], ["2F0", "2B0"], ["3F0", "3B0"]]

    pipeline = {"schedule": "custom", "microbatches": 1, "actions": orders, "placement": [9, 9, 9, 9]}
    session.edit("pipeline", pipeline, "placed twice")

    assert [(problem.where, problem.code) for problem in session.errors] == [("pipeline.placement", "unused_placement")]


@pytest.mark.parametrize("cell", ["999999F999999", "31F20000", "1G2"])
def test_an_invalid_cell_is_a_problem_at_its_path(session: Session, cell: str) -> None:
    orders = [[cell], ["1F0"], [], []]

    session.edit("pipeline", {"schedule": "custom", "microbatches": 1, "actions": orders}, "a slip")

    assert [problem.where for problem in session.errors] == ["pipeline.actions[0][0]"]


def test_settings_per_stage_are_reset_with_another_number_of_stages(session: Session) -> None:
    session.edit("pipeline.stages", [1] * 16, "stages by hand")
    assert session.design.pipeline.stages == (1,) * 16

    session.edit("pipeline.waves", 1, "1 wave")

    assert session.design.pipeline.stages is None


@pytest.mark.parametrize("path", ["model.none.x", "meshes[9].name", "meshes.name", "model[0]"])
def test_an_unknown_path_is_refused(session: Session, path: str) -> None:
    with pytest.raises(InputError, match="the document has no"):
        session.edit(path, 1, "nothing")


def test_a_trial_is_predicted_and_changes_nothing() -> None:
    session = Session(load_design(example("01-first-wave")))
    before, history = session.prediction, session.history

    tried = session.predict_edit("pipeline.stages", [2, 1, 3, 2, 2, 2, 2, 2])

    assert tried is not None
    assert tried.timeline.makespan > before.timeline.makespan
    assert session.predict_edit("model.layers", 3) is None
    assert (session.prediction, session.history) == (before, history)


def test_another_document_with_errors_shows_nothing_of_the_previous_one() -> None:
    session = Session(load_design(example("01-first-wave")))
    broken = load_design(example("02-two-waves")).model_copy(update={"name": "broken"})
    broken = broken.model_copy(update={"model": broken.model.model_copy(update={"layers": 3})})

    session.edit("model.layers", 3, "layers 3")
    assert session.prediction is not None, "the last good one of the same document"

    session.replace(broken, "open")
    assert session.prediction is None
    assert session.errors
    session.undo()
    session.undo()
    assert session.prediction.design.name == "One wave on four meshes"
    session.redo()
    session.redo()
    assert session.prediction is None, "and not the one before either"


def test_a_read_only_session_shows_the_design_and_refuses_every_change(design: Design) -> None:
    session = Session(design, read_only=True)
    changes = (
        lambda: session.edit("pipeline.microbatches", 8, "8 microbatches"),
        lambda: session.open(design, "open"),
        lambda: session.replace(design, "replace"),
        session.undo,
        session.redo,
    )
    for change in changes:
        with pytest.raises(Refusal, match="this page is read-only"):
            change()
    assert (session.design, session.history) == (design, ("", ""))
    assert session.prediction is not None
