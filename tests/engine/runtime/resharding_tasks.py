"""Tasks of processes in the tests of resharding; random transfers are the same on all of them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from math import prod
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from meshwave.engine.errors import InputError, MeshwaveError, RunError
from meshwave.engine.resharding import Box, Link, Links, Mesh, Transfer, orderings, plan_transfer, strategies
from meshwave.engine.resharding import Tensor as Shape
from meshwave.engine.runtime.resharding import GlooTransport, Resharding, reshard

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.uint8,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64,
]  # fmt: skip
SIZES = [0, 1, 2, 3, 5, 7, 8, 13, 64]
LINKS = Link(1e-5, 1e10), Link(3e-5, 1e9)


def random_transfer(seed: int, world: int) -> tuple[Transfer, torch.dtype, np.random.Generator]:
    """Return a random transfer: meshes of one to three axes over any processes, perhaps overlapping, any spec."""
    rng = np.random.default_rng(seed)
    dtype = DTYPES[seed % len(DTYPES)]
    shape = tuple(int(rng.choice(SIZES)) for _ in range(rng.integers(4)))
    per_host = int(rng.integers(1, 5))
    hosts = {rank: rank // per_host for rank in range(world)}
    ranks = rng.permutation(world)
    cut = int(rng.integers(1, world))
    pools = [ranks[:cut], ranks[cut:]] if rng.random() < 0.7 else [ranks, rng.permutation(world)]
    names = list(strategies)
    planned = plan_transfer(
        Shape(shape, dtype.itemsize),
        *(random_side(rng, pool, len(shape), hosts) for pool in pools),
        Links(*LINKS, hosts),
        strategy=names[seed // 2 % len(names)],
        ordering=list(orderings)[int(rng.integers(len(orderings)))],
        chunks=[None, 1, 4, 100][int(rng.integers(4))],
    )
    return planned, dtype, rng


def random_side(
    rng: np.random.Generator, pool: Sequence[int], dims: int, hosts: dict[int, int]
) -> tuple[Mesh, tuple[str, ...]]:
    shapes = [(a, b, c)[: 1 + k] for a in (1, 2, 3, 4, 7) for b in (1, 2, 3) for c in (1, 2) for k in range(3)]
    fitting = [shape for shape in shapes if prod(shape) <= len(pool)]
    shape = fitting[int(rng.integers(len(fitting)))]
    ranks = tuple(int(rank) for rank in pool[: prod(shape)])
    entries = [""] * dims
    for axis in rng.permutation(len(shape))[: rng.integers(len(shape) + 1) if dims else 0]:
        entries[int(rng.integers(dims))] += str(axis)
    return Mesh(shape, ranks, tuple(hosts[r] for r in ranks)), tuple(f"S{e}" if e else "R" for e in entries)


def byte_pattern(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a tensor whose bytes depend on their positions."""
    size = prod(shape) * dtype.itemsize
    places = torch.arange(size, dtype=torch.int64)
    bytes_ = (places * 167 + places // 251 * 13) % 256
    if dtype == torch.bool:
        bytes_ = (bytes_ >> 3) & 1
    return bytes_.to(torch.uint8).view(dtype).view(tuple(shape)) if size else torch.empty(tuple(shape), dtype=dtype)


def piece(whole: Tensor, box: Box) -> Tensor:
    """Return the part of a tensor inside a box."""
    return whole[tuple(slice(*side) for side in box)]


def poisoned_like(like: Tensor, strided: bool) -> Tensor:
    """Return a tensor filled with 0xFF; ``strided``: with gaps between its elements."""
    shape = [*like.shape[:-1], 2 * like.shape[-1]] if strided and like.dim() else list(like.shape)
    whole = torch.full([*shape, like.element_size()], 255, dtype=torch.uint8).view(like.dtype).squeeze(-1)
    return whole[..., ::2] if strided and like.dim() else whole


def have_equal_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal bit by bit, NaNs included."""
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(_bits(one), _bits(other))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


class CountingTransport(GlooTransport):
    """Counts bytes by process, and delays messages at random."""

    def __init__(self, rng: np.random.Generator | None = None) -> None:
        super().__init__()
        self._rng = rng
        self.sent: Counter[int] = Counter()
        self.received: Counter[int] = Counter()

    def send(self, data: Tensor, target: int, tag: int) -> Any:
        self._delay()
        self.sent[target] += data.numel()
        return super().send(data, target, tag)

    def receive(self, data: Tensor, source: int, tag: int) -> Any:
        self._delay()
        self.received[source] += data.numel()
        return super().receive(data, source, tag)

    def _delay(self) -> None:
        if self._rng is not None and self._rng.random() < 0.1:
            time.sleep(self._rng.random() * 0.002)


def random_transfers(seeds: Sequence[int]) -> list[str]:
    """Run random transfers, and return errors."""
    me = dist.get_rank()
    wrong = []
    for seed in seeds:
        planned, dtype, rng = random_transfer(seed, dist.get_world_size())
        strided, given, tag = rng.integers(2), rng.integers(2), int(rng.integers(1000))
        transport = CountingTransport(np.random.default_rng(seed * 1000 + me))
        ready = Resharding(planned, me, dtype, transport)
        whole = byte_pattern(planned.tensor.shape, dtype)
        own, needed = planned.source_boxes.get(me), planned.destination_boxes.get(me)
        local = None if own is None else piece(whole, own)  # usually not contiguous
        before = None if local is None else local.clone()
        into = None if needed is None else poisoned_like(piece(whole, needed), bool(strided))
        into = into if given else None
        shard = ready.start(local, into=into, tag=tag).wait()
        if needed is None:
            is_right = shard is None
        else:
            is_right = (
                shard is not None and have_equal_bits(shard, piece(whole, needed)) and (into is None or shard is into)
            )
        if not is_right:
            wrong.append(f"seed {seed}: {planned.plan.strategy}: the shard differs")
        if local is not None and not have_equal_bits(local, before):
            wrong.append(f"seed {seed}: the source has changed")
        counted = Counter[int](), Counter[int]()
        for move in planned.moves:
            size = move.elements * dtype.itemsize
            if move.source == me:
                counted[0][move.target] += size
            if move.target == me:
                counted[1][move.source] += size
        if counted != (transport.sent, transport.received):
            wrong.append(f"seed {seed}: bytes {transport.sent}, {transport.received} and not {counted}")
    return wrong


SUMMED = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.complex64]


def random_sums(seeds: Sequence[int]) -> list[str]:
    """Run random transfers of partial tensors, compare them with sums computed here, and return errors."""
    me = dist.get_rank()
    wrong = []
    for seed in seeds:
        planned, addends, place = random_sum(seed, dist.get_world_size())
        dtype, whole = addends[0].dtype, addends[0].clone()
        for addend in addends[1:]:
            whole += addend
        ready = Resharding(planned, me, dtype, CountingTransport(np.random.default_rng(seed * 1000 + me)))
        own, needed = planned.source_boxes.get(me), planned.destination_boxes.get(me)
        local = None if own is None else piece(addends[place[me]], own).clone()
        before = None if local is None else local.clone()
        into = poisoned_like(piece(whole, needed), bool(seed % 2)) if needed is not None and seed % 3 else None
        shard = ready.start(local, into=into, tag=seed * 50).wait()
        if (shard is None) != (needed is None) or (
            needed is not None and not have_equal_bits(_present(shard), piece(whole, needed))
        ):
            wrong.append(f"seed {seed}: {planned.plan.strategy}, {planned.source}: the sum differs")
        if local is not None and not have_equal_bits(local, _present(before)):
            wrong.append(f"seed {seed}: the source has changed")
    return wrong


def random_sum(seed: int, world: int) -> tuple[Transfer, list[Tensor], dict[int, int]]:
    """Return a random transfer of a partial tensor, its partial sums, and the index of the one that each source process holds."""
    rng = np.random.default_rng([seed, 7])
    dtype = SUMMED[seed % len(SUMMED)]
    shape = tuple(int(rng.choice(SIZES)) for _ in range(rng.integers(4)))
    per_host = int(rng.integers(1, 5))
    hosts = {rank: rank // per_host for rank in range(world)}
    ranks = rng.permutation(world)
    cut = int(rng.integers(2, world))
    pools = [ranks[:cut], ranks[cut:]] if rng.random() < 0.6 else [ranks, rng.permutation(world)]
    (mesh, spec), destination = (random_side(rng, pool, len(shape), hosts) for pool in pools)
    free = [axis for axis in range(len(mesh.shape)) if str(axis) not in "".join(spec)]
    partial = free[: int(rng.integers(1, len(free) + 1))] if free else []
    names = list(strategies)
    planned = plan_transfer(
        Shape(shape, dtype.itemsize),
        (mesh, (*spec, *([f"P{''.join(map(str, partial))}"] if partial else []))),
        destination,
        Links(*LINKS, hosts),
        strategy=names[seed % len(names)],
        ordering=list(orderings)[int(rng.integers(len(orderings)))],
        chunks=[None, 1, 4][int(rng.integers(3))],
    )

    sizes = tuple(mesh.shape[axis] for axis in partial)
    place = {}
    for number, rank in enumerate(mesh.ranks):
        at = np.unravel_index(number, mesh.shape)
        place[rank] = int(np.ravel_multi_index([at[axis] for axis in partial], sizes)) if partial else 0
    values = (np.random.default_rng([seed, n]).normal(0, 1000, shape) for n in range(prod(sizes)))
    return planned, [torch.from_numpy(np.asarray(each)).to(dtype) for each in values], place


def partial_dtensors(_: Any) -> list[str]:
    """Reshard partial DTensors to other processes and to overlapping ones, and return errors."""
    me = dist.get_rank()
    wide = init_device_mesh("cpu", (2, 2))
    addends = [torch.randn(9, 6, generator=torch.Generator().manual_seed(rank)) for rank in range(4)]
    wrong = []
    for placements, groups in [
        ([Shard(0), Partial()], [(0, 1), (2, 3)]),
        ([Partial(), Shard(1)], [(0, 2), (1, 3)]),
        ([Partial(), Partial()], [(0, 1, 2, 3)]),
    ]:
        dim = next((each.dim for each in placements if isinstance(each, Shard)), 0)
        pieces = [sum(addends[rank] for rank in group).chunk(len(groups), dim)[n] for n, group in enumerate(groups)]  # type: ignore[union-attr]
        whole = torch.cat(pieces, dim)
        local = addends[me].chunk(len(groups), dim)[[me in group for group in groups].index(True)] if me < 4 else None
        for destination in (DeviceMesh("cpu", [5, 4]), DeviceMesh("cpu", [3, 5, 0])):
            if local is None:
                cut = None
            else:
                cut = DTensor.from_local(local, wide, placements, run_check=False, shape=whole.shape, stride=(6, 1))
            moved = reshard(cut, destination=(destination, [Shard(1)]))
            if me not in destination.mesh.flatten().tolist():
                continue
            expected = distribute_tensor(whole, destination, [Shard(1)], src_data_rank=None)
            if not isinstance(moved, DTensor) or not have_equal_bits(moved.to_local(), expected.to_local()):
                wrong.append(f"{placements} to {destination}: the sum differs")
    return wrong


def grid(shape: tuple[int, ...], first: int, per_host: int = 2) -> Mesh:
    """Return a mesh of consecutive processes."""
    ranks = range(first, first + prod(shape))
    return Mesh(shape, tuple(ranks), tuple(rank // per_host for rank in ranks))


def reshard_there_and_back(strategy: str) -> list[str]:
    """Reshard four tensors concurrently to other processes and back, and return errors."""
    me = dist.get_rank()
    ends = (grid((2, 2), 0), ("S0", "R")), (grid((2, 2), 4), ("S1", "R"))
    links = Links(*LINKS, {rank: rank // 2 for rank in range(8)})
    transport = GlooTransport()
    ways = [
        plan_transfer(Shape((300, 501), 4), *pair, links, strategy=strategy, chunks=8) for pair in (ends, ends[::-1])
    ]
    out, back = (Resharding(way, me, torch.float32, transport) for way in ways)
    wrong = []
    wholes = [byte_pattern((300, 501), torch.float32).roll(shift) for shift in range(4)]
    pending = []
    for number, whole in enumerate(wholes):
        local = piece(whole, ways[0].source_boxes[me]).clone() if me < 4 else None
        pending.append(out.start(local, tag=number * out.tag_count))
    for number in reversed(range(4)):
        shard = pending[number].wait()
        if me >= 4 and not have_equal_bits(_present(shard), piece(wholes[number], ways[0].destination_boxes[me])):
            wrong.append(f"tensor {number} did not arrive")
        again = back.start(shard, tag=4 * out.tag_count + number * back.tag_count).wait()
        if me < 4 and not have_equal_bits(_present(again), piece(wholes[number], ways[0].source_boxes[me])):
            wrong.append(f"tensor {number} did not come back")
    return wrong


def _present(shard: Tensor | None) -> Tensor:
    assert shard is not None
    return shard


def dtensors(_: Any) -> list[str]:
    """Reshard DTensors to other, overlapping and the same processes, and return errors."""
    me = dist.get_rank()
    wide, other = init_device_mesh("cpu", (2, 2)), DeviceMesh("cpu", [5, 3, 2])
    whole = byte_pattern((9, 6), torch.float64)
    wrong = []
    for placements, destination in [
        ([Shard(0), Shard(0)], (other, [Shard(0)])),
        ([Replicate(), Shard(-1)], (other, [Replicate()])),
        ([Shard(1), Replicate()], (wide, [Shard(0), Shard(1)])),
    ]:
        cut = distribute_tensor(whole, wide, placements, src_data_rank=None) if me < 4 else None
        moved = reshard(cut, destination=destination)
        mesh = destination[0]
        if me in mesh.mesh.flatten().tolist():
            expected = distribute_tensor(whole, mesh, destination[1], src_data_rank=None)
            if not (isinstance(moved, DTensor) and moved.placements == expected.placements):
                wrong.append(f"{placements}: no DTensor of the destination")
            elif moved.shape != whole.shape or not have_equal_bits(moved.to_local(), expected.to_local()):
                wrong.append(f"{placements} to {destination[1]}: the shard differs")
        elif moved is not None:
            wrong.append(f"{placements}: process {me} received something")
    return wrong


ENDS: dict[str, Any] = {"source": (grid((2,), 0), ("S0",)), "destination": (grid((2,), 2), ("R",))}


def local_shards(_: Any) -> list[float]:
    """Reshard where only source processes give the shape and dtype, and return the received elements."""
    me = dist.get_rank()
    local = torch.arange(3.0) + 3 * me if me < 2 else None
    found = reshard(local, ENDS["source"] if me < 2 else None, ENDS["destination"], shape=(6,) if me == 0 else None)
    return [] if found is None else found.tolist()


def invalid_transfer(case: str) -> str:
    """Return the error that each process raises for an invalid transfer."""
    me = dist.get_rank()
    arguments: dict[str, Any] = {**ENDS, "shape": (6,), "dtype": torch.float32}
    if case == "dtype" and me == 2:
        arguments["dtype"] = torch.float64
    elif case == "shape" and me == 1:
        arguments["shape"] = (7,)
    elif case == "spec" and me == 3:
        arguments["destination"] = ENDS["destination"][0], ("S0",)
    elif case == "axis":
        arguments["source"] = ENDS["source"][0], ("S1",)
    elif case == "no shape":
        arguments["shape"] = None
    elif case == "process":
        arguments["destination"] = grid((2,), 3), ("R",)
    elif case == "partial":
        mesh = init_device_mesh("cpu", (4,))
        arguments["destination"] = mesh, [Partial()] if me == 1 else [Replicate()]
    elif case == "average":
        arguments["source"] = init_device_mesh("cpu", (4,)), [Partial("avg")]
    elif case == "strategy":
        arguments["strategy"] = "sned-recv"
    elif case == "option" and me == 0:
        arguments["chunks"] = 3
    arguments["chunks"] = arguments.get("chunks", 2)
    local = torch.zeros(3) if me < 2 else None
    if case == "shard" and me == 1:
        local = torch.zeros(4)
    try:
        reshard(local, timeout=timedelta(seconds=60), **arguments)
    except MeshwaveError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def errors_of_failing_process(how: str) -> tuple[str, float]:
    """Let process 1 of a chain sleep or exit; return the errors of the others, and after how many seconds."""
    me = dist.get_rank()
    ends = (grid((1,), 0), ("R",)), (grid((3,), 1), ("R",))
    links = Links(*LINKS, {rank: rank // 2 for rank in range(4)})
    planned = plan_transfer(Shape((100_000,), 4), *ends, links, strategy="broadcast", chunks=4)
    ready = Resharding(planned, me, torch.float32, GlooTransport(timedelta(seconds=1)))
    store: Any = dist.distributed_c10d._get_default_store()
    dist.barrier()
    store.set(f"{me} left the barrier", "")
    began = time.monotonic()
    if me == 1:
        until = "left the barrier" if how == "exits" else "gave up"
        store.wait([f"{other} {until}" for other in (0, 2, 3)])
        if how == "exits":
            os._exit(3)
        return "slept", 0.0
    outcome = "done"
    try:
        ready.start(torch.zeros(100_000) if me == 0 else None).wait()
    except RunError as error:
        outcome = str(error)
    store.set(f"{me} gave up", "")
    return outcome, time.monotonic() - began


def start_with_wrong_tensors(_: Any) -> list[str]:
    """Return the errors of starts with wrong tensors, in one process, which sends nothing."""
    mesh = Mesh((1,), (0,), (0,))
    ends = (mesh, ("R", "R")), (mesh, ("R", "R"))
    planned = plan_transfer(Shape((4, 3), 4), *ends, Links(*LINKS, {0: 0}))
    ready = Resharding(planned, 0, torch.float32, GlooTransport())
    fits = torch.zeros(4, 3)
    messages = []
    for local, into in [
        (None, None), (torch.zeros(3, 4), None), (fits.double(), None), (fits, torch.zeros(4)), (fits, fits),
    ]:  # fmt: skip
        try:
            ready.start(local, into=into)
        except InputError as error:
            messages.append(str(error))
    try:
        Resharding(planned, 0, torch.float64, GlooTransport())
    except InputError as error:
        messages.append(str(error))
    outside = Resharding(planned, 7, torch.float32, GlooTransport())
    try:
        outside.start(fits)
    except InputError as error:
        messages.append(str(error))
    shard = ready.start(fits + 1).wait()
    assert shard is not None and shard.sum() == 12 and outside.start().wait() is None
    return messages
