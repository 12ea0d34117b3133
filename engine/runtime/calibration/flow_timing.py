"""Messages and collectives that start at the same time, timed until each has arrived.

Messages use the default group's connection of a pair over gloo, as those of a run do, and over NCCL a communicator
for each direction of each pair; an all-reduce has a group of its own on both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from meshwave.engine.runtime.calibration.collective_timing import Groups, Stamps, device_of, in_rounds, now, of_all
from meshwave.engine.runtime.calibration.emulated_cluster import TIMEOUT, Cluster
from meshwave.engine.runtime.device.accelerator import is_accelerator, synchronize, use_stream

ITEM_BYTES = 4
MOST_AT_ONCE = 3
"""Flows of a case that one process may wait for."""
Work = Any  # torch.distributed's handle of something that is on its way


def measure(cluster: Cluster, plan: Mapping[str, Any]) -> list[list[list[float]]] | None:
    """Return seconds ``[rounds][cases][flows]`` on rank 0, None on the others.

    Each of ``plan["cases"]`` has ``messages``, pairs of processes that send ``plan["bytes"]`` bytes, and a ``ring``
    that all-reduces ``ring_bytes`` bytes; its flows are the messages in their order, then the ring. A flow lasts from
    the moment at which the last process of the case starts until its last process has what it receives.
    """
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        cases = Cases(cluster, plan, pool)
        (mine,) = in_rounds([cases.play], plan["rounds"])
    stamps = of_all(mine)
    return None if stamps is None else cases.seconds(stamps)


class Cases:
    """The cases of a plan, with the buffers and groups that this process needs for them."""

    def __init__(self, cluster: Cluster, plan: Mapping[str, Any], pool: ThreadPoolExecutor) -> None:
        self._device, self._pool, self._me = device_of(cluster), pool, dist.get_rank()
        self._cases: Sequence[Mapping[str, Any]] = plan["cases"]
        items = plan["bytes"] // ITEM_BYTES
        self._source, *self._targets = torch.zeros(1 + MOST_AT_ONCE, items, device=self._device)
        self._ring = torch.zeros(max(case["ring_bytes"] for case in self._cases) // ITEM_BYTES, device=self._device)
        pairs = sorted({tuple(pair) for case in self._cases for pair in case["messages"]})
        self._lanes = _lanes(pairs, self._device) if cluster.gpus else {}
        self._groups = _rings(self._cases, cluster.ranks, Groups(self._device))
        self._flows = max(len(case["messages"]) for case in self._cases) + 1

    def play(self) -> Stamps:
        """Return stamps ``[cases, flows, 2]`` of one round: when this process started, and when the flow arrived here."""
        stamps = np.zeros((len(self._cases), self._flows, 2))
        for at, case in enumerate(self._cases):
            dist.barrier()
            if self._takes_part(case):
                stamps[at, :, 0] = now(self._device)
                self._play(at, stamps[at, :, 1])
        return stamps

    def _takes_part(self, case: Mapping[str, Any]) -> bool:
        return self._me in case["ring"] or any(self._me in pair for pair in case["messages"])

    def _play(self, at: int, ends: Stamps) -> None:
        """Start everything of a case that concerns this process, and note in ``ends [flows]`` when it has arrived."""
        case = self._cases[at]
        awaited = dict(self._receives(case))
        if self._me in case["ring"]:
            buffer = self._ring[: case["ring_bytes"] // ITEM_BYTES]
            awaited[len(case["messages"])] = dist.all_reduce(buffer, group=self._groups[at], async_op=True)
        sends = list(self._sends(case))
        for flow, end in zip(awaited, self._pool.map(self._finish_time, awaited.values()), strict=True):
            ends[flow] = end
        for work in sends:
            work.wait()

    def _receives(self, case: Mapping[str, Any]) -> Iterator[tuple[int, Work]]:
        for flow, (source, target) in enumerate(case["messages"]):
            if target == self._me:
                lane = self._lanes.get((source, target))
                yield flow, dist.irecv(self._targets[flow], source, group=lane, tag=flow)

    def _sends(self, case: Mapping[str, Any]) -> Iterator[Work]:
        for flow, (source, target) in enumerate(case["messages"]):
            if source == self._me:
                yield dist.isend(self._source, target, group=self._lanes.get((source, target)), tag=flow)

    def _finish_time(self, work: Work) -> float:
        """Return when ``work`` is done, by its own thread: the flows of a case may end in any order."""
        if not is_accelerator(self._device):
            work.wait()
        else:  # NCCL's wait holds back a stream, not the host
            stream = torch.Stream(self._device)
            with use_stream(stream):
                work.wait()
            stream.synchronize()
        return time.perf_counter()

    def seconds(self, stamps: Stamps) -> list[list[list[float]]]:
        """Return ``[rounds][cases][flows]`` of stamps ``[ranks, rounds, cases, flows, 2]``."""
        took = stamps[..., 1].max(axis=0) - stamps[..., 0].max(axis=0)
        return [[_case_seconds(case, row) for case, row in zip(self._cases, rows, strict=True)] for rows in took]


def _case_seconds(case: Mapping[str, Any], seconds: Stamps) -> list[float]:
    """The flows that a case has, of an array with room for those of all cases."""
    messages = len(case["messages"])
    return [float(each) for each in seconds[: messages + bool(case["ring"])]]


def _rings(cases: Sequence[Mapping[str, Any]], ranks: int, groups: Groups) -> list[Any]:
    """The group of the ring of each case; None where there is none or this process is not in it."""
    others = ([[rank] for rank in range(ranks) if rank not in case["ring"]] for case in cases)
    return [
        groups.mine([case["ring"], *alone]).handle if case["ring"] else None
        for case, alone in zip(cases, others, strict=True)
    ]


def _lanes(pairs: Sequence[tuple[int, ...]], device: torch.device) -> dict[tuple[int, ...], Any]:
    """Make a communicator for each direction of each pair, in one order for all processes, and use it once."""
    groups = {pair: dist.new_group(list(pair), timeout=TIMEOUT, backend=dist.get_backend()) for pair in pairs}
    token = torch.zeros(1, device=device)
    for (source, target), group in groups.items():
        if dist.get_rank() == source:
            dist.send(token, target, group=group)
        elif dist.get_rank() == target:
            dist.recv(token, source, group=group)
    synchronize(device)
    return groups
