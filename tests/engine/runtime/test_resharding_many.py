"""Tests of resharding several tensors by one plan, called by the processes that take part only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.runtime.crew_client import Crew

TASKS = "tests.engine.runtime.resharding_many_tasks"
SLOW_TO_AGREE = """
import time
import torch
import torch.distributed as dist
from meshwave.engine.resharding import Mesh
from meshwave.engine.runtime.resharding import ReshardItem, reshard_many
from meshwave.engine.runtime.resharding.rendezvous import Rendezvous

take_tags = Rendezvous.take_tags
dist.init_process_group("gloo")
if dist.get_rank() == 2:
    Rendezvous.take_tags = lambda self, count: time.sleep(0.5) or take_tags(self, count)
sender, other = Mesh((1,), (0,), (0,)), Mesh((1,), (2,), (0,))
receiver = Mesh((1,), (1,), (0,))
items = [ReshardItem((4,), torch.float32, (mesh, ("R",)), (receiver, ("R",))) for mesh in (sender, other)]
own = torch.ones(4)
received = reshard_many(items, [own, None] if dist.get_rank() == 0 else [None, own]).wait()
dist.destroy_process_group()
print([None if each is None else each.tolist() for each in received])
"""


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


def test_the_process_that_serves_the_store_may_end_as_soon_as_it_has_sent(crew: Crew, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SLOW_TO_AGREE, encoding="utf-8")

    nothing = "[None, None]\n"
    assert crew.run_script(script, 3) == [nothing, f"{[[1.0] * 4] * 2}\n", nothing]


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
