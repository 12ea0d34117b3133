"""Lanes of ports: the area of a flow's shares is its bytes, and no port exceeds its capacity."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.predict import link_lanes as lanes_module
from meshwave.engine.predict.link_lanes import link_lanes
from meshwave.engine.predict.prediction import Prediction
from tests.engine.predict.test_link_load import two_nodes
from tests.engine.program.links import shared_predictions

shares_per_port = st.sampled_from([10**9, 30])  # all moments, or some are left out


@pytest.mark.slow
@given(prediction=shared_predictions(), most=shares_per_port)
def test_the_area_of_the_shares_equals_the_bytes_on_a_port(prediction: Prediction, most: int) -> None:
    flows = prediction.link_flows
    assert flows is not None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes_module, "max_shares_per_port", lambda _: most)
        found = link_lanes(flows, prediction.port_loads, devices=True).lanes

    assert len(found) == min(len(prediction.port_loads), lanes_module.LANE_LIMIT)
    for lane in found:
        area = sum((share.high - share.low) * (share.end_s - share.start_s) for share in lane.shares)
        span = sum(share.end_s - share.start_s for share in lane.shares)
        assert area == pytest.approx(lane.load.busy_s, rel=1e-5, abs=2e-6 * span)  # parts have six digits


@pytest.mark.slow
@given(prediction=st.one_of(shared_predictions(), shared_predictions("link-serial")), most=shares_per_port)
def test_no_port_exceeds_its_capacity_and_shares_do_not_overlap(prediction: Prediction, most: int) -> None:
    flows = prediction.link_flows
    assert flows is not None
    tiny = 1e-9 * prediction.timeline.makespan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes_module, "max_shares_per_port", lambda _: most)
        found = link_lanes(flows, prediction.port_loads, devices=True).lanes

    for lane in found:
        assert all(0 <= share.low <= share.high <= 1 + 1e-6 for share in lane.shares)
        events = sorted(
            (moment, sign, share.high - share.low)
            for share in lane.shares
            if share.end_s - share.start_s > 2 * tiny
            for moment, sign in ((share.start_s + tiny, 1), (share.end_s - tiny, -1))
        )
        level = 0.0
        for _, sign, part in events:
            level += sign * part
            assert level <= 1 + 1e-4


@pytest.mark.slow
@given(prediction=shared_predictions())
def test_every_flow_sends_its_bytes_between_its_start_and_end(prediction: Prediction) -> None:
    flows, timeline = prediction.link_flows, prediction.timeline
    assert flows is not None

    for flow in range(len(flows.span)):
        span, rates = int(flows.span[flow]), flows.rates[flows.flow_class(flow)]
        times = np.clip([*rates.times, np.inf], flows.start_s[flow], flows.end_s[flow])
        assert np.diff(times) @ np.array(rates.values) + (times[0] - flows.start_s[flow]) * rates.values[
            0
        ] == pytest.approx(flows.bytes[flow], rel=1e-5)
        assert timeline.start[span] - 1e-12 <= flows.start_s[flow] <= flows.end_s[flow] <= timeline.end[span] + 1e-12


def test_lanes_of_nodes_come_first_and_those_of_devices_on_request() -> None:
    prediction = two_nodes(1e8)
    assert prediction.link_flows is not None

    some, every = (link_lanes(prediction.link_flows, prediction.port_loads, devices=asked) for asked in (False, True))

    kinds = [lane.load.port.kind for lane in some.lanes]
    assert kinds == ["nic-out", "nic-in", "nic-out", "nic-in"]
    assert [lane.load for lane in every.lanes] == prediction.port_loads


def test_messages_of_two_pairs_share_the_nics_of_their_nodes() -> None:
    prediction = two_nodes(1e6)
    assert prediction.link_flows is not None

    found = link_lanes(prediction.link_flows, prediction.port_loads).lanes

    assert max(lane.most_flows for lane in found) == 2
    shared = defaultdict(set)
    for share in found[0].shares:
        shared[round(share.high - share.low, 2)].add(share.message)
    assert {0.5, 1.0} <= shared.keys()


def test_only_the_busiest_of_too_many_lanes_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    prediction = two_nodes(1e8)
    assert prediction.link_flows is not None
    monkeypatch.setattr(lanes_module, "LANE_LIMIT", 2)

    found = link_lanes(prediction.link_flows, prediction.port_loads)

    busiest = sorted((load.share for load in prediction.port_loads), reverse=True)
    assert sorted((lane.load.share for lane in found.lanes), reverse=True) == busiest[:2]
    assert found.ports == 4


def test_rounding_errors_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    prediction = two_nodes(1e8)
    assert prediction.link_flows is not None
    monkeypatch.setattr(lanes_module, "MAX_SHARES", 10)

    assert link_lanes(prediction.link_flows, prediction.port_loads).lanes == []


@pytest.mark.parametrize("transfer_model", ["latency", "sender-blocking"])
def test_without_shared_links_there_are_no_lanes(transfer_model: str) -> None:
    assert two_nodes(1e8, transfer_model).link_flows is None
