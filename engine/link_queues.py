"""Queues of emulated links, in the words of ``tc``: who waits behind whom at a link that is full.

A link that serves packets as they come serves messages as they come, too: one that begins later waits behind all that is
queued. NICs of clusters take turns between connections instead. So does a link here that several connections may fill: a
class for each of them under one rate (hierarchical token bucket, ``htb``), which are served in turns of one packet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

MTU_BYTES = 9000
"""Of an Ethernet packet: a jumbo frame is mostly payload, and is handled once instead of six times."""
BURST_BYTES = 70_000
"""What may pass at once after a pause: a little more than the largest packet that the kernel hands to
a link in one piece. With less it cuts each into pieces, which costs more than all the rest."""
BURST_S = 0.5e-3
"""The longest that what may pass at once would take, which is how much a message can come too early: on
slow links cutting costs little. One packet may always pass."""
QUEUE_MS = 2000
"""How long a packet may wait in a link's queue before it is dropped: so long that hardly any is, since
the networks of clusters hold back a sender rather than lose what it sent."""
MOST_CLASSES = 64
"""Connections that take turns at a link; where there are more, all that come from one process are one class."""
QUEUE_BYTES = 32_000_000
"""The same of a class, which has a queue of its own."""
ALL, REST, FIRST = 1, 2, 16
"""Numbers of classes: of the link, of what belongs to no connection, of the first connection."""


class Connection(NamedTuple):
    """Addresses of two processes."""

    source: str
    destination: str


def burst_bytes(rate: float) -> float:
    """What may pass a link of so many bytes/s at once."""
    return min(BURST_BYTES, max(MTU_BYTES + 1000, rate * BURST_S))


def bucket(device: str, rate: float) -> Iterator[str]:
    """Hold what leaves ``device`` to ``rate`` bytes/s (which tc calls bps), first in, first out."""
    yield f"qdisc replace dev {device} root tbf rate {rate:.0f}bps burst {burst_bytes(rate):.0f} latency {QUEUE_MS}ms"


def fair_bucket(device: str, rate: float, connections: Sequence[Connection]) -> Iterator[str]:
    """The same, where connections take turns."""
    matches = [f"match ip src {source}/32 match ip dst {target}/32" for source, target in connections]
    if len(matches) > MOST_CLASSES:
        matches = [f"match ip src {source}/32" for source in dict.fromkeys(source for source, _ in connections)]
    if len(matches) < 2:
        yield from bucket(device, rate)
        return
    burst = f"burst {burst_bytes(rate):.0f} cburst {burst_bytes(rate):.0f}"
    yield f"qdisc replace dev {device} root handle 1: htb default {REST:x}"
    yield f"class add dev {device} parent 1: classid 1:{ALL:x} htb rate {rate:.0f}bps ceil {rate:.0f}bps {burst}"
    least = max(1.0, rate / (4 * len(matches)))
    for number in (REST, *range(FIRST, FIRST + len(matches))):
        own = f"rate {least:.0f}bps ceil {rate:.0f}bps quantum {MTU_BYTES + 14} {burst}"
        yield f"class add dev {device} parent 1:{ALL:x} classid 1:{number:x} htb {own}"
        yield f"qdisc add dev {device} parent 1:{number:x} bfifo limit {QUEUE_BYTES}"
    for number, match in enumerate(matches, start=FIRST):
        yield f"filter add dev {device} parent 1: protocol ip prio 1 u32 {match} flowid 1:{number:x}"
