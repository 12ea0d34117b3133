"""The gallery and the comparison without a browser: messages to the page, and edits by gestures."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.designer.pages.timeline_layers import timeline_layers
from meshwave.designer.state import gallery_cards
from meshwave.designer.state.design_session import PIN_LIMIT, Session
from meshwave.designer.state.gallery_cards import common_axis, describe_gallery, variant_card
from meshwave.designer.state.schedule_pictures import COLUMNS, LANES, schedule_picture
from meshwave.designer.views.design_comparison import Comparison, comparison_columns
from meshwave.designer.views.gallery import Gallery
from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.files import example
from meshwave.engine.predict.gallery import Entry, list_variants, simulate_variant
from meshwave.engine.predict.prediction import predict
from tests._findings import refusal
from tests._strategies import document
from tests.designer import held
from tests.designer.widgets import SentMessages

SEARCHED_S = 60.0


@pytest.fixture(autouse=True)
def few_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedules that search for an order have tests of their own."""
    monkeypatch.setattr(gallery_cards, "make_cards", held.judge_few)


class GalleryMessages(SentMessages):
    """Messages that the gallery sent to its page."""

    @property
    def cards(self) -> dict[str, dict[str, Any]]:
        return {
            variant_card["title"]: variant_card
            for message in self.messages_of_type("found")
            for variant_card in message["cards"]
        }


@pytest.fixture
def gallery(session: Session) -> Gallery:
    return Gallery(session)


