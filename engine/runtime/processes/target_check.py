"""Process that checks a launch target: ``python -m meshwave.engine.runtime.processes.target_check FOLDER``.

torchrun starts one process per device. Process 0 writes ``report.json`` with the host, software and device of each
process, and the measured latency and bandwidth of links.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.machine import GpuTopology, gpu_topology, package_versions, total_memory_bytes
from meshwave.engine.run_files import write_document
from meshwave.engine.runs.recording import write_clocks
from meshwave.engine.runs.target_check import MESSAGE_BYTES
from meshwave.engine.runtime.calibration.device_timing import matrix_flops_per_s, time_copies
from meshwave.engine.runtime.communication.world import World, join_run, leave_run
from meshwave.engine.runtime.device.accelerator import device_name, device_properties, is_accelerator, synchronize
from meshwave.engine.runtime.device.clock import ClockComparison

ROUNDS = 5
PINGS = 20


def main(folder: Path) -> None:
    """Run this process's part of the check; process 0 writes the report."""
    world = join_run(folder)
    node, local = int(os.environ["GROUP_RANK"]), int(os.environ["LOCAL_RANK"])
    (folder / f"seen-{world.process}").touch()
    comparison = ClockComparison(world.process, world.size, world.backend)
    comparison.measure_offsets()
    processes = _gather_values({"process": world.process, "node": node, **_describe_process(world)})
    seen = [(folder / f"seen-{process}").exists() for process in range(world.size)]
    first = [
        next(each["process"] for each in processes if each["node"] == number)
        for number in range(_node_count(processes))
    ]
    inside = [each["process"] for each in processes if each["node"] == 0]
    topology = gpu_topology() if world.process == 0 else GpuTopology()
    report = {
        "processes": processes,
        "all_seen": _gather_values(all(seen)),
        "backend": world.backend,
        "intra_node": _measure_links(world, inside),
        "inter_node": _measure_links(world, first),
        "device": _measure_device(world) if world.process == 0 else None,
        "device_links": topology.links,
        "nics": topology.nics,
    }
    if world.process == 0:
        write_clocks(folder, comparison.clocks)
        write_document(folder / "report.json", report)
    dist.barrier()
    print(f"process {world.process} on node {node}, local rank {local}, is done", flush=True)
    leave_run()


def _gather_values(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _node_count(processes: list[dict[str, Any]]) -> int:
    return 1 + max(int(each["node"]) for each in processes)


def _describe_process(world: World) -> dict[str, Any]:
    device, properties = world.device, device_properties(world.device)
    return {
        "host": socket.gethostname(),
        "device": device_name(device),
        "identity": str(getattr(properties, "uuid", device)) if is_accelerator(device) else "",
        "memory_bytes": float(getattr(properties, "total_memory", 0) or total_memory_bytes()),
        "cores": os.cpu_count() or 1,
        "versions": package_versions(),
    }


def _measure_device(world: World) -> dict[str, float]:
    size, seconds = list(time_copies(world.device))[-1]
    precision = "bf16" if is_accelerator(world.device) else "fp32"
    return {"flops": matrix_flops_per_s(precision, world.device), "memory_bandwidth": 2 * size / seconds}


def _measure_links(world: World, members: list[int]) -> dict[str, float] | None:
    """Return latency and bandwidth between the first two members, and the bus bandwidth of an all-reduce of all."""
    group = dist.new_group(members)  # all processes must create the group
    if len(members) < 2:
        return None
    found = None
    if world.process in members:
        small, large = (torch.zeros(count, device=world.device) for count in (1, MESSAGE_BYTES // 4))
        pair = members[:2]
        ping_s = _fastest_round_seconds(lambda: _ping_process(pair, small), PINGS, small) / 2
        message_s = _fastest_round_seconds(lambda: _ping_process(pair, large), ROUNDS, large) / 2
        all_reduce_s = _fastest_round_seconds(lambda: dist.all_reduce(large, group=group), ROUNDS, large)
        found = {
            "processes": len(members),
            "latency_s": ping_s,
            "bandwidth": MESSAGE_BYTES / max(message_s - ping_s, 1e-9),
            "all_reduce_bandwidth": 2 * (len(members) - 1) / len(members) * MESSAGE_BYTES / all_reduce_s,
        }
    dist.barrier()
    return found


def _fastest_round_seconds(work: Callable[[], Any], rounds: int, tensor: Tensor) -> float:
    """Return the duration of the fastest round in seconds, after a warm-up round."""
    times = []
    for _ in range(rounds + 1):
        synchronize(tensor.device)
        began = time.perf_counter()
        work()
        synchronize(tensor.device)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def _ping_process(pair: list[int], tensor: Tensor) -> None:
    """Send a tensor between the two processes of ``pair`` and back."""
    me = dist.get_rank()
    if me == pair[0]:
        dist.send(tensor, pair[1])
        dist.recv(tensor, pair[1])
    elif me == pair[1]:
        dist.recv(tensor, pair[0])
        dist.send(tensor, pair[0])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m meshwave.engine.runtime.processes.target_check FOLDER")
    main(Path(sys.argv[1]))
