"""What processes of a small cluster do in tests, by name."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist

from meshwave.engine.errors import RunError
from meshwave.engine.runtime.calibration.collective_timing import Groups, overlap, place
from meshwave.engine.runtime.calibration.emulated_cluster import Cluster
from meshwave.engine.runtime.communication.all_to_all import start_all_to_all
from tests.engine.namespaces import namespace


def sums(cluster: Cluster, argument: Any) -> dict[str, Any]:
    """Where this process is, what all of them sum up to, and how long messages of ``size`` bytes take."""
    total = torch.tensor(float(dist.get_rank()) + argument["start"])
    dist.all_reduce(total)
    print(f"process {dist.get_rank()}", flush=True)
    return {"sum": total.item(), "namespace": namespace(), **messages(cluster, argument["size"])}


def fails(cluster: Cluster, argument: Any) -> None:
    """Process 1 fails; the others would wait for long."""
    if dist.get_rank() == 1:
        raise RunError("the second process will not")
    time.sleep(60)


def messages(cluster: Cluster, size: int) -> dict[str, float]:
    """Seconds of a message inside a node, across, and of all processes of a node to the other at once."""
    rank, half, tensor = dist.get_rank(), cluster.ranks_per_node, torch.zeros(size, dtype=torch.uint8)
    ways = {"inside": {0: 1}, "across": {0: half}, "shared": {n: n + half for n in range(half)}}
    taken = {}
    for name, pairs in ways.items():
        for _ in range(2):  # the first opens the connections
            dist.barrier()
            began = time.perf_counter()
            if rank in pairs:
                dist.send(tensor, pairs[rank])
            elif rank in pairs.values():
                dist.recv(tensor, next(source for source, to in pairs.items() if to == rank))
            dist.barrier()
            taken[name] = time.perf_counter() - began
    return taken


def overlapped(cluster: Cluster, layout: dict[str, int]) -> bool:
    """Whether an overlap brings to each rank, of each place and each of its ``mp`` group, the sum over the
    place of what it sent there."""
    ranks, mp, esp = cluster.ranks, layout["mp"], layout["esp"]
    me = dist.get_rank()
    source = (100.0 * me + torch.arange(ranks)).repeat_interleave(3)
    case = {"collective": "overlap", "groups": [list(range(ranks))], **layout}
    own = place(cluster, case, Groups(torch.device("cpu")), source, source)
    first = me // mp * mp
    expected = [
        [float(sum(100 * rank + peer for rank in range(at, at + esp))) for peer in range(first, first + mp)]
        for at in range(0, ranks, esp)
    ]
    found = overlap(own, 3 * ranks)
    return torch.equal(found, torch.tensor(expected)[None, :, :, None].expand(1, -1, -1, 3))


def exchanged(cluster: Cluster, widths: list[int]) -> list[bool]:
    """Whether rank r gets r + q rows of each width from rank q, and they are q's: uneven, and none from 0 to 0."""
    me, ranks = dist.get_rank(), range(cluster.ranks)
    group = Groups(torch.device("cpu")).mine([list(ranks)])
    counts = [me + peer for peer in ranks]
    found = []
    for width in widths:
        leaving = torch.full((sum(counts), width), float(me))
        arriving = torch.zeros(sum(counts), width)
        start_all_to_all(group, arriving, leaving, counts, counts).wait()
        expected = torch.cat([torch.full((me + peer, width), float(peer)) for peer in ranks])
        found.append(torch.equal(arriving, expected))
    return found


def waits(cluster: Cluster, argument: Any) -> None:
    print(os.getpid(), namespace(), flush=True)
    time.sleep(60)
