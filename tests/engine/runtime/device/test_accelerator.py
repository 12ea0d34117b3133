"""Streams, clocks, memory and backends follow the accelerator that torch reports, whatever its type."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from meshwave.engine.errors import RunError
from meshwave.engine.program.action import backward, forward
from meshwave.engine.runtime.device import accelerator
from meshwave.engine.runtime.device.clock import AcceleratorClock, HostClock, make_clock
from meshwave.engine.runtime.device.memory import AllocationCount, MemoryCount
from meshwave.engine.runtime.device.report import torch_properties
from meshwave.engine.runtime.device.streams import AcceleratorStreams, Streams, make_streams
from tests.engine.runtime.device.simulated import DEVICE, Accelerator, stream_log

CPU = torch.device("cpu")


@pytest.fixture
def simulated_accelerator(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    return Accelerator(2).install(monkeypatch)


def test_devices_of_any_type_are_counted_named_and_selected(simulated_accelerator: Accelerator) -> None:
    assert (accelerator.accelerator_type(), accelerator.accelerator_count()) == ("xpu", 2)
    assert [accelerator.device_name(each) for each in (CPU, DEVICE)] == ["CPU", "simulated"]

    accelerator.select_device(accelerator.accelerator_device(1))

    assert accelerator.current_device("xpu") == torch.device("xpu", 1)
    assert accelerator.current_device("cpu") == CPU


def test_a_device_sends_by_its_own_backend_where_torch_has_it(
    simulated_accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert accelerator.device_backend(DEVICE) == "xccl"
    assert accelerator.device_backend(CPU) is None

    monkeypatch.setattr(dist, "is_xccl_available", lambda: False)

    assert accelerator.device_backend(DEVICE) is None


@pytest.mark.parametrize("found", [None, torch.device("mps")])
def test_a_machine_without_a_suitable_accelerator_computes_on_the_cpu(
    found: torch.device | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: found)

    assert accelerator.accelerator_count() == 0
    with pytest.raises(RunError, match="no accelerator"):
        accelerator.accelerator_device(0)
    assert torch_properties()["gpus"] == []


def test_the_report_names_the_accelerators_and_their_backend(simulated_accelerator: Accelerator) -> None:
    report = torch_properties()

    assert report["gpus"] == ["simulated", "simulated"] and report["nccl"] == "xccl"


def test_only_an_accelerator_is_waited_for(simulated_accelerator: Accelerator) -> None:
    accelerator.synchronize(CPU)
    accelerator.synchronize_stream(CPU)
    assert (simulated_accelerator.synchronized, simulated_accelerator.waits) == (0, [])

    accelerator.synchronize(DEVICE)
    accelerator.synchronize_stream(DEVICE)
    assert (simulated_accelerator.synchronized, simulated_accelerator.waits) == (1, [("host", "main")])


def test_events_become_times_of_the_host_and_are_used_again_in_the_next_step(
    simulated_accelerator: Accelerator,
) -> None:
    clock = make_clock(DEVICE)
    assert type(clock) is AcceleratorClock and type(make_clock(CPU)) is HostClock

    for _ in range(3):
        clock.begin()
        before = time.perf_counter_ns()
        stamps = [clock.stamp(), clock.stamp(), before]
        after = time.perf_counter_ns()
        first, second, host = clock.nanoseconds([*stamps[:2], before]).tolist()

        assert host == before
        assert before - 1e6 < first <= second < after + 1e6

    assert simulated_accelerator.events_made == 5, "three that relate the clocks and two stamps"


def test_a_slot_runs_on_two_streams_and_each_backward_on_the_stream_of_its_forward(
    simulated_accelerator: Accelerator,
) -> None:
    streams = make_streams(DEVICE)
    assert type(streams) is AcceleratorStreams and type(make_streams(CPU)) is Streams
    log, computation = stream_log(simulated_accelerator)
    first, second, third = (forward(0, mb) for mb in range(3))

    streams.run_overlapped(second, computation("F1"), first, computation("B0"))
    streams.run_overlapped(third, computation("F2"), second, computation("B1"))
    streams.run_backward(third, computation("B2"))

    # The backward of F1 runs on the side stream by autograd, since F1 did; the host issues it on the main stream.
    assert log == {"side": ["F1"], "main": ["B0", "F2", "B1", "B2"]}
    joins = [("side", "main"), ("main", "side")]
    assert simulated_accelerator.waits == joins * 2, "both slots are joined; F2 and its backward ran on the main stream"
    assert simulated_accelerator.current is simulated_accelerator.main


def test_the_allocator_reports_the_peak_of_a_step(simulated_accelerator: Accelerator) -> None:
    simulated_accelerator.allocate(100)
    with MemoryCount(DEVICE, {}) as count:
        simulated_accelerator.allocate(50)
        simulated_accelerator.allocate(-30)

    result = count.result(4)

    assert not count.slows_step
    assert result.by_category == {"other": 100.0, "within the step": 50.0}

    with AllocationCount(DEVICE) as allocated:
        simulated_accelerator.allocate(7)
    assert allocated.bytes == 7


@pytest.mark.accelerator
class TestDevice:
    """Tests of a real accelerator, or of torch's simulated one."""

    @pytest.fixture
    def device(self) -> torch.device:
        return accelerator.accelerator_device(0)

    def test_stamps_lie_between_times_of_the_host(self, device: torch.device) -> None:
        clock = make_clock(device)
        x = torch.ones(64, 64, device=device)
        clock.begin()
        before = time.perf_counter_ns()
        stamps = [clock.stamp()]
        for _ in range(3):
            x = x + 1
            stamps.append(clock.stamp())
        times = clock.nanoseconds(stamps).tolist()

        assert times == sorted(times)
        assert before - 1e6 < times[0] and times[-1] < time.perf_counter_ns() + 1e6

    def test_both_computations_of_a_slot_are_done_before_later_work(self, device: torch.device) -> None:
        streams, x = make_streams(device), torch.zeros(4, device=device)
        y = torch.zeros(4, device=device)

        streams.run_overlapped(forward(0, 1), lambda: x.add_(1) and None, backward(0, 0), lambda: y.add_(2) and None)

        assert (x + y).tolist() == [3.0] * 4

    def test_memory_is_counted(self, device: torch.device) -> None:
        kept = torch.ones(2**20, device=device)
        with MemoryCount(device, {"weights": [kept]}) as count:
            torch.ones(2**20, device=device)

        result = count.result(0)
        assert result.by_category["weights"] == 4 * 2**20
        assert result.by_category["within the step"] >= 4 * 2**20
