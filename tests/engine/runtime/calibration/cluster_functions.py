"""Functions that processes of a small cluster call in tests."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist

from meshwave.engine.errors import RunError
from meshwave.engine.runtime.calibration.collective_timing import COLLECTIVES, GroupCache, make_buffers
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster
from meshwave.engine.runtime.communication.all_to_all import start_all_to_all
from tests.engine.namespaces import namespace


def measure_messages(cluster: ProcessCluster, argument: Any) -> dict[str, Any]:
    """Return the namespace of this process, a sum over all processes, and the seconds of messages of ``size`` bytes."""
    total = torch.tensor(float(dist.get_rank()) + argument["start"])
    dist.all_reduce(total)
    print(f"process {dist.get_rank()}", flush=True)
    return {"sum": total.item(), "namespace": namespace(), **_message_seconds(cluster, argument["size"])}


def fail_in_process_1(cluster: ProcessCluster, argument: Any) -> None:
    """Fail in process 1; the others wait for a minute."""
    if dist.get_rank() == 1:
        raise RunError("process 1 refuses")
    time.sleep(60)


def _message_seconds(cluster: ProcessCluster, size: int) -> dict[str, float]:
    """Time a message inside a node, one between nodes, and one from each process of a node to the other node."""
    rank, half, tensor = dist.get_rank(), cluster.ranks_per_node, torch.zeros(size, dtype=torch.uint8)
    pairs_by_case = {"inside": {0: 1}, "across": {0: half}, "shared": {n: n + half for n in range(half)}}
    seconds = {}
    for name, pairs in pairs_by_case.items():
        for _ in range(2):  # the first opens the connections
            dist.barrier()
            start = time.perf_counter()
            if rank in pairs:
                dist.send(tensor, pairs[rank])
            elif rank in pairs.values():
                dist.recv(tensor, next(source for source, target in pairs.items() if target == rank))
            dist.barrier()
            seconds[name] = time.perf_counter() - start
    return seconds


def are_overlaps_correct(cluster: ProcessCluster, groups: list[tuple[int, int]]) -> list[bool]:
    """Return for each ``mp`` and ``esp`` whether an overlap gathers the sums over each place."""
    return [_is_overlap_correct(cluster, mp, esp) for mp, esp in groups]


def _is_overlap_correct(cluster: ProcessCluster, mp: int, esp: int) -> bool:
    """Return whether an overlap gathers the sum over each place of what it sent to each rank of the ``mp`` group."""
    ranks, rank = cluster.ranks, dist.get_rank()
    source = (100.0 * rank + torch.arange(ranks)).repeat_interleave(3)
    case = {"collective": "overlap", "groups": [list(range(ranks))], "mp": mp, "esp": esp}
    buffers = make_buffers(cluster, case, GroupCache(torch.device("cpu")), source, source)
    first = rank // mp * mp
    expected = [
        [float(sum(100 * source + peer for source in range(place, place + esp))) for peer in range(first, first + mp)]
        for place in range(0, ranks, esp)
    ]
    found = COLLECTIVES["overlap"](buffers, 3 * ranks)
    assert isinstance(found, torch.Tensor)
    return torch.equal(found, torch.tensor(expected)[None, :, :, None].expand(1, -1, -1, 3))


def are_exchanges_correct(cluster: ProcessCluster, widths: list[int]) -> list[bool]:
    """Return for each width whether rank r receives r + q rows from rank q, and none from itself if it is rank 0."""
    rank, ranks = dist.get_rank(), range(cluster.ranks)
    group = GroupCache(torch.device("cpu")).own_group([list(ranks)])
    counts = [rank + peer for peer in ranks]
    found = []
    for width in widths:
        leaving = torch.full((sum(counts), width), float(rank))
        arriving = torch.zeros(sum(counts), width)
        start_all_to_all(group, arriving, leaving, counts, counts).wait()
        expected = torch.cat([torch.full((rank + peer, width), float(peer)) for peer in ranks])
        found.append(torch.equal(arriving, expected))
    return found


def print_pid_and_wait(cluster: ProcessCluster, argument: Any) -> None:
    print(os.getpid(), namespace(), flush=True)
    time.sleep(60)
