"""Links in the timeline: the data that is sent to the page on request."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwave.designer.pages.timeline_layers import timeline_layers
from meshwave.designer.state.design_session import Session
from meshwave.designer.views.timeline import TimelineChart
from meshwave.designer.views.timeline_columns import TICKS, Layer, pack_layers
from meshwave.designer.views.timeline_links import find_link_lanes
from meshwave.engine.document import parse_design
from meshwave.engine.predict.link_lanes import LinkLanes
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.program.action import Op
from tests._strategies import document
from tests.designer.test_timeline_view import ask, chart_and_replies
from tests.engine.predict.test_link_load import two_nodes


def unpack_columns(packed: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header of the only layer and its columns."""
    length = int.from_bytes(packed[:4], "little")
    [layer] = json.loads(packed[4 : 4 + length])["layers"]
    columns = {
        name: np.frombuffer(packed, np.dtype(kind), size, 4 + length + offset)
        for name, (kind, offset, size) in layer["columns"].items()
    }
    return layer, columns


def pack_prediction(prediction: Prediction, *, devices: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    return unpack_columns(
        pack_layers([Layer(prediction.timeline, "open", links=find_link_lanes(prediction, devices=devices))])
    )


def test_lanes_are_packed_with_their_shares_and_spans() -> None:
    prediction = two_nodes(1e6)
    found = find_link_lanes(prediction, devices=False)
    assert isinstance(found, LinkLanes)

    header, columns = pack_prediction(prediction)

    lanes = header["links"]["lanes"]
    assert [lane["label"] for lane in lanes] == ["NIC 0 out", "NIC 0 in", "NIC 1 out", "NIC 1 in"]
    assert [lane["share"] for lane in lanes] == [lane.load.share for lane in found.lanes]
    assert columns["link_bounds"].tolist() == np.cumsum([0, *(len(lane.shares) for lane in found.lanes)]).tolist()
    seconds = (columns["link_end"].astype(float) - columns["link_start"]) / TICKS * prediction.timeline.makespan
    area = seconds * (columns["link_high"] - columns["link_low"])
    for lane, first, last in zip(lanes, columns["link_bounds"], columns["link_bounds"][1:], strict=False):
        assert area[first:last].sum() == pytest.approx(lane["busy_s"], rel=1e-3)
        assert (columns["link_rate"][first:last] * seconds[first:last]).sum() == pytest.approx(lane["bytes"], rel=1e-3)
    ops = columns["op"][columns["flow_span"]] & 0x7F
    assert set(ops.tolist()) == {Op.SEND_F, Op.SEND_B}


def test_device_lanes_are_shown_on_request() -> None:
    prediction = two_nodes(1e6, devices=(0, 2, 3, 1))

    nodes, every = (pack_prediction(prediction, devices=devices)[0]["links"]["lanes"] for devices in (False, True))

    assert {lane["label"].split()[0] for lane in nodes} == {"NIC"}
    assert {lane["label"].split()[0] for lane in every} == {"NIC", "dev"}


def test_link_lanes_are_not_computed_while_they_are_off() -> None:
    design = two_nodes(1e6).design
    session = Session(design)

    [off] = timeline_layers(session)
    assert off.links is None
    assert session.prediction is not None
    assert "link_flows" not in session.prediction.__dict__
    assert unpack_columns(pack_layers([off]))[0]["links"] is None

    [on] = timeline_layers(session, links=True)
    assert isinstance(on.links, LinkLanes)


def test_the_reason_for_missing_lanes_is_shown() -> None:
    units = predict(parse_design(document({"schedule": "1f1b", "microbatches": 4}, 2)))

    assert pack_prediction(two_nodes(1e6, "latency"))[0]["links"] == {
        "lanes": [],
        "groups": {},
        "words": "with transfer model latency, transfers do not share links; select shared-links to see link use",
    }
    assert "unit costs do not model bytes" in pack_prediction(units)[0]["links"]["words"]


def test_serial_links_have_no_rates() -> None:
    header, columns = pack_prediction(two_nodes(1e6, "link-serial"))

    assert header["links"]["serial"]
    assert not columns["link_rate"].any()
    assert (columns["link_high"] == 1).all()


def test_the_page_can_ask_what_limits_a_message() -> None:
    prediction = two_nodes(1e6)
    timeline = prediction.timeline
    layer = Layer(timeline, "open", find_flows=lambda: prediction.link_flows)
    chart, told = chart_and_replies(layer, replace(layer, find_flows=lambda: None))
    send = int(np.flatnonzero(timeline.op == Op.SEND_F)[-1])
    named = {name: int(getattr(timeline, name)[send]) for name in ("rank", "op", "stage", "microbatch", "other")}
    when = {"start": timeline.start[send], "end": timeline.end[send]}

    ask(chart, "limit", **named, **when)
    ask(chart, "limit", 1, **named, **when)
    ask(chart, "limit", **{**named, "stage": 99}, **when)
    ask(chart, "path")

    limited, *unknown, path = (message["found"] for message in told)
    assert limited.startswith(("it is delayed by the NIC of node", "no other message slows it down"))
    assert unknown == ["", ""]
    assert any(name.startswith("NIC of node") for name in path["by_port_s"])


def test_link_lanes_are_off_by_default() -> None:
    chart = TimelineChart()

    assert not chart.show_links
    assert not chart.show_device_links
