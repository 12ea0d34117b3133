"""The most memory that a step holds is counted, whoever lets go of it."""

from __future__ import annotations

import ctypes
import threading

import pytest

torch = pytest.importorskip("torch")

from meshwave.engine.runtime.device import memory  # noqa: E402
from meshwave.engine.runtime.device.memory import KEEP_SUM, LOG_LEVEL, Flags, MemoryCount  # noqa: E402
from meshwave.engine.runtime.experts.feed_forward import Expert, FeedForward  # noqa: E402

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
MEGABYTE = 2**20


def megabytes(number: float) -> torch.Tensor:
    return torch.empty(int(number * MEGABYTE), dtype=torch.uint8)


def test_the_most_at_once_is_counted_and_what_was_there_before_stays_out() -> None:
    before = megabytes(9)

    with MemoryCount(CPU, {"weights": [before]}) as count:
        first = megabytes(2)
        del before, first
        second = megabytes(1)

    found = count.result(3)
    assert found.by_category == {"weights": 9 * MEGABYTE, "within the step": 2 * MEGABYTE}
    assert found.peak_bytes == 11 * MEGABYTE
    assert len(second) == MEGABYTE


def test_what_another_thread_lets_go_is_gone() -> None:
    """As gloo's do once a message is sent; the profiler sees nothing of it."""
    with MemoryCount(CPU, {}) as count:
        for _ in range(3):
            message = [megabytes(4)]
            thread = threading.Thread(target=message.clear)
            thread.start()
            thread.join()

    assert count.result(0).peak_bytes == 4 * MEGABYTE


def test_a_count_leaves_the_flags_of_torch_as_they_were() -> None:
    def now() -> dict[str, int]:
        wanted = {LOG_LEVEL: ctypes.c_int(7), KEEP_SUM: ctypes.c_bool(False), "no such flag": ctypes.c_int(1)}
        flags = Flags(wanted)
        flags.swap()
        found = {name: value.value for name, value in wanted.items()}
        flags.swap()
        return found

    before = now()
    with MemoryCount(CPU, {}):
        assert now() != before

    assert now() == before
    assert before["no such flag"] == 1


def test_a_flag_is_not_set_where_one_before_it_is_missing() -> None:
    """Torch would log every allocation where its log was not set to errors alone."""
    wanted = {"no such flag": ctypes.c_int(1), KEEP_SUM: ctypes.c_bool(True)}

    Flags(wanted).swap()

    assert wanted[KEEP_SUM].value, "as it was given: not swapped"


def test_where_torch_tells_no_sums_its_own_threads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(events: object) -> None:
        raise AttributeError("total_allocated")

    monkeypatch.setattr(memory, "_allocations", missing)
    with MemoryCount(CPU, {}) as count:
        megabytes(8)
        megabytes(3)

    assert count.result(0).peak_bytes == 8 * MEGABYTE


@pytest.mark.parametrize("rows", [64, 2048])
def test_experts_hold_in_their_backward_what_the_cost_model_says(rows: int) -> None:
    """The gradient of what goes into the GELU, and either that of what comes out or those of rows and weights."""
    hidden, wide, number = 64, 256, 2
    experts = FeedForward([Expert(hidden, wide) for _ in range(number)])
    for weight in experts._stacked.values():
        assert weight is not None
        weight.zero_()
    x = torch.zeros(number * rows, hidden)
    y, kept = experts.forward(x, [rows] * number)
    experts.backward(y, kept, None)  # there are gradients to add to

    with MemoryCount(CPU, {}) as count:
        experts.backward(y, kept, None)

    weights = number * (2 * hidden * wide + wide + hidden)
    expected = 4 * (number * rows * wide + max(number * rows * wide, number * rows * hidden + weights))
    assert count.result(0).peak_bytes == pytest.approx(expected, rel=0.01)
