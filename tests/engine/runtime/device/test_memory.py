"""Counts of the peak memory of a step."""

from __future__ import annotations

import ctypes
import threading

import pytest

torch = pytest.importorskip("torch")

from meshwave.engine.document.architecture import PLAIN  # noqa: E402
from meshwave.engine.runtime.device import memory  # noqa: E402
from meshwave.engine.runtime.device.memory import KEEP_SUM, LOG_LEVEL, Flags, MemoryCount  # noqa: E402
from meshwave.engine.runtime.experts.feed_forward import Expert, FeedForward  # noqa: E402
from meshwave.engine.runtime.modules.activations import make_activation  # noqa: E402

CPU = torch.device("cpu")
MEGABYTE = 2**20


def megabytes(number: float) -> torch.Tensor:
    return torch.empty(int(number * MEGABYTE), dtype=torch.uint8)


def test_the_peak_is_counted_without_memory_that_was_there_before() -> None:
    before = megabytes(9)

    with MemoryCount(CPU, {"weights": [before]}) as count:
        first = megabytes(2)
        del before, first
        second = megabytes(1)

    result = count.result(3)
    assert result.by_category == {"weights": 9 * MEGABYTE, "within the step": 2 * MEGABYTE}
    assert result.peak_bytes == 11 * MEGABYTE
    assert len(second) == MEGABYTE


def test_memory_that_another_thread_frees_does_not_count() -> None:
    """Threads of gloo free memory like this after a message was sent, which the profiler does not see."""
    with MemoryCount(CPU, {}) as count:
        for _ in range(3):
            message = [megabytes(4)]
            thread = threading.Thread(target=message.clear)
            thread.start()
            thread.join()

    assert count.result(0).peak_bytes == 4 * MEGABYTE


def test_a_count_restores_the_flags_of_torch() -> None:
    def read_flags() -> dict[str, int]:
        values = {LOG_LEVEL: ctypes.c_int(7), KEEP_SUM: ctypes.c_bool(False), "no such flag": ctypes.c_int(1)}
        flags = Flags(values)
        flags.swap()
        found = {name: value.value for name, value in values.items()}
        flags.swap()
        return found

    before = read_flags()
    with MemoryCount(CPU, {}):
        assert read_flags() != before

    assert read_flags() == before
    assert before["no such flag"] == 1


def test_no_flag_is_set_after_one_that_is_missing() -> None:
    """torch would log every allocation if its log level were not set first."""
    values = {"no such flag": ctypes.c_int(1), KEEP_SUM: ctypes.c_bool(True)}

    Flags(values).swap()

    assert values[KEEP_SUM].value, "not swapped"


def test_only_profiled_threads_are_counted_by_a_torch_without_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_missing_total(events: object) -> None:
        raise AttributeError("total_allocated")

    monkeypatch.setattr(memory, "_allocation_events", raise_missing_total)
    with MemoryCount(CPU, {}) as count:
        megabytes(8)
        megabytes(3)

    assert count.result(0).peak_bytes == 8 * MEGABYTE


@pytest.mark.parametrize("rows", [64, 2048])
def test_experts_allocate_in_their_backward_the_bytes_of_the_cost_model(rows: int) -> None:
    """The gradient of the input of the GELU, and the larger of that of its output and those of rows and weights."""
    hidden, width, number = 64, 256, 2
    experts = FeedForward([Expert(hidden, width) for _ in range(number)], make_activation(PLAIN.mlp))
    for weight in experts._stacked.values():
        assert weight is not None
        weight.zero_()
    x = torch.zeros(number * rows, hidden)
    y, saved = experts.forward(x, [rows] * number)
    experts.backward(y, saved, None)  # later gradients are added to these

    with MemoryCount(CPU, {}) as count:
        experts.backward(y, saved, None)

    weights = number * (2 * hidden * width + width + hidden)
    expected = 4 * (number * rows * width + max(number * rows * width, number * rows * hidden + weights))
    assert count.result(0).peak_bytes == pytest.approx(expected, rel=0.01)
