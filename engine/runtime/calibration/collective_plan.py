"""Plan of a measurement of collectives, and the calibration profile computed from its times."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import lcm
from typing import Any

from meshwave.engine.costs.line_fits import fit_line
from meshwave.engine.costs.profile import (
    Group,
    Machine,
    MeasuredCollective,
    Name,
    Profile,
    ShapedRates,
    collective_group_members,
    collective_group_sizes,
)
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster

COLLECTIVES: tuple[Name, ...] = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
GROUPS: tuple[Group, ...] = ("mp", "esp", "ep", "ep_esp")
COLLECTIVE_BYTES = tuple(4096 * 4**n for n in range(6))  # 4 KiB to 4 MiB
ITEM_BYTES = 4


@dataclass(frozen=True)
class CollectiveCase:
    """A collective that all groups of one kind run at once."""

    collective: Name
    groups: tuple[tuple[int, ...], ...]
    mp: int | None = None  # of an overlap
    esp: int | None = None

    def modelled_bytes(self, buffer_bytes: int) -> float:
        """Return the bytes that the cost model counts for a buffer; for an all-gather, those that one rank contributes."""
        return buffer_bytes / len(self.groups[0]) if self.collective == "all_gather" else buffer_bytes


@dataclass(frozen=True)
class CollectivePlan:
    """Collectives to measure. Groups of different kinds that consist of the same ranks are measured once."""

    cases: Mapping[CollectiveCase, Sequence[Group]]
    """Kinds of group that each case measures."""
    sizes: Sequence[int]
    """Sizes of the whole buffer in bytes."""

    @classmethod
    def for_layouts(
        cls,
        ranks: int,
        layouts: Iterable[tuple[int, int]],
        sizes: Sequence[int],
        only: Container[tuple[str, str]] | None = None,
    ) -> CollectivePlan:
        """Plan every collective for the groups of every layout.

        Args:
            ranks: number of processes.
            layouts: pairs of ``mp`` and ``esp``.
            sizes: sizes of the whole buffer in bytes, to be rounded up to a multiple of 4 bytes for each rank.
            only: pairs of a collective and a kind of group to include; None for all.

        Raises:
            InputError: a layout does not divide the ranks.
        """
        cases: dict[CollectiveCase, list[Group]] = {}
        for mp, esp in layouts:
            size_by_group = collective_group_sizes(ranks, mp, esp)
            for group, name in product(GROUPS, COLLECTIVES):
                if size_by_group[group] > 1 and (only is None or (name, group) in only):
                    case = CollectiveCase(name, tuple(map(tuple, collective_group_members(group, ranks, mp, esp))))
                    kinds = cases.setdefault(case, [])
                    kinds += [group] if group not in kinds else []
            if mp > 1:
                cases[CollectiveCase("overlap", (tuple(range(ranks)),), mp, esp)] = ["ep_esp"]
        unit = ITEM_BYTES * lcm(ranks, *(len(case.groups[0]) for case in cases))
        return cls(cases, sorted({-(-size // unit) * unit for size in sizes}))

    @property
    def arguments(self) -> dict[str, Any]:
        """The plan as plain JSON, passed to the measuring processes."""
        return {"cases": [asdict(case) for case in self.cases], "sizes": self.sizes}

    def to_profile(self, cluster: ProcessCluster, machine: Machine, seconds: Sequence[Sequence[float]]) -> Profile:
        """Return the profile fitted to ``seconds[cases][sizes]``."""
        intra, inter = cluster.intra_bandwidth, cluster.inter_bandwidth
        measured = [
            each
            for (case, kinds), row in zip(self.cases.items(), seconds, strict=True)
            for each in _fit_case(case, kinds, self.sizes, row)
        ]
        return Profile(
            machine=machine,
            rates=ShapedRates(intra=intra, inter=inter) if intra and inter else None,
            collectives=tuple(measured),
        )


def _fit_case(
    case: CollectiveCase, groups: Sequence[Group], sizes: Sequence[int], seconds: Sequence[float]
) -> list[MeasuredCollective]:
    samples = tuple((case.modelled_bytes(size), each) for size, each in zip(sizes, seconds, strict=True))
    line = fit_line(samples)
    return [
        MeasuredCollective(
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
