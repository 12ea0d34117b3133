"""The exchange of keys and values of context parallelism adds what attention does not hide, computed by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshwave.engine.costs.alpha_beta import collective_seconds
from meshwave.engine.costs.collective_flows import StageBlocks, exchange_usages
from meshwave.engine.costs.context_exchange import ContextCost, ContextCosts
from meshwave.engine.costs.device_sizes import device_workload
from meshwave.engine.costs.fabric import Fabric
from meshwave.engine.costs.models.roofline import mesh_prices
from meshwave.engine.costs.operators import PRECISIONS, Operator, Work, Workload, attention_product
from meshwave.engine.document import Cluster, Design, Mesh, parse_design
from meshwave.engine.document.training import ContextExchange
from meshwave.engine.files import example

LINK = {"latency_s": 1e-3, "bandwidth": 1e6}
DEVICE = {"name": "test", "peak_flops": 1e6, "memory_bytes": 1e9, "memory_bandwidth": 1e12, "efficiency": 1.0}
CLUSTER = Cluster.model_validate(
    {"nodes": 1, "devices_per_node": 6, "device": DEVICE, "intra_node": LINK, "inter_node": LINK}
)
SIZE = 1000.0
"""Bytes of the keys and values of a device, which take 2 ms."""


def exposed_costs(exchange: ContextExchange, forward_s: float, backward_s: float, cp: int = 3) -> ContextCosts:
    """Return the exposed parts for attention that takes these seconds."""
    mesh = Mesh(name="A", devices=tuple(range(cp)), axes={"cp": cp})
    load = Workload(sequence=1, hidden=1, batch=1, precision=PRECISIONS["fp32"], cp=cp, context_exchange=exchange)
    works = (Work(flops=seconds * 1e6) for seconds in (forward_s, backward_s))
    operator = Operator("attention", *works, context_bytes=SIZE)
    return ContextCost(CLUSTER, mesh, load, collective_seconds).exposed_parts(operator)


def test_a_ring_exposes_the_messages_that_attention_does_not_hide() -> None:
    found = exposed_costs("ring", forward_s=4.5e-3, backward_s=6e-3)

    assert found.forward.seconds == pytest.approx(2 * (2e-3 - 1.5e-3))
    middle, last = 3e-3 - 2e-3, 2e-3  # two messages in the middle step; nothing hides the last gradients
    assert found.backward.seconds == pytest.approx(middle + last)
    assert {(each.source, each.destination) for each in found.forward.messages} == {(0, 1), (1, 2), (2, 0)}
    assert [each.bytes for each in found.forward.messages] == pytest.approx([2 * SIZE / 4] * 3), "a quarter is exposed"


def test_long_attention_hides_a_ring_except_the_last_gradients() -> None:
    found = exposed_costs("ring", forward_s=1.0, backward_s=1.0)

    assert found.forward.seconds == 0
    assert found.backward.seconds == pytest.approx(2e-3)


def test_an_all_gather_is_exposed_regardless_of_attention() -> None:
    for seconds in (0.0, 1.0):
        found = exposed_costs("all_gather", seconds, seconds)
        assert found.forward.seconds == found.backward.seconds == pytest.approx(2 * 2e-3)
        assert [each.bytes for each in found.forward.messages] == pytest.approx([2 * SIZE] * 3)


def long_sequences(exchange: str, bandwidth: float, axes: dict[str, int]) -> Design:
    document: dict[str, Any] = json.loads(example("06-data-parallel").read_text())
    document["cost"] = {"kind": "roofline"}
    document["cluster"]["intra_node"]["bandwidth"] = document["cluster"]["inter_node"]["bandwidth"] = bandwidth
    document["training"]["context_parallel"] = exchange
    for mesh in document["meshes"]:
        mesh["axes"] = axes
    return parse_design(document)


@pytest.mark.parametrize("exchange", ["ring", "all_gather"])
def test_the_exchange_is_a_wait_inside_the_layers_and_traffic_on_the_links(exchange: str) -> None:
    design = long_sequences(exchange, 1e7, {"cp": 2})
    (price, *_) = mesh_prices(design)
    load = device_workload(design, design.meshes[0])
    cost = ContextCost(design.cluster, design.meshes[0], load, collective_seconds)
    expected = cost.exposed_parts(attention_product(load))

    assert price.layer.forward_waits == pytest.approx(expected.forward.seconds)
    assert price.layer.input_waits == pytest.approx(expected.backward.seconds)
    assert expected.forward.seconds > 0
    stage = StageBlocks(layers=3, experts={}, joins=0, first=False, last=False)
    for usage, part in zip(
        exchange_usages(Fabric(design.cluster), design, design.meshes[0], stage), expected, strict=True
    ):
        sent = {port.number: size for port, size in usage.items() if port.kind == "link-out"}
        assert sent == pytest.approx({each.source: 3 * each.bytes for each in part.messages})


def test_gathered_keys_and_values_stay_in_memory() -> None:
    ring, gathered = (
        attention_product(device_workload(design, design.meshes[0]))
        for design in (long_sequences(exchange, 1e9, {"cp": 2}) for exchange in ("ring", "all_gather"))
    )
    assert gathered.kept_bytes - ring.kept_bytes == ring.context_bytes > 0
