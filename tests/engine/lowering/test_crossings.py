"""What passes between two meshes, as a transfer alone: it takes as long as the pipeline says."""

from __future__ import annotations

from typing import Any

import pytest

from engine.cost.crossings import crossing_seconds
from engine.design import Design, load_design, parse_design
from engine.lowering.crossings import crossing_spec
from engine.resources import example
from engine.transfer_drawing import Drawing


def design(*axes: tuple[int, int], per_node: int, **transfer: Any) -> Design:
    """Meshes of dp x tp one after the other on the devices of a cluster."""
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
def test_a_crossing_alone_takes_as_long_as_in_the_pipeline(
    axes: tuple[tuple[int, int], ...], per_node: int, strategy: str
) -> None:
    asked = design(*axes, per_node=per_node, strategy=strategy, ordering="ensemble")
    for ends in ((0, 1), (1, 0)):
        spec = crossing_spec(asked, *ends)

        found = Drawing.of(spec, strategy, "ensemble").as_data()["played_s"]

        assert found == pytest.approx(crossing_seconds(asked, *ends))


def test_only_meshes_of_as_many_copies_and_no_tensor_parallelism_send_all_at_once() -> None:
    straight = design((2, 1), (2, 1), per_node=2)
    link = straight.cluster.inter_node
    bytes_of_a_copy = 4 * straight.model.sequence * straight.model.hidden * 4

    assert crossing_seconds(straight, 0, 1) == pytest.approx(link.latency_s + 2 * bytes_of_a_copy / link.bandwidth)

    planned = design((1, 1), (2, 1), per_node=1)
    beside = link.latency_s + bytes_of_a_copy / link.bandwidth
    assert crossing_seconds(planned, 0, 1) == pytest.approx(beside, rel=0.01), "what a host sends shares its NIC"


def test_the_tensor_lies_on_the_copies_and_its_ranks_are_devices() -> None:
    asked = design((2, 1), (1, 4), per_node=2)

    spec = crossing_spec(asked, 0, 1, tensors=3)

    model = asked.model
    assert spec.tensor.shape == (8, model.sequence, 3 * model.hidden)
    assert spec.source.spec == spec.destination.spec == ("S0", "R", "R")
    assert (spec.source.shape, spec.source.ranks, spec.source.hosts) == ((2, 1), (0, 1), (0, 0))
    assert (spec.destination.shape, spec.destination.ranks) == ((1, 4), (2, 3, 4, 5))
    assert spec.destination.hosts == (1, 1, 2, 2)
