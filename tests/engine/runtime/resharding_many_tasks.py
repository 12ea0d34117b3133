"""Tasks of processes in the tests of resharding several tensors by one plan."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from meshwave.engine.errors import MeshwaveError
from meshwave.engine.resharding import Mesh, orderings, rank_boxes, strategies
from meshwave.engine.runtime.resharding import PendingReshardList, ReshardItem, prepare_many, reshard_many
from tests.engine.runtime.resharding_tasks import (
    DTYPES,
    SIZES,
    byte_pattern,
    grid,
    have_equal_bits,
    piece,
    poisoned_like,
    random_side,
)

SECONDS = timedelta(seconds=60)


def expected_shard(item: ReshardItem, whole: Tensor, end: str) -> Tensor | None:
    """Return this process's shard at the source or the destination of a tensor, or None."""
    mesh, spec = getattr(item, end)
    owned = dict(zip(mesh.ranks, rank_boxes(mesh, spec, tuple(item.shape)), strict=True))
    me = dist.get_rank()
    return piece(whole, owned[me]) if me in owned else None


def random_items(seed: int, members: Sequence[int]) -> tuple[list[ReshardItem], list[Tensor], dict[str, Any]]:
    """Return random items among these processes, the whole tensors, and random options of a transfer."""
    rng = np.random.default_rng([seed, 3])
    hosts = {rank: rank // 2 for rank in members}
    cut = int(rng.integers(1, len(members)))
    ranks = rng.permutation(members)
    items, wholes = [], []
    for number in range(int(rng.integers(1, 7))):
        shape = tuple(int(rng.choice(SIZES)) for _ in range(rng.integers(4)))
        dtype = DTYPES[int(rng.integers(len(DTYPES)))]
        source, destination = (random_side(rng, pool, len(shape), hosts) for pool in (ranks[:cut], ranks[cut:]))
        items.append(ReshardItem(shape, dtype, source, destination, f"w{number}"))
        wholes.append(byte_pattern(shape, dtype))
    options = {
        "strategy": [None, *strategies][seed % (len(strategies) + 1)],
        "ordering": list(orderings)[seed % len(orderings)],
        "chunks": [None, 3][seed % 2],
        "timeout": SECONDS,
    }
    return items, wholes, options


def concurrent_transfers(seed: int) -> list[str]:
    """Start three transfers of overlapping processes, wait for them from the last to the first, and return errors.

    Process 7 takes part in none and calls nothing.
    """
    me = dist.get_rank()
    plans = [
        random_items(seed * 3 + n, members) for n, members in enumerate(([0, 1, 2, 3, 4], [2, 3, 4, 5, 6], [4, 0, 6]))
    ]
    if me == 7:
        return []
    pending: list[tuple[int, PendingReshardList, list[Tensor | None]]] = []
    for number, (items, wholes, options) in enumerate(plans):
        mine = {rank for item in items for mesh, _ in (item.source, item.destination) for rank in mesh.ranks}
        if me not in mine and seed % 2:
            continue  # a process outside the meshes may call it or not
        locals_ = [expected_shard(item, whole, "source") for item, whole in zip(items, wholes, strict=True)]
        shards = [expected_shard(item, whole, "destination") for item, whole in zip(items, wholes, strict=True)]
        intos = [None if each is None or n % 2 else poisoned_like(each, bool(n % 3)) for n, each in enumerate(shards)]
        pending.append((number, reshard_many(items, locals_, into=intos, **options), intos))
    wrong = []
    for number, transfer, intos in reversed(pending):
        items, wholes, options = plans[number]
        for place, shard in enumerate(transfer.wait()):
            expected = expected_shard(items[place], wholes[place], "destination")
            is_right = shard is None if expected is None else shard is not None and have_equal_bits(shard, expected)
            if not is_right or (intos[place] is not None and shard is not intos[place]):
                wrong.append(f"seed {seed}, plan {number}, {items[place]}, {options['strategy']}: the shard differs")
    return wrong


LAYERS = 3
TRAINERS, SERVERS = (grid((2, 2), 0), grid((3,), 5))


def weights() -> tuple[list[ReshardItem], dict[str, Tensor]]:
    """Return the weights of a small model, from trainers to servers; process 4 of eight is neither."""
    items, wholes = [], {}
    for layer in range(LAYERS):
        for number, (name, shape, spec, served) in enumerate(
            (
                ("up", (16, 6), ("S01", "R"), ("R", "S0")),
                ("down", (6, 16), ("S1", "S0"), ("S0", "R")),
                ("norm", (6,), ("R",), ("R",)),
            )
        ):
            items.append(ReshardItem(shape, torch.float32, (TRAINERS, spec), (SERVERS, served), f"{layer}.{name}"))
            wholes[items[-1].name] = byte_pattern(shape, torch.int32).float() * (layer + 1) + number
    return items, wholes


def start_six_times(_: Any) -> list[str]:
    """Start a prepared transfer six times with different values before the first wait, and return errors."""
    if dist.get_rank() == 4:
        return []
    items, wholes = weights()
    ready = prepare_many(items, timeout=SECONDS)
    assert ready is not None
    transfers = []
    for step in range(6):
        locals_ = {
            item.name: local + step
            for item in items
            if (local := expected_shard(item, wholes[item.name], "source")) is not None
        }
        transfers.append(ready.start(locals_))
    wrong = []
    for step, each in enumerate(transfers):
        for item, shard in zip(items, each.wait(), strict=True):
            expected = expected_shard(item, wholes[item.name] + step, "destination")
            if (shard is None) != (expected is None) or (
                expected is not None and shard is not None and not have_equal_bits(shard, expected)
            ):
                wrong.append(f"step {step}: {item.name} differs")
    return wrong


def reshard_dtensor_and_addends(_: Any) -> list[str]:
    """Reshard a DTensor between DeviceMeshes and partial sums of all trainers, and return errors."""
    me = dist.get_rank()
    trainers, servers = DeviceMesh("cpu", [[0, 1], [2, 3]]), DeviceMesh("cpu", [5, 4])
    whole = byte_pattern((10, 6), torch.float64)
    items = [
        ReshardItem((10, 6), torch.float64, (trainers, [Shard(0), Shard(1)]), (servers, [Shard(0)]), "weight"),
        ReshardItem((4,), torch.float32, (grid((2, 2), 0), ("S0", "P1")), (grid((2,), 4), ("R",)), "bias"),
    ]
    tensors: list[Tensor | None] = [None, None]
    if me < 4:
        cut = distribute_tensor(whole, trainers, [Shard(0), Shard(1)], src_data_rank=None)
        tensors = [cut, torch.full((2,), 10.0 ** (me % 2)) * (1 + me // 2)]
    weight, bias = reshard_many(items, tensors, timeout=SECONDS, hosts=[0, 0, 1, 1, 2, 2]).wait()
    if me < 4:
        return [] if weight is None and bias is None else [f"process {me} received something"]
    expected = distribute_tensor(whole, servers, [Shard(0)], src_data_rank=None).to_local()
    assert weight is not None and bias is not None
    return [] if have_equal_bits(weight, expected) and bias.tolist() == [11, 11, 22, 22] else [f"{weight}, {bias}"]


def invalid_transfer(case: str) -> str:
    """Return the error that each process raises for an invalid transfer; process 4 calls nothing."""
    me = dist.get_rank()
    if me == 4 or (case == "absent" and me == 6):
        time.sleep(8 if case == "absent" else 0)  # a process that ends takes the store along that others wait for
        return "not called"
    items, wholes = weights()
    options: dict[str, Any] = {"timeout": timedelta(seconds=2 if case == "absent" else 60)}
    if case == "tensor" and me == 2:
        items[1] = ReshardItem((6, 16), torch.float32, items[1].source, (SERVERS, ("R", "R")), items[1].name)
    elif case == "item count" and me == 6:
        items = items[:-1]
    elif case == "spec":
        items[4] = ReshardItem((6, 16), torch.float32, (TRAINERS, ("S1", "S1")), (SERVERS, ("R", "R")), "1.down")
    elif case == "partial destination":
        items[4] = ReshardItem((6, 16), torch.float32, items[4].source, (SERVERS, ("R", "R", "P0")), "1.down")
    elif case == "option":
        options["chunks"] = 7 if me == 1 else 2
    elif case == "two hosts":
        mesh = Mesh((2, 2), (0, 1, 2, 3), (0, 0, 0, 0))
        items[0] = ReshardItem((16, 6), torch.float32, (mesh, ("S01", "R")), items[0].destination, "0.up")
    elif case == "bool":
        items = [ReshardItem((4,), torch.bool, (TRAINERS, ("R", "P0")), (SERVERS, ("R",)), "mask")]
    given: Any = []
    if case != "spec":
        given = [expected_shard(item, wholes.get(item.name, torch.zeros(item.shape)), "source") for item in items]
    if case == "shard" and me == 0:
        given[0] = torch.zeros(3)
    elif case == "name":
        given = {"0.upp": torch.zeros(3)}
    elif case == "count":
        given = given[1:]
    try:
        ready = prepare_many(items, **options)
        assert ready is not None
        if case == "shard" and me != 0:
            return "not started"
        ready.start(given).wait()
    except MeshwaveError as error:
        time.sleep(4 if case == "absent" else 0)
        return f"{type(error).__name__}: {error}"
    return "done"
