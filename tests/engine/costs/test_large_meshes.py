"""The work of pricing a design hardly grows with the number of devices of its meshes."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from meshwave.engine.costs import estimate
from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.meshes import equal_meshes
from meshwave.engine.lowering.lower import lower

RANKS, TP = 4, 2


def design_with(replicas: int, sharding: str) -> Design:
    """Return a design whose stages are sent, reduced and exchanged between nodes of four devices."""
    link = {"latency_s": 1e-5, "bandwidth": 1e10}
    device = {"name": "A100-80GB", "peak_flops": 3e14, "memory_bytes": 8e10, "memory_bandwidth": 2e12}
    nodes = {"nodes": RANKS * replicas * TP // 4, "devices_per_node": 4}
    cluster = {**nodes, "device": device, "intra_node": link, "inter_node": link}
    model = {"kind": "gpt", "layers": 8, "hidden": 64, "heads": 4, "sequence": 64, "vocab": 512}
    document = {
        "format": "meshwave/1",
        "cluster": cluster,
        "model": model,
        "meshes": equal_meshes(RANKS, {"dp": replicas, "tp": TP}),
        "pipeline": {"schedule": "1f1b", "microbatches": 8},
        "training": {"sharding": sharding},
    }
    return parse_design(document)


def calls_to_price(design: Design) -> int:
    """Return the number of calls of Python functions that it takes to price a design again."""
    program, calls = lower(design), 0
    estimate(design, program)  # fills the caches

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        estimate(design, program)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "optimizer"])
def test_pricing_calls_no_function_for_each_message_of_a_device(sharding: str) -> None:
    few, many = (design_with(replicas, sharding) for replicas in (4, 256))

    more = calls_to_price(many) - calls_to_price(few)
    assert more < 4 * (many.cluster.devices - few.cluster.devices), "about one per port"
