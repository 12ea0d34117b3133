"""The Python side of the transfer lab: fields as texts, axes on dims, links, undo, and invalid documents."""

from __future__ import annotations

import json
import queue
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.designer.canvases.transfer import TransferView
from meshwave.designer.pages.transfer_page import BoundaryTransfers
from meshwave.designer.state import transfer_edits as edits
from meshwave.designer.state import transfer_fields, transfer_links, transfer_session
from meshwave.designer.state import transfer_plans as plans
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.transfer_session import TransferSession
from meshwave.designer.views.timeline import Pin, TimelineChart
from meshwave.designer.views.timeline_columns import Layer, pack_layers
from meshwave.engine.costs.models.roofline import RooflineCost
from meshwave.engine.document import load_design, parse_design
from meshwave.engine.document.transfer_document import parse_transfer
from meshwave.engine.errors import InputError
from meshwave.engine.files import example
from meshwave.engine.findings import DesignError
from meshwave.engine.program.action import Action, Op
from meshwave.engine.resharding import orderings, strategies
from meshwave.engine.resharding import plan_simulation as _played
from tests._findings import refusal
from tests.conftest import PATIENCE_S
from tests.designer import held
from tests.designer.timelines import one_f_one_b


def rows() -> transfer_fields.Document:
    return transfer_links.starting_transfers()["uneven"][1]


class Opened:
    """A view of a session, with gestures by name and the last response."""

    def __init__(self, document: transfer_fields.Document) -> None:
        self.session = TransferSession(parse_transfer(json.dumps(document)))
        self.view = TransferView(self.session)
        self.told: list[dict[str, Any]] = []
        self.view._send_msg = self.told.append  # type: ignore[method-assign, assignment]

    def send_gesture(self, kind: str, **gesture: Any) -> str | None:
        """Send a gesture; return the reason if it is refused."""
        self.view._handle_msg({"type": kind, **gesture})
        refused: str | None = self.told[-1]["refused"]
        return refused

    @property
    def spec(self) -> list[str]:
        found: list[str] = self.session.state.document["source"]["spec"]
        return found


# plans that take long


@pytest.mark.slow
def test_a_large_plan_is_computed_by_a_job_while_the_previous_one_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: queue.Queue[Callable[[], None]] = queue.Queue()
    session = TransferSession(parse_transfer(json.dumps(rows())), later=turns.put)
    view = TransferView(session)
    before = session.drawing
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    monkeypatch.setattr(plans, "SMALL_TRANSFER_PAIRS", 0)
    monkeypatch.setattr(transfer_session, "draw_plan", held.drawing)

    session.choose("send-recv", "naive")
    assert session.is_planning
    assert (session.drawing, view.stale) == (before, True)
    assert view.troubles == {"": "Planning this transfer; the previous one is shown meanwhile."}
    held.let_go()
    while session.is_planning:
        turns.get(timeout=PATIENCE_S)()

    assert session.drawing.plan.strategy == "send-recv"
    assert (view.stale, view.troubles) == (False, {})


# fields


@pytest.mark.parametrize("name", transfer_links.starting_transfers())
def test_the_text_of_a_field_can_be_parsed_again(name: str) -> None:
    _, document = transfer_links.starting_transfers()[name]
    parse_transfer(json.dumps(document))

    for path, text in transfer_fields.field_texts(document).items():
        assert edits.set_field_text(document, path, text) == document, path


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("tensor.shape", "1024 × 512", [1024, 512]),
        ("source.hosts", "0*3 5", [0, 0, 0, 5]),
        ("source.hosts", "1 per host, from 4", [4, 5, 6, 7]),
        ("source.ranks", "4-6, 9", [4, 5, 6, 9]),
        ("links.inter_node.bandwidth", "25 GB/s", 25e9),
        ("links.inter_node.bandwidth", "100 Gbit/s", 12.5e9),
        ("links.inter_node.bandwidth", "25", 25e9),  # as 1.25 GB/s stands there
        ("links.inter_node.bandwidth", "free", None),
        ("links.intra_node.latency_s", "7 us", 7e-6),
        ("links.inter_node.latency_s", "70", 7e-5),  # over 50 µs
        ("links.inter_node.latency_s", "0", 0.0),
        ("source.partial", "none", []),
        ("source.partial", "1", [1]),
        ("chunks", "best", None),
        ("chunks", "64", 64),
    ],
)
def test_field_texts_are_parsed(path: str, text: str, value: Any) -> None:
    found: Any = edits.set_field_text(rows(), path, text)
    for step in path.split("."):
        found = found[step]
    assert found == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize(
    ("path", "text", "code"),
    [
        ("tensor.shape", "13 by 6", "not_sizes"),
        ("source.ranks", "a few", "not_ranks"),
        ("source.ranks", "0-99999", "too_many_ranks"),
        ("source.ranks", "2, 9-4", "descending_ranks"),
        ("source.hosts", "0*99999", "too_many_ranks"),
        ("source.hosts", "0 per host", "empty_host"),
        ("source.hosts", "all", "not_hosts"),
        ("links.inter_node.bandwidth", "0", "rate_too_low"),
        ("links.inter_node.bandwidth", "1e400 B/s", "amount_too_large"),
        ("links.inter_node.bandwidth", "10 Gb/s", "bits_or_bytes"),
        ("links.inter_node.latency_s", "5e-5", "ambiguous_unit"),
        ("links.inter_node.latency_s", "soon", "not_an_amount"),
        ("source.partial", "rows", "not_axes"),
        ("nics_per_host", "1.5", "not_a_whole_number"),
        ("source.colour", "red", "unknown_member"),
    ],
)
def test_invalid_texts_are_refused(path: str, text: str, code: str) -> None:
    assert refusal(lambda: edits.set_field_text(rows(), path, text)).code == code


