"""The section of experts of the design form, and problems at its fields."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.designer.forms import (
    Form,
    find_field,
    form_sections,
    make_edit,
    problems_by_path,
    read_input,
)
from meshwave.designer.state.design_session import Session
from meshwave.engine.document import Design, load_design
from meshwave.engine.errors import InputError
from meshwave.engine.files import example
from meshwave.engine.findings import Problem, set_key_fix
from tests.designer.widgets import SentMessages, fields_by_path

# ---- the experts ----


@pytest.fixture
def experts() -> Session:
    return Session(load_design(example("17-experts-on-two-cores")))


def test_one_switch_adds_and_removes_the_experts_with_their_settings(seconds: Design) -> None:
    session = Session(seconds)
    assert [path for path in fields_by_path(seconds) if "moe" in path or "experts" in path] == ["model.moe"]

    session.edit(*make_edit(session.design, fields_by_path(session.design)["model.moe"], True))

    form = fields_by_path(session.design)
    assert not session.errors
    assert form["model.moe"]["value"] is True
    assert form["model.moe.experts"]["value"] == 8
    session.edit(*make_edit(session.design, form["model.moe"], False))
    assert session.design.model == seconds.model
    assert not [problem for problem in session.problems if problem.where.startswith("experts")]
    session.undo()
    session.undo()
    assert session.design == seconds


def test_the_experts_section_has_every_field_of_the_document(experts: Session) -> None:
    from meshwave.engine.document.experts import Experts
    from meshwave.engine.document.model import MoE

    (section,) = (section for section in form_sections(experts.design) if section["key"] == "experts")
    paths = {field["path"] for field in section["fields"]}

    known = {f"model.moe.{name}" for name in MoE.model_fields} | {f"experts.{name}" for name in Experts.model_fields}
    edited_on_the_canvas = "experts.layers"
    assert paths == (known | {"model.moe"}) - {"experts.variant", edited_on_the_canvas}
    experts.edit(*make_edit(experts.design, fields_by_path(experts.design)["experts.schedule"], "deepspeed"))
    assert [option["value"] for option in fields_by_path(experts.design)["experts.variant"]["options"]] == [
        "paper", "pregate", "lanes",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "typed", "edit"),
    [
        ("model.moe.experts", "16", ("model.moe.experts", 16, "MoE experts 16")),
        ("model.moe.capacity_factor", "", ("model.moe.capacity_factor", None, "MoE capacity factor auto")),
        ("model.moe.every", "1", ("model.moe.every", 1, "MoE every n-th block 1")),
        ("experts.load", "zipf", ("experts.load", "zipf", "layer load Zipf")),
        ("experts.load", "2 1, 1;1 1 1 1 0.5", ("experts.load", [2, 1, 1, 1, 1, 1, 1, 0.5], "layer load 2, 1, 1, 1, 1, 1, 1, 0.5")),
        ("experts.degree", "", ("experts.degree", None, "layer chunks auto")),
        (
            "experts.placement",
            "0 1 2 3\n4,5\n6 7\n-",
            ("experts.placement", [[0, 1, 2, 3], [4, 5], [6, 7], []], "expert placement"),
        ),
    ],
)  # fmt: skip
def test_the_fields_of_experts_become_edits(path: str, typed: str, edit: Any, experts: Session) -> None:
    assert make_edit(experts.design, fields_by_path(experts.design)[path], typed) == edit

    experts.edit(*edit)

    assert experts.design != load_design(example("17-experts-on-two-cores"))
    assert not [problem for problem in experts.errors if problem.where == path]
    field = fields_by_path(experts.design)[path]
    assert read_input(field, field["text"]) == edit[1]  # as it stands there it would be typed


def test_expert_group_sizes_and_schedules_are_adjusted_to_each_other(experts: Session) -> None:
    experts.edit(*make_edit(experts.design, fields_by_path(experts.design)["experts.esp"], "2"))
    assert (experts.design.experts.ep, experts.design.experts.esp) == (2, 2)
    experts.edit(*make_edit(experts.design, fields_by_path(experts.design)["experts.ep"], "3"))
    assert (experts.design.experts.ep, experts.design.experts.esp) == (3, 2)  # as it was typed, and told of
    assert any(problem.where == "experts.ep" for problem in experts.problems)
    schedule = fields_by_path(experts.design)["experts.schedule"]
    assert {"Parm S1", "PPMoE"} <= {option["title"] for option in schedule["options"]}


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("0 1 2 3\n4 5 6 7", "the placement has 2 entries, but a group of ep=4 x esp=1 has 4 devices; give one entry per device, or null"),
        ("0 1\n2 3\n4 5\n6 9", "there is no expert 9; the model has experts 0 to 7"),
        ("0 1\n2 3\n4 5\n6", "expert 7 is on no device; add it to one"),
    ],
)  # fmt: skip
def test_a_placement_that_does_not_fit_is_refused_at_its_field(typed: str, words: str, experts: Session) -> None:
    with pytest.raises(InputError) as refused:
        make_edit(experts.design, fields_by_path(experts.design)["experts.placement"], typed)
    assert str(refused.value) == words


def test_settings_of_missing_experts_remain_visible(seconds: Design) -> None:
    session = Session(seconds)
    session.edit("experts.ep", 4, "ep")

    assert set(problems_by_path(session.problems, list(fields_by_path(session.design)))) >= {"experts.ep"}


# ---- problems at their fields ----


def test_a_problem_belongs_to_the_nearest_field_that_contains_its_path() -> None:
    paths = ["cluster", "cluster.nodes", "pipeline.actions", "pipeline.schedule"]

    assert find_field("pipeline.actions[0][3]", paths) == "pipeline.actions"
    assert find_field("cluster.nodes", paths) == "cluster.nodes"
    assert find_field("meshes[2].devices", paths) is None
    assert find_field("pipeline", paths) is None
    assert find_field("", paths) is None


def test_problems_are_shown_at_their_fields() -> None:
    fix = set_key_fix("model.layers", 8)
    few = Problem("model.layers", "too_few_layers", {"stages": 8, "layers": 7}, fixes=[fix])
    problems = [few, Problem("meshes[0]", "computing", severity="warning")]

    assert problems_by_path(problems, ["model.layers"]) == {
        "model.layers": [
            {
                "severity": "error",
                "message": few.message,
                "fixes": [fix.label],
                "where": "model.layers",
                "code": "too_few_layers",
            }
        ]
    }


def test_a_refused_value_changes_nothing_and_is_answered_at_its_field(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, design = Form(session), session.design
    messages = SentMessages(form, monkeypatch)

    form._handle_msg({"type": "change", "path": "model.heads", "value": "7"})

    (answer,) = messages.messages_of_type("changed")
    assert session.design is design
    assert answer["path"] == "model.heads"
    assert "heads" in answer["refused"]
    assert not answer["refused"].startswith("model.heads")


def test_an_input_of_a_removed_field_is_refused(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    form = Form(session)
    messages = SentMessages(form, monkeypatch)

    form._handle_msg({"type": "change", "path": "pipeline.chunks", "value": "7"})

    assert "no longer has this field" in messages.messages_of_type("changed")[0]["refused"]


def test_the_form_follows_the_session(session: Session) -> None:
    form = Form(session)

    session.edit("model.layers", 3, "3 layers")

    assert next(f for s in form.sections.data for f in s["fields"] if f["path"] == "model.layers")["text"] == "3"
    assert form.problems["model.layers"][0]["severity"] == "error"
    assert form.focus_field("model.layers")
    assert not form.focus_field("meshes[0].devices")


@pytest.mark.parametrize(
    ("path", "typed", "reason"),
    [
        ("cluster.device.memory_bytes", "-3 GB", "-3 GB should be at least 1 B"),
        ("cluster.device.memory_bytes", "0", "0 B should be at least 1 B"),
        ("cluster.inter_node.latency_s", "-2 us", "-2 µs should be at least 0 s"),
    ],
)
def test_an_amount_out_of_range_is_refused_in_the_unit_of_its_field(
    path: str, typed: str, reason: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = Form(session)
    messages = SentMessages(form, monkeypatch)

    form._handle_msg({"type": "change", "path": path, "value": typed})

    assert messages.messages_of_type("changed")[0]["refused"] == reason
