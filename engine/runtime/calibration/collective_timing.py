"""How long collectives take on the links that are here: played in turns, in every process of a cluster.

A collective is timed over all groups of its kind at once, as a layer calls it, from the moment at
which the last member of a group comes to the moment at which its last member leaves; of several
groups the slowest counts, of several rounds the median. All cases and sizes take their turn in
every round, so that whatever else the machine does meets all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from meshwave.engine.experts import Layer, expert_schedules
from meshwave.engine.runtime.calibration.emulated_cluster import TIMEOUT, Cluster
from meshwave.engine.runtime.communication.all_to_all import start_all_to_all
from meshwave.engine.runtime.communication.groups import Group, make_groups
from meshwave.engine.runtime.device.accelerator import accelerator_device, synchronize
from meshwave.engine.runtime.experts.overlap import OverlappedCombine
from meshwave.engine.runtime.experts.steps import StepRunner

WARM_UP = 1  # rounds that do not count: they open connections and touch memory
ITEM_BYTES = 4
Stamps = NDArray[np.float64]
"""Seconds, the last dim from begin to end."""


class Place(NamedTuple):
    """What a collective of this process needs: its group, and two buffers to use as it likes."""

    group: Group
    source: Tensor
    target: Tensor
    overlap: OverlappedCombine | None = None


def all_gather(place: Place, items: int) -> None:
    part = items // place.group.size
    dist.all_gather_into_tensor(place.target[:items], place.source[:part], group=place.group.handle)


def reduce_scatter(place: Place, items: int) -> None:
    part = items // place.group.size
    dist.reduce_scatter_tensor(place.target[:part], place.source[:items], group=place.group.handle)


def all_reduce(place: Place, items: int) -> None:
    dist.all_reduce(place.source[:items], group=place.group.handle)


def all_to_all(place: Place, items: int) -> None:
    size = place.group.size
    arriving, leaving = (buffer[:items].view(size, items // size) for buffer in (place.target, place.source))
    start_all_to_all(place.group, arriving, leaving, [1] * size, [1] * size).wait()


def overlap(place: Place, items: int) -> Tensor:
    """Parm's simultaneous all-to-all and all-gather, as the expert layer does it: ``[1, places, mp, chunk]``
    of chunks for every rank, of which those from one place are summed."""
    assert place.overlap is not None
    ranks = place.group.size
    return place.overlap.start(place.source[:items].view(1, ranks, 1, items // ranks), in_thread=False)()


COLLECTIVES: Mapping[str, Callable[[Place, int], object]] = {
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_reduce": all_reduce,
    "all_to_all": all_to_all,
    "overlap": overlap,
}
"""Each over ``items`` floats: what goes in, or all that comes out, whichever is more."""


class Collectives:
    """Cases to be played, each at all sizes.

    A case has a ``collective`` and ``groups``, the ranks of each; an overlap also ``mp`` and ``esp``.
    Sizes are bytes of the larger of the two buffers, multiples of 4 for each rank of a group.
    """

    def __init__(
        self, cluster: Cluster, cases: Sequence[Mapping[str, Any]], sizes: Sequence[int], groups: Groups
    ) -> None:
        self._cases, self._items = cases, [size // ITEM_BYTES for size in sizes]
        self._device = groups.device
        source, target = torch.zeros(2, max(self._items), device=groups.device)
        self._places = [place(cluster, case, groups, source, target) for case in cases]

    def play(self) -> Stamps:
        """[cases, sizes, 2] a round."""
        stamps = np.zeros((len(self._cases), len(self._items), 2))
        for at, (case, own) in enumerate(zip(self._cases, self._places, strict=True)):
            collective = COLLECTIVES[case["collective"]]
            for which, count in enumerate(self._items):
                dist.barrier()
                began = now(self._device)
                collective(own, count)
                stamps[at, which] = began, now(self._device)
        return stamps

    def seconds(self, stamps: Stamps) -> list[list[float]]:
        """[cases][sizes] the medians of stamps [ranks, rounds, cases, sizes, 2]."""
        of_cases = (took(stamps[:, :, at], case["groups"]) for at, case in enumerate(self._cases))
        return [np.median(rounds, axis=0).tolist() for rounds in of_cases]


def measure(cluster: Cluster, plan: Mapping[str, Any]) -> list[list[float]] | None:
    """Seconds of each of ``plan["cases"]`` for each of ``plan["sizes"]``; rank 0 knows them.
    ``plan["rounds"]`` count."""
    collectives = Collectives(cluster, plan["cases"], plan["sizes"], Groups(device_of(cluster)))
    (mine,) = in_rounds([collectives.play], plan["rounds"])
    stamps = of_all(mine)
    return None if stamps is None else collectives.seconds(stamps)


def in_rounds(plays: Sequence[Callable[[], Stamps]], rounds: int) -> list[Stamps]:
    """[rounds, ...] what each of ``plays`` stamps, in turns, in the rounds that count."""
    found: list[list[Stamps]] = []
    for number in range(WARM_UP + rounds):
        found.append([play() for play in plays])
        if dist.get_rank() == 0:
            print("warm" if number < WARM_UP else f"round {number - WARM_UP + 1} of {rounds}", flush=True)
    return [np.stack(stamps) for stamps in zip(*found[WARM_UP:], strict=True)]


def of_all(stamps: Stamps) -> Stamps | None:
    """[ranks, ...] the stamps of all processes, on rank 0."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, stamps)
    return np.stack(found) if dist.get_rank() == 0 else None