def test_a_mesh_of_another_shape_is_renumbered_and_moves_the_other_mesh() -> None:
    changed = edits.set_field_text(rows(), "source.shape", "8")

    assert changed["source"]["ranks"] == list(range(8)) and changed["source"]["hosts"] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert changed["destination"]["ranks"] == list(range(8, 14)) and changed["destination"]["hosts"][0] == 4
    assert edits.set_field_text(changed, "source.shape", "2 x 2") == rows()


def test_axes_are_ordered_on_dims_and_removed_axes_shard_nothing() -> None:
    both = edits.assign_axis(rows(), "source", 1, 0, 1)
    assert both["source"]["spec"] == ["S01", "R"]
    assert edits.assign_axis(both, "source", 1, 0, 0)["source"]["spec"] == ["S10", "R"]
    assert edits.assign_axis(both, "source", 0, 1, 0)["source"]["spec"] == ["S1", "S0"]
    assert edits.assign_axis(both, "source", 0, None, 0)["source"]["spec"] == ["S1", "R"]
    assert edits.set_field_text(both, "source.shape", "4")["source"]["spec"] == ["S0", "R"]
    assert edits.set_field_text(both, "tensor.shape", "8")["source"]["spec"] == ["S01"]
    assert edits.set_field_text(both, "tensor.shape", "8 8 8")["destination"]["spec"] == ["S0", "R", "R"]
    assert refusal(lambda: edits.assign_axis(rows(), "source", 7, 0, 0)).code == "unknown_transfer_axis"


def test_an_axis_of_partial_sums_is_reduced_until_it_shards_or_is_removed() -> None:
    opened = Opened(rows())

    assert opened.send_gesture("set", path="source.partial", text="1") is None
    picture = opened.view.picture
    assert picture["source"]["partial"] == [1] and picture["reduce_s"] > 0
    assert {tuple(task["addends"]) for task in picture["tasks"]} == {(0, 1), (2, 3)}
    opened.send_gesture("set", path="source.partial", text="0")
    assert opened.view.stale and "axis 0 shards dim 0" in opened.view.troubles["source.partial"]
    opened.send_gesture("set", path="source.partial", text="1")
    opened.send_gesture("place", side="source", axis=1, dim=1, at=0)
    assert opened.session.state.document["source"]["partial"] == [] and not opened.view.stale
    opened.send_gesture("undo")
    opened.send_gesture("set", path="source.shape", text="4")
    assert opened.session.state.document["source"]["partial"] == [] and not opened.view.stale


@pytest.mark.parametrize("name", ["rewrite-allgather", "send-recv"])
def test_a_strategy_with_slices_of_its_own_is_drawn_with_them(name: str) -> None:
    opened = Opened(rows())
    before = [task["rects"] for task in opened.view.picture["tasks"]]

    opened.send_gesture("choose", strategy=name, ordering="randomized-greedy")

    after = opened.view.picture
    assert sum(task["bytes"] for task in after["tasks"]) == after["bytes"]
    assert ([task["rects"] for task in after["tasks"]] == before) is (name == "send-recv")
    opened.send_gesture("look", shows="simulated")
    assert json.loads(opened.view.play)["messages"]["task"]


# links


