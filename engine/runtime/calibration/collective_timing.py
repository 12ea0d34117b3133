"""Timing of collectives in rounds, in every process of a cluster.

A collective is timed over all groups of one kind at once, as an expert layer calls it. Its time lasts from the last
start to the last end among the members of a group. The slowest group and the median round count. All cases and sizes
take their turn in every round, so that other load on the machine affects all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from meshwave.engine.experts import Layer, expert_schedules
from meshwave.engine.runtime.calibration.emulated_cluster import MESSAGE_TIMEOUT, ProcessCluster
from meshwave.engine.runtime.communication.all_to_all import start_all_to_all
from meshwave.engine.runtime.communication.groups import Group, all_gather, make_groups, reduce_scatter
from meshwave.engine.runtime.device.accelerator import accelerator_device, synchronize
from meshwave.engine.runtime.experts.overlap import OverlappedCombine
from meshwave.engine.runtime.experts.steps import StepRunner

WARM_UP_ROUNDS = 1
"""Number of rounds that are not counted: they open connections and touch memory."""
ITEM_BYTES = 4
TimeStamps = NDArray[np.float64]
"""Time stamps in seconds; the last dim is start and end."""


class CollectiveBuffers(NamedTuple):
    """Group and scratch buffers of a collective in this process."""

    group: Group
    source: Tensor
    target: Tensor
    overlap: OverlappedCombine | None = None


def _start_all_gather(buffers: CollectiveBuffers, items: int) -> Any:
    part = items // buffers.group.size
    return all_gather(buffers.target[:items], buffers.source[:part], group=buffers.group.handle, async_op=True)


def _start_reduce_scatter(buffers: CollectiveBuffers, items: int) -> Any:
    part = items // buffers.group.size
    return reduce_scatter(buffers.target[:part], buffers.source[:items], group=buffers.group.handle, async_op=True)


def _start_all_reduce(buffers: CollectiveBuffers, items: int) -> Any:
    return dist.all_reduce(buffers.source[:items], group=buffers.group.handle, async_op=True)


def _start_all_to_all(buffers: CollectiveBuffers, items: int) -> Any:
    size = buffers.group.size
    arriving, leaving = (buffer[:items].view(size, items // size) for buffer in (buffers.target, buffers.source))
    return start_all_to_all(buffers.group, arriving, leaving, [1] * size, [1] * size)


def _run_collective(start: Callable[[CollectiveBuffers, int], Any], buffers: CollectiveBuffers, items: int) -> None:
    start(buffers, items).wait()


def _run_overlap(buffers: CollectiveBuffers, items: int) -> Tensor:
    """Run the simultaneous all-to-all and all-gather of Parm's schedule S2 in the same way as the expert layer.

    Returns:
        ``[1, places, mp, chunk]`` of chunks for every rank, summed over the ranks of one place.
    """
    assert buffers.overlap is not None
    ranks = buffers.group.size
    return buffers.overlap.start(buffers.source[:items].view(1, ranks, 1, items // ranks), in_thread=False)()


STARTS: Mapping[str, Callable[[CollectiveBuffers, int], Any]] = {
    "all_gather": _start_all_gather,
    "reduce_scatter": _start_reduce_scatter,
    "all_reduce": _start_all_reduce,
    "all_to_all": _start_all_to_all,
}
"""Functions that start a collective over a number of float32 items: those of the input or of the output, whichever has
more. They return a handle with ``wait()``."""
COLLECTIVES: Mapping[str, Callable[[CollectiveBuffers, int], object]] = {
    **{name: partial(_run_collective, start) for name, start in STARTS.items()},
    "overlap": _run_overlap,
}
"""Functions that run a collective over a number of float32 items."""


class CollectiveTimer:
    """Timer of collectives, each at all sizes.

    A case has a ``collective`` and its ``groups`` of ranks; an overlap also has ``mp`` and ``esp``. Sizes are bytes of
    the larger of the two buffers, multiples of 4 for each rank of a group.
    """

    def __init__(
        self, cluster: ProcessCluster, cases: Sequence[Mapping[str, Any]], sizes: Sequence[int], groups: GroupCache
    ) -> None:
        self._cases, self._items = cases, [size // ITEM_BYTES for size in sizes]
        self._device = groups.device
        source, target = torch.zeros(2, max(self._items), device=groups.device)
        self._buffers = [make_buffers(cluster, case, groups, source, target) for case in cases]

    def run_round(self) -> TimeStamps:
        """Return the time stamps ``[cases, sizes, 2]`` of this process in one round."""
        stamps = np.zeros((len(self._cases), len(self._items), 2))
        for number, (case, buffers) in enumerate(zip(self._cases, self._buffers, strict=True)):
            collective = COLLECTIVES[case["collective"]]
            for which, items in enumerate(self._items):
                dist.barrier()
                start = synchronized_time_s(self._device)
                collective(buffers, items)
                stamps[number, which] = start, synchronized_time_s(self._device)
        return stamps

    def median_seconds(self, stamps: TimeStamps) -> list[list[float]]:
        """Return the median seconds ``[cases][sizes]`` of stamps ``[ranks, rounds, cases, sizes, 2]``."""
        by_case = (slowest_seconds(stamps[:, :, number], case["groups"]) for number, case in enumerate(self._cases))
        return [np.median(rounds, axis=0).tolist() for rounds in by_case]


def measure_collectives(cluster: ProcessCluster, plan: Mapping[str, Any]) -> list[list[float]] | None:
    """Return seconds ``[cases][sizes]`` on rank 0, None on the other ranks.

    ``plan`` is :attr:`.collective_plan.CollectivePlan.arguments` with the number of ``rounds``.
    """
    timer = CollectiveTimer(cluster, plan["cases"], plan["sizes"], GroupCache(process_device(cluster)))
    (own,) = run_rounds([timer.run_round], plan["rounds"])
    stamps = gather_stamps(own)
    return None if stamps is None else timer.median_seconds(stamps)


def run_rounds(measurements: Sequence[Callable[[], TimeStamps]], rounds: int) -> list[TimeStamps]:
    """Run measurements in turns. Return the stamps ``[rounds, ...]`` of each measurement without the warm-up rounds."""
    by_round: list[list[TimeStamps]] = []
    for number in range(WARM_UP_ROUNDS + rounds):
        by_round.append([measure() for measure in measurements])
        if dist.get_rank() == 0:
            is_warm_up = number < WARM_UP_ROUNDS
            print("warm-up" if is_warm_up else f"round {number - WARM_UP_ROUNDS + 1} of {rounds}", flush=True)
    return [np.stack(stamps) for stamps in zip(*by_round[WARM_UP_ROUNDS:], strict=True)]


def gather_stamps(stamps: TimeStamps) -> TimeStamps | None:
    """Return the stamps ``[ranks, ...]`` of all processes on rank 0, None on the other ranks."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, stamps)
    return np.stack(gathered) if dist.get_rank() == 0 else None


