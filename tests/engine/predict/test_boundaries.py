"""The transfer between two meshes as a stand-alone transfer takes as long as in the pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.designer.state.transfer_drawing import TransferDrawing
from meshwave.engine.costs.boundary_transfers import boundary_bytes, boundary_seconds, boundary_transfer
from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.files import example
from meshwave.engine.predict.boundaries import boundary_transfer_spec
from meshwave.engine.resharding import strategies


def design(*axes: tuple[int, int], per_node: int, **transfer: Any) -> Design:
    """Return a design with meshes of dp x tp on consecutive devices of a cluster."""
    document = load_design(example("03-gpt-on-two-cores")).model_dump(mode="json")
    meshes, first = [], 0
    for number, (dp, tp) in enumerate(axes):
        devices = list(range(first, first + dp * tp))
        meshes.append({"name": chr(ord("A") + number), "devices": devices, "axes": {"dp": dp, "tp": tp}})
        first += dp * tp
    document["meshes"] = meshes
    document["cluster"] |= {"nodes": -(-first // per_node), "devices_per_node": per_node}
    document["cluster"]["inter_node"] = {"latency_s": 5e-5, "bandwidth": 1.25e9}
    document["training"]["micro_batch_size"] = 4
    document["pipeline"] = {"schedule": "1f1b", "microbatches": 4}
    return parse_design(document | {"transfer": transfer}, draft=True)


@pytest.mark.parametrize("strategy", ["broadcast", "send-recv", "hierarchical"])
@pytest.mark.parametrize(
    ("axes", "per_node"), [(((1, 2), (1, 2)), 2), (((2, 1), (1, 4)), 2), (((1, 2), (2, 2)), 8), (((1, 1), (3, 1)), 2)]
)
def test_a_stand_alone_boundary_takes_as_long_as_in_the_pipeline(
    axes: tuple[tuple[int, int], ...], per_node: int, strategy: str
) -> None:
    asked = design(*axes, per_node=per_node, strategy=strategy, ordering="ensemble")
    for ends in ((0, 1), (1, 0)):
        spec = boundary_transfer_spec(asked, *ends)

        found = TransferDrawing.from_spec(spec, strategy, "ensemble").to_data()["simulated_s"]

        assert found == pytest.approx(boundary_seconds(asked, *ends))


def test_only_meshes_of_as_many_copies_and_no_tensor_parallelism_send_all_at_once() -> None:
    straight = design((2, 1), (2, 1), per_node=2)
    link = straight.cluster.inter_node
    bytes_of_a_copy = 4 * straight.model.sequence * straight.model.hidden * 4

    assert boundary_seconds(straight, 0, 1) == pytest.approx(link.latency_s + 2 * bytes_of_a_copy / link.bandwidth)

    planned = design((1, 1), (2, 1), per_node=1)
    beside = link.latency_s + bytes_of_a_copy / link.bandwidth
    assert boundary_seconds(planned, 0, 1) == pytest.approx(beside, rel=0.01), "what a host sends shares its NIC"


def test_the_tensor_is_sharded_over_the_replicas_and_ranks_are_devices() -> None:
    asked = design((2, 1), (1, 4), per_node=2)

    spec = boundary_transfer_spec(asked, 0, 1, tensors=3)

    model = asked.model
    assert spec.tensor.shape == (8, model.sequence, 3 * model.hidden)
    assert spec.source.spec == spec.destination.spec == ("S0", "R", "R")
    assert (spec.source.shape, spec.source.ranks, spec.source.hosts) == ((2, 1), (0, 1), (0, 0))
    assert (spec.destination.shape, spec.destination.ranks) == ((1, 4), (2, 3, 4, 5))
    assert spec.destination.hosts == (1, 1, 2, 2)


def large_design(boundary: str, strategy: str, *axes: tuple[int, int], per_node: int, nics: int) -> Design:
    """Return a design whose microbatch sends 262 MB, so that latency and links inside nodes are negligible."""
    asked = design(*axes, per_node=per_node, strategy=strategy, ordering="ensemble", boundary=boundary)
    near = asked.cluster.intra_node.model_copy(update={"bandwidth": 3e11})
    cluster = asked.cluster.model_copy(update={"intra_node": near, "nics_per_node": nics})
    training = asked.training.model_copy(update={"micro_batch_size": 4000})
    return asked.model_copy(update={"cluster": cluster, "training": training})


@pytest.mark.parametrize(("boundary", "spec"), [("sequence", ("S0", "S1", "R")), ("hidden", ("S0", "R", "S1"))])
@pytest.mark.parametrize("strategy", [name for name in strategies if name != "send-recv"])
def test_with_a_nic_per_device_slices_are_sent_concurrently(
    boundary: str, spec: tuple[str, ...], strategy: str
) -> None:
    """Four devices send a quarter each to four devices, which gather the quarters."""
    whole, sliced = (large_design(each, strategy, (1, 4), (1, 4), per_node=4, nics=4) for each in ("batch", boundary))
    crossed, link = boundary_transfer(sliced, 0, 1), sliced.cluster.inter_node

    assert boundary_transfer_spec(sliced, 0, 1).source.spec == spec and crossed.destination[1] == ("S0", "R", "R")
    assert {move.source for move in boundary_transfer(whole, 0, 1).moves} & {0, 1, 2, 3} == {0}
    assert {move.source for move in crossed.moves} >= {0, 1, 2, 3}
    assert boundary_bytes(sliced, 0, 1) == boundary_bytes(whole, 0, 1) == crossed.tensor.bytes
    assert boundary_seconds(whole, 0, 1) == pytest.approx(crossed.tensor.bytes / link.bandwidth, rel=0.06)
    assert boundary_seconds(sliced, 0, 1) == pytest.approx(crossed.tensor.bytes / link.bandwidth / 4, rel=0.03)


def test_slices_share_the_nic_of_a_node_and_replicas_are_not_sliced() -> None:
    whole, sliced = (
        large_design(each, "broadcast", (1, 2), (2, 1), per_node=2, nics=1) for each in ("batch", "sequence")
    )
    assert boundary_seconds(sliced, 0, 1) == pytest.approx(boundary_seconds(whole, 0, 1), rel=0.01)
    assert boundary_transfer(sliced, 1, 0).moves == boundary_transfer(whole, 1, 0).moves