def test_a_link_restores_the_transfer_and_may_hold_plain_json() -> None:
    link = transfer_links.link_fragment(rows(), "hierarchical", "dfs")

    text, *others = transfer_links.read_link(f"#{link}")

    assert json.loads(text) == rows() and others == ["hierarchical", "dfs", "planned"]
    assert (
        transfer_links.read_link(transfer_links.link_fragment(rows(), "broadcast", "dfs", shows="simulated")).shows
        == "simulated"
    )
    assert transfer_links.read_link(f"{link}&shows=played").shows == "simulated", "a link of an earlier version"
    assert json.loads(transfer_links.read_link(f"spec={json.dumps(rows())}").text) == rows()


@pytest.mark.parametrize("fragment", ["", "spec=%%%", "spec=é", "strategy=dfs", "spec=a&spec=b"])
def test_links_without_a_transfer_are_refused(fragment: str) -> None:
    assert refusal(lambda: transfer_links.read_link(fragment)).code == "no_transfer_in_link"


def test_a_long_link_is_refused() -> None:
    assert refusal(lambda: transfer_links.read_link("x" * 70_000)).code == "long_link"


def test_an_invalid_link_changes_nothing_and_names_the_problem() -> None:
    opened = Opened(rows())
    wrong = rows() | {"tensor": {"shape": [13, "six"], "item_bytes": 2}}

    refused = opened.send_gesture("link", fragment=transfer_links.link_fragment(wrong, "broadcast", "dfs"))

    assert refused == 'the link was not opened: tensor.shape[1]: "six" should be a whole number'
    assert opened.send_gesture("link", fragment=transfer_links.link_fragment(rows(), "brodcast", "dfs"))
    assert "brodcast" in opened.told[-1]["refused"] and "'broadcast'" in opened.told[-1]["refused"]
    assert opened.session.history == ("", "") and opened.view.troubles == {}


# the session and its view


def test_a_dragged_axis_is_planned_again_and_can_be_undone() -> None:
    opened = Opened(rows())
    before = opened.view.picture

    assert opened.send_gesture("place", side="source", axis=1, dim=1, at=0) is None

    assert opened.spec == ["S0", "S1"] and len(opened.view.picture["tasks"]) == 8
    assert opened.view.history == ["source: axis 1 shards dim 1", ""]
    opened.send_gesture("undo")
    assert opened.spec == ["S0", "R"] and opened.view.picture | {"number": 1} == before
    opened.send_gesture("redo")
    assert opened.spec == ["S0", "S1"]


def test_an_invalid_edit_is_reported_at_its_field_and_the_last_valid_picture_stays() -> None:
    opened = Opened(rows())
    before = opened.view.picture

    assert opened.send_gesture("set", path="source.ranks", text="0, 1, 2, 2") is None

    assert opened.view.stale and opened.view.picture is before
    assert "rank 2 is listed twice" in opened.view.troubles["source.ranks"]
    opened.send_gesture("set", path="source.ranks", text="0-3")
    assert not opened.view.stale and opened.view.troubles == {}


@given(path=st.sampled_from(sorted(transfer_fields.FIELDS)), text=st.text("0123456789.-*, xGMkmuB/sbit", max_size=6))
def test_an_input_is_refused_or_shown_as_it_was_parsed(path: str, text: str) -> None:
    document = rows()
    try:
        changed = edits.set_field_text(document, path, text)
    except InputError:
        return

    assert edits.set_field_text(changed, path, transfer_fields.field_texts(changed)[path]) == changed


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("links.inter_node.latency_s", "-1 us", "-1 µs should be at least 0 s"),
        ("links.intra_node.latency_s", "1e9 s", "1000000000 s should be at most 1000000 s"),
        ("links.inter_node.bandwidth", "1e30 B/s", "1000000000000000 PB/s should be at most 1000000000 PB/s"),
        ("tensor.item_bytes", "100", "100 should be at most 64"),
    ],
)
def test_an_amount_out_of_range_is_reported_in_the_unit_of_its_field(path: str, text: str, message: str) -> None:
    opened = Opened(rows())

    opened.send_gesture("set", path=path, text=text)

    assert opened.view.troubles == {path: message}


def test_a_refused_field_changes_nothing() -> None:
    opened = Opened(rows())

    assert "should be sizes" in str(opened.send_gesture("set", path="tensor.shape", text="thirteen"))

    assert opened.session.history == ("", "")


