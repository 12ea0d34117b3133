"""Resharding on real processes: every shard is bit by bit what slicing the whole tensor gives."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwave.engine.resharding import strategies
from tests.engine.runtime.conftest import Crew

DOCUMENTED = Path(__file__).resolve().parents[3] / "docs" / "resharding.md"
WORKS = "tests.engine.runtime.resharding_works"


def called(crew: Crew, name: str, size: int, argument: Any = None) -> list[Any]:
    return crew.call(f"{WORKS}:{name}", size, argument)


@pytest.mark.parametrize("world", [8, 5, 2])
def test_shards_are_those_of_slicing_and_bytes_those_of_the_plan(crew: Crew, world: int) -> None:
    """Random meshes, specs, shapes, dtypes, strategies, orderings, chunks, delays, strided tensors; the
    destination is all 0xFF before."""
    assert called(crew, "random_transfers", world, list(range(world * 6))) == [[]] * world


@pytest.mark.parametrize("strategy", list(strategies))
def test_several_at_once_and_back_give_the_start(crew: Crew, strategy: str) -> None:
    assert called(crew, "there_and_back", 8, strategy) == [[]] * 8


@pytest.mark.parametrize("world", [8, 6])
def test_addends_are_summed_as_one_process_sums_them(crew: Crew, world: int) -> None:
    """Random meshes with partial axes, apart or not; floating-point sums in the order of the mesh, bit by bit."""
    assert called(crew, "random_sums", world, list(range(world * 8))) == [[]] * world


def test_partial_dtensors_become_their_sum_on_another_mesh(crew: Crew) -> None:
    assert called(crew, "partial_dtensors", 6) == [[]] * 6


def test_dtensors_become_dtensors_of_another_mesh(crew: Crew) -> None:
    assert called(crew, "dtensors", 6) == [[]] * 6


def test_one_process_says_what_the_others_do_not_know(crew: Crew) -> None:
    whole = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert called(crew, "local_shards", 5) == [[], [], whole, whole, []]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("dtype", "processes do not agree on the dtype: process 0 says float32, process 2 says float64; nothing was moved"),
        ("shape", "processes do not agree on the shape: process 0 says [6], process 1 says [7]"),
        ("spec", "processes do not agree on the destination: process 0 says"),
        ("option", "processes do not agree on the chunks: process 0 says 3, process 1 says 2"),
        ("axis", "S1 names axis 1, and the mesh has axes 0 to 0"),
        ("nobody", "no process says the shape of the transfer; one has to"),
        ("process", "the destination has process 4, and there are 4"),
        ("partial", "only Shard and Replicate can be resharded to: every receiver gets the sum; ask for Replicate() or"),
        ("average", "the placement Partial(avg) on mesh axis 0, and only Shard and Replicate can be resharded, and Partial"),
        ("strategy", "Did you mean 'send-recv'?"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_to_all_and_nothing_moves(crew: Crew, case: str, said: str) -> None:
    for told in called(crew, "refused", 4, case):
        assert told.startswith("InputError: ") and said in told


def test_a_shard_that_does_not_fit_ends_the_others_by_the_timeout(crew: Crew) -> None:
    told = called(crew, "refused", 4, "shard")
    assert told[1] == "InputError: process 1 holds a shard of 3 float32, and was given 4 float32"
    assert all("RunError: process" in told[process] for process in (2, 3))


@pytest.mark.parametrize("how", ["sleeps", "goes"])
def test_a_process_that_does_not_take_part_fails_the_others_and_hangs_nobody(crew: Crew, how: str) -> None:
    found = called(crew, "one_fails", 4, how)
    for process in (0, 2, 3):
        said, seconds = found[process]
        assert f"process {process} " in said and seconds < 20
    assert "could not send" in found[0][0] and "got no bytes" in found[2][0]


def test_tensors_that_do_not_fit_are_refused_before_anything_is_sent(crew: Crew) -> None:
    (said,) = called(crew, "checks", 1)
    assert said == [
        "process 0 holds a shard of 4 x 3 float32, and was given none",
        "process 0 holds a shard of 4 x 3 float32, and was given 3 x 4 float32",
        "process 0 holds a shard of 4 x 3 float32, and was given 4 x 3 float64",
        "process 0 gets a shard of 4 x 3 float32, and was given 4 float32",
        "the shard that is sent and the one that is received share memory; give a tensor of its own",
        "the plan is for elements of 4 bytes, and one of torch.float64 has 8",
        "process 7 holds no part of the tensor, and was given one of 4 x 3 float32",
    ]


def test_the_examples_of_the_documentation_run(crew: Crew) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENTED.read_text("utf-8"), re.DOTALL)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    found = called(crew, "documented", 6, (blocks, port))

    whole = np.arange(48.0).reshape(8, 6)
    for process, (said, shards) in enumerate(found):
        served = process >= 4
        assert said == (f"process {process} has (8, 3) of (8, 6)\n" if served else "")
        half = whole[:, 3 * (process - 4) :][:, :3].tolist() if served else None
        summed = (30 * whole[:, 3 * (process - 4) :][:, :3]).tolist() if served else None
        assert shards == [half, half, summed, half, (30 * whole[0]).tolist() if served else None]
