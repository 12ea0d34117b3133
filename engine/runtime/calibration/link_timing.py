"""Timing of messages between two processes: half of a round trip over the runtime's own communicator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from meshwave.engine.document import parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import backward, forward
from meshwave.engine.runtime.calibration.collective_timing import process_device, synchronized_time_s
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster
from meshwave.engine.runtime.communication.communicator import Communicator, MessageFormat
from meshwave.engine.runtime.communication.process_layout import MeshShape, ProcessLayout
from meshwave.engine.runtime.communication.world import World

WARM_UP_TRIPS, TRIPS = 3, 5
"""Round trips for each size and round: first those that do not count."""
ITEM_BYTES = 4


def measure_links(cluster: ProcessCluster, plan: Mapping[str, Any]) -> list[list[float]] | None:
    """Return the one-way time of a message in seconds, ``[pairs][sizes]``, on rank 0; None on the other ranks.

    ``plan`` has ``pairs`` of processes, ``sizes`` in bytes and the number of ``rounds``. Pairs and sizes take turns in
    every round; the median over all rounds counts.
    """
    pairs, sizes = [tuple(pair) for pair in plan["pairs"]], plan["sizes"]
    layout = pipeline_layout(cluster.ranks)
    world = World(dist.get_rank(), cluster.ranks, process_device(cluster), dist.get_backend(), "")
    communicators = [
        world.make_communicator(layout, MessageFormat((1, 1, size // ITEM_BYTES), torch.float32), []) for size in sizes
    ]
    found: list[list[list[float]]] = [[[] for _ in sizes] for _ in pairs]
    for number in range(plan["rounds"]):
        for index, pair in enumerate(pairs):
            for which, communicator in enumerate(communicators):
                found[index][which] += _time_round_trips(communicator, pair, sizes[which] // ITEM_BYTES, world.device)
        if world.process == 0:
            print(f"share {(number + 1) / plan['rounds']:.3f} links, round {number + 1}", flush=True)
    gathered: list[Any] = [None] * cluster.ranks
    dist.all_gather_object(gathered, found)
    if world.process:
        return None
    return [
        [median(gathered[pair[0]][index][which]) / 2 for which in range(len(sizes))] for index, pair in enumerate(pairs)
    ]


def _time_round_trips(communicator: Communicator, pair: Sequence[int], items: int, device: torch.device) -> list[float]:
    """Time round trips between two processes, and return the times in seconds on the first; other processes return [].

    The first process posts its receive before it sends.
    """
    dist.barrier()
    first, second = pair
    if dist.get_rank() not in pair:
        return []
    there, back = forward(first, 0), backward(second, 0)
    tensor = torch.zeros(1, 1, items, device=device)
    seconds = []
    for _ in range(WARM_UP_TRIPS + TRIPS):
        if dist.get_rank() == first:
            coming = communicator.receive_function(back, second)()
            start = synchronized_time_s(device)
            communicator.send_function(there, second)(tensor)
            coming.wait()
            seconds.append(synchronized_time_s(device) - start)
        else:
            communicator.receive_function(there, first)().wait()
            communicator.send_function(back, first)(tensor)
        communicator.flush()
    return seconds[WARM_UP_TRIPS:]


def pipeline_layout(ranks: int) -> ProcessLayout:
    """Return the layout of a pipeline with one process per rank."""
    link = {"latency_s": 0.0, "bandwidth": 1e9}
    device = {"peak_flops": 1e12, "memory_bytes": 1e12, "memory_bandwidth": 1e11}
    meshes = [{"name": f"m{rank}", "devices": [rank]} for rank in range(ranks)]
    design = {
        "format": "meshwave/1",
        "name": "links",
        "cluster": {"nodes": 1, "devices_per_node": ranks, "device": device, "intra_node": link, "inter_node": link},
        "model": {"kind": "gpt", "layers": ranks, "hidden": 1, "heads": 1, "sequence": 1, "vocab": 256},
        "meshes": meshes,
        "pipeline": {"schedule": "gpipe", "microbatches": 1},
    }
    return ProcessLayout(lower(parse_design(design)), tuple(MeshShape() for _ in meshes))
