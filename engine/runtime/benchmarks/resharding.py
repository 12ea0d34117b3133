"""Strategies of a transfer measured beside their prediction, on a small cluster that is emulated here.

Three nodes of two processes, whose links are shaped, play every strategy of every case in turns, so
that whatever else the machine does meets all of them alike. A time lasts from the first process that
starts, all of them after a barrier, to the last that holds its shard and has sent what it sends; of the
turns the shortest counts, since what others do on the machine can only add.

The prediction is that of :func:`meshwave.engine.resharding.played_seconds` with the rates that the links were shaped to, less
the headers of packets, and with the seconds of a message of one byte, the shortest of some measured
first. Nothing in it was fitted to a transfer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from meshwave.engine.resharding import Link, Links, Mesh, Tensor, Transfer, strategies, transfer
from meshwave.engine.runtime.calibration.emulated_cluster import Cluster, run
from meshwave.engine.units import quantity

RATES = 250e6, 50e6
"""Bytes/s of a process's link and of a node's uplink: slow enough for two cores to carry with ease."""
CLUSTER = Cluster(3, 2, *RATES)
PAYLOAD = 0.992
"""Of a packet of 9000 bytes: the rest is headers."""
TURNS = 5
PINGS = 21
ITEM_BYTES = 4
WITHIN = 1.05
"""What is as fast as the fastest."""
LARGE_BYTES, NEAR = 4_000_000, 0.15
"""Of a tensor that bandwidth decides about, and how near the ratio of two strategies is then to be to its prediction."""

Side = tuple[tuple[int, ...], int, str]
"""A mesh's axes, its first rank, and the entries of the spec."""


@dataclass(frozen=True)
class Case:
    name: str
    shape: tuple[int, ...]
    source: Side
    destination: Side

    def plan(self, links: Links, strategy: str | None) -> Transfer:
        source, destination = (self._side(side, links) for side in (self.source, self.destination))
        return transfer(Tensor(self.shape, ITEM_BYTES), source, destination, links, strategy=strategy)

    @property
    def bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES

    @staticmethod
    def _side(side: Side, links: Links) -> tuple[Mesh, tuple[str, ...]]:
        axes, first, spec = side
        ranks = tuple(range(first, first + prod(axes)))
        return Mesh(axes, ranks, tuple(links.host[rank] for rank in ranks)), tuple(spec.split())


ONE, PAIR, FOUR, LAST, TWO_BY_TWO = ((1,), 0), ((2,), 0), ((2, 2), 0), ((2,), 4), ((2, 2), 2)
CASES = (
    Case("one to 2 x 2, 4 MB", (1000, 1000), (*ONE, "R R"), (*TWO_BY_TWO, "R R")),
    Case("one to 2 x 2, 8 MB", (2000, 1000), (*ONE, "R R"), (*TWO_BY_TWO, "R R")),
    Case("one to 2 x 2, 100 kB", (250, 100), (*ONE, "R R"), (*TWO_BY_TWO, "R R")),
    Case("one to a node, 4 MB", (1000, 1000), (*ONE, "R R"), (*LAST, "R R")),
    Case("S0 to R, 2 to 2 x 2, 8 MB", (2000, 1000), (*PAIR, "S0 R"), (*TWO_BY_TWO, "R R")),
    Case("R to S0, 2 to 2 x 2, 8 MB", (2000, 1000), (*PAIR, "R R"), (*TWO_BY_TWO, "S0 R")),
    Case("S0 to R, 2 x 2 to 2, 8 MB", (2000, 1000), (*FOUR, "S0 R"), (*LAST, "R R")),
    Case("S01 to S0, 2 x 2 to 2, 8 MB", (2000, 1000), (*FOUR, "S01 R"), (*LAST, "S0 R")),
    Case("S0 to S1, 2 to 2 x 2, uneven, 6 MB", (1999, 751), (*PAIR, "S0 R"), (*TWO_BY_TWO, "R S1")),
    Case("S01 to R, 2 x 2 to 2 x 2, 8 MB", (2000, 1000), (*FOUR, "S01 R"), (*TWO_BY_TWO, "R R")),
    Case("sums of 2 to R, 2 x 2 to 2, 8 MB", (2000, 1000), (*FOUR, "S0 R P1"), (*LAST, "R R")),
)
TINY = (Case("one to 2 x 2, 4 kB", (10, 100), (*ONE, "R R"), (*TWO_BY_TWO, "R R")),)


