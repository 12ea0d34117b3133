"""Tests of resharding between real processes: each shard equals the slice of the whole tensor bit by bit."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.engine.resharding import strategies
from tests.engine.runtime.crew_client import Crew

TASKS = "tests.engine.runtime.resharding_tasks"


def run_task(crew: Crew, name: str, size: int, argument: Any = None) -> list[Any]:
    return crew.call(f"{TASKS}:{name}", size, argument)


@pytest.mark.parametrize("world", [8, 5, 2])
def test_random_transfers_deliver_slices_and_send_the_bytes_of_the_plan(crew: Crew, world: int) -> None:
    """Meshes, specs, shapes, dtypes, strategies, orderings, chunks, delays and strides are random.

    Destinations are filled with 0xFF before.
    """
    assert run_task(crew, "random_transfers", world, list(range(world * 6))) == [[]] * world


@pytest.mark.parametrize("strategy", list(strategies))
def test_concurrent_round_trips_restore_the_tensors(crew: Crew, strategy: str) -> None:
    assert run_task(crew, "reshard_there_and_back", 8, strategy) == [[]] * 8


@pytest.mark.parametrize("world", [8, 6])
def test_addends_are_summed_as_in_one_process(crew: Crew, world: int) -> None:
    """Meshes with partial axes are random and may overlap; sums in the order of the mesh are equal bit by bit."""
    assert run_task(crew, "random_sums", world, list(range(world * 8))) == [[]] * world


def test_partial_dtensors_are_summed_on_another_mesh(crew: Crew) -> None:
    assert run_task(crew, "partial_dtensors", 6) == [[]] * 6


def test_dtensors_are_resharded_to_another_mesh(crew: Crew) -> None:
    assert run_task(crew, "dtensors", 6) == [[]] * 6


def test_processes_may_leave_out_what_another_one_gives(crew: Crew) -> None:
    whole = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert run_task(crew, "local_shards", 5) == [[], [], whole, whole, []]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("dtype", "processes disagree on the dtype: float32 on process 0, float64 on process 2; no data was sent"),
        ("shape", "processes disagree on the shape: [6] on process 0, [7] on process 1"),
        ("spec", "processes disagree on the destination: "),
        ("option", "processes disagree on the chunks: 3 on process 0, 2 on process 1"),
        ("axis", "S1 names axis 1, and the mesh has axes 0 to 0"),
        ("no shape", "no process gave the shape of the transfer; at least one must"),
        ("process", "the destination mesh has process 4, but there are 4 processes (0 to 3)"),
        ("partial", "(supported: Shard, Replicate); every receiver gets the sum, so use Replicate() or Shard()"),
        ("average", "unsupported source placement Partial(avg) on mesh axis 0 (supported: Shard, Replicate, Partial('sum'))"),
        ("strategy", "Did you mean 'send-recv'?"),
    ],
)  # fmt: skip
def test_all_processes_raise_the_same_error_for_an_invalid_transfer(crew: Crew, case: str, message: str) -> None:
    for outcome in run_task(crew, "invalid_transfer", 4, case):
        assert outcome.startswith(("InputError: ", "Refusal: ")) and message in outcome


def test_a_shard_of_the_wrong_shape_fails_the_others(crew: Crew) -> None:
    outcomes = run_task(crew, "invalid_transfer", 4, "shard")
    assert outcomes[1] == "Refusal: process 1 holds a shard of 3 float32, but got 4 float32"
    assert all("RunError: process" in outcomes[process] for process in (2, 3))


@pytest.mark.parametrize("how", ["sleeps", "exits"])
def test_a_process_that_does_not_take_part_fails_the_others_without_a_hang(crew: Crew, how: str) -> None:
    found = run_task(crew, "errors_of_failing_process", 4, how)
    for process in (0, 2, 3):
        message, seconds = found[process]
        assert f"process {process} " in message and seconds < 20
    assert "could not send" in found[0][0] and "did not receive bytes" in found[2][0]


def test_tensors_of_the_wrong_shape_or_dtype_are_rejected_before_anything_is_sent(crew: Crew) -> None:
    (messages,) = run_task(crew, "start_with_wrong_tensors", 1)
    assert messages == [
        "process 0 holds a shard of 4 x 3 float32, but got none",
        "process 0 holds a shard of 4 x 3 float32, but got 3 x 4 float32",
        "process 0 holds a shard of 4 x 3 float32, but got 4 x 3 float64",
        "process 0 receives a shard of 4 x 3 float32, but got 4 float32",
        "the shard that is sent and the one that is received share memory; pass a new tensor",
        "the plan is for elements of 4 bytes, but torch.float64 has 8",
        "process 7 holds no shard of the tensor, but got one of 4 x 3 float32",
    ]
