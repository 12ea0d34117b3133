"""A search for an order that goes on beside the page: what is shown meanwhile, how it ends, and what ends it."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from meshwave.designer.state import background_search as search
from meshwave.designer.state.background_search import in_words
from meshwave.designer.state.design_session import Session
from meshwave.designer.views.problems import Problems
from meshwave.engine.document import Design, parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.lowering.lower import order
from meshwave.engine.predict.prediction import predict
from tests._strategies import document

GONE_ON_S = 20.0


class Page:
    """A session, and the turns of its page that other threads ask for."""

    def __init__(self, design: Design) -> None:
        self._turns: queue.Queue[Callable[[], None]] = queue.Queue()
        self.session = Session(design, later=self._turns.put)

    def until(self, holds: Callable[[], Any]) -> None:
        while not holds():
            self._turns.get(timeout=GONE_ON_S)()


def design(schedule: str = "1f1b", seed: int = 0, **pipeline: Any) -> Design:
    """One that no other test has searched: what was found once is known."""
    found = document({"schedule": schedule, "microbatches": 16, **pipeline}, 4, cost={"kind": "roofline"})
    found["model"]["sequence"] = 512 + 8 * seed
    return parse_design(found)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "PATIENCE_S", 0.0)
    monkeypatch.setattr(search, "TOLD_EVERY_S", 0.0)


@pytest.mark.usefixtures("impatient")
def test_the_last_good_prediction_stays_until_the_order_is_found() -> None:
    page = Page(design(seed=1))
    session, before = page.session, page.session.prediction

    session.edit("pipeline.schedule", "auto", "schedule Auto")
    assert session.prediction is before
    assert session.stale
    assert session.search["state"] == "runs"
    assert in_words(session.search).startswith("Searching an order: 0 %")
    with pytest.raises(
        InputError, match="nothing to pin before the order is found: the order of this schedule is being"
    ):
        session.pin()
    page.until(lambda: session.search.get("share", 0) > 0)
    page.until(lambda: not session.search)

    assert not session.stale
    assert session.errors == []
    assert session.prediction.timeline.makespan == predict(session.design).timeline.makespan
    session.undo()
    assert session.design.pipeline.schedule == "1f1b"


@pytest.mark.usefixtures("impatient")
def test_a_search_is_stopped_and_taken_up_again() -> None:
    page = Page(design(seed=2))
    session = page.session
    session.edit("pipeline.schedule", "auto", "schedule Auto")

    session.stop_search()
    assert session.search["state"] == "stopped"
    assert "search again" in session.errors[0].message
    session.search_again()
    assert session.search["state"] == "runs"
    page.until(lambda: not session.search)
    assert not session.stale


@pytest.mark.usefixtures("impatient")
def test_another_edit_ends_the_search_of_the_one_before() -> None:
    page = Page(design(seed=3))
    session = page.session
    session.edit("pipeline.schedule", "auto", "schedule Auto")

    session.undo()

    assert session.search == {}
    assert not session.stale
    for thread in threading.enumerate():
        if thread.name == "search":
            thread.join(GONE_ON_S)
            assert not thread.is_alive(), "nobody wants to know any more"


def test_what_is_found_at_once_is_shown_at_once() -> None:
    auto = design("auto", seed=4)
    predict(auto)

    assert not Page(auto).session.stale


def test_layers_that_are_dragged_keep_the_order_until_they_are_dropped() -> None:
    page = Page(design("auto", seed=5))
    page.until(lambda: not page.session.search)
    session = page.session
    layers = list(session.prediction.costs.layers)
    moved = [layers[0] + 1, layers[1] - 1, *layers[2:]]

    tried = session.tried("pipeline.stages", moved)

    assert tried is not None
    assert tried.program == session.prediction.program
    assert list(tried.costs.layers) == moved


def test_the_order_of_a_search_is_the_one_that_is_drawn_on() -> None:
    auto = design("auto", seed=6, path="wave", chunks=2)
    program = predict(auto).program
    computed = program.is_compute

    drawn = order(auto)

    assert drawn.stage.tolist() == program.stage[computed].tolist()
    assert drawn.microbatch.tolist() == program.microbatch[computed].tolist()


# ---- would a search find a better order? ----


@pytest.mark.usefixtures("impatient")
def test_a_search_is_asked_for_the_stages_as_they_lie_and_taken() -> None:
    page = Page(design("gpipe", seed=7, stages=[40, 80, 60, 60]))
    session, asked = page.session, Problems(page.session)
    assert asked.better["state"] == "open"

    asked._handle_msg({"type": "search"})
    assert asked.better["state"] == "runs"
    page.until(lambda: asked.better["state"] == "found")
    assert re.match(
        r"Auto finds an order of these stages in .* ms: .* % shorter, with .* % less memory\.", asked.better["words"]
    )
    assert session.design.pipeline.schedule == "gpipe", "nothing is edited before it is asked for"
    before = session.prediction.timeline.makespan
    asked._handle_msg({"type": "use"})
    page.until(lambda: not session.search)

    assert session.design.pipeline.schedule == "auto"
    assert session.design.pipeline.stages == (40, 80, 60, 60)
    assert session.prediction.timeline.makespan < before
    assert asked.better == {}, "it searches already"


def test_an_edit_takes_away_what_was_found_before_it() -> None:
    session = Session(design("gpipe", seed=8))
    asked = Problems(session)
    asked._handle_msg({"type": "search"})
    assert asked.better["use"]

    session.edit("pipeline.microbatches", 12, "12 microbatches")

    assert asked.better["state"] == "open"
    asked._handle_msg({"type": "use"})
    assert session.design.pipeline.schedule == "gpipe"


@pytest.mark.parametrize("pipeline", [{"schedule": "chimera"}, {"schedule": "auto"}], ids=str)
def test_replicas_and_what_is_searched_already_are_no_question(pipeline: dict[str, Any]) -> None:
    assert Problems(Session(design(**pipeline, seed=9))).better == {}
