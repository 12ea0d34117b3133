"""Seconds of kernels by the constants of a device."""

import pytest

from meshwave.engine.costs.kernels import work_seconds
from meshwave.engine.costs.operators import Work
from meshwave.engine.document import Cluster, Device, Link
from meshwave.engine.document.devices import device_kinds

SHEET = {"peak_flops": 312e12, "memory_bytes": 80e9, "memory_bandwidth": 2e12}
PLAIN, NAMED = Device(name="my device", **SHEET), Device(name="A100-SXM4-80GB", **SHEET)
CONSTANTS = device_kinds()["A100-SXM4-80GB"].constants


def test_a_device_without_constants_has_one_efficiency():
    assert work_seconds(Work(312e12, 1.0, "product"), PLAIN) == pytest.approx(2.0)
    assert work_seconds(Work(0.0, 2e12), PLAIN) == pytest.approx(1.0)
    assert work_seconds(Work(312e12, 1.0, "fp8"), PLAIN) == pytest.approx(1.0)


def test_a_product_takes_a_fixed_time_and_that_of_its_flops():
    seconds = work_seconds(Work(312e12, 1.0, "product"), NAMED)

    assert seconds == pytest.approx(CONSTANTS.product_s + 1 / CONSTANTS.product_efficiency)


def test_fused_attention_skips_masked_pairs():
    whole, half = (work_seconds(Work(312e12, 1.0, "attention", share), NAMED) for share in (1.0, 0.5))

    assert whole - half == pytest.approx(0.5 / CONSTANTS.attention_efficiency)


def test_unfused_attention_adds_the_time_of_its_scores():
    without, with_scores = (work_seconds(Work(312e12, size, "unfused-attention"), NAMED) for size in (0.0, 2e12))

    assert with_scores - without == pytest.approx(1 / CONSTANTS.memory_efficiency)


def test_elementwise_work_takes_a_fixed_time_and_that_of_its_bytes():
    seconds = work_seconds(Work(0.0, 2e12), NAMED)

    assert seconds == pytest.approx(CONSTANTS.kernel_s + 1 / CONSTANTS.memory_efficiency)
    assert work_seconds(Work(), NAMED) == 0.0


def test_links_of_a_known_device_sustain_a_share_of_the_drawn_bandwidth():
    link = Link(latency_s=1.0, bandwidth=100.0)
    plain, named = (
        Cluster(nodes=1, devices_per_node=2, device=device, intra_node=link, inter_node=link)
        for device in (PLAIN, NAMED)
    )

    assert (plain.near, plain.far) == (link, link)
    assert named.near.bandwidth == pytest.approx(100 * CONSTANTS.intra_node_efficiency)
    assert named.far.latency_s == CONSTANTS.inter_node_latency_s
