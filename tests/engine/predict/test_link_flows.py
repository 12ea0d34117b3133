"""Flows of a prediction: the port that limits a message, and its description."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.predict.link_flows import Limit, LinkFlows
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.predict.questions import Inspector
from meshwave.engine.program.action import Op
from meshwave.engine.program.shared_links import Port
from tests.engine.predict.test_link_load import two_nodes
from tests.engine.program.links import shared_predictions


def flows_of(prediction: Prediction) -> LinkFlows:
    assert prediction.link_flows is not None
    return prediction.link_flows


def inspector(prediction: Prediction) -> Inspector:
    return Inspector(prediction.timeline, None, prediction.costs.unit, lambda: prediction.link_flows)


def test_a_message_with_half_of_a_nic_is_delayed_by_it() -> None:
    prediction = two_nodes(1e6)
    flows = flows_of(prediction)
    port = next(place for place, port in enumerate(flows.network.ports) if port == Port("nic-out", 0))
    took = flows.end_s - flows.start_s
    alone = flows.bytes / flows.network.rate[flows.kind]
    slowest = int(np.argmax(took / alone))
    assert took[slowest] == pytest.approx(2 * alone[slowest])
    assert port in flows.ports_of_kind(int(flows.kind[slowest]))

    limit = flows.find_limit(int(flows.span[slowest]), float(flows.start_s[slowest]), float(flows.end_s[slowest]))

    assert limit == Limit(Port("nic-out", 0), 2, False)
    assert limit.description == "delayed by the NIC of node 0, outgoing, shared by 2 flows"


def test_a_message_without_contention_is_limited_by_its_slowest_port() -> None:
    prediction = two_nodes(1e12)
    send = int(np.flatnonzero(prediction.timeline.op == Op.SEND_F)[0])

    limit = flows_of(prediction).find_limit(
        send, float(prediction.timeline.start[send]), float(prediction.timeline.end[send])
    )

    assert limit is not None
    assert limit.description == "through the NIC of node 0, outgoing"


def test_a_queued_message_is_delayed_by_the_port_of_the_message_before_it() -> None:
    """Both pairs of meshes share the NIC, which carries one message at a time."""
    prediction = two_nodes(1e5)
    flows, timeline = flows_of(prediction), prediction.timeline
    makers = {int(send): int(maker) for send, maker in zip(*prediction.program.send_rows, strict=True)}
    queued = [
        (span, made)
        for row, maker in makers.items()
        if timeline.start[span := int(prediction.program.span_of_row[row])]
        > (made := float(timeline.end[prediction.program.span_of_row[maker]])) + 1e-9
    ]
    assert queued

    limits = [flows.find_limit(span, made, float(timeline.start[span])) for span, made in queued]

    assert {limit.port.kind.partition("-")[0] for limit in limits if limit} == {"nic"}
    assert {limit.flows for limit in limits if limit} == {1, 2}


@pytest.mark.slow
def test_with_serial_links_the_occupied_nic_is_named() -> None:
    prediction = two_nodes(1e6, "link-serial")
    ask = inspector(prediction)

    words = [
        idle.words
        for at in np.linspace(0, prediction.timeline.makespan, 200, endpoint=False).tolist()
        for rank in range(4)
        if (idle := ask.explain_idle(rank, at))
    ]

    assert any("until the link is free (delayed by the NIC of node" in each for each in words)
    assert any("which carries one transfer at a time" in each for each in words)


@pytest.mark.slow
@given(prediction=shared_predictions(), at=st.floats(0, 1, exclude_max=True))
def test_the_idle_time_of_a_mesh_names_the_port_of_the_transfer(prediction: Prediction, at: float) -> None:
    ask, plain = inspector(prediction), Inspector(prediction.timeline, None, prediction.costs.unit)

    for rank in range(prediction.timeline.ranks):
        idle, before = (each.explain_idle(rank, at * prediction.timeline.makespan) for each in (ask, plain))
        if idle is None:
            assert before is None
            continue
        assert before is not None
        assert [part.seconds for part in idle.parts] == [part.seconds for part in before.parts]
        named = [part for part in idle.parts if part.port]
        wire = [part for part in idle.parts if part.what in ("queue", "link", "reducing", "gathering")]
        assert len(named) == min(1, len(wire))
        for part in named:
            assert part.flows >= 1
            assert part.port in part.words
            assert part.seconds == max(each.seconds for each in wire)


@pytest.mark.slow
@given(prediction=shared_predictions())
def test_the_transfers_of_the_critical_path_add_up_by_port(prediction: Prediction) -> None:
    ask = inspector(prediction)

    by_port = ask.seconds_by_port()

    parts = ask.path.seconds_by_category
    assert sum(by_port.values()) == pytest.approx(parts["transfer"] + parts["reduction"] + parts["gather"], abs=1e-9)
    assert list(by_port.values()) == sorted(by_port.values(), reverse=True)


def test_a_timeline_without_flows_names_no_port() -> None:
    ask = Inspector(two_nodes(1e6).timeline)

    assert ask.seconds_by_port() == {}
    assert ask.find_limit(0, 0.0, 1.0) is None
