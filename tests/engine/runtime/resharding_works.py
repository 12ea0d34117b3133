"""What processes do in the tests of resharding, by name: transfers drawn by chance, alike on all."""

from __future__ import annotations

import io
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
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
from meshwave.engine.resharding import Box, Link, Links, Mesh, Transfer, orderings, strategies, transfer
from meshwave.engine.resharding import Tensor as Shape
from meshwave.engine.runtime.resharding import GlooCarrier, Resharding, reshard

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.uint8,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64,
]  # fmt: skip
SIZES = [0, 1, 2, 3, 5, 7, 8, 13, 64]
LINKS = Link(1e-5, 1e10), Link(3e-5, 1e9)


def drawn(seed: int, world: int) -> tuple[Transfer, torch.dtype, np.random.Generator]:
    """Any transfer: meshes of one to three axes over any of the processes, apart or not, any spec and shape."""
    chance = np.random.default_rng(seed)
    dtype = DTYPES[seed % len(DTYPES)]
    shape = tuple(int(chance.choice(SIZES)) for _ in range(chance.integers(4)))
    per_host = int(chance.integers(1, 5))
    hosts = {rank: rank // per_host for rank in range(world)}
    ranks = chance.permutation(world)
    cut = int(chance.integers(1, world))
    pools = [ranks[:cut], ranks[cut:]] if chance.random() < 0.7 else [ranks, chance.permutation(world)]
    names = list(strategies)
    planned = transfer(
        Shape(shape, dtype.itemsize),
        *(_side(chance, pool, len(shape), hosts) for pool in pools),
        Links(*LINKS, hosts),
        strategy=names[seed // 2 % len(names)],
        ordering=list(orderings)[int(chance.integers(len(orderings)))],
        chunks=[None, 1, 4, 100][int(chance.integers(4))],
    )
    return planned, dtype, chance


def _side(
    chance: np.random.Generator, pool: Sequence[int], dims: int, hosts: dict[int, int]
) -> tuple[Mesh, tuple[str, ...]]:
    shapes = [(a, b, c)[: 1 + k] for a in (1, 2, 3, 4, 7) for b in (1, 2, 3) for c in (1, 2) for k in range(3)]
    fitting = [shape for shape in shapes if prod(shape) <= len(pool)]
    shape = fitting[int(chance.integers(len(fitting)))]
    ranks = tuple(int(rank) for rank in pool[: prod(shape)])
    entries = [""] * dims
    for axis in chance.permutation(len(shape))[: chance.integers(len(shape) + 1) if dims else 0]:
        entries[int(chance.integers(dims))] += str(axis)
    return Mesh(shape, ranks, tuple(hosts[r] for r in ranks)), tuple(f"S{e}" if e else "R" for e in entries)


def pattern(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of which every byte follows from its place."""
    size = prod(shape) * dtype.itemsize
    places = torch.arange(size, dtype=torch.int64)
    bytes_ = (places * 167 + places // 251 * 13) % 256
    if dtype == torch.bool:
        bytes_ = (bytes_ >> 3) & 1
    return bytes_.to(torch.uint8).view(dtype).view(tuple(shape)) if size else torch.empty(tuple(shape), dtype=dtype)


def piece(whole: Tensor, box: Box) -> Tensor:
    return whole[tuple(slice(*side) for side in box)]


def poisoned(like: Tensor, strided: bool) -> Tensor:
    """Bytes that are all 0xFF; ``strided``: with gaps between its elements."""
    shape = [*like.shape[:-1], 2 * like.shape[-1]] if strided and like.dim() else list(like.shape)
    whole = torch.full([*shape, like.element_size()], 255, dtype=torch.uint8).view(like.dtype).squeeze(-1)
    return whole[..., ::2] if strided and like.dim() else whole


def same(one: Tensor, other: Tensor) -> bool:
    """Bit by bit: NaN is what it is."""
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(_bits(one), _bits(other))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


class Counting(GlooCarrier):
    """Gloo that counts, and that is now and then late."""

    def __init__(self, chance: np.random.Generator | None = None) -> None:
        super().__init__()
        self._chance = chance
        self.sent: Counter[int] = Counter()
        self.received: Counter[int] = Counter()

    def send(self, data: Tensor, target: int, tag: int) -> Any:
        self._dawdle()
        self.sent[target] += data.numel()
        return super().send(data, target, tag)

    def receive(self, data: Tensor, source: int, tag: int) -> Any:
        self._dawdle()
        self.received[source] += data.numel()
        return super().receive(data, source, tag)

    def _dawdle(self) -> None:
        if self._chance is not None and self._chance.random() < 0.1:
            time.sleep(self._chance.random() * 0.002)


def random_transfers(seeds: Sequence[int]) -> list[str]:
    """What went wrong in transfers drawn by chance; nothing where all is well."""
    me = dist.get_rank()
    wrong = []
    for seed in seeds:
        planned, dtype, chance = drawn(seed, dist.get_world_size())
        strided, given, tag = chance.integers(2), chance.integers(2), int(chance.integers(1000))
        carrier = Counting(np.random.default_rng(seed * 1000 + me))
        there = Resharding(planned, me, dtype, carrier)
        whole = pattern(planned.tensor.shape, dtype)
        own, needed = planned.owned.get(me), planned.needed.get(me)
        local = None if own is None else piece(whole, own)  # a window of the whole: seldom contiguous
        before = None if local is None else local.clone()
        into = None if needed is None else poisoned(piece(whole, needed), bool(strided))
        into = into if given else None
        shard = there.start(local, into=into, tag=tag).wait()
        if needed is None:
            fine = shard is None
        else:
            fine = shard is not None and same(shard, piece(whole, needed)) and (into is None or shard is into)
        if not fine:
            wrong.append(f"seed {seed}: {planned.plan.strategy}: the shard differs")
        if local is not None and not same(local, before):
            wrong.append(f"seed {seed}: the source has changed")
        counted = Counter[int](), Counter[int]()
        for move in planned.moves:
            size = move.elements * dtype.itemsize
            if move.source == me:
                counted[0][move.target] += size
            if move.target == me:
                counted[1][move.source] += size
        if counted != (carrier.sent, carrier.received):
            wrong.append(f"seed {seed}: bytes {carrier.sent}, {carrier.received} and not {counted}")
    return wrong


SUMMED = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.complex64]


def random_sums(seeds: Sequence[int]) -> list[str]:
    """What went wrong in transfers of partial tensors drawn by chance, each compared with the sum that this process
    makes itself of the addends of all."""
    me = dist.get_rank()
    wrong = []
    for seed in seeds:
        planned, addends, place = drawn_sum(seed, dist.get_world_size())
        dtype, whole = addends[0].dtype, addends[0].clone()
        for addend in addends[1:]:
            whole += addend
        there = Resharding(planned, me, dtype, Counting(np.random.default_rng(seed * 1000 + me)))
        own, needed = planned.owned.get(me), planned.needed.get(me)
        local = None if own is None else piece(addends[place[me]], own).clone()
        before = None if local is None else local.clone()
        into = poisoned(piece(whole, needed), bool(seed % 2)) if needed is not None and seed % 3 else None
        shard = there.start(local, into=into, tag=seed * 50).wait()
        if (shard is None) != (needed is None) or (
            needed is not None and not same(_there(shard), piece(whole, needed))
        ):
            wrong.append(f"seed {seed}: {planned.plan.strategy}, {planned.source}: the sum differs")
        if local is not None and not same(local, _there(before)):
            wrong.append(f"seed {seed}: the source has changed")
    return wrong


def drawn_sum(seed: int, world: int) -> tuple[Transfer, list[Tensor], dict[int, int]]:
    """Any transfer of a partial tensor, its addends, and which one each process of the source holds: those that
    differ in other axes alone hold copies."""
    chance = np.random.default_rng([seed, 7])
    dtype = SUMMED[seed % len(SUMMED)]
    shape = tuple(int(chance.choice(SIZES)) for _ in range(chance.integers(4)))
    per_host = int(chance.integers(1, 5))
    hosts = {rank: rank // per_host for rank in range(world)}
    ranks = chance.permutation(world)
    cut = int(chance.integers(2, world))
    pools = [ranks[:cut], ranks[cut:]] if chance.random() < 0.6 else [ranks, chance.permutation(world)]
    (mesh, spec), destination = (_side(chance, pool, len(shape), hosts) for pool in pools)
    free = [axis for axis in range(len(mesh.shape)) if str(axis) not in "".join(spec)]
    partial = free[: int(chance.integers(1, len(free) + 1))] if free else []
    names = list(strategies)
    planned = transfer(
        Shape(shape, dtype.itemsize),
        (mesh, (*spec, *([f"P{''.join(map(str, partial))}"] if partial else []))),
        destination,
        Links(*LINKS, hosts),
        strategy=names[seed % len(names)],
        ordering=list(orderings)[int(chance.integers(len(orderings)))],
        chunks=[None, 1, 4][int(chance.integers(3))],
    )

    sizes = tuple(mesh.shape[axis] for axis in partial)
    place = {}
    for number, rank in enumerate(mesh.ranks):
        at = np.unravel_index(number, mesh.shape)
        place[rank] = int(np.ravel_multi_index([at[axis] for axis in partial], sizes)) if partial else 0
    values = (np.random.default_rng([seed, n]).normal(0, 1000, shape) for n in range(prod(sizes)))
    return planned, [torch.from_numpy(np.asarray(each)).to(dtype) for each in values], place


def partial_dtensors(_: Any) -> list[str]:
    """Gradients that tensor parallelism left unsummed go to processes apart, and to some of the same."""
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
            if not isinstance(moved, DTensor) or not same(moved.to_local(), expected.to_local()):
                wrong.append(f"{placements} to {destination}: the sum differs")
    return wrong


def grid(shape: tuple[int, ...], first: int, per_host: int = 2) -> Mesh:
    ranks = range(first, first + prod(shape))
    return Mesh(shape, tuple(ranks), tuple(rank // per_host for rank in ranks))


def there_and_back(strategy: str) -> list[str]:
    """Four tensors at once to other processes, waited for from the last to the first, and back again."""
    me = dist.get_rank()
    ends = (grid((2, 2), 0), ("S0", "R")), (grid((2, 2), 4), ("S1", "R"))
    links = Links(*LINKS, {rank: rank // 2 for rank in range(8)})
    carrier = GlooCarrier()
    ways = [transfer(Shape((300, 501), 4), *pair, links, strategy=strategy, chunks=8) for pair in (ends, ends[::-1])]
    out, back = (Resharding(way, me, torch.float32, carrier) for way in ways)
    wrong = []
    wholes = [pattern((300, 501), torch.float32).roll(shift) for shift in range(4)]
    moving = []
    for number, whole in enumerate(wholes):
        local = piece(whole, ways[0].owned[me]).clone() if me < 4 else None
        moving.append(out.start(local, tag=number * out.tags))
    for number in reversed(range(4)):
        shard = moving[number].wait()
        if me >= 4 and not same(_there(shard), piece(wholes[number], ways[0].needed[me])):
            wrong.append(f"tensor {number} did not arrive")
        again = back.start(shard, tag=4 * out.tags + number * back.tags).wait()
        if me < 4 and not same(_there(again), piece(wholes[number], ways[0].owned[me])):
            wrong.append(f"tensor {number} did not come back")
    return wrong


def _there(shard: Tensor | None) -> Tensor:
    assert shard is not None
    return shard


def dtensors(_: Any) -> list[str]:
    """From DTensors to DTensors: apart, overlapping, and on the same processes; what one knows others need not."""
    me = dist.get_rank()
    wide, other = init_device_mesh("cpu", (2, 2)), DeviceMesh("cpu", [5, 3, 2])
    whole = pattern((9, 6), torch.float64)
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
            elif moved.shape != whole.shape or not same(moved.to_local(), expected.to_local()):
                wrong.append(f"{placements} to {destination[1]}: the shard differs")
        elif moved is not None:
            wrong.append(f"{placements}: process {me} got something")
    return wrong


ENDS: dict[str, Any] = {"source": (grid((2,), 0), ("S0",)), "destination": (grid((2,), 2), ("R",))}


def local_shards(_: Any) -> list[float]:
    """Processes that hold nothing know nothing: those of the source say shape and dtype by what they have."""
    me = dist.get_rank()
    local = torch.arange(3.0) + 3 * me if me < 2 else None
    found = reshard(local, ENDS["source"] if me < 2 else None, ENDS["destination"], shape=(6,) if me == 0 else None)
    return [] if found is None else found.tolist()


def refused(case: str) -> str:
    """What each process is told where one of them is wrong."""
    me = dist.get_rank()
    asked: dict[str, Any] = {**ENDS, "shape": (6,), "dtype": torch.float32}
    if case == "dtype" and me == 2:
        asked["dtype"] = torch.float64
    elif case == "shape" and me == 1:
        asked["shape"] = (7,)
    elif case == "spec" and me == 3:
        asked["destination"] = ENDS["destination"][0], ("S0",)
    elif case == "axis":
        asked["source"] = ENDS["source"][0], ("S1",)
    elif case == "nobody":
        asked["shape"] = None
    elif case == "process":
        asked["destination"] = grid((2,), 3), ("R",)
    elif case == "partial":
        mesh = init_device_mesh("cpu", (4,))
        asked["destination"] = mesh, [Partial()] if me == 1 else [Replicate()]
    elif case == "average":
        asked["source"] = init_device_mesh("cpu", (4,)), [Partial("avg")]
    elif case == "strategy":
        asked["strategy"] = "sned-recv"
    elif case == "option" and me == 0:
        asked["chunks"] = 3
    asked["chunks"] = asked.get("chunks", 2)
    local = torch.zeros(3) if me < 2 else None
    if case == "shard" and me == 1:
        local = torch.zeros(4)
    try:
        reshard(local, timeout=timedelta(seconds=60), **asked)
    except MeshwaveError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def one_fails(how: str) -> tuple[str, float]:
    """Process 1 of a chain does not start, or goes; what the others come to, and after how many seconds."""
    me = dist.get_rank()
    ends = (grid((1,), 0), ("R",)), (grid((3,), 1), ("R",))
    links = Links(*LINKS, {rank: rank // 2 for rank in range(4)})
    planned = transfer(Shape((100_000,), 4), *ends, links, strategy="broadcast", chunks=4)
    there = Resharding(planned, me, torch.float32, GlooCarrier(timedelta(seconds=1)))
    store: Any = dist.distributed_c10d._get_default_store()
    dist.barrier()
    store.set(f"{me} left the barrier", "")
    began = time.monotonic()
    if me == 1:
        until = "left the barrier" if how == "goes" else "gave up"
        store.wait([f"{other} {until}" for other in (0, 2, 3)])
        if how == "goes":
            os._exit(3)
        return "slept", 0.0
    said = "done"
    try:
        there.start(torch.zeros(100_000) if me == 0 else None).wait()
    except RunError as error:
        said = str(error)
    store.set(f"{me} gave up", "")
    return said, time.monotonic() - began


def checks(_: Any) -> list[str]:
    """What ``start`` says of tensors that do not fit; of one process alone, so that nothing is ever sent."""
    mesh = Mesh((1,), (0,), (0,))
    ends = (mesh, ("R", "R")), (mesh, ("R", "R"))
    planned = transfer(Shape((4, 3), 4), *ends, Links(*LINKS, {0: 0}))
    there = Resharding(planned, 0, torch.float32, GlooCarrier())
    fits = torch.zeros(4, 3)
    said = []
    for local, into in [
        (None, None), (torch.zeros(3, 4), None), (fits.double(), None), (fits, torch.zeros(4)), (fits, fits),
    ]:  # fmt: skip
        try:
            there.start(local, into=into)
        except InputError as error:
            said.append(str(error))
    try:
        Resharding(planned, 0, torch.float64, GlooCarrier())
    except InputError as error:
        said.append(str(error))
    outside = Resharding(planned, 7, torch.float32, GlooCarrier())
    try:
        outside.start(fits)
    except InputError as error:
        said.append(str(error))
    shard = there.start(fits + 1).wait()
    assert shard is not None and shard.sum() == 12 and outside.start().wait() is None
    return said


def documented(told: tuple[list[str], int]) -> tuple[str, list[Any]]:
    """Run the examples of the documentation: what the script printed, and the shards of the other two."""
    (script, layouts, partial, again, many), port = told
    me = dist.get_rank()
    whole = torch.arange(48.0).view(8, 6)
    names: dict[str, Any] = {"reshard": reshard, "local": None, "weight": torch.zeros(8, 3) if me > 3 else None}
    if me < 4:  # of four quarters by S10, that of (row, column) is the 2 * column + row-th
        names["local"] = whole[4 * (me % 2) + 2 * (me // 2) :][:2].clone()
        names["addend"] = (me % 2 + 1) * 10 * whole[4 * (me // 2) :][:4]
        names["bias"] = (me % 2 + 1) * 10 * whole[0, 3 * (me // 2) :][:3]
    names |= {"addend": names.get("addend"), "bias": names.get("bias"), "torch": torch}
    exec(layouts, names)
    exec(partial, names)
    exec(again, names)
    shards = [None if shard is None else shard.tolist() for shard in (names["shard"], names["weight"])]
    exec(many, names)
    for name in ("summed", "weight", "bias"):
        shards.append(None if names[name] is None else names[name].tolist())
    dist.destroy_process_group()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    said = io.StringIO()
    with redirect_stdout(said):
        exec(script, {})
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # the script has left its own
    return said.getvalue(), shards
