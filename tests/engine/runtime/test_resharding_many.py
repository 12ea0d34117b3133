"""Tests of resharding several tensors by one plan, called by the processes that take part only."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.runtime.crew_client import Crew

TASKS = "tests.engine.runtime.resharding_many_tasks"


def run_task(crew: Crew, name: str, size: int, argument: Any = None) -> list[Any]:
    return crew.call(f"{TASKS}:{name}", size, argument)


@pytest.mark.parametrize("seed", range(8))
def test_transfers_of_overlapping_processes_run_concurrently(crew: Crew, seed: int) -> None:
    """Tensors, meshes, dtypes, strategies and orderings are random. Destinations are filled with 0xFF before."""
    assert run_task(crew, "concurrent_transfers", 8, seed) == [[]] * 8


def test_a_prepared_transfer_starts_before_earlier_starts_are_complete(crew: Crew) -> None:
    assert run_task(crew, "start_six_times", 8) == [[]] * 8


def test_device_meshes_dtensors_and_partial_sources_are_resharded(crew: Crew) -> None:
    assert run_task(crew, "reshard_dtensor_and_addends", 6) == [[]] * 6


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("tensor", "processes 0 and 2 disagree on the shape, dtype or layouts of tensor 0.down; no data was sent"),
        ("item count", "processes disagree on the number of tensors: 9 on process 0, 8 on process 6; no data was sent"),
        ("option", "processes disagree on the chunks"),
        ("spec", "Refusal: 1.down: axis 1 shards both dim 0 and dim 1; an axis can shard only one dim"),
        ("partial destination", "Refusal: 1.down: the destination receives the sum and cannot be partial itself"),
        ("two hosts", "process 2 is on host 0 in one mesh and on host 1 in another"),
        ("bool", "partial sums of mask of dtype bool cannot be added; convert the tensor first"),
        ("name", "0 tensors of the transfer are named '0.upp'; pass a list instead"),
        ("count", "got 8 tensors for a transfer of 9; pass None for missing ones"),
        ("absent", "waiting for process 6 to agree on a transfer: processes 0, 1, 2, 3, 5, 6, 7 must all call it"),
    ],
)  # fmt: skip
def test_all_processes_that_take_part_raise_the_same_error(crew: Crew, case: str, message: str) -> None:
    outcomes = run_task(crew, "invalid_transfer", 8, case)
    assert outcomes.pop(4) == "not called"
    if case == "absent":
        assert outcomes.pop(5) == "not called"
    assert all(message in each for each in outcomes), outcomes


def test_an_error_about_a_shard_names_its_tensor(crew: Crew) -> None:
    outcomes = run_task(crew, "invalid_transfer", 8, "shard")
    assert outcomes[0] == "Refusal: process 0 holds a shard of 4 x 6 float32 of 0.up, but got 3 float32"