@pytest.mark.slow
def test_every_strategy_and_ordering_is_in_the_table_and_can_be_chosen() -> None:
    opened = Opened(rows())
    end = time.monotonic() + 20
    while not opened.view.table["done"]:
        assert time.monotonic() < end
        time.sleep(0.01)

    assert len(opened.view.table["rows"]) == len(strategies) * len(orderings)
    slow = next(
        row for row in opened.view.table["rows"] if (row["strategy"], row["ordering"]) == ("send-recv", "naive")
    )
    assert opened.send_gesture("choose", strategy="send-recv", ordering="naive") is None
    assert opened.view.picture["makespan_s"] == slow["makespan_s"]
    assert "no transfer strategy called 'post'" in str(opened.send_gesture("choose", strategy="post", ordering="naive"))


def test_messages_are_sent_for_the_current_picture_only() -> None:
    opened = Opened(transfer_links.starting_transfers()["rows"][1])
    number = opened.view.picture["number"]

    opened.send_gesture("hops", number=number, task=0)
    hops = json.loads(next(message for message in opened.told if message["type"] == "hops")["hops"])

    task = opened.view.picture["tasks"][0]
    assert max(hops["last"]) == task["chunks"] - 1
    assert max(hops["end_s"]) == pytest.approx(task["end_s"])
    opened.told.clear()
    opened.send_gesture("hops", number=number - 1, task=0)
    assert [message["type"] for message in opened.told] == ["answered"]


def test_the_simulated_links_are_sent_for_each_picture_while_they_are_selected() -> None:
    opened = Opened(rows())
    before = opened.view.picture
    assert opened.view.play == "" and before["unsimulated"] == ""

    assert opened.send_gesture("look", shows="simulated") is None

    play = json.loads(opened.view.play)
    assert opened.view.picture is before and play["number"] == before["number"]
    assert max(play["messages"]["end_s"]) == before["simulated_s"]
    assert sum(play["messages"]["bytes"]) == 2 * 13 * 6 * 2  # each of two ranks of a host gets its slice
    assert [(lane["host"], lane["rank"], lane["way"]) for lane in play["lanes"][:4]] == [
        (0, None, "tx"), (1, None, "tx"), (2, None, "rx"), (2, 4, "out"),
    ]  # fmt: skip
    assert opened.view.fragment.endswith("&shows=simulated")
    opened.send_gesture("choose", strategy="send-recv", ordering="naive")
    assert json.loads(opened.view.play)["number"] == opened.view.picture["number"] > before["number"]
    opened.send_gesture("set", path="source.ranks", text="0, 1, 2, 2")
    assert opened.view.stale and json.loads(opened.view.play)["number"] == opened.view.picture["number"]
    opened.send_gesture("look", shows="planned")
    assert opened.view.play == "" and "shows" not in json.dumps(opened.view.picture)
    assert "there is no timeline called 'dreamt'" in str(opened.send_gesture("look", shows="dreamt"))
    opened.send_gesture("link", fragment=transfer_links.link_fragment(rows(), "broadcast", "dfs", shows="simulated"))
    assert opened.view.shows == "simulated" and opened.view.play


def test_too_many_messages_are_not_simulated_and_the_page_shows_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_played, "MAX_SIMULATED_MESSAGES", 3)
    opened = Opened(rows())

    opened.send_gesture("look", shows="simulated")

    picture = opened.view.picture
    assert opened.view.play == "" and picture["simulated_s"] == picture["makespan_s"]
    assert "too many to simulate one by one" in picture["unsimulated"]


def test_a_saved_file_is_read_by_the_command_line_and_opened_again() -> None:
    opened = Opened(rows())
    opened.send_gesture("save")
    file = next(message for message in opened.told if message["type"] == "download")
    assert parse_transfer(file["content"]) == opened.session.drawing.spec
    opened.send_gesture("case", name="case-5")
    assert opened.send_gesture("open", file="transfer.json", text=file["content"].decode()) is None
    assert opened.session.state.document == rows()
    assert "not JSON" in str(opened.send_gesture("open", file="a.json", text="{"))


# a pipeline's transfer


def tensor_parallel() -> Session:
    document = load_design(example("01-first-wave")).model_dump(mode="json")
    document["cluster"] |= {"nodes": 2, "devices_per_node": 2}
    document["meshes"] = [
        {"name": name, "devices": devices, "axes": {"dp": 1, "tp": 2}}
        for name, devices in (("A", [0, 1]), ("B", [2, 3]))
    ]
    document["pipeline"] = {"schedule": "1f1b", "microbatches": 4}
    return Session(parse_design(document))