def reshard(
    cases: Sequence[Case] = CASES,
    cluster: Cluster = CLUSTER,
    turns: int = TURNS,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure all strategies of each case.

    Raises:
        InputError: this machine cannot shape links, and why.
        RunError: a process failed.
    """
    asked = {"cases": [vars(case) for case in cases], "turns": turns}
    found = run("meshwave.engine.runtime.benchmarks.resharding:measure", cluster, asked, say)
    latency = found[0]["latency_s"]
    links = _links(cluster, latency)
    rows = [_row(case, links, [each["times"][number] for each in found]) for number, case in enumerate(cases)]
    large = [row for row in rows if row["bytes"] >= LARGE_BYTES]
    return {
        "cluster": str(cluster),
        "latency_inside_s": latency[0],
        "latency_between_s": latency[1],
        "cases": rows,
        "choice fastest or within 5%": sum(row["choice_s"] <= WITHIN * row["fastest_s"] for row in rows),
        "large cases": len(large),
        "ratio within 15%": sum(abs(row["measured ratio"] / row["predicted ratio"] - 1) <= NEAR for row in large),
    }


def _links(cluster: Cluster, latency_s: Sequence[float]) -> Links:
    rates = [rate and rate * PAYLOAD for rate in (cluster.intra, cluster.inter)]
    host = {rank: cluster.node(rank) for rank in range(cluster.ranks)}
    return Links(Link(latency_s[0], rates[0]), Link(latency_s[1], rates[1]), host)


def _row(case: Case, links: Links, times: Sequence[Mapping[str, Sequence[Sequence[float]]]]) -> dict[str, Any]:
    """Predicted and measured seconds of a case; ``times`` of each rank by strategy: ``[turns]`` begin and end."""
    predicted = {name: case.plan(links, name).played_s for name in strategies}
    measured = {}
    for name in strategies:
        turns = zip(*(of_rank[name] for of_rank in times), strict=True)
        measured[name] = min(max(end for _, end in turn) - min(begin for begin, _ in turn) for turn in turns)
    choice = case.plan(links, None).plan.strategy
    return {
        "case": case.name,
        "bytes": case.bytes,
        "predicted_s": predicted,
        "measured_s": measured,
        "choice": choice,
        "choice_s": measured[choice],
        "fastest_s": min(measured.values()),
        "predicted ratio": predicted["send-recv"] / predicted["broadcast"],
        "measured ratio": measured["send-recv"] / measured["broadcast"],
    }


def to_text(figures: Mapping[str, Any]) -> list[str]:
    """A line a case: of each strategy measured and, in brackets, predicted seconds."""
    rows = figures["cases"]
    names = list(rows[0]["measured_s"]) if rows else []
    startup = (quantity(figures[f"latency_{where}_s"], "s") for where in ("inside", "between"))
    lines = [f"  {figures['cluster']}", "  a message of one byte: {} inside a node, {} between nodes".format(*startup)]
    lines += [
        "",
        f"  {'measured (predicted)':<36}" + "".join(f"{name:>22}" for name in names) + "   send-recv / broadcast",
    ]
    for row in rows:
        cells = [
            f"{quantity(row['measured_s'][name], 's')} ({quantity(row['predicted_s'][name], 's')}){'*' if name == row['choice'] else ' '}"
            for name in names
        ]
        ratios = f"{row['measured ratio']:.2f} ({row['predicted ratio']:.2f})"
        lines.append(f"  {row['case']:<36}" + "".join(f"{cell:>22}" for cell in cells) + f"   {ratios}")
    near = figures["choice fastest or within 5%"]
    ratios = f"{figures['ratio within 15%']} of {figures['large cases']} cases of {quantity(LARGE_BYTES, 'B')} and more"
    return [
        *lines,
        "",
        f"  send-recv / broadcast is within 15% of its prediction in {ratios}",
        f"  * the planner's choice: the fastest, or within 5% of it, in {near} of {len(rows)} cases",
    ]


# ---- one process of the cluster ----


def measure(cluster: Cluster, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Begin and end of every turn here: of each case, by strategy."""
    import torch
    import torch.distributed as dist

    from meshwave.engine.runtime.resharding import GlooTransport, Resharding

    me = dist.get_rank()
    latency = _latency(cluster)
    links = _links(cluster, latency)
    carrier = GlooTransport()
    planned = [
        {name: Resharding(_case(case).plan(links, name), me, torch.float32, carrier) for name in strategies}
        for case in asked["cases"]
    ]
    locals_ = [_own(each["broadcast"]) for each in planned]
    times: list[dict[str, list[tuple[float, float]]]] = [{name: [] for name in strategies} for _ in planned]
    for turn in range(asked["turns"]):
        for number, by_name in enumerate(planned):
            names = list(by_name)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                dist.barrier()
                began = time.perf_counter()
                by_name[name].start(locals_[number]).wait()
                times[number][name].append((began, time.perf_counter()))
        if me == 0:
            print(f"turn {turn + 1} of {asked['turns']}", flush=True)
    return {"latency_s": latency, "times": times}


def _case(case: Mapping[str, Any]) -> Case:
    source, destination = ((tuple(side[0]), *side[1:]) for side in (case["source"], case["destination"]))
    return Case(case["name"], tuple(case["shape"]), source, destination)


def _own(resharding: Any) -> Any:
    import torch

    box = resharding.planned.owned.get(resharding.process)
    return None if box is None else torch.ones([stop - start for start, stop in box])


def _latency(cluster: Cluster) -> list[float]:
    """Seconds of a message of one byte inside a node and between nodes: half of there and back. The same on all."""
    import torch
    import torch.distributed as dist

    me, byte = dist.get_rank(), torch.zeros(1, dtype=torch.uint8)
    taken = torch.zeros(2, dtype=torch.float64)
    for number, other in enumerate((1, cluster.ranks_per_node)):
        dist.barrier()
        rounds = []
        for _ in range(PINGS):
            began = time.perf_counter()
            if me == 0:
                dist.send(byte, other)
                dist.recv(byte, other)
            elif me == other:
                dist.recv(byte, 0)
                dist.send(byte, 0)
            rounds.append(time.perf_counter() - began)
        taken[number] = min(rounds) / 2
    dist.broadcast(taken, 0)
    return [float(seconds) for seconds in taken]
