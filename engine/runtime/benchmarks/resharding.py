"""Measured and predicted times of transfer strategies on a small cluster that is emulated on this machine.

Three nodes of two processes with emulated links run every strategy of every case in turns, so that other load on the
machine affects all strategies alike. All processes start at a barrier. A measured time lasts from the first start of a
process until the last process has received its shard and completed its sends. The shortest turn counts, because other
load can only add to it.

The prediction is :func:`meshwave.engine.resharding.simulated_plan_seconds` with the emulated bandwidths minus packet headers,
and with the shortest of several measured latencies of a message of one byte. No parameter is fitted to a transfer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from meshwave.engine.resharding import Link, Links, Mesh, Tensor, Transfer, plan_transfer, strategies
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster, run_in_cluster
from meshwave.engine.units import quantity

BANDWIDTHS = 250e6, 50e6
"""Bandwidths of a process's link and of a node's uplink in bytes/s, slow enough that two cores are not the bottleneck."""
CLUSTER = ProcessCluster(3, 2, *BANDWIDTHS)
PAYLOAD_SHARE = 0.992
"""Fraction of a packet of 9000 bytes that is not headers."""
TURNS = 5
PINGS = 21
ITEM_BYTES = 4
FASTEST_TOLERANCE = 1.05
"""Maximum ratio to the shortest time for a strategy to count as the fastest."""
LARGE_BYTES, RATIO_TOLERANCE = 4_000_000, 0.15
"""Size above which bandwidth dominates, and the relative error allowed there for the time ratio of two strategies."""

Side = tuple[tuple[int, ...], int, str]
"""Mesh axes, first rank and sharding spec of one side of a transfer."""


@dataclass(frozen=True)
class TransferCase:
    """A transfer to measure: a tensor with its source and destination."""

    name: str
    shape: tuple[int, ...]
    source: Side
    destination: Side

    def plan(self, links: Links, strategy: str | None) -> Transfer:
        """Plan the transfer with a strategy; None selects the strategy with the shortest predicted time."""
        source, destination = (self._mesh_and_spec(side, links) for side in (self.source, self.destination))
        return plan_transfer(Tensor(self.shape, ITEM_BYTES), source, destination, links, strategy=strategy)

    @property
    def bytes(self) -> int:
        """Size of the tensor in bytes."""
        return prod(self.shape) * ITEM_BYTES

    @staticmethod
    def _mesh_and_spec(side: Side, links: Links) -> tuple[Mesh, tuple[str, ...]]:
        axes, first, spec = side
        ranks = tuple(range(first, first + prod(axes)))
        return Mesh(axes, ranks, tuple(links.host[rank] for rank in ranks)), tuple(spec.split())


ONE, PAIR, FOUR, LAST, TWO_BY_TWO = ((1,), 0), ((2,), 0), ((2, 2), 0), ((2,), 4), ((2, 2), 2)
CASES = (
    TransferCase("one to 2 x 2, 4 MB", (1000, 1000), (*ONE, "R R"), (*TWO_BY_TWO, "R R")),
    TransferCase("one to 2 x 2, 8 MB", (2000, 1000), (*ONE, "R R"), (*TWO_BY_TWO, "R R")),
    TransferCase("one to 2 x 2, 100 kB", (250, 100), (*ONE, "R R"), (*TWO_BY_TWO, "R R")),
    TransferCase("one to a node, 4 MB", (1000, 1000), (*ONE, "R R"), (*LAST, "R R")),
    TransferCase("S0 to R, 2 to 2 x 2, 8 MB", (2000, 1000), (*PAIR, "S0 R"), (*TWO_BY_TWO, "R R")),
    TransferCase("R to S0, 2 to 2 x 2, 8 MB", (2000, 1000), (*PAIR, "R R"), (*TWO_BY_TWO, "S0 R")),
    TransferCase("S0 to R, 2 x 2 to 2, 8 MB", (2000, 1000), (*FOUR, "S0 R"), (*LAST, "R R")),
    TransferCase("S01 to S0, 2 x 2 to 2, 8 MB", (2000, 1000), (*FOUR, "S01 R"), (*LAST, "S0 R")),
    TransferCase("S0 to S1, 2 to 2 x 2, uneven, 6 MB", (1999, 751), (*PAIR, "S0 R"), (*TWO_BY_TWO, "R S1")),
    TransferCase("S01 to R, 2 x 2 to 2 x 2, 8 MB", (2000, 1000), (*FOUR, "S01 R"), (*TWO_BY_TWO, "R R")),
    TransferCase("sums of 2 to R, 2 x 2 to 2, 8 MB", (2000, 1000), (*FOUR, "S0 R P1"), (*LAST, "R R")),
)
TINY = (TransferCase("one to 2 x 2, 4 kB", (10, 100), (*ONE, "R R"), (*TWO_BY_TWO, "R R")),)


def benchmark_resharding(
    cases: Sequence[TransferCase] = CASES,
    cluster: ProcessCluster = CLUSTER,
    turns: int = TURNS,
    on_line: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure every strategy on each case and return the measured and predicted times.

    Raises:
        InputError: this machine cannot emulate links.
        RunError: a process failed.
    """
    arguments = {"cases": [vars(case) for case in cases], "turns": turns}
    function = "meshwave.engine.runtime.benchmarks.resharding:measure_transfers"
    found = run_in_cluster(function, cluster, arguments, on_line)
    latency = found[0]["latency_s"]
    links = _emulated_links(cluster, latency)
    rows = [_case_figures(case, links, [each["times"][number] for each in found]) for number, case in enumerate(cases)]
    large = [row for row in rows if row["bytes"] >= LARGE_BYTES]
    return {
        "cluster": str(cluster),
        "latency_inside_s": latency[0],
        "latency_between_s": latency[1],
        "cases": rows,
        "choice fastest or within 5%": sum(row["choice_s"] <= FASTEST_TOLERANCE * row["fastest_s"] for row in rows),
        "large cases": len(large),
        "ratio within 15%": sum(
            abs(row["measured ratio"] / row["predicted ratio"] - 1) <= RATIO_TOLERANCE for row in large
        ),
    }