def test_an_arrow_opens_its_transfer_and_the_plan_can_be_applied() -> None:
    session = tensor_parallel()
    session.edit("transfer", {"batched": True}, "batched")
    crossings = BoundaryTransfers(session)

    crossings.open(session.prediction, 0, Action(Op.SEND_F, 0, 2))

    view = crossings.view
    assert view.shown and view.title == "Activation of microbatch 2, stage 0: mesh A to mesh B"
    sequence, hidden = session.design.model.sequence, session.design.model.hidden
    assert view.picture["shape"] == [session.design.training.micro_batch_size, sequence, hidden]
    assert view.picture["source"]["ranks"] == [0, 1] and view.picture["destination"]["ranks"] == [2, 3]
    assert [view.picture["strategy"], view.picture["ordering"]] == view.design_has
    view._handle_msg({"type": "choose", "strategy": "hierarchical", "ordering": "dfs"})
    view._handle_msg({"type": "take"})
    assert session.design.transfer.strategy == "hierarchical" and view.design_has == ["hierarchical", "dfs"]
    assert session.design.transfer.batched, "a plan leaves the rest of the section as it is"
    session.undo()
    assert session.design.transfer.strategy == "broadcast"


def test_the_title_of_a_skip_connection_names_both_stages() -> None:
    timeline = one_f_one_b(2, 2)
    other = np.full(len(timeline), -1, np.int32)
    other[np.flatnonzero(timeline.is_transfer)[0]] = 5

    packed = pack_layers([Layer(replace(timeline, other=other), "skips", crosses=True)])

    header = json.loads(packed[4 : 4 + int.from_bytes(packed[:4], "little")])
    assert header["layers"][0]["crosses"] and header["layers"][0]["columns"]["other"][0] == "int8"
    message = {"layer": 0, "rank": 0, "op": "SEND_F", "stage": 0, "microbatch": 1, "other": 5}
    pins: list[Pin | None] = []
    TimelineChart(on_open=pins.append)._handle_msg({"type": "open", **message})
    assert pins == [Pin(0, 0, Action(Op.SEND_F, 0, 1, other=5))]


@pytest.mark.parametrize("name", ["06-data-parallel", "14-tensor-parallel", "18-u-transformer", "20-unequal-meshes"])
def test_every_arrow_opens_a_transfer_of_the_drawn_duration(name: str) -> None:
    """This holds for single messages: waits of messages for each other belong to the iteration, not to a transfer."""
    design = load_design(example(name))
    apart = design.model_copy(update={"cost": RooflineCost(transfer_model="latency")})
    session = Session(apart)
    crossings, timeline = BoundaryTransfers(session), session.prediction.timeline
    first = {}
    for span in np.flatnonzero(timeline.is_transfer).tolist():
        first.setdefault(timeline.action(span)._replace(microbatch=0), span)
    assert first

    for span in first.values():
        crossings.view.shown = False
        crossings.open(session.prediction, int(timeline.rank[span]), timeline.action(span))

        took = float(timeline.end[span] - timeline.start[span])
        assert crossings.view.picture["simulated_s"] == pytest.approx(took)
        ends = json.loads(crossings.view.play)["messages"]["end_s"]  # first it is drawn as its arrow is
        assert max(ends) == pytest.approx(took)


def test_hosts_are_named_as_on_the_cluster() -> None:
    session = Session(load_design(example("18-u-transformer")))
    crossings = BoundaryTransfers(session)

    crossings.open(session.prediction, 0, Action(Op.SEND_F, 0, 2, other=3))

    assert crossings.view.host_word == "device"
    assert crossings.view.picture["hosts"] == [0, 3]
    assert crossings.view.picture["destination"]["hosts"] == [3]


def test_examples_are_named_by_what_they_transfer() -> None:
    titles = {name: title for name, (title, _) in transfer_links.starting_transfers().items()}

    assert len(set(titles.values())) == len(titles)
    assert not [title for title in titles.values() if re.search("case", title, re.IGNORECASE)]
    for name, (title, found) in transfer_links.starting_transfers().items():
        if name.startswith("case-"):
            source, destination = (" ".join(found[end]["spec"]) for end in ("source", "destination"))
            assert title.endswith(f": {source} to {destination}")


def test_a_missing_message_is_refused() -> None:
    session = tensor_parallel()
    with pytest.raises(InputError, match="this mesh no longer has"):
        BoundaryTransfers(session).open(session.prediction, 1, Action(Op.SEND_F, 0, 2))


def test_a_design_names_strategies_and_orderings_of_the_registries() -> None:
    document = load_design(example("01-first-wave")).model_dump(mode="json")
    for strategy in strategies:
        document["transfer"] = {"strategy": strategy, "ordering": "naive"}
        assert parse_design(document).transfer.strategy == strategy
    document["transfer"] = {"strategy": "hierarchic", "ordering": "load-balance"}
    with pytest.raises(DesignError, match="Did you mean 'hierarchical'"):
        parse_design(document)
