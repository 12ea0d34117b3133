"""Several tensors by one plan on real processes: only those that take part come, and nobody waits for a collective."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.runtime.conftest import Crew

WORKS = "tests.engine.runtime.resharding_many_works"


def called(crew: Crew, name: str, size: int, argument: Any = None) -> list[Any]:
    return crew.call(f"{WORKS}:{name}", size, argument)


@pytest.mark.parametrize("seed", range(8))
def test_plans_of_some_processes_are_under_way_at_once(crew: Crew, seed: int) -> None:
    """Random tensors, meshes, dtypes, strategies and orderings; destinations are all 0xFF before."""
    assert called(crew, "several_plans_at_once", 8, seed) == [[]] * 8


def test_a_prepared_transfer_is_started_before_the_last_has_ended(crew: Crew) -> None:
    assert called(crew, "again_and_again", 8) == [[]] * 8


def test_meshes_and_tensors_of_torch_and_addends(crew: Crew) -> None:
    assert called(crew, "of_torch", 6) == [[]] * 6


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("tensor", "InputError: processes 0 and 2 do not agree on the shape, dtype or layouts of tensor 0.down; nothing was"),
        ("fewer", "do not agree on the number of tensors: process 0 says 9, process 6 says 8; nothing was moved"),
        ("option", "InputError: processes do not agree on the chunks"),
        ("spec", "InputError: 1.down: axis 1 cuts dims 0 and 1; an axis cuts one dim once"),
        ("to addends", "InputError: 1.down: the destination gets the sum, and cannot be partial itself"),
        ("two hosts", "InputError: process 2 is on host 0 in one mesh and on host 1 in another"),
        ("bool", "InputError: addends of mask of bool cannot be summed; convert the tensor first"),
        ("name", "InputError: no one tensor of the transfer is called '0.upp'"),
        ("count", "InputError: the transfer has 9 tensors, and 8 were given; give None where none is"),
        ("absent", "waits for 6 to agree on a transfer: processes 0, 1, 2, 3, 5, 6, 7 are all to call it"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_to_all_that_take_part(crew: Crew, case: str, words: str) -> None:
    told = called(crew, "refused", 8, case)
    assert told.pop(4) == "not called"
    if case == "absent":
        assert told.pop(5) == "not called"
    assert all(words in each for each in told), told


def test_a_shard_that_does_not_fit_is_told_with_its_name(crew: Crew) -> None:
    told = called(crew, "refused", 8, "shard")
    assert told[0] == "InputError: process 0 holds a shard of 4 x 6 float32 of 0.up, and was given 3 float32"