def slowest_seconds(stamps: TimeStamps, groups: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Return the seconds ``[...]`` of the slowest group, computed from stamps ``[ranks, ..., 2]``."""
    by_group = [stamps[members, ..., 1].max(axis=0) - stamps[members, ..., 0].max(axis=0) for members in groups]
    return np.asarray(np.max(by_group, axis=0))


def process_device(cluster: ProcessCluster) -> torch.device:
    """Return the torch device of this process."""
    return accelerator_device(dist.get_rank()) if cluster.uses_gpus else torch.device("cpu")


def synchronized_time_s(device: torch.device) -> float:
    """Wait for the queued work of a device, then return the time of a clock that all processes of this machine share."""
    synchronize(device)
    return time.perf_counter()


# ---- groups ----


class GroupCache:
    """Process groups, each created once; all processes request the same groups in the same order."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._own: dict[tuple[int, ...], Group] = {}
        self._made: set[tuple[int, ...]] = set()

    def own_group(self, groups: Sequence[Sequence[int]]) -> Group:
        """Return the member of ``groups`` that contains this process; together the groups contain every process."""
        members = list(map(tuple, groups))
        missing = [group for group in members if group not in self._made]
        self._own |= make_groups(missing, dist.get_rank(), dist.get_backend(), MESSAGE_TIMEOUT, self.device)
        self._made |= {*missing}
        return next(self._own[group] for group in members if dist.get_rank() in group)

    def layer_groups(self, layer: Layer) -> dict[str, Group]:
        """Return the groups of an expert layer over all processes, by kind."""
        return {kind: self.own_group(layer.groups(kind)) for kind in ("mp", "esp", "ep", "ep_esp")}


def make_buffers(
    cluster: ProcessCluster, case: Mapping[str, Any], groups: GroupCache, source: Tensor, target: Tensor
) -> CollectiveBuffers:
    """Return the group and the scratch buffers of this process for a measured collective."""
    group = groups.own_group(case["groups"])
    if case["collective"] != "overlap":
        return CollectiveBuffers(group, source, target)
    ep = cluster.ranks // case["esp"]
    layer = Layer(  # the smallest with these groups: one expert a place
        mp=case["mp"],
        ep=ep,
        esp=case["esp"],
        experts=ep,
        tokens=case["mp"],
        hidden=1,
        ffn_hidden=case["esp"],
        nodes=cluster.node_by_rank,
    )
    runner = StepRunner(layer, groups.layer_groups(layer), source.device)
    return CollectiveBuffers(group, source, target, _parm_overlap(layer, runner))


def _parm_overlap(layer: Layer, runner: StepRunner) -> OverlappedCombine:
    """Return the overlapped combine step of Parm's schedule S2."""
    forward = expert_schedules["parm-s2"]().steps(layer)
    gather = next(number for number, step in enumerate(forward) if step.hidden and step.collective)
    combine = max(number for number, step in enumerate(forward[:gather]) if step.collective == "all_to_all")
    return OverlappedCombine(forward[combine], forward[combine + 1 : gather], forward[gather], runner)
