"""Load of ports, and lower bounds of the step time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.document import parse_design
from meshwave.engine.predict.link_load import PORT_NAMES, Bounds, port_name
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.program.shared_links import Port
from meshwave.engine.units import percent
from tests._strategies import document
from tests.engine.program.links import nodes_of_two, shared_predictions


@given(prediction=st.one_of(*map(shared_predictions, ("shared-links", "link-serial", "latency", "sender-blocking"))))
def test_no_prediction_is_below_a_bound(prediction: Prediction) -> None:
    bounds, makespan = prediction.lower_bounds, prediction.timeline.makespan
    assert bounds is not None

    for least in (bounds.network_s or 0.0, bounds.critical_path_s, bounds.busy_s):
        assert makespan >= least * (1 - 1e-9)
    assert bounds.share <= 1 + 1e-9
    assert all(0 < load.share <= 1 + 1e-9 for load in prediction.port_loads)


@given(prediction=shared_predictions())
def test_the_bytes_of_the_ports_are_those_that_transfers_and_collectives_send(prediction: Prediction) -> None:
    """Outgoing and incoming bytes of nodes and devices are equal in total."""
    loads = prediction.port_loads
    for way in ("nic", "link", "device"):
        sent, received = (
            sum(load.bytes or 0.0 for load in loads if load.port.kind == f"{way}-{side}") for side in ("out", "in")
        )
        assert sent == pytest.approx(received)


def two_nodes(
    bandwidth: float, transfer_model: str = "shared-links", devices: tuple[int, ...] = (0, 2, 1, 3)
) -> Prediction:
    """Return a design with two pairs of neighbours whose consecutive stages are on different nodes."""
    drawn = document(
        {"schedule": "interleaved-1f1b", "chunks": 2, "microbatches": 4},
        4,
        cluster=nodes_of_two(4, bandwidth),
        cost={"kind": "roofline", "transfer_model": transfer_model},
        training={"precision": "bf16"},
    )
    for mesh, device in zip(drawn["meshes"], devices, strict=True):
        mesh["devices"] = [device]
    return predict(parse_design(drawn))


def test_bytes_of_a_nic_are_its_messages() -> None:
    """All seven boundaries of eight stages are between nodes: seven activations and seven gradients per microbatch."""
    prediction = two_nodes(1e8)

    size = 4 * 32 * 64 * 2  # sequence x hidden x bytes of bf16, and all microbatches
    nics = {load.port: load.bytes for load in prediction.port_loads if load.port.kind.startswith("nic")}
    assert sum(passed or 0.0 for passed in nics.values()) == pytest.approx(2 * 2 * 7 * size)
    for load in prediction.port_loads:
        assert load.busy_s == pytest.approx((load.bytes or 0.0) / (1e8 if load.port.kind.startswith("nic") else 1e9))


def test_the_binding_bound_is_described_in_a_sentence() -> None:
    slow, fast = two_nodes(1e6), two_nodes(1e12)
    assert slow.lower_bounds is not None
    assert fast.lower_bounds is not None

    assert slow.lower_bounds.binding == "network"
    assert (
        slow.lower_bounds.description
        == f"the NIC of node 0, outgoing, is busy {percent(slow.lower_bounds.share)} of the step"
    )
    assert fast.lower_bounds.binding == "critical_path"
    assert fast.lower_bounds.description.startswith(
        "the critical path without shared links takes 100% of the step; the busiest"
    )


def test_a_mesh_that_computes_all_the_time_is_the_bottleneck() -> None:
    bounds = Bounds(0.2, 1.0, 0.995, Port("link-in", 3), "B", 1.0, "compute")

    assert bounds.description == "mesh B computes for 99.5% of the step"
    assert (bounds.binding_s, bounds.share) == (0.995, 0.995)


def test_metrics_have_ports_by_key_and_by_label() -> None:
    numbers = two_nodes(1e6).numbers

    first = numbers["links"][0]
    assert (first["kind"], first["number"], first["name"]) == ("nic-out", 0, "NIC of node 0, outgoing")
    assert first["share"] == pytest.approx(first["busy_s"] / numbers["makespan_s"])
    assert numbers["bounds"]["port"] == {"kind": "nic-out", "number": 0, "name": "NIC of node 0, outgoing"}
    assert numbers["bounds"]["network_s"] == max(load["busy_s"] for load in numbers["links"])


def test_serial_ports_have_seconds_but_no_bytes() -> None:
    loads = two_nodes(1e6, "link-serial").port_loads

    assert loads
    assert {load.bytes for load in loads} == {None}


def test_unit_costs_have_no_bounds_and_no_links() -> None:
    numbers = predict(parse_design(document({"schedule": "1f1b", "microbatches": 4}, 2))).numbers

    assert numbers["bounds"] is None
    assert numbers["links"] == []


@pytest.mark.parametrize("kind", PORT_NAMES)
def test_every_kind_of_port_has_a_name(kind: str) -> None:
    name = port_name(Port(kind, 7))  # type: ignore[arg-type]

    assert " 7" in name
    ways = {"out": ", outgoing", "in": ", incoming", "both": ", both directions", "": "7"}
    assert name.endswith(ways[kind.partition("-")[2]])
