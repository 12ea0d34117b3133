"""Measurement of contention: cases of messages and collectives that start together, and ratios of their times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from meshwave.engine.costs.contention import CollectiveBesideTransfer, Contention, LinkKind, PairOrder, Ratio
from meshwave.engine.findings import Refusal
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster, run_in_cluster

ITEM_BYTES = 4
MESSAGE_S = 0.1
"""Duration of one message between emulated nodes in seconds, long compared with its latency and token-bucket bursts."""
MIN_BYTES, MAX_BYTES, GPU_BYTES = 1 << 20, 1 << 24, 1 << 28
"""Message sizes in bytes: the minimum on emulated links, the size without emulation, and the size between GPUs."""
MAX_RANKS_PER_NODE = 4
"""Maximum number of processes per node that take part: two pairs within the node."""
Pair = tuple[int, int]
"""Source and target process of a message."""
Times = Sequence[Sequence[Sequence[float]]]
"""Seconds ``[repetitions][cases][flows]``; the flows of a case are its messages in order, then its ring."""


@dataclass(frozen=True)
class Flows:
    """Messages, and at most one ring all-reduce, that start at the same time."""

    messages: tuple[Pair, ...] = ()
    ring: tuple[int, ...] = ()


def message_bytes(cluster: ProcessCluster) -> int:
    """Return a message size for which a transfer over the links of ``cluster`` takes long enough to be timed."""
    if cluster.uses_gpus:
        return GPU_BYTES
    if cluster.inter_bandwidth is None:
        return MAX_BYTES
    return min(MAX_BYTES, max(MIN_BYTES, int(cluster.inter_bandwidth * MESSAGE_S) // ITEM_BYTES * ITEM_BYTES))


def ring_bytes(size: int, ranks: int) -> int:
    """Return the size of the buffer whose ring all-reduce sends ``size`` bytes per link: 2 (n - 1) / n of the buffer."""
    unit = ITEM_BYTES * ranks
    return max(unit, round(size * ranks / (2 * (ranks - 1))) // unit * unit)


def smallest_cluster(cluster: ProcessCluster) -> ProcessCluster:
    """Return ``cluster`` without the nodes and processes that the contention cases do not need."""
    return replace(cluster, nodes=min(2, cluster.nodes), ranks_per_node=min(MAX_RANKS_PER_NODE, cluster.ranks_per_node))


def contention_cases(cluster: ProcessCluster) -> dict[LinkKind, dict[str, Flows]]:
    """Return the cases to measure on each kind of link, by name, without those that need a larger cluster."""
    per_node = cluster.ranks_per_node
    found: dict[LinkKind, dict[str, Flows]] = {}
    if per_node > 1:
        pairs = [(0, 1), (2, 3)][: per_node // 2]
        found["same_node"] = _cases_of_pairs(pairs, tuple(range(min(per_node, MAX_RANKS_PER_NODE))))
    if cluster.nodes > 1:
        pairs = [(0, per_node), (1, per_node + 1)][:per_node]
        found["across_nodes"] = _cases_of_pairs(pairs, tuple(sorted(rank for pair in pairs for rank in pair)))
    return found


def _cases_of_pairs(pairs: Sequence[Pair], ring: tuple[int, ...]) -> dict[str, Flows]:
    one = pairs[0]
    cases = {
        "alone": Flows((one,)),
        "duplex": Flows((one, (one[1], one[0]))),
        "same_pair": Flows((one, one)),
        "collective": Flows(ring=ring),
        "collective_beside": Flows((one,), ring),
    }
    return cases | ({"two_pairs": Flows(tuple(pairs))} if len(pairs) > 1 else {})


def measure_contention(
    cluster: ProcessCluster,
    repetitions: int,
    size: int | None = None,
    on_line: Callable[[str], None] = lambda line: None,
) -> tuple[Contention, ...]:
    """Measure contention on every kind of link of ``cluster``; ``size`` is the size of a message in bytes.

    Raises:
        InputError: there is only one process, or this machine cannot emulate links.
        RunError: a process failed.
    """
    if cluster.ranks < 2:
        raise Refusal("contention_of_one_process")
    small = smallest_cluster(cluster)
    size = size or message_bytes(small)
    cases = contention_cases(small)
    flat = [flows for by_name in cases.values() for flows in by_name.values()]
    plan = {
        "cases": [{**asdict(flows), "ring_bytes": _case_ring_bytes(flows, size)} for flows in flat],
        "bytes": size,
        "rounds": repetitions,
    }
    times: Times = run_in_cluster(
        "meshwave.engine.runtime.calibration.flow_timing:measure_flows", small, plan, on_line
    )[0]
    found, first = [], 0
    for kind, by_name in cases.items():
        rows = {name: [repetition[first + number] for repetition in times] for number, name in enumerate(by_name)}
        found.append(contention_from_times(kind, size, len(by_name["collective"].ring), rows))
        first += len(by_name)
    return tuple(found)


def _case_ring_bytes(flows: Flows, size: int) -> int:
    return ring_bytes(size, len(flows.ring)) if flows.ring else 0


def contention_from_times(
    kind: LinkKind, size: int, ranks: int, times: Mapping[str, Sequence[Sequence[float]]]
) -> Contention:
    """Return the contention ratios computed from the times of all cases.

    ``times[case][repetitions][flows]`` are seconds of messages of ``size`` bytes and of a ring of ``ranks`` processes.
    Each repetition is compared with the time of a message alone in the same repetition, so that slow changes of the
    machine's load cancel.
    """
    alone = [row[0] for row in times["alone"]]
    collective = [row[0] for row in times["collective"]]
    beside = times["collective_beside"]
    last = {name: [max(row) for row in rows] for name, rows in times.items()}
    two = last.get("two_pairs")
    return Contention(
        pair=kind,
        message_bytes=float(size),
        alone_s=median(alone),
        alone_samples_s=tuple(alone),
        shared_rate=Ratio.from_samples([2 * each for each in _ratios(alone, two)]) if two else None,
        duplex_rate=Ratio.from_samples(_ratios(alone, last["duplex"])),
        pair_order=PairOrder.from_samples([(min(row), max(row)) for row in times["same_pair"]]),
        collective_beside_transfer=CollectiveBesideTransfer(
            ranks=ranks,
            collective_bytes=float(ring_bytes(size, ranks)),
            collective_alone_s=median(collective),
            collective_slowdown=Ratio.from_samples(_ratios([row[1] for row in beside], collective)),
            transfer_slowdown=Ratio.from_samples(_ratios([row[0] for row in beside], alone)),
        ),
    )


def _ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [each / base for each, base in zip(above, below, strict=True)]
