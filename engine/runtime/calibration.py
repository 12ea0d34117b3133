"""``meshwave calibrate``: measure the collectives of this machine, or of a small cluster emulated on it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import product
from math import lcm
from typing import Any

from engine.cost.profile import (
    Group,
    Machine,
    Measured,
    Name,
    Profile,
    ShapedRates,
    fit_line,
    group_sizes,
    load_profile,
    members,
    save_profile,
)
from engine.errors import InputError
from engine.runtime.shaped import Cluster, run
from engine.units import quantity

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
    seconds = run("engine.runtime.collectives:measure", cluster, {**plan.told, "rounds": rounds}, say)[0]
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
        load_before=os.getloadavg()[0],
        software=f"torch {metadata.version('torch')}, {sys.platform}",
    )


# ---- the command ----


def to_text(profile: Profile) -> str:
    """A line a collective: its alpha, the bytes/s of its beta, how well the line fits."""
    lines = [profile.machine.network]
    lines.append(f"{'collective':<16}{'group':<8}{'ranks':>5}{'alpha':>10}{'1 / beta':>13}{'r2':>9}  worst residual")
    for each in profile.collectives:
        layout = f" (mp {each.mp}, esp {each.esp})" if each.mp else ""
        worst = max(each.residuals, key=abs)
        speed = quantity(1 / each.beta_s_per_byte, "B/s") if each.beta_s_per_byte else "free"
        size = quantity(each.samples[[*each.residuals].index(worst)][0], "B")
        lines.append(
            f"{each.collective:<16}{each.group:<8}{each.size:>5}{quantity(each.alpha_s, 's'):>10}{speed:>13}"
            f"{each.r2:>9.4f}  {worst:+.0%} at {size}{layout}"
        )
    return "\n".join(lines)


def cluster_of(ranks: int, ranks_per_node: int | None, shaped: str | None) -> Cluster:
    """The cluster that the command's options ask for.

    Raises:
        InputError: it cannot be.
    """
    rates = _rates(shaped) if shaped else None
    per_node = ranks_per_node or (max(1, ranks // 2) if rates else ranks)
    if per_node < 1 or ranks < 1 or ranks % per_node:
        raise InputError(f"{ranks} ranks cannot be {per_node} on each node; use a divisor")
    return Cluster(ranks // per_node, per_node, *(rates or ()))


def _rates(text: str) -> tuple[float, float]:
    try:
        intra, inter = map(float, text.split(","))
    except ValueError:
        raise InputError(f"--shaped takes two rates in bytes/s, such as 250e6,50e6, not {text!r}") from None
    return intra, inter


def integers(text: str, option: str) -> list[int]:
    """The numbers of an option such as ``--mp 2,4``.

    Raises:
        InputError: it has others.
    """
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise InputError(f"--{option} takes whole numbers above 0, such as 2,4, not {text!r}")
    return found


def command(options: Any) -> int:
    """``meshwave calibrate``; returns the exit status.

    Raises:
        InputError: the options ask for what cannot be measured here.
        RunError: a process failed.
    """
    profile = load_profile(options.profile) if options.profile else _measure(options)
    if options.out:
        save_profile(profile, options.out)
        print(f"wrote {options.out}", file=sys.stderr)
    if options.fit:
        mp, esp = _layouts(options, profile.machine.ranks_per_node)[0]
        print(json.dumps(profile.fit(mp, esp), indent=2))
    elif options.json:
        print(profile.to_json(), end="")
    else:
        print(to_text(profile))
    return 0


def _measure(options: Any) -> Profile:
    cluster = cluster_of(options.ranks, options.ranks_per_node, options.shaped)
    if options.rounds < 1:
        raise InputError(f"--rounds {options.rounds} cannot be; use 1 or more")
    sizes = integers(options.sizes, "sizes") if options.sizes else SIZES
    return calibrate(
        cluster,
        _layouts(options, cluster.ranks_per_node),
        sizes,
        options.rounds,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )


def _layouts(options: Any, ranks_per_node: int) -> list[tuple[int, int]]:
    """Every ``mp`` with every ``esp`` of the options; by default both are a node."""
    given = {"mp": options.mp, "esp": options.esp}
    mps, esps = (integers(text, name) if text else [ranks_per_node] for name, text in given.items())
    return [(mp, esp) for mp in mps for esp in esps]