def took(stamps: Stamps, groups: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """[...] seconds of stamps [ranks, ..., begin and end]: the slowest group's."""
    of_groups = [stamps[members, ..., 1].max(axis=0) - stamps[members, ..., 0].max(axis=0) for members in groups]
    return np.asarray(np.max(of_groups, axis=0))


def device_of(cluster: Cluster) -> torch.device:
    """What this process computes on."""
    return accelerator_device(dist.get_rank()) if cluster.gpus else torch.device("cpu")


def now(device: torch.device) -> float:
    """Seconds by a clock that all processes of this machine share, when what was begun is done."""
    synchronize(device)
    return time.perf_counter()


# ---- groups ----


class Groups:
    """Groups of processes, each made once: all processes ask for the same in the same order."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._own: dict[tuple[int, ...], Group] = {}
        self._made: set[tuple[int, ...]] = set()

    def mine(self, all_of_a_kind: Sequence[Sequence[int]]) -> Group:
        """That of this process."""
        members = list(map(tuple, all_of_a_kind))
        lacking = [group for group in members if group not in self._made]
        self._own |= make_groups(lacking, dist.get_rank(), dist.get_backend(), TIMEOUT, self.device)
        self._made |= {*lacking}
        return next(self._own[group] for group in members if dist.get_rank() in group)

    def of(self, layer: Layer) -> dict[str, Group]:
        """Those of an expert layer over all processes, by their kind."""
        return {kind: self.mine(layer.groups(kind)) for kind in ("mp", "esp", "ep", "ep_esp")}


def place(cluster: Cluster, case: Mapping[str, Any], groups: Groups, source: Tensor, target: Tensor) -> Place:
    """What this process needs for a case."""
    group = groups.mine(case["groups"])
    if case["collective"] != "overlap":
        return Place(group, source, target)
    ep = cluster.ranks // case["esp"]
    layer = Layer(  # the smallest that is laid out so: one expert a place
        mp=case["mp"],
        ep=ep,
        esp=case["esp"],
        experts=ep,
        tokens=case["mp"],
        hidden=1,
        ffn_hidden=case["esp"],
        nodes=cluster.node_of,
    )
    return Place(group, source, target, _overlap(layer, StepRunner(layer, groups.of(layer), source.device)))


def _overlap(layer: Layer, runner: StepRunner) -> OverlappedCombine:
    """That of Parm's S2."""
    forward = expert_schedules["parm-s2"]().steps(layer)
    gather = next(number for number, step in enumerate(forward) if step.hidden and step.collective)
    combine = max(number for number, step in enumerate(forward[:gather]) if step.collective == "all_to_all")
    return OverlappedCombine(forward[combine], forward[combine + 1 : gather], forward[gather], runner)
