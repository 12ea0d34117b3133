"""How long messages take between two processes: there and back over the runtime's own communicator, half of it one way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from meshwave.engine.document import parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import backward, forward
from meshwave.engine.runtime.calibration.collective_timing import device_of, now
from meshwave.engine.runtime.calibration.emulated_cluster import Cluster
from meshwave.engine.runtime.communication.communicator import Communicator, MessageFormat
from meshwave.engine.runtime.communication.process_layout import MeshShape, ProcessLayout
from meshwave.engine.runtime.communication.world import World

WARM_UP = 3  # trips that do not count
TRIPS = 5
"""A size and round."""
ITEM_BYTES = 4


def measure(cluster: Cluster, plan: Mapping[str, Any]) -> list[list[float]] | None:
    """Seconds of a message one way, of each of ``plan["pairs"]`` of processes for each of ``plan["sizes"]``, in bytes.

    Pairs and sizes take turns in ``plan["rounds"]`` rounds, of which the median counts; rank 0 knows them.
    """
    pairs, sizes = [tuple(pair) for pair in plan["pairs"]], plan["sizes"]
    layout = layout_of(cluster.ranks)
    world = World(dist.get_rank(), cluster.ranks, device_of(cluster), dist.get_backend(), "")
    communicators = [
        world.communicator(layout, MessageFormat((1, 1, size // ITEM_BYTES), torch.float32), []) for size in sizes
    ]
    found: list[list[list[float]]] = [[[] for _ in sizes] for _ in pairs]
    for number in range(plan["rounds"]):
        for at, pair in enumerate(pairs):
            for which, communicator in enumerate(communicators):
                found[at][which] += _trips(communicator, pair, sizes[which] // ITEM_BYTES, world.device)
        if world.process == 0:
            print(f"share {(number + 1) / plan['rounds']:.3f} links, round {number + 1}", flush=True)
    told: list[Any] = [None] * cluster.ranks
    dist.all_gather_object(told, found)
    if world.process:
        return None
    return [[median(told[pair[0]][at][which]) / 2 for which in range(len(sizes))] for at, pair in enumerate(pairs)]


def _trips(communicator: Communicator, pair: Sequence[int], items: int, device: torch.device) -> list[float]:
    """Seconds there and back, at the first of the two; what comes is asked for before it is sent."""
    dist.barrier()
    first, second = pair
    if dist.get_rank() not in pair:
        return []
    there, back = forward(first, 0), backward(second, 0)
    tensor = torch.zeros(1, 1, items, device=device)
    seconds = []
    for _ in range(WARM_UP + TRIPS):
        if dist.get_rank() == first:
            coming = communicator.receiver(back, second)()
            began = now(device)
            communicator.sender(there, second)(tensor)
            coming.wait()
            seconds.append(now(device) - began)
        else:
            communicator.receiver(there, first)().wait()
            communicator.sender(back, first)(tensor)
        communicator.flush()
    return seconds[WARM_UP:]


def layout_of(ranks: int) -> ProcessLayout:
    """Of a pipeline with a process a rank: what the communicator knows of who sends to whom."""
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
