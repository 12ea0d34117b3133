"""Benchmark ``meshwave bench planner``: planning time of resharding plans, and their distance from the lower bound."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from meshwave.engine.bench.measuring import median_s
from meshwave.engine.resharding import Link, Links, Mesh, Plan, Tensor, plan

DEVICES_PER_HOST = 8
TENSOR = Tensor((1024, 1024, 512), 4)
INTRA, INTER = Link(1e-5, 4e10), Link(5e-5, 1.25e9)
REPEATS = 3
Side = tuple[tuple[int, ...], str]
"""Mesh axes and sharding spec."""

CASES: Mapping[str, tuple[Side, Side]] = {
    "rows to columns": (((8, 8), "S01 R R"), ((8, 8), "R S01 R")),
    "rows to columns, unlike meshes": (((2, 32), "S01 R R"), ((4, 16), "R S01 R")),
    "blocks to columns": (((8, 8), "S0 S1 R"), ((8, 8), "R S01 R")),
    "copies to rows": (((8, 8), "R R R"), ((8, 8), "S01 R R")),
    "rows to copies of columns": (((8, 8), "S01 R R"), ((8, 8), "R S0 R")),
    "uneven rows to columns": (((9, 7), "S01 R R"), ((7, 9), "R S01 R")),
}
"""Transfers from 64 devices to 64, eight per host; the last one from 63 devices to 63."""


def measure_planner() -> dict[str, float]:
    """Measure the planning time of one tensor from 64 devices to 64 (eight per host), by broadcast and ensemble."""
    found: dict[str, float] = {}
    for name, sides in CASES.items():
        result = plan_case(*sides)
        plan_s = median_s(partial(plan_case, *sides), REPEATS)
        found[f"{name}, {len(result.tasks)} unit tasks: plan_s"] = plan_s
        found[f"{name}: over the bound_share"] = max(0.0, result.makespan_s / result.bound_s - 1)
    return found


def plan_case(source: Side, destination: Side) -> Plan:
    """Plan the transfer of a 2 GiB tensor over links of 10 Gb/s."""
    sender, receiver = _random_mesh(source[0], 0), _random_mesh(destination[0], prod(source[0]))
    ranks, hosts = (*sender.ranks, *receiver.ranks), (*sender.hosts, *receiver.hosts)
    links = Links(INTRA, INTER, dict(zip(ranks, hosts, strict=True)))
    return plan(TENSOR, (sender, source[1].split()), (receiver, destination[1].split()), links)


def _random_mesh(axes: tuple[int, ...], first: int) -> Mesh:
    """Return a mesh of consecutive ranks on separate hosts."""
    ranks = tuple(range(first, first + prod(axes)))
    return Mesh(axes, ranks, tuple(first + (rank - first) // DEVICES_PER_HOST for rank in ranks))