def opened(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> GalleryMessages:
    """The gallery with all its cards."""
    heard = GalleryMessages(gallery, monkeypatch)
    gallery.open()
    wait_for(gallery)
    return heard


def wait_for(gallery: Gallery) -> None:
    if gallery._job is not None:
        assert gallery._job.job.join(SEARCHED_S)


def entry(design: Design, title: str) -> Entry:
    found = simulate_variant(design, next(variant for variant in list_variants(design) if variant.title == title))
    assert isinstance(found, Entry)
    return found


# ---- the gallery ----


@pytest.mark.slow
def test_opening_sends_a_description_then_cards_then_done(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = opened(gallery, monkeypatch)

    kinds = [message["type"] for message in heard.messages]
    assert (kinds[0], kinds[-1]) == ("reset", "done")
    assert heard.messages_of_type("reset")[0]["about"].startswith("4 meshes, 4 microbatches, 16 layers")
    assert heard.messages_of_type("found")[-1]["notes"]
    assert heard.cards["Hanayo, 2 waves"]["present"]
    assert "use 8" in heard.cards["DualPipe"]["reason"]


def test_a_card_has_the_numbers_of_its_design(design: Design) -> None:
    present, other = entry(design, "Hanayo, 2 waves"), entry(design, "1F1B")
    numbers = predict(design).numbers

    shown = variant_card(present, present)
    assert shown["by"]["iteration"] == numbers["makespan_s"]
    assert shown["by"]["memory"] == max(numbers["peak_memory_bytes"])
    assert (shown["iteration"], shown["bubble"], shown["copies"]) == ("60 units", "20.0%", "1 ×")
    assert (shown["change"], variant_card(other, present)["change"]) == ("", "+40.0%")
    assert not variant_card(other, present)["better"]
    assert variant_card(present, other)["change"].startswith("−")


@pytest.mark.slow
def test_choosing_a_card_is_one_undo_step(
    gallery: Gallery, session: Session, design: Design, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = opened(gallery, monkeypatch)

    gallery._handle_msg({"type": "choose", "key": heard.cards["ZB-V"]["key"]})

    assert session.design.pipeline.schedule == "zb-v"
    assert session.history == ("schedule ZB-V", "")
    assert not gallery.shown
    session.undo()
    assert session.design == design


def test_choosing_the_current_schedule_edits_nothing(
    gallery: Gallery, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = opened(gallery, monkeypatch)

    gallery._handle_msg({"type": "choose", "key": heard.cards["Hanayo, 2 waves"]["key"]})

    assert session.history == ("", "")
    assert not gallery.shown


def test_a_refused_choice_leaves_the_gallery_open(
    gallery: Gallery, session: Session, design: Design, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = opened(gallery, monkeypatch)

    def refuse(*arguments: Any) -> None:
        raise InputError("no")

    monkeypatch.setattr(session, "edit", refuse)
    gallery._handle_msg({"type": "choose", "key": heard.cards["GPipe"]["key"]})

    assert gallery.shown
    assert heard.messages_of_type("answered")[-1]["refused"] == "no"
    assert session.design is design


def test_a_card_of_an_earlier_design_is_refused(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = opened(gallery, monkeypatch)

    gallery._handle_msg({"type": "choose", "key": "gone"})

    assert "earlier design" in heard.messages_of_type("answered")[-1]["refused"]


def test_the_gallery_follows_the_design_only_while_it_is_open(
    gallery: Gallery, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = opened(gallery, monkeypatch)

    session.edit("pipeline.microbatches", 8, "8 microbatches")
    wait_for(gallery)
    assert [message["about"].split(", ")[1] for message in heard.messages_of_type("reset")] == [
        "4 microbatches",
        "8 microbatches",
    ]

    gallery._handle_msg({"type": "close"})
    session.edit("pipeline.microbatches", 4, "4 microbatches")
    assert len(heard.messages_of_type("reset")) == 2


def test_cards_are_kept_until_the_design_changes(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = opened(gallery, monkeypatch)

    gallery._handle_msg({"type": "close"})
    gallery.open()

    assert gallery.shown
    assert len(heard.messages_of_type("reset")) == 1


def test_a_card_is_pinned_under_its_name_and_unpinned_by_a_second_click(
    gallery: Gallery, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = opened(gallery, monkeypatch)
    key = heard.cards["ZB-V"]["key"]

    gallery._handle_msg({"type": "pin", "key": key})
    assert [pinned.design.name for pinned in session.pinned] == ["ZB-V"]
    assert gallery.pinned == [key]

    gallery._handle_msg({"type": "pin", "key": key})
    assert session.pinned == []
    assert gallery.pinned == []


def test_a_draft_that_cannot_be_simulated_has_cards_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    made = document({"schedule": "1f1b", "microbatches": 4}, 2)
    made["meshes"][1]["devices"] = [0]
    heard = opened(Gallery(Session(parse_design(made, draft=True))), monkeypatch)

    assert "device 0" in heard.cards["1F1B"]["reason"]
    assert heard.cards["1F1B"]["present"]
    assert not heard.cards["1F1B"]["choosable"]


def test_an_internal_error_is_shown_and_ends_the_progress(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery_cards, "make_cards", held.raise_error)
    heard = opened(gallery, monkeypatch)

    assert "broken" in heard.messages_of_type("answered")[-1]["refused"]
    assert heard.messages[-1]["type"] == "done"


# ---- pictures ----


def test_a_small_picture_has_every_computation(design: Design) -> None:
    timeline = predict(design).timeline

    drawn = schedule_picture(timeline)

    assert len(drawn["op"]) == int(timeline.is_compute.sum())
    assert (drawn["ranks"], drawn["makespan"]) == (4, 60)


def test_a_shared_slot_is_drawn_in_halves() -> None:
    made = parse_design(document({"schedule": "dualpipe-v", "microbatches": 6}, 2))
    drawn = schedule_picture(predict(made).timeline)

    firsts = [i for i, half in enumerate(drawn["half"]) if half == 1]
    assert firsts
    for i in firsts:
        assert drawn["half"][i + 1] == 2
        assert (drawn["start"][i], drawn["end"][i]) == (drawn["start"][i + 1], drawn["end"][i + 1])


def test_a_large_picture_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = predict(parse_design(document({"schedule": "1f1b", "microbatches": 40}, 20))).timeline

    drawn = schedule_picture(timeline, largest=100)

    assert drawn["ranks"] == LANES
    assert max(drawn["rank"]) == LANES - 1
    assert 0 < len(drawn["op"]) <= COLUMNS * LANES
    assert all(first < end for first, end in zip(drawn["start"], drawn["end"], strict=True))
    busy = sum(end - first for first, end in zip(drawn["start"], drawn["end"], strict=True))
    assert 1 - busy / (LANES * timeline.makespan) == pytest.approx(timeline.bubble_ratio, abs=0.02)


def test_the_axis_is_limited_so_that_fast_schedules_remain_readable(design: Design) -> None:
    fast, slow = entry(design, "Hanayo, 2 waves"), entry(design, "1F1B")

    assert common_axis([fast, slow]) == 84
    assert common_axis([]) == 1
    assert "16 meshes" in describe_gallery(parse_design(document({"schedule": "1f1b", "microbatches": 4}, 20)))


# ---- up to four designs ----


def test_up_to_three_designs_are_pinned_besides_the_open_one(session: Session) -> None:
    for microbatches in (4, 5, 6):
        session.edit("pipeline.microbatches", microbatches, "microbatches")
        session.pin()
    session.edit("pipeline.microbatches", 7, "microbatches")

    problem = refusal(session.pin)
    assert (problem.code, problem.params["count"]) == ("too_many_pins", PIN_LIMIT)
    assert len(session.pinned) == PIN_LIMIT
    assert [layer.label.split(":")[0] for layer in timeline_layers(session)] == ["Pinned"] * 3 + [
        "Two waves on four meshes (microbatches 7)"
    ]

    session.unpin(1)
    assert [pinned.design.pipeline.microbatches for pinned in session.pinned] == [4, 6]
    session.end_comparison()
    assert session.pinned == []


def test_a_design_is_pinned_only_once(session: Session) -> None:
    session.pin()
    session.pin()

    assert session.pinned == []


def test_designs_in_units_and_in_seconds_have_separate_axes(session: Session) -> None:
    session.pin(predict(load_design(example("10-bert-on-tacc"))))

    assert len(timeline_layers(session)) == 1
    assert len(comparison_columns(session.pinned, session.prediction)) == 2


def test_columns_show_changes_and_differences_to_the_first(session: Session) -> None:
    session.pin()
    session.edit("pipeline", {"schedule": "1f1b", "microbatches": 4}, "1f1b")

    first, last = comparison_columns(session.pinned, session.prediction)

    name = session.design.name
    assert [first["name"], last["name"]] == [f"{name} (schedule hanayo, waves 2)", f"{name} (schedule 1f1b)"]
    assert [layer.label for layer in timeline_layers(session)] == [f"Pinned: {first['name']}", last["name"]]
    assert (first["first"], first["open"], first["differences"]) == (True, False, [])
    assert first["cells"]["iteration"]["change"] is None
    assert (last["open"], last["cells"]["iteration"]["change"]["verdict"]) == (True, "worse")
    assert last["differences"] == ["schedule: hanayo, waves 2 -> 1f1b"]
    assert last["cells"]["inflight"] == {"value": "4", "small": "microbatches at the peak", "change": None, "wrong": ""}


def test_designs_are_unpinned_added_and_cleared_in_the_table(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Comparison(session)
    heard = GalleryMessages(table, monkeypatch)
    table.open()
    assert [column["open"] for column in table.columns] == [True]

    table._handle_msg({"type": "pin"})
    table._handle_msg({"type": "example", "name": "01-first-wave"})
    table._handle_msg({"type": "file", "text": load_design(example("04-chimera")).to_json()})
    assert [column["place"] for column in table.columns] == [0, 1, 2, 3]
    assert table.room == 0

    table._handle_msg({"type": "example", "name": "05-hanayo-as-chimera"})
    assert "unpin one" in heard.messages_of_type("answered")[-1]["refused"]
    table._handle_msg({"type": "unpin", "place": 0})
    assert [pinned.design.name for pinned in session.pinned] == [column["name"] for column in table.columns[:2]]
    table._handle_msg({"type": "end"})
    assert session.pinned == []
    assert not table.shown


def test_a_file_that_is_not_a_design_is_refused(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Comparison(session)
    heard = GalleryMessages(table, monkeypatch)

    table._handle_msg({"type": "file", "text": "{}"})

    assert heard.messages_of_type("answered")[-1]["refused"]
    assert session.pinned == []
