"""Durations of messages on links: a message of ``n`` bytes takes ``alpha + n * beta`` seconds.

This is the model of Hockney, as used for collectives by Thakur, Rabenseifner and Gropp ("Optimization of collective
communication operations in MPICH", 2005). Alpha is the latency of a link, beta the inverse of its bandwidth. The nodes
of the two devices determine the link of a message. A device has one port per direction on its link inside the node; the
devices of a node share its NICs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import ceil, log2, sqrt
from typing import NamedTuple, Protocol

import numpy as np

from meshwave.engine.document import Cluster, Link
from meshwave.engine.document.devices import find_device_kind

SWITCH_LATENCY_S = 25e-6
"""Fixed seconds of a reduction in the switches of a node (tuning.cc of NCCL)."""
SWITCH_STEP_S = 20.9e-6
"""Seconds of a step between two nodes whose switches reduce (tuning.cc of NCCL)."""


class Message(NamedTuple):
    """Message of a number of bytes from one device to another."""

    source: int  # a device
    destination: int  # a device
    bytes: float


class CollectivePrice(Protocol):
    """Function that prices a collective of groups of devices, concurrently."""

    def __call__(self, cluster: Cluster, groups: Sequence[Sequence[int]], size: float, rounds: int = 2) -> float:
        """Return the seconds for ``size`` bytes in total; ``rounds`` is 2 for an all-reduce, 1 for a gather or scatter."""


def transfer_seconds(cluster: Cluster, messages: Iterable[Message]) -> float:
    """Return the seconds until the last of several messages, all sent at once, has arrived.

    Each message waits for the busiest resource on its path: the port of its sender or receiver, or the NICs of either
    node, which all messages between nodes share. With ``k`` equal messages out of a node with ``n`` NICs, each message
    gets ``min(1, n / k)`` of a NIC.
    """
    intra: dict[tuple[str, int], float] = defaultdict(float)
    inter: dict[tuple[str, int], float] = defaultdict(float)
    nodes: dict[tuple[str, int], float] = defaultdict(float)
    for message in messages:
        if message.source == message.destination:
            continue
        ends = ("out", message.source), ("in", message.destination)
        across = cluster.node_of(message.source) != cluster.node_of(message.destination)
        for direction, device in ends:
            (inter if across else intra)[direction, device] += message.bytes
            if across:
                nodes[direction, cluster.node_of(device)] += message.bytes / cluster.nics_per_node
    busiest_nic = max([*inter.values(), *nodes.values()], default=None)
    return max(
        _message_seconds(cluster.link_inside_node, max(intra.values(), default=None)),
        _message_seconds(cluster.link_between_nodes, busiest_nic),
    )


def _message_seconds(link: Link, size: float | None) -> float:
    return 0.0 if size is None else link.latency_s + size / link.bandwidth


def collective_seconds(cluster: Cluster, groups: Sequence[Sequence[int]], size: float, rounds: int = 2) -> float:
    """Return the seconds in which groups of devices perform a collective of ``size`` bytes each, concurrently.

    ``rounds`` is 2 for an all-reduce, and 1 for an all-gather or a reduce-scatter, which are the halves of a ring. An
    all-reduce takes a ring or reductions in the switch (NVLS), whichever is faster.

    A ring of ``n`` devices performs a reduce-scatter and an all-gather of ``n - 1`` steps each, and each step sends
    ``size / n`` bytes: ``2(n-1) alpha + 2(n-1)/n size beta``, the minimum of any algorithm (Patarasuk and Yuan,
    "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). The ring passes through each node
    once, so one of its hops leaves each node; rings that leave the same node share its NICs. The slowest hop limits a
    ring.

    On devices with constants, a group with several devices per node runs as many rings, each over another NIC, as NCCL
    does; a step within a node has the latency of the link there.
    """
    rings = _distinct_rings(cluster, groups)
    if rounds == 1:
        return max((_ring_seconds(cluster, ring, size) / 2 for ring in rings), default=0.0)
    return max(
        (min(_ring_seconds(cluster, ring, size), _switch_seconds(cluster, ring, size)) for ring in rings), default=0.0
    )


class _Ring(NamedTuple):
    """Properties of a ring that determine its duration."""

    devices: int
    nodes: int
    fewest: int  # smallest number of its devices on a node
    crowd: int  # largest number of rings that leave one of its nodes


def _distinct_rings(cluster: Cluster, groups: Sequence[Sequence[int]]) -> set[_Ring]:
    """Return the rings of groups of several devices; equal ones occur once."""
    by_size: dict[int, list[Sequence[int]]] = defaultdict(list)
    for group in groups:
        if len(group) > 1:
            by_size[len(group)].append(group)
    node_rows = [np.sort(np.array(each) // cluster.devices_per_node) for each in by_size.values()]
    starts = [np.diff(rows, prepend=-1) > 0 for rows in node_rows]  # True at the first device on each node
    out = np.zeros(cluster.nodes, np.int64)  # rings that leave each node
    for rows, first in zip(node_rows, starts, strict=True):
        crosses = first.sum(axis=1) > 1
        out += np.bincount(rows[crosses][first[crosses]], minlength=cluster.nodes)
    found: set[_Ring] = set()
    for rows, first in zip(node_rows, starts, strict=True):
        counts = np.diff(np.append(np.flatnonzero(first), first.size))  # devices of each ring on each of its nodes
        nodes = first.sum(axis=1)
        fewest = np.minimum.reduceat(counts, np.cumsum(nodes) - nodes)
        distinct = np.unique(np.stack([nodes, fewest, out[rows].max(axis=1)]), axis=1)
        found.update(_Ring(rows.shape[1], *ring) for ring in distinct.T.tolist())
    return found


def _ring_seconds(cluster: Cluster, ring: _Ring, size: float) -> float:
    n, inside, between = ring.devices, cluster.link_inside_node, cluster.link_between_nodes
    if ring.nodes == 1:
        return 2 * (n - 1) * (inside.latency_s + size / n / inside.bandwidth)
    sharing = ring.crowd / cluster.nics_per_node
    if cluster.device.constants is None:
        return 2 * (n - 1) * (between.latency_s + size / n * max(1.0, sharing) / between.bandwidth)
    per_byte = max(max(sharing, 1 / ring.fewest) / between.bandwidth, 1 / inside.bandwidth)
    steps = 2 * (ring.nodes - 1) * between.latency_s + 2 * (n - ring.nodes) * inside.latency_s
    return steps + 2 * (n - 1) / n * size * per_byte


def _switch_seconds(cluster: Cluster, ring: _Ring, size: float) -> float:
    """Return the seconds of an all-reduce whose sums the switches of one or two nodes compute; infinite if they cannot.

    A device sends its bytes and its share of the sum. Chunks pass in a pipeline: measured times of 1 MB to 8 GB have the
    geometric mean of the fixed time and the time of the bytes as the time to fill it.
    """
    kind = find_device_kind(cluster.device.name)
    if kind is None or kind.switch_reduction_efficiency is None or ring.nodes > 2 or ring.fewest == 1:
        return float("inf")
    per_byte = (1 + 1 / ring.fewest) / (kind.switch_reduction_efficiency * cluster.intra_node.bandwidth)
    fixed = SWITCH_LATENCY_S
    if ring.nodes == 2:
        sharing = max(ring.crowd / cluster.nics_per_node, 1 / ring.fewest)
        fixed, per_byte = fixed + 2 * SWITCH_STEP_S, max(per_byte, sharing / cluster.link_between_nodes.bandwidth)
    return fixed + per_byte * size + sqrt(fixed * per_byte * size)


def small_all_reduce_seconds(cluster: Cluster, devices: Sequence[int], size: float) -> float:
    """Return the seconds to all-reduce a few bytes by recursive doubling: ``ceil(log2 n) (alpha + size beta)``.

    For short messages, the algorithm with the fewest steps is fastest (Thakur et al., 2005, section 4.5).
    """
    if len(devices) < 2:
        return 0.0
    nodes = {cluster.node_of(device) for device in devices}
    link = cluster.link_between_nodes if len(nodes) > 1 else cluster.link_inside_node
    return ceil(log2(len(devices))) * (link.latency_s + size / link.bandwidth)
