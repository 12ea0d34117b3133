"""How fast a transfer is planned, and how near its bound: what ``meshwave bench planner`` measures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from math import prod

from meshwave.engine.resharding import Link, Links, Mesh, Plan, Tensor, plan

HOST = 8  # devices
TENSOR = Tensor((1024, 1024, 512), 4)
INTRA, INTER = Link(1e-5, 4e10), Link(5e-5, 1.25e9)
REPEATS = 3
Side = tuple[tuple[int, ...], str]
"""A mesh's axes, and a spec."""

CASES: Mapping[str, tuple[Side, Side]] = {
    "rows to columns": (((8, 8), "S01 R R"), ((8, 8), "R S01 R")),
    "rows to columns, unlike meshes": (((2, 32), "S01 R R"), ((4, 16), "R S01 R")),
    "blocks to columns": (((8, 8), "S0 S1 R"), ((8, 8), "R S01 R")),
    "copies to rows": (((8, 8), "R R R"), ((8, 8), "S01 R R")),
    "rows to copies of columns": (((8, 8), "S01 R R"), ((8, 8), "R S0 R")),
    "uneven rows to columns": (((9, 7), "S01 R R"), ((7, 9), "R S01 R")),
}
"""From 64 devices to 64, eight to a host; the last from 63 to 63."""


def figures() -> dict[str, float]:
    """plan one tensor from 64 devices to 64, eight to a host, by broadcast and ensemble"""
    found: dict[str, float] = {}
    for name, sides in CASES.items():
        took = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            made = planned(*sides)
            took.append(time.perf_counter() - began)
        found[f"{name}, {len(made.tasks)} unit tasks: plan_s"] = statistics.median(took)
        found[f"{name}: over the bound_share"] = max(0.0, made.makespan_s / made.bound_s - 1)
    return found


def planned(source: Side, destination: Side) -> Plan:
    """A tensor of 2 GiB over 10 Gb/s."""
    sender, receiver = _mesh(source[0], 0), _mesh(destination[0], prod(source[0]))
    ranks, hosts = (*sender.ranks, *receiver.ranks), (*sender.hosts, *receiver.hosts)
    links = Links(INTRA, INTER, dict(zip(ranks, hosts, strict=True)))
    return plan(TENSOR, (sender, source[1].split()), (receiver, destination[1].split()), links)


def _mesh(axes: tuple[int, ...], first: int) -> Mesh:
    """Hosts of its own, numbered from that of its first rank."""
    ranks = tuple(range(first, first + prod(axes)))
    return Mesh(axes, ranks, tuple(first + (rank - first) // HOST for rank in ranks))
