"""Timing of messages and collectives that start at the same time.

Over gloo, a message uses the default group's connection between two processes, as in a run. Over NCCL it uses a
communicator for each direction of each pair. An all-reduce has a process group of its own on both backends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from meshwave.engine.runtime.calibration.collective_timing import (
    GroupCache,
    TimeStamps,
    gather_stamps,
    process_device,
    run_rounds,
    synchronized_time_s,
)
from meshwave.engine.runtime.calibration.emulated_cluster import MESSAGE_TIMEOUT, ProcessCluster
from meshwave.engine.runtime.device.accelerator import is_accelerator, synchronize, use_stream

ITEM_BYTES = 4
MAX_AWAITED_FLOWS = 3
"""Flows of a case that one process may wait for."""
Work = Any  # torch.distributed's handle of something that is on its way


def measure_flows(cluster: ProcessCluster, plan: Mapping[str, Any]) -> list[list[list[float]]] | None:
    """Return seconds ``[rounds][cases][flows]`` on rank 0, None on the other ranks.

    Each case in ``plan["cases"]`` has ``messages``, pairs of processes that send ``plan["bytes"]`` bytes, and a
    ``ring`` that all-reduces ``ring_bytes`` bytes. The flows of a case are its messages in order, then its ring. The
    time of a flow lasts from the start of the last process of the case until the last process has received its data.
    """
    with ThreadPoolExecutor(MAX_AWAITED_FLOWS) as pool:
        cases = FlowCases(cluster, plan, pool)
        (own,) = run_rounds([cases.run_round], plan["rounds"])
    stamps = gather_stamps(own)
    return None if stamps is None else cases.flow_seconds(stamps)


class FlowCases:
    """Cases of a measurement plan, with the buffers and groups that this process needs for them."""

    def __init__(self, cluster: ProcessCluster, plan: Mapping[str, Any], pool: ThreadPoolExecutor) -> None:
        self._device, self._pool, self._rank = process_device(cluster), pool, dist.get_rank()
        self._cases: Sequence[Mapping[str, Any]] = plan["cases"]
        items = plan["bytes"] // ITEM_BYTES
        self._source, *self._targets = torch.zeros(1 + MAX_AWAITED_FLOWS, items, device=self._device)
        self._ring = torch.zeros(max(case["ring_bytes"] for case in self._cases) // ITEM_BYTES, device=self._device)
        pairs = sorted({tuple(pair) for case in self._cases for pair in case["messages"]})
        self._lanes = _make_communicators(pairs, self._device) if cluster.uses_gpus else {}
        self._groups = _ring_groups(self._cases, cluster.ranks, GroupCache(self._device))
        self._flows = max(len(case["messages"]) for case in self._cases) + 1

    def run_round(self) -> TimeStamps:
        """Return stamps ``[cases, flows, 2]`` of one round: the start of this process, and the arrival of each flow."""
        stamps = np.zeros((len(self._cases), self._flows, 2))
        for number, case in enumerate(self._cases):
            dist.barrier()
            if self._takes_part(case):
                stamps[number, :, 0] = synchronized_time_s(self._device)
                self._run_case(number, stamps[number, :, 1])
        return stamps

    def _takes_part(self, case: Mapping[str, Any]) -> bool:
        return self._rank in case["ring"] or any(self._rank in pair for pair in case["messages"])

    def _run_case(self, number: int, ends: TimeStamps) -> None:
        """Start all flows of a case on this process, and write their arrival times to ``ends [flows]``."""
        case = self._cases[number]
        awaited = dict(self._start_receives(case))
        if self._rank in case["ring"]:
            buffer = self._ring[: case["ring_bytes"] // ITEM_BYTES]
            awaited[len(case["messages"])] = dist.all_reduce(buffer, group=self._groups[number], async_op=True)
        sends = list(self._start_sends(case))
        for flow, end in zip(awaited, self._pool.map(self._finish_time, awaited.values()), strict=True):
            ends[flow] = end
        for work in sends:
            work.wait()

    def _start_receives(self, case: Mapping[str, Any]) -> Iterator[tuple[int, Work]]:
        for flow, (source, target) in enumerate(case["messages"]):
            if target == self._rank:
                lane = self._lanes.get((source, target))
                yield flow, dist.irecv(self._targets[flow], source, group=lane, tag=flow)

    def _start_sends(self, case: Mapping[str, Any]) -> Iterator[Work]:
        for flow, (source, target) in enumerate(case["messages"]):
            if source == self._rank:
                yield dist.isend(self._source, target, group=self._lanes.get((source, target)), tag=flow)

    def _finish_time(self, work: Work) -> float:
        """Wait for ``work`` in a thread of its own, since flows may end in any order, and return the time of its end."""
        if not is_accelerator(self._device):
            work.wait()
        else:  # NCCL's wait blocks a stream, not the host
            stream = torch.Stream(self._device)
            with use_stream(stream):
                work.wait()
            stream.synchronize()
        return time.perf_counter()

    def flow_seconds(self, stamps: TimeStamps) -> list[list[list[float]]]:
        """Return the seconds ``[rounds][cases][flows]`` computed from stamps ``[ranks, rounds, cases, flows, 2]``."""
        seconds = stamps[..., 1].max(axis=0) - stamps[..., 0].max(axis=0)
        return [[_case_seconds(case, row) for case, row in zip(self._cases, rows, strict=True)] for rows in seconds]


def _case_seconds(case: Mapping[str, Any], seconds: TimeStamps) -> list[float]:
    """Return the times of the flows of a case; the given array is padded to the largest number of flows of a case."""
    messages = len(case["messages"])
    return [float(each) for each in seconds[: messages + bool(case["ring"])]]


def _ring_groups(cases: Sequence[Mapping[str, Any]], ranks: int, groups: GroupCache) -> list[Any]:
    """Return the ring group of each case; None if the case has no ring or this process is not a member."""
    others = ([[rank] for rank in range(ranks) if rank not in case["ring"]] for case in cases)
    return [
        groups.own_group([case["ring"], *alone]).handle if case["ring"] else None
        for case, alone in zip(cases, others, strict=True)
    ]


def _make_communicators(pairs: Sequence[tuple[int, ...]], device: torch.device) -> dict[tuple[int, ...], Any]:
    """Create and connect a communicator for each direction of each pair, in the same order in all processes."""
    groups = {pair: dist.new_group(list(pair), timeout=MESSAGE_TIMEOUT, backend=dist.get_backend()) for pair in pairs}
    token = torch.zeros(1, device=device)
    for (source, target), group in groups.items():
        if dist.get_rank() == source:
            dist.send(token, target, group=group)
        elif dist.get_rank() == target:
            dist.recv(token, source, group=group)
    synchronize(device)
    return groups
