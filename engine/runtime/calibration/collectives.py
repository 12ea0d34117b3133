"""The collectives of this machine, or of a small cluster emulated on it: which to measure, and what came of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import product
from math import lcm
from typing import Any

from meshwave.engine.costs.line_fits import fit_line
from meshwave.engine.costs.profile import Group, Machine, Measured, Name, Profile, ShapedRates, group_sizes, members
from meshwave.engine.errors import InputError
from meshwave.engine.machine import processor
from meshwave.engine.runtime.calibration.emulated_cluster import Cluster, run

COLLECTIVES: tuple[Name, ...] = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
GROUPS: tuple[Group, ...] = ("mp", "esp", "ep", "ep_esp")
SIZES = tuple(4096 * 4**n for n in range(6))  # 4 KiB to 4 MiB
ROUNDS = 7
ITEM_BYTES = 4
BUSY = 0.7
"""Processes that want a core, from which on it is said."""


@dataclass(frozen=True)
class Case:
    """A collective over all groups of a kind at once."""

    collective: Name
    groups: tuple[tuple[int, ...], ...]
    mp: int | None = None  # of an overlap
    esp: int | None = None

    def bytes_of(self, size: int) -> float:
        """What goes into the model, of a measurement over ``size`` bytes: of an all-gather a rank's own."""
        return size / len(self.groups[0]) if self.collective == "all_gather" else size


def calibrate(
    cluster: Cluster,
    layouts: Sequence[tuple[int, int]],
    sizes: Sequence[int] = SIZES,
    rounds: int = ROUNDS,
    say: Callable[[str], None] = lambda line: None,
) -> Profile:
    """Measure every collective for the groups of every layout, a pair of ``mp`` and ``esp``.

    Sizes are bytes of the whole buffer, rounded up to what divides among all ranks.

    Raises:
        InputError: a layout does not fit the cluster, or links cannot be shaped here.
        RunError: a process failed.
    """
    if cluster.ranks < 2:
        raise InputError("one process has nobody to talk to; use 2 ranks or more")
    plan = Plan.of(cluster.ranks, layouts, sizes)
    machine = machine_of(cluster)
    say(f"measuring {len(plan.cases)} collectives of {len(plan.sizes)} sizes each: {cluster}")
    if machine.load_before and machine.load_before > BUSY:
        say(f"others' work wants {machine.load_before:.1f} cores: messages will seem slower than they are")
    seconds = run(
        "meshwave.engine.runtime.calibration.collective_timing:measure", cluster, {**plan.told, "rounds": rounds}, say
    )[0]
    return plan.profile(cluster, machine, seconds)


@dataclass(frozen=True)
class Plan:
    """What to measure, each once: groups of different kinds may be the same ranks."""

    cases: Mapping[Case, Sequence[Group]]  # and the kinds that its groups are
    sizes: Sequence[int]

    @classmethod
    def of(
        cls,
        ranks: int,
        layouts: Iterable[tuple[int, int]],
        sizes: Sequence[int],
        only: Container[tuple[str, str]] | None = None,
    ) -> Plan:
        """Every collective for the groups of every layout; or ``only`` some, as pairs with a kind of group."""
        cases: dict[Case, list[Group]] = {}
        for mp, esp in layouts:
            of_group = group_sizes(ranks, mp, esp)
            for group, name in product(GROUPS, COLLECTIVES):
                if of_group[group] > 1 and (only is None or (name, group) in only):
                    case = Case(name, tuple(map(tuple, members(group, ranks, mp, esp))))
                    kinds = cases.setdefault(case, [])
                    kinds += [group] if group not in kinds else []
            if mp > 1:
                cases[Case("overlap", (tuple(range(ranks)),), mp, esp)] = ["ep_esp"]
        unit = ITEM_BYTES * lcm(ranks, *(len(case.groups[0]) for case in cases))
        return cls(cases, sorted({-(-size // unit) * unit for size in sizes}))

    @property
    def told(self) -> dict[str, Any]:
        """What the processes are told."""
        return {"cases": [asdict(case) for case in self.cases], "sizes": self.sizes}

    def profile(self, cluster: Cluster, machine: Machine, seconds: Sequence[Sequence[float]]) -> Profile:
        """What came of it: ``seconds[cases][sizes]``."""
        rates = ShapedRates(intra=cluster.intra, inter=cluster.inter) if cluster.intra and cluster.inter else None
        measured = [
            each
            for (case, kinds), row in zip(self.cases.items(), seconds, strict=True)
            for each in _measured(case, kinds, self.sizes, row)
        ]
        return Profile(machine=machine, rates=rates, collectives=tuple(measured))


def _measured(case: Case, groups: Sequence[Group], sizes: Sequence[int], seconds: Sequence[float]) -> list[Measured]:
    samples = tuple((case.bytes_of(size), took) for size, took in zip(sizes, seconds, strict=True))
    line = fit_line(samples)
    return [
        Measured(
            collective=case.collective,
            group=group,
            size=len(case.groups[0]),
            alpha_s=line.alpha_s,
            beta_s_per_byte=line.beta_s_per_byte,
            r2=line.r2,
            samples=samples,
            mp=case.mp,
            esp=case.esp,
        )
        for group in groups
    ]


def machine_of(cluster: Cluster) -> Machine:
    """This machine as it is before anything is measured."""
    return Machine(
        ranks=cluster.ranks,
        ranks_per_node=cluster.ranks_per_node,
        backend="nccl" if cluster.gpus else "gloo",
        network=str(cluster),
        cores=os.cpu_count(),
        processor=processor(),
        load_before=os.getloadavg()[0],
        software=f"torch {metadata.version('torch')}, {sys.platform}",
    )
