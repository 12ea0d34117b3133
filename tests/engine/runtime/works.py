"""What processes of a small cluster do in tests, by name; and a process that owns a cluster, to be killed.

``python works.py SHAPED`` prints ``PID NAMESPACE`` for each process of its cluster, then sleeps with them.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from engine.errors import RunError
from engine.runtime import shaped
from engine.runtime.collectives import Place, overlap
from engine.runtime.shaped import Cluster

RATES = 4e7, 1e7


def sums(cluster: Cluster, argument: Any) -> dict[str, Any]:
    """Where this process is, and what all of them sum up to."""
    total = torch.tensor(float(dist.get_rank()) + argument)
    dist.all_reduce(total)
    print(f"process {dist.get_rank()}", flush=True)
    return {"sum": total.item(), "namespace": namespace(), "parameters": str(cluster)}


def fails(cluster: Cluster, argument: Any) -> None:
    """Process 1 fails, those that wait for it hang."""
    if dist.get_rank() == 1:
        raise RunError("the second process will not")
    if argument == "abort":
        os.abort()
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
    """Whether an overlap brings to each rank, of each of its ``mp`` group and each block, the sum over the
    block of what it sent there."""
    ranks, mp, esp = cluster.ranks, layout["mp"], layout["esp"]
    me, blocks = dist.get_rank(), ranks // esp
    source = (100.0 * me + torch.arange(ranks)).repeat_interleave(3)
    gathers = [dist.new_group(list(range(first, first + mp))) for first in range(0, ranks, mp)]
    place = Place(None, ranks, source, torch.zeros(3 * ranks), blocks, gathers[me // mp], mp)
    first = me // mp * mp
    for step, found in enumerate(overlap(place, 3 * ranks)):
        expected = []
        for peer in range(first, first + mp):
            block = (peer // esp - step) % blocks
            expected.append(float(sum(100 * rank + peer for rank in range(block * esp, block * esp + esp))))
        if found.tolist() != torch.tensor(expected).repeat_interleave(3).tolist():
            return False
    return True


def waits(cluster: Cluster, argument: Any) -> None:
    print(os.getpid(), namespace(), flush=True)
    time.sleep(60)


def namespace() -> int:
    path = Path("/proc/self/ns/net")
    return path.stat().st_ino if path.exists() else 0


if __name__ == "__main__":
    rates = RATES if sys.argv[1] == "shaped" else (None, None)
    shaped.run("tests.engine.runtime.works:waits", Cluster(2, 2, *rates), say=lambda line: print(line, flush=True))
