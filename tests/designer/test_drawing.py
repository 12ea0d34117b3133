"""The Python side of edit mode: messages to the page while blocks are moved, and the resulting edits."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from meshwave.designer.pages.timeline_content import TimelineContent
from meshwave.designer.state import design_edits as edits
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.order_edits import OrderEditor, starting_design
from meshwave.designer.state.page_order_edits import apply_page_edit
from meshwave.designer.views.timeline import TimelineChart
from meshwave.engine.document import parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.lowering.lower import order_computations
from meshwave.engine.program.program import format_program
from tests._strategies import document

F, B = 0, 1


class Page:
    """The messages that a page sends and receives."""

    def __init__(self, schedule: str = "1f1b", ranks: int = 3, microbatches: int = 6, **pipeline: Any) -> None:
        section = {"schedule": schedule, "microbatches": microbatches, **pipeline}
        self.session = Session(parse_design(document(section, ranks)))
        self.heard: list[dict[str, Any]] = []
        self.drawing = OrderEditor(self.session, self.heard.append)

    def ask(self, do: str, **rest: Any) -> dict[str, Any]:
        self.heard.clear()
        self.drawing.handle({"type": "order", "do": do, "number": 7, **rest})
        return self.heard[-1] if self.heard else {}

    def edit(self, kind: str, *blocks: list[int], **rest: Any) -> dict[str, Any]:
        return self.ask("commit", edit={"kind": kind, "blocks": list(blocks), **rest})

    def cells(self, rank: int) -> list[str]:
        return format_program(order_computations(self.session.design))[rank]


def test_nothing_is_sent_before_edit_mode_is_on() -> None:
    page = Page()
    page.session.edit("pipeline.microbatches", 5, "5 microbatches")
    assert page.heard == []

    assert page.ask("turn", on=True)["told"] == "state"
    page.session.undo()
    assert page.heard[-1]["told"] == "state"
    page.ask("turn", on=False)
    page.session.redo()
    assert page.heard == []


def test_the_first_edit_makes_the_schedule_custom_in_one_step() -> None:
    page = Page(recompute="full")
    told = page.edit("move", [F, 2, 2], before=[B, 2, 0])

    assert told["told"] == "done"
    assert told["words"] == "The schedule is now custom; undo restores 1F1B."
    assert page.session.design.pipeline.schedule == "custom"
    assert page.session.design.pipeline.recompute == "full"
    assert page.cells(2)[:4] == ["2F0", "2F2", "2B0", "2F1"]
    page.session.undo()
    assert page.session.design.pipeline.schedule == "1f1b"
    assert page.session.history[0] == ""


def test_a_preview_returns_numbers_and_changes_nothing() -> None:
    page = Page()
    page.session.edit("training.micro_batch_size", 4, "activations that outweigh gradients")
    before = page.session.history[0]
    told = page.ask("preview", edit={"kind": "move", "blocks": [[F, 2, 1]], "before": [B, 2, 0]})

    assert (told["told"], told["number"]) == ("preview", 7)
    assert told["label"] == "move 2F1 before 2B0"
    assert told["makespan"][1] > told["makespan"][0]
    timeline = page.session.prediction.timeline
    delay = np.frombuffer(told["delay"], "<f4")
    assert len(delay) == (timeline.is_compute | (timeline.op == 9)).sum()  # a block of the page each
    assert (delay > 0).sum() == told["later"]
    assert (delay < 0).sum() == told["earlier"] == 1  # 2F1 itself
    assert [name for name, *_ in told["memory"]] == ["m2"]
    assert page.session.history[0] == before


def test_edits_have_labels() -> None:
    program = order_computations(Page().session.design)

    def words(kind: str, *blocks: list[int], **rest: Any) -> str:
        return apply_page_edit(program, {"kind": kind, "blocks": list(blocks), **rest})[1]

    assert words("move", [F, 0, 1], before=None) == "move 0F1 to the end"
    assert words("move", [F, 0, 1], [F, 0, 2], before=[B, 0, 3]) == "move 0F1 and 0F2 before 0B3"
    assert words("shift", [F, 0, 1], by=-1) == "move 0F1 1 place earlier"
    assert words("shift", *([F, 0, mb] for mb in range(5)), by=2) == "move 5 blocks 2 places later"
    assert words("halves", [B, 0, 1]) == "split 0B1"
    assert words("slot", [B, 0, 1], [F, 0, 4]) == "put 0B1 and 0F4 into one slot"
    for wrong in ({"kind": "dance"}, {"kind": "move", "blocks": [[F, 0]]}, {"kind": "shift", "blocks": [[F, 0, 1]]}):
        with pytest.raises(InputError, match="cannot be read"):
            apply_page_edit(program, wrong)


def test_invalid_edits_are_refused_with_a_reason() -> None:
    page = Page()

    assert page.edit("halves", [F, 0, 0])["words"].startswith("none of these blocks is half a backward")
    assert page.edit("move", [F, 0, 9], before=None)["words"].startswith("0F9 is not in this order")
    assert page.edit("everywhere", [F, 0, 0])["told"] == "refused"
    assert page.session.history == ("", "")


def test_a_deadlocked_order_is_a_draft_that_is_repaired_in_one_step() -> None:
    page = Page()
    page.ask("turn", on=True)
    page.edit("move", [B, 1, 2], before=[F, 1, 0])

    state = next(message for message in page.heard if message["told"] == "state")
    assert state["fault"].startswith("deadlock: mesh m1 waits at 1B2")
    assert state["ring"][0]["at"] == [B, 1, 2]
    assert page.session.is_stale
    assert page.session.prediction.design.pipeline.schedule == "1f1b"
    mends = page.ask("preview", edit={"kind": "move", "blocks": [[B, 1, 2]], "before": [B, 1, 3]})
    assert mends["mends"]
    worse = page.ask("preview", edit={"kind": "shift", "blocks": [[B, 1, 2]], "by": 1})
    assert worse["fault"]

    told = page.ask("repair")

    assert told["words"] == "Moved 1B2 (1 change, the fewest possible)"
    assert not page.session.is_stale
    page.session.undo()
    assert page.session.is_stale  # the draft
    page.session.undo()
    assert page.session.design.pipeline.schedule == "1f1b"


def test_the_timeline_shows_a_deadlocked_order_as_it_was_edited() -> None:
    page, chart = Page(), TimelineChart()
    content = TimelineContent(page.session, chart, lambda prediction: None)
    content.refresh()
    page.edit("move", [B, 1, 2], before=[F, 1, 0])

    (layer,) = chart.layers
    own = np.flatnonzero(layer.timeline.is_compute & (layer.timeline.rank == 1))
    assert [str(layer.timeline.action(span)) for span in own] == page.cells(1)
    assert layer.blocked is not None
    assert bool(layer.blocked[own].all())
    assert not bool(layer.blocked.all())
    assert "deadlock: mesh m1 waits at 1B2" in chart.stale
    page.session.undo()
    assert [each.blocked for each in chart.layers] == [None]
    assert chart.stale == ""


def test_differences_are_relative_to_the_initial_schedule() -> None:
    page = Page()
    page.edit("shift", [F, 2, 3], by=-1)
    page.edit("halves", [B, 0, 5])

    state = page.ask("differences", on=True)

    assert starting_design(page.session).pipeline.schedule == "1f1b"
    assert state["difference"]["words"] == "Compared with 1F1B: 1 block earlier, 1 backward split"
    assert len(state["difference"]["blocks"]) == 1
    assert state["difference"]["changed"] == [[B, 0, 5]]
    page.session.edit("pipeline.microbatches", 6, "the same")
    assert "difference" not in page.ask("differences", on=False)


def test_an_opened_custom_order_is_its_own_initial_order() -> None:
    page = Page(schedule="custom", ranks=1, microbatches=2, actions=[["0F0", "0F1", "0B0", "0B1"]])
    page.edit("shift", [F, 0, 1], by=1)

    state = page.ask("differences", on=True)

    assert state["difference"]["words"].startswith("Compared with the initial order: 1 block")


def test_an_incomplete_order_cannot_be_edited() -> None:
    page = Page()
    page.session.edit(
        "pipeline", {"schedule": "custom", "microbatches": 1, "actions": [["0F0"], ["1F0"], ["2F0"]]}, "x"
    )

    assert "only a complete order can be edited here" in page.ask("turn", on=True)["refused"]
    assert page.ask("repair")["words"].startswith("only a complete order")


def test_a_design_with_other_problems_cannot_be_edited() -> None:
    page = Page()
    page.session.edit("model.layers", 2, "2 layers")

    assert page.ask("turn", on=True)["refused"].startswith("there is no order to edit yet")


@pytest.mark.filterwarnings("error")
def test_the_order_of_a_schedule_on_too_few_meshes_is_not_repaired() -> None:
    page = Page(schedule="chimera", ranks=4, microbatches=4, replicas=2)
    page.session.edit("meshes", [{"name": "A", "devices": [0], "axes": {"dp": 1, "tp": 1}}], "one mesh")

    assert page.ask("repair")["words"].startswith("there is no order to edit yet")


def test_a_stage_moves_to_another_mesh_if_its_mesh_keeps_one() -> None:
    page = Page(schedule="interleaved-1f1b", ranks=2, microbatches=4, chunks=2)
    page.drawing.move_stage(2, 1, 0)

    assert page.session.prediction.program.placement.tolist() == [[0, 1, 1, 1]]
    assert not page.session.is_stale
    assert page.session.history[0] == "move stage 2 to mesh m1: Interleaved 1F1B becomes custom"
    with pytest.raises(InputError, match="stage 0 is the only one of mesh m0"):
        page.drawing.move_stage(0, 1, 0)


def test_a_dragged_stage_is_simulated_without_an_edit() -> None:
    page = Page(schedule="interleaved-1f1b", ranks=2, microbatches=4, chunks=2)
    before = page.session.prediction.timeline
    tried, told = page.drawing.try_stage(2, 1, 0)

    assert page.session.design.pipeline.schedule == "interleaved-1f1b"
    assert told["label"] == "move stage 2 to mesh m1"
    assert told["makespan"] == [before.makespan, tried.timeline.makespan]
    assert told["words"].startswith("step time ") and "→" in told["words"]
    delay = np.frombuffer(told["delay"], "<f4")
    assert len(delay) == (~tried.timeline.is_transfer).sum()
    assert (told["later"], told["earlier"]) == ((delay > 1e-6).sum(), (delay < -1e-6).sum())
    page.drawing.show_trial(told)
    page.drawing.move_stage(2, 1, 0)
    assert page.session.prediction.timeline.makespan == tried.timeline.makespan, "it comes as it was shown"
    assert page.session.prediction.timeline.digest == told["digest"]
    assert page.heard[-1] == {"type": "order", "told": "trial"}, "what was said of it goes"
    with pytest.raises(InputError, match="stage 0 is the only one of mesh m0"):
        page.drawing.try_stage(0, 1, 0)


def test_a_stage_that_leaves_a_shared_slot_is_reported() -> None:
    page = Page(schedule="dualpipe-v", ranks=2, microbatches=8)
    _, told = page.drawing.try_stage(1, 0, 0)

    assert re.fullmatch(r"move stage 1 to mesh m0; \d+ slots are split", told["label"])


def test_unknown_requests_of_the_page_are_refused() -> None:
    assert Page().ask("no such thing")["words"] == "the page sent an invalid value of 'do'; reload the page"


def test_an_internal_error_is_sent_to_the_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "meshwave.designer.state.order_edits.computation_problems",
        lambda order, microbatches: {}["defect"],
    )

    assert Page().ask("repair")["words"].startswith("internal error in Meshwave")
    assert "KeyError" in capsys.readouterr().err


def test_an_order_too_long_to_edit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page()
    monkeypatch.setattr(edits, "LARGEST_BY_HAND", 10)

    assert "this order has 36 blocks, and up to 10" in page.ask("turn", on=True)["refused"]
    assert page.edit("shift", [F, 0, 1], by=1)["told"] == "refused"