def _emulated_links(cluster: ProcessCluster, latency_s: Sequence[float]) -> Links:
    rates = [rate and rate * PAYLOAD_SHARE for rate in (cluster.intra_bandwidth, cluster.inter_bandwidth)]
    hosts = dict(enumerate(cluster.node_by_rank))
    return Links(Link(latency_s[0], rates[0]), Link(latency_s[1], rates[1]), hosts)


def _case_figures(
    case: TransferCase, links: Links, times: Sequence[Mapping[str, Sequence[Sequence[float]]]]
) -> dict[str, Any]:
    """Return predicted and measured seconds of a case; ``times[ranks][strategy][turns]`` are pairs of start and end."""
    predicted = {name: case.plan(links, name).simulated_s for name in strategies}
    measured = {}
    for name in strategies:
        turns = zip(*(by_strategy[name] for by_strategy in times), strict=True)
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
    """Return one line per case: measured and, in brackets, predicted seconds of each strategy."""
    rows = figures["cases"]
    names = list(rows[0]["measured_s"]) if rows else []
    startup = (quantity(figures[f"latency_{where}_s"], "s") for where in ("inside", "between"))
    lines = [f"  {figures['cluster']}", "  one-byte message: {} within a node, {} between nodes".format(*startup)]
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
    fastest = figures["choice fastest or within 5%"]
    ratios = f"{figures['ratio within 15%']} of {figures['large cases']} cases of {quantity(LARGE_BYTES, 'B')} and more"
    return [
        *lines,
        "",
        f"  send-recv / broadcast is within 15% of its prediction in {ratios}",
        f"  * the planner's choice: the fastest, or within 5% of it, in {fastest} of {len(rows)} cases",
    ]


# ---- one process of the cluster ----


def measure_transfers(cluster: ProcessCluster, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return start and end of every turn on this process, ``[cases][strategy][turns]``, and the link latencies.

    All times are in seconds.
    """
    import torch
    import torch.distributed as dist

    from meshwave.engine.runtime.resharding import GlooTransport, Resharding

    rank = dist.get_rank()
    latency = _link_latencies_s(cluster)
    links = _emulated_links(cluster, latency)
    carrier = GlooTransport()
    planned = [
        {name: Resharding(_case_from_json(case).plan(links, name), rank, torch.float32, carrier) for name in strategies}
        for case in arguments["cases"]
    ]
    locals_ = [_source_shard(each["broadcast"]) for each in planned]
    times: list[dict[str, list[tuple[float, float]]]] = [{name: [] for name in strategies} for _ in planned]
    for turn in range(arguments["turns"]):
        for number, by_name in enumerate(planned):
            names = list(by_name)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                dist.barrier()
                start = time.perf_counter()
                by_name[name].start(locals_[number]).wait()
                times[number][name].append((start, time.perf_counter()))
        if rank == 0:
            print(f"turn {turn + 1} of {arguments['turns']}", flush=True)
    return {"latency_s": latency, "times": times}


def _case_from_json(case: Mapping[str, Any]) -> TransferCase:
    source, destination = ((tuple(side[0]), *side[1:]) for side in (case["source"], case["destination"]))
    return TransferCase(case["name"], tuple(case["shape"]), source, destination)


def _source_shard(resharding: Any) -> Any:
    import torch

    box = resharding.planned.source_boxes.get(resharding.process)
    return None if box is None else torch.ones([stop - start for start, stop in box])


def _link_latencies_s(cluster: ProcessCluster) -> list[float]:
    """Return the latency of a one-byte message within a node and between nodes in seconds; the same on all ranks."""
    import torch
    import torch.distributed as dist

    rank, byte = dist.get_rank(), torch.zeros(1, dtype=torch.uint8)
    latency_s = torch.zeros(2, dtype=torch.float64)
    for number, other in enumerate((1, cluster.ranks_per_node)):
        dist.barrier()
        rounds = []
        for _ in range(PINGS):
            start = time.perf_counter()
            if rank == 0:
                dist.send(byte, other)
                dist.recv(byte, other)
            elif rank == other:
                dist.recv(byte, 0)
                dist.send(byte, 0)
            rounds.append(time.perf_counter() - start)
        latency_s[number] = min(rounds) / 2
    dist.broadcast(latency_s, 0)
    return latency_s.tolist()
